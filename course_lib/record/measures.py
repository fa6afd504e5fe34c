"""What a trace says: waiting, idle share, throughput. Everything here is computed from events, for
live, saved and simulated runs alike.

What counts as an update: one application of a gradient to the whole model, however many places that
lies in. Those may be copies (one for each replica) or parts (one for each parameter server, stage
or shard), and each of them writes an `Update` into the trace. What several places write of the same
step is one update. What one place writes of the same step is several, as each asynchronous worker
numbers its own steps. So 150 synchronous steps are 150 updates, on four replicas, two parameter
servers or a central device alike, and with backup workers too; 150 steps of each of four
asynchronous workers are 600. Parts count their versions themselves: the staleness of an update is
that of its stalest part.
"""

from __future__ import annotations

import itertools
import statistics
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from typing import Any

from course_lib import text
from course_lib.record.events import Lifecycle, Metric, Phase, Traffic, Update, task_key
from course_lib.record.trace import Trace

SHOWN = ("read", "compute", "wait", "reduce", "apply")  # phases of a training step, in their order


def lanes(trace: Trace, since: float = 0.0) -> list[Phase]:
    """All phases that end after `since`, with `reduce` split into `wait`, until the last worker has
    arrived, and the exchange itself.

    A worker in a synchronous reduction cannot tell the two apart; on one clock with all the others,
    the trace can. The last to arrive is the last of those whose gradients make the worker's update:
    where updates name them (see `Update.workers`), of these, else of all workers.
    """
    phases = [p for p in trace.all(Phase) if p.end > since]
    numbers = _reductions(phases)
    last_arrival = _last_arrivals(phases, numbers, [u for u in trace.all(Update) if u.workers])
    split: list[Phase] = []
    for p, number in zip(phases, numbers, strict=True):
        ready = (
            last_arrival.get((p.task, p.step, number), p.start) if p.what == "reduce" else p.start
        )
        # one that is over before the last has come did not wait for it
        ready = p.start if ready > p.end else max(p.start, ready)
        if ready > p.start:
            split.append(p._replace(what="wait", end=ready))
        split.append(p._replace(start=ready))
    return split


def _reductions(phases: list[Phase]) -> list[int]:
    """For each phase, how many reductions its task has begun in its step before: in each of them
    workers wait for each other anew.
    """
    seen: Counter[tuple[str, int]] = Counter()
    numbers = []
    for p in phases:
        numbers.append(seen[p.task, p.step])
        seen[p.task, p.step] += p.what == "reduce"
    return numbers


def _last_arrivals(
    phases: list[Phase], numbers: list[int], updates: list[Update]
) -> dict[tuple[str, int, int], float]:
    """(Task, step, number of the reduction in it) -> when the last came of those for whom the task
    waits in it, where all of them have come.

    `updates`: those that name the workers whose gradients went into them. If there are any, no
    reduction is a meeting of all.
    """
    begun: dict[tuple[int, int], dict[str, float]] = defaultdict(dict)
    for p, number in zip(phases, numbers, strict=True):
        if p.what == "reduce":
            begun[p.step, number][p.task] = p.start
    together: dict[int, set[tuple[str, ...]]] = defaultdict(set)
    for update in updates:
        together[update.step].add(tuple(update.workers.split()))
    everyone = max((len(tasks) for tasks in begun.values()), default=0)
    last: dict[tuple[str, int, int], float] = {}
    for (step, number), tasks in begun.items():
        for who in together[step] if updates else [tuple(tasks)] if len(tasks) == everyone else []:
            if tasks.keys() >= set(who):
                came = max(tasks[task] for task in who)
                last |= {
                    (task, step, number): max(came, last.get((task, step, number), came))
                    for task in who
                }
    return last


def time_in(trace: Trace) -> dict[str, dict[str, float]]:
    """Task -> phase -> seconds spent in it, waits told apart from exchanges."""
    total: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    for p in lanes(trace):
        total[p.task][p.what] += p.end - p.start
    return {task: dict(total[task]) for task in sorted(total, key=task_key)}


def table(trace: Trace) -> str:
    """Where each task's time went, as text: seconds in each phase and its share of them all."""
    rows = [["", *SHOWN]]
    for task, spent in time_in(trace).items():
        whole = sum(spent.values()) or 1.0
        times = [spent.get(what, 0.0) for what in SHOWN]
        rows.append([task, *(f"{seconds:.2f} s {seconds / whole:4.0%}" for seconds in times)])
    return text.table(rows, right=True)


def synchronous_step(trace: Trace, slowest: float = 1.0) -> float:
    """Seconds a synchronous step should take: the longest compute of all tasks, then the exchange,
    then the update (medians over the steps).

    `slowest` is how many times slower the slowest task is to be thought. The first steps are left
    out: they compile. NaN without phases.
    """
    times: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for p in lanes(trace):
        if p.step > 5:
            times[p.what][p.task].append(p.end - p.start)
    longest = {what: max(map(statistics.median, tasks.values())) for what, tasks in times.items()}
    return (
        slowest * longest["compute"] + longest.get("reduce", 0.0) + longest["apply"]
        if longest
        else float("nan")
    )


def idle_share(trace: Trace) -> dict[str, float]:
    """Task -> share of its time, from its first phase to its last, that it waited for others."""
    spans: dict[str, tuple[float, float]] = {}
    for p in trace.all(Phase):
        start, end = spans.get(p.task, (p.start, p.end))
        spans[p.task] = min(start, p.start), max(end, p.end)
    waited = {task: phases.get("wait", 0.0) for task, phases in time_in(trace).items()}
    return {
        task: waited[task] / (end - start) if end > start else 0.0
        for task, (start, end) in spans.items()
    }


class Updates:
    """The updates of a run, counted as the top of this file says, taken in as their places write
    them: piece by piece, or all at once.

    The order in which places are read does not matter.
    """

    def __init__(self, written: Iterable[Update] = ()) -> None:
        self._seen: Counter[int] = Counter()
        # place and step -> how many so far
        self._made: Counter[tuple[str, str, str, int]] = Counter()
        self._stalest: dict[tuple[int, int], int] = {}  # step, and number in it -> staleness
        self.add(written)

    def add(self, written: Iterable[Update]) -> None:
        """Take in more, in the order in which each place wrote it."""
        for u in written:
            here = u.task, u.device, u.variables, u.step
            update = u.step, self._made[here]
            self._made[here] += 1
            known = self._stalest.get(update)
            if known is None or u.staleness > known:
                self._stalest[update] = u.staleness
                self._seen[u.staleness] += 1
                if known is not None:
                    self._seen[known] -= 1

    @property
    def staleness(self) -> Counter[int]:
        """How many updates had which staleness."""
        return +self._seen


def staleness(trace: Trace) -> dict[str, Any]:
    """How stale the gradients were when they were applied, counted in updates.

    `mean` and `max`; `updates`: how many had which staleness; `by_worker`: the mean of each
    worker's gradients, over all places that they were applied in, {} where a trace does not tell
    whose they are.
    """
    written = trace.all(Update)
    seen, of = Updates(written).staleness, defaultdict[str, list[int]](list)
    for update in written:
        for worker in update.workers.split():
            of[worker].append(update.staleness)
    return {
        "mean": round(statistics.fmean(seen.elements()), 4) if seen else 0.0,
        "max": max(seen, default=0),
        "updates": {str(stale): seen[stale] for stale in sorted(seen)},
        "by_worker": {
            worker: round(statistics.fmean(of[worker]), 4) for worker in sorted(of, key=task_key)
        },
    }


def step_ends(trace: Trace) -> list[float]:
    """When each step was over, in order: a step ends when its last worker has applied the update."""
    ends: dict[int, float] = {}
    for p in trace.all(Phase, what="apply"):
        ends[p.step] = max(p.end, ends.get(p.step, 0.0))
    return [ends[step] for step in sorted(ends)]


def step_seconds(trace: Trace) -> list[float]:
    """Seconds from the end of each step to the end of the next."""
    return [b - a for a, b in itertools.pairwise(step_ends(trace))]


def examples_per_second(trace: Trace, batch: int) -> float:
    """Throughput over all workers after the first step, which traces and compiles; NaN for fewer
    than two steps.
    """
    seconds = step_seconds(trace)
    return batch * len(seconds) / sum(seconds) if seconds and sum(seconds) > 0 else float("nan")


def median_step(trace: Trace) -> float:
    """Median seconds of a step; NaN for fewer than two steps."""
    seconds = step_seconds(trace)
    return statistics.median(seconds) if seconds else float("nan")


def seconds_to(trace: Trace) -> dict[str, float]:
    """Seconds from `start` to: all tasks `start`ed, the `first_step` applied everywhere, and the
    last event (`total`).
    """
    running = [e.at for e in trace.all(Lifecycle, state="running")]
    first = [p.end for p in trace.all(Phase, what="apply", step=0)]
    return {
        "start": max(running, default=float("nan")),
        "first_step": max(first, default=float("nan")),
        "total": trace.seconds,
    }


def curve(trace: Trace, name: str = "loss") -> list[Metric]:
    """The values of a metric in order of step, one for each step."""
    by_step = {m.step: m for m in trace.all(Metric, name=name)}
    return [by_step[step] for step in sorted(by_step)]


def wire_bytes(trace: Trace) -> dict[str, Traffic]:
    """Task or host -> all that it sent and received, start and end of the run included.

    Empty where nothing went over a wire.
    """
    return {e.task: e for e in trace.all(Traffic)}


def wire_bytes_per_step(trace: Trace) -> dict[str, dict[str, float]]:
    """Task or host -> bytes `sent` and `received` in a step, as the kernel counts. Empty where
    nothing went over a wire, or for two steps or less.

    What is sent to meet the others, in the first step and after the last does not count. Counters
    are read at moments of their own: of a step that goes on just then, as much counts as is over of
    its exchange.
    """
    ends = sorted(step_ends(trace))
    if len(ends) < 2:
        return {}
    progress, found = _progress(trace, ends), {}
    for name in wire_bytes(trace):
        readings = [e for e in trace.all(Traffic, name) if e.at >= ends[0]]
        inside = sum(e.at <= ends[-1] for e in readings)
        # a short run may have no second reading before it was over
        first, last = readings[:1], readings[: max(2, inside)][1:][-1:]
        steps = progress(last[0].at) - progress(first[0].at) if last else 0.0
        if steps > 0:
            found[name] = {
                what: round((getattr(last[0], what) - getattr(first[0], what)) / steps, 1)
                for what in ("sent", "received")
            }
    return found


def _progress(trace: Trace, ends: list[float]) -> Callable[[float], float]:
    """A function of time: how many steps are over, of the step that goes on the part of its
    exchange, or of its time where it has none.
    """
    exchanges: dict[int, list[Phase]] = defaultdict(list)
    for p in lanes(trace):
        if p.what == "reduce":
            exchanges[p.step].append(p)

    def progress(at: float) -> float:
        done = bisect_right(ends, at)
        if done in (0, len(ends)):
            return float(done)
        if not exchanges[done]:
            return done + (at - ends[done - 1]) / (ends[done] - ends[done - 1])
        over = sum(min(max(0.0, at - p.start), p.end - p.start) for p in exchanges[done])
        return done + over / sum(p.end - p.start for p in exchanges[done])

    return progress
