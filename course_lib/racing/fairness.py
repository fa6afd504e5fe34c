"""Whether a race was fair: how much of an entrant's time went to waiting for a core, and a rule for
how much of it is too much.

Entrants share one machine. As long as its cores are mostly idle, since emulated devices sleep,
nobody is in another's way, and a step takes as long as its devices say. Once tasks queue for a
core, a race measures the queue.

The rule. How much of its time an entrant lost in that queue is bounded from above in two ways, and
the lower bound counts:

- what the system counted for the threads of its workers (mean over workers) as ready to run and
  without a core;
- the overhead: what is left of its time without emulated device time and without waiting for
  others, see `Digest.overhead`.

The race was fair if no entrant lost more than `LOST` of its time. Where neither is known (a system
that does not count, and no emulated device), it was fair if no more than `BUSY` of the usable
cores' time was busy while all entrants ran. Less than `SHORTEST` seconds together say nothing.
Source: docs.kernel.org/scheduler/sched-stats.html, /proc/<pid>/schedstat.
"""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np
import psutil

LOST = 0.2
BUSY = 0.7
SHORTEST = 0.5
OTHERS = 0.2  # share of the cores from which on other programs are worth a word
NAN = float("nan")


class Sample(NamedTuple):
    """Counters at a moment, in seconds, each from some start of its own; NaN where the system does
    not tell.

    `busy`: of all cores; `ours`: cores' time that the entrants' tasks and this process used;
    `waited`: for each entrant, the mean over its workers of the time ready to run and without a
    core.
    """

    at: float
    busy: float
    ours: float
    waited: tuple[float, ...]


@dataclass(frozen=True)
class Load:
    """The machine in a race. `seconds` that all entrants ran; meanwhile `busy` and `ours` were the
    shares of its usable `cores`.

    `waited`: for each entrant, a share of its own time; NaN where the system does not tell.
    """

    seconds: float
    cores: int
    busy: float
    ours: float
    waited: dict[str, float]


@dataclass(frozen=True)
class Fairness:
    """`fair`: None where it cannot be told. `why` and `advice` (may be empty) are sentences for a
    learner.

    `lost`: for each entrant, at most so large a share of its time went to waiting for a core (None:
    not known). `busy` and `ours`: shares of the usable cores' time while all ran, of all programs
    and of the race.
    """

    fair: bool | None
    why: str
    advice: str = ""
    lost: dict[str, float | None] = field(default_factory=dict)
    busy: float | None = None
    ours: float | None = None


def load(
    samples: Sequence[Sample], spans: Mapping[str, tuple[float, float]], cores: int
) -> Load | None:
    """The machine while entrants ran, each from when to when in `spans` (in the order of the
    samples' `waited`); samples are interpolated. None if the entrants never ran together.
    """
    since, until = max(a for a, _ in spans.values()), min(b for _, b in spans.values())
    if len(samples) < 2 or until <= since:
        return None
    at = [s.at for s in samples]

    def grown(counter: Sequence[float], since: float, until: float) -> float:
        first, last = np.interp((since, until), at, counter)
        return float(last - first) / (until - since)

    ours = grown([s.ours for s in samples], since, until) / cores
    busy = grown([s.busy for s in samples], since, until) / cores
    waited = {
        label: grown([s.waited[i] for s in samples], *span)
        for i, (label, span) in enumerate(spans.items())
    }
    busy = ours if math.isnan(busy) else max(ours, busy)
    return Load(until - since, cores, min(1.0, busy), min(1.0, ours), waited)


def judge(
    machine: Load | None,
    overhead: Mapping[str, float | None],
    step_ms: Mapping[str, float],
    device_ms: float,
    workers: int,
) -> Fairness:
    """Apply the rule at the top of this file.

    `overhead`: for each entrant, None where it is not known; `step_ms`: what a step took;
    `workers`: of all entrants together.
    """
    if machine is None or machine.seconds < SHORTEST:
        ran = "at no time" if machine is None else f"for only {machine.seconds:.2g} s"
        why = f"Whether it was fair cannot be told: all entrants ran together {ran}."
        return Fairness(None, why, "Take more steps.")
    lost = {label: _least(waited, overhead.get(label)) for label, waited in machine.waited.items()}
    known = {label: share for label, share in lost.items() if share is not None}
    if len(known) == len(lost):
        worst = max(known, key=lambda label: known[label])
        share, limit, step = known[worst], LOST, step_ms.get(worst, device_ms)
        what = f"{worst}, which lost most by waiting for a core, lost up to {share:.0%} of its time"
    else:
        share, limit, step = machine.busy, BUSY, min(step_ms.values(), default=device_ms)
        what = f"the {machine.cores} cores were busy {share:.0%} of the time"
    fair, why, advice = share <= limit, f"{what} (up to {limit:.0%} is called fair)", ""
    if not fair:
        times = f"these times are those of its {machine.cores} cores more than of the strategies"
        why = f"the machine was saturated, so {times}: {why}"
        advice = _advice(machine, share / limit, share, device_ms, step, workers)
    said = f"{'Fair' if fair else 'NOT FAIR'}: {why}."
    return Fairness(fair, said, advice, lost, machine.busy, machine.ours)


def _least(*bounds: float | None) -> float | None:
    known = [bound for bound in bounds if bound is not None and not math.isnan(bound)]
    return min(1.0, *known) if known else None  # several threads of a task may wait at once


def _advice(
    machine: Load, excess: float, share: float, device_ms: float, step_ms: float, workers: int
) -> str:
    """What would make the race fair; `excess`: how many times too large the lost `share` was.

    With longer steps, what is not device time stays as it is, and so becomes a smaller share.
    """
    longer = step_ms * (1.3 * excess - 1)  # by so much a step is to grow, with some room
    # so much longer a step gets with each ms of device_ms: a straggler's more than 1
    stretch = max(1.0, step_ms * (1 - share) / device_ms) if device_ms else 1.0
    enough = _round_up(device_ms + longer / stretch)
    advice = []
    if (others := machine.busy - machine.ours) > OTHERS:
        used = f"{others * machine.cores:.1f} of {machine.cores} cores"
        advice = [f"Close other programs: they kept {used} busy."]
    if device_ms:
        advice.append(f"Raise device_ms from {device_ms:g} to about {enough:g}.")
    else:
        advice.append(f"Emulate devices: device_ms={enough:g} or so.")
    if workers > machine.cores:
        advice.append(f"Or take fewer workers: {workers} share {machine.cores} cores.")
    return " ".join(advice)


def _round_up(value: float) -> float:
    """The next number of one digit, or 15, 150 and so on."""
    power = 10.0 ** math.floor(math.log10(value))
    return next(
        step * power for step in (1, 1.5, *range(2, 11)) if step * power >= value * (1 - 1e-9)
    )


class LoadMeter:
    """Reads the counters of the machine and of the entrants' tasks."""

    def __init__(self, cores: int) -> None:
        # Where only some of the cores are ours, the others' load is not ours to judge: then only
        # our own tasks are counted.
        self._whole = cores >= (psutil.cpu_count() or 1)
        self._used: dict[int, float] = {}  # last known figures, which stay when a process is gone
        self._waited: dict[int, float] = {}

    def read(self, at: float, tasks: Sequence[Mapping[str, int]]) -> Sample:
        """A sample. `tasks`: for each entrant the pids of its tasks by name, as far as known."""
        for pids in tasks:
            for name, pid in pids.items():
                with contextlib.suppress(psutil.Error):
                    times = psutil.Process(pid).cpu_times()
                    self._used[pid] = times.user + times.system
                if name.startswith("worker:"):
                    seconds = sum(_nanoseconds_waited(pid)) / 1e9  # 0 if it is gone
                    self._waited[pid] = max(self._waited.get(pid, 0.0), seconds)
        mine = os.times()
        ours = sum(self._used.values()) + mine.user + mine.system
        workers = [
            [self._waited[pid] for name, pid in pids.items() if name.startswith("worker:")]
            for pids in tasks
        ]
        counted = Path("/proc/self/schedstat").exists()
        waited = (sum(each) / len(each) if each else 0.0 for each in workers)
        return Sample(
            at,
            _busy() if self._whole else NAN,
            ours,
            tuple(waited) if counted else (NAN,) * len(tasks),
        )


def _busy() -> float:
    """Seconds that all cores together were busy since the machine started."""
    times = psutil.cpu_times()
    kinds = ("user", "nice", "system", "irq", "softirq", "steal")
    return sum(getattr(times, kind, 0.0) for kind in kinds)


def _nanoseconds_waited(pid: int) -> Iterator[int]:
    """Of each thread of a process, the time ready to run and without a core.

    Called often, over many threads: a `Path` for each would cost more than the reading.
    """
    with contextlib.suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task"):  # noqa: PTH208
            with contextlib.suppress(OSError, IndexError):
                descriptor = os.open(f"/proc/{pid}/task/{thread}/schedstat", os.O_RDONLY)
                with os.fdopen(descriptor) as file:
                    yield int(file.read().split()[1])
