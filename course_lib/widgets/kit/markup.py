"""The one writer of SVG and HTML: elements with escaped text and attributes, and the marks that all
pictures share.

`element("text", "a < b", x=1, text_anchor="end")` is
`<text x="1" text-anchor="end">a &lt; b</text>`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

from course_lib.widgets.kit.palette import INK, REALITY, SHADE, TILES, UNKNOWN, entrant

_number = itertools.count()


class Markup(str):
    """Text that is markup already, so that nothing in it is escaped again."""


Inside = str | Iterable["Inside"] | None
"""What an element holds: text, which is escaped; `Markup`; nothing; or any of these in a row."""


def element(tag: str, *inside: Inside, **attributes: Any) -> Markup:
    """An element. An attribute that is None is left out; `class_` is `class`, `a_b` is `a-b`."""
    named = "".join(
        f' {name.rstrip("_").replace("_", "-")}="{escape(_value(value))}"'
        for name, value in attributes.items()
        if value is not None
    )
    return Markup(f"<{tag}{named}>{join(inside)}</{tag}>")


def join(inside: Inside) -> Markup:
    """Markup and escaped text, one after the other."""
    if inside is None or isinstance(inside, Markup):
        return inside or Markup()
    if isinstance(inside, str):
        return Markup(escape(inside))
    return Markup("".join(map(join, inside)))


def _value(value: Any) -> str:
    return f"{value:.5g}" if isinstance(value, float) else str(value)


# --- SVG ---


def text(x: float, y: float, *words: Inside, **look: Any) -> Markup:
    return element("text", *words, x=x, y=y, **look)


def title(words: str) -> Markup:
    """What a browser shows while the pointer rests on the element around it."""
    return element("title", words)


def rect(x: float, y: float, width: float, height: float, *inside: Inside, **look: Any) -> Markup:
    return element("rect", *inside, x=x, y=y, width=width, height=height, **look)


def path(*steps: str | float, inside: Inside = None, **look: Any) -> Markup:
    """`path("M", 0, 0, "h", 40)`: a path of commands and coordinates."""
    return element("path", inside, d=" ".join(map(_value, steps)), **look)


def picture(width: float, height: float, words: str, *inside: Inside) -> str:
    """An SVG file of its own, whose title is `words`."""
    drawn = element(
        "svg",
        title(words),
        inside,
        xmlns="http://www.w3.org/2000/svg",
        viewBox=f"0 0 {width:.0f} {height:.0f}",
        font_family="system-ui, sans-serif",
        font_size=14,
        fill=INK,
        role="img",
    )
    return drawn + "\n"


# --- marks that all pictures share ---


def unique_prefix() -> str:
    """A prefix for names of patterns that no other picture on the same page has."""
    return f"lk{next(_number)}-"


def patterns(prefix: str) -> Markup:
    """SVG patterns, called `prefix` + name, that fill a shape with the `Shade` of that name."""
    tiles = [
        element(
            "pattern",
            rect(0, 0, 8, 8, fill=shade.color),
            Markup(TILES[shade.pattern]),
            id=prefix + name,
            width=8,
            height=8,
            patternUnits="userSpaceOnUse",
        )
        for name, shade in SHADE.items()
    ]
    return element("defs", tiles)


def swatch(x: float, y: float, name: str, prefix: str) -> Markup:
    """A small box filled as phase or fate `name` is."""
    return rect(x, y, 22, 14, fill=f"url(#{prefix}{name})")


def legend(
    names: Sequence[str], at: tuple[float, float], prefix: str, columns: int, full: bool = False
) -> list[Markup]:
    """Swatches of phases and fates with their names (`full`: and what they are), in SVG, so many
    `columns` in a row.
    """
    (x, y), pitch = at, 400 if full else 120
    places = [(x + pitch * (i % columns), y + 22 * (i // columns)) for i in range(len(names))]
    return [
        join(
            (
                swatch(left, top - 12, name, prefix),
                text(
                    left + 30,
                    top,
                    f"{name}: {SHADE[name].meaning}" if full else name,
                    class_="muted",
                ),
            )
        )
        for name, (left, top) in zip(names, places, strict=True)
    ]


def entrant_mark(number: int, x: float, y: float, size: float = 6.0) -> Markup:
    """The mark of a race's entrant, in its colour and shape, around a point."""
    color, _, _, symbol = entrant(number)
    look: dict[str, Any] = {"fill": color, "stroke": "white", "stroke_width": 1.5}
    wide, tall = 1.3 * size, 2.2 * size
    if symbol == "circle":
        return element("circle", cx=x, cy=y, r=size, **look)
    if symbol == "square":
        return rect(x - size, y - size, 2 * size, 2 * size, **look)
    if symbol == "diamond":
        return path("M", x, y - wide, "l", wide, wide, -wide, wide, -wide, -wide, "z", **look)
    return path("M", x, y - tall / 2, "l", wide, tall, "h", -2 * wide, "z", **look)


def entrant_line(number: int, x: float, y: float) -> Markup:
    """A short piece of an entrant's line with its mark, as in the legend of a chart."""
    color, _, dash, _ = entrant(number)
    line = path("M", x, y, "h", 38, stroke=color, stroke_width=3, stroke_dasharray=dash)
    return join((line, entrant_mark(number, x + 19, y, 4.5)))


def badge(reality: str, why: str = "") -> Markup:
    """How real a thing is, as a mark and a word in HTML; the tooltip is `why`, or else what the
    word means.
    """
    mark, color, meaning = REALITY.get(reality, UNKNOWN)
    sign = element("b", mark, aria_hidden="true", style=f"color:{color}")
    word = reality or "not stated"
    return element("span", sign, " ", word, class_="ls-badge", title=why or meaning)


def term(word: str, meaning: str) -> Markup:
    """A word whose meaning shows under the mouse and for the keyboard."""
    return element("abbr", word, tabindex=0, title=meaning)


# --- axes ---


def round_up(value: float) -> float:
    """The next of 1, 2, 5, 10 and so on."""
    power = 10.0 ** math.floor(math.log10(value))
    return next(step * power for step in (1, 2, 5, 10) if step * power >= value * (1 - 1e-9))


def ticks(low: float, high: float, most: int = 5) -> list[float]:
    """Round numbers from `low` to `high`, about `most` of them."""
    step = round_up(max((high - low) / most, 1e-9))
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [n * step for n in range(first, last + 1)]
