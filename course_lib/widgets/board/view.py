"""View: what a board shows of one run or several, without any widget.

Boards, pages, pictures and `lockstep watch` are drawn from it. In its sentences, names of runs are
written between ** and **.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

from course_lib.record import measures
from course_lib.record.curves import EMPTY
from course_lib.record.verdict import Entry, Goal, Standing
from course_lib.text import round_up
from course_lib.widgets.board import lanes
from course_lib.widgets.board.charts import Panel, progress, throughput
from course_lib.widgets.board.lanes import Lane, TimeWindow
from course_lib.widgets.board.side import Side, Watched

# what a lesson may not have explained yet
HIDEABLE = ("staleness", "memory", "links", "delays", "fairness")
LONGEST = 20.0  # seconds for which lanes grow while a run stands still


class Raced(Protocol):
    """The part of a race that a view reads: its runs by label, its targets, its comparison."""

    target_loss: float | None
    target_accuracy: float | None

    @property
    def runs(self) -> Mapping[str, Any]: ...
    @property
    def comparison(self) -> Any: ...
    def stop(self) -> Any: ...


class View:
    """Runs side by side. `look` brings it up to date; all else describes what was seen then.

    `hidden`: which of `HIDEABLE` a board does not show.
    """

    hidden: tuple[str, ...] = ()

    def __init__(self, runs: Mapping[str, Watched], race: Raced | None = None) -> None:
        self.sides = [Side(label, run) for label, run in runs.items()]
        self.race, self.fairness, self.logarithmic = race, "", False
        self._looked, self._span, self._drawn = False, lanes.span_for([]), set[int]()
        self.given = Goal.given(race.target_loss, race.target_accuracy) if race else None
        self._fair: bool | None = None

    def look(self) -> bool:
        """Take in what is new; whether anything was.

        Once a race is over, it is asked whether it was fair.
        """
        news, self._looked = any([side.look() for side in self.sides]), True
        if news and self.over and self.race is not None:
            fairness = self.race.comparison.fairness
            self._fair = fairness.fair
            if not (self._failed or "fairness" in self.hidden):
                self.fairness = " ".join(filter(None, (fairness.why, fairness.advice)))
        active = [side for side in self.sides if side.active]
        self._span = lanes.span_for([s.digest for s in active or self.sides], self._span)
        for seconds in (side.still.seconds for side in active if side.still):
            self._span = max(self._span, round_up(min(1.3 * seconds, LONGEST)))
        return news

    def names(self) -> list[str]:
        """The phases and fates that its lanes have shown so far, for the legend."""
        return [name for what, name in enumerate(lanes.NAMES) if what in self._drawn]

    @property
    def over(self) -> bool:
        return not any(side.active for side in self.sides)

    @property
    def standing(self) -> Standing:
        """How the runs stand if they race each other."""
        shown = [(side.label, side.state, side.digest) for side in self.sides]
        entries = {label: Entry(state, d.losses, d.accuracies) for label, state, d in shown}
        return Standing(entries, self.given, self._fair, _bold)

    @property
    def goal(self) -> Goal | None:
        """The target of the race, or else the lowest loss that all have reached.

        None for a single run, and while one of them has no loss.
        """
        alone = len(self.sides) == 1
        if not self.given and (alone or any(s.digest.losses.record is None for s in self.sides)):
            return None
        return self.standing.goal

    def panels(self) -> list[Panel]:
        """The charts; with one of the test accuracy if that is measured on the way. Of several
        losses, each has a chart over time.
        """
        losses = [side.digest.losses for side in self.sides]
        names = list(dict.fromkeys(name for s in self.sides for name in s.digest.by_name))
        axes, found = ("seconds", "examples")[: 1 if len(names) > 1 else 2], list[Panel]()
        for name in names or ["loss"]:
            curves = [side.digest.by_name.get(name, EMPTY) for side in self.sides]
            found += [progress(name, over, curves, self.goal) for over in axes]
        if any(side.spec.evaluate_every for side in self.sides):
            accuracies = [side.digest.accuracies for side in self.sides]
            found.append(progress("accuracy", "seconds", accuracies, self.goal))
        found.append(throughput(losses, [side.still_since() for side in self.sides]))
        found = [replace(panel, marks=self._marks(panel.x)) for panel in found]
        now = max(panel.wide for panel in found if panel.x == "seconds")
        yet = "" if self.over else " yet"
        return [
            replace(
                panel,
                until=now if panel.x == "seconds" else 0.0,  # one clock, one axis
                log=None if panel.log is None else self.logarithmic,
                empty=f"no {panel.y.split(',')[0]} reported{yet}",
            )
            for panel in found
        ]

    def _marks(self, over: str) -> list[tuple[float, str, str]]:
        """List the marks since the clock started, for a chart over `seconds` or `examples`."""
        found = []
        for side in self.sides:
            curve, label = side.digest.losses, "" if len(self.sides) == 1 else f" of {side.label}"
            for mark in side.digest.life.marks():
                if (at := mark.at - side.digest.zero) > 0:
                    said = f"{mark.word}: {', '.join(mark.who)}{label}, at {at:.1f} s"
                    place = at if over == "seconds" else curve.examples_at(at)
                    found.append((place, mark.word, said))
        return sorted(found, key=lambda mark: mark[0])  # in one place: in the order of time

    def lanes(self, side: Side, columns: int) -> tuple[TimeWindow, list[Lane]]:
        """The lanes of a side, in a window as long as that of the others."""
        end, zero = side.edge(), side.digest.zero
        window = TimeWindow(end - self._span, end, zero if zero < end else 0.0)
        going_on = side.pulse.going_on if side.pulse else ()
        found = lanes.lanes(side.digest, window, columns, going_on)
        for lane in found:
            self._drawn.update(lane.cells.tolist(), lane.hidden.tolist())
        return window, found

    def headline(self) -> str:
        """Who is ahead or has won, or how far a single run is."""
        if not self._looked:
            doing = "what it recorded is being read" if self.over else "starting\u2026"
            return f"{_names([side.label for side in self.sides])}: {doing}"
        if len(self.sides) == 1:
            return self.sides[0].how_far()
        if self._failed and not self.over:
            others = _names([side.label for side in self.sides if side.active])
            return f"{_names(self._failed)} failed; {others} goes on"
        return self.standing.verdict if self.over else self.standing.ahead

    def detail(self) -> str:
        """What to know beside the headline: who failed, stands still or learns nothing; of a race
        also its goal, and at the end if it was fair.
        """
        standing = self._each(lambda side: side.note(alone=len(self.sides) == 1))
        return " ".join(filter(None, [standing, self.diverged, self.fairness or self._aim()]))

    @property
    def diverged(self) -> str:
        """The runs that learn nothing, as a loss became NaN or a loss scale does not suit, with
        the cure."""
        return self._each(lambda side: side.digest.diverged)

    def _each(self, says: Callable[[Side], str]) -> str:
        """Join what is said of each side, after its label if there are several."""
        alone = len(self.sides) == 1
        said = [(side.label, text) for side in self.sides if (text := says(side))]
        return " ".join(text if alone else f"{label}: {text}" for label, text in said)

    def _aim(self) -> str:
        """Name the goal of a race."""
        if len(self.sides) == 1 or self._failed:
            return ""
        if self.goal is None:
            return "They race for the lowest loss that all reach."
        lowest = "" if self.given else ", the lowest that all have reached"
        return f"They race for {self.goal}{lowest}."

    def table(self) -> str:
        """The same as text: the sentence, what to know of it, and for each run its figures and
        where the time of its tasks went.
        """
        parts = [self.headline().replace("**", ""), self.detail()]
        for side in self.sides:
            parts += ["", side.details(), measures.table(side.run.trace)]
        return "\n".join(parts).strip()

    @property
    def _failed(self) -> list[str]:
        return [side.label for side in self.sides if side.state == "failed"]


def _bold(label: str) -> str:
    return f"**{label}**"


def _names(labels: Sequence[str]) -> str:
    return " and ".join(map(_bold, labels))
