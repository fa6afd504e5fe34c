"""`race`: several strategies train the same workload at the same time, each with its own cluster
and an equal share of this machine, or all on one Ray cluster.
"""

from __future__ import annotations

import contextlib
import math
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from operator import attrgetter
from typing import Any

from course_lib import hardware, workloads
from course_lib.activity import Activity
from course_lib.cluster.run import WAIT, Run
from course_lib.errors import SpecError, Stalled, TaskFailed
from course_lib.racing import fairness
from course_lib.racing.comparison import Comparison, Figures
from course_lib.racing.entrants import cores_note, divide, line_up, prepared
from course_lib.racing.fairness import Counters, Fairness, LoadMeter, StartingLine, take_part
from course_lib.record import rundir
from course_lib.record.events import ACTIVE, Lifecycle, clock
from course_lib.record.progress import Line, interrupt_explained, of_run
from course_lib.spec.run_spec import RunSpec, lists_fields
from course_lib.strategies.catalog import StrategyName
from course_lib.strategies.pages import Program

EVALUATE_EVERY = 10  # steps between two measurements of the test accuracy, if that is the target
LOOK_EVERY = 0.02  # seconds between looks at the starting line
RESULT = 10.0  # seconds that the result of a run that has ended may take
SAMPLE_EVERY = 0.2  # seconds between samples of the machine's load
READY = "The clock starts when all entrants are ready for their second step"
RESERVED = "CPUs are reserved for each task; nobody else is kept from using them."
CLOCK_NOTE = f"{READY}: the first one traces and compiles."


@lists_fields
def race(
    *entrants: StrategyName | Program | tuple[str, Any, dict[str, Any]] | dict[str, Any] | RunSpec,
    target_loss: float | None = None,
    target_accuracy: float | None = None,
    **fields: Any,
) -> Race:
    """Run strategies against each other, at the same time, and return at once.

    Each of the `entrants` is a strategy's name or a function of your own, `(label, strategy,
    fields)`, a dict with `strategy` in it, or a `RunSpec`; its own fields override the common
    `fields`. All are fields of `RunSpec`; a field that is not set has the same default for every
    entrant: so has `workers`, where a strategy can have several. All learn the same workload from
    the same weights, with the same examples in the same order. A common field that does not reach
    an entrant is an error. `target_loss`: the loss that they race for; by default the lowest that
    all of them reach. `target_accuracy`: the test accuracy that they race for; it is then measured
    every `evaluate_every` steps (default `EVALUATE_EVERY`), and has to be the metric of the
    workload. Raises `SpecError` or `Unavailable` before any process starts.

        with race("multi_worker_mirrored", "parameter_server", workers=4, steps=100) as both:
            print(both.wait().comparison)
    """
    origin = clock()
    _check_target("target_loss", target_loss, math.inf, "a number above 0")
    _check_target("target_accuracy", target_accuracy, 1, "a number above 0, at most 1, such as 0.9")
    if target_accuracy is not None:
        fields["evaluate_every"] = fields.get("evaluate_every") or EVALUATE_EVERY
    machine = hardware.probe()
    lined_up, notes = line_up(entrants, fields, machine)
    spec = next(iter(lined_up.values())).spec  # all learn the same
    metric = workloads.load(spec).metric_name
    if target_accuracy is not None and metric != "accuracy":
        text = f"{spec.workload} measures its {metric}: race for a target_loss"
        raise SpecError("target_accuracy", target_accuracy, text)
    share, cores = divide(machine, len(lined_up))
    runs: dict[str, Run] = {}
    with contextlib.ExitStack() as begun:
        ready = prepared(lined_up, share, begun)
        if on_nodes := bool(ready[0].machine.nodes):
            cores = [()] * len(ready)  # those are of other machines
        directories = [rundir.create(each.spec) for each in ready]
        for label, each, directory, own in zip(lined_up, ready, directories, cores, strict=True):
            directory.line.mkdir()
            programs = {job: partial(take_part, role, own) for job, role in each.programs.items()}
            whole = each.machine if on_nodes else machine
            runs[label] = Run(replace(each, machine=whole, programs=programs), origin, directory)
            begun.callback(runs[label].stop)
        begun.pop_all()  # all have begun, so keep them going
    notes.append(RESERVED if on_nodes else cores_note(cores, share, machine))
    if any(each.plan.device == "gpu" for each in ready):
        notes.append("All entrants share the GPUs, and how busy those are is not measured.")
    cores_seen = None if on_nodes else machine.cores
    begun_race = Race(runs, notes, origin, cores_seen, target_loss, target_accuracy)
    targets = {"target_loss": target_loss, "target_accuracy": target_accuracy}
    begun_race.restart = partial(race, *entrants, **targets, **fields)
    return begun_race


def _check_target(name: str, target: Any, most: float, allowed: str) -> None:
    """Raise `SpecError` for a target that is not a finite number above 0 and up to `most`."""
    number = isinstance(target, int | float) and math.isfinite(target)
    if target is not None and not (number and 0 < target <= most):
        raise SpecError(name, target, allowed)


class Race:
    """Runs that race each other. `runs`: label -> `Run`; `comparison` can be read at any time.

    A `with` block stops all runs at its end.
    """

    restart: Callable[[], Race] | None = None
    """Starts the same race once more, and returns it."""

    def __init__(
        self,
        runs: Mapping[str, Run],
        notes: Sequence[str],
        origin: float,
        cores: int | None,
        target_loss: float | None = None,
        target_accuracy: float | None = None,
    ) -> None:
        self.runs = dict(runs)
        self.target_loss, self.target_accuracy = target_loss, target_accuracy
        self._notes, self._origin, self._cores = list(notes), origin, cores
        self._line = StartingLine(self.runs)
        self._samples: list[Counters] = []
        self._held = False  # by a `with` block, which stops it
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="lockstep-race", daemon=True)
        self._thread.start()

    # --- what a learner does with it ---

    def wait(self, timeout: float = WAIT) -> Race:
        """Wait until all runs are over and return the race.

        An entrant that fails does not stop the others. Once all are over, raises the error of the
        first entrant, in the order given, that failed. After `timeout` seconds, or once all runs
        stand still for good, raises `Stalled`, which names the tasks that were waited for; the race
        then goes on, as it does after an interrupt.
        """
        deadline = clock() + timeout
        says = [of_run(run, label, attrgetter("losses.end")) for label, run in self.runs.items()]
        explained = interrupt_explained("race", "[run.stop() for run in Run.going()]", self._held)
        with explained, Line(lambda: "; ".join(each() for each in says)) as tell:
            # short waits, so that an interrupt is noticed
            while not self._over.wait(max(0.0, min(0.2, deadline - clock()))):
                tell()
                if clock() >= deadline:
                    raise Stalled(self._busy(), timeout)
                going = [run for run in self.runs.values() if run.state in ACTIVE]
                stuck = [why for run in going if (why := run.standstill()) and why.certain]
                if going and len(stuck) == len(going):
                    seconds = min(why.seconds for why in stuck)
                    raise Stalled(self._busy(), seconds, standing=True)
        for label, run in self.runs.items():
            try:
                run.wait(max(RESULT, deadline - clock()))
            except TaskFailed as error:
                details = error.step, error.reason, error.remote_traceback, error.log_tail
                raise TaskFailed(f"{label}: {error.task}", *details) from None
        return self

    def stop(self, *, timeout: float = 10.0) -> Race:
        """End all runs now; returns when their last process is gone.

        Does nothing to a race that is over. Raises `Stalled` if a run is not over after `timeout`
        seconds; the other runs are stopped all the same.
        """
        with contextlib.ExitStack() as every:  # stop the others even if one stalls
            for run in self.runs.values():
                every.callback(run.stop, timeout=timeout)
        self._thread.join(timeout)
        return self

    def slow(self, task: str, factor: float) -> None:
        """Slow down a task in every entrant that has such a task and still runs: its steps take
        `factor` times as long from now on; 1 is full speed.

        Raises `SpecError` if no entrant has such a task, `LockstepError` if all that have it are
        over.
        """
        for run in self._having(task):
            run.slow(task, factor)

    def jitter(self, task: str, jitter: str | None) -> None:
        """Delay the steps of a task in every entrant that has it and still runs, as `Run.jitter`
        does; raises as `slow` does.
        """
        for run in self._having(task):
            run.jitter(task, jitter)

    def _having(self, task: str) -> list[Run]:
        """The runs that can be told to do something to a task; if there is none, one that raises an
        error that says why.
        """
        having = [run for run in self.runs.values() if task in run.spec.tasks]
        return [run for run in having if run.state in ACTIVE] or having or [*self.runs.values()]

    @property
    def state(self) -> str:
        """`starting` until the starting line opens, `running` while a run goes on, then `failed` or
        `stopped` if one of them is, else `finished`.
        """
        states = [run.state for run in self.runs.values()]
        if any(state in ACTIVE for state in states):
            return "running" if self._line.opened is not None else "starting"
        return next(state for state in ("failed", "stopped", "finished") if state in states)

    @property
    def notes(self) -> list[str]:
        """Notes on how entrants differ, how the machine is divided, and who missed the starting
        line.
        """
        return [*self._notes, *self._line.notes, CLOCK_NOTE]

    @property
    def comparison(self) -> Comparison:
        """The figures of the race so far."""
        figures = []
        for label, run in self.runs.items():
            state = run.state
            result = run.result if state == "finished" else None
            figures.append(Figures(label, run.digest, state, result))
        targets = self.target_loss, self.target_accuracy
        return Comparison(figures, self._fairness(figures), self.notes, *targets)

    def as_dict(self) -> dict[str, Any]:
        """The comparison as plain values, with the state and the run directories, for JSON."""
        where = {label: str(run.run_dir) for label, run in self.runs.items()}
        return {"state": self.state, **self.comparison.as_dict(), "run_dirs": where}

    def __enter__(self) -> Race:
        self._held = True
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def __repr__(self) -> str:
        return f"Race({', '.join(f'{label} {run.state}' for label, run in self.runs.items())})"

    # --- the thread that watches ---

    def _watch(self) -> None:
        meter, due = self._cores and LoadMeter(self._cores), 0.0
        try:
            going = True
            while going:
                going = any(run.state in ACTIVE for run in self.runs.values())
                self._line.check()
                if meter and (clock() >= due or not going):
                    pids = [_pids(run) for run in self.runs.values()]
                    self._samples.append(meter.read(clock() - self._origin, pids))
                    due = clock() + SAMPLE_EVERY
                self._over.wait(LOOK_EVERY if self._line.opened is None else SAMPLE_EVERY / 2)
        finally:
            self._line.open()  # whatever went wrong here, no task may be left waiting
            self._over.set()

    def _busy(self) -> dict[str, Activity]:
        """Tasks of all entrants that are not done -> what each of them does or waits for."""
        busy: dict[str, Activity] = {}
        for label, run in self.runs.items():
            if run.state in ACTIVE:
                waiting = run.waiting_for(f"race.runs[{label!r}]")
                busy |= {f"{label}: {task}": what for task, what in waiting.items()}
        return busy

    def _fairness(self, figures: Sequence[Figures]) -> Fairness:
        specs = [run.spec for run in self.runs.values()]
        spans = {f.label: f.clock for f in figures}
        machine = fairness.load(list(self._samples), spans, self._cores)
        known = [(f.label, f.examples_per_second) for f in figures if f.examples_per_second]
        steps = {label: self.runs[label].spec.batch / rate * 1000 for label, rate in known}
        overhead = {f.label: f.overhead for f in figures}
        device_ms = max(spec.device_ms for spec in specs)
        workers = sum(spec.workers for spec in specs)
        verdict = fairness.judge(machine, overhead, steps, device_ms, workers)
        digests = {label: run.digest for label, run in self.runs.items()}
        return fairness.with_differences(verdict, digests)


def _pids(run: Run) -> dict[str, int]:
    """Task -> process, for the tasks that have been started."""
    return {e.task: e.pid for e in run.trace.all(Lifecycle, state="starting")}
