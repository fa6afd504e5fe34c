"""The smallest case in which a learner's algorithm fails, and what goes wrong there."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from dataclasses import dataclass

from course_lib.collectives import Proof, build, verify
from course_lib.collectives.algorithms import Algorithm, find
from course_lib.collectives.schedule import CollectiveKind
from course_lib.errors import SpecError, line_of

Placement = int | tuple[int, ...]


@dataclass(frozen=True)
class Failure:
    """The first of the cases that fail: for how many `workers`, on which `hosts`, and in words
    (`text`).

    `proof` is what `verify` found there; None where the function raised or gave no schedule to
    judge. `right_for` are the numbers of workers that came out right.
    """

    workers: int
    hosts: Placement
    text: str
    proof: Proof | None
    right_for: tuple[int, ...]

    def __str__(self) -> str:
        return self.text


def smallest_failure(
    algorithm: str | Algorithm, up_to: int = 16, kind: CollectiveKind = "all_reduce"
) -> Failure | None:
    """Try a function for 1, 2, ... `up_to` workers, and if it takes `hosts`, on several placements
    each. None if all is right.

    A function that raises, returns no Schedule, or one of another kind or for another number of
    workers, has failed too.
    """
    function = find(algorithm)
    name = getattr(function, "__name__", "the algorithm")
    first: tuple[int, Placement, str, Proof | None] | None = None
    right: list[int] = []
    for workers in range(1, up_to + 1):
        failed = False
        for hosts in _placements(function, workers):
            words, proof = _try(function, workers, hosts, kind)
            failed |= bool(words)
            if words and first is None:
                first = workers, hosts, words, proof
        if not failed:
            right.append(workers)
    if first is None:
        return None
    workers, hosts, words, proof = first
    where = f"{workers} worker{'s' if workers > 1 else ''}" + (
        f" on hosts {hosts}" if hosts != 1 else ""
    )
    text = f"{name} is wrong for {where}:\n{words}" + _pattern(right, up_to)
    return Failure(workers, hosts, text, proof, tuple(right))


def _placements(function: Algorithm, workers: int) -> Iterator[Placement]:
    """One host, or where the function cares: one to three equal ones, then an uneven pair, and
    hosts dealt out in turn.
    """
    yield 1
    if "hosts" in inspect.signature(function).parameters:
        yield from range(2, min(workers, 3) + 1)
        if workers > 2:
            yield (0,) * (workers - 1) + (1,)
            yield tuple(rank % 2 for rank in range(workers))


def _try(
    function: Algorithm, workers: int, hosts: Placement, kind: CollectiveKind
) -> tuple[str, Proof | None]:
    """What is wrong with one case, in words, and its proof; no words where nothing is."""
    try:
        schedule = build(function, workers, hosts)
    except SpecError as error:
        return str(error), None
    except Exception as error:  # whatever a learner's function raises is the answer
        words = f"it raises {type(error).__name__}: {error}{line_of(error, function)}"
        return words, None
    if schedule.kind != kind:
        return f"it returns a schedule of kind {schedule.kind!r}, but {kind!r} is asked for.", None
    proof = verify(schedule)
    return ("" if proof.ok else str(proof)), proof


def _pattern(right: list[int], up_to: int) -> str:
    powers = [n for n in range(1, up_to + 1) if n & (n - 1) == 0]
    if right == powers and up_to > 4:
        return "\nIt is right for powers of two only."
    return (
        f"\nIt is right for {', '.join(map(str, right))} workers." if right and right != [1] else ""
    )
