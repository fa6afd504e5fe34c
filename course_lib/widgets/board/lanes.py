"""Lanes: what each task of a run did lately, as plain data and as SVG.

Lanes are cut into columns of equal time, so that they cost the same however fast a cluster steps.
Boards draw them as SVG, `lockstep watch` as characters.
"""

import itertools
import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from course_lib.record import measures
from course_lib.record.digest import Digest
from course_lib.record.events import OWN, Phase
from course_lib.record.standstill import SILENT
from course_lib.text import round_up
from course_lib.widgets.kit import Markup, svg
from course_lib.widgets.kit.palette import FATE, THIN

LETTER = 0.015  # of a word in a lane, as a share of a narrow lane's width
COLUMNS = 600
NAMES = (*measures.SHOWN, "hidden", "checkpoint", OWN, *FATE)
STEPS = 8  # of the slowest worker, that should fit into a lane
NOTHING = -1  # a column in which no phase was recorded
GOING = ("", "starting", "running")  # states that a lane does not name


class Lane(NamedTuple):
    """A task in a window of time. `cells`: int8 of shape (columns,), an index into `NAMES` or
    `NOTHING`; `hidden`: the same for exchanges beside computing; `waited`: share of the window;
    `fate`: `paused`, `killed` or `cut` if the task is now, else empty; `factor`: how many times
    slower it was made; `events`: what was done to it, and at which share of the window; `said`:
    what it has been in for long; `unsure`: the share of the window within which any of it may lie,
    as far as its node's clock is known.
    """

    task: str
    cells: np.ndarray
    hidden: np.ndarray
    waited: float
    fate: str
    factor: float
    events: Sequence[tuple[float, str]] = ()
    said: str = ""
    unsure: float = 0.0

    @property
    def name(self) -> str:
        return f"{self.task} \u00d7{self.factor:g}" if self.factor > 1 else self.task

    @property
    def note(self) -> str:
        """The words at the end of the lane: the task's fate, the phase that it has long been in,
        or the share of the window that a worker waited. A phase is recorded when it ends. So a task
        that is stuck in one is silent, unless its heartbeats say more.
        """
        if self.fate or self.said or not self.task.startswith("worker:"):
            return {"cut": "cut off"}.get(self.fate, self.fate) or self.said
        return "silent" if (self.cells == NOTHING).all() else f"waits {self.waited:.0%}"


class TimeWindow(NamedTuple):
    """From when to when lanes are shown, in seconds of the trace, and when its clock started."""

    begin: float
    end: float
    zero: float = 0.0

    @property
    def span(self) -> float:
        return self.end - self.begin

    def ticks(self) -> list[tuple[float, str]]:
        """The marks of a time axis: at which share of the window, and the seconds there."""
        begin, end = self.begin - self.zero, self.end - self.zero
        ticks = [at for at in svg.ticks(begin, end, 4) if at >= 0]  # before 0 nothing runs
        return [((at - begin) / self.span, f"{at:.4g} s") for at in ticks]


def span_for(digests: Iterable[Digest], now: float = 0.0) -> float:
    """Seconds that all lanes should show: some steps of the slowest run.

    The span that is shown `now` stays while it fits.
    """
    need = max(0.05, STEPS * max((d.step_seconds() for d in digests), default=0.0))
    return now if now / 3 < need <= now else round_up(min(need, 60.0))


def lanes(
    digest: Digest, window: TimeWindow, columns: int = COLUMNS, going_on: Sequence[Phase] = ()
) -> list[Lane]:
    """A lane for each task of a run. Where several phases share a column, the shortest is drawn: a
    longer one has other columns, too. `going_on`: phases that are not over yet.
    """
    # a little more, so that all of a step is there to tell its waits
    shown = digest.recent(window.begin - window.span / STEPS) + list(going_on)
    said = {
        p.task: f"{'waits' if p.kind == 'wait' else p.kind} {seconds:.1f} s"
        for p in going_on
        if (seconds := p.end - p.start) > SILENT
    }
    idle = measures.IdleTime()
    idle.add(shown, window.begin, window.end)
    found = []
    for task in digest.tasks:
        seen = (p for p in shown if p.end > window.begin and p.start < window.end)
        mine = [p for p in seen if p.task == task]
        cells, hidden = np.full((2, columns), NOTHING, np.int8)
        for p in sorted(mine, key=lambda p: p.start - p.end):
            _paint(hidden if p.what == "hidden" else cells, window, p.start, p.end, p.kind)
        fate = ""
        for what, start, end in digest.fates(task):
            if start < window.end and end > window.begin:
                _paint(cells, window, start, end, what)
            fate = what if math.isinf(end) else fate
        if not (fate or digest.over) and (state := digest.life.state(task)) not in GOING:
            fate = state
        share = idle.share.get(task, 0.0)
        done = [
            ((mark.at - window.begin) / window.span, mark.word)
            for mark in digest.life.marks((task, f"host:{digest.spec.places[task]}"))
            if window.begin <= mark.at <= window.end  # none in the empty window of damaged times
        ]
        begun = digest.over or digest.latest(task, 1)
        long = said.get(task, "" if begun else "no step yet")
        events = _apart(done)
        unsure = min(1.0, 2 * digest.unsure.get(task, 0.0) / window.span) if window.span else 0.0
        factor = digest.factor(task)
        found.append(Lane(task, cells, hidden, share, fate, factor, events, long, unsure))
    return found


def _apart(events: Sequence[tuple[float, str]]) -> list[tuple[float, str]]:
    """Events whose words would lie on each other share the place of the first."""
    found: list[tuple[float, list[str]]] = []
    for at, word in events:
        if found and at < found[-1][0] + LETTER * (len(_together(found[-1][1])) + 2):
            found[-1][1].append(word)
        else:
            found.append((at, [word]))
    return [(at, _together(words)) for at, words in found]


def _together(words: Sequence[str]) -> str:
    """Words in one place: all, or the last of many."""
    said = ", ".join(words)
    return said if len(said) <= 28 else f"{words[-1]} (last of {len(words)})"


def _paint(cells: np.ndarray, window: TimeWindow, start: float, end: float, what: str) -> None:
    """Mark the columns of a stretch of time, one at least."""
    scale = len(cells) / window.span
    first = max(0, round((start - window.begin) * scale))
    last = min(len(cells), max(first + 1, round((min(end, window.end) - window.begin) * scale)))
    cells[first:last] = NAMES.index(what)


def runs(cells: np.ndarray) -> list[tuple[int, int, int]]:
    """Stretches of equal columns, as (first, one past the last, what), without those that hold
    nothing.
    """
    edges = [0, *(np.flatnonzero(np.diff(cells)) + 1).tolist(), len(cells)]
    pairs = [(a, b) for a, b in itertools.pairwise(edges) if a < b]
    return [(a, b, int(cells[a])) for a, b in pairs if cells[a] != NOTHING]


def bars(lane: Lane, box: tuple[float, float, float, float], prefix: str) -> list[Markup]:
    """A lane as SVG, one path for each kind of phase, in a box (x, y, width, height). What is
    hidden is a thin bar at the bottom of the lane.
    """
    x, y, width, height = box
    unit = width / len(lane.cells)
    boxes: dict[int, list[str]] = {}
    for cells, part in ((lane.cells, 1.0), (lane.hidden, THIN)):
        top, down = y + (1 - part) * height, part * height
        for first, last, what in runs(cells):
            across = f"{(last - first) * unit:.4g}"
            box_path = f"M{x + first * unit:.5g} {top:g}h{across}v{down:g}h-{across}z"
            boxes.setdefault(what, []).append(box_path)
    fills = [svg.path(*found, fill=f"url(#{prefix}{NAMES[what]})") for what, found in boxes.items()]
    return [*fills, *_bracket(lane.unsure, box)]


def _bracket(unsure: float, box: tuple[float, float, float, float]) -> list[Markup]:
    """At the end of a lane, how far its times may be off; nothing if that is less than a column."""
    x, y, width, height = box
    if unsure * COLUMNS < 1:
        return []
    right, across, end = x + width - 1, f"h-{unsure * width:.5g}", f"v{height - 8:g}"
    shape = f"M{right:g} {y + 4:g}{end}M{right:g} {y + height / 2:g}{across}"
    ends = f"{shape}m0 {4 - height / 2:g}{end}"
    looks = {"#ffffff": 4, "#14171c": 1.5}  # to be seen on every colour
    still = {"fill": "none", "vector_effect": "non-scaling-stroke"}
    return [svg.path(ends, stroke=color, stroke_width=w, **still) for color, w in looks.items()]
