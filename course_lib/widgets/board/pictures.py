"""A view drawn as HTML, for a live board or a page without a kernel, and as one SVG picture.

The classes `ink`, `muted`, `grid` and so on take their colours from `kit/still.css`.
"""

import textwrap
from collections import Counter

from course_lib.record.digest import Digest
from course_lib.widgets.board.charts import chart, stem
from course_lib.widgets.board.lanes import COLUMNS, LETTER, Lane, TimeWindow, bars
from course_lib.widgets.board.view import View
from course_lib.widgets.kit import Inside, Markup, badge, element, join, page, svg, term
from course_lib.widgets.kit.glossary import TERMS
from course_lib.widgets.kit.palette import SHADE, entrant

WIDTH, GAP, LANE = 1200, 32, 26  # of the SVG picture
CHART = 378.0, 210.0  # width and height on a page
BINS = 12  # of the histogram of staleness; the last takes what is beyond


# --- as HTML ---


def document(view: View) -> str:
    """A page that needs no other file: headline, charts, lanes, and the same as text."""
    prefix, panels = svg.unique_prefix(), view.panels()
    drawn = [svg.drawing(*CHART, chart(p, 0, 0, *CHART), aria_label=p.title) for p in panels]
    parts = [head(view), element("div", drawn, class_="charts"), sides(view, prefix)]
    board = element("div", parts, frame(prefix, view), class_="lk-board ls")
    title = " and ".join(side.label for side in view.sides)
    body = board + page.same_as_text(view.table())
    return page.document(title, body, page.asset("kit/still.css"))


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
        legend.append(element("span", sample, term(name, SHADE[name].meaning)))
    entries = element("div", legend, class_="lk-legend")
    return join((Markup(f"<style>{style}</style>"), hidden, entries))


def head(view: View) -> Markup:
    """The headline, how real each run is, and the note below."""
    badges = {badge(*side.reality) for side in view.sides}
    # names of runs stand between ** and **
    parts = enumerate(view.headline().split("**"))
    words = [element("b", part) if i % 2 else part for i, part in parts]
    headline = element("h2", words, role="status")
    failed = any(side.failure for side in view.sides)
    warned = view.diverged or failed or view.fairness.startswith("NOT")
    warn = " lk-unfair" if warned else ""
    note = element("p", view.detail(), class_=f"lk-note{warn if view.detail() else ''}")
    real = element("span", sorted(badges))
    return element("div", headline, element("div", note, real), class_="lk-headline")


def sides(view: View, prefix: str) -> Markup:
    """A block for each run: its figures, its lanes, and how stale its updates were."""
    blocks = [_block(view, i, prefix) for i in range(len(view.sides))]
    return element("div", blocks, class_="lk-sides" + " lk-many" * (len(blocks) > 1))


def _block(view: View, number: int, prefix: str) -> Markup:
    side = view.sides[number]
    window, lanes = view.lanes(side, COLUMNS)
    about = side.spec.framework + ("" if side.state == "running" else f" · {side.state}")
    line = element("svg", svg.entrant_line(number, 1, 8), width=40, height=16, aria_hidden="true")
    parts = [
        element("header", line, element("b", side.label), element("span", about)),
        element("p", side.summary(explained=len(view.sides) > 1), class_="lk-figures"),
        [_row(lane, prefix) for lane in lanes],
        _axis(window),
        None if "staleness" in view.hidden else _staleness(side.digest, number),
        None if "memory" in view.hidden else element("p", side.memory(), class_="lk-figures"),
        element("p", hosts, class_="lk-figures") if (hosts := side.hosts()) else None,
    ]
    facts = {"data_state": side.state, "data_seconds": f"{side.digest.seconds:.4f}"}
    return element("section", parts, class_="lk-side", **facts)


def _row(lane: Lane, prefix: str) -> Markup:
    """One lane; `data-` attributes say the same as the picture."""
    tip = f"made {lane.factor:g} times slower" if lane.factor > 1 else None
    cells = bars(lane, (0, 0, COLUMNS, 18), prefix)
    words = f"{lane.name}: {lane.note}"
    drawn = svg.drawing(COLUMNS, 18, cells, preserveAspectRatio="none", aria_label=words)
    events = []
    for at, word in lane.events:
        side = "lk-left" if _turned(at, word) else None
        events.append(element("i", word, style=f"left:{at:.1%}", class_=side))
    picture = element("div", drawn, events, class_="lk-lane")
    parts = [element("span", lane.name, title=tip), picture, element("span", lane.note)]
    hit = "lk-row lk-hit" if lane.fate else "lk-row"
    return element("div", parts, class_=hit, data_task=lane.task, data_fate=lane.fate)


def _turned(at: float, word: str) -> bool:
    """Return True for a word that has no room on the right of its mark."""
    return at + LETTER * len(word) > 1


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
        return None if digest.spec.strategy == "custom" else element("div", class_="lk-stale")
    total, last, counts = seen.total(), min(max(seen), BINS - 1), Counter[int]()
    for stale, count in seen.items():
        counts[min(stale, last)] += count
    beyond = "+" if max(seen) > last else ""
    items, most = [], max(counts.values())
    for n in range(last + 1):
        count = counts[n]
        style = f"--share:{count / most:.3f};--color:{entrant(number)[0]}"
        tip = f"{count:,} updates ({count / total:.0%}) of staleness {n}"
        items.append(element("li", f"{n}{beyond if n == last else ''}", style=style, title=tip))
    name = element("span", term("staleness", TERMS["staleness"]))
    mean = element("span", f"mean {digest.updates.mean:.1f}")
    return element("div", name, element("ol", items), mean, class_="lk-stale")


# --- as SVG ---


def still(view: View) -> str:
    """An SVG picture, 1200 wide: the headline, the charts, and the lanes of the runs, two runs in a
    row.
    """
    prefix = svg.unique_prefix()
    headline = textwrap.wrap(view.headline().replace("**", ""), 104)
    parts: list[Inside] = [
        svg.text(0, 22 + 27 * i, line, class_="ink", font_size=20, font_weight=600)
        for i, line in enumerate(headline)
    ]
    y = 27.0 * len(headline) + 4
    for note in filter(None, [*_realities(view), view.detail()]):
        for line in textwrap.wrap(note, 160):
            parts.append(svg.text(0, y + 14, line, class_="muted"))
            y += 20
    y += 12
    panels = view.panels()
    wide = (WIDTH + GAP) / len(panels)
    parts += [chart(panel, i * wide, y, wide - GAP, CHART[1]) for i, panel in enumerate(panels)]
    y += CHART[1] + 16
    in_a_row = min(2, len(view.sides))
    width = (WIDTH - (in_a_row - 1) * GAP) / in_a_row
    bottom = y
    for number in range(len(view.sides)):
        if number % in_a_row == 0:
            y = bottom
        side, end = _side(view, number, number % in_a_row * (width + GAP), y, width, prefix)
        parts.append(side)
        bottom = max(bottom, end)
    parts.append(svg.legend(view.names(), (112, bottom + 16), prefix, columns=9))
    width, height = WIDTH + 48, bottom + 58
    drawn = svg.patterns(prefix), element("g", parts, transform="translate(24 16)")
    return svg.picture(width, height, headline[0], page.paper(width, height), *drawn)


def _realities(view: View) -> list[str]:
    """Say the reality of each run with its reason; once, without names, if all are alike."""
    words = [f"{side.reality.word}: {side.reality.why}" for side in view.sides]
    if len(set(words)) == 1:
        return [words[0][0].upper() + words[0][1:]]
    return [f"{side.label} {why}" for side, why in zip(view.sides, words, strict=True)]


def _side(
    view: View, number: int, x: float, y: float, width: float, prefix: str
) -> tuple[Markup, float]:
    """The figures and lanes of a run, and where they end."""
    side = view.sides[number]
    window, lanes = view.lanes(side, COLUMNS)
    left, across = x + 112, width - 112 - 84
    state = f"{side.spec.framework} · {side.state}"
    parts: list[Inside] = [
        svg.entrant_line(number, x, y + 12),
        svg.text(x + 50, y + 17, side.label, class_="ink", font_size=15, font_weight=600),
        svg.text(x + width, y + 17, state, class_="muted", text_anchor="end"),
        svg.text(x, y + 38, side.summary(), class_="muted"),
    ]
    top = y + 50
    for lane in lanes:
        parts += [
            svg.text(left - 8, top + 16, lane.name, class_="ink", text_anchor="end"),
            svg.rect(left, top, across, LANE - 4, class_="lane"),
            bars(lane, (left, top, across, LANE - 4), prefix),
            svg.text(left + across + 8, top + 16, lane.note, class_="muted"),
        ]
        for at, word in lane.events:
            place = left + at * across
            beside, anchor = (place - 4, "end") if _turned(at, word) else (place + 4, None)
            style = {"class_": "ink halo", "font_size": 12, "text_anchor": anchor}
            parts += [stem(place, top, LANE - 4), svg.text(beside, top + 15, word, **style)]
        top += LANE
    axis = {"class_": "muted", "text_anchor": "middle", "font_size": 13}
    for share, words in window.ticks():
        parts.append(svg.text(left + share * across, top + 14, words, **axis))
    shown = f"in {window.span:g} s"
    parts.append(svg.text(left + across + 8, top + 14, shown, class_="muted", font_size=13))
    return join(parts), top + 34
