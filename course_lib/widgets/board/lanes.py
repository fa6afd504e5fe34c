"""Lanes: what each task did lately, in columns of equal time. A board draws them as SVG, a terminal
as characters; however fast a cluster steps, a lane has no more than its columns.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from course_lib.record import measures
from course_lib.record.digest import Digest
from course_lib.record.events import Phase
from course_lib.widgets.kit import svg
from course_lib.widgets.kit.palette import FATE

COLUMNS = 600
NAMES = (*measures.SHOWN, "checkpoint", *FATE)
STEPS = 8  # of the slowest worker, that should fit into a lane
NOTHING = -1  # a column in which no phase was recorded


class Lane(NamedTuple):
    """A task in a window of time. `cells`: int8 of shape (columns,), an index into `NAMES` or
    `NOTHING`; `waited`: share of the window; `fate`: `paused`, `killed`, `cut` or empty, as it is
    now; `factor`: how many times slower it was made.
    """

    task: str
    cells: np.ndarray
    waited: float
    fate: str
    factor: float

    @property
    def name(self) -> str:
        return f"{self.task} \u00d7{self.factor:g}" if self.factor > 1 else self.task

    @property
    def note(self) -> str:
        """What stands at the end of the lane. A phase is recorded when it ends, so a worker that is
        stuck in one is silent.
        """
        if self.fate or not self.task.startswith("worker:"):
            return self.fate
        return "silent" if (self.cells == NOTHING).all() else f"waits {self.waited:.0%}"


class TimeWindow(NamedTuple):
    """From when to when lanes are shown, in seconds of the trace."""

    begin: float
    end: float

    @property
    def span(self) -> float:
        return self.end - self.begin


def span_for(digests: Iterable[Digest], now: float = 0.0) -> float:
    """Seconds that all lanes should show: some steps of the slowest run.

    The span that is shown `now` stays while it fits.
    """
    need = max(0.05, STEPS * max((d.step_seconds() for d in digests), default=0.0))
    return now if now / 3 < need <= now else svg.round_up(min(need, 60.0))


def lanes(digest: Digest, window: TimeWindow, columns: int = COLUMNS) -> list[Lane]:
    """A lane for each task of a run. Where several phases share a column, the shortest is drawn: a
    longer one has other columns, too.
    """
    # a little more, so that all of a step is there to tell its waits
    shown = digest.recent(window.begin - window.span / STEPS)
    found = []
    for task in digest.tasks:
        seen = (p for p in shown if p.end > window.begin and p.start < window.end)
        mine = [p for p in seen if p.task == task]
        cells = np.full(columns, NOTHING, np.int8)
        for p in sorted(mine, key=lambda p: p.start - p.end):
            _paint(cells, window, p.start, p.end, p.what)
        fate = ""
        for what, start, end in digest.fates(task):
            if start < window.end and end > window.begin:
                _paint(cells, window, start, end, what)
            fate = what if math.isinf(end) else fate
        found.append(Lane(task, cells, _waited(mine, window), fate, digest.factors.get(task, 1.0)))
    return found


def _paint(cells: np.ndarray, window: TimeWindow, start: float, end: float, what: str) -> None:
    """Mark the columns of a stretch of time, one at least."""
    scale = len(cells) / window.span
    first = max(0, round((start - window.begin) * scale))
    last = min(len(cells), max(first + 1, round((min(end, window.end) - window.begin) * scale)))
    cells[first:last] = NAMES.index(what)


def _waited(phases: Sequence[Phase], window: TimeWindow) -> float:
    """The share of the window that was spent waiting, of what is known of it."""
    clipped = [(p.what, max(p.start, window.begin), min(p.end, window.end)) for p in phases]
    if not clipped:
        return 0.0
    known = max(end for _, _, end in clipped) - min(start for _, start, _ in clipped)
    waited = sum(end - start for what, start, end in clipped if what == "wait")
    return waited / known if known > 0 else 0.0


def runs(cells: np.ndarray) -> list[tuple[int, int, int]]:
    """Stretches of equal columns, as (first, one past the last, what), without those that hold
    nothing.
    """
    edges = [0, *(np.flatnonzero(np.diff(cells)) + 1).tolist(), len(cells)]
    pairs = [(a, b) for a, b in itertools.pairwise(edges) if a < b]
    return [(a, b, int(cells[a])) for a, b in pairs if cells[a] != NOTHING]
