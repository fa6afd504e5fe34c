"""Describe what the stage is set to and what it draws of a schedule: its transfers as flat arrays,
when each began and ended, and where a wrong schedule breaks.

The scripts in this folder decide where all that stands on the screen.
"""

import math
from collections import defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike

from course_lib.collectives import Round, Schedule, State, build, simulate, verify
from course_lib.collectives.algorithms import find
from course_lib.collectives.cost import AlphaBeta, Topology, bus_bandwidth, cost
from course_lib.collectives.verify import goal, sound, whole
from course_lib.errors import SpecError, line_of
from course_lib.record.events import Message
from course_lib.record.trace import Trace
from course_lib.spec.fields import Link
from course_lib.text import amount, count
from course_lib.widgets.kit import svg

# Workers in order get cool colours in the first half and warm ones in the second, so that two hosts
# can be messages apart.
PALETTE = ["ink" if i == 7 else svg.WORKER[i] for i in (0, 5, 2, 7, 1, 4, 6, 3)]
FINEST = 65535  # times are sent as this many parts of the whole time
MIDDLE = 0.35  # on the clock of rounds, a transfer is half-way after this share of its round
ITEMSIZE = 4  # bytes of an element: float32, as in `allreduce`
# workers: as many bits as a number in the browser has
LIMITS = {"workers": 32, "ranks": 64, "chunks": 4096, "transfers": 20_000}


Reduced = Any
"""An all-reduce that has been carried out, as `course_lib.allreduce` returns it: it has `schedule`,
`trace`, `bytes`, `seconds` (of the quickest of several calls), `reality` and `link`.
"""


class Played:
    """The part of a `schedule` that is played: all of it, or the rounds up to the one that breaks.
    Raises SpecError if it is too large to be looked at.

    `length`: the rounds of the whole schedule. `problem`: the reason for the break; None if the
    schedule is right. `transfers`: all that are played, with their rounds. `blamed`: the number of
    the transfer to blame, or the last of several such; None if it is missing or cannot be drawn.
    `cell`: the rank and the chunk to point at, if there is such a place. `sound`: the rounds before
    the one in which it breaks; all, if nothing can be pointed at.
    """

    def __init__(self, schedule: Schedule) -> None:
        self.schedule, self.length, self.problem = schedule, len(schedule.rounds), None
        sizes = (schedule.workers, schedule.ranks, schedule.chunks, sum(map(len, schedule.rounds)))
        for (name, most), size in zip(LIMITS.items(), sizes, strict=True):
            if size > most:
                raise SpecError(name, size, f"the stage shows {most} at most")
        proof, at, cells = verify(schedule), None, []
        if not proof:
            named = [problem for problem in proof.problems if problem.transfer]
            self.problem = min(named, key=lambda p: p.round, default=proof.problems[0])
            end, t = self.problem.round + 1 if named else self.length, self.problem.transfer
            kept = [Round.of(t for t in r if sound(schedule, t)) for r in schedule.rounds[:end]]
            self.schedule, at = replace(schedule, rounds=kept), (self.problem.round, t)
            cells = [(rank, t.chunk) for rank in (t.dst, t.src)] if t else []
        inside = range(schedule.ranks), range(schedule.chunks)
        drawn = (cell for cell in cells if cell[0] in inside[0] and cell[1] in inside[1])
        self.cell = next(drawn, None)
        self.transfers = [(number, t) for number, r in enumerate(self.schedule.rounds) for t in r]
        self.blamed = max((i for i, t in enumerate(self.transfers) if t == at), default=None)
        pointed = self.problem if self.cell else None
        self.sound = pointed.round if pointed else len(self.schedule.rounds)


@dataclass(frozen=True)
class Staged:
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
        with the `whole` (a bit set for each chunk, uint32). `sizes`: bytes of each chunk.
        """
        if not self.played:
            return {"label": self.label, "error": self.error}
        schedule, transfers = self.played.schedule, self.played.transfers
        chunks = range(schedule.chunks)
        columns = np.array([t[:3] for _, t in transfers], dtype=np.uint16).reshape(-1, 3)
        src, dst, chunk = columns.T
        rounds = [number for number, _ in transfers]
        wants = [[goal(schedule, r, c) is not None for c in chunks] for r in range(schedule.ranks)]
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
            "whole": np.array([whole(schedule, c) for c in chunks], dtype=np.uint32).tobytes(),
            "clocks": self.clocks,
            "stop": self._stop(),
        }

    def _stop(self) -> dict[str, Any] | None:
        """The break of a wrong schedule, with the moment on each clock `at` which the picture
        stops: in the middle of the transfer to blame, or else after the rounds before it; nowhere
        if a transfer is missing.
        """
        played = self.played
        if not (played and played.problem):
            return None
        at = {name: each["stop"] for name, each in self.clocks.items()}
        at["rounds"] = played.problem.round + MIDDLE
        place = {"round": played.problem.round, "transfer": played.blamed, "cell": played.cell}
        return place | {"text": played.problem.text, "at": at if played.cell else {}}

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
    task = played.schedule.task
    queues = [messages[n, task(t.src), task(t.dst), t.chunk] for n, t in played.transfers]
    try:
        sent = [queue.popleft() for queue in queues]
    except IndexError:
        allowed = f"a trace of {played.schedule!r}: it has no message of one of its transfers"
        raise SpecError("trace", repr(trace), allowed) from None
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

    @classmethod
    def of(cls, workers: int, hosts: int, nbytes: int, link: Link | None) -> Self:
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
        link = Link(mbit=self.between * 8e-6, delay_ms=1000 * self.delay)
        return link if self.hosts > 1 else None

    def words(self, clock: str) -> dict[str, str]:
        """Make the words at hosts and links, and a sentence of the whole setting."""
        inside, between = in_words(self.inside), in_words(self.between, self.delay)
        where = f"{count(self.workers, 'worker')} on {count(self.hosts, 'host')}"
        about = f"{where}, {amount(self.bytes)} each"
        if clock == "measured":
            links = f", links between hosts held to {self.imposed}" if self.imposed else ""
            about += f"; real processes on this machine{links}."
            return {"inside": "shared memory", "between": self.imposed or "TCP", "about": about}
        links = f"{inside} inside a host" + f", {between} between hosts" * (self.hosts > 1)
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
    mbit = round(rate * 8e-6, 3)
    speed = f"{mbit / 1e3:g} Gbit/s" if mbit >= 1e3 else f"{mbit:g} Mbit/s"
    return " and ".join([speed] * (mbit < math.inf) + [f"{1000 * delay:g} ms"] * (delay > 0))


def limits(link: Link | None) -> str:
    """The limits of a link in words; empty if it has none."""
    return in_words(link.bytes_per_second, link.delay) if link else ""


def stage(algorithm: str | Reduced, setting: Setting, done: Reduced = None) -> Staged:
    """Build, verify and simulate an algorithm, unless it was carried out already. What a learner's
    function raises becomes the `error`.
    """
    named = isinstance(algorithm, str) or callable(algorithm)
    function, done = (find(algorithm), done) if named else (None, algorithm)
    name = getattr(function, "__name__", "").replace("<lambda>", "")
    try:
        schedule = done.schedule if done else build(algorithm, setting.workers, setting.hosts)
        played = Played(schedule)
    except Exception as error:  # whatever a learner's function raises is the answer
        words = str(error)
        if not isinstance(error, SpecError):
            words = f"{name or 'the function'} raises {type(error).__name__}: {error}"
            words += line_of(error, function)
        return Staged(name or "your function", None, {}, words)
    nbytes, topology = setting.bytes, setting.topology
    model = simulate(played.schedule, nbytes, topology, itemsize=ITEMSIZE, trace=True)
    clocks = {"simulated": clock(played, model.trace or Trace(), nbytes, "simulated")}
    if done:
        which = "simulated" if done.reality == "simulated" else "measured"
        took = None if played.problem else done.seconds
        clocks[which] = clock(played, done.trace, done.bytes, done.reality, took)
    return Staged(name or played.schedule.name, played, clocks)
