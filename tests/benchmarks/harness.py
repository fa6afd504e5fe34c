"""The arithmetic of a benchmark: ours and a peer measured in turn, a ratio for each turn, and the
aim that the ratio is held to.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

ENOUGH = 5  # repeats below which a figure is a try, not a result


@dataclass(frozen=True)
class Options:
    """How much to measure. `quick` asks for the smallest sizes, to see that a benchmark works; its
    figures mean little.
    """

    repeats: int = ENOUGH
    quick: bool = False
    say: Callable[[str], None] = lambda text: None  # told what is measured just now


@dataclass(frozen=True)
class Aim:
    """What a row is held to: so many times `faster` than the peer, `at most` or `at least` so many
    times its figure, or `none` of ours above zero.

    `shown` is held to nothing.
    """

    kind: Literal["faster", "at most", "at least", "none", "shown"]
    bound: float = 0.0

    def ratio(self, ours: float, peer: float) -> float:
        """Of one pair: how many times faster, or which part of the peer's figure.

        Not a number where both are zero.
        """
        above, below = (peer, ours) if self.kind == "faster" else (ours, peer)
        if below == 0:
            return math.inf if above > 0 else math.nan
        return above / below

    def reached(self, ours: Sequence[float], ratio: float) -> bool:
        if self.kind in ("none", "shown"):
            return self.kind == "shown" or not any(ours)
        return ratio <= self.bound if self.kind == "at most" else ratio >= self.bound

    def __str__(self) -> str:
        bound = f"{self.bound:g}"
        words = {
            "faster": f"{bound} times faster",
            "at most": f"at most {bound} of it",
            "at least": f"at least {bound} times as much",
        }
        return words.get(self.kind, self.kind)


class Spread(NamedTuple):
    """What the repeats gave: the middle of them, and the least and the most."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        return cls(statistics.median(values), min(values), max(values))


@dataclass(frozen=True)
class Row:
    """One result: `pairs` of figures (ours, the peer's) in `unit`, in the order in which they were
    measured.
    """

    name: str
    peer: str
    unit: str
    pairs: tuple[tuple[float, float], ...]
    aim: Aim

    @property
    def ours(self) -> Spread:
        return Spread.of([ours for ours, _ in self.pairs])

    @property
    def theirs(self) -> Spread:
        return Spread.of([theirs for _, theirs in self.pairs])

    @property
    def ratio(self) -> Spread:
        """The ratio of each pair, not of the medians: what disturbs a machine for a while disturbs
        both sides of a pair.
        """
        return Spread.of([self.aim.ratio(*pair) for pair in self.pairs])

    @property
    def reached(self) -> bool:
        return self.aim.reached([ours for ours, _ in self.pairs], self.ratio.median)

    @property
    def enough(self) -> bool:
        return len(self.pairs) >= ENOUGH

    def as_dict(self) -> dict[str, Any]:
        """The same as plain values, for JSON; not-a-numbers become null."""
        return {
            "name": self.name,
            "unit": self.unit,
            "ours": _plain(self.ours),
            "peer": {"what": self.peer, **_plain(self.theirs)},
            "ratio": _plain(self.ratio),
            "aim": {"kind": self.aim.kind, "bound": self.aim.bound},
            "reached": self.reached,
            "enough_repeats": self.enough,
            "pairs": [list(pair) for pair in self.pairs],
        }


Rows = Iterator[Row]
Figure = Callable[[], float]
"""Measures one figure, once."""


def compare(
    name: str, unit: str, ours: Figure, peer: tuple[str, Figure], aim: Aim, options: Options
) -> Row:
    """Measure ours and the peer (what it is, and how) in turn, `options.repeats` times."""
    what, theirs = peer
    return turns(name, unit, lambda: [(ours(), theirs())], what, aim, options)


def turns(
    name: str,
    unit: str,
    pairs: Callable[[], Iterable[tuple[float, float]]],
    peer: str,
    aim: Aim,
    options: Options,
) -> Row:
    """The same where one repeat gives several pairs."""
    found: list[tuple[float, float]] = []
    for i in range(options.repeats):
        options.say(f"{name}: {i + 1} of {options.repeats}")
        found += pairs()
    return Row(name, peer, unit, tuple(found), aim)


def _plain(spread: Spread) -> dict[str, float | None]:
    values = {"median": spread.median, "low": spread.low, "high": spread.high}
    return {name: value if math.isfinite(value) else None for name, value in values.items()}
