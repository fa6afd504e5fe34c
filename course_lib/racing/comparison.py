"""What a race has shown: figures of each entrant from the digest of its trace, side by side. All
functions are pure, and take traces of saved runs as well as of live ones.

An entrant's clock starts when the starting line opens; if it did not stop there, when the last of
its workers begins its second step. An asynchronous run has several updates in a step, and losses of
single workers. So for every entrant progress is counted in examples, and the loss is averaged over
the last `WINDOW` batches' worth of them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

from course_lib import text
from course_lib.racing.fairness import Fairness
from course_lib.record.curves import WINDOW, Curve, Goal, outcome, quoted, soonest
from course_lib.record.digest import Digest
from course_lib.record.events import ACTIVE
from course_lib.record.reality import reality
from course_lib.record.trace import Trace
from course_lib.spec.run_spec import RunSpec
from course_lib.strategies import catalog

if TYPE_CHECKING:
    from pandas import DataFrame

POINTS = 500  # at most, in a curve written as JSON


@dataclass(frozen=True)
class Figures:
    """One entrant's figures. Seconds are counted from the start of its clock; None means not known
    (yet).

    `began`: when its clock started, in seconds since the race was called. `seconds`: until its last
    loss. `examples`: used by then, including the first step. `loss`: the last mean. `idle_share`:
    since its clock started, see `Digest.idle`; that in a run's result is of the whole run.
    `tested`: the workload's metric at the end, by name, `{"test_accuracy": 0.9}`; empty until then.
    `overhead` and `diverged`: see `Digest`. `staleness`: as `measures.staleness`.
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
    tested: dict[str, float]
    overhead: float | None
    dropped_gradients: int
    idle_share: dict[str, float]
    staleness: dict[str, Any]
    diverged: str
    curve: Curve = field(repr=False)
    accuracy_curve: Curve = field(repr=False)
    seconds_to_target: float | None = None
    examples_to_target: int | None = None
    seconds_to_accuracy: float | None = None
    examples_to_accuracy: int | None = None

    @property
    def clock(self) -> tuple[float, float]:
        """When the entrant's clock started and when its last loss came, in seconds since the race
        was called.
        """
        if self.began is None:
            return math.inf, -math.inf
        return self.began, self.began + self.seconds

    def as_dict(self) -> dict[str, Any]:
        """The figures as plain values; long curves are thinned to `POINTS` points."""
        loss, accuracy = self.curve.thinned(POINTS), self.accuracy_curve.thinned(POINTS)
        return asdict(self) | {
            "curve": _when(loss) | {"loss": loss.values.tolist(), "mean": loss.means.tolist()},
            "accuracy_curve": _when(accuracy) | {"accuracy": accuracy.values.tolist()},
        }


def _when(curve: Curve) -> dict[str, list[float]]:
    """When each reading was taken, in seconds and in examples."""
    examples = curve.examples.astype(int)
    return {"seconds": curve.seconds.tolist(), "examples": examples.tolist()}


def figures(
    label: str,
    spec: RunSpec,
    trace: Trace,
    state: str,
    result: Mapping[str, Any] | None = None,
    zero: float | None = None,
) -> Figures:
    """The figures of one entrant, without a target (see `side_by_side`).

    `result`: what its run returned. `zero`: when its clock started, if it was at the starting line;
    by default its trace tells.
    """
    digest = Digest.of(spec, trace, math.inf if zero is None else zero, over=state not in ACTIVE)
    curve = digest.losses
    known = len(curve.seconds) > 0
    return Figures(
        label=label,
        strategy=spec.strategy,
        framework=spec.framework,
        workers=spec.shares,
        state=state,
        reality=reality(spec, trace).word,
        began=digest.zero if math.isfinite(digest.zero) else None,
        seconds=float(curve.seconds[-1]) if known else 0.0,
        examples=int(curve.examples[-1]) if known else 0,
        examples_per_second=curve.rate(),
        loss=curve.last,
        tested={name: v for name, v in (result or {}).items() if name.startswith("test_")},
        # where workers share the work on an example, a compute phase is less than a step
        overhead=None if catalog.find(spec.strategy).model_parallel else digest.overhead,
        dropped_gradients=digest.dropped,
        idle_share=digest.idle,
        staleness=digest.updates.as_dict(),
        diverged=digest.diverged,
        curve=curve,
        accuracy_curve=digest.accuracies,
    )


@dataclass(frozen=True, repr=False)
class Comparison:
    """A race so far: the entrants' figures by label, the target loss and accuracy, whether the race
    was fair, and notes.
    """

    entrants: dict[str, Figures]
    target_loss: float | None
    target_accuracy: float | None
    fairness: Fairness
    notes: tuple[str, ...] = ()

    def to_frame(self) -> DataFrame:
        """A row for each entrant by label, with its figures; those inside figures have names such
        as `staleness.mean`.
        """
        import pandas as pd

        rows = [f.as_dict() for f in self.entrants.values()]
        table = pd.json_normalize(rows).set_index("label")
        return table[[name for name in table if "curve" not in name]]

    @property
    def first(self) -> str | None:
        """The entrant that reached the target loss in the shortest time; None if nobody has."""
        return _soonest({label: f.seconds_to_target for label, f in self.entrants.items()})

    @property
    def first_to_accuracy(self) -> str | None:
        """The entrant that reached the target accuracy in the shortest time; None if nobody has."""
        return _soonest({label: f.seconds_to_accuracy for label, f in self.entrants.items()})

    @property
    def winner(self) -> str | None:
        """The entrant that won a fair race, in which all came to the end; None if none can be named
        (see `outcome`).
        """
        first = soonest(self._reached[1])
        return first if first and not self._doubt else None

    @property
    def outcome(self) -> str:
        """Who won and by which measure, or why no winner can be named, in a sentence."""
        said = outcome(*self._reached)
        if self._doubt:
            return f"No winner can be named, as {self._doubt}; {said}."
        who = f"The winner is {quoted(self.winner)}" if self.winner else "No winner"
        return f"{who}: {said}."

    @property
    def _reached(self) -> tuple[str, dict[str, float | None]]:
        """What the race is decided by, and after how many seconds each entrant did it."""
        if self.target_accuracy is not None:
            found = {label: f.seconds_to_accuracy for label, f in self.entrants.items()}
            return f"reached accuracy {self.target_accuracy:.3f}", found
        if self.target_loss is not None:
            found = {label: f.seconds_to_target for label, f in self.entrants.items()}
            return f"reached loss {self.target_loss:.3f}", found
        ended = {label: f.seconds or None for label, f in self.entrants.items()}
        return "came to the end", ended

    @property
    def _doubt(self) -> str:
        """Why its times decide nothing; "" if they do."""
        for label, f in self.entrants.items():
            if f.state != "finished":
                return f"{quoted(label)} {'failed' if f.state == 'failed' else f'is {f.state}'}"
        if self.fairness.fair is None:
            return "whether it was fair cannot be told"
        return "" if self.fairness.fair else "the race was not fair"

    def as_dict(self) -> dict[str, Any]:
        """All of it as plain values, for JSON."""
        return {
            "winner": self.winner,
            "outcome": self.outcome,
            "first": self.first,
            "first_to_accuracy": self.first_to_accuracy,
            "target_loss": self.target_loss,
            "target_accuracy": self.target_accuracy,
            "fair": self.fairness.fair,
            "fairness": asdict(self.fairness),
            "notes": list(self.notes),
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
        lines = {
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
        }
        # no entrant measured its accuracy during the run
        if not any(len(f.accuracy_curve.seconds) for f in self.entrants.values()):
            lines = {name: show for name, show in lines.items() if " to accuracy " not in name}
        return [[name, *(show(f) for f in self.entrants.values())] for name, show in lines.items()]

    def words(self) -> list[str]:
        """What to know beside the table: who won, whether it was fair, whose loss became NaN, and
        the notes.
        """
        diverged = [f"{label}: {f.diverged}" for label, f in self.entrants.items() if f.diverged]
        fairness = filter(None, (self.fairness.why, self.fairness.advice))
        return [self.outcome, *fairness, *diverged, *self.notes]

    def __repr__(self) -> str:
        return "\n".join([text.table([self.headers(), *self.rows()]), *self.words()])


def side_by_side(
    entrants: Sequence[Figures],
    fairness: Fairness,
    notes: Sequence[str] = (),
    target_loss: float | None = None,
    target_accuracy: float | None = None,
) -> Comparison:
    """Entrants side by side, with the time and the examples that each needed to the targets.

    The default targets are the lowest loss and the highest accuracy that all of them have reached;
    None if no entrant has a value.
    """
    loss = _goal("loss", target_loss, [f.curve for f in entrants])
    accuracy = _goal("accuracy", target_accuracy, [f.accuracy_curve for f in entrants])
    found = {}
    for f in entrants:
        to_loss = (loss and loss.reached(f.curve)) or (None, None)
        to_accuracy = (accuracy and accuracy.reached(f.accuracy_curve)) or (None, None)
        found[f.label] = replace(
            f,
            seconds_to_target=to_loss[0],
            examples_to_target=to_loss[1],
            seconds_to_accuracy=to_accuracy[0],
            examples_to_accuracy=to_accuracy[1],
        )
    loss_value, accuracy_value = (goal.value if goal else None for goal in (loss, accuracy))
    return Comparison(found, loss_value, accuracy_value, fairness, tuple(notes))


def _goal(what: str, given: float | None, curves: Sequence[Curve]) -> Goal | None:
    return Goal.of_all(what, curves) if given is None else Goal(what, given)


def _soonest(seconds: Mapping[str, float | None]) -> str | None:
    known = {label: value for label, value in seconds.items() if value is not None}
    return min(known, key=lambda label: known[label]) if known else None


def _text(value: float | None, form: str) -> str:
    return "-" if value is None else form.format(value)


def _lines(form: str, values: Mapping[Any, float]) -> str:
    return "\n".join(form.format(*pair) for pair in values.items()) or "-"
