"""The charts of a board as a widget that draws its panels in the page.

It holds all that it shows, at most 300 points a line, and sends that each time: so a page that is
opened later, or again, shows the same. A page that is slow leaves out what is old by then.
"""

from collections.abc import Sequence
from typing import Any

import anywidget
import numpy as np
import traitlets

from course_lib.widgets.board.plots import Panel
from course_lib.widgets.kit import page, svg
from course_lib.widgets.kit.palette import entrant


class Charts(anywidget.AnyWidget):
    """A chart for each panel, with a line for each entrant of `labels`. `show` brings it up to
    date. `logarithmic`: whether panels that can be are on a logarithmic axis; the page sets it,
    too.
    """

    _esm = page.asset("kit/make.js", "kit/projector.js", "board/charts.js", "board/chart.js")
    _css = page.asset("kit/theme.css", "board/charts.css")
    entrants = traitlets.List().tag(sync=True)
    panels = traitlets.List().tag(sync=True)
    logarithmic = traitlets.Bool(False).tag(sync=True)

    def __init__(self, labels: Sequence[str], panels: Sequence[Panel]) -> None:
        lines = [_line(number, label) for number, label in enumerate(labels)]
        first = list(map(_plain, panels))
        super().__init__(entrants=lines, panels=first, layout={"min_height": "206px"})

    def show(self, panels: Sequence[Panel]) -> None:
        """Show panels in place of those before."""
        self.panels = list(map(_plain, panels))


def _line(number: int, label: str) -> dict[str, Any]:
    color, dash, _ = entrant(number)
    return {"label": label, "color": color, "dash": dash, "mark": svg.entrant_mark(number, 0, 0)}


def _plain(panel: Panel) -> dict[str, Any]:
    """A panel as the page takes it: numbers of lines as bytes of float32."""
    lines = [[np.asarray(axis, np.float32).tobytes() for axis in line] for line in panel.lines]
    return {
        "title": panel.title,
        "x": panel.x,
        "y": panel.y,
        "empty": panel.empty,
        "lines": lines,
        "target": panel.target,
        "reached": [place and list(place) for place in panel.reached],
        "marks": [list(mark) for mark in panel.marks],
        "wide": panel.wide,
        "linear": panel.y_axis(False),
        "log": None if panel.log is None else panel.y_axis(True),
    }
