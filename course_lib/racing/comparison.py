"""What a race has shown: figures of each entrant from its trace, side by side. Pure functions; a
saved run is as good as a live one.

An entrant's clock starts when the starting line opens; if it did not stop there, when the last of
its workers begins its second step. The first one traces and compiles, which says nothing of a
strategy. Nothing here needs steps that all workers take together. An asynchronous run has several
updates for a step and losses of single workers, so progress is counted in examples, and the loss is
averaged over the last `WINDOW` batches' worth of them, for every entrant alike.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from course_lib import text
from course_lib.racing.curves import (
    WINDOW,
    Point,
    Reading,
    accuracy_curve,
    columns,
    loss_curve,
    throughput,
)
from course_lib.racing.fairness import Verdict
from course_lib.record import measures
from course_lib.record.events import Lifecycle, Metric, Phase, task_key
from course_lib.record.trace import Trace
from course_lib.spec import RunSpec
from course_lib.strategies import catalog

SLACK = 1e-3  # seconds: the clock inside a TensorFlow graph is another one, converted


@dataclass(frozen=True)
class Figures:
    """One entrant's figures. Seconds are counted from its second step on; None is what is not known
    (yet).

    `began`: when that was, in seconds since the race was called. `seconds`: until its last loss.
    `examples`: seen by then, first step included. `loss`: the last mean. `test_accuracy`: at the
    end. `overhead`: see `overhead`. `staleness`: as `measures.staleness`. `curve`: the loss over
    time and examples; `accuracy_curve`: the same of the test accuracy, as often as `evaluate_every`
    says.
    """

    label: str
    strategy: str
    framework: str
    workers: int
    state: str
    reality: str
    began: float | None
    seconds: float
    examples: int
    examples_per_second: float | None
    loss: float | None
    test_accuracy: float | None
    seconds_to_target: float | None
    examples_to_target: int | None
    seconds_to_accuracy: float | None
    examples_to_accuracy: int | None
    overhead: float | None
    dropped_gradients: int
    idle_share: dict[str, float]
    staleness: dict[str, Any]
    curve: tuple[Point, ...] = field(repr=False)
    accuracy_curve: tuple[Reading, ...] = field(repr=False)

    def as_dict(self) -> dict[str, Any]:
        """The figures as plain values; of long curves only some points, the last among them."""
        curves = {
            "curve": columns(self.curve, Point._fields),
            "accuracy_curve": columns(self.accuracy_curve, Reading._fields),
        }
        return asdict(self) | curves


@dataclass(frozen=True, repr=False)
class Comparison:
    """A race so far: the entrants' figures by label, the loss and the accuracy that are the
    targets, whether it was fair, what else to know.
    """

    entrants: dict[str, Figures]
    target_loss: float | None
    verdict: Verdict
    notes: tuple[str, ...]
    target_accuracy: float | None = None

    @property
    def first(self) -> str | None:
        """The entrant that reached the target loss in the shortest time; None if nobody has."""
        return _soonest({label: f.seconds_to_target for label, f in self.entrants.items()})

    @property
    def first_to_accuracy(self) -> str | None:
        """The entrant that reached the target accuracy in the shortest time; None if nobody has."""
        return _soonest({label: f.seconds_to_accuracy for label, f in self.entrants.items()})

    def as_dict(self) -> dict[str, Any]:
        """All of it as plain values, for JSON."""
        return {
            "first": self.first,
            "first_to_accuracy": self.first_to_accuracy,
            "target_loss": self.target_loss,
            "target_accuracy": self.target_accuracy,
            "fair": self.verdict.fair,
            "fairness": self.verdict.as_dict(),
            "notes": list(self.notes),
            "entrants": {label: f.as_dict() for label, f in self.entrants.items()},
        }

    def headers(self) -> list[str]:
        """The first line of the table."""
        return ["race", *self.entrants]

    def rows(self) -> list[list[str]]:
        """The lines of the table: what is compared, then a text for each entrant."""
        target = (
            f" to loss {self.target_loss:.3f}"
            if self.target_loss is not None
            else " to the target loss"
        )
        accuracy = "-" if self.target_accuracy is None else f"{self.target_accuracy:.3f}"
        lines = {
            "strategy": lambda f: f.strategy,
            "framework, workers": lambda f: f"{f.framework}, {f.workers}",
            "state": lambda f: f.state,
            f"seconds{target}": lambda f: _text(f.seconds_to_target, "{:.2f}"),
            f"examples{target}": lambda f: _text(f.examples_to_target, "{:,}"),
            f"seconds to accuracy {accuracy}": lambda f: _text(f.seconds_to_accuracy, "{:.2f}"),
            f"examples to accuracy {accuracy}": lambda f: _text(f.examples_to_accuracy, "{:,}"),
            "examples per second": lambda f: _text(f.examples_per_second, "{:,.0f}"),
            f"loss, mean of {WINDOW} batches": lambda f: _text(f.loss, "{:.4f}"),
            "test accuracy": lambda f: _text(f.test_accuracy, "{:.3f}"),
            "seconds": lambda f: f"{f.seconds:.2f}",
            "examples": lambda f: f"{f.examples:,}",
            "idle": lambda f: (
                "\n".join(f"{task} {share:.0%}" for task, share in f.idle_share.items()) or "-"
            ),
            "updates": lambda f: _histogram(f.staleness["updates"]),
            "gradients dropped": lambda f: str(f.dropped_gradients),
            "neither device nor wait": lambda f: _text(f.overhead, "{:.0%}"),
            "reality": lambda f: f.reality,
        }
        # nobody has measured it on the way
        if not any(f.accuracy_curve for f in self.entrants.values()):
            lines = {name: text for name, text in lines.items() if " to accuracy " not in name}
        return [[name, *(text(f) for f in self.entrants.values())] for name, text in lines.items()]

    def words(self) -> list[str]:
        """What to know beside the table: fairness first, then the notes."""
        return [*filter(None, (self.verdict.why, self.verdict.advice)), *self.notes]

    def __repr__(self) -> str:
        return "\n".join([text.table([self.headers(), *self.rows()]), *self.words()])


def figures(
    label: str,
    spec: RunSpec,
    trace: Trace,
    state: str,
    reality: str,
    test_accuracy: float | None = None,
    zero: float | None = None,
) -> Figures:
    """The figures of one entrant, without a target (see `with_target`); its clock starts at `zero`,
    if it is known when the line opened.
    """
    zero = start_of_clock(trace) if zero is None else zero
    curve = loss_curve(trace, spec.batch, zero)
    last = curve[-1] if curve else None
    return Figures(
        label=label,
        strategy=spec.strategy,
        framework=spec.framework,
        workers=spec.shares,
        state=state,
        reality=reality,
        began=zero if math.isfinite(zero) else None,
        seconds=last.seconds if last else 0.0,
        examples=max((p.examples for p in curve), default=0),
        examples_per_second=throughput(curve),
        loss=last.mean if last else None,
        test_accuracy=test_accuracy,
        seconds_to_target=None,
        examples_to_target=None,
        seconds_to_accuracy=None,
        examples_to_accuracy=None,
        overhead=overhead(trace, spec, zero),
        dropped_gradients=len(trace.all(Metric, name="dropped")),
        idle_share=idle_share(trace, zero),
        staleness=measures.staleness(trace),
        curve=tuple(curve),
        accuracy_curve=tuple(accuracy_curve(trace, zero)),
    )


def with_target(
    entrants: Sequence[Figures], target_loss: float | None = None
) -> tuple[dict[str, Figures], float | None]:
    """The entrants by label, with the time and the examples that each needed to a target loss, and
    the target.

    Without one it is the lowest mean loss of the entrant whose lowest is the highest: what all of
    them have reached.
    """
    lowest = [min(p.mean for p in f.curve) for f in entrants if f.curve]
    target = target_loss if target_loss is not None else max(lowest, default=None)
    found = {}
    for f in entrants:
        reached = next((p for p in f.curve if target is not None and p.mean <= target), None)
        found[f.label] = (
            replace(f, seconds_to_target=reached.seconds, examples_to_target=reached.examples)
            if reached
            else f
        )
    return found, target


def with_accuracy(
    entrants: Mapping[str, Figures], target_accuracy: float | None = None
) -> tuple[dict[str, Figures], float | None]:
    """The same for a target accuracy.

    Without one it is the highest of the entrant whose highest is the lowest; None where nobody
    measured it.
    """
    highest = [
        max(p.accuracy for p in f.accuracy_curve) for f in entrants.values() if f.accuracy_curve
    ]
    target = target_accuracy if target_accuracy is not None else min(highest, default=None)
    found = {}
    for label, f in entrants.items():
        reached = next(
            (p for p in f.accuracy_curve if target is not None and p.accuracy >= target), None
        )
        found[label] = (
            replace(f, seconds_to_accuracy=reached.seconds, examples_to_accuracy=reached.examples)
            if reached
            else f
        )
    return found, target


def start_of_clock(trace: Trace) -> float:
    """When the last worker began its second step; infinity while nobody has.

    Without workers' phases, those of any task but a server count.
    """
    steps: dict[str, dict[int, float]] = defaultdict(dict)
    for p in trace.all(Phase):
        steps[p.task][p.step] = min(p.start, steps[p.task].get(p.step, p.start))
    racers = {task: starts for task, starts in steps.items() if task.startswith("worker:")}
    racers = racers or {
        task: starts for task, starts in steps.items() if not task.startswith("ps:")
    }
    return max(
        (sorted(starts.values())[1] for starts in racers.values() if len(starts) > 1),
        default=math.inf,
    )


def idle_share(trace: Trace, zero: float) -> dict[str, float]:
    """Task -> share of its time since `zero`, until its last phase, that it waited for others.

    Who reduces waits for the last of those whose gradients make the same update, which the trace
    tells from the exchange. In an asynchronous run nobody waits but where the strategy says so,
    with a phase `wait`.
    """
    phases = measures.lanes(trace)
    waited: dict[str, float] = defaultdict(float)
    spans: dict[str, tuple[float, float]] = {}
    for p in phases:
        if p.end > zero:
            start = max(p.start, zero)
            first, last = spans.get(p.task, (start, p.end))
            spans[p.task] = min(first, start), max(last, p.end)
            waited[p.task] += p.end - start if p.what == "wait" else 0.0
    return {
        task: waited[task] / (end - start)
        for task, (start, end) in sorted(spans.items(), key=lambda s: task_key(s[0]))
        if end > start
    }


def in_lockstep(trace: Trace) -> bool:
    """Whether the workers' reductions are collectives: nobody is done with that of a step before
    everybody has come to it.
    """
    begun: dict[int, dict[str, float]] = defaultdict(dict)
    done: dict[int, dict[str, float]] = defaultdict(dict)
    for p in trace.all(Phase, what="reduce"):
        begun[p.step][p.task] = min(p.start, begun[p.step].get(p.task, p.start))
        done[p.step][p.task] = max(p.end, done[p.step].get(p.task, p.end))
    everyone = max(map(len, begun.values()), default=0)
    return all(
        min(done[step].values()) >= max(tasks.values()) - SLACK
        for step, tasks in begun.items()
        if len(tasks) == everyone
    )


def overhead(trace: Trace, spec: RunSpec, zero: float) -> float | None:
    """Share of an entrant's time since `zero` that was neither emulated device time nor waiting for
    others: the machine's own work, and its queues.

    In lockstep a step lasts as long as its slowest worker, so that worker's device time counts
    against the time of all, and whatever else happens to anybody is overhead. Otherwise each worker
    has its own time; that with the most overhead counts. None without emulated devices, and for
    strategies in which a compute phase is less than a step.
    """
    if not spec.device_ms or catalog.find(spec.strategy).model_parallel:
        return None
    factor = slow_factors(trace, spec)
    device: dict[str, float] = defaultdict(float)
    spans: dict[str, tuple[float, float]] = {}
    for p in trace.all(Phase):
        if p.start >= zero and p.task.startswith("worker:"):
            first, last = spans.get(p.task, (p.start, p.end))
            spans[p.task] = min(first, p.start), max(last, p.end)
            if p.what == "compute":
                device[p.task] += min(
                    p.end - p.start, factor(p.task, p.start) * spec.device_ms / 1000
                )
    if not device:
        return None
    if in_lockstep(trace):
        begin, end = min(a for a, _ in spans.values()), max(b for _, b in spans.values())
        return 1 - max(device.values()) / (end - begin)
    idle = idle_share(trace, zero)
    return max(
        1 - idle.get(task, 0.0) - seconds / (spans[task][1] - spans[task][0])
        for task, seconds in device.items()
    )


def slow_factors(trace: Trace, spec: RunSpec) -> Callable[[str, float], float]:
    """How many times slower a task was made, at a time: as its spec says, or as was ordered last."""
    orders = [(e.task, e.at, e.factor) for e in trace.all(Lifecycle, state="slowed")]

    def factor(task: str, at: float) -> float:
        ordered = [times for who, when, times in orders if who == task and when <= at]
        return ordered[-1] if ordered else spec.slow.get(task, 1.0)

    return factor


def clock_of(f: Figures) -> tuple[float, float]:
    """From when to when an entrant was at it, in seconds since the race was called."""
    return (math.inf, -math.inf) if f.began is None else (f.began, f.began + f.seconds)


def _soonest(seconds: Mapping[str, float | None]) -> str | None:
    known = {label: value for label, value in seconds.items() if value is not None}
    return min(known, key=lambda label: known[label]) if known else None


def _text(value: float | None, form: str) -> str:
    return "-" if value is None else form.format(value)


def _histogram(updates: Mapping[str, int]) -> str:
    return "\n".join(f"{count:,} of staleness {stale}" for stale, count in updates.items()) or "-"
