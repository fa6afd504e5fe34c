"""Make the parts of SVG pictures: shapes, patterns, legends, marks and axes."""

import math
import secrets
from collections.abc import Sequence
from typing import Any

from course_lib.text import round_up
from course_lib.widgets.kit import Inside, Markup, attribute, element, join
from course_lib.widgets.kit.palette import INK, SHADE, THIN, TILES, entrant


def text(x: float, y: float, *words: Inside, **style: Any) -> Markup:
    return element("text", *words, x=x, y=y, **style)


def title(words: str) -> Markup:
    """Make the tooltip of the element around it."""
    return element("title", words)


def rect(x: float, y: float, width: float, height: float, *inside: Inside, **style: Any) -> Markup:
    return element("rect", *inside, x=x, y=y, width=width, height=height, **style)


def path(*steps: str | float, inside: Inside = None, **style: Any) -> Markup:
    """`path("M", 0, 0, "h", 40)`: a path of commands and coordinates."""
    return element("path", inside, d=" ".join(map(attribute, steps)), **style)


def drawing(width: float, height: float, /, *inside: Inside, **style: Any) -> Markup:
    """An SVG picture on a page."""
    box = f"0 0 {width:.0f} {height:.0f}"
    return element("svg", *inside, viewBox=box, font_size=14, role="img", **style)


def picture(width: float, height: float, words: str, /, *inside: Inside, **style: Any) -> str:
    """An SVG file, whose title is `words`."""
    name, font = "http://www.w3.org/2000/svg", "system-ui, sans-serif"
    parts = (title(words), *inside)
    return drawing(width, height, *parts, xmlns=name, font_family=font, fill=INK, **style) + "\n"


def pattern(name: str, color: str, *lines: Inside) -> Markup:
    """A pattern of lines on a tile of 8 x 8, to fill shapes with."""
    tile = {"width": 8, "height": 8, "patternUnits": "userSpaceOnUse"}
    return element("pattern", rect(0, 0, 8, 8, fill=color), *lines, id=name, **tile)


def arrow_head(name: str, color: str, at: float) -> Markup:
    """The head of an arrow, for `marker_end`. `at`: the point of the head that lies on the end of
    the line, from 0 (its back) to 8 (its tip).
    """
    tip = path("M", 0, 0, "L", 8, 4, "L", 0, 8, "z", fill=color)
    size = {"viewBox": "0 0 8 8", "refX": at, "refY": 4, "markerWidth": 7, "markerHeight": 7}
    return element("defs", element("marker", tip, id=name, orient="auto", **size))


def unique_prefix() -> str:
    """A prefix for names of patterns that no other picture on the same page has, also none of the
    other notebooks that are open on it.
    """
    return f"lk{secrets.token_hex(4)}-"


def patterns(prefix: str) -> Markup:
    """SVG patterns, called `prefix` + name, that fill a shape with the `Shade` of that name."""
    tiles = [
        pattern(prefix + name, shade.color, Markup(TILES[shade.pattern]))
        for name, shade in SHADE.items()
    ]
    return element("defs", tiles)


def swatch(x: float, y: float, name: str, prefix: str) -> Markup:
    """A small box filled as phase or fate `name` is."""
    tall = 14 * THIN if name == "hidden" else 14  # a thin bar in its lane, too
    return rect(x, y + 14 - tall, 22, tall, fill=f"url(#{prefix}{name})")


def legend(
    names: Sequence[str], at: tuple[float, float], prefix: str, columns: int, full: bool = False
) -> list[Markup]:
    """Swatches of phases and fates with their names, `columns` of them in a row, as SVG. `full`:
    with their meanings.
    """
    (x, y), pitch = at, 400 if full else 120
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


def log_ticks(low: float, high: float) -> list[float]:
    """Round numbers for a logarithmic axis: powers of ten if there are enough of them."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    tens, finer = (
        [n * 10.0**k for k in powers for n in digits if low <= n * 10.0**k <= high]
        for digits in ((1,), (1, 2, 5))
    )
    return tens if len(tens) > 2 else finer
