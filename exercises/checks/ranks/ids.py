"""Which ids each rank reads: shards of an epoch, asked for by calls and read from the trace of a
run.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from course_lib.course.handed_in import Answer, bounded
from course_lib.record.events import Read
from course_lib.text import kind_of

from ..processes import SIZES, World
from .worlds import LONGEST, Complaint, listed

Shards = Sequence[Sequence[int]]


def asked(answer: Answer, calls: Sequence[tuple[int, ...]]) -> list[list[int]]:
    """The ids that the answer returns for each of these calls."""
    found: list[list[int]] = answer.within(_asked, calls)
    return found


def _asked(learners: Any, calls: Sequence[tuple[int, ...]]) -> list[list[int]]:
    with bounded(LONGEST):
        return [as_ids(learners(*call)) for call in calls]


def as_ids(found: Any) -> list[int]:
    """What an answer returned, as a list of numbers. Raises TypeError if it is none."""
    try:
        return [int(each) for each in found]
    except TypeError:
        cure = "is `return` missing?" if found is None else "return a list of ids."
        raise TypeError(f"It returns {kind_of(found)}: {cure}") from None


def read_by(world: World, epoch: int = 0) -> Shards:
    """The ids that each rank of a run read in an epoch."""
    events = world.run.trace.all(Read)
    return [
        [i for e in events if (e.task, e.epoch) == (f"worker:{rank}", epoch) for i in e.examples]
        for rank in range(world.workers)
    ]


def uneven(shards: Shards, count: int) -> Complaint | None:
    """What is wrong with the shards of `count` ids: each belongs to one rank, and no rank has two
    more than another.
    """
    workers, times = len(shards), Counter(i for shard in shards for i in shard)
    case = f"{count} ids, {workers} ranks"
    if stray := sorted(i for i in times if not 0 <= i < count):
        return f"{case}: there is no id {stray[0]}.", _stray(shards, stray, count)
    missing = [i for i in range(count) if i not in times]
    twice = [i for i in range(count) if times[i] > 1]
    if twice:
        first = twice[0]
        by = [rank for rank, shard in enumerate(shards) if first in shard]
        who = f"ranks {listed(by)}" if len(by) > 1 else f"rank {by[0]}, {times[first]} times"
        return f"{case}: id {first} is read by {who}.", _repeated(shards, count, twice, missing)
    if missing:
        nobody = f"id {missing[0]}" if len(missing) == 1 else f"ids {listed(missing)}"
        text = f"{case}: nobody reads {nobody}."
        return text, _missing(shards, count, missing)
    sizes = [len(shard) for shard in shards]
    if max(sizes) - min(sizes) > 1:
        text = f"{case}: the shards have {listed(sizes, 5)} ids."
        why = "In a synchronous step all wait for the rank with most to do."
        return (
            text,
            f"{why} Give the remainder out, one id each, so that sizes differ by 1 at most.",
        )
    return None


def _stray(shards: Shards, stray: Sequence[int], count: int) -> str:
    if stray[0] == count:
        return f"Ids begin with 0, so {count} ids end with {count - 1}."
    if stray[0] < 0:
        return "Ranks count from 0: does yours count from 1?"
    return f"Ids are the numbers from 0 to {count - 1}. The last rank may have fewer."


def _repeated(shards: Shards, count: int, twice: list[int], missing: list[int]) -> str:
    whole = list(range(count))
    if all(sorted(shard) == whole for shard in shards):
        return "Every rank reads all ids: nothing is divided, each does the work of all."
    if any(len(set(shard)) < len(shard) for shard in shards):
        many = "drawn with replacement" if missing else "filled up by repeating"
        return (
            f"A shard has an id more than once: it is {many}. That id would count twice in the"
            " epoch. Uneven shards are allowed here."
        )
    if missing and len({len(shard) for shard in shards}) <= 2 and len(missing) > 1:
        return (
            "Some ids are read twice and others by nobody, so the ranks do not cut the same list:"
            " each shuffles by itself, or by a seed of its own. All must make the same order."
        )
    if len(twice) < len(shards):
        return (
            "Shards overlap at their ends, or are filled up to equal sizes, as PyTorch's"
            " DistributedSampler does. Then an id counts twice. Uneven shards are allowed here."
        )
    return "Each id must be on one rank only. Does the cut depend on `rank` and on `workers`?"


def _missing(shards: Shards, count: int, missing: list[int]) -> str:
    if missing == [0] and all(sorted(shard) == list(shard) for shard in shards):
        return "Ids begin with 0, and ranks do."
    size = count // len(shards)
    if len(missing) == count % len(shards) and {len(shard) for shard in shards} == {size}:
        return (
            f"The remainder of {count} / {len(shards)} is left out: {len(missing)} of {count}"
            " examples are never trained on. Some shards need one id more."
        )
    held = {len(shard) for shard in shards}
    if held == {0}:
        return "All shards are empty."
    return "All ids together must be those of the epoch. Is a 4 written where `workers` belongs?"


def counts(seed: int) -> list[tuple[int, int]]:
    """Numbers of ids, and of ranks: the small case first, then uneven ones, fewer ids than ranks,
    and one rank.
    """
    uneven = [(workers * (11 + seed % 7) + workers - 1, workers) for workers in SIZES]
    return [(7, 2), (10, 4), *uneven, (3, 5), (6, 1), (12, 3)]
