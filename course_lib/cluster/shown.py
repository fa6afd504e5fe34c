"""Picture of a run in a notebook: its state, what can be done with it, where its record lies."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from course_lib.errors import LockstepError
from course_lib.record.events import ACTIVE
from course_lib.record.progress import how_far
from course_lib.text import count, table

if TYPE_CHECKING:
    from course_lib.cluster.run import Run


def bundle(run: Run) -> dict[str, str]:
    """The run as plain text and as HTML."""
    spec = run.spec
    nodes = [r.choice for r in run.plan.reasons if r.what == "nodes"]
    on = f" on {nodes[0]} of a Ray cluster" if nodes else ""
    where = f"{spec.strategy}, {spec.framework}, {count(len(run.tasks), 'task')}{on}"
    said = f"{how_far(run, 'The run')}{_failure(run)}."
    record = f"Its record: {run.run_dir}"
    rows = _rows(run)
    text = "\n".join([f"Run ({where})", said, *(f"  {line}" for line in table(rows).split("\n"))])
    cells = (f"<code>{escape(code)}</code></td><td>{escape(what)}" for code, what in rows)
    body = "".join(f"<tr><td style='text-align:left'>{each}</td></tr>" for each in cells)
    body = body.replace("</td><td>", "</td><td style='text-align:left'>")
    head = f"<b>Run</b> ({escape(where)}). {escape(said)}"
    page = f"<div>{head}<table>{body}</table><small>{escape(record)}</small></div>"
    return {"text/plain": f"{text}\n{record}", "text/html": page}


def _failure(run: Run) -> str:
    """Say in one line what ended a failed run."""
    if run.state != "failed":
        return ""
    try:
        return f": {run.result}"
    except LockstepError as error:
        return f": {str(error).splitlines()[0].rstrip('.')}"


def _rows(run: Run) -> list[tuple[str, str]]:
    """List what can be done with it now: the code, and what it does."""
    last = next(task for task in reversed(run.spec.tasks) if task.startswith("worker:"))
    log = (f'run.log("{last}")', "the end of what a task printed")
    if run.state in ACTIVE:
        also = "also jitter, pause, resume, kill and inject"
        return [
            ("run.wait()", "wait for its end"),
            ("run.stop()", "end it now"),
            (f'run.slow("{last}", 4)', f"make a task 4 times slower; {also}"),
            ("TrainingBoard(run)", "watch it, and do all this by hand"),
            log,
        ]
    rows = [("Timeline(run)", "who did what, when, and who waited for whom"), log]
    if run.state != "failed":
        rows.insert(0, ("run.result", "what came out of it"))
    if run.state == "finished" and run.spec.strategy != "custom":
        rows.append(("run.model()", "the trained model"))
    return rows
