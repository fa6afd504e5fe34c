"""Still pictures of a trace, as SVG for a README or a slide: what each task did, or which messages
went between them.

They are readable on light and on dark pages, and each bar and arrow says what it is when the
pointer rests on it.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from course_lib.record import measures
from course_lib.record.events import Lifecycle, Message, Phase, task_key
from course_lib.record.trace import Trace
from course_lib.widgets.palette import INK, PHASE, svg_patterns

WIDTH, LEFT, LANE, TOP = 960, 90, 34, 52
MOST = 2000  # arrows that can be told apart, or nearly
FAULT = "#D55E00"
_FONT = f'font-family="system-ui, sans-serif" font-size="14" fill="{INK}"'
_SHOWN = ("read", "compute", "wait", "reduce", "apply", "checkpoint")


def lanes_svg(trace: Trace, title: str, first: int = 0, steps: int = 8) -> str:
    """An SVG picture of `steps` steps from step `first` on: a lane for each task, a bar for each
    phase, time from left to right.

    Raises ValueError if the trace has no phase in those steps.
    """
    phases = [p for p in measures.lanes(trace) if first <= p.step < first + steps]
    if not phases:
        raise ValueError(f"the trace has no phases in steps {first} to {first + steps - 1}")
    tasks = sorted({p.task for p in phases}, key=task_key)
    start, end = min(p.start for p in phases), max(p.end for p in phases)
    scale = (WIDTH - LEFT - 20) / (end - start)
    present = [what for what in _SHOWN if any(p.what == what for p in phases)]
    bottom = TOP + LANE * len(tasks)
    parts = [svg_patterns("ls-"), *_names(tasks, LANE)]
    parts += [
        _bar(
            p,
            LEFT + (p.start - start) * scale,
            TOP + tasks.index(p.task) * LANE + 3,
            (p.end - p.start) * scale,
        )
        for p in phases
    ]
    for event in trace.all(Lifecycle):
        if (
            event.state in ("slowed", "paused", "resumed", "killed", "failed")
            and start <= event.at <= end
            and event.task in tasks
        ):
            parts.append(
                _fault(
                    event, LEFT + (event.at - start) * scale, TOP + tasks.index(event.task) * LANE
                )
            )
    parts += _axis(bottom, end - start, scale)
    parts += _legend(bottom + 46, present)
    return _svg(title, bottom + 46 + 22 * ((len(present) + 1) // 2), parts)


def messages_svg(trace: Trace, title: str) -> str:
    """An SVG picture of the messages of a trace: a line for each task, an arrow from when and where
    a message was sent to when it was there.

    Raises ValueError if the trace has no message. Of more than 2000 only every second, third, ...
    is drawn, and the title says so.
    """
    messages = trace.all(Message)
    if not messages:
        raise ValueError("the trace has neither phases nor messages")
    each = -(-len(messages) // MOST)
    tasks = sorted({end for m in messages for end in (m.src, m.dst)}, key=task_key)
    start, end = min(m.start for m in messages), max(m.end for m in messages)
    scale = (WIDTH - LEFT - 20) / (end - start or 1.0)
    pitch = 46
    bottom = TOP + pitch * len(tasks)
    middle = {task: TOP + pitch * (i + 0.5) for i, task in enumerate(tasks)}
    tip = '<marker id="ls-tip" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
    tip += '<path d="M0 0L8 4L0 8" fill="#0072B2"/></marker>'
    parts = [f"<defs>{tip}</defs>", *_names(tasks, pitch)]
    parts += [
        f'<path d="M{LEFT} {y}H{WIDTH - 20}" stroke="{INK}" opacity="0.4"/>'
        for y in middle.values()
    ]
    for m in messages[::each]:
        words = f"{m.src} to {m.dst}, round {m.round}, chunk {m.chunk}: {m.bytes} bytes in {1000 * (m.end - m.start):.3g} ms"
        ends = f'd="M{LEFT + (m.start - start) * scale:.1f} {middle[m.src]}L{LEFT + (m.end - start) * scale:.1f} {middle[m.dst]}"'
        parts.append(
            f'<path {ends} stroke="#0072B2" fill="none" marker-end="url(#ls-tip)"><title>{escape(words)}</title></path>'
        )
    parts += _axis(bottom, end - start, scale)
    shown = f"{title} (one message in {each})" if each > 1 else title
    return _svg(shown, bottom + 34, parts)


def _svg(title: str, height: float, parts: Sequence[str]) -> str:
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:.0f}" {_FONT} role="img">',
            f"<title>{escape(title)}</title>",
            f'<text x="{LEFT}" y="26" font-size="17" font-weight="600">{escape(title)}</text>',
            *parts,
            "</svg>",
        ]
    )


def _names(tasks: Sequence[str], pitch: float) -> list[str]:
    return [
        f'<text x="{LEFT - 10}" y="{TOP + (row + 0.5) * pitch + 5:.0f}" text-anchor="end">{escape(task)}</text>'
        for row, task in enumerate(tasks)
    ]


def _bar(p: Phase, x: float, y: float, width: float) -> str:
    words = f"{p.task}, step {p.step}: {p.what} {1000 * (p.end - p.start):.1f} ms"
    box = f'<rect x="{x:.1f}" y="{y}" width="{max(width, 0.8):.1f}" height="{LANE - 6}" fill="url(#ls-{p.what})">'
    return f"{box}<title>{words}</title></rect>"


def _fault(event: Lifecycle, x: float, y: float) -> str:
    """A mark where something befell a task."""
    words = escape(event.words)
    line = f'<path d="M{x:.1f} {y}v{LANE}" stroke="{FAULT}" stroke-width="3"/>'
    return f'<g>{line}<text x="{x + 6:.1f}" y="{y + 22}" fill="{FAULT}" font-weight="600">{words}</text></g>'


def _axis(y: float, seconds: float, scale: float) -> list[str]:
    """Time since the first moment shown, in the unit that suits it."""
    factor, unit = (1, "s") if seconds >= 10 else (1e3, "ms") if seconds >= 0.01 else (1e6, "µs")
    span = seconds * factor
    tick = next(
        t for t in (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10**9) if span / t <= 10
    )
    ticks = range(0, int(span) + 1, tick)
    return [
        f'<text x="{LEFT + t / factor * scale:.1f}" y="{y + 18}" text-anchor="middle">{t}{f" {unit}" if t == max(ticks) else ""}</text>'
        for t in ticks
    ]


def _legend(y: float, present: Sequence[str]) -> list[str]:
    """Two to a row: mark and words."""
    parts = []
    for i, what in enumerate(present):
        x, row = LEFT + 400 * (i % 2), y + 22 * (i // 2)
        parts.append(
            f'<rect x="{x}" y="{row - 12}" width="14" height="14" fill="url(#ls-{what})"/>'
        )
        parts.append(f'<text x="{x + 22}" y="{row}">{PHASE[what][2]}</text>')
    return parts
