"""A still picture of a run for READMEs, slides and plain pages: the lanes of its workers, as SVG, from its trace."""

from __future__ import annotations

from html import escape

from course_lib import measures
from course_lib.trace import Phase, Trace, task_key
from course_lib.widgets.palette import INK, PHASE

WIDTH, LEFT, LANE, TOP = 960, 90, 34, 52
_FONT = f'font-family="system-ui, sans-serif" font-size="14" fill="{INK}"'
_SHOWN = ("compute", "wait", "reduce", "apply")


def lanes_svg(trace: Trace, title: str, first: int = 0, steps: int = 8) -> str:
    """An SVG picture of `steps` steps from step `first` on: a lane for each worker, a bar for each phase, time from left to right.

    Raises ValueError if the trace has no phase in those steps.
    """
    phases = [p for p in measures.lanes(trace) if first <= p.step < first + steps and p.what in _SHOWN]
    if not phases:
        raise ValueError(f"the trace has no phases in steps {first} to {first + steps - 1}")
    workers = sorted({p.task for p in phases}, key=task_key)
    start, end = min(p.start for p in phases), max(p.end for p in phases)
    scale = (WIDTH - LEFT - 20) / (end - start)
    height = TOP + LANE * len(workers) + 80
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" {_FONT} role="img">',
        f"<title>{escape(title)}</title>",
        "<defs>" + "".join(_pattern(what) for what in _SHOWN) + "</defs>",
        f'<text x="{LEFT}" y="26" font-size="17" font-weight="600">{escape(title)}</text>',
    ]
    for row, task in enumerate(workers):
        y = TOP + row * LANE
        parts.append(f'<text x="{LEFT - 10}" y="{y + LANE * 0.6:.0f}" text-anchor="end">{task}</text>')
        parts += [_bar(p, LEFT + (p.start - start) * scale, y + 3, (p.end - p.start) * scale) for p in phases if p.task == task]
    parts += _axis(TOP + LANE * len(workers), start, end, scale) + _legend(height - 14) + ["</svg>"]
    return "\n".join(parts)


def _pattern(what: str) -> str:
    """The fill of a phase: its colour, with marks for those that share a lane with `compute`, so that it can be told without colour."""
    color = PHASE[what][0]
    marks = {
        "reduce": '<path d="M0 8L8 0" stroke="white" stroke-width="1.6"/>',
        "wait": '<circle cx="4" cy="4" r="1.2" fill="white"/>',
    }
    tile = f'<rect width="8" height="8" fill="{color}"/>{marks.get(what, "")}'
    return f'<pattern id="{what}" width="8" height="8" patternUnits="userSpaceOnUse">{tile}</pattern>'


def _bar(p: Phase, x: float, y: float, width: float) -> str:
    words = f"{p.task}, step {p.step}: {p.what} {1000 * (p.end - p.start):.1f} ms"
    box = f'<rect x="{x:.1f}" y="{y}" width="{max(width, 0.8):.1f}" height="{LANE - 6}" fill="url(#{p.what})">'
    return f"{box}<title>{words}</title></rect>"


def _axis(y: float, start: float, end: float, scale: float) -> list[str]:
    """Milliseconds since the first step shown."""
    span = 1000 * (end - start)
    tick = next(t for t in (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10**9) if span / t <= 10)
    ticks = range(0, int(span) + 1, tick)
    last = max(ticks)
    return [
        f'<text x="{LEFT + t / 1000 * scale:.1f}" y="{y + 18}" text-anchor="middle" font-size="12">{t}{" ms" if t == last else ""}</text>'
        for t in ticks
    ]


def _legend(y: float) -> list[str]:
    """Two rows of two: mark and words."""
    parts = []
    for i, what in enumerate(_SHOWN):
        x, row = LEFT + 330 * (i // 2), y - 22 * (1 - i % 2)
        parts.append(f'<rect x="{x}" y="{row - 12}" width="14" height="14" fill="url(#{what})"/>')
        parts.append(f'<text x="{x + 20}" y="{row}" font-size="13">{PHASE[what][2]}</text>')
    return parts
