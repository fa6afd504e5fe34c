"""Describe what the stage is set to and what it draws of a schedule: its transfers as flat arrays,
when each began and ended, and where a wrong schedule breaks.

The scripts in this folder decide where all that stands on the screen.
"""

from __future__ import annotations

import math
from collections import defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike

from course_lib.collectives import (
    Problem,
    Round,
    Schedule,
    State,
    Transfer,
    build,
    simulate,
    verify,
)
from course_lib.collectives.algorithms import Algorithm, find
from course_lib.collectives.cost import AlphaBeta, Topology, bus_bandwidth, cost
from course_lib.collectives.verify import goal, sound, whole
from course_lib.errors import SpecError, line_of
from course_lib.record.events import Message
from course_lib.record.trace import Trace
from course_lib.spec.fields import Link
from course_lib.text import amount, count
from course_lib.widgets.kit.palette import WORKER

# Workers in order get cool colours in the first half and warm ones in the second, so that two hosts
# can be messages apart.
PALETTE = (WORKER[0], WORKER[5], WORKER[2], "ink", WORKER[1], WORKER[4], WORKER[6], WORKER[3])
FINEST = 65535  # times are sent as this many parts of the whole time
MIDDLE = 0.35  # on the clock of rounds, a transfer is half-way after this share of its round
ITEMSIZE = 4  # bytes of an element: float32, as in `allreduce`
# workers: as many bits as a number in the browser has
LIMITS = {"workers": 32, "ranks": 64, "chunks": 4096, "transfers": 20_000}


class Reduced(Protocol):
    """An all-reduce that has been carried out, as `course_lib.allreduce` returns it.

    `seconds` is the quickest of several calls.
    """

    @property
    def schedule(self) -> Schedule: ...
    @property
    def trace(self) -> Trace: ...
    @property
    def bytes(self) -> int: ...
    @property
    def seconds(self) -> float: ...
    @property
    def reality(self) -> str: ...
    @property
    def link(self) -> Link | None: ...


@dataclass(frozen=True)
class Played:
    """The part of a schedule that is played: all of it, or the rounds up to the one that breaks.

    `length`: the rounds of the whole schedule. `problem`: the reason for the break; None if the
    schedule is right.
    """

    schedule: Schedule
    length: int
    problem: Problem | None = None

    @classmethod
    def of(cls, schedule: Schedule) -> Played:
        """Verify a schedule. Raises SpecError if it is too large to be looked at."""
        transfers = sum(map(len, schedule.rounds))
        sizes = (schedule.workers, schedule.ranks, schedule.chunks, transfers)
        for (name, most), size in zip(LIMITS.items(), sizes, strict=True):
            if size > most:
                raise SpecError(name, size, f"the stage shows {most} at most")
        length, proof = len(schedule.rounds), verify(schedule)
        if proof:
            return cls(schedule, length)
        blamed = [problem for problem in proof.problems if problem.transfer]
        problem = min(blamed, key=lambda p: p.round, default=proof.problems[0])
        end = problem.round + 1 if blamed else length
        kept = [Round.of(t for t in r if sound(schedule, t)) for r in schedule.rounds[:end]]
        return cls(replace(schedule, rounds=kept), length, problem)

    @cached_property
    def transfers(self) -> list[tuple[int, Transfer]]:
        """All transfers with their rounds, in order."""
        return [(number, t) for number, r in enumerate(self.schedule.rounds) for t in r]

    @cached_property
    def blamed(self) -> int | None:
        """The number of the transfer to blame, or the last of several such; None if it is missing
        or cannot be drawn.
        """
        at = self.problem and (self.problem.round, self.problem.transfer)
        return max((i for i, each in enumerate(self.transfers) if each == at), default=None)

    @cached_property
    def cell(self) -> tuple[int, int] | None:
        """The rank and the chunk to point at, if there is such a place."""
        t = self.problem.transfer if self.problem else None
        if t is None or not 0 <= t.chunk < self.schedule.chunks:
            return None
        ranks = (rank for rank in (t.dst, t.src) if 0 <= rank < self.schedule.ranks)
        return next(((rank, t.chunk) for rank in ranks), None)

    @property
    def sound(self) -> int:
        """The rounds before the one in which it breaks; all, if nothing can be pointed at."""
        return self.problem.round if self.problem and self.cell else len(self.schedule.rounds)


@dataclass(frozen=True)
class StagedAlgorithm:
    """An algorithm on the stage: what is played of its schedule, and its `clocks` (name -> what
    `clock` returns); or the `error` because of which nothing can be played.
    """

    label: str
    played: Played | None
    clocks: dict[str, dict[str, Any]]
    error: str = ""

    def panel(self, nbytes: int) -> dict[str, Any]:
        """The same as plain values and bytes, small enough to be sent whenever a slider moves.

        Columns with an entry for each transfer in the order of rounds: `src`, `dst` (uint8),
        `chunk` (uint8, or uint16 where there are more than 256) and `reduce`, whether it is added
        (a bit). `offsets`: the first transfer of each round. A bit by rank and chunk: `own`,
        whether the rank starts with its own contribution there, and `wants`, whether it must end
        with the `whole` (a bit set for each chunk). `sizes`: bytes of each chunk.
        """
        if not self.played:
            return {"label": self.label, "error": self.error}
        schedule, transfers = self.played.schedule, self.played.transfers
        chunks = range(schedule.chunks)
        columns = np.array([t[:3] for _, t in transfers], dtype=np.uint16).reshape(-1, 3)
        src, dst, chunk = columns.T
        rounds = [number for number, _ in transfers]
        wants = [
            [goal(schedule, rank, c) is not None for c in chunks] for rank in range(schedule.ranks)
        ]
        return {
            "label": self.label,
            "workers": schedule.workers,
            "ranks": schedule.ranks,
            "chunks": schedule.chunks,
            "hosts": list(schedule.hosts),
            "length": self.played.length,
            "sizes": np.diff(schedule.byte_ends(nbytes, ITEMSIZE)).tolist(),
            "offsets": np.searchsorted(rounds, np.arange(len(schedule.rounds) + 1)).tolist(),
            "src": src.astype(np.uint8).tobytes(),
            "dst": dst.astype(np.uint8).tobytes(),
            "chunk": chunk.astype(np.min_scalar_type(schedule.chunks - 1)).tobytes(),
            "reduce": _bits([t.op == "reduce" for _, t in transfers]),
            "own": _bits(np.array(State(schedule).once) != 0),
            "wants": _bits(wants),
            "whole": [whole(schedule, c) for c in chunks],
            "clocks": self.clocks,
            "stop": self._stop(self.played),
        }

    def _stop(self, played: Played) -> dict[str, Any] | None:
        """The break of a wrong schedule, with the moment on each clock `at` which the picture
        stops: in the middle of the transfer to blame, or else after the rounds before it; nowhere
        if a transfer is missing.
        """
        if not (problem := played.problem):
            return None
        at = {name: each["stop"] for name, each in self.clocks.items() if played.cell}
        if played.cell:
            at["rounds"] = problem.round + MIDDLE
        place = {"round": problem.round, "transfer": played.blamed, "cell": played.cell}
        return place | {"text": problem.text, "at": at}

    @property
    def problem(self) -> str:
        """The error in words; empty where there is none."""
        wrong = self.played.problem if self.played else None
        return wrong.text if wrong else self.error

    def rows(self, nbytes: int) -> list[tuple[str, ...]]:
        """A row for each clock in seconds: label, rounds, bytes, busiest link, time, bus bandwidth,
        and whether it was simulated or measured.
        """
        if not self.played or self.problem:
            return []
        price = cost(self.played.schedule, nbytes, itemsize=ITEMSIZE)
        link, carried = price.busiest_link
        busiest = f"{link}: {amount(carried)}" if carried else "none"
        facts = (self.label, str(price.rounds), amount(price.bytes_per_rank), busiest)
        return [
            (*facts, f"{c['seconds'] * 1e3:.3g} ms", f"{c['bus'] / 1e9:.3g} GB/s", c["reality"])
            for c in self.clocks.values()
        ]


def _bits(flags: ArrayLike) -> bytes:
    """Eight flags a byte, the first in its lowest bit."""
    return np.packbits(np.asarray(flags, dtype=bool), axis=None, bitorder="little").tobytes()


def clock(
    played: Played, trace: Trace, nbytes: int, reality: str, took: float | None = None
) -> dict[str, Any]:
    """Make what the page needs to play a schedule at the pace of a trace, which was made with
    `nbytes` bytes a worker.

    `times`: when each transfer began, then when each ended, as uint16 from 0, the first beginning,
    to 65535, the last end. `seconds`: the time of the whole; that is what it `took`, if that is
    given, as of several calls not the quickest is traced. `bus`: the bus bandwidth in bytes a
    second. `stop`: the second in which a wrong schedule breaks. If the trace holds several calls,
    the first is taken. Raises SpecError if a transfer is not in the trace.
    """
    messages: dict[tuple[int, str, str, int], deque[Message]] = defaultdict(deque)
    for m in trace.all(Message):
        messages[m.round, m.src, m.dst, m.chunk].append(m)
    task, sent = played.schedule.task, []
    for number, t in played.transfers:
        queue = messages[number, task(t.src), task(t.dst), t.chunk]
        if not queue:
            missing = f"it has no message {t} in round {number}"
            raise SpecError("trace", repr(trace), f"a trace of {played.schedule!r}: {missing}")
        sent.append(queue.popleft())
    times = np.array([[m.start for m in sent], [m.end for m in sent]])
    times -= times.min(initial=np.inf) if sent else 0.0
    traced = float(times.max(initial=0.0))
    shares, seconds = times / (traced or 1.0), traced if took is None else took
    before = [number < played.sound for number, _ in played.transfers]
    stop = shares[1, before].max(initial=0.0)
    if played.blamed is not None:
        stop = shares[:, played.blamed].mean()
    return {
        "times": np.rint(shares * FINEST).astype(np.uint16).tobytes(),
        "seconds": seconds,
        "bus": bus_bandwidth(nbytes, seconds, played.schedule.workers, played.schedule.kind),
        "reality": reality,
        "stop": float(stop) * seconds,
    }


@dataclass(frozen=True)
class Setting:
    """The numbers of workers and hosts, the bytes that each worker brings, the bytes a second of a
    link `inside` a host and `between` hosts, and of the latter the seconds of `delay` and those for
    each message (`alpha`).

    `imposed`: the limits of the links in a run with real processes, in words.
    """

    workers: int
    hosts: int
    bytes: int
    inside: float
    between: float
    delay: float = 0.0
    alpha: float = 0.0
    imposed: str = ""

    def __post_init__(self) -> None:
        for name, most in (("workers", LIMITS["workers"]), ("hosts", self.workers)):
            if not isinstance(value := getattr(self, name), int) or not 1 <= value <= most:
                raise SpecError(name, value, f"a whole number from 1 to {most}")
        for name in ("inside", "between"):
            if not 0 < getattr(self, name) < math.inf:
                raise SpecError(name, getattr(self, name), "bytes a second, above 0, not infinite")

    @classmethod
    def of(cls, workers: int, hosts: int, nbytes: int, link: Link | None) -> Setting:
        """The setting with usual links; between hosts with `link`, as far as it says how fast."""
        usual = Topology()
        inter = usual.inter
        if link:
            link.check_lossless()
            inter = AlphaBeta(0.0, 1 / link.bytes_per_second or inter.beta, link.delay)
        speeds = 1 / usual.intra.beta, 1 / inter.beta
        return cls(workers, hosts, nbytes, *speeds, inter.delay, inter.alpha)

    @property
    def topology(self) -> Topology:
        """The model of these links."""
        inter = AlphaBeta(self.alpha, 1 / self.between, self.delay)
        return Topology(replace(Topology().intra, beta=1 / self.inside), inter)

    @property
    def link(self) -> Link | None:
        """The link of each host, to be imposed on real processes."""
        real = Link(mbit=self.between * 8e-6, delay_ms=1000 * self.delay)
        return real if self.hosts > 1 else None

    def words(self, clock: str) -> dict[str, str]:
        """Make the words at hosts and links, and a sentence of the whole setting."""
        inside, between = in_words(self.inside), in_words(self.between, self.delay)
        where = f"{count(self.workers, 'worker')} on {count(self.hosts, 'host')}"
        about = f"{where}, {amount(self.bytes)} each"
        if clock == "measured":
            held = f", links between hosts held to {self.imposed}" if self.imposed else ""
            about += f"; real processes on this machine{held}."
            return {"inside": "shared memory", "between": self.imposed or "TCP", "about": about}
        links = f"{inside} inside a host" + (f", {between} between hosts" if self.hosts > 1 else "")
        return {"inside": f"{inside} inside", "between": between, "about": f"{about}; {links}."}


def alike(done: Sequence[Reduced]) -> tuple[int, int, int, Link | None]:
    """Workers, hosts, bytes and link of all-reduces that were carried out.

    Raises SpecError if they do not go together.
    """
    settings = {(d.schedule.workers, len(set(d.schedule.hosts)), d.bytes, d.link) for d in done}
    if len(settings) > 1:
        allowed = "all-reduces with the same workers, hosts, bytes and links"
        raise SpecError("algorithms", [each[:3] for each in settings], allowed)
    return settings.pop()


def in_words(rate: float, delay: float = 0.0) -> str:
    """The speed (bytes a second) and the delay (seconds) of a link, as far as it has them:
    "10 Mbit/s and 5 ms".
    """
    mbit, late = round(8 * rate / 1e6, 3), f"{1000 * delay:g} ms"
    if mbit == math.inf:
        return f"a delay of {late}" if delay else ""
    speed = f"{mbit / 1e3:g} Gbit/s" if mbit >= 1e3 else f"{mbit:g} Mbit/s"
    return f"{speed} and {late}" if delay else speed


def limits(link: Link | None) -> str:
    """The limits of a link in words; empty if it has none."""
    return in_words(link.bytes_per_second, link.delay) if link else ""


def stage(
    algorithm: str | Algorithm | Reduced, setting: Setting, done: Reduced | None = None
) -> StagedAlgorithm:
    """Build, verify and simulate an algorithm, unless it was carried out already. What a learner's
    function raises becomes the `error`.
    """
    if isinstance(algorithm, str) or callable(algorithm):
        function = find(algorithm)
        name = getattr(function, "__name__", "").replace("<lambda>", "")
        try:
            schedule = done.schedule if done else build(function, setting.workers, setting.hosts)
            played = Played.of(schedule)
        except Exception as error:  # whatever a learner's function raises is the answer
            words = str(error)
            if not isinstance(error, SpecError):
                words = f"{name or 'the function'} raises {type(error).__name__}: {error}"
                words += line_of(error, function)
            return StagedAlgorithm(name or "your function", None, {}, words)
    else:
        done, played, name = algorithm, Played.of(algorithm.schedule), ""
    nbytes, topology = setting.bytes, setting.topology
    model = simulate(played.schedule, nbytes, topology, itemsize=ITEMSIZE, trace=True)
    clocks = {"simulated": clock(played, model.trace or Trace(), nbytes, "simulated")}
    if done:
        which = "simulated" if done.reality == "simulated" else "measured"
        took = None if played.problem else done.seconds
        clocks[which] = clock(played, done.trace, done.bytes, done.reality, took)
    return StagedAlgorithm(name or played.schedule.name, played, clocks)
