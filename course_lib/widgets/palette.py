"""One look for all pictures: the Okabe-Ito colours, which colour-blind people can tell apart, and a pattern beside each colour.

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
