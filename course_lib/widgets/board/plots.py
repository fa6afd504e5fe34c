"""Plots of a board, as plain data and as SVG: charts, which are panels of curves, and lanes, what
each task of a run did lately.

Lanes are cut into columns of equal time, so that they cost the same however fast a cluster steps.
Boards and timelines draw them as SVG, `lockstep watch` as characters.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import anywidget
import numpy as np
import traitlets

from course_lib.record import measures
from course_lib.record.curves import WINDOW, Curve
from course_lib.record.digest import Digest
from course_lib.record.events import OWN, Phase
from course_lib.record.life import Mark
from course_lib.record.standstill import SILENT
from course_lib.record.verdict import Goal
from course_lib.text import round_up
from course_lib.widgets.kit import Inside, Markup, element, join, page, svg

Marks = Sequence[tuple[float, str, str]]
Box = tuple[float, float, float, float]
POINTS = 300  # at most, in a line: a panel is hardly wider
BIN = 0.25  # seconds over which a rate is taken, at least
LEFT, RIGHT, TOP, BOTTOM = 36, 14, 30, 24  # room around the lines of an SVG chart
ROWS, ROW = 4, 13  # in which the words of marks stand, above the lines, and the height of one
LETTER = 8.0  # of the word of a mark: width, with its share of the gap to the next
NARROW = 0.015  # of a word in a lane, as a share of a narrow lane's width
COLUMNS, LANE = 600, 26  # of a lane: its columns, and its height in a picture
TURN = 0.7  # share of a lane, from which words stand on the left of their mark
NAMES = (*measures.SHOWN, "hidden", "checkpoint", OWN, *svg.FATE)
STEPS = 8  # of the slowest worker, that should fit into a lane
GOING = ("", "starting", "running")  # states that a lane does not name


# --- charts ---


@dataclass
class Panel:
    """A chart: its title, what its axes count, one line (x, y) an entrant, and a `target` across
    it, if there is one.

    `reached`: where each entrant reached the target, None if it did not. `marks`: what was done to
    tasks and hosts: where on the x axis, a word, and a sentence with whom and when. `log`: True if
    the page may make the y axis logarithmic.
    """

    title: str
    x: str
    y: str
    lines: Sequence[tuple[np.ndarray, np.ndarray]]
    target: float | None = None
    reached: Sequence[tuple[float, float] | None] = ()
    marks: Marks = ()
    log: bool = False

    @property
    def wide(self) -> float:
        """The end of the x axis."""
        ends = [float(x[-1]) for x, _ in self.lines if len(x)]
        return max([*ends, *(at for at, _, _ in self.marks)], default=0.0) or 1.0

    @property
    def empty(self) -> str:
        """The words in place of axes where there is no line."""
        return f"no {self.y.split(',')[0]} reported"

    @property
    def y_axis(self) -> tuple[float, float]:
        """The ends of the y axis."""
        known = np.concatenate([y for _, y in self.lines] + [np.array([self.target or 0.0])])
        known = known[np.isfinite(known)]
        if not known.any():
            return 0.0, 1.0
        return min(0.0, float(known.min())) * 1.06, max(0.0, float(known.max())) * 1.06

    def plain(self) -> dict[str, Any]:
        """The panel as the page takes it: numbers of lines as bytes of float32."""
        lines = [[np.asarray(axis, np.float32).tobytes() for axis in line] for line in self.lines]
        kept = ("title", "x", "y", "empty", "target", "reached", "marks", "wide", "log")
        return {name: getattr(self, name) for name in kept} | {"lines": lines}


def progress(what: str, over: str, curves: Sequence[Curve], goal: Goal | None) -> Panel:
    """The curves of all entrants: a loss or the accuracy (`what`) over `seconds` or `examples`
    (`over`), with the goal if it is one of that kind.
    """
    loss = what.endswith("loss")
    unit = f"{what}, mean of {WINDOW} batches" if loss else what
    lines = [(getattr(c, over), c.means) for c in (curve.thinned(POINTS) for curve in curves)]
    title = what if what.endswith(" loss") else f"{what} over {over}"  # a short one beside a name
    panel = Panel(title, over, unit, lines, log=loss)
    if goal and goal.what == what:
        panel.target, axis = goal.value, ("seconds", "examples").index(over)
        reached = map(goal.reached, curves)
        panel.reached = [(each[axis], goal.value) if each else None for each in reached]
    return panel


def throughput(curves: Sequence[Curve], stood: Sequence[float | None]) -> Panel:
    """The rates of all entrants over time. `stood`: until when one that stands still has done so,
    which is now; None if it moves.
    """
    lines = []
    for curve, now in zip(curves, stood, strict=True):
        xs, ys = _rates(curve)
        if now is not None and len(xs):
            xs, ys = np.append(xs, [xs[-1], max(xs[-1], now)]), np.append(ys, [0.0, 0.0])
        lines.append((xs, ys))
    return Panel("examples a second", "seconds", "examples/s", lines)


def _rates(curve: Curve) -> tuple[np.ndarray, np.ndarray]:
    """Throughput over time: (seconds, examples a second), each a mean over the time since the one
    before.
    """
    first = np.searchsorted(curve.seconds, 0.0, side="right")
    seconds, examples = curve.seconds[first:], curve.examples[first:]
    if len(seconds) < 3:
        return np.zeros(0), np.zeros(0)
    whole = seconds[-1] - seconds[0]
    # four records in a bin, but two bins at least: one point is no line
    width = min(max(BIN, 4 * whole / len(seconds), whole / 60), whole / 2)
    edges = seconds[0] + width * np.arange(math.floor(whole / width + 1e-6) + 1)
    return edges[1:], np.diff(np.interp(edges, seconds, examples)) / width


# --- as a widget ---


class Charts(anywidget.AnyWidget):
    """A chart for each panel, with a line for each entrant of `labels`, and a key of several lines.
    `panels`: the plain ones. `logarithmic`: True if losses are on a logarithmic axis; the page sets
    it, too.

    It holds all that it shows, at most 300 points a line, and sends that each time: so a page that
    is opened later, or again, shows the same. A page that is slow leaves out what is old by then.
    """

    _esm = page.asset("kit/make.js", "kit/projector.js", "board/charts.js", "board/chart.js")
    _css = page.asset("kit/theme.css", "board/charts.css")
    entrants = traitlets.List().tag(sync=True)
    panels = traitlets.List().tag(sync=True)
    logarithmic = traitlets.Bool(False).tag(sync=True)

    def __init__(self, labels: Sequence[str], panels: Sequence[dict[str, Any]] = ()) -> None:
        lines = []
        for i, label in enumerate(labels):
            color, dash, _ = svg.entrant(i)
            mark = svg.entrant_mark(i, 0, 0)
            lines.append({"label": label, "color": color, "dash": dash, "mark": mark})
        room = {"min_height": "236px" if len(lines) > 1 else "206px"}  # with the key, or without
        super().__init__(entrants=lines, panels=panels, layout=room)


# --- as SVG ---


def chart(panel: Panel, x: float, y: float, width: float, height: float) -> Markup:
    """A panel as SVG in a box."""
    words = min(ROWS, len(panel.marks)) * ROW  # above the lines
    left, top = x + LEFT, y + TOP + words
    across, down = width - LEFT - RIGHT, height - TOP - BOTTOM - words
    low, high = panel.y_axis

    def at(px: Any, py: Any) -> tuple[Any, Any]:
        return left + px / panel.wide * across, top + (high - py) / (high - low) * down

    parts = [svg.text(x, y + 16, panel.title, class_="ink", font_size=15, font_weight=600)]
    if not any(np.isfinite(ys).any() for _, ys in panel.lines):
        middle = left + across / 2, top + down / 2
        return join((*parts, svg.text(*middle, panel.empty, class_="muted", text_anchor="middle")))
    for tick in svg.ticks(low, high, 4):
        _, level = at(0, tick)
        parts.append(svg.path("M", left, level, "h", across, class_="grid"))
        parts.append(svg.text(left - 6, level + 4, _short(tick), class_="muted", text_anchor="end"))
    for tick in svg.ticks(0, panel.wide, 4):
        place = min(at(tick, high)[0], x + width - 4 * len(_short(tick)))  # whole, at the edge too
        below = place, top + down + 17
        parts.append(svg.text(*below, _short(tick), class_="muted", text_anchor="middle"))
    if panel.target is not None:
        _, level = at(0, panel.target)
        parts.append(svg.path("M", left, level, "h", across, class_="target"))
    marks = [(at(when, high)[0], word, sentence) for when, word, sentence in panel.marks]
    for place, _, sentence in marks:  # behind the curves
        stem = svg.path("M", place, top - words, "v", down + words, class_="target")
        parts.append(element("g", svg.title(sentence), stem, stroke_dasharray="2 3", opacity=0.6))
    for i, (xs, ys) in enumerate(panel.lines):
        known = np.isfinite(ys)
        points = np.column_stack(at(xs[known], ys[known])).round(1)
        if len(points):
            color, dash, _ = svg.entrant(i)
            line = svg.path("M", *points.ravel().tolist(), stroke=color, stroke_dasharray=dash)
            parts.append(element("g", line, fill="none", stroke_width=2.5))
    parts += [svg.entrant_mark(i, *at(*place)) for i, place in enumerate(panel.reached) if place]
    return join((*parts, _words(marks, left + across, top - words)))


def _words(marks: Marks, right: float, top: float) -> list[Markup]:
    """The words of marks, each at its place on the x axis, which ends at `right`, in the first row
    that is free there, if there is one.
    """
    drawn, free = list[Markup](), [0.0] * ROWS  # from where on a row is free
    for place, word, _ in marks:
        wide = LETTER * len(word)
        begin = min(place, right - wide)
        row = next((row for row in range(ROWS) if free[row] <= begin), None)
        if row is not None:
            free[row], y = begin + wide, top + ROW * row
            drawn.append(svg.rect(begin + 2, y, wide - 2, ROW, class_="paper"))
            drawn.append(svg.text(begin + 4, y + 10, word, class_="muted", font_size=12))
    return drawn


def _short(value: float) -> str:
    """A number as the axis of a chart shows it: 1200 is 1.2k."""
    return f"{value / 1000:g}k" if abs(value) >= 1000 else f"{value:g}"


# --- lanes ---


class Lane(NamedTuple):
    """A task in a window of time. `cells`: int8 of shape (columns,), an index into `NAMES` or
    `NOTHING`; `hidden`: the same for exchanges beside computing; `waited`: share of the window, or
    None for a learner's own function that reports no phases; `fate`: `paused`, `killed` or `cut` if
    the task is now, else empty; `factor`: how many times slower it was made; `events`: what was
    done to it, and at which share of the window; `words`: what it has been in for long.
    """

    task: str
    cells: np.ndarray
    hidden: np.ndarray
    waited: float | None = 0.0
    fate: str = ""
    factor: float = 1.0
    events: Sequence[tuple[float, str]] = ()
    words: str = ""

    @property
    def name(self) -> str:
        return f"{self.task} \u00d7{self.factor:g}" if self.factor > 1 else self.task

    @property
    def note(self) -> str:
        """The words at the end of the lane: the task's fate, the phase that it has long been in,
        or the share of the window that a worker waited. A phase is recorded when it ends. So a task
        that is stuck in one is silent, unless its heartbeats say more.
        """
        if self.fate or self.words or self.waited is None or not self.task.startswith("worker:"):
            return self.fate or self.words
        return "silent" if (self.cells == svg.NOTHING).all() else f"waits {self.waited:.0%}"


class TimeWindow(NamedTuple):
    """From when to when lanes are shown, in seconds of the trace, and when its clock started."""

    begin: float
    end: float
    zero: float = 0.0

    @property
    def span(self) -> float:
        return self.end - self.begin

    def ticks(self, most: int = 4) -> list[tuple[float, str]]:
        """The marks of a time axis: at which share of the window, and the seconds there."""
        begin, end = self.begin - self.zero, self.end - self.zero
        ticks = [at for at in svg.ticks(begin, end, most) if at >= 0]  # before 0 nothing runs
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
    long = {p.task: (p.kind, p.end - p.start) for p in going_on if p.end - p.start > SILENT}
    idle = measures.IdleTime()
    idle.add(shown, window.begin, window.end)
    drawn = []
    for task in digest.tasks:
        cells, hidden = painted((p for p in shown if p.task == task), window, columns)
        fate = ""
        for what, start, end in digest.fates(task):
            if start < window.end and end > window.begin:
                _paint(cells, window, start, end, what)
            fate = what if math.isinf(end) else fate
        if not (fate or digest.over) and (state := digest.life.state(task)) not in GOING:
            fate = state
        phases = bool(digest.latest(task, 1))
        words = "" if digest.over or phases or digest.spec.own else "no step yet"
        if task in long:
            kind, seconds = long[task]
            words = f"{'waits' if kind == 'wait' else kind} {seconds:.1f} s"
        waited = idle.share.get(task, 0.0) if phases or not digest.spec.own else None
        factor = digest.factor(task)
        marks = digest.life.marks((task, f"host:{digest.spec.places[task]}"))
        drawn.append(Lane(task, cells, hidden, waited, fate, factor, placed(marks, window), words))
    return drawn


def painted(phases: Iterable[Phase], window: TimeWindow, columns: int = COLUMNS) -> np.ndarray:
    """The `cells` and the `hidden` of a lane."""
    both = np.full((2, columns), svg.NOTHING, np.int8)
    inside = (p for p in phases if p.end > window.begin and p.start < window.end)
    for p in sorted(inside, key=lambda p: p.start - p.end):
        _paint(both[int(p.what == "hidden")], window, p.start, p.end, p.kind)
    return both


def placed(marks: Iterable[Mark], window: TimeWindow) -> list[tuple[float, str]]:
    """The `events` of a lane. Words that would lie on each other share the place of the first."""
    events: list[tuple[float, str]] = []
    for mark in marks:
        if window.begin <= mark.at <= window.end:  # none in the empty window of damaged times
            at, word = (mark.at - window.begin) / window.span, mark.word
            if events and at < events[-1][0] + NARROW * (len(events[-1][1]) + 2):
                at, before = events.pop()
                word = f"{before}, {word}" if len(before) < 20 else f"\u2026, {word}"
            events.append((at, word))
    return events


def _paint(cells: np.ndarray, window: TimeWindow, start: float, end: float, what: str) -> None:
    """Mark the columns of a stretch of time, one at least."""
    scale = len(cells) / window.span
    first = max(0, round((start - window.begin) * scale))
    last = min(len(cells), max(first + 1, round((min(end, window.end) - window.begin) * scale)))
    cells[first:last] = NAMES.index(what)


def bars(lane: Lane, box: Box, prefix: str) -> list[Markup]:
    """A lane as SVG, one path for each kind of phase, in a box (x, y, width, height). What is
    hidden is a thin bar at the bottom of the lane.
    """
    x, y, width, height = box
    unit = width / len(lane.cells)
    boxes: dict[int, list[str]] = {}
    for cells, part in ((lane.cells, 1.0), (lane.hidden, svg.THIN)):
        top, down = y + (1 - part) * height, part * height
        for first, last, what in svg.runs(cells):
            across = f"{(last - first) * unit:.4g}"
            box_path = f"M{x + first * unit:.5g} {top:g}h{across}v{down:g}h-{across}z"
            boxes.setdefault(what, []).append(box_path)
    return [svg.path(*each, fill=f"url(#{prefix}{NAMES[what]})") for what, each in boxes.items()]


def rows(lanes: Sequence[Lane], window: TimeWindow, box: Box, prefix: str) -> list[Inside]:
    """Lanes as SVG in a box (x, y, width, height of one), with names, notes, marks and an axis."""
    x, y, width, pitch = box
    left, right = x + 112, x + width - 84
    parts: list[Inside] = []
    for i, lane in enumerate(lanes):
        top = y + pitch * i
        parts += [
            svg.text(left - 8, top + 16, lane.name, class_="ink", text_anchor="end"),
            svg.rect(left, top, right - left, pitch - 4, class_="lane"),
            bars(lane, (left, top, right - left, pitch - 4), prefix),
            svg.text(right + 8, top + 16, lane.note, class_="muted"),
        ]
        for at, word in lane.events:
            place = left + at * (right - left)
            beside, anchor = (place - 4, "end") if at > TURN else (place + 4, None)
            style = {"class_": "ink halo", "font_size": 12, "text_anchor": anchor}
            parts += [svg.stem(place, top, pitch - 4), svg.text(beside, top + 15, word, **style)]
    bottom = y + pitch * len(lanes) + 14
    axis = {"class_": "muted", "font_size": 13}
    for share, words in window.ticks():
        place = left + share * (right - left)
        parts.append(svg.text(place, bottom, words, text_anchor="middle", **axis))
    return [*parts, svg.text(right + 8, bottom, f"in {window.span:.3g} s", **axis)]
