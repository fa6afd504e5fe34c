"""Past runs: a row for each run that is kept, and runs laid on one clock. Of a run with a result
only small files are read, which takes about a millisecond; of another its whole trace.
"""

import contextlib
import json
import time
import warnings
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple

from course_lib.errors import LockstepError, SpecError
from course_lib.record import rundir
from course_lib.record.events import ACTIVE, Lifecycle, from_lines
from course_lib.record.files import one_line, read, read_lines
from course_lib.record.life import Life, planned
from course_lib.record.saved import OUTCOMES, SavedRun, first_failure, outcome
from course_lib.spec.run_spec import FRAMEWORKS, RunSpec

if TYPE_CHECKING:
    from pandas import DataFrame

DAMAGED = "damaged"
WHERE = """a pandas expression: "final_loss < 0.5 and events.str.contains('kill')\""""
NO_RACE = "This is no race: what else the machine did while each run went on is not known."


class PastRun(NamedTuple):
    """A run that is kept, also one that goes on. `directory`: its name; `started`: Unix time;
    `final_loss`: the last mean; `seconds`: from its start to its last event; `events`: what was
    done to it, or why it failed or cannot be read. None is what is not known.
    """

    directory: str
    started: float
    strategy: str = ""
    framework: str = ""
    workload: str = ""
    workers: int | None = None
    steps_done: int | None = None
    final_loss: float | None = None
    seconds: float | None = None
    state: str = DAMAGED
    events: str = ""


def past_runs(last: int | None = None, where: str = "", **wanted: str) -> list[PastRun]:
    """Return the runs in the home folder, the newest first: the `last` ones of those whose fields
    are as `wanted`, where "" is any, and of which the pandas expression `where` is true. Raises
    `SpecError` for a value that no run has, and for what is no such expression.
    """
    rows = list[PastRun]()
    with rundir.usable("LOCKSTEP_HOME", rundir.home()):
        for path in rundir.runs().glob("*/"):
            with contextlib.suppress(FileNotFoundError):  # it makes room for another at this moment
                rows.append(past_run(path))
    fixed = {"state": [*OUTCOMES, DAMAGED], "framework": [*FRAMEWORKS, "python"]}
    for field, value in wanted.items():
        names = fixed.get(field) or sorted({getattr(row, field) for row in rows} - {""})
        if value and names and value not in names:
            raise SpecError.unknown(field, value, names)
    chosen = (row for row in rows if all(v in ("", getattr(row, f)) for f, v in wanted.items()))
    rows = sorted(chosen, key=lambda row: (row.started, row.directory), reverse=True)
    if where:
        try:
            rows = [rows[i] for i in frame(rows).query(where, engine="python").index]
        except Exception as error:  # pandas has many for a wrong expression
            fields = ", ".join(PastRun._fields)
            raise SpecError("where", where, f"{WHERE} ({one_line(error)}); of {fields}") from None
    return rows[:last]


def frame(rows: list[PastRun]) -> "DataFrame":
    """A row for each run; `started` is local time."""
    import pandas as pd

    whole, real = dict.fromkeys(("workers", "steps_done"), "Int64"), ("final_loss", "seconds")
    table = pd.DataFrame.from_records(rows, columns=PastRun._fields)
    table = table.astype(whole | dict.fromkeys(real, "float64"))
    started = [datetime.fromtimestamp(row.started) for row in rows]
    return table.assign(started=pd.to_datetime(pd.Series(started, dtype="datetime64[ns]")))


def past_run(path: Path) -> PastRun:
    """Read the row of the run in a directory; no damage to it raises an error."""
    run, known = rundir.RunDir(path), dict[str, Any](started=path.stat().st_mtime)
    try:
        spec = run.spec
        known |= {n: getattr(spec, n) for n in ("strategy", "framework", "workload", "workers")}
        if 0 < run.facts.started < time.time():
            known["started"] = run.facts.started
        lines = read_lines(run.lifecycle) if run.lifecycle.exists() else b""
        events, _ = from_lines(lines, run.facts.origin)
        # `marks` leaves out what is imposed from the start
        imposed = [e._replace(at=1e-9) for e in planned(spec)]
        life = Life([*imposed, *(e for e in events if isinstance(e, Lifecycle))])
        known["state"] = outcome(run, {task: life.state(task) for task in spec.tasks})
        known["events"] = "; ".join(f"{m.word} {', '.join(m.who)}" for m in life.marks())
        known |= _figures(run, known["state"])
    except (OSError, ValueError, LockstepError) as error:
        known |= {"state": DAMAGED, "events": one_line(error).replace(f"{run.path}/", "")}
    return PastRun(path.name, **known)


def _figures(run: rundir.RunDir, state: str) -> dict[str, Any]:
    """Read the figures of a result, or else of the trace; and why the run failed."""
    match read(run.result_file, json.loads) if run.result_file.exists() else None:
        case {"steps_done": int(n), "final_loss": float() | None as loss, "seconds": {"total": t}}:
            return {"steps_done": n, "final_loss": loss, "seconds": float(t)}
    with warnings.catch_warnings(action="ignore"):  # of lines that hold no event
        digest = SavedRun(run.path).digest
    known: dict[str, Any] = {"final_loss": digest.losses.last, "seconds": digest.seconds}
    if state == "failed":
        known["events"] = str(first_failure(run, digest)).splitlines()[0]
    return known | {"steps_done": digest.steps_done or None}


class Overlay:
    """Runs that are over, by label, laid on one clock for `RaceBoard`. It is no race, and names no
    winner. Raises `SpecError` for fewer than two, for one given twice, and for one that goes on.
    """

    target_loss = target_accuracy = None

    def __init__(self, *runs: SavedRun) -> None:
        self.runs: dict[str, SavedRun] = {}
        names = [run.path.name for run in runs]
        if len({*names}) < max(2, len(names)) or any(run.state in ACTIVE for run in runs):
            allowed = "two runs or more that are over, each once: overlay(0, 1)"
            raise SpecError("overlay", names, allowed)
        for run in runs:
            same = sum(other.spec.strategy == run.spec.strategy for other in self.runs.values())
            self.runs[run.spec.strategy + f" ({same + 1})" * (same > 0)] = run

    @property
    def comparison(self) -> Any:
        """The `fairness` that a board asks a race for at its end."""
        specs = [run.spec for run in self.runs.values()]
        differ = [f for f in RunSpec.model_fields if len({str(getattr(s, f)) for s in specs}) > 1]
        advice = f"They differ in {', '.join(differ)}." if differ else "They have the same fields."
        return SimpleNamespace(fairness=SimpleNamespace(fair=None, why=NO_RACE, advice=advice))

    def stop(self) -> None:
        """Do nothing: they are over."""

    def __repr__(self) -> str:
        return "\n".join(f"{label}: {run.path.name}" for label, run in self.runs.items())
