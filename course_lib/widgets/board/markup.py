"""A view as HTML: the same for a live board in a notebook and for a page without a kernel."""

from __future__ import annotations

import itertools
import re
from html import escape

from course_lib.record import measures
from course_lib.record.digest import Digest
from course_lib.widgets import page
from course_lib.widgets.badge import badge
from course_lib.widgets.board import words
from course_lib.widgets.board.charts_svg import swatch
from course_lib.widgets.board.lanes import COLUMNS, Lane, Window, bars, ticks
from course_lib.widgets.board.side import Side
from course_lib.widgets.board.view import View
from course_lib.widgets.palette import FATE, PHASE, entrant, svg_patterns

BINS = 12  # of the histogram of staleness; the last takes what is beyond
STALENESS = "how many updates others made between a worker's reading of the parameters and the use of its gradient: 0 is fresh"
_number = itertools.count()


def prefix() -> str:
    """A name for patterns that no other picture on the same page has."""
    return f"lk{next(_number)}-"


def frame(name: str) -> str:
    """What does not change on a board: its style, its patterns, and the legend of the phases."""
    patterns = f'<svg width="0" height="0" style="position:absolute" aria-hidden="true">{svg_patterns(name)}</svg>'
    entries = []
    for what, (_, _, meaning) in {**{what: PHASE[what] for what in measures.SHOWN}, **FATE}.items():
        sample = f'<svg width="22" height="14" aria-hidden="true"><rect width="22" height="14" fill="url(#{name}{what})"/></svg>'
        entries.append(f"<span>{sample}{term(what, meaning.partition(': ')[2])}</span>")
    return f'<style>{page.asset("theme.css", "board/board.css")}</style>{patterns}<div class="lk-legend">{"".join(entries)}</div>'


def term(word: str, meaning: str) -> str:
    """A word with its meaning, for mouse and keyboard."""
    return f'<abbr tabindex="0" title="{escape(meaning)}">{escape(word)}</abbr>'


def head(view: View) -> str:
    """The headline, how real it all is, and what to know beside it."""
    badges = {badge(*side.reality) for side in view.sides}
    unfair = " lk-unfair" if view.fairness.startswith("NOT") else ""
    detail = f'<p class="lk-note{unfair}">{escape(view.detail())}</p>' if view.detail() else ""
    return f'<div class="lk-headline"><h2 role="status">{_marked(view.headline())}</h2>{"".join(sorted(badges))}</div>{detail}'


def _marked(text: str) -> str:
    """Names between ** and ** in bold."""
    return re.sub(r"\*\*(.+?)\*\*", r"<b>\1</b>", escape(text, quote=False))


def sides(view: View, name: str) -> str:
    """A block for each run: its figures, its lanes, and how stale its updates were."""
    return f'<div class="lk-sides">{"".join(_side(view, i, name) for i in range(len(view.sides)))}</div>'


def _side(view: View, number: int, name: str) -> str:
    side = view.sides[number]
    window, lanes = view.lanes(side, COLUMNS)
    rows = "".join(_row(lane, name) for lane in lanes)
    failure = f'<p class="lk-fail">{escape(side.failure)}</p>' if side.failure else ""
    return (
        f'<section class="lk-side" data-state="{side.state}" data-seconds="{side.digest.seconds:.4f}">{_header(side, number)}{failure}'
        f"{rows}{_axis(side, window)}{_staleness(side.digest, number)}</section>"
    )


def _header(side: Side, number: int) -> str:
    about = side.spec.framework + ("" if side.state == "running" else f" · {side.state}")
    return (
        f"<header>{swatch(number)}<b>{escape(side.label)}</b><span>{about}</span></header>"
        f'<p class="lk-figures">{escape(words.summary(side))}</p>'
    )


def _row(lane: Lane, name: str) -> str:
    """One lane; `data-` attributes say the same as the picture."""
    said = f"{lane.name}: {lane.note}"
    tip = f' title="made {lane.factor:g} times slower"' if lane.factor > 1 else ""
    picture = f'<svg viewBox="0 0 {COLUMNS} 18" preserveAspectRatio="none" role="img" aria-label="{said}">'
    return (
        f'<div class="lk-row{" lk-hit" if lane.fate else ""}" data-task="{lane.task}" data-fate="{lane.fate}">'
        f"<span{tip}>{lane.name}</span>{picture}{bars(lane.cells, (0, 0, COLUMNS, 18), name)}</svg><span>{lane.note}</span></div>"
    )


def _axis(side: Side, window: Window) -> str:
    """Seconds on the same clock as the charts."""
    zero = side.digest.zero if side.digest.zero < window.end else 0.0
    marks = []
    for tick in ticks(window.begin - zero, window.end - zero, 4):
        share = (tick - window.begin + zero) / window.span
        marks.append(f'<i style="left:{share:.1%}">{tick:.4g} s</i>' if 0.03 < share < 0.97 else "")
    return f'<div class="lk-axis">{"".join(marks)}</div>'


def _staleness(digest: Digest, number: int) -> str:
    """The shares of updates by staleness, as bars with numbers."""
    total = sum(digest.staleness.values())
    if not total:
        return ""
    last = min(max(digest.staleness), BINS - 1)
    counts = [digest.staleness[n] for n in range(last)] + [
        sum(count for n, count in digest.staleness.items() if n >= last)
    ]
    most = max(counts)
    beyond = "+" if max(digest.staleness) > last else ""
    items = "".join(
        f'<li style="--share:{count / most:.3f};--color:{entrant(number)[0]}" title="{count:,} updates ({count / total:.0%}) of staleness {n}">'
        f"{n}{beyond if n == last else ''}</li>"
        for n, count in enumerate(counts)
    )
    return f'<div class="lk-stale"><span>{term("staleness", STALENESS)}</span><ol>{items}</ol><span>mean {digest.stale:.1f}</span></div>'
