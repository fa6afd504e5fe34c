"""View: what a board shows of one run or several, without any widget.

Boards, pages, pictures and `lockstep watch` are drawn from it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from course_lib.record import measures
from course_lib.record.curves import Goal
from course_lib.widgets.board import sentences
from course_lib.widgets.board.plots import (
    Lane,
    Panel,
    TimeWindow,
    lanes,
    progress,
    span_for,
    throughput,
)
from course_lib.widgets.board.side import Side, Watched


class Raced(Protocol):
    """What is needed of a race: its runs by label, what they race for, and what they have shown,
    and whether it was fair.
    """

    target_loss: float | None
    target_accuracy: float | None

    @property
    def runs(self) -> Mapping[str, Any]: ...
    @property
    def comparison(self) -> Any: ...
    def stop(self) -> Any: ...


class View:
    """Runs side by side. `look` brings it up to date; all else describes what was seen then."""

    def __init__(self, runs: Mapping[str, Watched], race: Raced | None = None) -> None:
        self.sides = [Side(label, run) for label, run in runs.items()]
        self.race = race
        self.given: Goal | None = None
        if race is not None and race.target_accuracy is not None:
            self.given = Goal("accuracy", race.target_accuracy)
        elif race is not None and race.target_loss is not None:
            self.given = Goal("loss", race.target_loss)
        self.fairness = ""
        self._span = 0.0

    def look(self) -> bool:
        """Take in what is new; whether anything was.

        Once a race is over, it is asked when its starting line opened and whether it was fair.
        """
        news = any([side.look() for side in self.sides])
        if news and self.over and self.race is not None:
            comparison = self.race.comparison
            for side in self.sides:
                began = comparison.entrants[side.label].began
                if began not in (None, side.digest.zero):
                    side.begin_at(began)
            if all(side.state != "failed" for side in self.sides):
                fairness = comparison.fairness
                self.fairness = " ".join(filter(None, (fairness.why, fairness.advice)))
        active = [side.digest for side in self.sides if side.active]
        self._span = span_for(active or [side.digest for side in self.sides], self._span)
        return news

    @property
    def over(self) -> bool:
        return not any(side.active for side in self.sides)

    @property
    def goal(self) -> Goal | None:
        """What is raced for: what the race says, else the lowest loss that all have reached.

        None for a single run, and while one of them has no loss.
        """
        if self.given is not None:
            return self.given
        return sentences.common(self.sides) if len(self.sides) > 1 else None

    def panels(self) -> list[Panel]:
        """The charts; with one of the test accuracy if that is measured on the way."""
        losses = [side.loss for side in self.sides]
        found = [progress("loss", over, losses, self.goal) for over in ("seconds", "examples")]
        if any(side.spec.evaluate_every for side in self.sides):
            accuracies = [side.accuracy for side in self.sides]
            found.append(progress("accuracy", "seconds", accuracies, self.goal))
        return [*found, throughput(losses)]

    def lanes(self, side: Side, columns: int) -> tuple[TimeWindow, list[Lane]]:
        """The lanes of a side, in a window as long as that of the others."""
        end = side.digest.edge()
        window = TimeWindow(end - self._span, end)
        return window, lanes(side.digest, window, columns)

    def headline(self) -> str:
        """Who is ahead, or how far a single run is; names stand between ** and **."""
        if len(self.sides) == 1:
            return sentences.how_far(self.sides[0])
        told = sentences.outcome if self.over else sentences.ahead
        return told(self.sides, self.goal)

    def detail(self) -> str:
        """What to know beside the headline of a race: what it is for, and in the end whether it was
        fair.
        """
        if len(self.sides) == 1 or self.fairness:
            return self.fairness
        if any(side.state == "failed" for side in self.sides):
            return ""
        return sentences.aim(self.goal, given=self.given is not None)

    def table(self) -> str:
        """The same as text: the sentence, what to know of it, and for each run its figures and
        where the time of its tasks went.
        """
        parts = [self.headline().replace("**", ""), self.detail()]
        for side in self.sides:
            parts += ["", sentences.details(side), measures.table(side.run.trace)]
        return "\n".join(parts).strip()
