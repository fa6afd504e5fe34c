"""A learner's all-reduce, tried for 1 to 9 workers: what it returned, and the smallest number of
workers for which that is wrong.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from course_lib.collectives import Proof, Schedule, verify
from course_lib.course.answers import ENDLESS, Unusable
from course_lib.course.handed_in import TookTooLong, bounded

from .smallest import Failure, smallest_failure

SIZES = range(1, 10)  # not powers of two alone, for which most mistakes come out right
LONGEST_TRY = 5.0  # seconds of computing for all sizes together


@dataclass(frozen=True)
class Attempt:
    """What `function` returned for each of `SIZES`, unless it raised, and its smallest failure
    (None: it is right for all).
    """

    function: Callable[..., Any]
    returned: dict[int, Any]
    failure: Failure | None

    @property
    def name(self) -> str:
        return getattr(self.function, "__name__", "the function")

    @property
    def schedules(self) -> dict[int, Schedule]:
        """By number of workers, where a schedule for that number came back."""
        return {
            workers: given
            for workers, given in self.returned.items()
            if isinstance(given, Schedule) and given.workers == workers
        }

    @property
    def failing(self) -> Proof | None:
        """What `verify` says of the smallest case that fails, if there was a schedule to judge.

        Compare it with None: a proof that fails is false.
        """
        return self.failure.proof if self.failure else None

    def first_wrong(self, least: int) -> Proof | None:
        """What `verify` says of the smallest wrong schedule for `least` workers or more, if any."""
        proofs = (
            verify(schedule) for workers, schedule in self.schedules.items() if workers >= least
        )
        return next((proof for proof in proofs if not proof.ok), None)

    def right_if(self, change: Callable[[Schedule], Schedule]) -> bool:
        """Whether `change` makes all schedules right: then what it changes is the mistake."""
        schedules = self.schedules.values()
        return len(schedules) == len(SIZES) and all(
            verify(change(schedule)).ok for schedule in schedules
        )


def attempt(function: Callable[..., Any]) -> Attempt:
    """Try a function for all sizes.

    Raises `Unusable` if it never ends or does not return the same twice, and NotImplementedError
    and MemoryError as the function does.
    """
    name = getattr(function, "__name__", "the function")
    returned: dict[int, Any] = {}
    try:
        with bounded(LONGEST_TRY):
            for workers in SIZES:
                returned |= _call(function, workers)
            for workers, given in returned.items():
                _same(name, workers, given, _call(function, workers).get(workers))
            return Attempt(function, returned, smallest_failure(function, up_to=max(SIZES)))
    except TookTooLong:
        workers = next((n for n in SIZES if n not in returned), max(SIZES))
        late = f"{name}({workers}) had not come back after {LONGEST_TRY:g} seconds of computing."
        raise Unusable(f"{late} {ENDLESS}") from None


def _call(function: Callable[..., Any], workers: int) -> dict[int, Any]:
    """What comes back, by number of workers; nothing if the function raises, which
    `smallest_failure` puts into words.
    """
    try:
        return {workers: function(workers)}
    except (NotImplementedError, MemoryError):
        raise
    except Exception:  # a learner's function may raise anything
        return {}


def _same(name: str, workers: int, first: Any, second: Any) -> None:
    if isinstance(first, Schedule) and not (
        isinstance(second, Schedule) and first.digest == second.digest
    ):
        raise Unusable(
            f"{name}({workers}) gives another schedule when it is called a second time. "
            "Is there a list that outlives the call? Make it inside."
        )
