"""A view as HTML: for a live board in a notebook, and as a page without a kernel."""

from __future__ import annotations

import re

import numpy as np

from course_lib.record import measures
from course_lib.record.digest import Digest
from course_lib.widgets.board import sentences
from course_lib.widgets.board.lanes import COLUMNS, Lane, TimeWindow
from course_lib.widgets.board.side import Side
from course_lib.widgets.board.still import CHART, bars, chart
from course_lib.widgets.board.view import View
from course_lib.widgets.kit import page
from course_lib.widgets.kit.markup import (
    Inside,
    Markup,
    badge,
    element,
    entrant_line,
    join,
    patterns,
    swatch,
    term,
    ticks,
    unique_prefix,
)
from course_lib.widgets.kit.palette import FATE, SHADE, entrant

BINS = 12  # of the histogram of staleness; the last takes what is beyond
STALENESS = (
    "how many updates others made between a worker's reading of the parameters and the use of its "
    "gradient: 0 is fresh"
)


def document(view: View) -> str:
    """A page that needs nothing but itself: the headline, the charts, the lanes, and all of it as
    text.
    """
    prefix = unique_prefix()
    width, height = CHART
    charts = [
        element(
            "svg",
            chart(panel, 0, 0, *CHART),
            viewBox=f"0 0 {width:g} {height:g}",
            font_size=14,
            role="img",
            aria_label=panel.title,
        )
        for panel in view.panels()
    ]
    parts = [head(view), element("div", charts, class_="charts"), sides(view, prefix)]
    board = element("div", parts, frame(prefix), class_="lk-board ls")
    title = " and ".join(side.label for side in view.sides)
    return page.document(
        title, board + page.same_as_text(view.table()), page.asset("kit/still.css")
    )


def frame(prefix: str) -> Markup:
    """What does not change on a board: its style, its patterns, and the legend of its lanes."""
    hidden = {"width": 0, "height": 0, "style": "position:absolute", "aria_hidden": "true"}
    legend = [
        element(
            "span",
            element("svg", swatch(0, 0, name, prefix), width=22, height=14, aria_hidden="true"),
            term(name, SHADE[name].meaning),
        )
        for name in (*measures.SHOWN, *FATE)
    ]
    return join(
        (
            Markup(f"<style>{page.asset('kit/theme.css', 'board/board.css')}</style>"),
            element("svg", patterns(prefix), **hidden),
            element("div", legend, class_="lk-legend"),
        )
    )


def head(view: View) -> Markup:
    """The headline, how real it all is, and what to know beside it."""
    badges = {badge(*side.reality) for side in view.sides}
    # names stand between ** and **
    said = [
        element("b", part) if i % 2 else part
        for i, part in enumerate(re.split(r"\*\*", view.headline()))
    ]
    headline = element("h2", said, role="status")
    unfair = " lk-unfair" if view.fairness.startswith("NOT") else ""
    note = element("p", view.detail(), class_=f"lk-note{unfair}") if view.detail() else None
    return join((element("div", headline, sorted(badges), class_="lk-headline"), note))


def sides(view: View, prefix: str) -> Markup:
    """A block for each run: its figures, its lanes, and how stale its updates were."""
    blocks = [_side(view, i, prefix) for i in range(len(view.sides))]
    return element("div", blocks, class_="lk-sides")


def _side(view: View, number: int, prefix: str) -> Markup:
    side = view.sides[number]
    window, lanes = view.lanes(side, COLUMNS)
    about = side.spec.framework + ("" if side.state == "running" else f" · {side.state}")
    line = element("svg", entrant_line(number, 1, 8), width=40, height=16, aria_hidden="true")
    return element(
        "section",
        element("header", line, element("b", side.label), element("span", about)),
        element("p", sentences.summary(side), class_="lk-figures"),
        element("p", side.failure, class_="lk-fail") if side.failure else None,
        [_row(lane, prefix) for lane in lanes],
        _axis(side, window),
        _staleness(side.digest, number),
        class_="lk-side",
        data_state=side.state,
        data_seconds=f"{side.digest.seconds:.4f}",
    )


def _row(lane: Lane, prefix: str) -> Markup:
    """One lane; `data-` attributes say the same as the picture."""
    tip = f"made {lane.factor:g} times slower" if lane.factor > 1 else None
    drawn = element(
        "svg",
        bars(lane.cells, (0, 0, COLUMNS, 18), prefix),
        viewBox=f"0 0 {COLUMNS} 18",
        preserveAspectRatio="none",
        role="img",
        aria_label=f"{lane.name}: {lane.note}",
    )
    return element(
        "div",
        element("span", lane.name, title=tip),
        drawn,
        element("span", lane.note),
        class_="lk-row lk-hit" if lane.fate else "lk-row",
        data_task=lane.task,
        data_fate=lane.fate,
    )


def _axis(side: Side, window: TimeWindow) -> Markup:
    """Seconds on the same clock as the charts."""
    zero = side.digest.zero if side.digest.zero < window.end else 0.0
    marks = []
    for tick in ticks(window.begin - zero, window.end - zero, 4):
        share = (tick - window.begin + zero) / window.span
        if 0.03 < share < 0.97:
            marks.append(element("i", f"{tick:.4g} s", style=f"left:{share:.1%}"))
    return element("div", marks, class_="lk-axis")


def _staleness(digest: Digest, number: int) -> Inside:
    """The shares of updates by staleness, as bars with numbers."""
    total = sum(digest.updates.staleness.values())
    if not total:
        return None
    last = min(max(digest.updates.staleness), BINS - 1)
    counts = np.zeros(last + 1, int)
    for stale, count in digest.updates.staleness.items():
        counts[min(stale, last)] += count
    beyond = "+" if max(digest.updates.staleness) > last else ""
    items = [
        element(
            "li",
            f"{n}{beyond if n == last else ''}",
            style=f"--share:{count / counts.max():.3f};--color:{entrant(number)[0]}",
            title=f"{count:,} updates ({count / total:.0%}) of staleness {n}",
        )
        for n, count in enumerate(counts.tolist())
    ]
    return element(
        "div",
        element("span", term("staleness", STALENESS)),
        element("ol", items),
        element("span", f"mean {digest.updates.mean:.1f}"),
        class_="lk-stale",
    )
