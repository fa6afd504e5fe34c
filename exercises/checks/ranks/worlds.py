"""Worlds of ranks that are bound and watched, and the verdict on what they found."""

from __future__ import annotations

import re
import resource
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import psutil

from course_lib.course.answers import ENDLESS, Unusable, Verdict
from course_lib.course.handed_in import Answer, TookTooLong, bounded

from ..processes import PATIENCE, SIZES, Role, World, carry_out
from .witness import Witness

LONGEST = 3.0  # seconds that a rank may compute
MEMORY = 1 << 30  # bytes that a rank may take


def worlds(answer: Answer, role: Role, ready_made: Iterable[str], seed: int) -> Iterator[World]:
    """Carry out `role(task, witness, learner's, seed)`, by ranks that are bound in time and memory.

    Raises NotImplementedError for a stub, and Unusable where the answer never ended: the same would
    happen in each world.
    """
    for world in carry_out(answer, partial(_rank, role), seed, ready_made=ready_made):
        words = re.sub(r"\bworker:(\d+)", r"rank \1", world.words)
        if TookTooLong.__name__ in words or world.trouble == "late":
            late = f"{PATIENCE:g} seconds: {words.rstrip(' ,')}"
            bound = late if world.trouble == "late" else f"{LONGEST:g} seconds of computing"
            raise Unusable(
                f"One of {world.workers} ranks had not come back after {bound}. {ENDLESS}"
            )
        yield replace(world, words=words)


def _rank(role: Role, task: Any, learners: Any, seed: int) -> Any:
    """What each task does."""
    import torch.distributed as dist

    most = psutil.Process().memory_info().vms + MEMORY
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    dist.init_process_group("gloo")
    witness = Witness()
    with bounded(LONGEST):
        return role(task, witness, learners, seed)


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
        shown, ranks = world.run.trace, f"With {world.workers} ranks"
        wrong: Complaint | None
        # one that noticed has ended
        if world.trouble == "stands" or "must make the same calls" in world.words:
            wrong = f"{ranks} it never ends: {world.words.rstrip('. ,')}.", stands
        elif world.trouble:
            place = " (line {1}: {3})".format(*world.place) if world.place else ""
            place = place.replace(": )", " of your answer)")  # the text of a cell is not kept
            on = f"rank {world.task.partition(':')[2]}"
            text = f"On {on} it fails: {world.words}{place}"
            wrong = f"{ranks}: {text}", fails[1] if fails[0] in text else ""
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
