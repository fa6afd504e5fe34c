"""A chart of a board as SVG, for pictures and for pages without a kernel."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from course_lib.widgets.board.plots import ROW, ROWS, Panel
from course_lib.widgets.kit import Markup, element, join, svg
from course_lib.widgets.kit.palette import ALARM, entrant

LEFT, RIGHT, TOP, BOTTOM = 36, 14, 30, 24  # room around the lines
LETTER = 8.0  # of the word of a mark: width, with its share of the gap to the next
MORE = 3  # letters for how many have no room, after a word in the last row


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
        place, _ = at(tick, high)
        place = min(place, x + width - 4 * len(_short(tick)))  # whole, at the edge too
        label = {"class_": "muted", "text_anchor": "middle"}
        parts.append(svg.text(place, top + down + 17, _short(tick), **label))
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
    marks = [(at(when, high)[0], *rest) for when, *rest in panel.marks]
    parts += _marks(marks, left + across, top - words, down + words)
    return join(parts)


def _marks(
    marks: Sequence[tuple[float, str, str]], right: float, top: float, down: float
) -> list[Markup]:
    """A vertical line for each mark, at a place on the x axis, which ends at `right`; over all
    lines its word in the first row that is free there. Where none is, the word in the last row
    counts one more.
    """
    lines, words = list[Markup](), list[list[Any]]()
    # where a word ends in each row, and where it was said last: not twice at one place
    taken, before = [0.0] * ROWS, dict[str, float]()
    for place, word, said in marks:
        lines.append(element("g", svg.title(said), event((place, top), down, "", 0, False)))
        again = place - before.get(word, -9) < 8
        before[word] = place
        for row in () if again else range(ROWS):
            wide = LETTER * (len(word) + MORE * (row == ROWS - 1))
            if taken[row] <= (begin := min(place, right - wide)):
                taken[row] = begin + wide
                words.append([begin, row, word, 0])
                break
        else:
            if not again:
                next(entry for entry in reversed(words) if entry[1] == ROWS - 1)[3] += 1
    for begin, row, word, more in words:
        shown = f"{word} +{more}" if more else word
        y = top + ROW * row
        lines.append(svg.rect(begin + 2, y, LETTER * len(shown) - 2, ROW, class_="paper"))
        lines.append(svg.text(begin + 4, y + 10, shown, class_="ink", font_size=12))
    return lines


def event(
    place: tuple[float, float], height: float, word: str, below: float, at_the_end: bool
) -> Markup:
    """A vertical mark that begins at a `place`, with its word so far `below` that."""
    x, y = place
    line = svg.path("M", x, y, "v", height, stroke=ALARM, stroke_width=2, stroke_dasharray="3 2")
    side = {"text_anchor": "end"} if at_the_end else {}
    beside = x - 4 if at_the_end else x + 4
    look = {"class_": "ink halo", "font_size": 12, **side}
    return join((line, svg.text(beside, y + below, word, **look)))


def _short(value: float) -> str:
    """A number as the axis of a chart shows it: 1200 is 1.2k."""
    return f"{value / 1000:g}k" if abs(value) >= 1000 else f"{value:g}"
