"""A still picture of the stage as SVG, for slides and READMEs: what each rank has after some
rounds, which transfers come next, and what the links have carried.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace

from course_lib.collectives import State, Transfer, cost
from course_lib.collectives.contributions import goal, members
from course_lib.text import amount
from course_lib.widgets.kit import Markup, element, join, svg
from course_lib.widgets.kit.palette import INK
from course_lib.widgets.stage.scene import ITEMSIZE, PALETTE, Played, StagedAlgorithm

WIDTH, LABEL, ROW, TOP, GAP = 620, 30, 44, 80, 12  # of one algorithm's picture


def still_svg(
    staged: Sequence[StagedAlgorithm], nbytes: int, about: str, rounds: int | None = None
) -> str:
    """The algorithms side by side after `rounds` rounds (default: half of the shortest), in which
    each worker brings `nbytes` bytes; below them, what it is `about`.

    Raises ValueError if none of them can be drawn.
    """
    drawn = [(one, one.played) for one in staged if one.played]
    if not drawn:
        raise ValueError("; ".join(f"{one.label}: {one.problem}" for one in staged))
    if rounds is None:
        rounds = max(1, min(len(played.schedule.rounds) for _, played in drawn) // 2)
    pictures = [_Picture(one, played, rounds) for one, played in drawn]
    width, height = WIDTH * len(pictures), max(picture.height for picture in pictures) + 34
    parts: list[Markup] = [svg.arrow_head("head", INK, 7)]
    for i, picture in enumerate(pictures):
        parts.append(element("g", picture.draw(nbytes), transform=f"translate({i * WIDTH} 0)"))
    parts.append(svg.text(12, height - 12, about))
    title = f"{' beside '.join(one.label for one, _ in drawn)}, after {rounds} rounds"
    return svg.picture(width, height, title, parts)


class _Picture:
    """One algorithm: a rack for each host, in it a row for each rank, in that a cell for each
    chunk, in that a layer for each worker whose contribution the rank has.
    """

    def __init__(self, staged: StagedAlgorithm, played: Played, rounds: int) -> None:
        self.staged, self.length = staged, played.length
        self.schedule = schedule = played.schedule
        self.after = min(rounds, len(schedule.rounds))
        self.state = State(schedule)
        for transfers in schedule.rounds[: self.after]:
            self.state.apply(transfers)
        self.racks: dict[int, list[int]] = defaultdict(list)
        for rank, host in enumerate(schedule.hosts):
            self.racks[host].append(rank)
        self.hosts = sorted(self.racks)
        self.rack = (WIDTH - GAP) / len(self.racks) - GAP
        self.cell = min((self.rack - LABEL - 20) / schedule.chunks, 96)
        self.bottom = TOP + ROW * max(map(len, self.racks.values())) + 10
        self.height = self.bottom + 30

    def left(self, host: int) -> float:
        return GAP + self.hosts.index(host) * (self.rack + GAP)

    def corner(self, rank: int, chunk: int) -> tuple[float, float]:
        host = self.schedule.hosts[rank]
        x = self.left(host) + LABEL + 10 + chunk * self.cell
        return x, TOP + self.racks[host].index(rank) * ROW

    def color(self, rank: int) -> str:
        if rank >= self.schedule.workers:  # a server
            return INK
        color = PALETTE[rank * 8 // self.schedule.workers % 8]
        return "#555555" if color == "ink" else color

    def draw(self, nbytes: int) -> Iterator[Markup]:
        clocks = self.staged.clocks.values()
        times = ", ".join(f"{c['seconds'] * 1e3:.3g} ms {c['reality']}" for c in clocks)
        said = f"after {self.after} of {self.length} rounds; in all {times}"
        yield svg.text(12, 28, self.staged.label, font_size=20, font_weight=600)
        yield svg.text(WIDTH - 12, 28, said, text_anchor="end")
        done = replace(self.schedule, rounds=self.schedule.rounds[: self.after])
        carried = cost(done, nbytes, itemsize=ITEMSIZE)
        shade = {"fill": INK, "fill_opacity": 0.06, "stroke": INK, "stroke_opacity": 0.4}
        for host, ranks in self.racks.items():
            x = self.left(host)
            yield svg.rect(x, 44, self.rack, self.bottom - 44, rx=10, **shade)
            yield svg.text(x + 10, 66, f"host {host}", font_weight=600)
            if len(self.racks) > 1:
                said = f"↑ {amount(carried.up[host])}   ↓ {amount(carried.down[host])}"
                yield svg.text(x + self.rack / 2, self.bottom + 22, said, text_anchor="middle")
            for rank in ranks:
                yield from self._row(rank)
        if self.after < len(self.schedule.rounds):
            yield from map(self._arrow, self.schedule.rounds[self.after])

    def _row(self, rank: int) -> Iterator[Markup]:
        (x, y), server = self.corner(rank, 0), rank - self.schedule.workers
        name = str(rank) if server < 0 else f"s{server}"
        yield svg.rect(x - LABEL, y + 9, 24, 24, rx=5, fill=self.color(rank), fill_opacity=0.9)
        look = {"text_anchor": "middle", "font_weight": 600, "fill": "#111"}
        yield svg.text(x - LABEL + 12, y + 26, name, **look)
        for chunk in range(self.schedule.chunks):
            yield self._cell(rank, chunk)

    def _cell(self, rank: int, chunk: int) -> Markup:
        x, y = self.corner(rank, chunk)
        width, height = self.cell - 2, ROW - 4
        layer = height / self.schedule.workers
        once, twice = self.state.once[rank][chunk], self.state.twice[rank][chunk]
        whole = once == goal(self.schedule, rank, chunk) and not twice
        held = ", ".join(map(str, self.state.ranks(rank, chunk))) or "none"
        words = svg.title(f"rank {rank}, chunk {chunk}: ranks {held}")
        edge = {"stroke": INK, "stroke_width": 1.5} if whole else {}
        parts = [svg.rect(x, y, width, height, words, fill=INK, fill_opacity=0.15, **edge)]
        thick = max(layer - 0.6, 0.6)
        for r in members(once):
            parts.append(svg.rect(x, y + r * layer, width, thick, fill=self.color(r)))
        return join(parts)

    def _arrow(self, t: Transfer) -> Markup:
        """A bow from one chunk to the other: down on the right, up on the left."""
        corners = [self.corner(rank, t.chunk) for rank in (t.src, t.dst)]
        (ax, ay), (bx, by) = ((x + self.cell / 2, y + ROW / 2) for x, y in corners)
        bow = 18 if by > ay else -18
        middle = (ax + bx) / 2 + bow, (ay + by) / 2 + (abs(bow) if ay == by else 0)
        look = {"fill": "none", "stroke": INK, "stroke_width": 1.3, "marker_end": "url(#head)"}
        return svg.path("M", ax, ay, "Q", *middle, bx, by, inside=svg.title(str(t)), **look)
