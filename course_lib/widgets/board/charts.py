"""Charts of a board: panels of curves as plain data, as a widget and as SVG."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import anywidget
import numpy as np
import traitlets

from course_lib.record.curves import WINDOW, Curve
from course_lib.record.verdict import Goal
from course_lib.widgets.kit import Markup, element, join, page, svg
from course_lib.widgets.kit.palette import ALARM, entrant

POINTS = 300  # at most, in a line: a panel is hardly wider
BIN = 0.25  # seconds over which a rate is taken, at least
LEFT, RIGHT, TOP, BOTTOM = 36, 14, 30, 24  # room around the lines of an SVG chart
ROWS, ROW = 4, 13  # in which the words of marks stand, above the lines, and the height of one
LETTER = 8.0  # of the word of a mark: width, with its share of the gap to the next
MORE = 3  # letters for how many have no room, after a word in the last row


@dataclass(frozen=True)
class Panel:
    """A chart: its title, what its axes count, one line (x, y) an entrant, and a `target` across
    it, if there is one.

    `reached`: where each entrant reached the target, None if it did not. `marks`: what was done to
    tasks and hosts: where on the x axis, a word, and a sentence with whom and when. `until`: where
    the x axis ends at least. `log`: whether the y axis is logarithmic; None if it never is.
    `empty`: what stands in place of axes where there is no line.
    """

    title: str
    x: str
    y: str
    lines: Sequence[tuple[np.ndarray, np.ndarray]]
    target: float | None = None
    reached: Sequence[tuple[float, float] | None] = ()
    marks: Sequence[tuple[float, str, str]] = ()
    until: float = 0.0
    log: bool | None = None
    empty: str = ""

    @property
    def wide(self) -> float:
        """The end of the x axis."""
        ends = [float(x[-1]) for x, _ in self.lines if len(x)]
        return max([self.until, *ends, *(at for at, _, _ in self.marks)]) or 1.0

    def y_axis(self, log: bool) -> tuple[float, float]:
        """Return the ends of a linear or logarithmic y axis."""
        known = np.concatenate([y for _, y in self.lines] + [np.array([self.target or 0.0])])
        known = known[np.isfinite(known) & ((known > 0) | (not log))]
        if not known.any():
            return (0.1, 1.0) if log else (0.0, 1.0)
        low, high = float(known.min()), float(known.max())
        return (low / 1.15, high * 1.15) if log else (min(0.0, low) * 1.06, max(0.0, high) * 1.06)

    def plain(self) -> dict[str, Any]:
        """The panel as the page takes it: numbers of lines as bytes of float32."""
        lines = [[np.asarray(axis, np.float32).tobytes() for axis in line] for line in self.lines]
        log = None if self.log is None else self.y_axis(True)
        kept = ("title", "x", "y", "empty", "target", "reached", "marks", "wide")
        facts = {name: getattr(self, name) for name in kept}
        return facts | {"lines": lines, "linear": self.y_axis(False), "log": log}


def progress(what: str, over: str, curves: Sequence[Curve], goal: Goal | None) -> Panel:
    """The curves of all entrants: a loss or the accuracy (`what`) over `seconds` or `examples`
    (`over`), with the goal if it is one of that kind.
    """
    loss = what.endswith("loss")
    unit = f"{what}, mean of {WINDOW} batches" if loss else what
    lines = [(getattr(c, over), c.means) for c in (curve.thinned(POINTS) for curve in curves)]
    title = what if what.endswith(" loss") else f"{what} over {over}"  # a short one beside a name
    panel = Panel(title, over, unit, lines, log=False if loss else None)
    if goal is None or goal.what != what:
        return panel
    axis = ("seconds", "examples").index(over)
    reached = [(r[axis], goal.value) if (r := goal.reached(c)) else None for c in curves]
    return replace(panel, target=goal.value, reached=reached)


def throughput(curves: Sequence[Curve], still: Sequence[tuple[float, float] | None]) -> Panel:
    """The rates of all entrants over time. `still`: since when, and until now, one has stood still,
    None if it moves.
    """
    lines = []
    for curve, time in zip(curves, still, strict=True):
        xs, ys = _rates(curve)
        if time and len(xs):
            since = max(time[0], float(xs[-1]))
            xs, ys = np.append(xs, [since, max(since, time[1])]), np.append(ys, [0.0, 0.0])
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
    """A chart for each panel, with a line for each entrant of `labels`. `show` brings it up to
    date. `logarithmic`: whether panels that can be are on a logarithmic axis; the page sets it,
    too.

    It holds all that it shows, at most 300 points a line, and sends that each time: so a page that
    is opened later, or again, shows the same. A page that is slow leaves out what is old by then.
    """

    _esm = page.asset("kit/make.js", "kit/projector.js", "board/charts.js", "board/chart.js")
    _css = page.asset("kit/theme.css", "board/charts.css")
    entrants = traitlets.List().tag(sync=True)
    panels = traitlets.List().tag(sync=True)
    logarithmic = traitlets.Bool(False).tag(sync=True)

    def __init__(self, labels: Sequence[str], panels: Sequence[Panel]) -> None:
        lines = [_line(number, label) for number, label in enumerate(labels)]
        plain = [panel.plain() for panel in panels]
        super().__init__(entrants=lines, panels=plain, layout={"min_height": "206px"})

    def show(self, panels: Sequence[Panel]) -> None:
        """Show panels in place of those before."""
        self.panels = [panel.plain() for panel in panels]


def _line(number: int, label: str) -> dict[str, Any]:
    color, dash, _ = entrant(number)
    return {"label": label, "color": color, "dash": dash, "mark": svg.entrant_mark(number, 0, 0)}


# --- as SVG ---


def chart(panel: Panel, x: float, y: float, width: float, height: float) -> Markup:
    """A panel as SVG in a box."""
    words = min(ROWS, len(panel.marks)) * ROW  # above the lines
    left, top = x + LEFT, y + TOP + words
    across, down = width - LEFT - RIGHT, height - TOP - BOTTOM - words
    scale = np.log10 if panel.log else np.asarray
    low, high = panel.y_axis(bool(panel.log))
    span = scale(high) - scale(low)

    def at(px: Any, py: Any) -> tuple[Any, Any]:
        above = (scale(py) - scale(low)) / span
        return left + px / panel.wide * across, top + (1 - above) * down

    parts = [svg.text(x, y + 16, panel.title, class_="ink", font_size=15, font_weight=600)]
    if not any(np.isfinite(ys).any() for _, ys in panel.lines):
        middle = left + across / 2, top + down / 2
        return join((*parts, svg.text(*middle, panel.empty, class_="muted", text_anchor="middle")))
    for tick in svg.log_ticks(low, high) if panel.log else svg.ticks(low, high, 4):
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
    for i, (xs, ys) in enumerate(panel.lines):
        known = np.isfinite(ys) & (ys > 0 if panel.log else True)
        points = np.column_stack(at(xs[known], ys[known])).round(1)
        if len(points):
            color, dash, _ = entrant(i)
            line = svg.path("M", *points.ravel().tolist(), stroke=color, stroke_dasharray=dash)
            parts.append(element("g", line, fill="none", stroke_width=2.5))
    parts += [svg.entrant_mark(i, *at(*place)) for i, place in enumerate(panel.reached) if place]
    marks = [(at(when, high)[0], word, sentence) for when, word, sentence in panel.marks]
    return join((*parts, _marks(marks, left + across, top - words, down + words)))


def _marks(
    marks: Sequence[tuple[float, str, str]], right: float, top: float, down: float
) -> list[Markup]:
    """A vertical line for each mark, at a place on the x axis, which ends at `right`; over all
    lines its word in the first row that is free there. Where none is, the word in the last row
    counts one more.
    """
    lines, words = list[Markup](), list[list[Any]]()
    free, before = [0.0] * ROWS, dict[str, float]()  # from where on a row is; where a word stood
    for place, word, sentence in marks:
        lines.append(element("g", svg.title(sentence), stem(place, top, down)))
        together = place - before.get(word, -9) < 8  # done in several runs at once
        before[word] = place
        if together:
            continue
        wide = [LETTER * (len(word) + MORE * (row == ROWS - 1)) for row in range(ROWS)]
        begin = [min(place, right - each) for each in wide]
        row = next((row for row in range(ROWS) if free[row] <= begin[row]), None)
        if row is None:
            [entry for entry in words if entry[1] == ROWS - 1][-1][3] += 1
        else:
            free[row] = begin[row] + wide[row]
            words.append([begin[row], row, word, 0])
    for begin_at, row, word, more in words:
        shown, y = f"{word} +{more}" if more else word, top + ROW * row
        lines.append(svg.rect(begin_at + 2, y, LETTER * len(shown) - 2, ROW, class_="paper"))
        lines.append(svg.text(begin_at + 4, y + 10, shown, class_="ink", font_size=12))
    return lines


def stem(x: float, y: float, height: float) -> Markup:
    """The vertical line of what was done at a moment."""
    return svg.path("M", x, y, "v", height, stroke=ALARM, stroke_width=2, stroke_dasharray="3 2")


def _short(value: float) -> str:
    """A number as the axis of a chart shows it: 1200 is 1.2k."""
    return f"{value / 1000:g}k" if abs(value) >= 1000 else f"{value:g}"
