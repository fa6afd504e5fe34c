"""Guess and result of a `Predict` card as pictures: bars, and all of the card as SVG."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from course_lib.widgets.kit import Markup, element, page, svg

if TYPE_CHECKING:
    from course_lib.widgets.cards.predict import Predict

GUESS, RESULT = "#CC79A7", "#0072B2"
RIGHT, WRONG = ("✓", "#009E73"), ("✗", "#D55E00")


def named(value: Any) -> Mapping[str, Any]:
    """A value for each name; that of a card with one slider has no name."""
    return value if isinstance(value, Mapping) else {"": value}


def bars(card: Predict) -> list[Markup]:
    """Guess and result as bars in HTML, one pair for each number."""
    look = {"fill": "currentColor", "style": "width:640px;max-width:100%;display:block"}
    parts = []
    for name, pair, height in _scales(card):
        drawn = svg.drawing(640, height, pair, aria_label="guess and result", **look)
        parts.append(element("div", element("b", name), drawn, style="margin-top:8px"))
    return parts


def picture(card: Predict) -> str:
    """The whole card as SVG, 800 wide."""
    asked, bold = textwrap.wrap(f"Predict. {card.question}", 88), {"font_weight": 600}
    parts: list[Markup] = []
    y = 10.0
    for line in asked:
        parts.append(svg.text(20, y := y + 22, line, font_size=17, **bold))
    for choice in card.choices:
        mine = choice == card.guess
        mark = RIGHT if choice == card.result else WRONG if mine and card.result else None
        sign, color = mark or ("●" if mine else "○", None)
        parts.append(svg.text(24, y := y + 26, sign, fill=color, **bold))
        parts.append(svg.text(46, y, f"{choice}   (your guess)" if mine else choice))
    for name, pair, height in _scales(card):
        if name:
            parts.append(svg.text(20, y := y + 24, name, **bold))
        parts.append(element("g", pair, transform=f"translate(20 {y + 10:g})"))
        y += 10 + height
    said = f"{card.compare(card.result)} {card.note}" if card.result is not None else ""
    for line in textwrap.wrap(said or card.table().splitlines()[1].capitalize(), 104):
        parts.append(svg.text(20, y := y + 24, line, class_="muted"))
    size = 800, y + 18
    edge, body = svg.rect(0, 0, 4, size[1], fill=RESULT), element("g", parts, class_="ink")
    return svg.picture(*size, asked[0], page.paper(*size), edge, body)


def _scales(card: Predict) -> Iterator[tuple[str, list[Markup], float]]:
    """For each number its name, the bars of guess and result, and how high they are."""
    guesses, found = named(card.guess), named(card.result)
    for name in card.ranges:
        values = {"guess": guesses.get(name), "result": found.get(name)}
        known = {label: float(value) for label, value in values.items() if value is not None}
        if known:
            yield name, _bars(card, name, known), 8 + 26 * len(known)


def _bars(card: Predict, name: str, values: Mapping[str, float]) -> list[Markup]:
    low, high, _ = card.ranges[name]
    finite = list(filter(math.isfinite, values.values()))
    # bars that begin at zero can be compared by their length
    low, high = min(0.0, low, *finite), max(high, *finite)
    stripes = f"{svg.unique_prefix()}guess"
    line = svg.path("M", 0, 8, "L", 8, 0, stroke="white", stroke_width=2)
    drawn = [svg.pattern(stripes, GUESS, line)]
    for row, (label, value) in enumerate(values.items()):
        y, edge = 4 + 26 * row, GUESS if label == "guess" else RESULT
        width = 1 + 300 * (value - low) / ((high - low) or 1)
        fill = f"url(#{stripes})" if label == "guess" else RESULT
        drawn += [
            svg.text(72, y + 15, label, text_anchor="end"),
            svg.rect(80, y, 300, 20, opacity=0.12),
            svg.rect(80, y, width, 20, fill=fill, stroke=edge),
            svg.text(388, y + 15, card.number(value, name)),
        ]
    return drawn
