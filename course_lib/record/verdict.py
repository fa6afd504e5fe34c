"""Verdict: the standing of a race, and its winner. A board, a comparison and `lockstep watch` show
the same.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

from course_lib.record.curves import Curve

LEVEL = 1.03  # of two that came to a goal, neither is ahead if the times differ by less


class Goal(NamedTuple):
    """The goal of a race: a mean `loss` to fall to, or a test `accuracy` to rise to."""

    what: str
    value: float

    @staticmethod
    def given(loss: float | None, accuracy: float | None) -> Goal | None:
        """Return the target of a race, if it has one."""
        if accuracy is not None:
            return Goal("accuracy", accuracy)
        return None if loss is None else Goal("loss", loss)

    @staticmethod
    def of_all(what: str, curves: Iterable[Curve]) -> Goal | None:
        """Return the best value that all curves have reached: the worst of their best values.
        Curves without a value are left out; None if no curve has one.
        """
        best = [curve.record for curve in curves if curve.record is not None]
        worst = min if what == "accuracy" else max
        return Goal(what, worst(best)) if best else None

    def reached(self, curve: Curve) -> tuple[float, int] | None:
        """Return the seconds and examples until a curve reached the goal; None if it did not."""
        sign = 1 if self.what == "accuracy" else -1
        first = bisect_left(curve.best, True, key=lambda best: sign * best >= sign * self.value)
        if first == len(curve.best):
            return None
        return float(curve.seconds[first]), int(curve.examples[first])

    def __str__(self) -> str:
        return f"{self.what} {self.value:.3g}"


class Entry(NamedTuple):
    """The state of an entrant's run, and its curves so far."""

    state: str
    losses: Curve
    accuracies: Curve


def quoted(label: str) -> str:
    """A label in a sentence: in quotation marks if it has a comma."""
    return f"“{label}”" if "," in label else label


@dataclass(frozen=True)
class Standing:
    """The standing of a race. `given`: its target, if it has one. `fair`: None if not known.
    `name`: how sentences name an entrant, by its label.
    """

    entries: Mapping[str, Entry]
    given: Goal | None = None
    fair: bool | None = None
    name: Callable[[str], str] = quoted

    @cached_property
    def goal(self) -> Goal | None:
        """The target, or else the lowest loss that all have reached; None if there is no loss."""
        return self.given or Goal.of_all("loss", [entry.losses for entry in self.entries.values()])

    @cached_property
    def ranked(self) -> list[tuple[str, float]]:
        """The entrants that reached the goal, and after how many seconds, the fastest first.
        Without a goal, those that came to their end.
        """
        times = []
        for label, (_, losses, accuracies) in self.entries.items():
            if self.goal:
                curve = accuracies if self.goal.what == "accuracy" else losses
                times += [(label, end[0]) for end in [self.goal.reached(curve)] if end]
            else:
                times += [(label, float(last)) for last in losses.seconds[-1:]]
        return sorted(times, key=lambda end: end[1])

    @property
    def winner(self) -> str | None:
        """The entrant that won a fair race, in which all came to the end; None if none can be
        named, or two were level.
        """
        return None if self._doubt else self._first

    @property
    def _first(self) -> str | None:
        """The fastest; None if there is none, or the two fastest needed the same time."""
        times = [seconds for _, seconds in self.ranked]
        level = len(times) > 1 and times[1] <= LEVEL * times[0]
        return self.ranked[0][0] if times and not level else None

    @property
    def _doubt(self) -> str:
        """The reason for which the times decide nothing; "" if they do."""
        for label, entry in self.entries.items():
            if entry.state != "finished":
                return f"{self.name(label)} {'' if entry.state == 'failed' else 'is '}{entry.state}"
        if self.fair is None:
            return "whether it was fair cannot be told"
        return "" if self.fair else "the race was not fair"

    # --- in sentences ---

    @property
    def verdict(self) -> str:
        """The winner of a race that is over and the measure, or the reason why there is none."""
        who = f"The winner is {self.name(self.winner)}" if self.winner else "No winner"
        who = f"No winner can be named, as {self._doubt}" if self._doubt else who
        return f"{who}. {self._times('never')}."

    @property
    def ahead(self) -> str:
        """The sentence that says who is ahead in a race that goes on."""
        without = [self.name(label) for label, e in self.entries.items() if e.losses.record is None]
        if without:
            return f"At the start: no loss yet from {' and '.join(without)}"
        if not self.ranked:  # a target that nobody has reached
            return replace(self, given=None).ahead
        if not any(seconds for _, seconds in self.ranked):
            return "At the start: no loss has fallen yet"
        who = f"{self.name(self._first)} is ahead" if self._first else "The first two are level"
        return f"{who}. {self._times('not yet')}"

    def _times(self, missing: str) -> str:
        """The times to the goal, "Time to loss 0.3: a 2.0 s, b 3.1 s"."""
        times = {label: in_seconds(seconds) for label, seconds in self.ranked}
        times |= {label: missing for label in self.entries if label not in times}
        each = ", ".join(f"{self.name(label)} {seconds}" for label, seconds in times.items())
        return f"Time to {self.goal or 'the end'}: {each}"


def in_seconds(value: float) -> str:
    """A time for people."""
    return f"{value:.1f} s" if value >= 1 else f"{1000 * value:.0f} ms"
