"""Comparison: figures of the entrants of a race, from the digests of their runs, side by side. All
functions are pure.

An entrant's clock starts when the starting line opens; if it did not stop there, when the last of
its workers begins its second step. An asynchronous run has several updates in a step, and losses of
single workers. So for every entrant progress is counted in examples, and the loss is averaged over
the last `WINDOW` batches' worth of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Any

from course_lib import text
from course_lib.racing.fairness import Fairness
from course_lib.record.curves import WINDOW, Curve
from course_lib.record.digest import Digest
from course_lib.record.reality import reality
from course_lib.record.verdict import Entry, Goal, Standing
from course_lib.strategies import catalog

if TYPE_CHECKING:
    from pandas import DataFrame

FACTS = ("gradients", "update", "variables", "waits")
"""Facts of a strategy that a trace shows, see `Figures.observed`."""
LATE = (*FACTS, "sent in a step", "memory")
"""Lines of the table that are left out as long as nothing is known."""
POINTS = 500  # at most, in a curve written as JSON


class Figures:
    """One entrant's figures. Seconds are counted from the start of its clock; None means not known
    (yet).

    `began`: when its clock started, in seconds since the race was called. `seconds`: until its last
    loss. `examples`: used by then, including the first step. `loss`: the last mean. `idle_share`:
    since its clock started, see `Digest.idle`; that in a run's result is of the whole run.
    `tested`: the workload's metric at the end, by name, `{"test_accuracy": 0.9}`; empty until then.
    `observed`: the facts of its strategy as its trace shows them, `bytes_sent` in a step by each
    worker, where the kernel counts them, and `memory` in bytes by task: {} until they are known.
    `overhead` and `diverged`: see `Digest`. `staleness`: as `Updates.as_dict`.
    """

    def __init__(
        self, label: str, digest: Digest, state: str, result: Mapping[str, Any] | None = None
    ) -> None:
        """`result`: what the run returned, if it is over."""
        spec, curve = digest.spec, digest.losses
        self.label = label
        self.strategy = spec.strategy
        self.framework = spec.framework
        self.workers = spec.shares
        self.state = state
        self.reality = reality(spec, digest.life).word
        self.began = digest.zero if math.isfinite(digest.zero) else None
        self.seconds = curve.end
        self.examples = int(curve.examples[-1]) if len(curve.examples) else 0
        self.examples_per_second = curve.rate()
        self.loss = curve.last
        self.tested = {name: v for name, v in (result or {}).items() if name.startswith("test_")}
        # where workers share the work on an example, a compute phase is less than a step
        shared = catalog.of(spec).model_parallel
        self.overhead = None if shared else digest.overhead
        self.dropped_gradients = digest.dropped
        self.idle_share = digest.idle
        self.staleness = digest.updates.as_dict()
        self.observed: dict[str, Any] = (result or {}).get("observed", {})
        sent = (result or {}).get("wire_bytes_per_step") or {}
        self.bytes_sent = {task: its["sent"] for task, its in sent.items() if "worker" in task}
        self.memory = {task: sum(kinds.values()) for task, kinds in digest.memory.items()}
        self.diverged = digest.diverged
        self.curve = curve
        self.accuracy_curve = digest.accuracies
        self.seconds_to_target: float | None = None
        self.examples_to_target: int | None = None
        self.seconds_to_accuracy: float | None = None
        self.examples_to_accuracy: int | None = None

    def towards(self, loss: Goal | None, accuracy: Goal | None) -> Figures:
        """Note the seconds and the examples until it reached these goals, and return itself."""
        never = (None, None)
        to_loss = (loss and loss.reached(self.curve)) or never
        to_accuracy = (accuracy and accuracy.reached(self.accuracy_curve)) or never
        self.seconds_to_target, self.examples_to_target = to_loss
        self.seconds_to_accuracy, self.examples_to_accuracy = to_accuracy
        return self

    @property
    def clock(self) -> tuple[float, float]:
        """The start of the entrant's clock and its last loss, in seconds since the race began."""
        if self.began is None:
            return math.inf, -math.inf
        return self.began, self.began + self.seconds

    def as_dict(self) -> dict[str, Any]:
        """The figures as plain values; long curves are thinned to `POINTS` points."""
        return vars(self) | {
            "curve": _points(self.curve, loss="values", mean="means"),
            "accuracy_curve": _points(self.accuracy_curve, accuracy="values"),
        }


def _points(curve: Curve, **columns: str) -> dict[str, list[float]]:
    """The points of a curve, `POINTS` at most: its `columns` by the names that they get."""
    thin = curve.thinned(POINTS)
    times = {"seconds": thin.seconds.tolist(), "examples": thin.examples.astype(int).tolist()}
    return times | {name: getattr(thin, column).tolist() for name, column in columns.items()}


class Comparison:
    """A race so far: the figures of its `entrants` by label, with the time and the examples that
    each needed to the target loss and accuracy; whether it was fair, its `standing`, and notes.

    The default targets are the lowest loss and the highest accuracy that all of them have reached;
    None if no entrant has a value.
    """

    def __init__(
        self,
        entrants: Sequence[Figures],
        fairness: Fairness,
        notes: Sequence[str] = (),
        target_loss: float | None = None,
        target_accuracy: float | None = None,
    ) -> None:
        loss = Goal.given(target_loss, None) or Goal.of_all("loss", [f.curve for f in entrants])
        accuracies = [f.accuracy_curve for f in entrants]
        accuracy = Goal.given(None, target_accuracy) or Goal.of_all("accuracy", accuracies)
        entries = {f.label: Entry(f.state, f.curve, f.accuracy_curve) for f in entrants}
        self.entrants = {f.label: f.towards(loss, accuracy) for f in entrants}
        self.target_loss, self.target_accuracy = loss and loss.value, accuracy and accuracy.value
        given = Goal.given(target_loss, target_accuracy)
        self.fairness, self.standing = fairness, Standing(entries, given, fairness.fair)
        self.notes = list(notes)

    def to_frame(self) -> DataFrame:
        """A row for each entrant by label, with its figures; those inside figures have names such
        as `staleness.mean`.
        """
        import pandas as pd

        rows = [f.as_dict() for f in self.entrants.values()]
        table = pd.json_normalize(rows).set_index("label")
        return table[[name for name in table if "curve" not in name]]

    @property
    def winner(self) -> str | None:
        """The entrant that won; None if none can be named, see `Standing`."""
        return self.standing.winner

    def as_dict(self) -> dict[str, Any]:
        """All of it as plain values, for JSON."""
        return {
            "winner": self.winner,
            "outcome": self.standing.verdict,
            "target_loss": self.target_loss,
            "target_accuracy": self.target_accuracy,
            "fair": self.fairness.fair,
            "fairness": asdict(self.fairness),
            "notes": self.notes,
            "entrants": {label: f.as_dict() for label, f in self.entrants.items()},
        }

    def headers(self) -> list[str]:
        """The first line of the table."""
        return ["race", *self.entrants]

    def rows(self) -> list[list[str]]:
        """The lines of the table: what is compared, then a text for each entrant."""
        loss = "the target loss" if self.target_loss is None else f"loss {self.target_loss:.3f}"
        accuracy = "-" if self.target_accuracy is None else f"{self.target_accuracy:.3f}"
        # all have the same metric
        metric = next((name for f in self.entrants.values() for name in f.tested), "test_accuracy")
        lines: dict[str, Callable[[Figures], str]] = {
            "strategy": lambda f: f.strategy,
            "framework, workers": lambda f: f"{f.framework}, {f.workers}",
            "state": lambda f: f.state,
            f"seconds to {loss}": lambda f: _text(f.seconds_to_target, "{:.2f}"),
            f"examples to {loss}": lambda f: _text(f.examples_to_target, "{:,}"),
            f"seconds to accuracy {accuracy}": lambda f: _text(f.seconds_to_accuracy, "{:.2f}"),
            f"examples to accuracy {accuracy}": lambda f: _text(f.examples_to_accuracy, "{:,}"),
            "examples per second": lambda f: _text(f.examples_per_second, "{:,.0f}"),
            f"loss, mean of {WINDOW} batches": lambda f: _text(f.loss, "{:.4f}"),
            metric.replace("_", " "): lambda f: _text(f.tested.get(metric), "{:.3f}"),
            "seconds": lambda f: f"{f.seconds:.2f}",
            "examples": lambda f: f"{f.examples:,}",
            "idle": lambda f: _lines("{} {:.0%}", f.idle_share),
            "updates": lambda f: _lines("{1:,} of staleness {0}", f.staleness["updates"]),
            "gradients dropped": lambda f: str(f.dropped_gradients),
            "neither device nor wait": lambda f: _text(f.overhead, "{:.0%}"),
            "reality": lambda f: f.reality,
            **{fact: partial(_seen, fact) for fact in FACTS},
            "sent in a step": lambda f: _most(f.bytes_sent),
            "memory": lambda f: _most(f.memory),
        }
        # no entrant measured its accuracy during the run
        if not any(len(f.accuracy_curve.seconds) for f in self.entrants.values()):
            lines = {name: show for name, show in lines.items() if " to accuracy " not in name}
        rows = [[name, *(show(f) for f in self.entrants.values())] for name, show in lines.items()]
        return [row for row in rows if row[0] not in LATE or {*row[1:]} != {"-"}]

    def words(self) -> list[str]:
        """Return the sentences beside the table: who won, whether it was fair, whose loss became
        NaN, and the notes.
        """
        diverged = [f"{label}: {f.diverged}" for label, f in self.entrants.items() if f.diverged]
        fairness = filter(None, (self.fairness.why, self.fairness.advice))
        return [self.standing.verdict, *fairness, *diverged, *self.notes]

    def __repr__(self) -> str:
        return "\n".join([text.table([self.headers(), *self.rows()]), *self.words()])


def _seen(fact: str, f: Figures) -> str:
    return f.observed.get(fact, "").replace(", ", "\n") or "-"


def _most(values: Mapping[str, float]) -> str:
    """The bytes of the task that has most of them."""
    task = max(values, key=values.__getitem__, default=None)
    return f"{text.amount(round(values[task]))} on {task}" if task else "-"


def _text(value: float | None, form: str) -> str:
    return "-" if value is None else form.format(value)


def _lines(form: str, values: Mapping[Any, float]) -> str:
    return "\n".join(form.format(*pair) for pair in values.items()) or "-"
