"""Whether a race was fair: how much of an entrant's time went to waiting for a core, and a rule for
how much of it is too much.

Entrants share one machine. As long as its cores are mostly idle, since emulated devices sleep,
nobody is in another's way, and a step takes as long as its devices say. Once tasks queue for a
core, a race measures the queue.

The rule. How much of its time an entrant lost in that queue is bounded from above in two ways, and
the lower bound counts:

    waited      what the system counted for the threads of its workers (mean over workers) as ready to run and without a core
    overhead    what is left of its time without emulated device time and without waiting for others, see `comparison.overhead`

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
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

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
class Verdict:
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

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def load(
    samples: Sequence[Sample], spans: Mapping[str, tuple[float, float]], cores: int
) -> Load | None:
    """The machine while entrants ran, each from when to when in `spans` (in order); samples are
    interpolated. None if they never ran together.
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
    return Load(
        until - since,
        cores,
        min(1.0, ours if math.isnan(busy) else max(ours, busy)),
        min(1.0, ours),
        waited,
    )


def judge(
    found: Load | None,
    overhead: Mapping[str, float | None],
    step_ms: Mapping[str, float],
    device_ms: float,
    workers: int,
) -> Verdict:
    """The rule at the top of this file, applied.

    `overhead`: for each entrant, None where it is not known; `step_ms`: what a step took;
    `workers`: of all entrants together.
    """
    if found is None or found.seconds < SHORTEST:
        ran = (
            f"all entrants ran together for only {found.seconds:.2g} s"
            if found
            else "there was no time at which all entrants ran"
        )
        return Verdict(None, f"Whether it was fair cannot be told: {ran}.", "Take more steps.")
    lost = {label: _least(waited, overhead.get(label)) for label, waited in found.waited.items()}
    known = {label: share for label, share in lost.items() if share is not None}
    if len(known) == len(lost):
        worst = max(known, key=lambda label: known[label])
        share, limit, step = known[worst], LOST, step_ms.get(worst, device_ms)
        why = f"{worst}, which lost most by waiting for a core, lost up to {share:.0%} of its time (up to {limit:.0%} is called fair)"
    else:
        share, limit, step = found.busy, BUSY, min(step_ms.values(), default=device_ms)
        why = f"the {found.cores} cores were busy {share:.0%} of the time (up to {limit:.0%} is called fair)"
    if share <= limit:
        return Verdict(True, f"Fair: {why}.", "", lost, found.busy, found.ours)
    why = f"NOT FAIR: the machine was saturated, so these times are those of its {found.cores} cores more than of the strategies: {why}."
    return Verdict(
        False,
        why,
        _advice(found, share, limit, device_ms, step, workers),
        lost,
        found.busy,
        found.ours,
    )


def _least(*bounds: float | None) -> float | None:
    known = [bound for bound in bounds if bound is not None and not math.isnan(bound)]
    return min(1.0, *known) if known else None  # several threads of a task may wait at once


def _advice(
    found: Load, share: float, limit: float, device_ms: float, step_ms: float, workers: int
) -> str:
    """What would make the race fair.

    With longer steps, what is not device time stays as it is, and so becomes a smaller share.
    """
    longer = step_ms * (1.3 * share / limit - 1)  # by so much a step is to grow, with some room
    enough = _round_up(
        device_ms
        + (
            min(longer, longer * device_ms / (step_ms * (1 - share)))
            if device_ms and share < 1
            else longer
        )
    )
    advice = [
        f"Raise device_ms from {device_ms:g} to about {enough:g}."
        if device_ms
        else f"Emulate devices: device_ms={enough:g} or so."
    ]
    if workers > found.cores:
        advice.append(f"Or take fewer workers: {workers} share {found.cores} cores.")
    others = found.busy - found.ours
    if others > OTHERS:
        advice.insert(
            0 if others > found.ours else 2,
            f"Close other programs: they kept {others * found.cores:.1f} of {found.cores} cores busy.",
        )
    return " ".join(advice)


def _round_up(value: float) -> float:
    """The next number of one digit, or 15, 150 and so on."""
    power = 10.0 ** math.floor(math.log10(value))
    return next(
        step * power for step in (1, 1.5, *range(2, 11)) if step * power >= value * (1 - 1e-9)
    )


class Meter:
    """Reads the counters. `tasks`: for each entrant the pids of its tasks by name, as they are
    known at the time.
    """

    def __init__(self, cores: int) -> None:
        # Where only some of the cores are ours, the others' load is not ours to judge: then only
        # our own tasks are counted.
        self._whole = cores >= (psutil.cpu_count() or 1)
        self._used: dict[int, float] = {}  # last known figures, which stay when a process is gone
        self._waited: dict[int, float] = {}

    def read(self, at: float, tasks: Sequence[Mapping[str, int]]) -> Sample:
        for pids in tasks:
            for name, pid in pids.items():
                with contextlib.suppress(psutil.Error):
                    times = psutil.Process(pid).cpu_times()
                    self._used[pid] = times.user + times.system
                if name.startswith("worker:"):
                    self._waited[pid] = max(self._waited.get(pid, 0.0), _waited(pid))
        mine = os.times()
        ours = sum(self._used.values()) + mine.user + mine.system
        workers = [
            [self._waited[pid] for name, pid in pids.items() if name.startswith("worker:")]
            for pids in tasks
        ]
        waited = tuple(sum(each) / len(each) if each else 0.0 for each in workers)
        return Sample(
            at,
            _busy() if self._whole else NAN,
            ours,
            waited if _counts_waiting() else (NAN,) * len(tasks),
        )


def _busy() -> float:
    """Seconds that all cores together were busy since the machine started."""
    times = psutil.cpu_times()
    return sum(
        getattr(times, name, 0.0) for name in ("user", "nice", "system", "irq", "softirq", "steal")
    )


def _counts_waiting() -> bool:
    return Path("/proc/self/schedstat").exists()


def _waited(pid: int) -> float:
    """Seconds that the threads of a process were ready to run and without a core; 0 if it is gone."""
    return sum(_nanoseconds(pid)) / 1e9


def _nanoseconds(pid: int) -> Iterator[int]:
    """Called often, over many threads: a `Path` for each would cost more than the reading."""
    with contextlib.suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task"):  # noqa: PTH208
            with contextlib.suppress(OSError, IndexError):
                descriptor = os.open(f"/proc/{pid}/task/{thread}/schedstat", os.O_RDONLY)
                with os.fdopen(descriptor) as file:
                    yield int(file.read().split()[1])
