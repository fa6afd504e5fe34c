"""Make elements of HTML and SVG, with their text and attributes escaped. All widgets are made of
them.

`element("text", "a < b", x=1, text_anchor="end")` is
`<text x="1" text-anchor="end">a &lt; b</text>`.
"""

from collections.abc import Iterable
from html import escape
from typing import Any

# How real a thing is -> mark, colour, meaning.
REALITY = {
    "measured": ("●", "#009E73", "real processes, real bytes, nothing imposed"),
    "emulated": (
        "◐",
        "#E69F00",
        "real processes and bytes, but the speed of a device, a task or a link is imposed, "
        "or a device stands for another",
    ),
    "simulated": ("◇", "#CC79A7", "the model ran, no process did"),
    "unavailable": ("✕", "#D55E00", "this machine cannot do it; reason and cure stand beside it"),
}
UNKNOWN = ("?", "#7A7A7A", "this trace does not say how it came about")


class Markup(str):
    """Text that is already markup, so it is not escaped again."""


Inside = str | Iterable["Inside"] | None
"""The content of an element: text, which is escaped; `Markup`; None; or a sequence of these."""


def element(tag: str, *inside: Inside, **attributes: Any) -> Markup:
    """An element. An attribute that is None is left out; `class_` is `class`, `a_b` is `a-b`."""
    named = "".join(
        f' {name.rstrip("_").replace("_", "-")}="{escape(attribute(value))}"'
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


def table(head: Inside, rows: Inside, **attributes: Any) -> Markup:
    """A table of rows, below the row `head`, if there is one."""
    return element("table", head and element("thead", head), element("tbody", rows), **attributes)


def attribute(value: Any) -> str:
    """A value as the text of an attribute. Floats get five digits: a picture shows fewer."""
    return f"{value:.5g}" if isinstance(value, float) else str(value)


def badge(reality: str, why: str = "") -> Markup:
    """Show a reality as a mark and a word in HTML. The tooltip is `why`, or else the meaning of the
    word.
    """
    mark, color, meaning = REALITY.get(reality, UNKNOWN)
    sign = element("b", mark, aria_hidden="true", style=f"color:{color}")
    word = reality or "not stated"
    return element("span", sign, " ", word, class_="ls-badge", title=why or meaning)


def term(word: str, meaning: str) -> Markup:
    """A word with its meaning as tooltip, which the keyboard can reach as well."""
    return element("abbr", word, tabindex=0, title=meaning)


def unfold(summary: str, *inside: Inside, **attributes: Any) -> Markup:
    """An element that is shown once its summary is pressed."""
    # keep its keys: in JupyterLab, "b" would add a cell
    head = element("summary", summary, data_lm_suppress_shortcuts="true")
    return element("details", head, *inside, **attributes)
