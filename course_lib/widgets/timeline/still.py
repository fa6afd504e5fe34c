"""Still pictures of a trace, as SVG for a README or a slide: what each task did, or which messages
went between them.

They are readable on light and on dark pages, and each bar and arrow says what it is when the
pointer rests on it.
"""

from collections.abc import Sequence

from course_lib.record.events import Lifecycle, Message, task_key
from course_lib.record.trace import Trace
from course_lib.record.waits import with_waits
from course_lib.widgets.kit import Inside, Markup, element, svg
from course_lib.widgets.kit.palette import ALARM, INK, PHASE, THIN
from course_lib.widgets.timeline.scene import FAULTS

WIDTH, LEFT, RIGHT, LANE, TOP = 960, 90, 940, 34, 52
LETTER = 8  # the width of a bold letter, on average at most
BLUE = PHASE["compute"].color
MOST_ARROWS = 2000  # more cannot be told apart
MARKED_STATES = [state for state in FAULTS if state not in ("linked", "cut", "healed")]


def lanes_svg(trace: Trace, name: str, first: int = 0, steps: int = 8) -> str:
    """An SVG picture of `steps` steps from step `first` on: a lane for each task, a bar for each
    phase, time from left to right.

    Raises ValueError if the trace has no phase in those steps.
    """
    phases = [p for p in with_waits(trace) if first <= p.step < first + steps]
    if not phases:
        raise ValueError(f"the trace has no phases in steps {first} to {first + steps - 1}")
    tasks = sorted({p.task for p in phases}, key=task_key)
    top = {task: TOP + LANE * i for i, task in enumerate(tasks)}
    bottom = TOP + LANE * len(tasks)
    start, end = min(p.start for p in phases), max(p.end for p in phases)
    scale = (RIGHT - LEFT) / (end - start)
    parts: list[Inside] = [svg.patterns("ls-"), _names(tasks, LANE)]
    for p in phases:
        words = f"{p.task}, step {p.step}: {p.what} {1000 * (p.end - p.start):.1f} ms"
        x, width = LEFT + (p.start - start) * scale, max((p.end - p.start) * scale, 0.8)
        fill, height = f"url(#ls-{p.kind})", (LANE - 6) * (THIN if p.what == "hidden" else 1)
        y = top[p.task] + LANE - 3 - height
        parts.append(svg.rect(x, y, width, height, svg.title(words), fill=fill))
    for e in trace.all(Lifecycle):
        if e.state in MARKED_STATES and start <= e.at <= end and e.task in tasks:
            x, y = LEFT + (e.at - start) * scale, top[e.task]
            parts.append(svg.path("M", x, y, "v", LANE, stroke=ALARM, stroke_width=3))
            fits = x + 6 + LETTER * len(e.words) < WIDTH
            beside, anchor = (x + 6, "start") if fits else (x - 6, "end")
            style = {"fill": ALARM, "font_weight": 600, "text_anchor": anchor}
            parts.append(svg.text(beside, y + 22, e.words, **style))
    present = [what for what in PHASE if any(p.kind == what for p in phases)]
    legend = svg.legend(present, (LEFT, bottom + 46), "ls-", columns=2, full=True)
    parts += [_axis(bottom, end - start, scale), legend]
    return _picture(name, bottom + 46 + 22 * ((len(present) + 1) // 2), parts)


def messages_svg(trace: Trace, name: str) -> str:
    """An SVG picture of the messages of a trace: a line for each task, and for each message an
    arrow from its sending to its arrival.

    Of more than 2000 messages only every second, third, ... is drawn, and the title says so. Raises
    ValueError if the trace has no message.
    """
    messages = trace.all(Message)
    if not messages:
        raise ValueError("the trace has neither phases nor messages")
    each = -(-len(messages) // MOST_ARROWS)
    tasks = sorted({end for m in messages for end in (m.src, m.dst)}, key=task_key)
    start, end = min(m.start for m in messages), max(m.end for m in messages)
    scale = (RIGHT - LEFT) / (end - start or 1.0)
    pitch = 46
    bottom = TOP + pitch * len(tasks)
    middle = {task: TOP + pitch * (i + 0.5) for i, task in enumerate(tasks)}
    lines = [svg.path("M", LEFT, y, "H", RIGHT, stroke=INK, opacity=0.4) for y in middle.values()]
    arrows = []
    for m in messages[::each]:
        what = f"{m.src} to {m.dst}, round {m.round}, chunk {m.chunk}"
        words = f"{what}: {m.bytes} bytes in {1000 * (m.end - m.start):.3g} ms"
        sent, came = (LEFT + (at - start) * scale for at in (m.start, m.end))
        ends = ("M", sent, middle[m.src], "L", came, middle[m.dst])
        arrows.append(svg.path(*ends, inside=svg.title(words)))
    style = {"stroke": BLUE, "fill": "none", "marker_end": "url(#ls-tip)"}
    shown = f"{name} (one message in {each})" if each > 1 else name
    axis, tip = _axis(bottom, end - start, scale), svg.arrow_head("ls-tip", BLUE, 8)
    drawn = element("g", arrows, **style)
    return _picture(shown, bottom + 34, [tip, _names(tasks, pitch), lines, drawn, axis])


def _picture(name: str, height: float, parts: Inside) -> str:
    heading = svg.text(LEFT, 26, name, font_size=17, font_weight=600)
    return svg.picture(WIDTH, height, name, heading, parts)


def _names(tasks: Sequence[str], pitch: float) -> list[Markup]:
    rows = [(TOP + (row + 0.5) * pitch + 5, task) for row, task in enumerate(tasks)]
    return [svg.text(LEFT - 10, y, task, text_anchor="end") for y, task in rows]


def _axis(y: float, seconds: float, scale: float) -> list[Markup]:
    """Time since the first moment shown, in the unit that suits it."""
    factor, unit = (1, "s") if seconds >= 10 else (1e3, "ms") if seconds >= 0.01 else (1e6, "µs")
    marks = [round(tick) for tick in svg.ticks(0, seconds * factor, 10)]
    words = [*map(str, marks[:-1]), f"{marks[-1]} {unit}"]
    places = [LEFT + mark / factor * scale for mark in marks]
    labels = zip(places, words, strict=True)
    return [svg.text(x, y + 18, label, text_anchor="middle") for x, label in labels]
