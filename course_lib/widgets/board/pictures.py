"""A view drawn as HTML, for a live board or a page without a kernel, and as one SVG picture.

The classes `ink`, `muted`, `grid` and so on take their colours from `kit/still.css`.
"""

import textwrap

from course_lib.record.digest import Digest
from course_lib.widgets.board import plots
from course_lib.widgets.board.view import View, Whole
from course_lib.widgets.kit import Inside, Markup, badge, element, join, page, svg, term, unfold
from course_lib.widgets.kit.page import TERMS

WIDTH, GAP = 1200, 32  # of the SVG picture
CHART = 378.0, 210.0  # width and height on a page
BINS = 12  # bars of staleness, at most


# --- as HTML ---


def document(view: View) -> str:
    """A page that needs no other file: headline, lanes, which can be moved through the whole run,
    charts, and the same as text.
    """
    prefix, panels, whole = svg.unique_prefix(), view.panels(), view.whole()
    film = _film(whole) if whole else None
    shown = element("div", film, sides(view, prefix, whole))
    drawn = element("div", [_figure(panel, whole) for panel in panels], class_="charts")
    parts = head(view), frame(prefix, view, "kit/theme.css"), shown, drawn, facts(view)
    board = element("div", parts, class_="lk-board ls")
    title = " and ".join(side.label for side in view.sides)
    table = unfold("The same as text", element("pre", view.table()), class_="same")
    script = Markup(f"<script>{page.asset('board/film.js')}</script>")
    return page.document(title, board + table + script, page.asset("kit/still.css"))


def _film(whole: Whole) -> Markup:
    """A slider that moves the lanes of the whole run through their window."""
    begin, end, windows = whole
    moves = {"type": "range", "min": 0, "max": 1, "step": 0.0005, "value": 0}
    slider = element("input", aria_label="moment of the run", **moves)
    play = element("button", "Play", type="button")
    moment = element("output", data_begin=begin, data_until=end - (end - begin) / windows)
    return element("div", play, slider, moment, class_="lk-film")


def _figure(panel: plots.Panel, whole: Whole | None) -> Markup:
    """A chart, with a band for the time that the lanes show, if its axis is time."""
    drawn = svg.drawing(*CHART, plots.chart(panel, 0, 0, *CHART), aria_label=panel.title)
    if whole is None or panel.x != "seconds":
        return element("figure", drawn)
    begin, end, windows = whole
    left, right = plots.LEFT / CHART[0], plots.RIGHT / CHART[0]
    wide, second = (end - begin) / windows, (1 - left - right) / panel.wide
    way, width = (end - begin - wide) * second, wide * second
    style = f"--from:{left + begin * second:.4%};--way:{way:.4%};width:{width:.4%}"
    return element("figure", drawn, element("i", style=style))


def frame(prefix: str, view: View, *styles: str) -> Markup:
    """The parts of a board that hardly change: its style, after these `styles`, its patterns, the
    legend of its lanes, as they have been drawn so far.
    """
    style = page.asset(*styles, "board/board.css")
    tiles = svg.patterns(prefix)
    hidden = element("svg", tiles, width=0, height=0, style="position:absolute", aria_hidden="true")
    legend = []
    for name in view.names() or ("compute",):  # its place before anything is drawn
        box = svg.swatch(0, 0, name, prefix)
        sample = element("svg", box, width=22, height=14, aria_hidden="true")
        legend.append(element("span", sample, term(name, svg.SHADE[name].meaning)))
    entries = element("div", legend, class_="lk-legend")
    return join((Markup(f"<style>{style}</style>"), hidden, entries))


def head(view: View, message: str = "") -> Markup:
    """The headline, how real each run is, and below a note: the `message`, if there is one, or what
    needs attention, or else the figures of a single run.
    """
    # names of runs stand between ** and **
    parts = enumerate(view.headline().split("**"))
    words = [element("b", part) if i % 2 else part for i, part in parts]
    failed, note = any(side.failure for side in view.sides), message or view.detail()
    warned = note and (view.diverged or failed or view.fairness.startswith("NOT"))
    note = note or (view.sides[0].summary() if len(view.sides) == 1 else "")
    shown = element("p", note, class_="lk-note lk-unfair" if warned else "lk-note", title=note)
    whys: dict[str, list[str]] = {}
    for word, why in (side.reality for side in view.sides):
        whys.setdefault(word, []).append(why)
    real = [badge(word, "\n".join(dict.fromkeys(why))) for word, why in whys.items()]
    return element("div", element("h2", words), element("span", real), shown, class_="lk-headline")


def facts(view: View) -> Markup:
    """The further facts of each run: staleness, memory, hosts; and if a race was fair."""
    unfair = "lk-unfair" if view.fairness.startswith("NOT") else None
    fairness = element("p", view.fairness, class_=unfair) if view.fairness else None
    blocks = []
    for number, side in enumerate(view.sides):
        stale = None if "staleness" in view.hidden else _staleness(side.digest, number)
        memory = "" if "memory" in view.hidden else side.memory()
        below = filter(None, [memory, side.hosts(), side.groups()])
        lines = [element("p", words, class_="lk-figures") for words in below]
        name = [_entrant(view, number)] if len(view.sides) > 1 and (stale or lines) else []
        blocks.append(element("section", name, stale, lines))
    return element("div", fairness, element("div", blocks, class_="lk-sides"), class_="lk-facts")


def sides(view: View, prefix: str, whole: Whole | None = None) -> Markup:
    """A block for each run: its lanes, now or of the `whole` run, of which a part is seen; and in a
    race its name and its figures.
    """
    blocks = [_block(view, i, prefix, whole) for i in range(len(view.sides))]
    return element("div", blocks, class_="lk-sides" + " lk-many" * (len(blocks) > 1))


def _entrant(view: View, number: int, about: str = "") -> Markup:
    """The name of an entrant beside a sample of its line."""
    line = element("svg", svg.entrant_line(number, 1, 8), width=40, height=16, aria_hidden="true")
    words = element("b", view.sides[number].label), element("span", about, title=about)
    return element("header", line, words)


def _block(view: View, number: int, prefix: str, whole: Whole | None) -> Markup:
    side, many = view.sides[number], len(view.sides) > 1
    windows = whole[2] if whole else 1
    window, lanes = view.lanes(side, plots.COLUMNS * windows, whole)
    summary = side.summary(explained=True)
    figures = element("p", summary, class_="lk-figures", title=summary)
    parts = [
        (_entrant(view, number, side.about()), figures) if many else None,
        [_row(lane, prefix, windows) for lane in lanes],
        _axis(window, windows, many),
    ]
    known = {"data_state": side.state, "data_seconds": f"{side.digest.seconds:.4f}"}
    return element("section", parts, class_="lk-side", **known)


def _row(lane: plots.Lane, prefix: str, windows: int = 1) -> Markup:
    """One lane; `data-` attributes say the same as the picture."""
    columns = len(lane.cells)
    cells = plots.bars(lane, (0, 0, columns, 18), prefix)
    style = {"preserveAspectRatio": "none", "aria_label": f"{lane.name}: {lane.note}"}
    events = [
        element("i", word, style=f"left:{at:.2%}", class_="lk-left" if at > plots.TURN else None)
        for at, word in lane.events
    ]
    inside = _long((svg.drawing(columns, 18, cells, **style), events), windows)
    picture = element("div", inside, class_="lk-lane")
    note = lane.note.replace("waits", "waited" if windows > 1 else "waits")  # of the whole run
    parts = [element("span", lane.name), picture, element("span", note)]
    hit = "lk-row lk-hit" if lane.fate else "lk-row"
    return element("div", parts, class_=hit, data_task=lane.task, data_fate=lane.fate)


def _long(inside: Inside, windows: int) -> Inside:
    """Content as wide as several windows, of which one is seen."""
    if windows == 1:
        return inside
    style = f"width:{windows:.0%};--way:{1 / windows - 1:.4%}"
    return element("div", inside, class_="lk-long", style=style)


def _axis(window: plots.TimeWindow, windows: int, many: bool) -> Markup:
    """Seconds on the same clock as the charts."""
    first = 0.03 / windows
    last = 1 - (0.18 if many else 0.06) / windows  # a tick in a narrow lane needs more room
    ticks = [tick for tick in window.ticks(4 * windows) if first < tick[0] < last]
    marks = [element("i", words, style=f"left:{share:.2%}") for share, words in ticks]
    shown = element("span", f"{'shown:' if windows > 1 else 'in'} {window.span / windows:.3g} s")
    clock = element("div", _long(marks, windows), class_="lk-clock")
    return element("div", clock, shown, class_="lk-axis")


def _staleness(digest: Digest, number: int) -> Inside:
    """The shares of updates by staleness, as bars with numbers; their place while there are none,
    except in a program of a learner's own, which may never have any.
    """
    seen = digest.updates.staleness
    if not seen:
        return None if digest.spec.own else element("div", class_="lk-stale")
    color, bars = svg.entrant(number)[0], []
    values = sorted(seen)
    counts = {str(stale): seen[stale] for stale in values[:BINS]}
    if len(values) > BINS:  # the last bar stands for all that are as stale or more
        counts.popitem()
        counts[f"{values[BINS - 1]}+"] = sum(seen[stale] for stale in values[BINS - 1 :])
    for stale, number in counts.items():
        tip = f"{number:,} updates ({number / seen.total():.0%}) of staleness {stale}"
        style = f"--share:{number / max(counts.values()):.3f};--color:{color}"
        bars.append(element("li", stale, style=style, title=tip))
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
    size = wide - GAP, CHART[1]
    parts += [plots.chart(panel, i * wide, y, *size) for i, panel in enumerate(panels)]
    y += CHART[1] + 16
    columns = min(2, len(view.sides))
    width = (WIDTH - (columns - 1) * GAP) / columns
    for row in range(0, len(view.sides), columns):
        numbers = range(row, min(row + columns, len(view.sides)))
        parts += [_side(view, n, (n - row) * (width + GAP), y, width, prefix) for n in numbers]
        y += 84 + plots.LANE * max(len(view.sides[n].digest.tasks) for n in numbers)
    parts.append(svg.legend(view.names(), 112, y + 16, prefix, columns=9))
    width, height = WIDTH + 48, y + 58
    body = svg.patterns(prefix), element("g", parts, transform="translate(24 16)")
    return svg.picture(width, height, headline[0], page.paper(width, height), *body)


def _side(view: View, number: int, x: float, y: float, width: float, prefix: str) -> Inside:
    """The figures and lanes of a run."""
    side = view.sides[number]
    window, lanes = view.lanes(side, plots.COLUMNS)
    state = f"{side.spec.framework} · {side.state}"
    return [
        svg.entrant_line(number, x, y + 12),
        svg.text(x + 50, y + 17, side.label, class_="ink", font_size=15, font_weight=600),
        svg.text(x + width, y + 17, state, class_="muted", text_anchor="end"),
        svg.text(x, y + 38, side.summary(), class_="muted"),
        plots.rows(lanes, window, (x, y + 50, width, plots.LANE), prefix),
    ]
