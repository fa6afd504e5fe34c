"""The charts of a board as one live plotly figure, a subplot for each panel.

A redraw costs the page far more than it costs us, and we cannot see how much. But a page answers
each one, so it is asked as often as it keeps up.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import anywidget
import ipywidgets as w
import numpy as np
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from course_lib.widgets import page
from course_lib.widgets.board.panels import Panel
from course_lib.widgets.palette import INK, entrant, layout

HEIGHT, LEFT = 194, 44
# after so many a page that does not answer is drawn on again: a cell runs, and its answer waits for
# that
SILENT = 1.0
# times as long as a page takes to answer, from one redraw to the next: it is busy with them for a
# quarter of its time at most
REST = 4.0
# Of axes: plotly measures labels to move, turn or hide them, which is half of what a redraw costs a
# page. Ours fit as they are.
PLAIN = {"automargin": False, "ticklabeloverflow": "allow", "tickangle": 0, "ticklabelstandoff": 4}


class Fit(anywidget.AnyWidget):
    """Nothing to see: beside a figure it lets that keep to the width of the room."""

    _esm = page.asset("board/fit.js")


class Charts:
    """The figure and its pace. `due` says whether it is time to `update` it.

    `box` is what to show.
    """

    def __init__(self, labels: Sequence[str], first: Sequence[Panel]) -> None:
        self.figure = figure(labels, first)
        self.box = w.VBox([self.figure, Fit()])
        self._sent = self._next = 0.0
        self.figure.observe(self._answered, "_js2py_traceDeltas")

    @property
    def due(self) -> bool:
        return time.monotonic() >= self._next

    def update(self, shown: Sequence[Panel]) -> None:
        """Put panels into the figure, in one message."""
        self._sent = time.monotonic()
        self._next = self._sent + SILENT
        update(self.figure, shown)

    def _answered(self, change: dict[str, Any]) -> None:
        """The page has drawn it, if that is about the newest redraw.

        The figure itself takes the answer away again, which is none.
        """
        if (change["new"] or {}).get("trace_edit_id") == self.figure._last_trace_edit_id:
            self._next = self._sent + REST * (time.monotonic() - self._sent)


def figure(labels: Sequence[str], first: Sequence[Panel]) -> go.FigureWidget:
    """An empty figure for such panels: a subplot for each, in it a line for each entrant, then the
    target, then a mark for each entrant.
    """
    empty = make_subplots(
        rows=1, cols=len(first), subplot_titles=[p.title for p in first], horizontal_spacing=0.075
    )
    for column, panel in enumerate(first, start=1):
        place = {"row": 1, "col": column}
        for i, label in enumerate(labels):
            color, dash, _, _ = entrant(i)
            hover = f"{label}<br>%{{x:,.4~g}} {panel.x}<br>%{{y:,.4~g}} {panel.y}<extra></extra>"
            empty.add_scatter(
                **place,
                x=[],
                y=[],
                mode="lines",
                line={"color": color, "dash": dash, "width": 2.5},
                hovertemplate=hover,
            )
        empty.add_scatter(
            **place, x=[], y=[], mode="lines", line={"color": INK, "width": 1}, hoverinfo="skip"
        )
        for i, label in enumerate(labels):
            color, _, _, symbol = entrant(i)
            hover = f"{label} reached the target<br>%{{x:,.4~g}} {panel.x}<extra></extra>"
            marker = {
                "color": color,
                "symbol": symbol,
                "size": 11,
                "line": {"color": "white", "width": 1.5},
            }
            empty.add_scatter(
                **place, x=[], y=[], mode="markers", marker=marker, hovertemplate=hover
            )
        empty.update_xaxes(
            **place, rangemode="tozero", zeroline=False, nticks=6, showgrid=False, **PLAIN
        )
        empty.update_yaxes(**place, rangemode="tozero", zeroline=False, nticks=5, **PLAIN)
        empty.layout.annotations[column - 1].update(
            x=empty.get_subplot(1, column).xaxis.domain[0], xanchor="left", xshift=-LEFT, yshift=8
        )
    empty.update_annotations(font_size=15, font_color=INK)
    margin = {"l": LEFT, "r": 12, "t": 34, "b": 26}
    bar = {"bgcolor": "rgba(0,0,0,0)", "color": INK, "activecolor": INK}
    empty.update_layout(
        template="none",
        **layout(
            height=HEIGHT,
            margin=margin,
            showlegend=False,
            uirevision="board",
            hovermode="closest",
            autosize=True,
            modebar=bar,
        ),
    )
    live = go.FigureWidget(empty)
    live._config = live._config | {  # the only way in: a FigureWidget has no argument for it
        "displaylogo": False,
        "displayModeBar": "hover",
        "modeBarButtonsToRemove": [
            "select2d",
            "lasso2d",
            "autoScale2d",
            "zoomIn2d",
            "zoomOut2d",
            "pan2d",
        ],
        "showSendToCloud": False,
        "showEditInChartStudio": False,
        "plotlyServerURL": "",
        "responsive": True,
    }
    return live


def update(live: go.FigureWidget, shown: Sequence[Panel]) -> None:
    """Put panels into their figure."""
    data = iter(live.data)
    with live.batch_update():
        for panel in shown:
            for x, y in panel.lines:
                _set(next(data), x, y)
            longest = max((float(x[-1]) for x, _ in panel.lines if len(x)), default=0.0)
            across = np.array([] if panel.target is None or not longest else [0.0, longest])
            _set(next(data), across, np.full(len(across), panel.target or 0.0))
            marks = panel.marks or [None] * len(panel.lines)
            for mark in marks:
                _set(
                    next(data),
                    np.array([mark[0]] if mark else []),
                    np.array([mark[1]] if mark else []),
                )


def _set(line: go.Scatter, x: np.ndarray, y: np.ndarray) -> None:
    if len(x) or len(line.x):
        line.update(x=x.astype(np.float32), y=y.astype(np.float32))
