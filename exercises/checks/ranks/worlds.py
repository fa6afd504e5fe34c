"""Worlds: a learner's function on each rank of small clusters. `carry_out` runs in the learner's
process and hands back plain data; `worlds` reads that in the process that judges.
"""

from __future__ import annotations

import re
import resource
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import cloudpickle
import psutil

from course_lib.cluster.run import Run
from course_lib.course.answers import ENDLESS, TookTooLong, Unusable, Verdict, bounded
from course_lib.errors import LockstepError, Stalled, TaskFailed
from course_lib.launch import start
from course_lib.record.saved import SavedRun

from .witness import Witness

LONGEST = 5.0  # seconds that a rank may compute
PATIENCE = 40.0  # seconds that a world may take, for what waits and does not compute
MEMORY = 1 << 30  # bytes that a rank may take
SIZES = (2, 3, 5)  # ranks
Seen = list[Any]
Role = Callable[..., Any]  # role(task, witness, answer, seed) -> what a rank found, as lists


@dataclass(frozen=True)
class World:
    """An answer on `workers` ranks: their run, what each rank found, what went wrong ("" if
    nothing), and whether ranks waited for each other for ever.
    """

    workers: int
    run: Run | SavedRun | None
    seen: Seen
    trouble: str = ""
    stands: bool = False


def carry_out(role: Role, answer: Any, seed: int, *sizes: int) -> list[Any]:
    """Run `role` with the answer in worlds of these sizes, side by side. For each: the run, what
    its ranks found, and the trouble that it had: its kind and its words.
    """
    package = __name__.partition(".")[0]
    cloudpickle.register_pickle_by_value(sys.modules[package])  # no task can import the checks
    begun = [partial(_rank, role, answer, seed, LONGEST, MEMORY) for _ in sizes]
    runs = [
        start(each, framework="torch", workers=size)
        for each, size in zip(begun, sizes, strict=True)
    ]
    return [_ended(run) for run in runs]


def _ended(run: Run) -> list[Any]:
    try:
        run.wait(PATIENCE)
    except Stalled as problem:
        return [run, [], ["stands", problem.words]]
    except TaskFailed as problem:
        return [
            run,
            [],
            ["failed", f"On {problem.task} it fails: {problem.reason}", _line(problem)],
        ]
    except LockstepError as problem:
        return [run, [], ["failed", str(problem)]]
    finally:
        run.stop()
    return [run, [*run.values.values()], []]


def _line(problem: TaskFailed) -> str:
    """The last line of the learner's code in a traceback: the files of checks are none of it."""
    frames = re.findall(r'File "(.*?)", line (\d+), in .*\n +(\S.*)', problem.remote_traceback)
    theirs = [f for f in frames if "site-packages" not in f[0] and "/checks/" not in f[0]]
    return f" (line {theirs[-1][1]}: {theirs[-1][2]})" if theirs else ""


def _rank(role: Role, answer: Any, seed: int, seconds: float, memory: int, task: Any) -> Any:
    """What each task does."""
    import torch.distributed as dist

    most = psutil.Process().memory_info().vms + memory
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    dist.init_process_group("gloo")
    witness = Witness()
    with bounded(seconds):
        return role(task, witness, answer, seed)


def attempt(answer: Any, trial: Callable[..., Any]) -> Callable[..., Any]:
    """`trial(answer, …)`, called where the learner's code runs."""
    within = getattr(answer, "within", None)
    return partial(within, trial) if within else partial(trial, answer)


def worlds(attempt: Callable[..., Any], seed: int) -> Iterator[World]:
    """The smallest world first; the others, side by side, once it has been looked at.

    Raises NotImplementedError for a stub, and Unusable where the answer ended its process or never
    ended: the same would happen in each world.
    """
    for sizes in (SIZES[:1], SIZES[1:]):
        for workers, (run, seen, trouble) in zip(sizes, attempt(seed, *sizes), strict=True):
            kind, words, line = [*trouble, "", "", ""][:3]
            if "NotImplementedError" in words:
                raise NotImplementedError
            if TookTooLong.__name__ in words:
                said = f"One of {workers} ranks had not come back after {LONGEST:g} seconds of"
                raise Unusable(f"{said} computing. {ENDLESS}")
            yield World(workers, run, seen, as_ranks(words) + line, kind == "stands")


def as_ranks(words: str) -> str:
    return re.sub(r"\bworker:(\d+)", r"rank \1", words)


Complaint = tuple[str, str]  # what is wrong, and the name of the mistake
ALIKE = (
    "A collective is a meeting: all ranks must make the same calls in the same order, whatever"
    " their data are."
)


def judged(
    task: str,
    found: Iterator[World],
    complaint: Callable[[World], Complaint | None],
    said: str,
    stands: str = ALIKE,
) -> Verdict:
    """The verdict on an answer by the worlds in which it ran: the first in which something is wrong
    decides. `said`: what was shown if nothing is. `stands`: a hint where ranks wait for ever.
    """
    shown = None
    for world in found:
        shown = world.run.trace if world.run else None
        wrong: Complaint | None
        if world.stands:
            wrong = f"With {world.workers} ranks it never ends: {world.trouble}.", stands
        elif world.trouble:
            wrong = f"With {world.workers} ranks: {world.trouble}", ""
        else:
            wrong = complaint(world)
        if wrong:
            return Verdict(task, "not yet", *wrong, shown=shown)
    ranks = f"{', '.join(map(str, SIZES[:-1]))} and {SIZES[-1]}"
    return Verdict(task, "passed", f"Carried out by {ranks} real processes. {said}", shown=shown)


def listed(numbers: Sequence[object], most: int = 4) -> str:
    """ "3, 4 and 9", with "…" for more than `most`."""
    parts = [str(n) for n in numbers[:most]] + ["…"] * (len(numbers) > most)
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"
