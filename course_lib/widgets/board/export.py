"""A view without a kernel: as one HTML page, and as one SVG picture."""

from __future__ import annotations

import re
import textwrap
from html import escape
from pathlib import Path

from course_lib.record import measures
from course_lib.widgets.board import markup, words
from course_lib.widgets.board.charts_svg import chart, mark
from course_lib.widgets.board.lanes import COLUMNS, bars, ticks
from course_lib.widgets.board.view import View
from course_lib.widgets.palette import FATE, PHASE, entrant, svg_patterns

WIDTH, GAP, LANE = 1200, 32, 26
_CHART = 378.0, 210.0  # in units of a page's own pictures
_THEME = """
.ink { fill: #1a1a1a } .muted { fill: #555 } .grid { stroke: #ddd } .target { stroke: #777 } .paper { fill: #fff } .lane { fill: #f2f2f2 }
@media (prefers-color-scheme: dark) {
  .ink { fill: #eee } .muted { fill: #aaa } .grid { stroke: #444 } .target { stroke: #999 } .paper { fill: #141414 } .lane { fill: #222 }
}"""


def write(path: Path | str, text: str) -> Path:
    path = Path(path)
    path.write_text(text, encoding="utf-8")
    return path


def page(view: View) -> str:
    """A page that needs nothing but itself: the sentence, the charts, the lanes, and all of it as
    text.
    """
    name = markup.prefix()
    width, height = _CHART
    pictures = "".join(
        f'<svg viewBox="0 0 {width:.0f} {height:.0f}" font-size="14" role="img" aria-label="{escape(p.title)}">{chart(p, 0, 0, *_CHART)}</svg>'
        for p in view.panels()
    )
    title = " and ".join(side.label for side in view.sides)
    style = (
        ":root { color-scheme: light dark } body { background: Canvas; margin: 24px auto; max-width: 1200px; padding: 0 20px }"
        ".charts { display: grid; grid-template-columns: repeat(auto-fit, minmax(320px, 1fr)); gap: 8px 32px; margin: 12px 0 }"
        "summary { cursor: pointer }"
    )
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
        f'<title>{escape(title)}</title><style>{style}{_THEME}</style><body><div class="lk-board ls">'
        f'{markup.head(view)}<div class="charts">{pictures}</div>{markup.sides(view, name)}{markup.frame(name)}'
        f"<details><summary>The same as text</summary><pre>{escape(view.table())}</pre></details></div></body></html>\n"
    )


def still(view: View) -> str:
    """An SVG picture, 1200 wide: the sentence, the charts, and the lanes of each run beside each
    other, two in a row.
    """
    name = markup.prefix()
    sentence = textwrap.wrap(view.headline().replace("**", ""), 104)
    parts = [
        f'<text class="ink" x="0" y="{22 + 27 * i}" font-size="20" font-weight="600">{escape(s)}</text>'
        for i, s in enumerate(sentence)
    ]
    y = 27.0 * len(sentence) + 4
    notes = [f"{side.label} {side.reality.word}: {side.reality.why}" for side in view.sides]
    for line in [
        part
        for note in filter(None, [*_once(notes), view.detail()])
        for part in textwrap.wrap(note, 160)
    ]:
        parts.append(f'<text class="muted" x="0" y="{y + 14}" font-size="14">{escape(line)}</text>')
        y += 20
    y += 12
    panels = view.panels()
    wide = (WIDTH + GAP) / len(panels)
    parts += [chart(panel, i * wide, y, wide - GAP, _CHART[1]) for i, panel in enumerate(panels)]
    y += _CHART[1] + 16
    columns = min(2, len(view.sides))
    width = (WIDTH - (columns - 1) * GAP) / columns
    for first in range(0, len(view.sides), columns):
        drawn = [
            _lanes(view, first + i, i * (width + GAP), y, width, name)
            for i in range(len(view.sides[first : first + columns]))
        ]
        parts += [picture for picture, _ in drawn]
        y += max(height for _, height in drawn)
    parts.append(_legend(y + 16, name))
    height = y + 34
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="-24 -16 {WIDTH + 48} {height + 24:.0f}" font-size="14" '
        f'font-family="system-ui, sans-serif" role="img"><title>{escape(sentence[0])}</title><style>{_THEME}</style>{svg_patterns(name)}'
        f'<rect class="paper" x="-24" y="-16" width="{WIDTH + 48}" height="{height + 24:.0f}"/>{"".join(parts)}</svg>\n'
    )


def _once(notes: list[str]) -> list[str]:
    """What is said of all alike is said once, without a name."""
    bare = {re.sub(r"^\S+ ", "", note) for note in notes}
    return [one[0].upper() + one[1:] for one in bare] if len(bare) == 1 else notes


def _lanes(
    view: View, number: int, x: float, y: float, width: float, name: str
) -> tuple[str, float]:
    """The lanes of a run, and how high they are."""
    side = view.sides[number]
    window, lanes = view.lanes(side, COLUMNS)
    left, across = x + 112, width - 112 - 84
    parts = [
        f'<path d="M{x} {y + 12}h40" stroke="{entrant(number)[0]}" stroke-width="3" stroke-dasharray="{entrant(number)[2]}"/>',
        mark(number, x + 20, y + 12, 5),
        f'<text class="ink" x="{x + 50}" y="{y + 17}" font-size="15" font-weight="600">{escape(side.label)}</text>',
        f'<text class="muted" x="{x + width}" y="{y + 17}" text-anchor="end">{side.spec.framework} · {side.state}</text>',
        f'<text class="muted" x="{x}" y="{y + 38}">{escape(words.summary(side))}</text>',
    ]
    top = y + 50
    for i, lane in enumerate(lanes):
        at = top + i * LANE
        parts += [
            f'<text class="ink" x="{left - 8:.0f}" y="{at + 16}" text-anchor="end">{lane.name}</text>',
            f'<rect class="lane" x="{left:.0f}" y="{at}" width="{across:.0f}" height="{LANE - 4}"/>',
            bars(lane.cells, (left, at, across, LANE - 4), name),
            f'<text class="muted" x="{left + across + 8:.0f}" y="{at + 16}">{lane.note}</text>',
        ]
    bottom = top + len(lanes) * LANE
    zero = side.digest.zero if side.digest.zero < window.end else 0.0
    for tick in ticks(window.begin - zero, window.end - zero, 4):
        place = left + (tick - window.begin + zero) / window.span * across
        parts.append(
            f'<text class="muted" x="{place:.0f}" y="{bottom + 14}" text-anchor="middle" font-size="13">{tick:.4g} s</text>'
        )
    return "".join(parts), bottom + 34 - y


def _legend(y: float, name: str) -> str:
    """The phases, a mark and a word each."""
    parts = []
    for i, what in enumerate((*measures.SHOWN, *FATE)):
        x = 112 + 120 * i
        parts.append(
            f'<rect x="{x}" y="{y - 12}" width="22" height="14" fill="url(#{name}{what})"/>'
        )
        parts.append(
            f'<text class="muted" x="{x + 30}" y="{y}">{({**PHASE, **FATE}[what][2]).partition(":")[0]}</text>'
        )
    return "".join(parts)
