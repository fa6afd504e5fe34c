"""Figures of a whole trace: where the time went, step times, staleness, bytes on the wire. They are
the same for live, saved and simulated runs.

An update is one application of a gradient to the whole model. The model may lie in several places:
copies (one for each replica) or parts (one for each parameter server, stage or shard). Each place
writes an `Update` into the trace. If several places write one for the same step, that is one
update. If one place writes several for the same step, each is an update of its own, because
asynchronous workers number their steps themselves. So 150 synchronous steps are 150 updates, on
four replicas, two parameter servers or a central device alike, and with backup workers too; 150
steps of each of four asynchronous workers are 600. Each part counts its own versions, so the
staleness of an update is that of its stalest part.

What takes up the memory of a task, it counts from its tensors, in its first step only, as counting
costs time. It records metrics with these names, in bytes. Of several with one name the largest
counts: a stage of a pipeline records its activations after each microbatch.

    parameters       the weights that the task holds when a step begins, trained or frozen (in
                     TensorFlow frozen ones are buffers): all of the model, a shard, or a stage
    gradients        those that it holds when the backward pass is over
    optimizer_state  what its optimizer keeps for the parameters that it updates
    activations      what the forward pass keeps for the backward pass, at its peak: each tensor
                     once; parameters and buffers are left out, the task's share of the batch is
                     counted if the first layer needs it again
    buffers          tensors that are not trained, such as the statistics of batch normalisation;
                     and memory for exchanges: layers gathered for a moment, gradients on their way

Memory that belongs to no tensor is not counted: that of gloo, NCCL or gRPC, and what an operation
needs only while it runs.
"""

import itertools
import math
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np

from course_lib import text
from course_lib.record.events import Lifecycle, Metric, Phase, Read, Traffic, Update, task_key
from course_lib.record.trace import Trace

SHOWN = ("read", "compute", "wait", "reduce", "apply")  # phases of a training step, in their order
# the parts of an exchange -> the phases that they are recorded as
EXCHANGE = {"hidden": "hidden", "exposed": "reduce"}


def table(trace: Trace) -> str:
    """A table of each task's time: seconds in each phase, and their share of the time from
    the task's first phase to its last. Shares add up to less than 100 % if the task was in no phase
    for a while, such as a parameter server with nothing to do. Checkpoints, and phases with a name
    of a learner's own, have a column if there are any, and so has what was hidden behind computing.
    """
    spent: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    phases, whole = trace.with_waits(), IdleTime()
    whole.add(phases)
    for p in phases:
        spent[p.task][p.kind] += p.end - p.start
    kinds = {kind for times in spent.values() for kind in times}
    shown = [*SHOWN, *sorted(kinds.difference(SHOWN))]
    rows = [["", *shown]]
    for task in sorted(spent, key=task_key):
        first, last = whole.spans.get(task, (0.0, 1.0))
        times = [spent[task][kind] for kind in shown]
        shares = [f"{seconds:.2f} s {seconds / (last - first):4.0%}" for seconds in times]
        rows.append([task, *shares])
    return text.table(rows, right=True)


def exchange_ms(trace: Trace) -> dict[str, float]:
    """Milliseconds of a step in which a task exchanged something with others, the mean over tasks
    and steps: `hidden` behind its computing, and `exposed`. Waits for tasks that had not come yet
    are in neither. Empty if nothing was exchanged.
    """
    exchanges = [p for p in trace.with_waits() if p.what in EXCHANGE.values()]
    steps = len({(p.task, p.step) for p in exchanges})
    return {
        part: round(1000 * sum(p.end - p.start for p in exchanges if p.what == what) / steps, 2)
        for part, what in EXCHANGE.items()
        if steps
    }


class IdleTime:
    """The share of its time that each task waited for others. Phases can be added bit by bit."""

    def __init__(self) -> None:
        self.spans: dict[str, tuple[float, float]] = {}  # task -> first start, last end
        self._waited: dict[str, float] = defaultdict(float)

    def add(self, phases: Iterable[Phase], since: float = 0.0, until: float = math.inf) -> None:
        """Add phases as `Trace.with_waits` returns them; only what lies between `since` and `until`
        counts.
        """
        for p in phases:
            start, end = max(p.start, since), min(p.end, until)
            if end > start:
                first, last = self.spans.get(p.task, (start, end))
                self.spans[p.task] = min(first, start), max(last, end)
                self._waited[p.task] += end - start if p.what == "wait" else 0.0

    @property
    def share(self) -> dict[str, float]:
        """Task -> share of the time from its first phase to its last."""
        return {
            task: self._waited[task] / (last - first)
            for task, (first, last) in sorted(self.spans.items(), key=lambda s: task_key(s[0]))
            if last > first
        }


def idle_share(trace: Trace) -> dict[str, float]:
    """Task -> share of its time, from its first phase to its last, that it waited for others."""
    idle = IdleTime()
    idle.add(trace.with_waits())
    return idle.share


class Updates:
    """The updates of a run, counted as the top of this file explains. They can be added bit by bit.

    The order in which places are read does not matter.
    """

    def __init__(self) -> None:
        # place and step -> how many so far
        self._made: Counter[tuple[str, str, str, int]] = Counter()
        self._stalest: dict[tuple[int, int], int] = {}  # step, and number in it -> staleness
        self._of: dict[str, list[int]] = defaultdict(lambda: [0, 0])  # worker -> sum, count

    def add(self, written: Iterable[Update]) -> None:
        """Add updates; those of one place in the order in which it wrote them."""
        for u in written:
            here = u.task, u.device, u.variables, u.step
            update = u.step, self._made[here]
            self._made[here] += 1
            self._stalest[update] = max(u.staleness, self._stalest.get(update, u.staleness))
            for worker in u.workers.split():
                self._of[worker][0] += u.staleness
                self._of[worker][1] += 1

    @property
    def holders(self) -> dict[str, list[str]]:
        """Variables -> the tasks that update them."""
        tasks: defaultdict[str, set[str]] = defaultdict(set)
        for task, _, variables, _ in list(self._made):
            tasks[variables].add(task)
        return {variables: sorted(tasks[variables], key=task_key) for variables in sorted(tasks)}

    @property
    def staleness(self) -> Counter[int]:
        """Staleness -> number of updates."""
        return Counter(self._stalest.values())

    @property
    def mean(self) -> float:
        """The mean staleness; 0 without updates."""
        return sum(self._stalest.values()) / len(self._stalest) if self._stalest else 0.0

    def as_dict(self) -> dict[str, Any]:
        """The staleness of gradients when they were applied, counted in updates.

        `mean` and `max`; `updates`: staleness -> number of updates; `by_worker`: the mean staleness
        of each worker's gradients, over all places in which they were applied; {} if the trace does
        not say whose they were.
        """
        seen, workers = self.staleness, sorted(self._of, key=task_key)
        return {
            "mean": round(self.mean, 4),
            "max": max(seen, default=0),
            "updates": {str(stale): seen[stale] for stale in sorted(seen)},
            "by_worker": {w: round(self._of[w][0] / self._of[w][1], 4) for w in workers},
        }


def step_spans(trace: Trace) -> dict[int, tuple[float, float]]:
    """Step -> when the first and when the last worker had applied its update, in order of step."""
    spans: dict[int, tuple[float, float]] = {}
    for p in trace.all(Phase, what="apply"):
        first, last = spans.get(p.step, (p.end, p.end))
        spans[p.step] = min(first, p.end), max(last, p.end)
    return dict(sorted(spans.items()))


def step_times(trace: Trace) -> list[float]:
    """Seconds from the end of each step, when its last worker had applied the update, to the end of
    the next; empty for fewer than two steps.
    """
    ends = [last for _, last in step_spans(trace).values()]
    return [b - a for a, b in itertools.pairwise(ends)]


def median_step(trace: Trace) -> float:
    """The median of `step_times`; NaN for fewer than two steps."""
    return statistics.median(step_times(trace) or [math.nan])


def seconds_to(trace: Trace) -> dict[str, float]:
    """Seconds since the run was called: until all tasks were running (`start`), until the first
    step was applied everywhere (`first_step`), and until the last event (`total`).
    """
    running = [e.at for e in trace.all(Lifecycle, state="running", attempt=0)]
    first = [p.end for p in trace.all(Phase, what="apply", step=0)]
    return {
        "start": max(running, default=math.nan),
        "first_step": max(first, default=math.nan),
        "total": trace.seconds,
    }


class Coverage(NamedTuple):
    """The examples of an epoch as they were read: `read`, how many of them; `repeated`, those that
    were read more than once, each with the tasks that did so; `never`, those that were not.
    """

    read: int
    repeated: dict[int, list[str]]
    never: list[int]


def coverage(trace: Trace, examples: int) -> dict[int, Coverage]:
    """Epoch -> how it covered the `examples` of the training data, in a run with `record_examples`.

    Of the last epoch, those are in `never` too that would have been read later. An example counts
    as read even if its gradient was dropped, as a late one is with backup workers.
    """
    readers: dict[int, dict[int, list[str]]] = defaultdict(lambda: defaultdict(list))
    for event in trace.all(Read):
        for example in event.examples:
            readers[event.epoch][example].append(event.task)
    return {
        epoch: Coverage(
            read=len(tasks),
            repeated={each: who for each, who in sorted(tasks.items()) if len(who) > 1},
            never=[each for each in range(examples) if each not in tasks],
        )
        for epoch, tasks in sorted(readers.items())
    }


def wire_bytes(trace: Trace) -> dict[str, Traffic]:
    """Task or host -> all that it sent and received in the whole run, its start and end included.

    Empty where nothing went over a wire.
    """
    return {e.task: e for e in trace.all(Traffic)}


def wire_bytes_per_step(trace: Trace) -> dict[str, dict[str, float]]:
    """Task or host -> bytes `sent` and `received` in a step, as the kernel counts them. Empty if
    nothing went over a wire, or if the run had fewer than two steps.

    Bytes sent while tasks find each other, in the first step, or after the last one are left out.
    What the counters were when a step ended is interpolated between two readings.
    """
    ends = sorted(last for _, last in step_spans(trace).values())
    rates = {}
    for name in wire_bytes(trace) if len(ends) > 1 else ():
        readings = [e for e in trace.all(Traffic, name) if e.at >= ends[0]]
        inside = [e for e in readings if e.at <= ends[-1]]
        between = [at for at in ends if inside and inside[0].at <= at <= inside[-1].at]
        if len(between) > 1:
            span, steps = (between[0], between[-1]), len(between) - 1
        else:  # a short run: up to the first reading after it
            inside, span = readings[:2], (-math.inf, math.inf)
            steps = sum(inside[0].at < at <= inside[-1].at for at in ends) if inside else 0
        if steps:
            at, sent, received = zip(*((e.at, e.sent, e.received) for e in inside), strict=True)
            rates[name] = {
                way: round(float(np.ptp(np.interp(span, at, total))) / steps, 1)
                for way, total in (("sent", sent), ("received", received))
            }
    return rates


# --- memory ---

MEMORY = ("parameters", "gradients", "optimizer_state", "activations", "buffers")

Memory = dict[str, dict[str, int]]
"""Task -> kind of memory -> bytes."""


def with_memory(memory: Memory, metrics: Iterable[Metric]) -> Memory:
    """The `memory` of tasks with these metrics."""
    memory = dict(memory)
    for m in metrics:
        if m.name in MEMORY and math.isfinite(m.value):
            kinds = memory.setdefault(m.task, dict.fromkeys(MEMORY, 0))
            kinds[m.name] = max(kinds[m.name], int(m.value))
    return memory


def memory_table(memory: Memory, formula: Mapping[str, Mapping[str, int]]) -> str:
    """The memory of each task as text, and below it what a formula says it should be."""
    rows = [["", *(kind.replace("_", " ") for kind in MEMORY)]]
    for task, kinds in memory.items():
        expected = [formula.get(task, {}).get(kind) for kind in MEMORY]
        rows.append([task, *(text.amount(kinds[kind]) for kind in MEMORY)])
        by = ["-" if n is None else text.amount(n) for n in expected]
        rows += [["by the formula", *by]] if any(n is not None for n in expected) else []
    return text.table(rows, right=True)


def memory_line(kinds: Mapping[str, int]) -> str:
    """The memory of one task in a line; kinds of which it has none are left out."""
    whole = text.amount(sum(kinds.values()))
    parts = [f"{text.amount(n)} {kind.replace('_', ' ')}" for kind, n in kinds.items() if n]
    return f"{whole}: {', '.join(parts)}"
