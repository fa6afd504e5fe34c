"""The charts of a board as one live plotly figure, a subplot for each panel."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from course_lib.widgets.board.panels import Panel
from course_lib.widgets.palette import INK, entrant, layout

HEIGHT = 190


def figure(labels: Sequence[str], first: Sequence[Panel]) -> go.FigureWidget:
    """An empty figure for such panels: a subplot for each, in it a line for each entrant, then the target, then a mark for each entrant."""
    empty = make_subplots(rows=1, cols=len(first), subplot_titles=[p.title for p in first], horizontal_spacing=0.075)
    for column, panel in enumerate(first, start=1):
        place = {"row": 1, "col": column}
        for i, label in enumerate(labels):
            color, dash, _, _ = entrant(i)
            hover = f"{label}<br>%{{x:,.4~g}} {panel.x}<br>%{{y:,.4~g}} {panel.y}<extra></extra>"
            empty.add_scatter(**place, x=[], y=[], mode="lines", line={"color": color, "dash": dash, "width": 2.5}, hovertemplate=hover)
        empty.add_scatter(**place, x=[], y=[], mode="lines", line={"color": INK, "width": 1}, hoverinfo="skip")
        for i, label in enumerate(labels):
            color, _, _, symbol = entrant(i)
            hover = f"{label} reached the target<br>%{{x:,.4~g}} {panel.x}<extra></extra>"
            marker = {"color": color, "symbol": symbol, "size": 11, "line": {"color": "white", "width": 1.5}}
            empty.add_scatter(**place, x=[], y=[], mode="markers", marker=marker, hovertemplate=hover)
        empty.update_xaxes(**place, rangemode="tozero", zeroline=False, nticks=6, showgrid=False)
        empty.update_yaxes(**place, rangemode="tozero", zeroline=False, nticks=5)
        empty.layout.annotations[column - 1].update(x=empty.get_subplot(1, column).xaxis.domain[0], xanchor="left", xshift=-36, yshift=4)
    empty.update_annotations(font_size=15, font_color=INK)
    margin = {"l": 36, "r": 12, "t": 30, "b": 24}
    bar = {"bgcolor": "rgba(0,0,0,0)", "color": INK, "activecolor": INK}
    empty.update_layout(
        **layout(height=HEIGHT, margin=margin, showlegend=False, uirevision="board", hovermode="closest", autosize=True, modebar=bar)
    )
    live = go.FigureWidget(empty)
    live._config = live._config | {  # the only way in: a FigureWidget has no argument for it
        "displaylogo": False,
        "displayModeBar": "hover",
        "modeBarButtonsToRemove": ["select2d", "lasso2d", "autoScale2d", "zoomIn2d", "zoomOut2d", "pan2d"],
        "showSendToCloud": False,
        "showEditInChartStudio": False,
        "plotlyServerURL": "",
        "responsive": True,
    }
    return live


def update(live: go.FigureWidget, shown: Sequence[Panel]) -> None:
    """Put panels into their figure, in one message."""
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
                _set(next(data), np.array([mark[0]] if mark else []), np.array([mark[1]] if mark else []))


def _set(line: go.Scatter, x: np.ndarray, y: np.ndarray) -> None:
    if len(x) or len(line.x):
        line.update(x=x.astype(np.float32), y=y.astype(np.float32))
