"""One look for all pictures: the Okabe-Ito colours, which colour-blind people can tell apart, and a
pattern beside each colour.

Source: M. Okabe and K. Ito, "Color Universal Design" (2008).
"""

from __future__ import annotations

from typing import Any

# Phase -> colour, bar pattern, and what it is, in words.
PHASE = {
    "read": ("#56B4E9", "", "read: fetch the next batch"),
    "compute": ("#0072B2", "", "compute: forward and backward pass"),
    "wait": ("#BBBBBB", ".", "wait: for workers that are not there yet"),
    "reduce": ("#E69F00", "/", "reduce: sum the gradients of all workers"),
    "apply": ("#009E73", "x", "apply: update the parameters"),
    "checkpoint": ("#CC79A7", "|", "checkpoint: save the parameters"),
}
WORKER = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#F0E442", "#000000")
INK = "#7A7A7A"  # readable on white and on dark pages


def layout(**more: Any) -> dict[str, Any]:
    """Settings for a figure in the common look; `more` adds to them."""
    base: dict[str, Any] = {
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(128,128,128,0.06)",
        "font": {"color": INK, "size": 14},
        "margin": {"l": 84, "r": 16, "t": 44, "b": 48},
        "legend": {"orientation": "h", "y": -0.16, "x": 0, "traceorder": "normal"},
        "hoverlabel": {"namelength": -1},
    }
    return base | more


# What became of a task, over its lane -> colour, bar pattern, and what it is, in words.
FATE = {
    "paused": ("#F0E442", "-", "paused: frozen, as a machine that hangs"),
    "killed": ("#D55E00", "x", "killed: its process is gone"),
    "cut": ("#000000", "/", "cut: its host is cut off from all others"),
}
# Entrants of a race -> colour, dash in plotly, the same dash in SVG, marker in plotly.
ENTRANT = (
    ("#0072B2", "solid", "", "circle"),
    ("#D55E00", "dash", "9 4", "diamond"),
    ("#009E73", "dot", "2 3", "square"),
    ("#CC79A7", "dashdot", "9 3 2 3", "triangle-up"),
)
_TILES = {  # the patterns named above, as SVG on a tile of 8 x 8
    "": "",
    ".": '<circle cx="2" cy="2" r="1" fill="white"/><circle cx="6" cy="6" r="1" fill="white"/>',
    "/": '<path d="M-2 2L2 -2M0 8L8 0M6 10L10 6" stroke="white" stroke-width="1.5"/>',
    "x": '<path d="M0 0L8 8M0 8L8 0" stroke="white" stroke-width="1.2"/>',
    "|": '<path d="M4 0V8" stroke="white" stroke-width="1.5"/>',
    "-": '<path d="M0 4H8" stroke="#555" stroke-width="1.5"/>',
}


def entrant(number: int) -> tuple[str, str, str, str]:
    """Colour, plotly dash, SVG dash and marker of an entrant; they come round again after the last."""
    return ENTRANT[number % len(ENTRANT)]


def svg_patterns(prefix: str) -> str:
    """SVG patterns, called `prefix` + name, that fill a shape as `PHASE` and `FATE` say."""
    tiles = [
        f'<pattern id="{prefix}{name}" width="8" height="8" patternUnits="userSpaceOnUse">'
        f'<rect width="8" height="8" fill="{color}"/>{_TILES[pattern]}</pattern>'
        for name, (color, pattern, _) in {**PHASE, **FATE}.items()
    ]
    return f"<defs>{''.join(tiles)}</defs>"
