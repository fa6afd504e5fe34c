"""A still picture of the stage as SVG, for slides and READMEs: what each rank has after some
rounds, which transfers come next, what the links have carried, and where a wrong schedule breaks.
"""

import itertools
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from course_lib.collectives import State, Transfer, cost
from course_lib.collectives.verify import goal
from course_lib.text import amount
from course_lib.widgets.kit import Inside, Markup, element, join, svg
from course_lib.widgets.stage.scene import ITEMSIZE, PALETTE, Played, Staged

WIDTH, LABEL, ROW, TOP, GAP = 620, 30, 44, 80, 12  # of one algorithm's picture
MOST_CELLS = 120  # chunks of ranks in a film: it is to stay below 100 kB
WRONG = "#C02F00"  # no worker has this colour
HEADS = join((svg.arrow_head("head", svg.INK), svg.arrow_head("alarm", WRONG)))


def still_svg(staged: Sequence[Staged], nbytes: int, about: str, rounds: int | None) -> str:
    """The algorithms side by side after `rounds` rounds (default: those before the first one that
    goes wrong, or else half of the shortest), in which each worker brings `nbytes` bytes; below
    them, what it is `about`.

    Raises ValueError if none of them can be drawn.
    """
    drawn = [(one, one.played) for one in staged if one.played]
    if not drawn:
        raise ValueError("; ".join(f"{one.label}: {one.problem}" for one in staged))
    if rounds is None:
        half = max(1, min(len(played.schedule.rounds) for _, played in drawn) // 2)
        rounds = min((played.sound for _, played in drawn if played.problem), default=half)
    pictures = [_Picture(played, rounds) for _, played in drawn]
    width, height = WIDTH * len(pictures), max(picture.height for picture in pictures) + 34
    parts: list[Inside] = [HEADS, svg.text(12, height - 12, about)]
    for i, ((one, played), picture) in enumerate(zip(drawn, pictures, strict=True)):
        times = [f"{c['seconds'] * 1e3:.3g} ms {c['reality']}" for c in one.clocks.values()]
        words = f"after {picture.after} of {played.length} rounds; in all {', '.join(times)}"
        parts.append(_placed(i * WIDTH, 0, picture.draw(one.label, words, nbytes)))
    title = f"{' beside '.join(one.label for one, _ in drawn)}, after {rounds} rounds"
    return svg.picture(width, height, title, parts)


def filmed(played: Played) -> range:
    """The rounds that a film shows, up to the one that goes wrong, or the end: of many the last."""
    schedule, end = played.schedule, played.sound + 1
    most = max(2, min(9, MOST_CELLS // (schedule.ranks * schedule.chunks)))
    return range(max(0, end - most), end)


def film_svg(played: Played, across: float = 1000) -> str:
    """A schedule round by round: what each rank has when one of the `filmed` rounds begins, and
    what is sent then.
    """
    schedule = played.schedule
    width = max(150.0, LABEL + 20 + 3 * GAP + schedule.chunks * 36 * len(set(schedule.hosts)))
    frames = [_Picture(played, number, width) for number in filmed(played)]
    each = min(len(frames), max(1, int(across // width)))
    parts: list[Inside] = [HEADS]
    for i, frame in enumerate(frames):
        end = frame.after == len(schedule.rounds)
        label = "in the end" if end else f"round {frame.after}" + "  ✗" * bool(frame.problem)
        row, column = divmod(i, each)
        parts.append(_placed(column * width, row * frame.height, frame.draw(label)))
    wide, high = each * width, frames[0].height * -(-len(frames) // each)
    title = f"{schedule.name}, round by round"
    return svg.picture(wide, high, title, parts, width=wide, height=high)


def _placed(x: float, y: float, parts: Inside) -> Markup:
    return element("g", parts, transform=f"translate({x:g} {y:g})")


class _Picture:
    """One algorithm: a rack for each host, in it a row for each rank, in that a cell for each
    chunk, in that a layer for each worker whose contribution the rank has.
    """

    def __init__(self, played: Played, rounds: int, width: float = WIDTH) -> None:
        self.played, self.schedule, self.width = played, played.schedule, width
        self.after = min(rounds, len(self.schedule.rounds))
        self.problem = played.problem if self.after >= played.sound else None
        self.state = State(self.schedule)
        for transfers in self.schedule.rounds[: self.after]:
            self.state.apply(transfers)
        self.racks: dict[int, list[int]] = defaultdict(list)
        for rank, host in enumerate(self.schedule.hosts):
            self.racks[host].append(rank)
        self.rack = (width - GAP) / len(self.racks) - GAP
        self.left = {h: GAP + i * (self.rack + GAP) for i, h in enumerate(sorted(self.racks))}
        self.cell = min((self.rack - LABEL - 20) / self.schedule.chunks, 96)
        self.bottom = TOP + ROW * max(map(len, self.racks.values())) + 10
        self.height = self.bottom + 30

    def corner(self, rank: int, chunk: int) -> tuple[float, float]:
        host = self.schedule.hosts[rank]
        x = self.left[host] + LABEL + 10 + chunk * self.cell
        return x, TOP + self.racks[host].index(rank) * ROW

    def color(self, rank: int) -> str:
        if rank >= self.schedule.workers:  # a server
            return svg.INK
        color = PALETTE[rank * 8 // self.schedule.workers % 8]
        return "#555555" if color == "ink" else color

    def draw(self, label: str, words: str = "", nbytes: int = 0) -> Iterator[Markup]:
        yield svg.text(12, 30, label, font_size=20 if words else 16, font_weight=600)
        yield svg.text(self.width - 12, 28, words, text_anchor="end")
        done = replace(self.schedule, rounds=self.schedule.rounds[: self.after])
        carried = cost(done, nbytes, itemsize=ITEMSIZE)
        shade = {"fill": svg.INK, "fill_opacity": 0.06, "stroke": svg.INK, "stroke_opacity": 0.4}
        for host, ranks in self.racks.items():
            x = self.left[host]
            yield svg.rect(x, 44, self.rack, self.bottom - 44, rx=10, **shade)
            yield svg.text(x + 10, 66, f"host {host}", font_weight=600)
            if nbytes and len(self.racks) > 1:
                words = f"↑ {amount(carried.up[host])}   ↓ {amount(carried.down[host])}"
                yield svg.text(x + self.rack / 2, self.bottom + 22, words, text_anchor="middle")
            for rank in ranks:
                yield from self._row(rank)
        if self.after < len(self.schedule.rounds):
            yield from map(self._arrow, self.schedule.rounds[self.after])
        if self.problem:
            cells = itertools.product(range(self.schedule.ranks), range(self.schedule.chunks))
            due = [at for at in cells if goal(self.schedule, *at) is not None]
            wrong = [at for at in due if not self._is_whole(*at)]
            crossed = [self.played.cell] if self.played.cell else wrong
            yield from (self._cross(*at) for at in crossed)

    def _row(self, rank: int) -> Iterator[Markup]:
        (x, y), server = self.corner(rank, 0), rank - self.schedule.workers
        name = str(rank) if server < 0 else f"s{server}"
        yield svg.rect(x - LABEL, y + 9, 24, 24, rx=5, fill=self.color(rank), fill_opacity=0.9)
        style = {"text_anchor": "middle", "font_weight": 600, "fill": "#111"}
        yield svg.text(x - LABEL + 12, y + 26, name, **style)
        gap = min(1, 0.2 * self.cell)  # on both sides of a chunk
        x, width, height = x - gap, self.cell * self.schedule.chunks, ROW - 4
        back = svg.path("M", x, y + height / 2, "h", width, stroke_opacity=0.15)
        layer, lines = height / self.schedule.workers, defaultdict[str, list[str]](list)
        for r in range(self.schedule.workers):  # lines of dashes draw that in few bytes
            for first, end in _runs(bool(once >> r & 1) for once in self.state.once[rank]):
                begin = f"M{x + first * self.cell:.5g} {y + (r + 0.5) * layer:.4g}"
                lines[self.color(r)].append(f"{begin}h{(end - first) * self.cell:.4g}")
        layers = [svg.path(*those, stroke=color) for color, those in lines.items()]
        dashes = f"0 {gap:.4g} {self.cell - 2 * gap:.4g} {gap:.4g}"
        style = {"stroke": svg.INK, "fill": "none", "stroke_dasharray": dashes}
        yield element("g", back, stroke_width=height, **style)
        yield element("g", layers, stroke_width=max(layer - 0.6, 0.6), **style)
        frame = {"fill": "none", "stroke": svg.INK, "stroke_width": 1.5}
        for first, end in _runs(self._is_whole(rank, c) for c in range(self.schedule.chunks)):
            wide = (end - first) * self.cell - 2 * gap
            yield svg.rect(x + first * self.cell + gap, y, wide, height, **frame)

    def _is_whole(self, rank: int, chunk: int) -> bool:
        """True for a chunk as the rank must have it in the end."""
        once, twice = self.state.once[rank][chunk], self.state.twice[rank][chunk]
        return once == goal(self.schedule, rank, chunk) and not twice

    def _cross(self, rank: int, chunk: int) -> Markup:
        """Mark a chunk that goes wrong."""
        x, y = self.corner(rank, chunk)
        reach = min(self.cell, ROW) / 2 - 8
        x, y = x + self.cell / 2 - 1 - reach, y + ROW / 2 - 2 - reach
        lines = (x, y, "l", 2 * reach, 2 * reach, "m", 0, -2 * reach, "l", -2 * reach, 2 * reach)
        looks = (("white", 8), (WRONG, 4))
        return join(svg.path("M", *lines, stroke=color, stroke_width=w) for color, w in looks)

    def _arrow(self, t: Transfer) -> Markup:
        """A bow from one chunk to the other: down on the right, up on the left."""
        wrong = self.problem is not None and t == self.problem.transfer
        name, color, wide = ("alarm", WRONG, 3) if wrong else ("head", svg.INK, 1.3)
        ends = (self.corner(rank, t.chunk) for rank in (t.src, t.dst))
        (ax, ay), (bx, by) = ((x + self.cell / 2, y + ROW / 2) for x, y in ends)
        rows = abs(by - ay) / ROW  # the longer, the wider: those of one rank lie side by side
        bow = min(6 + 12 * max(rows, 1), 60) * (1 if by > ay else -1)
        middle = (ax + bx) / 2 + bow, (ay + by) / 2 + (abs(bow) if ay == by else 0)
        style: dict[str, Any] = {"fill": "none", "stroke": color, "stroke_width": wide}
        style["marker_end"] = f"url(#{name})"
        way = svg.path("M", ax, ay, "Q", *middle, bx, by, inside=svg.title(str(t)), **style)
        x, y = ((a + 2 * b + c) / 4 for a, b, c in zip((ax, ay), middle, (bx, by), strict=True))
        halo = {"stroke": "white", "stroke_width": 4, "paint_order": "stroke", "fill": "black"}
        sign = "+" if t.op == "reduce" else "="
        return join((way, svg.text(x, y + 6, sign, text_anchor="middle", font_weight=700, **halo)))


def _runs(flags: Iterator[bool]) -> Iterator[tuple[int, int]]:
    """(First, one past the last) of flags side by side that are set."""
    cells = np.where([*flags], 0, svg.NOTHING)
    return ((first, end) for first, end, _ in svg.runs(cells))
