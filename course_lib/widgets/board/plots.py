"""What a board plots, as plain data: panels of curves, and lanes of what each task did lately.

`charts` draws the panels in a page, `pictures` as SVG. Lanes are cut into columns of
equal time, so that they cost the same however fast a cluster steps; `pictures` draws them as SVG,
`lockstep watch` as characters.
"""

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from course_lib.record import measures
from course_lib.record.curves import WINDOW, Curve, Goal
from course_lib.record.digest import Digest
from course_lib.record.events import OWN, Phase
from course_lib.record.marks import marks
from course_lib.record.standstill import SILENT
from course_lib.text import round_up
from course_lib.widgets.kit.palette import FATE

POINTS = 300  # at most, in a line: a panel is hardly wider
BIN = 0.25  # seconds over which a rate is taken, at least


@dataclass(frozen=True)
class Panel:
    """A chart: its title, what its axes count, one line (x, y) an entrant, and a `target` across
    it, if there is one.

    `reached`: where each entrant reached the target, None if it did not. `marks`: what was done to
    tasks and hosts: where on the x axis, a word, and a sentence with whom and when. `until`: where
    the x axis ends at least. `log`: whether the y axis is logarithmic; None if it never is.
    `empty`: what stands in place of axes where there is no line.
    """

    title: str
    x: str
    y: str
    lines: Sequence[tuple[np.ndarray, np.ndarray]]
    target: float | None = None
    reached: Sequence[tuple[float, float] | None] = ()
    marks: Sequence[tuple[float, str, str]] = ()
    until: float = 0.0
    log: bool | None = None
    empty: str = ""

    @property
    def wide(self) -> float:
        """Where the x axis ends."""
        ends = [float(x[-1]) for x, _ in self.lines if len(x)]
        return max([self.until, *ends, *(at for at, _, _ in self.marks)]) or 1.0

    def y_axis(self, log: bool) -> tuple[float, float]:
        """Where the y axis begins and ends, if it is logarithmic or not."""
        known = np.concatenate([y for _, y in self.lines] + [np.array([self.target or 0.0])])
        known = known[np.isfinite(known) & ((known > 0) | (not log))]
        if not known.any():
            return (0.1, 1.0) if log else (0.0, 1.0)
        low, high = float(known.min()), float(known.max())
        return (low / 1.15, high * 1.15) if log else (min(0.0, low) * 1.06, max(0.0, high) * 1.06)


def progress(what: str, over: str, curves: Sequence[Curve], goal: Goal | None) -> Panel:
    """The curves of all entrants: a loss or the accuracy (`what`) over `seconds` or `examples`
    (`over`), with the goal if it is one of that kind.
    """
    loss = what.endswith("loss")
    unit = f"{what}, mean of {WINDOW} batches" if loss else what
    lines = [(getattr(c, over), c.means) for c in (curve.thinned(POINTS) for curve in curves)]
    title = what if what.endswith(" loss") else f"{what} over {over}"  # a short one beside a name
    panel = Panel(title, over, unit, lines, log=False if loss else None)
    if goal is None or goal.what != what:
        return panel
    axis = ("seconds", "examples").index(over)
    reached = [(r[axis], goal.value) if (r := goal.reached(c)) else None for c in curves]
    return replace(panel, target=goal.value, reached=reached)


def throughput(curves: Sequence[Curve], still: Sequence[tuple[float, float] | None]) -> Panel:
    """The rates of all entrants over time. `still`: since when, and until now, one has stood still,
    None if it moves.
    """
    lines = []
    for curve, time in zip(curves, still, strict=True):
        xs, ys = _rates(curve)
        if time and len(xs):
            since = max(time[0], float(xs[-1]))
            xs, ys = np.append(xs, [since, max(since, time[1])]), np.append(ys, [0.0, 0.0])
        lines.append((xs, ys))
    return Panel("examples a second", "seconds", "examples/s", lines)


def _rates(curve: Curve) -> tuple[np.ndarray, np.ndarray]:
    """Throughput over time: (seconds, examples a second), each a mean over the time since the one
    before.
    """
    first = np.searchsorted(curve.seconds, 0.0, side="right")
    seconds, examples = curve.seconds[first:], curve.examples[first:]
    if len(seconds) < 3:
        return np.zeros(0), np.zeros(0)
    whole = seconds[-1] - seconds[0]
    # four records in a bin, but two bins at least: one point is no line
    width = min(max(BIN, 4 * whole / len(seconds), whole / 60), whole / 2)
    edges = seconds[0] + width * np.arange(math.floor(whole / width + 1e-6) + 1)
    return edges[1:], np.diff(np.interp(edges, seconds, examples)) / width


ROWS, ROW = 4, 13  # in which the words of neighbours stand, and the height of one
LETTER = 0.015  # of a word in a lane, as a share of a narrow lane's width


COLUMNS = 600
NAMES = (*measures.SHOWN, "hidden", "checkpoint", OWN, *FATE)
STEPS = 8  # of the slowest worker, that should fit into a lane
NOTHING = -1  # a column in which no phase was recorded
GOING = ("starting", "running", "paused", "resumed")  # states that a lane does not name


class Lane(NamedTuple):
    """A task in a window of time. `cells`: int8 of shape (columns,), an index into `NAMES` or
    `NOTHING`; `hidden`: the same for exchanges beside computing; `waited`: share of the window;
    `fate`: `paused`, `killed` or `cut` if the task is now, else empty; `factor`: how many times
    slower it was made; `events`: what was done to it, and at which share of the window; `said`:
    what it has been in for long; `unsure`: the share of the window within which any of it may lie,
    as far as its node's clock is known.
    """

    task: str
    cells: np.ndarray
    hidden: np.ndarray
    waited: float
    fate: str
    factor: float
    events: Sequence[tuple[float, str]] = ()
    said: str = ""
    unsure: float = 0.0

    @property
    def name(self) -> str:
        return f"{self.task} \u00d7{self.factor:g}" if self.factor > 1 else self.task

    @property
    def note(self) -> str:
        """What stands at the end of the lane: what holds the task up, what it has long been in, or
        how much of the window a worker waited. A phase is recorded when it ends, so one that is
        stuck in one is silent, unless its beats say more.
        """
        if self.fate or self.said or not self.task.startswith("worker:"):
            return {"cut": "cut off"}.get(self.fate, self.fate) or self.said
        return "silent" if (self.cells == NOTHING).all() else f"waits {self.waited:.0%}"


class TimeWindow(NamedTuple):
    """From when to when lanes are shown, in seconds of the trace, and when its clock started."""

    begin: float
    end: float
    zero: float = 0.0

    @property
    def span(self) -> float:
        return self.end - self.begin


def span_for(digests: Iterable[Digest], now: float = 0.0) -> float:
    """Seconds that all lanes should show: some steps of the slowest run.

    The span that is shown `now` stays while it fits.
    """
    need = max(0.05, STEPS * max((d.step_seconds() for d in digests), default=0.0))
    return now if now / 3 < need <= now else round_up(min(need, 60.0))


def lanes(
    digest: Digest, window: TimeWindow, columns: int = COLUMNS, going_on: Sequence[Phase] = ()
) -> list[Lane]:
    """A lane for each task of a run. Where several phases share a column, the shortest is drawn: a
    longer one has other columns, too. `going_on`: phases that are not over yet.
    """
    # a little more, so that all of a step is there to tell its waits
    shown = digest.recent(window.begin - window.span / STEPS) + list(going_on)
    said = {
        p.task: f"{'waits' if p.kind == 'wait' else p.kind} {seconds:.1f} s"
        for p in going_on
        if (seconds := p.end - p.start) > SILENT
    }
    idle = measures.IdleTime()
    idle.add(shown, window.begin, window.end)
    found = []
    for task in digest.tasks:
        seen = (p for p in shown if p.end > window.begin and p.start < window.end)
        mine = [p for p in seen if p.task == task]
        cells, hidden = np.full((2, columns), NOTHING, np.int8)
        for p in sorted(mine, key=lambda p: p.start - p.end):
            _paint(hidden if p.what == "hidden" else cells, window, p.start, p.end, p.kind)
        fate = ""
        for what, start, end in digest.fates(task):
            if start < window.end and end > window.begin:
                _paint(cells, window, start, end, what)
            fate = what if math.isinf(end) else fate
        state = digest.states.get(task)
        if not (fate or digest.over) and state and state.state not in GOING:
            fate = state.state
        share = idle.share.get(task, 0.0)
        done = [
            ((mark.at - window.begin) / window.span, mark.word)
            for mark in marks(digest.life, (task, f"host:{digest.spec.places[task]}"))
            if window.begin <= mark.at <= window.end  # none in the empty window of damaged times
        ]
        begun = digest.over or digest.latest(task, 1)
        long = said.get(task, "" if begun else "no step yet")
        events = _apart(done)
        unsure = min(1.0, 2 * digest.unsure.get(task, 0.0) / window.span) if window.span else 0.0
        factor = digest.factor(task)
        found.append(Lane(task, cells, hidden, share, fate, factor, events, long, unsure))
    return found


def _apart(events: Sequence[tuple[float, str]]) -> list[tuple[float, str]]:
    """Events whose words would lie on each other share the place of the first."""
    found: list[tuple[float, list[str]]] = []
    for at, word in events:
        if found and at < found[-1][0] + LETTER * (len(_together(found[-1][1])) + 2):
            found[-1][1].append(word)
        else:
            found.append((at, [word]))
    return [(at, _together(words)) for at, words in found]


def _together(words: Sequence[str]) -> str:
    """Words in one place: all, or the last of many."""
    said = ", ".join(words)
    return said if len(said) <= 28 else f"{words[-1]} (last of {len(words)})"


def _paint(cells: np.ndarray, window: TimeWindow, start: float, end: float, what: str) -> None:
    """Mark the columns of a stretch of time, one at least."""
    scale = len(cells) / window.span
    first = max(0, round((start - window.begin) * scale))
    last = min(len(cells), max(first + 1, round((min(end, window.end) - window.begin) * scale)))
    cells[first:last] = NAMES.index(what)


def runs(cells: np.ndarray) -> list[tuple[int, int, int]]:
    """Stretches of equal columns, as (first, one past the last, what), without those that hold
    nothing.
    """
    edges = [0, *(np.flatnonzero(np.diff(cells)) + 1).tolist(), len(cells)]
    pairs = [(a, b) for a, b in itertools.pairwise(edges) if a < b]
    return [(a, b, int(cells[a])) for a, b in pairs if cells[a] != NOTHING]
