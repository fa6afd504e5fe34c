"""`check_strategy`: is a strategy what it promises to be? It runs beside `one_device`, with one to
four workers and other seeds, with a straggler, with a worker that is killed, and over a network
whose bytes the kernel counts. A promise that is broken is said in words: in which step, by how
much, and which mistake usually makes it so.
"""

from __future__ import annotations

import functools
import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.linalg import norm

from course_lib import text
from course_lib.cluster.run import Run
from course_lib.errors import LockstepError, SpecError
from course_lib.launch import start
from course_lib.record.events import Metric, Read, Update
from course_lib.record.measures import wire_bytes
from course_lib.strategies import catalog, pages
from course_lib.strategies.steps import PARTS

if TYPE_CHECKING:
    from pandas import DataFrame

STEPS, BATCH = 6, 48  # which four, three and two divide
LEARNING = 40  # steps in which a strategy that is not exact has to learn
PART = 0.3  # of what the loss of one device falls in these
LOSS = {"float32": 1e-4}  # a relative difference of losses that sums in another order do not make
UPDATE = {"float32": 1e-3}  # the same of what a run has changed in the parameters
ROUGH = 0.05  # both, where numbers have 16 bits
WIRE = 0.1  # of the bytes promised: headers, and what is said beside gradients
# where headers are few beside gradients
BIG = {"workload": "wide", "sizes": {"parameters": 300_000}}
LONG = {"steps": 40, "device_ms": 20}  # several readings of the kernel's counters
PATIENCE = 30.0  # seconds for a run, which takes one or two
Values = dict[str, np.ndarray]
DRIFT = (
    "Replicas drift: after one step workers have different parameters. Average all gradients "
    "before the update, on all workers, and wait for what was begun with async_op=True."
)
MISSING = (
    "The first update is not along the mean gradient of the batch: gradients of some workers or of "
    "some parameters are missing, or count more than others."
)
LATER = (
    "The first update is right, and a later one is not: something of an earlier step is still "
    "there, such as old gradients or parameters, or the optimizer's state differs."
)


@dataclass(frozen=True)
class Finding:
    """The outcome for one promise: it is `kept`, `broken`, or was `not checked`, and why."""

    promise: str
    state: str
    why: str


@dataclass(frozen=True, repr=False)
class Findings:
    """The findings on a strategy, in the order in which they were made; true if none is broken."""

    strategy: str
    findings: tuple[Finding, ...]

    def __bool__(self) -> bool:
        return not any(each.state == "broken" for each in self.findings)

    def rows(self) -> list[list[str]]:
        return [[each.promise, each.state, each.why] for each in self.findings]

    def to_frame(self) -> DataFrame:
        """A row for each promise."""
        import pandas as pd

        return pd.DataFrame(self.findings)

    def __repr__(self) -> str:
        return text.table([[self.strategy, "", ""], *self.rows()])


class Broken(Exception):
    """A promise is not kept, in words."""


def check_strategy(what: Any, **fields: Any) -> Findings:
    """Check a strategy, by name or a function of your own, against what it promises.

    A function promises by `@strategy(exact=True, wire="2(n-1)/n S")`, see `Promise`; every strategy
    has to run with one to four workers, to learn, and to go on after a worker is killed. The first
    promise that is broken ends the check. `fields`: of `RunSpec`, for all runs, such as `workload`.
    Raises `SpecError` for what is no strategy.
    """
    check = _Check(what, fields)
    findings: list[Finding] = []
    for promise, keep in check.promises():
        try:
            findings.append(Finding(promise, "kept", keep()))
        except Broken as broken:
            findings.append(Finding(promise, "broken", str(broken)))
            break
        except _NotChecked as reason:
            findings.append(Finding(promise, "not checked", str(reason)))
    return Findings(check.name, tuple(findings))


class _NotChecked(Exception):
    """Why a promise cannot be checked here."""


class _Check:
    def __init__(self, what: Any, fields: Mapping[str, Any]) -> None:
        self.what, self.fields = what, {"global_batch": BATCH, "steps": STEPS} | dict(fields)
        self.name = what if isinstance(what, str) else pages.name_of(what)
        ours = pages.Promise(exact=isinstance(what, str) and catalog.carries_over(what))
        self.promise = ours if isinstance(what, str) else pages.promise_of(what)
        self.several = [count for count in self.promise.workers if count > 1]
        self._alone: dict[str, Run] = {}

    def promises(self) -> Iterator[tuple[str, Any]]:
        """Each promise, and the function that shows it to be kept."""
        for workers in self.promise.workers:
            exact = "is one device's" if self.promise.exact else "runs"
            which = f"{exact} with {text.count(workers, 'worker')}"
            yield which, functools.partial(self.run_with, workers)
        if not self.promise.exact:
            yield "learns", self.learns
        yield "holds with a straggler", self.with_straggler
        yield "goes on after a worker is killed", self.after_restart
        if self.promise.wire:
            yield f"sends {self.promise.wire}", self.wire

    # --- the promises ---

    def run_with(self, workers: int) -> str:
        run = self.run(workers=workers, seed=workers - 1)
        if not run.digest.updates.staleness:
            raise Broken("it records no update: make it within `with step.applying():`")
        if not self.promise.exact:
            return f"{run.digest.steps_done} steps"
        return self.same(run)

    def learns(self) -> str:
        run = self.run(workers=self.promise.workers[-1], steps=LEARNING)
        mine = run.digest.losses.values
        theirs = self.alone(run, steps=LEARNING).digest.losses.values
        first, last, usual = mine[0], fmean(mine[-4:]), fmean(theirs[-4:])
        fall = f"its loss is {first:.3g} in the first step and {last:.3g} after {LEARNING}"
        if not first - last > PART * (theirs[0] - usual):
            raise Broken(f"{fall}; that of one device {usual:.3g}")
        return fall

    def with_straggler(self) -> str:
        workers = self.promise.workers[-2:][0]
        slow = {"device_ms": 10, "slow": {f"worker:{workers - 1}": 5}}
        run = self.run(workers=workers, seed=2, **slow)
        lead = run.result["observed"]["lead"] if "observed" in run.result else 0
        if not self.promise.exact:
            return f"the others were {text.count(lead, 'step')} ahead of it at most"
        return self.same(run, "An update is made before all gradients have come.")

    def after_restart(self) -> str:
        fault = f"kill worker:1 at step {STEPS // 2 + 1}"
        how = {"max_restarts": 1, "checkpoint_every": 2, "faults": fault}
        run = self.run(workers=self.several[0], seed=1, **how)
        if not self.promise.exact:
            return "and finishes"
        return self.same(
            run,
            "Its next step depends on more than the checkpoint holds: put such tensors into "
            "`step.own_state`, before the first step.",
        )

    def wire(self) -> str:
        times = []
        for workers in self.several:
            run = self.run(workers=workers, hosts=workers, **BIG, **LONG)
            sent = {task: traffic.sent for task, traffic in wire_bytes(run.trace).items()}
            if not sent:
                raise _NotChecked("no kernel counts bytes here: " + run.result["network_why"])
            mean = fmean(sent[f"worker:{k}"] for k in range(workers)) / run.spec.steps
            due = promised(self.promise.wire, workers, 4 * run.result["parameters"])
            times.append(f"{mean / due:.2f}")
            if not (1 - WIRE) * due < mean < (1 + WIRE) * due:
                often = f"{text.amount(round(mean))} in a step with {workers} workers"
                what = f"the mean of {run.spec.steps} steps"
                raise Broken(
                    f"each sends {often}, {what}; {self.promise.wire} is "
                    f"{text.amount(round(due))}: {mean / due:.3g} times as many as promised"
                )
        counts = ", ".join(map(str, self.several))
        return f"{', '.join(times)} times as many with {counts} workers, headers included"

    # --- runs ---

    def run(self, what: Any = None, **fields: Any) -> Run:
        """A run that is over. Raises `Broken` if it failed, or left no result of a step."""
        with start(what or self.what, **(self.fields | fields)) as run:
            try:
                run.wait(PATIENCE)
            except SpecError:
                raise
            except LockstepError as error:
                raise Broken(f"with {text.count(run.spec.workers, 'worker')}: {error}") from None
        if not run.result.get("parameter_digest"):
            raise Broken("it has no result: end the workers' function with `return step.result()`")
        return run

    def alone(self, like: Run, **fields: Any) -> Run:
        """The run of one device that another is to equal."""
        spec = like.spec
        same = {name: getattr(spec, name) for name in ("workload", "sizes", "seed", "framework")}
        key = repr((same, fields))
        if key not in self._alone:
            self._alone[key] = self.run("one_device", **same, **fields, workers=1)
        return self._alone[key]

    # --- equal to one device? ---

    def same(self, run: Run, otherwise: str = "") -> str:
        """Say how nearly a run equals one device; raises `Broken` if it does not, with what usually
        makes it so, or `otherwise`.
        """
        alone = self.alone(run)
        mine, theirs = losses(run), losses(alone)
        step = next(
            (s for s in theirs if far(mine.get(s, np.nan), theirs[s], run.spec.precision)), None
        )
        update = norm(changes(alone, weights(self.alone(run, steps=1))))  # of all steps but one
        far_off = norm(changes(run, weights(alone))) / (update or 1.0)
        if step is None and far_off < UPDATE.get(run.spec.precision, ROUGH) and not apart(run):
            return f"weights to {far_off:.0e} of an update"
        if step is None:
            where = f"after step {run.spec.steps - 1} weights are {far_off:.2g} of an update off"
        else:
            if step not in mine:
                raise Broken(f"it reports no loss of step {step}: `step.done(loss)` ends each step")
            where = f"in step {step} the loss is {mine[step]:.5g} for {theirs[step]:.5g}"
        raise Broken(f"{where}. {otherwise or self.usual(run)}")

    def usual(self, run: Run) -> str:
        """The mistake that makes a run differ from one device, as far as one step of plain gradient
        descent shows it.
        """
        workers, plain = run.spec.workers, {"optimizer": "sgd", "steps": 1, "learning_rate": 0.1}
        seed = {"seed": run.spec.seed}
        one = self.run(workers=workers, **plain, **seed, record_examples=True)
        if wrong := self._reading(one):
            return wrong
        alone = self.alone(one, **plain)
        twice = weights(self.alone(one, **plain | {"learning_rate": 0.2}))
        # as they were before the update
        first = {name: 2 * its - twice[name] for name, its in weights(alone).items()}
        mine, theirs = changes(one, first), changes(alone, first)
        if apart(one):
            return DRIFT
        if norm(mine) < 1e-3 * norm(theirs):
            return "The first update changes nothing: is `step.optimizer.step()` called?"
        cosine = mine @ theirs / norm(mine) / norm(theirs)
        if cosine < -0.999:
            return "The update goes up the gradient: its sign is wrong."
        if not cosine >= 0.999:  # or NaN, where weights are missing
            return MISSING
        times = mine @ theirs / norm(theirs) ** 2
        if abs(times - 1) > 0.01:
            return _factor(times, workers)
        off = norm(mine - theirs) / norm(theirs)
        if off > 1e-5:
            return (
                f"The first update is off by {off:.1g} of it: were gradients rounded, or clipped?"
            )
        if far(losses(one).get(0, math.nan), losses(alone)[0]):
            return "The loss that it reports is not the mean over the whole batch."
        return LATER

    def _reading(self, run: Run) -> str:
        """The mistake in the examples that were read; "" if all read the whole batch, or each its
        part.
        """
        read = {task: Counter[int]() for task in run.spec.tasks}
        for event in run.trace.all(Read):
            read[event.task].update(event.examples)
        workers = [its for task, its in read.items() if its]
        alone = self.alone(run, steps=1, record_examples=True)
        batch = Counter(e for event in alone.trace.all(Read) for e in event.examples)
        every = sum(workers, Counter[int]())
        if not workers:
            return "It reads no examples: `inputs, targets = step.read(task.index, workers)`."
        if every == batch or all(its == batch for its in workers):
            return ""
        if len(workers) > 1 and all(its == workers[0] for its in workers):
            return (
                "All workers read the same part of the batch: each has a share of its own, "
                "step.read(task.index, task.spec.workers)."
            )
        missing = len(batch - every)
        return (
            f"{missing} of the {batch.total()} examples of the batch are read by nobody, and "
            f"{(every - batch).total()} too often: step.read(task.index, task.spec.workers)."
        )


def _factor(times: float, workers: int) -> str:
    """The usual cause of an update that is so many times that of one device."""
    if abs(times / workers - 1) < 0.01:
        return f"The update is {workers} times too large: divide the sum by the {workers} workers."
    if abs(times * workers - 1) < 0.01:
        twice = f"it is divided by the {workers} workers twice, or is one share's alone"
        return f"The update is {workers} times too small: {twice}."
    return f"The update is {times:.3g} times that of one device: by what is it divided?"


def promised(wire: str, workers: int, nbytes: int) -> float:
    """Bytes by a formula of n workers and S bytes, such as "2(n-1)/n S". Raises `SpecError` if it
    is none.
    """
    formula = re.sub(r"(?<=[\dnS)])\s*(?=[nS(])", "*", wire)
    try:
        if not re.fullmatch(r"[\d.nS+\-*/() ]+", formula):
            raise ValueError
        return float(eval(formula, {"__builtins__": {}}, {"n": workers, "S": nbytes}))
    except (ValueError, SyntaxError, ArithmeticError, TypeError, NameError):
        allowed = 'a formula of n (workers) and S (bytes of parameters), such as "2(n-1)/n S"'
        raise SpecError("wire", wire, allowed) from None


def apart(run: Run) -> bool:
    """True if workers that hold the same have ended with different parameters."""
    updates = run.trace.all(Update)
    holds = {u.task: u.variables for u in updates if u.variables.startswith(PARTS)}
    digests = run.result["parameter_digest"].items()
    same = {(holds.get(task, ""), digest) for task, digest in digests}
    return len(same) > len({what for what, _ in same})


def losses(run: Run) -> dict[int, float]:
    """Step -> the loss, averaged over the workers that report one."""
    by_step: dict[int, list[float]] = {}
    for metric in run.trace.all(Metric, name="loss"):
        by_step.setdefault(metric.step, []).append(metric.value)
    return {step: fmean(values) for step, values in sorted(by_step.items())}


def weights(run: Run) -> Values:
    return run.files.trained_weights()


def far(mine: float, theirs: float, precision: str = "float32") -> bool:
    return not abs(mine - theirs) <= LOSS.get(precision, ROUGH) * max(1.0, abs(theirs))


def changes(run: Run, since: Values) -> np.ndarray:
    """The change of a run's weights since others, as one vector; NaN where the run left none."""
    its = weights(run)
    return np.concatenate([np.ravel(its.get(name, np.nan) - at) for name, at in since.items()])
