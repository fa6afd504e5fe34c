"""Fairness of a race: all take their second step together, after a starting line, and a rule says
how long an entrant may have waited for a core.

The line. Every worker takes its first step, which traces and compiles, and waits for all entrants
before it takes its second. Otherwise the entrant that compiles fastest would run on an idle machine
and be done before the others begin. A strategy calls `task.at_step_end` after each step, outside
its phases; in a race the first of these calls waits. If a chief hands out the steps, the chief
waits. A task at the line leaves a file in its run's directory; when the line opens, the race leaves
a file there.

Entrants share one machine. As long as its cores are mostly idle, because emulated devices sleep,
the entrants do not disturb each other, and a step takes as long as its devices do. Once tasks queue
for a core, a race measures the queue.

The rule. Two measurements each give an upper bound on the time that an entrant lost in that queue;
the smaller one is used:

- the time that the threads of its workers were ready to run without a core, as the system counts it
  (mean over workers);
- the overhead: its time without emulated device time and without waiting for others, see
  `Digest.overhead`.

The race was fair if no entrant lost more than `MOST_LOST` of its time. If neither is known for
some entrant (the system does not count, and devices are not emulated), the race was fair if the
usable cores were busy for no more than `MOST_BUSY` of the time in which all entrants ran. If all
ran together for less than `SHORTEST` seconds, it cannot be told. Source:
docs.kernel.org/scheduler/sched-stats.html, /proc/<pid>/schedstat.

On the nodes of a cluster nobody counts for us who waits for a core: there only the overhead is a
bound, and without emulated devices it cannot be told.

Nor is it fair if the entrants do not have the same workers, or if not the same is done to them.
"""

import contextlib
import math
import os
import pkgutil
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import numpy as np
import psutil

from course_lib.cluster.run import Run
from course_lib.cluster.task import Task
from course_lib.errors import LockstepError
from course_lib.record.digest import Digest
from course_lib.record.events import ACTIVE, clock
from course_lib.record.life import Life
from course_lib.record.rundir import folder_name
from course_lib.text import round_up

MOST_LOST = 0.2
MOST_BUSY = 0.7
OTHERS = 0.2  # a share of the cores that other programs use, from which the advice names them
SHORTEST = 0.5
ROUND = (1, 1.5, *range(2, 11))  # digits of an advised device_ms: 15, 20, 30, ... 100, 150
SAME = {"shares": "workers", "slow": "stragglers", "jitter": "jitter", "faults": "faults"}
"""Fields of `RunSpec` that have to be the same for all entrants -> what they are in words."""
# states that come of orders
ORDERS = ("slowed", "full speed", "jittered", "steady", "linked", "paused", "cut")


# Seconds from the first arrival until the line opens for those that are there. Less than the 60 s
# after which a framework's collective gives up on a missing peer.
LONGEST_WAIT = 45.0
GIVE_UP = 2 * LONGEST_WAIT  # seconds; a task waits so long only if the race itself is gone
POLL = 0.002
OPEN = "open"  # the file that tells the tasks to go on


def take_part(role: Any, cores: Sequence[int], task: Task) -> Any:
    """The role function of an entrant's tasks: run the strategy's `role` (`module:function`, or a
    function) on the entrant's cores (none given: on all), and stop at the line after the first
    step.
    """
    if cores:
        os.sched_setaffinity(0, cores)  # threads made from here on inherit it
    if task.job in ("worker", "chief"):
        task.at_step_end = partial(wait_at_line, task)
    return (pkgutil.resolve_name(role) if isinstance(role, str) else role)(task)


def wait_at_line(task: Task) -> None:
    """Wait at the line, once."""
    task.at_step_end = lambda: None
    (task.files.line / folder_name(task.name)).touch()
    deadline = clock() + GIVE_UP
    while not (task.files.line / OPEN).exists():
        if clock() > deadline:
            where = f"{GIVE_UP:g} s at the starting line of a race, and nobody opened it"
            raise LockstepError(f"{task.name} waited {where}")
        time.sleep(POLL)


class StartingLine:
    """The line as the race sees it.

    `opened`: when the line opened, on the machine's clock, or None; `started`: the entrants that
    were at the line then; `notes`: which entrants came late.
    """

    def __init__(self, runs: Mapping[str, Run]) -> None:
        self.runs = runs
        self.opened: float | None = None
        self.started: list[str] = []
        self.notes: list[str] = []
        self._first = math.inf  # when the first task was there

    def check(self) -> None:
        """Open the line if all entrants are there, or if the first to come has waited for
        `LONGEST_WAIT` seconds.
        """
        if self.opened is not None:
            return
        going = {label: run for label, run in self.runs.items() if run.state in ACTIVE}
        arrived = {label: set(run.files.line.iterdir()) for label, run in going.items()}
        if any(arrived.values()):
            self._first = min(self._first, clock())
        self.started = [label for label, run in going.items() if _awaited(run) <= arrived[label]]
        if len(self.started) == len(going) or clock() > self._first + LONGEST_WAIT:
            late = f"was not at the starting line after {LONGEST_WAIT:g} s"
            absent = [label for label in going if label not in self.started]
            self.notes += [f"{label} {late}: it began at another time." for label in absent]
            self.open()

    def open(self) -> None:
        """Let all tasks go on."""
        if self.opened is None:
            self.opened = clock()  # before any task can go on
            for label in self.started:
                run = self.runs[label]
                run.digest.begin(self.opened - run.files.facts.origin)
            for run in self.runs.values():
                (run.files.line / OPEN).touch()


def _awaited(run: Run) -> set[Path]:
    """The files of the tasks that have to come to the line."""
    job = "chief:" if run.spec.chief else "worker:"
    return {run.files.line / folder_name(task) for task in run.spec.tasks if task.startswith(job)}


class Counters(NamedTuple):
    """Counters at a moment, in seconds; each counts from a start of its own, so only differences
    mean something. NaN if the system does not tell.

    `busy`: the time that all cores together were busy; `ours`: the processor time that the
    entrants' tasks and this process used; `waited`: for each entrant, the time that a worker was
    ready to run without a core, a mean over its workers.
    """

    at: float
    busy: float
    ours: float
    waited: tuple[float, ...]


@dataclass(frozen=True)
class Load:
    """The load of the machine in a race. All entrants ran together for `seconds`; in that time
    `busy` and `ours` were the shares of its usable `cores` that all programs and the race used.

    `waited`: for each entrant, the share of its own time that it waited for a core; NaN if the
    system does not tell. Of cores of other machines (None) nothing is told.
    """

    seconds: float
    cores: int | None
    busy: float
    ours: float
    waited: dict[str, float]


@dataclass(frozen=True)
class Fairness:
    """The verdict on whether a race was `fair`, None if that cannot be told. `why` and `advice`
    (may be empty) are sentences for a learner.

    `lost`: for each entrant, an upper bound on the share of its time that it waited for a core;
    None if not known. `busy` and `ours`: the shares of the usable cores that all programs and the
    race used while all entrants ran.
    """

    fair: bool | None
    why: str
    advice: str = ""
    lost: dict[str, float | None] = field(default_factory=dict)
    busy: float | None = None
    ours: float | None = None


def load(
    samples: Sequence[Counters], spans: Mapping[str, tuple[float, float]], cores: int | None
) -> Load | None:
    """The load of the machine while entrants ran. `spans`: label -> start and end of that entrant,
    in the order of the samples' `waited`; samples are interpolated. `cores`: None if they are of
    other machines, which nobody samples. None if the entrants never all ran together.
    """
    since, until = max(a for a, _ in spans.values()), min(b for _, b in spans.values())
    if cores is None and until > since:
        return Load(until - since, None, math.nan, math.nan, dict.fromkeys(spans, math.nan))
    if cores is None or len(samples) < 2 or until <= since:
        return None
    at = [sample.at for sample in samples]

    def grown(counter: Sequence[float], since: float, until: float) -> float:
        first, last = np.interp((since, until), at, counter)
        return float(last - first) / (until - since)

    ours = grown([sample.ours for sample in samples], since, until) / cores
    busy = grown([sample.busy for sample in samples], since, until) / cores
    waits = zip(spans.items(), zip(*(s.waited for s in samples), strict=True), strict=True)
    waited = {label: grown(counter, *span) for (label, span), counter in waits}
    return Load(until - since, cores, min(1.0, np.fmax(ours, busy)), min(1.0, ours), waited)


def with_differences(verdict: Fairness, digests: Mapping[str, Digest]) -> Fairness:
    """The verdict, which is no, and says only that, if the entrants' specs differ in one of `SAME`,
    or what was ordered for them on the way.
    """
    differ = []
    fields: dict[str, dict[str, Any]] = {
        what: {label: getattr(digest.spec, name) for label, digest in digests.items()}
        for name, what in SAME.items()
    }
    fields["orders on the way"] = {label: _orders(each.life) for label, each in digests.items()}
    for what, given in fields.items():
        first, *others = given.values()
        if any(value != first for value in others):
            each = ", ".join(f"{label} {_in_words(value)}" for label, value in given.items())
            differ.append(f"{what} ({each})")
    if not differ:
        return verdict
    why = f"NOT FAIR: the entrants do not have the same {' and '.join(differ)}."
    return replace(verdict, fair=False, why=why, advice="Give all the same.")


def _orders(life: Life) -> list[str]:
    """List the orders to tasks and hosts of a run on its way that were no fault of its spec, such
    as "worker:3 slowed to 4 times its time".
    """
    orders = [span for span in life.of(None, *ORDERS) if span.start > 0 and not span.cause.fault]
    return sorted(f"{span.who} {span.cause.words}" for span in orders)


def _in_words(value: Any) -> str:
    if isinstance(value, Mapping):
        value = [f"{task}={what}" for task, what in value.items()]
    if isinstance(value, int | str):
        return str(value)
    return ", ".join(map(str, value)) or "none"


def judge(
    machine: Load | None,
    overhead: Mapping[str, float | None],
    step_ms: Mapping[str, float],
    device_ms: float,
    workers: int,
) -> Fairness:
    """Apply the rule at the top of this file.

    `overhead`: for each entrant, None if not known; `step_ms`: how long a step took; `workers`:
    their number in all entrants together.
    """
    if machine is None or machine.seconds < SHORTEST:
        ran = "at no time" if machine is None else f"for only {machine.seconds:.2g} s"
        why = f"Whether it was fair cannot be told: all entrants ran together {ran}."
        return Fairness(None, why, "Take more steps.")
    lost = {label: _least(waited, overhead.get(label)) for label, waited in machine.waited.items()}
    known = {label: share for label, share in lost.items() if share is not None}
    if len(known) == len(lost):
        worst = max(known, key=lambda label: known[label])
        share, limit, step = known[worst], MOST_LOST, step_ms.get(worst, device_ms)
        what = f"{worst}, which lost most by waiting for a core, lost up to {share:.0%} of its time"
    elif machine.cores is None:
        why = "Whether it was fair cannot be told: how busy the cores of other machines were is "
        why += "not measured, and no devices are emulated, from whose time that would follow."
        return Fairness(None, why, "Emulate devices: device_ms=20 or so.", lost)
    else:
        share, limit, step = machine.busy, MOST_BUSY, min(step_ms.values(), default=device_ms)
        what = f"the {machine.cores} cores were busy {share:.0%} of the time"
    fair, why, advice = share <= limit, f"{what} (up to {limit:.0%} is called fair)", ""
    if not fair:
        times = "these times are those of the cores more than of the strategies"
        why = f"the cores were saturated, so {times}: {why}"
        advice = _advice(machine, share / limit, share, device_ms, step, workers)
    verdict = f"{'Fair' if fair else 'NOT FAIR'}: {why}."
    counted = () if machine.cores is None else (machine.busy, machine.ours)
    return Fairness(fair, verdict, advice, lost, *counted)


def _least(*bounds: float | None) -> float | None:
    known = [bound for bound in bounds if bound is not None and not math.isnan(bound)]
    return min(1.0, *known) if known else None  # several threads of a task may wait at once


def _advice(
    machine: Load, excess: float, share: float, device_ms: float, step_ms: float, workers: int
) -> str:
    """Advise what makes a race fair; `excess`: how many times too large the lost `share` was.

    Longer device times leave the rest of a step as it is, so the rest becomes a smaller share.
    """
    longer = step_ms * (1.3 * excess - 1)  # how much longer a step should be, with a margin
    # by how many ms a step grows for each ms of device_ms: by more than 1 with a straggler
    stretch = max(1.0, step_ms * (1 - share) / device_ms) if device_ms else 1.0
    enough = round_up(device_ms + longer / stretch, ROUND)
    raised = f"Raise device_ms from {device_ms:g} to about {enough:g}."
    advice = raised if device_ms else f"Emulate devices: device_ms={enough:g} or so."
    if machine.cores is None:
        return advice
    if (others := machine.busy - machine.ours) > OTHERS:
        advice = f"Close other programs: they kept {others:.0%} of the cores busy. {advice}"
    fewer = f" Or take fewer workers: {workers} share {machine.cores} cores."
    return advice + fewer * (workers > machine.cores)


class LoadMeter:
    """Reads the counters of the machine and of the entrants' tasks."""

    def __init__(self, cores: int) -> None:
        # If we may use only some of the cores, the load of the others says nothing about ours: then
        # only our own tasks are counted.
        self._whole = cores >= (psutil.cpu_count() or 1)
        self._used: dict[int, float] = {}  # last known times, kept after a process is gone
        self._waited: dict[int, float] = {}

    def read(self, at: float, tasks: Sequence[Mapping[str, int]]) -> Counters:
        """The counters now. `tasks`: for each entrant the pids of its tasks by name, as far as
        known.
        """
        for pid in chain.from_iterable(pids.values() for pids in tasks):
            with contextlib.suppress(psutil.Error):
                times = psutil.Process(pid).cpu_times()
                self._used[pid] = times.user + times.system
        mine = os.times()
        ours = sum(self._used.values()) + mine.user + mine.system
        waited = tuple(self._waited_for_a_core(pids) for pids in tasks)
        return Counters(at, _busy() if self._whole else math.nan, ours, waited)

    def _waited_for_a_core(self, pids: Mapping[str, int]) -> float:
        """Seconds, a mean over the workers of an entrant; NaN if the system does not tell."""
        workers = [pid for name, pid in pids.items() if name.startswith("worker:")]
        for pid in workers:
            seconds = sum(_nanoseconds_waited(pid)) / 1e9  # 0 if it is gone
            self._waited[pid] = max(self._waited.get(pid, 0.0), seconds)
        if not Path("/proc/self/schedstat").exists():
            return math.nan
        return fmean(self._waited[pid] for pid in workers) if workers else 0.0


def _busy() -> float:
    """Seconds that all cores together were busy since the machine started."""
    times = psutil.cpu_times()
    kinds = ("user", "nice", "system", "irq", "softirq", "steal")
    return sum(getattr(times, kind, 0.0) for kind in kinds)


def _nanoseconds_waited(pid: int) -> Iterator[int]:
    """For each thread of a process, the nanoseconds that it was ready to run without a core.

    Called often, over many threads: a `Path` for each would cost more than the reading.
    """
    with contextlib.suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task"):  # noqa: PTH208
            with contextlib.suppress(OSError, IndexError):
                descriptor = os.open(f"/proc/{pid}/task/{thread}/schedstat", os.O_RDONLY)
                with os.fdopen(descriptor) as file:
                    yield int(file.read().split()[1])
