"""Real processes: schedules carried out over shared memory and sockets are exact, send what they
cost, and end with a name when a rank is lost.
"""

import contextlib
import itertools
import multiprocessing
import os
import signal
import socket
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

import cloudpickle
import numpy as np
import pytest

from course_lib import start
from course_lib.collectives import (
    ALGORITHMS,
    COLLECTIVES,
    Round,
    Schedule,
    Transfer,
    build,
    closed_form,
    cost,
    place,
    program,
    ring,
    tree,
    verify,
)
from course_lib.collectives.verify import FROM_OWNER, goal, whole
from course_lib.errors import LockstepError, Mismatch, RankLost, SpecError
from course_lib.exchange import Communicator
from course_lib.exchange.connection import Connection as ToPeer
from course_lib.record.events import Message
from tests.helpers import of_times, undisturbed

# tasks get our functions themselves: they need not import pytest for them
cloudpickle.register_pickle_by_value(sys.modules[__name__])

NAMES = [*ALGORITHMS, *COLLECTIVES]
SIZES = (0, 1, 3, 4, 100, 1000, 2**16 + 1)
CASES = [*itertools.product(SIZES, ["int64", "float32"])]
FEWEST = [(0, "int64"), (3, "float32"), (1000, "int64"), (2**16 + 1, "float32")]
NEAR, FAR, MIXED = (0, 0, 0, 0), (0, 1, 2, 3), (0, 0, 1, 1)

clock = time.monotonic


# --- exact results, and the price of them ---


@lru_cache(maxsize=64)
def contributions(workers: int, length: int) -> np.ndarray:
    """Array (worker, element) of whole numbers, so small that their sums are exact in float32."""
    return np.random.default_rng(7).integers(0, 2**18, (workers, length))


def parts(schedule: Schedule, length: int) -> list[slice]:
    ends = schedule.bounds(length).tolist()
    return [slice(a, b) for a, b in itertools.pairwise(ends)]


def brought(schedule: Schedule, rank: int, length: int, dtype: Any = "int64") -> np.ndarray:
    """What a rank brings: a server zeros, a worker what it contributes, and nonsense where it is to
    be told what to have there.
    """
    array = np.full(length, -1 if rank < schedule.workers else 0)
    for chunk, part in enumerate(parts(schedule, length)):
        if whole(schedule, chunk) & 1 << rank:
            array[part] = contributions(schedule.workers, length)[rank, part]
    return array.astype(dtype)


@lru_cache(maxsize=64)
def total(workers: int, length: int) -> np.ndarray:
    return np.asarray(contributions(workers, length).sum(axis=0))


def is_right(schedule: Schedule, rank: int, array: np.ndarray) -> bool:
    """Whether a rank has what the goal of the schedule says."""
    for chunk, part in enumerate(parts(schedule, len(array))):
        want = goal(schedule, rank, chunk)
        if want is None:
            continue
        gather = schedule.kind in FROM_OWNER
        numbers = (
            contributions(schedule.workers, len(array))[schedule.owners[chunk]]
            if gather
            else total(schedule.workers, len(array))
        )
        if not np.array_equal(array[part], numbers[part]):
            return False
    return True


class Variant(NamedTuple):
    """A schedule, and how it was made."""

    name: str
    options: dict[str, Any]
    schedule: Schedule


def variants(workers: int, hosts: tuple[int, ...]) -> Iterator[Variant]:
    """All algorithms on these hosts, parameter servers on ranks of their own and on those of
    workers.
    """
    for name in NAMES:
        options: list[dict[str, Any]] = [{}]
        if name == "parameter_server":
            options = [{}, {"servers": 2, "colocated": True}] if workers > 1 else [{}]
            options += [{"servers": 3}] if workers in (3, 4) else []
        for some in options:
            yield Variant(name, some, build(name, workers, hosts, **some))


class Found(NamedTuple):
    """What a rank saw of one call: was its result right; the rounds and messages in which it
    received; the bytes that came, by sender.
    """

    right: bool
    rounds: frozenset[int]
    messages: int
    sent: Counter[str]


def carry_out(
    rank: int, directory: Path, listed: list[Variant], cases: Sequence[tuple[int, str]]
) -> dict[Any, Found]:
    """Carry out the part of a rank in all variants and cases, and in one that divides evenly: for
    each (variant, length, dtype) what it saw.
    """
    found = {}
    for hosts in sorted({v.schedule.hosts for v in listed}):
        if rank >= len(hosts):
            continue
        seen: list[Message] = []
        with contextlib.closing(
            Communicator(rank, hosts, directory / "-".join(map(str, hosts)), seen.append)
        ) as group:
            for i, (_, _, schedule) in enumerate(listed):
                if schedule.hosts != hosts:
                    continue
                for length, dtype in (*cases, (2 * schedule.chunks * schedule.workers, "int64")):
                    seen.clear()
                    array = brought(schedule, rank, length, dtype)
                    group.execute(schedule, array)
                    sent: Counter[str] = Counter()
                    for m in seen:
                        assert m.task == m.dst == schedule.task(rank) and m.start <= m.end
                        sent[m.src] += m.bytes
                    rounds = frozenset(m.round for m in seen)
                    found[i, length, dtype] = Found(
                        is_right(schedule, rank, array),
                        rounds,
                        len({(m.round, m.src) for m in seen}),
                        sent,
                    )
    return found


def check(values: list[dict[Any, Found]], listed: list[Variant], hosts: tuple[int, ...]) -> None:
    """All ranks have the right numbers, and all that was sent is what `cost` and the closed form
    say.
    """
    for i, length, dtype in values[0]:
        name, options, schedule = listed[i]
        ranks = [value[i, length, dtype] for value in values[: schedule.ranks]]
        assert all(r.right for r in ranks), (
            schedule,
            length,
            dtype,
            [k for k, r in enumerate(ranks) if not r.right],
        )
        sent = sum([r.sent for r in ranks], Counter())
        size, itemsize = length * np.dtype(dtype).itemsize, np.dtype(dtype).itemsize
        price = cost(schedule, size, itemsize=itemsize)
        rounds, messages = (
            len(frozenset().union(*[r.rounds for r in ranks])),
            sum(r.messages for r in ranks),
        )
        assert (rounds, messages) == (price.rounds, price.messages), (schedule, length)
        assert tuple(sent[schedule.task(r)] for r in range(schedule.ranks)) == price.sent, (
            schedule,
            length,
        )
        assert tuple(r.sent.total() for r in ranks) == price.received, (schedule, length)
        if name in ALGORITHMS and length % (schedule.chunks * schedule.workers) == 0:
            count = len(set(hosts))
            if name == "hierarchical":
                if hosts != place(schedule.workers, count) or schedule.workers % count:
                    continue  # the form is for hosts that are even
                options = {"hosts": count}
            form = closed_form(name, schedule.workers, size, **options)
            assert rounds == form.rounds, (schedule, length)
            if form.exact:
                assert max(sent.values(), default=0) == form.bytes_per_rank, (schedule, length)


def everything(
    hosts: tuple[int, ...], cases: Sequence[tuple[int, str]], piece: int = program.PIECE
) -> None:
    """One run in which all algorithms are carried out for all lengths and dtypes, with pieces of so
    many bytes.
    """
    listed = list(variants(len(hosts), hosts))

    def work(task: Any) -> dict[Any, Found]:
        program.PIECE = piece
        return carry_out(task.rank, task.run_dir / "meeting", listed, cases)

    run = start(work, framework="python", workers=max(v.schedule.ranks for v in listed)).wait(120)
    check(list(run.values.values()), listed, hosts)


@pytest.mark.sample(3)
@pytest.mark.parametrize("workers", [*range(1, 10), 16])
def test_exact_and_at_its_price_on_one_host(workers: int) -> None:
    everything((0,) * workers, CASES)


PLACES = [(0, 1), (0, 0, 1), (0, 0, 1, 1), (0, 1, 2, 3), (0, 1, 1, 2, 1), (2, 0, 2, 0, 2, 0, 1)]


@pytest.mark.parametrize("hosts", PLACES, ids=str)
def test_exact_and_at_its_price_between_hosts(hosts: tuple[int, ...]) -> None:
    everything(hosts, FEWEST)


@pytest.mark.parametrize("hosts", [NEAR, FAR, (0, 0, 1, 0, 1)], ids=str)
def test_long_chunks_in_many_pieces_are_exact(hosts: tuple[int, ...]) -> None:
    everything(hosts, [(65, "int64"), (1003, "float32")], piece=64)


# --- arrays of all kinds ---


def in_a_run(function: Callable[[Any], Any], workers: int) -> list[Any]:
    """What a function returns in each of so many tasks."""
    return list(start(function, framework="python", workers=workers).wait(60).values.values())


@contextlib.contextmanager
def group_of(
    task: Any, hosts: tuple[int, ...], name: str = "meeting", patience: float = 30.0
) -> Iterator[Communicator]:
    with contextlib.closing(
        Communicator(task.rank, hosts, task.run_dir / name, patience=patience)
    ) as group:
        yield group


DTYPES = [
    "bool",
    "int8",
    "uint16",
    "float16",
    "float64",
    "longdouble",
    "complex128",
    ">i4",
    ">f8",
    ">c16",
]


@pytest.mark.parametrize("hosts", [(0, 0, 0), (0, 1, 1)], ids=str)
def test_every_dtype_with_an_addition_adds_up_as_numpy_adds(hosts: tuple[int, ...]) -> None:
    def work(task: Any) -> list[str]:
        wrong = []
        with group_of(task, hosts) as group:
            for dtype, name in itertools.product(
                DTYPES, ["ring", "direct", "recursive_doubling", "hierarchical"]
            ):
                # int8 overflows, as in numpy
                brings = (np.arange(3 * 101).reshape(3, 101) % 251).astype(dtype)
                if np.dtype(dtype).kind == "c":
                    brings *= 1 - 2j
                array, schedule = brings[task.rank].copy(), build(name, 3, hosts)
                group.execute(schedule, array)
                if not np.array_equal(
                    array, brings[0] + brings[1] + brings[2]
                ) or array.dtype != np.dtype(dtype):
                    wrong.append(f"{dtype} {name}")
        return wrong

    assert in_a_run(work, 3) == [[], [], []]


def test_dtypes_that_are_written_alike_are_not_taken_for_each_other() -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")

    def work(task: Any) -> list[list[float]]:
        schedule, sums = ring(2), []
        with group_of(task, (0, 0)) as group:
            # of the first two, `str` is "<V1"
            for dtype in (ml_dtypes.int4, ml_dtypes.float8_e4m3fn, ml_dtypes.bfloat16):
                array = np.array([0.5, 1.5, 3.0, -2.0], np.float32).astype(dtype)
                group.execute(schedule, array)
                sums.append(array.astype(np.float32).tolist())
        return sums

    assert in_a_run(work, 2) == [[[0, 2, 6, -4], [1, 3, 6, -4], [1, 3, 6, -4]]] * 2


def test_what_cannot_be_added_is_refused_and_the_group_goes_on() -> None:
    def work(task: Any) -> list[str]:
        taken: list[str] = []
        refused = [np.array([None, 1]), np.array(["some", "text"]), np.array([b"some", b"bytes"])]
        refused += [np.array(["2026-01-01"] * 2, "datetime64[s]"), np.zeros(2, "i4,f8")]
        with group_of(task, (0, 0)) as group:
            for array in refused:
                try:
                    group.execute(ring(2), array)
                    taken.append(str(array.dtype))
                except SpecError as error:
                    assert error.field == "dtype"
            with pytest.raises(SpecError, match=r"for 3 ranks, .* 2"):
                group.execute(ring(3), np.zeros(3))
            array = np.ones(2)
            group.execute(ring(2), array)
            assert array.tolist() == [2, 2]
        return taken

    assert in_a_run(work, 2) == [[], []]


@pytest.mark.parametrize("hosts", [(0, 0, 0), (0, 1, 2)], ids=str)
def test_arrays_of_any_shape_and_order_are_changed_in_place(hosts: tuple[int, ...]) -> None:
    def work(task: Any) -> list[str]:
        whole = np.arange(24.0)
        views: dict[str, Callable[[np.ndarray], np.ndarray]] = {
            "matrix": lambda a: a.reshape(4, 6),
            "transposed": lambda a: a.reshape(4, 6).T,
            "Fortran": lambda a: np.asfortranarray(a.reshape(2, 3, 4)),
            "every third": lambda a: a[::3],
            "backwards": lambda a: a[::-1],
            "block": lambda a: a.reshape(4, 6)[1:3, 2:5],
            "scalar": lambda a: a[7:8].reshape(()),
            "empty": lambda a: a[:0],
            "no columns": lambda a: a[:0].reshape(5, 0),
        }
        wrong = []
        with group_of(task, hosts) as group:
            for name, view in views.items():
                base = whole * 10**task.rank
                array, want = view(base), view(whole) * 111
                group.execute(ring(3), array)
                inside = np.zeros(24, bool)
                view(inside)[...] = True
                if not np.array_equal(array, want) or (
                    name != "Fortran"
                    and not np.array_equal(base[~inside], (whole * 10**task.rank)[~inside])
                ):
                    wrong.append(name)
        return wrong

    assert in_a_run(work, 3) == [[], [], []]


@pytest.mark.parametrize("hosts", [NEAR, (0, 1, 1, 0)], ids=str)
def test_many_calls_of_changing_lengths_and_algorithms_stay_right(hosts: tuple[int, ...]) -> None:
    def work(task: Any) -> list[Any]:
        chance, wrong = np.random.default_rng(3), []
        names = [name for name in NAMES if name != "parameter_server"]
        with group_of(task, hosts) as group:
            for i in range(150):
                schedule = build(names[chance.integers(len(names))], 4, hosts)
                # the shared buffer has to grow now and then
                length = int(chance.choice([0, 1, 5, 77, 1000, 9000, 10_000 + 500 * i]))
                array = brought(schedule, task.rank, length)
                if i % 3:
                    group.execute(schedule, array)
                else:
                    shared = group.buffer(schedule, length, array.dtype)
                    shared[:] = array
                    group.execute_buffer(schedule, length, array.dtype)
                    array = shared
                if not is_right(schedule, task.rank, array):
                    wrong.append((i, schedule.name, length))
        return wrong

    assert in_a_run(work, 4) == [[]] * 4


@pytest.mark.parametrize("hosts", [NEAR, FAR, (0, 0, 0, 1)], ids=str)
def test_the_buffer_itself_is_exact_for_every_algorithm(hosts: tuple[int, ...]) -> None:
    def work(task: Any) -> list[str]:
        wrong = []
        program.PIECE = 256
        with group_of(task, hosts) as group:
            for name, length in itertools.product(NAMES, [0, 3, 1001]):
                schedule = build(
                    name, 4, hosts, **({"colocated": True} if name == "parameter_server" else {})
                )
                for _ in range(2):
                    shared = group.buffer(schedule, length, "float32")
                    assert (shared.shape, shared.dtype) == ((length,), np.float32)
                    shared[:] = brought(schedule, task.rank, length)
                    group.execute_buffer(schedule, length, "float32")
                    if not is_right(schedule, task.rank, shared):
                        wrong.append(f"{name} {length}")
        return wrong

    assert in_a_run(work, 4) == [[]] * 4


def test_float_sums_are_the_same_to_the_last_bit_in_every_run_and_on_every_placement() -> None:
    def work(task: Any) -> dict[str, list[bytes]]:
        brings = np.random.default_rng(task.rank).standard_normal(1003).astype(np.float32)
        found: dict[str, list[bytes]] = {}
        for hosts in (NEAR, FAR, (0, 1, 0, 1)):
            with group_of(task, hosts, f"meeting-{hosts}") as group:
                for name in set(ALGORITHMS) - {"hierarchical", "parameter_server"}:
                    for _ in range(2):
                        array = brings.copy()
                        group.execute(build(name, 4), array)
                        found.setdefault(name, []).append(array.tobytes())
        return found

    values = in_a_run(work, 4)
    for value in values:
        assert {name: len(set(results)) for name, results in value.items()} == dict.fromkeys(
            value, 1
        )
    # those in which one rank forms the sum and the others copy it
    for name in ("ring", "tree", "halving_doubling", "direct"):
        assert len({value[name][0] for value in values}) == 1, name


def test_parameter_servers_are_tasks_of_their_own_and_all_is_in_the_trace() -> None:
    schedule = build("parameter_server", 3, (0, 0, 1), servers=2)

    def work(task: Any) -> bool:
        rank = task.index if task.job == "worker" else 3 + task.index
        with contextlib.closing(
            Communicator(rank, schedule.hosts, task.run_dir / "meeting", task.recorder.add)
        ) as group:
            array = brought(schedule, rank, 1000)
            group.execute(schedule, array)
        while task.job == "ps":
            time.sleep(60)  # a server ends with the workers
        return is_right(schedule, rank, array)

    run = start({"worker": work, "ps": work}, framework="python", workers=3, ps=2).wait(60)
    assert run.values == {f"worker:{i}": True for i in range(3)}
    price, messages = cost(schedule, 8000, itemsize=8), run.trace.all(Message)
    sent = [sum(m.bytes for m in messages if m.src == schedule.task(rank)) for rank in range(5)]
    assert (tuple(sent), len(messages)) == (price.sent, price.messages)
    assert all(m.task == m.dst for m in messages)


def slow_link(group: Communicator, peer: int, rate: int) -> None:
    """What goes to a peer on another host goes at `rate` bytes a second from now on, where the
    system can do that.
    """
    if sys.platform == "linux":
        group._group.connections[peer].sock.setsockopt(
            socket.SOL_SOCKET, 47, rate
        )  # SO_MAX_PACING_RATE


def test_what_is_still_on_its_way_to_another_host_is_not_written_over() -> None:
    def work(task: Any) -> int:
        # rank 0 swaps with rank 2 far away, then tells rank 1
        schedule = build("recursive_doubling", 3)
        with group_of(task, (0, 0, 1)) as group:
            for length in (3, 1_500_000):
                array = np.full(length, 256**task.rank)
                group.execute(schedule, array)
                if task.rank == 0:
                    slow_link(group, 2, 50_000_000)
        return int((array != 1 + 256 + 256**2).sum())

    assert in_a_run(work, 3) == [0, 0, 0]


def test_thousands_of_pieces_that_nobody_has_asked_after_stop_nothing() -> None:
    def from_rank(src: int) -> Schedule:
        return Schedule("mine", 2, 1, [[Transfer(src, 1 - src, 0, "copy")]])  # type: ignore[list-item]

    def work(task: Any) -> bool:
        program.PIECE = 64
        # takes its time, so that rank 1 has read each piece before the next one is there
        if task.rank == 0:
            offer = ToPeer.offer
            ToPeer.offer = lambda self, parts: time.sleep(1e-5) or offer(self, parts)  # type: ignore[method-assign,func-returns-value]
        with group_of(task, (0, 0)) as group:
            array = np.full(10_000, 5 if task.rank == 0 else 0)
            group.execute(from_rank(0), array)
            if task.rank == 0:
                time.sleep(0.3)  # does not look at what rank 1 says meanwhile
            group.execute(from_rank(1), array)
            return bool((array == 5).all())

    assert in_a_run(work, 2) == [True, True]


# --- ranks that are lost ---

PATIENCE = 2.0
_context = multiprocessing.get_context("fork")
# when the thing happened that the others are to notice; each group of ranks has its own
moment = _context.RawValue("d")


class Said(NamedTuple):
    """What a rank has to say: what it raised, how long after `moment`, and what it returned."""

    error: BaseException | None
    after: float
    value: Any


class Rank:
    """A process that is a rank.

    Having said what it has to say it stays as it is, with all its sockets open, and waits for the
    end.
    """

    def __init__(self, rank: int, function: Callable[[int], Any]) -> None:
        self._ours, theirs = _context.Pipe()
        self.process = _context.Process(target=self._be, args=(rank, function, theirs), daemon=True)
        self.process.start()

    @staticmethod
    def _be(rank: int, function: Callable[[int], Any], pipe: Connection) -> None:
        error, value = None, None
        try:
            value = function(rank)
        except Exception as raised:
            error = raised
        pipe.send(Said(error, clock() - moment.value, value))
        time.sleep(600)

    def said(self, seconds: float = 4 * PATIENCE) -> Said:
        assert self._ours.poll(seconds), "it still hangs"
        said: Said = self._ours.recv()
        return said

    def end(self) -> None:
        self.process.kill()  # also if it is stopped
        self.process.join()
        self._ours.close()


@contextlib.contextmanager
def ranks(count: int, function: Callable[[int], Any]) -> Iterator[list[Rank]]:
    """So many processes, forked from this one; at the end none is left, in whatever state it
    was.
    """
    global moment
    moment, there = _context.RawValue("d"), list[Rank]()
    try:
        for rank in range(count):
            there.append(Rank(rank, function))
        yield there
    finally:
        for one in there:
            one.end()


def kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def stop() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def leave() -> None:
    raise SystemExit("trouble of its own")


def calls_until_lost(
    rank: int,
    hosts: tuple[int, ...],
    directory: Path,
    schedule: Schedule,
    victim: int,
    what: Callable[[], None],
    when: str,
    length: int = 1000,
) -> None:
    """Call after call, until in the third the victim does something: before it begins, or when it
    has received a message of it.
    """
    calls = 0

    def happens() -> None:
        moment.value = clock()
        what()

    def record(message: Message) -> None:
        if when == "in a call" and rank == victim and calls == 2:
            happens()

    if when == "before it connects" and rank == victim:
        happens()
    group = Communicator(rank, hosts, directory, record, PATIENCE)
    while True:
        if when == "between calls" and rank == victim and calls == 2:
            happens()
        group.execute(schedule, np.ones(length))
        calls += 1


def lost(error: BaseException | None, rank: int) -> None:
    assert isinstance(error, RankLost) and error.rank == rank, repr(error)
    assert f"rank {rank} was lost" in str(error)


@pytest.mark.parametrize("when", ["in a call", "between calls"])
@pytest.mark.parametrize("what", [kill, leave], ids=["killed", "gone with trouble of its own"])
@pytest.mark.parametrize("algorithm", [ring, tree], ids=["ring", "tree"])
@pytest.mark.parametrize("hosts", [NEAR, FAR, MIXED], ids=str)
def test_all_others_name_a_rank_that_died_at_once(
    hosts: tuple[int, ...],
    algorithm: Callable[[int], Schedule],
    what: Callable[[], None],
    when: str,
    tmp_path: Path,
) -> None:
    with ranks(
        4, lambda r: calls_until_lost(r, hosts, tmp_path / "meeting", algorithm(4), 2, what, when)
    ) as there:
        for rank in (0, 1, 3):
            said = there[rank].said()
            lost(said.error, 2)
            assert (
                "it failed: SystemExit"
                if what is leave and when == "in a call"
                else "its process is gone"
            ) in str(said.error)
            assert said.after < PATIENCE


def test_all_others_name_a_rank_that_stopped_or_never_came_when_their_patience_ends(
    tmp_path: Path,
) -> None:
    cases = [
        (NEAR, ring(4), stop, "in a call"),
        (FAR, tree(4), stop, "in a call"),
        (MIXED, tree(4), stop, "between calls"),
        # far down the chain, they wait for ranks that wait themselves
        ((0, 1, 1, 2, 2, 0, 0), ring(7), stop, "between calls"),
        ((0, 0, 1), ring(3), kill, "before it connects"),
        ((0, 1, 2), tree(3), kill, "before it connects"),
    ]
    with contextlib.ExitStack() as groups:
        at_work = []
        for i, (hosts, schedule, what, when) in enumerate(cases):

            def work(rank: int, i=i, hosts=hosts, schedule=schedule, what=what, when=when) -> None:  # type: ignore[no-untyped-def]
                calls_until_lost(rank, hosts, tmp_path / str(i), schedule, 0, what, when)

            at_work.append((when, groups.enter_context(ranks(len(hosts), work))))
        for when, there in at_work:
            for one in there[1:]:
                said = one.said()
                lost(said.error, 0)
                assert said.after < 2 * PATIENCE, when


def test_a_rank_that_dies_before_a_larger_call_is_named_and_not_the_one_that_notices(
    tmp_path: Path,
) -> None:
    def work(rank: int) -> None:
        group = Communicator(rank, NEAR, tmp_path / "meeting", patience=PATIENCE)
        group.execute(ring(4), np.ones(100))
        if rank == 2:
            moment.value = clock()
            kill()
        time.sleep(0.3)
        group.execute(ring(4), np.ones(100_000))  # needs a new segment

    with ranks(4, work) as there:
        for rank in (0, 1, 3):
            lost(there[rank].said().error, 2)


@pytest.mark.parametrize("algorithm", [ring, tree], ids=["ring", "tree"])
def test_a_rank_that_dies_with_much_on_its_way_to_it_is_named(
    algorithm: Callable[[int], Schedule], tmp_path: Path
) -> None:
    def tried() -> None:
        meeting = tmp_path / str(time.monotonic_ns())

        def work(rank: int) -> None:
            group = Communicator(rank, FAR, meeting, patience=PATIENCE)
            group.execute(algorithm(4), np.ones(4))
            if rank == 2:
                time.sleep(0.5)
                moment.value = clock()
                kill()
            group.execute(algorithm(4), np.ones(8_000_000))

        with ranks(4, work) as there, of_times():
            for rank in (0, 1, 3):
                said = there[rank].said()
                lost(said.error, 2)
                assert said.after < PATIENCE

    undisturbed(tried)


def test_a_rank_that_waits_itself_is_not_named_by_those_that_wait_to_send_to_it(
    tmp_path: Path,
) -> None:
    rounds = [Round.of([Transfer(2, 1, 0, "reduce"), Transfer(0, 1, 0, "reduce")])]
    schedule = Schedule("to rank 1", 3, 1, rounds, "reduce", owners=(1,))
    assert verify(schedule)
    patience = 1.0

    def work(rank: int) -> None:
        group = Communicator(rank, (0, 1, 2), tmp_path / "meeting", patience=patience)
        group.execute(schedule, np.ones(2))
        if rank == 2:
            stop()
        # rank 0 is first, and soon can send no more to rank 1, which waits for rank 2
        time.sleep(0.4 * rank * patience)
        group.execute(schedule, np.ones(3_000_000))

    with ranks(3, work) as there:
        for rank in (0, 1):
            lost(there[rank].said().error, 2)


@pytest.mark.skipif(
    sys.platform != "linux",
    reason="a slow link is made with SO_MAX_PACING_RATE, which only Linux has",
)
def test_a_rank_that_receives_for_longer_than_patience_is_not_taken_for_dead(
    tmp_path: Path,
) -> None:
    rounds = [
        [Transfer(0, 1, 0, "copy")],
        [Transfer(1, 0, 1, "copy"), Transfer(1, 2, 1, "copy")],
        [Transfer(1, 2, 0, "copy")],
    ]
    schedule = Schedule("slow", 3, 2, [Round.of(r) for r in rounds], "broadcast", owners=(0, 1))
    assert verify(schedule)
    patience = 1.5

    def work(rank: int) -> bool:
        program.PIECE = 1 << 30
        # Closed in the end: who just exits may take along what a peer has not read yet.
        with contextlib.closing(
            Communicator(rank, (0, 1, 2), tmp_path / "meeting", patience=patience)
        ) as group:
            group.execute(schedule, np.ones(2))
            if rank == 0:
                slow_link(group, 1, 4_000_000)
            array = np.full(3_000_000, float(rank))
            group.execute(schedule, array)  # 12 MB go to rank 1 first
        return bool((array[:1_500_000] == 0).all() and (array[1_500_000:] == 1).all())

    with ranks(3, work) as there:
        assert [one.said()[::2] for one in there] == [(None, True)] * 3


def test_a_rank_that_fails_in_a_call_tells_the_others_why(tmp_path: Path) -> None:
    def record(message: Message) -> None:
        raise ValueError("the disk is full")

    def work(rank: int) -> None:
        group = Communicator(
            rank, NEAR, tmp_path / "meeting", record if rank == 1 else None, PATIENCE
        )
        group.execute(ring(4), np.ones(4))

    with ranks(4, work) as there:
        assert isinstance(there[1].said().error, ValueError)
        for rank in (0, 2, 3):
            error = there[rank].said().error
            lost(error, 1)
            assert "ValueError: the disk" in str(error)


def test_after_an_error_the_same_is_raised_again_at_once(tmp_path: Path) -> None:
    def work(rank: int) -> tuple[list[str], float]:
        group = Communicator(rank, (0, 0, 1), tmp_path / "meeting", patience=PATIENCE)
        group.execute(ring(3), np.ones(4))
        if rank == 2:
            kill()
        said, begun = [], 0.0
        for again in (
            lambda: group.execute(ring(3), np.ones(4)),
            lambda: group.execute(tree(3), np.ones(9)),
            lambda: group.buffer(ring(3), 4, "f8"),
        ):
            begun = clock()
            with pytest.raises(RankLost) as caught:
                again()
            said.append(str(caught.value))
        took = clock() - begun
        group.close()
        return said, took

    with ranks(3, work) as there:
        for rank in (0, 1):
            said, took = there[rank].said().value
            assert "rank 2 was lost" in said[0] and len(set(said)) == 1
            assert took < PATIENCE / 20


# --- ranks that do not agree ---

OTHERS: dict[str, tuple[Schedule, Schedule, int, int, str, str]] = {
    "length": (ring(4), ring(4), 1000, 999, "int64", "int64"),
    "dtype": (ring(4), ring(4), 1000, 1000, "int64", "uint64"),
    "schedule and algorithm": (ring(4), tree(4), 1000, 1000, "int64", "int64"),
    "schedule": (ring(4), ring(4, order=[0, 2, 1, 3]), 1000, 1000, "int64", "int64"),
}


@pytest.mark.parametrize("hosts", [NEAR, FAR, MIXED], ids=str)
def test_ranks_that_do_not_agree_all_hear_who_and_about_what_and_nothing_is_mixed(
    hosts: tuple[int, ...],
) -> None:
    def work(task: Any) -> dict[Any, Any]:
        found: dict[Any, Any] = {}
        for (differ, (one, other, n, m, dtype, dtype_2)), odd in itertools.product(
            OTHERS.items(), [0, 3]
        ):
            is_odd = task.rank == odd
            array = np.full(m if is_odd else n, 256**task.rank, dtype_2 if is_odd else dtype)
            group = Communicator(
                task.rank, hosts, task.run_dir / f"{differ}-{odd}", patience=PATIENCE
            )
            begun = clock()
            try:
                group.execute(other if is_odd else one, array)
                found[differ, odd] = None
            except LockstepError as error:
                found[differ, odd] = error, clock() - begun, array
            group.close()
        return found

    values = in_a_run(work, 4)
    for differ, odd in itertools.product(OTHERS, [0, 3]):
        one, other, n, m, dtype, dtype_2 = OTHERS[differ]
        errors = [value[differ, odd][0] for value in values]
        assert all(isinstance(error, Mismatch) for error in errors), errors
        assert len({str(error) for error in errors}) == 1, "all say the same"
        error = errors[0]
        assert odd in error.ranks and sorted(error.ranks) == list(error.ranks)
        want = {
            False: ("ring", one.digest, n, np.dtype(dtype).str),
            True: (other.name, other.digest, m, np.dtype(dtype_2).str),
        }
        for rank, about in zip(error.ranks, error.calls, strict=True):
            assert (
                tuple(about[key] for key in ("algorithm", "schedule", "length", "dtype"))
                == want[rank == odd]
            )
        for rank, value in enumerate(values):
            _, took, array = value[differ, odd]
            assert took < PATIENCE
            # (element, rank): whose numbers are in it
            digits = array.astype(np.int64)[:, None] // 256 ** np.arange(4) % 256
            strangers = [r for r in range(4) if (r == odd) != (rank == odd)]
            assert not digits[:, strangers].any(), (differ, rank)
            assert (digits[:, rank] <= 1).all()


# --- nothing is left ---


def test_a_group_can_be_closed_twice(tmp_path: Path) -> None:
    group = Communicator(0, (0, 0), tmp_path / "meeting")
    group.close()
    group.close()


@pytest.mark.parametrize("end", ["well", "in a mismatch"])
def test_a_closed_group_leaves_no_descriptor_and_no_shared_memory(end: str) -> None:
    hosts = (0, 0, 1, 0)

    def work(task: Any) -> list[Any]:
        def left() -> tuple[int, int]:
            maps = Path("/proc/self/maps").read_text()
            return len(os.listdir("/proc/self/fd")), maps.count("/memfd:lockstep")  # noqa: PTH208  # shorter

        before, groups = left(), []
        for i in range(3):
            group = Communicator(task.rank, hosts, task.run_dir / str(i), patience=PATIENCE)
            groups.append(group)  # is still there, closed
            for length in (10, 100_000, 300_000):
                group.execute(ring(4), np.ones(length))
            group.buffer(tree(4), 500_000, "f8")[:] = 1
            group.execute_buffer(tree(4), 500_000, "f8")
            if end == "in a mismatch":
                with pytest.raises(Mismatch):
                    group.execute(ring(4), np.ones(5 + task.rank))
            group.close()
        return [before, left()]

    for before, after in in_a_run(work, 4):
        assert before == after
