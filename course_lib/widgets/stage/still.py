"""A still picture of the stage for slides and READMEs, as SVG: who has what after some rounds, what
moves next, and what the links carried.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from html import escape

from course_lib.collectives import Schedule, State, Transfer
from course_lib.collectives.contributions import goal, members
from course_lib.collectives.messages import chunk_ends
from course_lib.widgets.palette import INK
from course_lib.widgets.stage.act import Act, Setting, amount
from course_lib.widgets.stage.scene import ITEMSIZE

PANEL, LABEL, ROW, TOP = 620, 30, 44, 80
_FONT = f'font-family="system-ui, sans-serif" font-size="14" fill="{INK}"'
_HEAD = '<marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto"><path d="M0 0L8 4L0 8z"/></marker>'


def still_svg(
    acts: Sequence[Act], setting: Setting, palette: Sequence[str], rounds: int | None = None
) -> str:
    """The acts side by side after `rounds` rounds (default: half of the shortest).

    Raises ValueError if no act can be drawn.
    """
    drawn = [act for act in acts if act.shown]
    if not drawn:
        raise ValueError("; ".join(f"{act.label}: {act.problem}" for act in acts))
    if rounds is None:
        rounds = max(1, min(len(act.shown.schedule.rounds) for act in drawn if act.shown) // 2)
    panels = [_Panel(act, act.shown.schedule, rounds, palette) for act in drawn if act.shown]
    height = max(panel.height for panel in panels) + 34
    width = PANEL * len(panels)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" {_FONT} role="img">',
        f"<title>{escape(' beside '.join(act.label for act in drawn))}, after {rounds} rounds</title>",
        f'<defs><g fill="{INK}">{_HEAD}</g></defs>',
    ]
    for i, panel in enumerate(panels):
        parts += [f'<g transform="translate({i * PANEL} 0)">', *panel.draw(setting), "</g>"]
    parts += [
        f'<text x="12" y="{height - 12}">{escape(setting.words("simulated")["about"])}</text>',
        "</svg>",
    ]
    return "\n".join(parts)


class _Panel:
    """One algorithm: racks beside each other, in each a row for a rank, in that a cell for a chunk,
    in that a layer for a worker.
    """

    def __init__(self, act: Act, schedule: Schedule, rounds: int, palette: Sequence[str]) -> None:
        self.act, self.schedule, self.palette = act, schedule, palette
        self.after = min(rounds, len(schedule.rounds))
        self.state = State(schedule)
        for transfers in schedule.rounds[: self.after]:
            self.state.apply(transfers)
        self.racks: dict[int, list[int]] = defaultdict(list)
        for rank, host in enumerate(schedule.hosts):
            self.racks[host].append(rank)
        self.rack = (PANEL - 12) / len(self.racks) - 12
        self.cell = min((self.rack - LABEL - 20) / schedule.chunks, 96)
        self.bottom = TOP + ROW * max(map(len, self.racks.values())) + 10
        self.height = self.bottom + 30
        self.place = {
            rank: (column, row)
            for column, host in enumerate(sorted(self.racks))
            for row, rank in enumerate(self.racks[host])
        }

    def corner(self, rank: int, chunk: int) -> tuple[float, float]:
        column, row = self.place[rank]
        return 12 + column * (self.rack + 12) + LABEL + 10 + chunk * self.cell, TOP + row * ROW

    def color(self, rank: int) -> str:
        color = self.palette[rank * 8 // self.schedule.workers % 8]
        return "#555555" if color == "ink" else color

    def draw(self, setting: Setting) -> Iterator[str]:
        times = [
            f"{clock['seconds'] * 1e3:.3g} ms {clock['reality']}"
            for clock in self.act.clocks.values()
        ]
        said = f"after {self.after} of {self.act.shown.length if self.act.shown else 0} rounds"
        yield f'<text x="12" y="28" font-size="20" font-weight="600">{escape(self.act.label)}</text>'
        yield f'<text x="{PANEL - 12}" y="28" text-anchor="end">{said}; in all {", ".join(times)}</text>'
        links = self._links(setting.bytes)
        for column, host in enumerate(sorted(self.racks)):
            x = 12 + column * (self.rack + 12)
            box = f'x="{x:.1f}" y="44" width="{self.rack:.1f}" height="{self.bottom - 44}" rx="10"'
            yield f'<rect {box} fill="{INK}" fill-opacity="0.06" stroke="{INK}" stroke-opacity="0.4"/>'
            yield f'<text x="{x + 10:.1f}" y="66" font-weight="600">host {host}</text>'
            if len(self.racks) > 1:
                up, down = links[host]
                yield f'<text x="{x + self.rack / 2:.1f}" y="{self.bottom + 22}" text-anchor="middle">↑ {amount(up)}   ↓ {amount(down)}</text>'
            for rank in self.racks[host]:
                yield from self._row(rank)
        if self.after < len(self.schedule.rounds):
            for t in self.schedule.rounds[self.after]:
                yield self._arrow(t)

    def _row(self, rank: int) -> Iterator[str]:
        x, y = self.corner(rank, 0)
        worker = rank < self.schedule.workers
        yield f'<rect x="{x - LABEL:.1f}" y="{y + 9}" width="24" height="24" rx="5" fill="{self.color(rank) if worker else INK}" fill-opacity="0.9"/>'
        name = str(rank) if worker else f"s{rank - self.schedule.workers}"
        yield f'<text x="{x - LABEL + 12:.1f}" y="{y + 26}" text-anchor="middle" font-weight="600" fill="#111">{name}</text>'
        for chunk in range(self.schedule.chunks):
            yield from self._cell(rank, chunk)

    def _cell(self, rank: int, chunk: int) -> Iterator[str]:
        x, y = self.corner(rank, chunk)
        width, height = self.cell - 2, ROW - 4
        layer = height / self.schedule.workers
        whole = (
            self.state.once[rank][chunk] == goal(self.schedule, rank, chunk)
            and not self.state.twice[rank][chunk]
        )
        words = f"rank {rank}, chunk {chunk}: ranks {', '.join(map(str, self.state.ranks(rank, chunk))) or 'none'}"
        edge = f'stroke="{INK}" stroke-width="1.5"' if whole else ""
        yield f'<rect x="{x:.1f}" y="{y}" width="{width:.1f}" height="{height}" fill="{INK}" fill-opacity="0.15" {edge}><title>{words}</title></rect>'
        for r in members(self.state.once[rank][chunk]):
            size = f'width="{width:.1f}" height="{max(layer - 0.6, 0.6):.2f}"'
            yield f'<rect x="{x:.1f}" y="{y + r * layer:.2f}" {size} fill="{self.color(r)}"/>'

    def _arrow(self, t: Transfer) -> str:
        """A bow from one chunk to the other: down on the right, up on the left."""
        (ax, ay), (bx, by) = (
            (x + self.cell / 2, y + ROW / 2)
            for x, y in (self.corner(rank, t.chunk) for rank in (t.src, t.dst))
        )
        bow = 18 if by > ay else -18
        line = f"M{ax:.1f} {ay:.1f}Q{(ax + bx) / 2 + bow:.1f} {(ay + by) / 2 + (abs(bow) if ay == by else 0):.1f} {bx:.1f} {by:.1f}"
        return f'<path d="{line}" fill="none" stroke="{INK}" stroke-width="1.3" marker-end="url(#head)"><title>{t}</title></path>'

    def _links(self, nbytes: int) -> dict[int, list[int]]:
        """Host -> bytes out and in so far."""
        ends = chunk_ends(self.schedule, nbytes, ITEMSIZE)
        carried: dict[int, list[int]] = {host: [0, 0] for host in self.racks}
        for transfers in self.schedule.rounds[: self.after]:
            for t in transfers:
                src, dst = self.schedule.hosts[t.src], self.schedule.hosts[t.dst]
                if src != dst:
                    carried[src][0] += int(ends[t.chunk + 1] - ends[t.chunk])
                    carried[dst][1] += int(ends[t.chunk + 1] - ends[t.chunk])
        return carried
