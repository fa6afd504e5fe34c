"""View: what a board shows of one run or several, in figures and sentences, without any widget.

Boards, pages, pictures and `lockstep watch` are drawn from it. In its sentences, names of runs are
written between ** and **.
"""

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from course_lib.activity import names
from course_lib.errors import LockstepError
from course_lib.record import measures
from course_lib.record.curves import EMPTY, WINDOW
from course_lib.record.digest import Digest
from course_lib.record.events import ACTIVE, Update
from course_lib.record.reality import reality
from course_lib.record.standstill import SOON, Pulse, Standstill
from course_lib.record.verdict import Entry, Goal, Standing
from course_lib.record.waits import DRAWN
from course_lib.spec.run_spec import FRAMEWORKS
from course_lib.text import round_up
from course_lib.widgets.board import plots

# what a lesson may not have explained yet
HIDEABLE = ("staleness", "memory", "links", "delays", "fairness")
MOST_WINDOWS = 40  # of lanes, on a page
LONGEST = 20.0  # seconds for which lanes grow while a run stands still
Whole = tuple[float, float, int]
"""The beginning and the end of all lanes in seconds, and how many windows that is."""
Watched = Any
"""A run, live or saved: it has `spec`, `state`, `trace`, `digest`, `result` and `pulse()`."""
Raced = Any
"""A race: it has `runs` by label, `target_loss`, `target_accuracy`, `comparison` and `stop()`."""


class Side:
    """One run in a view: the run, the digest of its trace, and its `state`, `reality` and `pulse`
    (None once it is over) as they were at the last look.
    """

    def __init__(self, label: str, run: Watched) -> None:
        self.label, self.run, self.spec = label, run, run.spec
        self.state, self.reality = run.state, reality(run.spec)
        self.digest = Digest(run.spec)  # until the first look
        self.pulse: Pulse | None = None
        self._shown = 0.0  # up to which time lanes were
        # the steps of the whole run; None for a learner's own function without a number of them
        own = self.spec.own and "steps" not in self.spec.model_fields_set
        self._steps = None if own else self.spec.steps

    def update(self) -> None:
        """Take in what is new."""
        self.state = self.run.state  # before the digest: if it is over by now, that is whole
        self.digest = self.run.digest
        self.pulse = self.run.pulse() if self.active else None
        self.reality = reality(self.spec, self.digest.life)

    @property
    def active(self) -> bool:
        return self.state in ACTIVE

    @property
    def failure(self) -> str:
        """The cause of a failure, in one line; empty for a run that did not fail."""
        if self.state != "failed":
            return ""
        try:
            return str(self.run.result)
        except LockstepError as error:
            return str(error).splitlines()[0]

    def cut(self, host: Any) -> bool:
        """Tell whether a host is cut off now."""
        last = self.digest.life.last(f"host:{host}", "cut", "healed")
        return last is not None and last.state == "cut"

    @property
    def still(self) -> Standstill | None:
        """The standstill of a run that goes on; None while any task moves."""
        return self.pulse.still if self.pulse else None

    def edge(self) -> float:
        """The time up to which lanes can be shown, in seconds of the trace: of a run that goes on,
        never before what was shown; of one that stands still, now.
        """
        if not self.active:
            return self.digest.edge()
        now = self.pulse.now if self.pulse and self.still else self.digest.edge()
        self._shown = max(self._shown, now)
        return self._shown

    def progress(self) -> str:
        """Say how far the run is, or the reason for its standstill."""
        state = f"**{self.label}** {'has' if self.state == 'failed' else 'is'} {self.state}"
        if self.still and (math.isfinite(self.digest.zero) or self.still.certain):
            return f"**{self.label}** has been {self.still.brief}: {self.still.words}"
        if steps := self.steps():
            return f"{state}: {steps}"
        if not self.active:
            return state
        now = self.pulse.now if self.pulse and self.state == "starting" else 0.0
        if now > SOON and not self.digest.life.of(None, "starting"):
            name = FRAMEWORKS.get(self.spec.framework, "Python")
            return f"{state}: importing {name}, {now:.0f} s"
        why = f": {self.still.words}" if self.still else ""
        return f"{state}; no step is done yet{why}"

    def note(self, alone: bool) -> str:
        """Say what needs attention: the failure of the run, or a standstill. On a board of its own
        (`alone`) the headline tells of a standstill, and this is the progress.
        """
        if self.still and alone:
            return self.steps().capitalize()
        return f"{self.still.brief}: {self.still.words}." if self.still else self.failure

    def steps(self) -> str:
        """Count the steps done, with the loss by then; empty before the first."""
        losses, of = ", ".join(self._losses()), f" of {self._steps:,}" if self._steps else ""
        done = f"step {self.digest.steps_done:,}{of}, {losses} (mean of {WINDOW} batches)"
        return done if losses else ""

    def _losses(self) -> list[str]:
        """The losses by now, each with its name."""
        named = self.digest.by_name.items()
        return [f"{name} {curve.last:.3g}" for name, curve in named if curve.last is not None]

    def about(self) -> str:
        """Name its framework and, unless it goes on, its state, with its own time."""
        seconds = self.digest.losses.duration  # as a comparison has them
        after = f", {seconds:.1f} s" if seconds and not self.active else ""
        state = "" if self.state == "running" else f" \u00b7 {self.state}{after}"
        return f"{self.spec.framework}{state}"

    def summary(self, explained: bool = False) -> str:
        """The figures of the run so far, in one line. They cover its whole time, except for the
        throughput of a run that goes on. `explained`: say what the loss is, where no headline does.
        """
        digest, losses, still = self.digest, " · ".join(self._losses()), self.still
        speed = None if still else digest.losses.rate(over=2.0 if self.active else math.inf)
        of, accuracy = f" (mean of {WINDOW} batches)" * explained, digest.accuracies.last
        idle = [share for task, share in digest.idle.items() if task.startswith("worker:")]
        parts = [
            still.brief if still else "",
            f"{speed:,.0f} examples/s" if speed else "",
            f"{losses}{of}" if losses else "",
            f"accuracy {accuracy:.3g}" if accuracy is not None else "",
            f"workers waited {sum(idle) / len(idle):.0%} of the run" if idle else "",
        ]
        if self.active and self._steps and losses:
            parts.append(f"{min(1.0, digest.steps_done / self._steps):.0%} done")
        return " · ".join(filter(None, parts))

    def memory(self) -> str:
        """Sum up the memory of the fullest task in a line; empty before it is known."""
        known = self.digest.memory
        fullest = max(known, key=lambda task: sum(known[task].values()), default=None)
        return f"memory of {fullest}: {measures.memory_line(known[fullest])}" if fullest else ""

    def hosts(self) -> str:
        """List the tasks of each host or node, and the error of its clock, in a line; empty for
        a single one.
        """
        places, words = self.spec.places, []
        for host in self.spec.all_hosts:
            tasks = [task for task, place in places.items() if place == host]
            unsure = max((self.digest.unsure.get(task, 0.0) for task in tasks), default=0.0)
            clock = f" (clock \u00b1{1000 * unsure:.2g} ms)" if unsure else ""
            kind = "node " if self.spec.on_nodes else "host:"
            words.append(f"{kind}{host}: {names(tasks)}{clock}")
        return " \u00b7 ".join(words) if len(words) > 1 else ""

    def groups(self) -> str:
        """List the tasks that hold each stage or other part of the model, in a line; empty where
        each holds a shard, or all.
        """
        holders = self.digest.updates.holders
        if len(holders) < 2 or all(part.startswith("shard") for part in holders):
            return ""
        return " \u00b7 ".join(f"{part}: {names(tasks)}" for part, tasks in holders.items())

    def details(self) -> str:
        """The same and more, in lines."""
        stale = sorted(self.digest.updates.staleness.items())
        updates = ", ".join(f"{n:,} of staleness {s}" for s, n in stale)
        mine = self.run.trace.all(Update, self.spec.tasks[0])
        if len(named := Counter(update.variables for update in mine)) > 1:  # by optimizer
            updates += "; " + ", ".join(f"{n:,} of {name}" for name, n in named.items())
        parts = [
            f"{self.label}: {self.state}",
            self.summary(),
            f"updates: {updates or 'none'}",
            self.memory(),
            self.hosts(),
            self.groups(),
            f"{self.reality.word}: {self.reality.why}",
            self.failure,
        ]
        return "\n  ".join(filter(None, parts))


class View:
    """Runs side by side. `update` brings it up to date; all else describes what was seen then.

    `hidden`: which of `HIDEABLE` a board does not show.
    """

    hidden: tuple[str, ...] = ()

    def __init__(self, runs: Mapping[str, Watched], race: Raced = None) -> None:
        self.sides = [Side(label, run) for label, run in runs.items()]
        self.race, self.fairness = race, ""
        self._read, self._span, self._drawn = False, plots.span_for([]), set[int]()
        self.given = Goal.given(race.target_loss, race.target_accuracy) if race else None
        self._fair: bool | None = None
        self._alone = len(self.sides) == 1

    def update(self) -> None:
        """Take in what is new. Once a race is over, it is asked whether it was fair."""
        for side in self.sides:
            side.update()
        self._read = True
        if self.over and self.race is not None and self._fair is None:
            fairness = self.race.comparison.fairness
            self._fair = fairness.fair
            if not (self._failed or "fairness" in self.hidden):
                self.fairness = " ".join(filter(None, (fairness.why, fairness.advice)))
        active = [side for side in self.sides if side.active]
        self._span = plots.span_for([s.digest for s in active or self.sides], self._span)
        for seconds in (side.still.seconds for side in active if side.still):
            self._span = max(self._span, round_up(min(1.3 * seconds, LONGEST)))

    def names(self) -> list[str]:
        """The phases and fates that its lanes have shown so far, for the legend."""
        return [name for what, name in enumerate(plots.NAMES) if what in self._drawn]

    @property
    def over(self) -> bool:
        return not any(side.active for side in self.sides)

    @property
    def standing(self) -> Standing:
        """The standing of the runs if they race each other."""
        shown = ((side.label, side.state, side.digest) for side in self.sides)
        entries = {label: Entry(state, d.losses, d.accuracies) for label, state, d in shown}
        return Standing(entries, self.given, self._fair, "**{}**".format)

    @property
    def goal(self) -> Goal | None:
        """The target of the race, or else the lowest loss that all have reached.

        None for a single run, and while one of them has no loss.
        """
        lossless = any(side.digest.losses.record is None for side in self.sides)
        return self.standing.goal if self.given or not (self._alone or lossless) else None

    def panels(self) -> list[plots.Panel]:
        """The charts; with one of the test accuracy if that is measured on the way. Of several
        losses, each has a chart over time.
        """
        digests = [side.digest for side in self.sides]
        losses = list(dict.fromkeys(name for d in digests for name in d.by_name)) or ["loss"]
        axes = ("seconds", "examples")[: 1 if len(losses) > 1 else 2]
        curves = {name: [d.by_name.get(name, EMPTY) for d in digests] for name in losses}
        asked = [(name, over) for name in losses for over in axes]
        if any(side.spec.evaluate_every for side in self.sides):
            curves["accuracy"] = [d.accuracies for d in digests]
            asked.append(("accuracy", "seconds"))
        panels = [plots.progress(name, over, curves[name], self.goal) for name, over in asked]
        stood = [s.edge() - s.digest.zero if s.still else None for s in self.sides]
        panels.append(plots.throughput([d.losses for d in digests], stood))
        for panel in panels:
            panel.marks = self._marks(panel.x)
        return panels

    def plain(self) -> list[dict[str, Any]]:
        """The charts as the page takes them."""
        return [panel.plain() for panel in self.panels()]

    def _marks(self, over: str) -> list[tuple[float, str, str]]:
        """List the marks since the clock started, for a chart over `seconds` or `examples`."""
        marks = []
        for side in self.sides:
            label = "" if self._alone else f" of {side.label}"
            for mark in side.digest.life.marks():
                if (at := mark.at - side.digest.zero) > 0:
                    words = f"{mark.word}: {', '.join(mark.who)}{label}, at {at:.1f} s"
                    place = at if over == "seconds" else side.digest.losses.examples_at(at)
                    marks.append((place, mark.word, words))
        return sorted(marks, key=lambda mark: mark[0])  # in one place: in the order of time

    def whole(self) -> Whole | None:
        """The time from which and to which all lanes are known, in seconds since the clocks
        started, and how many windows of the present length that is, two at least; None before the
        first step.
        """
        starts, ends = [0.0], [0.0]
        for digest in (side.digest for side in self.sides if math.isfinite(side.digest.zero)):
            kept = [digest.latest(task, DRAWN) for task in digest.tasks]
            starts += [p[0].start - digest.zero for p in kept if len(p) == DRAWN]
            ends.append(digest.edge() - digest.zero)
        begin, end = max(starts), max(ends)
        windows = min(MOST_WINDOWS, max(2, math.ceil((end - begin) / self._span)))
        return (begin, end, windows) if end > begin else None

    def lanes(
        self, side: Side, columns: int, whole: Whole | None = None
    ) -> tuple[plots.TimeWindow, list[plots.Lane]]:
        """The lanes of a side, in a window as long as that of the others, or of the `whole` run."""
        end = side.edge()
        zero = side.digest.zero if side.digest.zero < end else 0.0
        begin, end = (zero + at for at in whole[:2]) if whole else (end - self._span, end)
        window = plots.TimeWindow(begin, end, zero)
        going_on = side.pulse.going_on if side.pulse else ()
        drawn = plots.lanes(side.digest, window, columns, going_on)
        for lane in drawn:
            self._drawn.update(lane.cells.tolist(), lane.hidden.tolist())
        return window, drawn

    def headline(self) -> str:
        """Say who is ahead or has won, or how far a single run is."""
        if not self._read:
            return f"{_names([side.label for side in self.sides])}: starting\u2026"
        if self._alone:
            return self.sides[0].progress()
        if self._failed and not self.over:
            others = _names([side.label for side in self.sides if side.active])
            return f"{_names(self._failed)} failed; {others} goes on"
        return self.standing.verdict if self.over else self.standing.ahead

    def detail(self) -> str:
        """Add to the headline: who failed, stands still or learns nothing; of a race also its goal,
        and at the end if it was fair.
        """
        notes = self._each(lambda side: side.note(self._alone))
        return " ".join(filter(None, [notes, self.diverged, self.fairness or self._aim()]))

    @property
    def diverged(self) -> str:
        """The runs that learn nothing, as a loss became NaN or a loss scale does not suit, with
        the cure."""
        return self._each(lambda side: side.digest.diverged)

    def _each(self, says: Callable[[Side], str]) -> str:
        """Join what is said of each side, after its label if there are several."""
        texts = [(side.label, text) for side in self.sides if (text := says(side))]
        return " ".join(text if self._alone else f"{label}: {text}" for label, text in texts)

    def _aim(self) -> str:
        """Name the goal of a race."""
        if self._alone or self._failed:
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


def _names(labels: Sequence[str]) -> str:
    return " and ".join(f"**{label}**" for label in labels)
