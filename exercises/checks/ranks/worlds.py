"""Worlds: a learner's function on each rank of small clusters. `carry_out` runs in the learner's
process and hands back plain data; `worlds` reads that in the process that judges.
"""

from __future__ import annotations

import re
import resource
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import psutil

from course_lib.cluster.run import Run
from course_lib.course.answers import ENDLESS, TookTooLong, Unusable, Verdict, bounded
from course_lib.course.handed_in import Answer, watched
from course_lib.errors import Stalled, TaskFailed
from course_lib.launch import start
from course_lib.record.saved import SavedRun

from .witness import Witness

LONGEST = 3.0  # seconds that a rank may compute
PATIENCE = 90.0  # seconds that a world may take, for what waits and does not compute
MEMORY = 1 << 30  # bytes that a rank may take
SIZES = (2, 3, 5)  # ranks
Seen = list[Any]
Role = Callable[..., Any]  # role(task, witness, answer, seed) -> what a rank found, as lists


@dataclass(frozen=True)
class World:
    """An answer on `workers` ranks: their run, what each rank found, what went wrong ("" if
    nothing), whether ranks waited for each other for ever, and what was ready-made and called.
    """

    workers: int
    run: Run | SavedRun | None
    seen: Seen
    trouble: str = ""
    stands: bool = False
    used: tuple[str, ...] = ()


def carry_out(
    role: Role, ready_made: Iterable[str], answer: Any, seed: int, *sizes: int
) -> list[Any]:
    """Run `role` with the answer in worlds of these sizes, side by side. For each: the run, what
    its ranks found and what of `ready_made` they called, and the trouble that it had: its kind and
    its words.
    """
    names = tuple(ready_made)
    begun = [partial(_rank, role, names, answer, seed, LONGEST, MEMORY) for _ in sizes]
    runs = [
        start(each, framework="torch", workers=size)
        for each, size in zip(begun, sizes, strict=True)
    ]
    return [_ended(run) for run in runs]


def _ended(run: Run) -> list[Any]:
    try:
        run.wait_running().wait(PATIENCE)  # the first run of a process imports the framework
    except Stalled as problem:
        return [run, [], ["stands" if problem.standing else "late", problem.words]]
    except TaskFailed as problem:
        if "must make the same calls" in problem.reason:  # one that noticed has ended
            return [run, [], ["stands", problem.reason]]
        return [
            run,
            [],
            ["failed", f"On {problem.task} it fails: {problem.reason}", _line(problem)],
        ]
    finally:
        run.stop()
    return [run, [*run.values.values()], []]


def _line(problem: TaskFailed) -> str:
    """The last line of the learner's code in a traceback: the files of checks are none of it."""
    frames = re.findall(r'File "(.*?)", line (\d+), in .*\n +(\S.*)', problem.remote_traceback)
    theirs = [f for f in frames if "site-packages" not in f[0] and "/checks/" not in f[0]]
    return f" (line {theirs[-1][1]}: {theirs[-1][2]})" if theirs else ""


def _rank(
    role: Role, names: Any, answer: Any, seed: int, seconds: float, memory: int, task: Any
) -> Any:
    """What each task does."""
    import torch.distributed as dist

    most = psutil.Process().memory_info().vms + memory
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    dist.init_process_group("gloo")
    witness = Witness()
    with bounded(seconds), watched(names) as used:
        return [role(task, witness, answer, seed), used]


def worlds(answer: Answer, trial: Callable[..., Any], seed: int) -> Iterator[World]:
    """What `trial(answer, seed, *sizes)`, called where the learner's code runs, finds: the smallest
    world first; the others, side by side, once it has been looked at. What is ready-made and called
    there is added to `answer.used`.

    Raises NotImplementedError for a stub, and Unusable where the answer ended its process or never
    ended: the same would happen in each world.
    """
    for sizes in (SIZES[:1], SIZES[1:]):
        tried = answer.within(trial, seed, *sizes)
        for workers, (run, found, trouble) in zip(sizes, tried, strict=True):
            kind, words, line = [*trouble, "", "", ""][:3]
            if "NotImplementedError" in words:
                raise NotImplementedError
            if TookTooLong.__name__ in words or kind == "late":
                late = f"{PATIENCE:g} seconds: {as_ranks(words).rstrip(' ,')}"
                bound = late if kind == "late" else f"{LONGEST:g} seconds of computing"
                raise Unusable(f"One of {workers} ranks had not come back after {bound}. {ENDLESS}")
            seen, used = [each for each, _ in found], sorted({n for _, some in found for n in some})
            answer.used += used
            trouble = as_ranks(words) + line
            yield World(workers, run, seen, trouble, kind == "stands", tuple(used))


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
    fails: tuple[str, str] = ("", ""),
) -> Verdict:
    """The verdict on an answer by the worlds in which it ran: the first in which something is wrong
    decides. `said`: what was shown if nothing is. `stands`: a hint where ranks wait for ever;
    `fails`: words in what a rank raises, and a hint for these.
    """
    shown = None
    for world in found:
        shown = world.run.trace if world.run else None
        wrong: Complaint | None
        if world.stands:
            told = f"With {world.workers} ranks it never ends: {world.trouble.rstrip('. ,')}."
            wrong = told, stands
        elif world.trouble:
            hint = fails[1] if fails[0] in world.trouble else ""
            wrong = f"With {world.workers} ranks: {world.trouble}", hint
        else:
            wrong = complaint(world)
        if wrong:
            return Verdict(task, "not yet", *wrong, shown=shown)
    ranks = f"{', '.join(map(str, SIZES[:-1]))} and {SIZES[-1]}"
    return Verdict(task, "passed", f"Carried out by {ranks} real processes. {said}", shown=shown)


SLACK = 2000  # bytes on each rank: counts and flags, as objects, are some hundred


def unsent(world: World, what: str, handed: Sequence[int], size: int) -> Complaint | None:
    """Words for a right answer whose ranks together hand over fewer than the `size` bytes that one
    rank has for the others. What is ready-made may count elsewhere, and `check` tells of that.
    """
    if world.used or sum(handed) >= size:
        return None
    return (
        f"{what} right, but all ranks together handed {sum(handed):,} bytes to torch.distributed,"
        f" and on each rank there are {size:,} to exchange.",
        "So it came by another way: a file, the store of the process group, a helper that does the"
        " exchange, or what the check itself keeps. Exchange it by calls such as dist.all_reduce.",
    )


def unthrifty(what: str, handed: Sequence[int], size: int, cure: str) -> Complaint | None:
    """Words for more bytes than two times `size` for each rank, as a reduce and a broadcast hand
    over. It is the sum over all ranks that counts: one of them may pass on what others need.
    """
    workers = len(handed)
    if sum(handed) <= workers * (2.2 * size + SLACK):
        return None
    return (
        f"{what} right, but {workers} ranks hand over {sum(handed):,} bytes for a gradient of"
        f" {size:,}: that is {sum(handed) / size / workers:.1f} gradients for each rank.",
        cure,
    )


def listed(numbers: Sequence[object], most: int = 4) -> str:
    """ "3, 4 and 9", with "…" for more than `most`."""
    parts = [str(n) for n in numbers[:most]] + ["…"] * (len(numbers) > most)
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"
