"""A view as HTML: for a live board in a notebook, and as a page without a kernel."""

from __future__ import annotations

import numpy as np

from course_lib.record import measures
from course_lib.record.digest import Digest
from course_lib.widgets.board import sentences
from course_lib.widgets.board.lanes import COLUMNS, Lane, TimeWindow
from course_lib.widgets.board.side import Side
from course_lib.widgets.board.still import CHART, bars, chart
from course_lib.widgets.board.view import View
from course_lib.widgets.kit import page, svg
from course_lib.widgets.kit.html import Inside, Markup, badge, element, join, term
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
    prefix = svg.unique_prefix()
    charts = [
        svg.drawing(*CHART, chart(panel, 0, 0, *CHART), aria_label=panel.title)
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
    style = page.asset("kit/theme.css", "board/board.css")
    tiles = svg.patterns(prefix)
    hidden = element("svg", tiles, width=0, height=0, style="position:absolute", aria_hidden="true")
    legend = []
    for name in (*measures.SHOWN, *FATE):
        box = svg.swatch(0, 0, name, prefix)
        sample = element("svg", box, width=22, height=14, aria_hidden="true")
        legend.append(element("span", sample, term(name, SHADE[name].meaning)))
    entries = element("div", legend, class_="lk-legend")
    return join((Markup(f"<style>{style}</style>"), hidden, entries))


def head(view: View) -> Markup:
    """The headline, how real it all is, and what to know beside it."""
    badges = {badge(*side.reality) for side in view.sides}
    # names stand between ** and **
    parts = enumerate(view.headline().split("**"))
    said = [element("b", part) if i % 2 else part for i, part in parts]
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
    line = element("svg", svg.entrant_line(number, 1, 8), width=40, height=16, aria_hidden="true")
    parts = [
        element("header", line, element("b", side.label), element("span", about)),
        element("p", sentences.summary(side), class_="lk-figures"),
        element("p", side.failure, class_="lk-fail") if side.failure else None,
        [_row(lane, prefix) for lane in lanes],
        _axis(side, window),
        _staleness(side.digest, number),
    ]
    facts = {"data_state": side.state, "data_seconds": f"{side.digest.seconds:.4f}"}
    return element("section", parts, class_="lk-side", **facts)


def _row(lane: Lane, prefix: str) -> Markup:
    """One lane; `data-` attributes say the same as the picture."""
    tip = f"made {lane.factor:g} times slower" if lane.factor > 1 else None
    cells = bars(lane.cells, (0, 0, COLUMNS, 18), prefix)
    said = f"{lane.name}: {lane.note}"
    drawn = svg.drawing(COLUMNS, 18, cells, preserveAspectRatio="none", aria_label=said)
    parts = [element("span", lane.name, title=tip), drawn, element("span", lane.note)]
    hit = "lk-row lk-hit" if lane.fate else "lk-row"
    return element("div", parts, class_=hit, data_task=lane.task, data_fate=lane.fate)


def _axis(side: Side, window: TimeWindow) -> Markup:
    """Seconds on the same clock as the charts."""
    zero = side.digest.zero if side.digest.zero < window.end else 0.0
    marks = []
    for tick in svg.ticks(window.begin - zero, window.end - zero, 4):
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
    items = []
    for n, count in enumerate(counts.tolist()):
        style = f"--share:{count / counts.max():.3f};--color:{entrant(number)[0]}"
        tip = f"{count:,} updates ({count / total:.0%}) of staleness {n}"
        items.append(element("li", f"{n}{beyond if n == last else ''}", style=style, title=tip))
    name = element("span", term("staleness", STALENESS))
    mean = element("span", f"mean {digest.updates.mean:.1f}")
    return element("div", name, element("ol", items), mean, class_="lk-stale")
