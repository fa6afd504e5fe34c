"""Make the parts of SVG pictures: shapes, patterns, legends, marks and axes, and their colours.
These are Okabe and Ito's, which colour-blind people can tell apart; each comes with a pattern, dash
or mark that says the same without colour.

Source: M. Okabe and K. Ito, "Color Universal Design" (2008).
"""

import itertools
import math
import secrets
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from course_lib.record.events import OWN
from course_lib.text import round_up
from course_lib.widgets.kit import Inside, Markup, attribute, element, join

WORKER = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#F0E442", "#000000")
INK = "#7A7A7A"  # readable on white and on dark pages


class Shade(NamedTuple):
    """The look of a phase or a fate: a key of `TILES` as pattern, a `mark` on a terminal."""

    color: str
    pattern: str
    mark: str
    meaning: str


PHASE = {
    "read": Shade("#56B4E9", "", "r", "fetch examples, or parameters from a ps"),
    "compute": Shade("#0072B2", "", "█", "forward and backward pass"),
    "wait": Shade("#BBBBBB", ".", "·", "for workers that are not there yet"),
    "reduce": Shade("#E69F00", "/", "▒", "exchange gradients"),
    "apply": Shade("#009E73", "x", "▌", "update the parameters"),
    "hidden": Shade("#E69F00", "/", "▓", "exchange beside computing"),
    "checkpoint": Shade("#CC79A7", "|", "c", "save the parameters"),
    OWN: Shade("#F0E442", ".", "o", "what the program itself calls by another name"),
}
# What can happen to a task; drawn over its lane.
FATE = {
    "paused": Shade("#F0E442", "-", "=", "frozen, like a machine that hangs"),
    "killed": Shade("#D55E00", "x", "x", "its process is gone"),
    "cut": Shade("#000000", "/", "/", "its host is cut off from all others"),
}
SHADE = PHASE | FATE
THIN = 0.35  # of a lane's height: the bar of what is hidden, at the bottom of the lane
ALARM = FATE["killed"].color
TILES = {  # the patterns named above, as SVG on a tile of 8 x 8
    "": "",
    ".": '<circle cx="2" cy="2" r="1" fill="white"/><circle cx="6" cy="6" r="1" fill="white"/>',
    "/": '<path d="M-2 2L2 -2M0 8L8 0M6 10L10 6" stroke="white" stroke-width="1.5"/>',
    "x": '<path d="M0 0L8 8M0 8L8 0" stroke="white" stroke-width="1.2"/>',
    "|": '<path d="M4 0V8" stroke="white" stroke-width="1.5"/>',
    "-": '<path d="M0 4H8" stroke="#555" stroke-width="1.5"/>',
}
# Entrants of a race -> colour, dash in SVG, marker as an SVG path around 0, 0 (circle, diamond,
# square, triangle).
ENTRANT = (
    ("#0072B2", None, "M-1 0a1 1 0 1 1 2 0a1 1 0 1 1 -2 0z"),
    ("#D55E00", "9 4", "M0 -1.3l1.3 1.3-1.3 1.3-1.3-1.3z"),
    ("#009E73", "2 3", "M-1 -1h2v2h-2z"),
    ("#CC79A7", "9 3 2 3", "M0 -1.1l1.3 2.2h-2.6z"),
)
NOTHING = -1  # a column in which nothing is drawn


def text(x: float, y: float, *words: Inside, **style: Any) -> Markup:
    return element("text", *words, x=x, y=y, **style)


def lines(x: float, y: float, pitch: float, rows: Iterable[str], **style: Any) -> list[Markup]:
    """Rows of words, `pitch` apart."""
    return [text(x, y + pitch * i, row, **style) for i, row in enumerate(rows)]


def title(words: str) -> Markup:
    """Make the tooltip of the element around it."""
    return element("title", words)


def rect(x: float, y: float, width: float, height: float, *inside: Inside, **style: Any) -> Markup:
    return element("rect", *inside, x=x, y=y, width=width, height=height, **style)


def path(*steps: str | float, inside: Inside = None, **style: Any) -> Markup:
    """`path("M", 0, 0, "h", 40)`: a path of commands and coordinates."""
    return element("path", inside, d=" ".join(map(attribute, steps)), **style)


def stem(x: float, y: float, height: float) -> Markup:
    """The vertical line of what was done at a moment."""
    style: dict[str, Any] = {"stroke": ALARM, "stroke_width": 2, "stroke_dasharray": "3 2"}
    return path("M", x, y, "v", height, **style)


def drawing(width: float, height: float, /, *inside: Inside, **style: Any) -> Markup:
    """An SVG picture on a page."""
    box = f"0 0 {width:.0f} {height:.0f}"
    return element("svg", *inside, viewBox=box, font_size=14, role="img", **style)


def picture(width: float, height: float, words: str, /, *inside: Inside, **style: Any) -> str:
    """An SVG file, whose title is `words`."""
    name, font = "http://www.w3.org/2000/svg", "system-ui, sans-serif"
    parts = (title(words), *inside)
    return drawing(width, height, *parts, xmlns=name, font_family=font, fill=INK, **style) + "\n"


def arrow_head(name: str, color: str) -> Markup:
    """The head of an arrow, for `marker_end`; the line ends in it, a little before its tip."""
    tip = path("M", 0, 0, "L", 8, 4, "L", 0, 8, "z", fill=color)
    size = {"viewBox": "0 0 8 8", "refX": 7, "refY": 4, "markerWidth": 7, "markerHeight": 7}
    return element("defs", element("marker", tip, id=name, orient="auto", **size))


def entrant(number: int) -> tuple[str, str | None, str]:
    """Colour, SVG dash and marker of an entrant; after the last, the first again."""
    return ENTRANT[number % len(ENTRANT)]


def unique_prefix() -> str:
    """A prefix for names of patterns that no other picture on the same page has, also none of the
    other notebooks that are open on it.
    """
    return f"lk{secrets.token_hex(4)}-"


def patterns(prefix: str) -> Markup:
    """SVG patterns, called `prefix` + name, that fill a shape with the `Shade` of that name."""
    tile = {"width": 8, "height": 8, "patternUnits": "userSpaceOnUse"}
    tiles = []
    for name, shade in SHADE.items():
        inside = rect(0, 0, 8, 8, fill=shade.color), Markup(TILES[shade.pattern])
        tiles.append(element("pattern", *inside, id=prefix + name, **tile))
    return element("defs", tiles)


def swatch(x: float, y: float, name: str, prefix: str) -> Markup:
    """A small box filled as phase or fate `name` is."""
    tall = 14 * THIN if name == "hidden" else 14  # a thin bar in its lane, too
    return rect(x, y + 14 - tall, 22, tall, fill=f"url(#{prefix}{name})")


def legend(names: Sequence[str], x: float, y: float, prefix: str, columns: int) -> list[Markup]:
    """Swatches of phases and fates with their names, `columns` of them in a row, as SVG; with their
    meanings, where two share a row.
    """
    full = columns == 2
    pitch = 400 if full else 120
    parts = []
    for i, name in enumerate(names):
        left, top = x + pitch * (i % columns), y + 22 * (i // columns)
        words = f"{name}: {SHADE[name].meaning}" if full else name
        parts += [swatch(left, top - 12, name, prefix), text(left + 30, top, words, class_="muted")]
    return parts


def entrant_mark(number: int, x: float, y: float, size: float = 6.0) -> Markup:
    """The mark of a race's entrant, in its colour and shape, around a point."""
    color, _, shape = entrant(number)
    place = f"translate({x:.5g} {y:.5g}) scale({size:g})"
    edge = {"stroke": "white", "stroke_width": "1.5", "vector_effect": "non-scaling-stroke"}
    return element("path", d=shape, fill=color, transform=place, **edge)


def entrant_line(number: int, x: float, y: float) -> Markup:
    """A short piece of an entrant's line with its mark, as in the legend of a chart."""
    color, dash, _ = entrant(number)
    line = path("M", x, y, "h", 38, stroke=color, stroke_width=3, stroke_dasharray=dash)
    return join((line, entrant_mark(number, x + 19, y, 4.5)))


def ticks(low: float, high: float, most: int = 5) -> list[float]:
    """Round numbers from `low` to `high`, about `most` of them."""
    step = round_up(max((high - low) / most, 1e-9))
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [n * step for n in range(first, last + 1)]


def runs(cells: np.ndarray) -> list[tuple[int, int, int]]:
    """Stretches of equal columns, as (first, one past the last, what), without those that hold
    nothing.
    """
    edges = [0, *(np.flatnonzero(np.diff(cells)) + 1).tolist(), len(cells)]
    pairs = [(a, b) for a, b in itertools.pairwise(edges) if a < b]
    return [(a, b, int(cells[a])) for a, b in pairs if cells[a] != NOTHING]
