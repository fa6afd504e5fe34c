"""How real a thing is, as a mark, a colour and a word: the same in every widget."""

from __future__ import annotations

from html import escape

# Word -> mark, colour (Okabe and Ito's, as in `palette`), and what it means. The mark tells without
# colour.
REALITY = {
    "measured": ("●", "#009E73", "real processes, real bytes, nothing imposed"),
    "emulated": (
        "◐",
        "#E69F00",
        "real processes and bytes, but the speed of a device, a task or a link is imposed, or a device stands for another",
    ),
    "simulated": ("◇", "#CC79A7", "the model ran, no process did"),
    "unavailable": (
        "✕",
        "#D55E00",
        "this machine cannot do it; the reason and the cure stand beside it",
    ),
}
UNKNOWN = ("?", "#7A7A7A", "this trace does not say how it came about")


def badge(reality: str, why: str = "") -> str:
    """The mark and the word as HTML, with `why`, or else what the word means, as tooltip."""
    mark, color, meaning = REALITY.get(reality, UNKNOWN)
    tip = escape(why or meaning, quote=True)
    return f'<span class="ls-badge" title="{tip}"><b aria-hidden="true" style="color:{color}">{mark}</b> {escape(reality or "not stated")}</span>'
