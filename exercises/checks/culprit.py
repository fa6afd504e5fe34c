"""The judge of a function that names the worker for which all others wait: made-up runs, and a
real one that was paused.
"""

from __future__ import annotations

import functools
import secrets
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from course_lib.course.answers import Unusable, Verdict
from course_lib.course.handed_in import Answer
from course_lib.launch import start
from course_lib.record.events import Phase
from course_lib.record.trace import Trace
from course_lib.text import kind_of

from .calls import NOTHING, asked

HINTS = (
    (
        "First find out which of the two cases it is: count the compute rows of each worker. If one"
        " has fewer, you are done. If all have as many: who never has to wait for the others?"
    ),
    (
        "For each worker, the seconds of read and compute in each step, and the median of them over"
        " the steps. The worker with the largest median is the culprit."
    ),
    (
        "count = phases[phases.kind == 'compute'].groupby('task').size(); if count.nunique() > 1:"
        " return count.idxmin(). Else work = phases[phases.kind.isin(['read', 'compute'])];"
        " work.groupby(['task', 'step']).duration.sum().groupby('task').median().idxmax()"
    ),
)
ROLES = ("culprit", "fast", "last", "odd", "long")  # of worker:1 to worker:5, in some order
STANDS = ("stopped", "has read")  # the made-up runs that stand still; the others are over
PATIENCE = 30.0  # seconds for a real run to begin, or to stand still


def made_up(kind: str, roles: dict[str, str]) -> list[Phase]:
    """The phases of a synchronous run of six workers. `fast` waits longest, `last` writes the last
    row, the steps of `long` are longest by a hair, and `odd` does what misleads in this kind: in a
    slow one it waits least of those who wait.
    """
    steps, rows = 21 + secrets.randbelow(9), list[Phase]()
    workers = ["worker:0", *sorted(roles)]
    now = dict.fromkeys(workers, 0.0)
    for step in range(steps):
        final, came = step == steps - 1, dict[str, float]()
        for name in workers:
            role = roles.get(name, "")
            read, compute = 0.002, 0.02 + secrets.randbelow(1000) * 1e-6
            if role == "fast":
                compute = 0.015
            if role == "culprit" and kind in ("slow", "hiccup"):
                compute *= 3
            if role == "culprit" and kind == "reads slowly":
                read, compute = 0.04, 0.019
            if role == "odd" and kind == "slow":
                compute = 0.025
            if role == "odd" and (kind in STANDS or (kind == "hiccup" and step == 7)):
                compute = 0.06 if kind in STANDS else 3.0
            if role == "last" and final:
                compute += 0.09 if kind in STANDS else 0.01
            stopped = role == "culprit" and final and kind in STANDS
            if not stopped or kind == "has read":
                rows.append(Phase(name, step, "read", now[name], now[name] + read))
            came[name] = now[name] + read + compute
            if not stopped:
                rows.append(Phase(name, step, "compute", now[name] + read, came[name]))
        for name in workers if not (final and kind in STANDS) else ():
            # the last step is the longest of all workers, so that of `last` changes no median
            role, over = roles.get(name, ""), max(came.values()) + 0.004 + 0.01 * final
            over += 1e-4 * (role == "long") + 1e-3 * (role == "last" and final)
            now[name] = over + 2e-4 * (1 + step / 10 * (role == "long"))
            rows.append(Phase(name, step, "reduce", came[name], over))
            rows.append(Phase(name, step, "apply", over, now[name]))
    place = {name: k for k, name in enumerate(workers)}
    place |= {name: 9 for name in workers if roles.get(name) == "last"}
    return sorted(rows, key=lambda row: (place[row.task], row.step))


def loop(task: Any) -> None:
    """What the workers of a real run do."""
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    gradient = torch.ones(100)
    for step in range(100_000):
        with task.phase("compute", step):
            time.sleep(0.04)
        with task.phase("reduce", step):
            dist.all_reduce(gradient)


@functools.cache  # one run for all answers
def paused() -> tuple[list[Phase], str]:
    """The phases of a real run that stands still, and the worker that was paused."""
    for _ in range(3):  # a pause in the middle of an exchange leaves no trace of who it was
        with start(loop, framework="torch", workers=3) as run:
            victim, until = f"worker:{secrets.randbelow(3)}", time.monotonic() + PATIENCE
            while max(computed(run.trace.refresh().all(Phase)).values(), default=0) < 8:
                if time.monotonic() > until:
                    raise Unusable("The real run has not begun in time. Check once more.")
                time.sleep(0.05)
            run.inject(f"pause {victim}")
            while run.standstill() is None and time.monotonic() < until + PATIENCE:
                time.sleep(0.1)
            rows = run.trace.refresh().all(Phase)
        count = computed(rows)
        if count[victim] < min(count[name] for name in count if name != victim):
            return rows, victim
    raise Unusable("Three real runs were paused in the middle of an exchange. Check once more.")


def computed(rows: Sequence[Phase]) -> Counter[str]:
    return Counter(row.task for row in rows if row.what == "compute")


def named(learners: Any, rows: Sequence[Sequence[Any]]) -> Any:
    """Where the learner's code runs: the answer for the frame of these phases."""
    return learners(Trace(Phase(*row) for row in rows).phases)


def judge(task: str, answer: Answer) -> Verdict:
    for kind in ("slow", "stopped", "hiccup", "has read", "reads slowly"):
        names = secrets.SystemRandom().sample([f"worker:{k}" for k in range(1, 6)], 5)
        roles = dict(zip(names, ROLES, strict=True))
        rows = made_up(kind, roles)
        given = name_in(asked(answer, named, [[*row] for row in rows]), rows)
        if given != names[0]:
            text = case_in_words(kind, names[0], rows)
            cure = mistake(kind, roles.get(given, ""), given)
            return Verdict(task, "not yet", f"{text} It returns {given}.", cure)
    rows, victim = paused()
    case = f"A real run in which {victim} was paused:"
    try:
        given = name_in(asked(answer, named, [[*row] for row in rows]), rows)
    except Unusable as problem:
        raise Unusable(f"{case} it has rows of {kinds_of(rows)} alone. {problem}") from None
    if given != victim:
        text = f"{case} it returns {given}."
        cure = "Which worker has the fewest compute rows? Kinds of rows may be missing altogether."
        return Verdict(task, "not yet", text, cure, Trace(rows))
    text = f"Five made-up runs, and a real one in which {victim} was paused: named each time."
    return Verdict(task, "passed", text, shown=Trace(rows))


def kinds_of(rows: Sequence[Phase]) -> str:
    return ", ".join(sorted(set(Trace(rows).phases.kind)))


def name_in(given: Any, rows: Sequence[Phase]) -> str:
    names = sorted({row.task for row in rows})
    if given is None:
        raise Unusable(NOTHING)
    if given not in names:
        what = str(given)[:60] if isinstance(given, str | int | float | list) else kind_of(given)
        raise Unusable(f"It returns {what}. Return the name of a worker, such as 'worker:2'.")
    return str(given)


def case_in_words(kind: str, culprit: str, rows: Sequence[Phase]) -> str:
    count = computed(rows)
    if kind in STANDS:
        most, read = max(count.values()), " and has read its next batch" * (kind == "has read")
        return (
            f"A run that stands still: {culprit} has computed {count[culprit]} steps{read}, the"
            f" five others have computed {most}."
        )
    work = Counter[tuple[str, int]]()
    for row in rows:
        if row.what in ("read", "compute"):
            work[row.task, row.step] += row.end - row.start  # type: ignore[assignment]
    typical = {
        name: 1000 * float(np.median([s for (task, _), s in work.items() if task == name]))
        for name in count
    }
    return (
        f"A run of {count[culprit]} steps: from the beginning of read to the end of compute"
        f" {culprit} takes {typical.pop(culprit):.0f} ms in the median step, and no other worker"
        f" more than {max(typical.values()):.0f} ms."
    )


def mistake(kind: str, role: str, given: str) -> str:
    """The mistake by which somebody names the worker with this role."""
    if kind == "has read":
        return (
            "All workers have a row of the last step, so the largest step does not tell. Reading"
            " comes before computing: count compute rows alone."
        )
    if kind == "reads slowly":
        return (
            "The culprit computes as fast as the others, and its batches come late. Add read and"
            " compute of a step, or look at who waits least."
        )
    if role == "last":
        return (
            "It has the last row, the latest end, or the largest sum of all durations. Waiting is"
            " in these as well, and waiting is what the others do: count read and compute alone."
        )
    if kind == "stopped" and role == "odd":
        return (
            f"{given} is the slowest, but it has arrived: it has computed the last step, and waits"
            " like the others. In a run that stands still, look for who has not arrived."
        )
    if kind == "stopped":
        return "Who waits has arrived. The worker without a compute row of the last step has not."
    if role == "odd" and kind == "hiccup":
        return (
            "One single step of it took 3 s. That is enough for the largest mean, sum or maximum;"
            " the median over the steps hardly changes by it."
        )
    if role == "fast" and kind == "slow":
        return "It waits longest, so it is the fastest. Others wait for the one that waits least."
    if role == "long" and kind == "slow":
        return (
            "Its steps, or its exchanges, are longest by less than a millisecond. In a synchronous"
            " run all steps end together and take as long: compare the work in them."
        )
    if role == "odd" and kind == "slow":
        return (
            f"{given} waits least of all that have a wait row. Who never waits has none, so groupby"
            " leaves that worker out: count no row as 0 seconds."
        )
    if given == "worker:0":
        return (
            "worker:0 is the first in the frame, and nothing else. If all values are equal, idxmin"
            " and min give the first: then compare how long each worker works."
        )
    return "Compare what each worker does before its reduction: read and compute, step by step."
