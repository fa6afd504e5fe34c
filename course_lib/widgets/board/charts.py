"""The charts of a board as one live plotly figure, a subplot for each panel.

A redraw costs the browser far more time than it costs us, and we cannot see how much. But the page
answers each redraw, so the next one is sent only when the page has kept up.
"""

import math
import time
from collections.abc import Sequence
from typing import Any

import anywidget
import ipywidgets as w
import numpy as np
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from course_lib.widgets.board.plots import AT_THE_END, ROWS, Panel
from course_lib.widgets.kit import page
from course_lib.widgets.kit.palette import ALARM, INK, entrant

HEIGHT, LEFT = 194, 44
# seconds after which a page that does not answer is drawn on again: its answer waits for a cell
SILENT = 1.0
# a page gets the next redraw after so many times as long as it took to answer the last: it is busy
# with them for a quarter of its time at most
REST_PER_ANSWER = 4.0
# Of axes: plotly measures labels to move, turn or hide them, which is half of what a redraw costs a
# page. Ours fit as they are.
PLAIN = {
    "automargin": False,
    "ticklabeloverflow": "allow",
    "tickangle": 0,
    "ticklabelstandoff": 4,
    "rangemode": "tozero",
    "zeroline": False,
}
LAYOUT = {
    "template": "none",
    "paper_bgcolor": "rgba(0,0,0,0)",
    "plot_bgcolor": "rgba(128,128,128,0.06)",
    "font": {"color": INK, "size": 14},
    "hoverlabel": {"namelength": -1},
    "height": HEIGHT,
    "margin": {"l": LEFT, "r": 12, "t": 34, "b": 26},
    "showlegend": False,
    "uirevision": "board",
    "autosize": True,
    "modebar": {"bgcolor": "rgba(0,0,0,0)", "color": INK, "activecolor": INK},
}
NO_BUTTONS = ["select2d", "lasso2d", "autoScale2d", "zoomIn2d", "zoomOut2d", "pan2d"]
CONFIG = {
    "displaylogo": False,
    "modeBarButtonsToRemove": NO_BUTTONS,
    "plotlyServerURL": "",
    "responsive": True,
}


class Resizer(anywidget.AnyWidget):
    """An invisible widget that keeps the figure beside it as wide as the space for it."""

    _esm = page.asset("board/resizer.js")


class Charts:
    """The figure and its pace. `box` shows it; `due` says whether the page keeps up with another
    `update`.
    """

    def __init__(self, labels: Sequence[str], first: Sequence[Panel]) -> None:
        self.figure = figure(labels, first)
        self.box = w.VBox([self.figure, Resizer()])
        self._sent = self._next = 0.0
        self.figure.observe(self._answered, "_js2py_traceDeltas")

    @property
    def due(self) -> bool:
        return time.monotonic() >= self._next

    def update(self, shown: Sequence[Panel]) -> None:
        """Put panels into the figure, in one message."""
        self._sent = time.monotonic()
        self._next = self._sent + SILENT
        traces = iter(self.figure.data)
        with self.figure.batch_update():
            for panel in shown:
                for x, y in panel.lines:
                    _set(next(traces), x, y)
                longest = max((float(x[-1]) for x, _ in panel.lines if len(x)), default=0.0)
                across = [] if panel.target is None or not longest else [0.0, longest]
                _set(next(traces), across, [panel.target] * len(across))
                for mark in panel.marks or [None] * len(panel.lines):
                    _set(next(traces), *(([mark[0]], [mark[1]]) if mark else ([], [])))
                stems = next(traces)
                if panel.events:
                    _mark(stems, panel, longest)

    def _answered(self, change: dict[str, Any]) -> None:
        """The page has drawn, and an answer to the newest redraw lets the next one come.

        The figure then empties this trait itself; that is not an answer. Nor is what the page says
        of the empty figure, before anything was sent.
        """
        newest = self.figure._last_trace_edit_id
        if self._sent and (change["new"] or {}).get("trace_edit_id") == newest:
            self._next = self._sent + REST_PER_ANSWER * (time.monotonic() - self._sent)


def figure(labels: Sequence[str], first: Sequence[Panel]) -> go.FigureWidget:
    """An empty figure for such panels: a subplot for each, in it a line for each entrant, then the
    target, then a mark for each entrant, then the events.
    """
    titles = [panel.title for panel in first]
    empty = make_subplots(cols=len(first), subplot_titles=titles, horizontal_spacing=0.075)
    for column, panel in enumerate(first, start=1):
        _add_traces(empty, column, panel, labels)
        place = {"row": 1, "col": column}
        empty.update_xaxes(**place, nticks=6, showgrid=False, **PLAIN)
        empty.update_yaxes(**place, nticks=5, **PLAIN)
        begin = empty.get_subplot(1, column).xaxis.domain[0]
        title = empty.layout.annotations[column - 1]
        title.update(x=begin, xanchor="left", xshift=-LEFT, yshift=8)
    empty.update_annotations(font_size=15, font_color=INK)
    empty.update_layout(**LAYOUT)
    live = go.FigureWidget(empty)
    live._config = live._config | CONFIG  # the only way in: a FigureWidget has no argument for it
    return live


def _add_traces(empty: go.Figure, column: int, panel: Panel, labels: Sequence[str]) -> None:
    blank: dict[str, Any] = {"row": 1, "col": column, "x": [], "y": []}
    at = f"<br>%{{x:,.4~g}} {panel.x}"
    for i, label in enumerate(labels):
        color, dash, _, _ = entrant(i)
        line = {"color": color, "dash": dash, "width": 2.5}
        hover = f"{label}{at}<br>%{{y:,.4~g}} {panel.y}<extra></extra>"
        empty.add_scatter(**blank, mode="lines", line=line, hovertemplate=hover)
    empty.add_scatter(**blank, mode="lines", line={"color": INK, "width": 1}, hoverinfo="skip")
    for i, label in enumerate(labels):
        color, _, _, symbol = entrant(i)
        edge = {"color": "white", "width": 1.5}
        marker = {"color": color, "symbol": symbol, "size": 11, "line": edge}
        hover = f"{label} reached the target{at}<extra></extra>"
        empty.add_scatter(**blank, mode="markers", marker=marker, hovertemplate=hover)
    stem = {"color": ALARM, "dash": "dot", "width": 1.5}
    words = {"size": 12, "color": INK}
    empty.add_scatter(**blank, mode="lines+text", line=stem, hoverinfo="skip", textfont=words)


def _mark(stems: go.Scatter, panel: Panel, longest: float) -> None:
    """A line for each event, from the bottom to the top, with its word near the top."""
    top, count = panel.highest, len(panel.events)
    heights = [top * (1 - 0.12 * (n % ROWS)) for n in range(count)]
    across = [each for x, _ in panel.events for each in (x, x, x, math.nan)]
    _set(stems, across, [each for height in heights for each in (0.0, height, top, math.nan)])
    stems.text = [part for _, word in panel.events for part in ("", word, "", "")]
    sides = ("left" if x > AT_THE_END * longest else "right" for x, _ in panel.events)
    stems.textposition = [f"middle {side}" for side in sides for _ in range(4)]


def _set(line: go.Scatter, x: Any, y: Any) -> None:
    if len(x) or len(line.x):
        line.update(x=np.array(x, np.float32), y=np.array(y, np.float32))
