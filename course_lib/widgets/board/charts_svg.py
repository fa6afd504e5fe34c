"""A chart as SVG: the panels of a board for slides, READMEs and pages without a kernel."""

from __future__ import annotations

from html import escape

import numpy as np

from course_lib.widgets.board.lanes import ticks
from course_lib.widgets.board.panels import Panel
from course_lib.widgets.palette import entrant

LEFT, RIGHT, TOP, BOTTOM = 36, 14, 30, 24


def chart(panel: Panel, x: float, y: float, width: float, height: float) -> str:
    """The panel as SVG elements in a box; classes `ink`, `muted` and `grid` take the page's
    colours.
    """
    box = (x + LEFT, y + TOP, width - LEFT - RIGHT, height - TOP - BOTTOM)
    left, top, across, down = box
    ys = [v for _, line in panel.lines for v in line[np.isfinite(line)].tolist()] + [
        panel.target or 0.0
    ]
    wide, high = (
        max([float(xs[-1]) for xs, _ in panel.lines if len(xs)], default=1.0) or 1.0,
        max(ys) * 1.06 or 1.0,
    )

    def at(px: float, py: float) -> str:
        return f"{left + px / wide * across:.1f} {top + down - py / high * down:.1f}"

    parts = [
        f'<text class="ink" x="{x:g}" y="{y + 16:g}" font-size="15" font-weight="600">{escape(panel.title)}</text>'
    ]
    for tick in ticks(0, high, 4):
        end = at(wide, tick)
        parts.append(f'<path class="grid" d="M{at(0, tick)}L{end}"/>')
        parts.append(
            f'<text class="muted" x="{left - 6}" y="{float(end.split()[1]) + 4:.1f}" text-anchor="end">{_short(tick)}</text>'
        )
    for tick in ticks(0, wide, 4):
        place = at(tick, 0).split()[0]
        parts.append(
            f'<text class="muted" x="{place}" y="{top + down + 17:.0f}" text-anchor="middle">{_short(tick)}</text>'
        )
    if panel.target is not None:
        parts.append(f'<path class="target" d="M{at(0, panel.target)}L{at(wide, panel.target)}"/>')
    for i, (xs, line) in enumerate(panel.lines):
        color, _, dash, _ = entrant(i)
        points = "L".join(
            at(a, b) for a, b in zip(xs.tolist(), line.tolist(), strict=True) if np.isfinite(b)
        )
        if points:
            parts.append(
                f'<path fill="none" stroke="{color}" stroke-width="2.5" stroke-dasharray="{dash}" d="M{points}"/>'
            )
    parts += [
        mark(i, *map(float, at(*place).split())) for i, place in enumerate(panel.marks) if place
    ]
    return "".join(parts)


def mark(number: int, x: float, y: float, size: float = 6.0) -> str:
    """The mark of an entrant, in its colour and shape."""
    color, _, _, symbol = entrant(number)
    wide, tall = 1.3 * size, 2.2 * size
    shapes = {
        "circle": f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{size:g}"',
        "diamond": f'<path d="M{x:.1f} {y - wide:.1f}l{wide:g} {wide:g}l{-wide:g} {wide:g}l{-wide:g} {-wide:g}z"',
        "square": f'<path d="M{x - size:.1f} {y - size:.1f}h{2 * size:g}v{2 * size:g}h{-2 * size:g}z"',
        "triangle-up": f'<path d="M{x:.1f} {y - tall / 2:.1f}l{wide:g} {tall:g}h{-2 * wide:g}z"',
    }
    return f'{shapes[symbol]} fill="{color}" stroke="white" stroke-width="1.5"/>'


def swatch(number: int) -> str:
    """A short piece of an entrant's line with its mark, as an SVG of its own: what a legend shows."""
    color, _, dash, _ = entrant(number)
    line = f'<path d="M1 8H39" stroke="{color}" stroke-width="3" stroke-dasharray="{dash}"/>'
    return f'<svg width="40" height="16" viewBox="0 0 40 16" aria-hidden="true">{line}{mark(number, 20, 8, 4.5)}</svg>'


def _short(value: float) -> str:
    """A number as the axis of a chart shows it: 1200 is 1.2k."""
    return f"{value / 1000:g}k" if abs(value) >= 1000 else f"{value:g}"
