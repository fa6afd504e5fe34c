"""The colours of all pictures. They are Okabe and Ito's, which colour-blind people can tell apart;
each comes with a pattern, dash or mark that says the same without colour.

Source: M. Okabe and K. Ito, "Color Universal Design" (2008).
"""

from typing import NamedTuple

from course_lib.record.events import OWN

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
UNKNOWN = ("?", INK, "this trace does not say how it came about")

# Entrants of a race -> colour, dash in SVG, marker as an SVG path around 0, 0 (circle, diamond,
# square, triangle).
ENTRANT = (
    ("#0072B2", None, "M-1 0a1 1 0 1 1 2 0a1 1 0 1 1 -2 0z"),
    ("#D55E00", "9 4", "M0 -1.3l1.3 1.3-1.3 1.3-1.3-1.3z"),
    ("#009E73", "2 3", "M-1 -1h2v2h-2z"),
    ("#CC79A7", "9 3 2 3", "M0 -1.1l1.3 2.2h-2.6z"),
)


def entrant(number: int) -> tuple[str, str | None, str]:
    """Colour, SVG dash and marker of an entrant; after the last, the first again."""
    return ENTRANT[number % len(ENTRANT)]
