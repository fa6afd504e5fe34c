"""A view drawn as HTML, for a live board or a page without a kernel, and as one SVG picture.

The classes `ink`, `muted`, `grid` and so on take their colours from `kit/still.css`.
"""

import textwrap

from course_lib.record.digest import Digest
from course_lib.widgets.board.plots import COLUMNS, LANE, TURN, Lane, TimeWindow, bars, chart, rows
from course_lib.widgets.board.view import View
from course_lib.widgets.kit import Inside, Markup, badge, element, join, page, svg, term, unfold
from course_lib.widgets.kit.page import TERMS

WIDTH, GAP = 1200, 32  # of the SVG picture
CHART = 378.0, 210.0  # width and height on a page
BINS = 12  # bars of staleness, at most


# --- as HTML ---


def document(view: View) -> str:
    """A page that needs no other file: headline, charts, lanes, and the same as text."""
    prefix, panels = svg.unique_prefix(), view.panels()
    drawn = [svg.drawing(*CHART, chart(p, 0, 0, *CHART), aria_label=p.title) for p in panels]
    parts = [head(view), element("div", drawn, class_="charts"), sides(view, prefix)]
    board = element("div", parts, frame(prefix, view), class_="lk-board ls")
    title = " and ".join(side.label for side in view.sides)
    table = unfold("The same as text", element("pre", view.table()), class_="same")
    return page.document(title, board + table, page.asset("kit/still.css"))


def frame(prefix: str, view: View) -> Markup:
    """The parts of a board that hardly change: its style, its patterns, the legend of its lanes, as
    they have been drawn so far.
    """
    style = page.asset("kit/theme.css", "board/board.css")
    tiles = svg.patterns(prefix)
    hidden = element("svg", tiles, width=0, height=0, style="position:absolute", aria_hidden="true")
    legend = []
    for name in view.names():
        box = svg.swatch(0, 0, name, prefix)
        sample = element("svg", box, width=22, height=14, aria_hidden="true")
        legend.append(element("span", sample, term(name, svg.SHADE[name].meaning)))
    entries = element("div", legend, class_="lk-legend")
    return join((Markup(f"<style>{style}</style>"), hidden, entries))


def head(view: View) -> Markup:
    """The headline, how real each run is, and the note below."""
    # names of runs stand between ** and **
    parts = enumerate(view.headline().split("**"))
    words = [element("b", part) if i % 2 else part for i, part in parts]
    failed, note = any(side.failure for side in view.sides), view.detail()
    warned = view.diverged or failed or view.fairness.startswith("NOT")
    shown = element("p", note, class_="lk-note lk-unfair" if warned and note else "lk-note")
    real = element("span", sorted({badge(*side.reality) for side in view.sides}))
    line = element("div", shown, real)
    return element("div", element("h2", words, role="status"), line, class_="lk-headline")


def sides(view: View, prefix: str) -> Markup:
    """A block for each run: its figures, its lanes, and how stale its updates were."""
    blocks = [_block(view, i, prefix) for i in range(len(view.sides))]
    return element("div", blocks, class_="lk-sides" + " lk-many" * (len(blocks) > 1))


def _block(view: View, number: int, prefix: str) -> Markup:
    side = view.sides[number]
    window, lanes = view.lanes(side, COLUMNS)
    about = side.spec.framework + ("" if side.state == "running" else f" · {side.state}")
    line = element("svg", svg.entrant_line(number, 1, 8), width=40, height=16, aria_hidden="true")
    below = [] if "memory" in view.hidden else [side.memory()]  # its place while it is empty
    below += filter(None, [side.hosts(), side.groups()])
    parts = [
        element("header", line, element("b", side.label), element("span", about)),
        element("p", side.summary(explained=len(view.sides) > 1), class_="lk-figures"),
        [_row(lane, prefix) for lane in lanes],
        _axis(window),
        None if "staleness" in view.hidden else _staleness(side.digest, number),
        [element("p", words, class_="lk-figures") for words in below],
    ]
    facts = {"data_state": side.state, "data_seconds": f"{side.digest.seconds:.4f}"}
    return element("section", parts, class_="lk-side", **facts)


def _row(lane: Lane, prefix: str) -> Markup:
    """One lane; `data-` attributes say the same as the picture."""
    cells = bars(lane, (0, 0, COLUMNS, 18), prefix)
    style = {"preserveAspectRatio": "none", "aria_label": f"{lane.name}: {lane.note}"}
    events = [
        element("i", word, style=f"left:{at:.1%}", class_="lk-left" if at > TURN else None)
        for at, word in lane.events
    ]
    picture = element("div", svg.drawing(COLUMNS, 18, cells, **style), events, class_="lk-lane")
    parts = [element("span", lane.name), picture, element("span", lane.note)]
    hit = "lk-row lk-hit" if lane.fate else "lk-row"
    return element("div", parts, class_=hit, data_task=lane.task, data_fate=lane.fate)


def _axis(window: TimeWindow) -> Markup:
    """Seconds on the same clock as the charts."""
    ticks = [(share, words) for share, words in window.ticks() if 0.03 < share < 0.94]
    marks = [element("i", words, style=f"left:{share:.1%}") for share, words in ticks]
    shown = element("span", f"in {window.span:g} s")
    return element("div", marks, shown, class_="lk-axis")


def _staleness(digest: Digest, number: int) -> Inside:
    """The shares of updates by staleness, as bars with numbers; their place while there are none,
    except in a program of a learner's own, which may never have any.
    """
    seen = digest.updates.staleness
    if not seen:
        return None if digest.spec.own else element("div", class_="lk-stale")
    most, color, bars = max(seen.values()), svg.entrant(number)[0], []
    for stale in sorted(seen)[:BINS]:
        tip = f"{seen[stale]:,} updates ({seen[stale] / seen.total():.0%}) of staleness {stale}"
        style = f"--share:{seen[stale] / most:.3f};--color:{color}"
        bars.append(element("li", str(stale), style=style, title=tip))
    name = element("span", term("staleness", TERMS["staleness"]))
    mean = element("span", f"mean {digest.updates.mean:.1f}")
    return element("div", name, element("ol", bars), mean, class_="lk-stale")


# --- as SVG ---


def still(view: View) -> str:
    """An SVG picture, 1200 wide: the headline, the charts, and the lanes of the runs, two runs in a
    row.
    """
    prefix, panels = svg.unique_prefix(), view.panels()
    headline = textwrap.wrap(view.headline().replace("**", ""), 104)
    real = dict.fromkeys(f"{side.reality.word}: {side.reality.why}" for side in view.sides)
    notes = [line for note in (*real, view.detail()) for line in textwrap.wrap(note, 160)]
    y = 27.0 * len(headline) + 18
    parts: list[Inside] = [
        svg.lines(0, 22, 27, headline, class_="ink", font_size=20, font_weight=600),
        svg.lines(0, y, 20, notes, class_="muted"),
    ]
    y += 20 * len(notes) - 2
    wide = (WIDTH + GAP) / len(panels)
    parts += [chart(panel, i * wide, y, wide - GAP, CHART[1]) for i, panel in enumerate(panels)]
    y += CHART[1] + 16
    columns = min(2, len(view.sides))
    width = (WIDTH - (columns - 1) * GAP) / columns
    for row in range(0, len(view.sides), columns):
        numbers = range(row, min(row + columns, len(view.sides)))
        parts += [_side(view, n, (n - row) * (width + GAP), y, width, prefix) for n in numbers]
        y += 84 + LANE * max(len(view.sides[n].digest.tasks) for n in numbers)
    parts.append(svg.legend(view.names(), 112, y + 16, prefix, columns=9))
    width, height = WIDTH + 48, y + 58
    body = svg.patterns(prefix), element("g", parts, transform="translate(24 16)")
    return svg.picture(width, height, headline[0], page.paper(width, height), *body)


def _side(view: View, number: int, x: float, y: float, width: float, prefix: str) -> Inside:
    """The figures and lanes of a run."""
    side = view.sides[number]
    window, lanes = view.lanes(side, COLUMNS)
    state = f"{side.spec.framework} · {side.state}"
    return [
        svg.entrant_line(number, x, y + 12),
        svg.text(x + 50, y + 17, side.label, class_="ink", font_size=15, font_weight=600),
        svg.text(x + width, y + 17, state, class_="muted", text_anchor="end"),
        svg.text(x, y + 38, side.summary(), class_="muted"),
        rows(lanes, window, (x, y + 50, width, LANE), prefix),
    ]
