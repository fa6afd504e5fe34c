"""The parts of all ranks, compiled from a schedule, give the right result in whatever order the
ranks get to run: no processes, no bytes.
"""

import itertools
import random
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from course_lib.collectives import Schedule, Transfer, build, place, verify
from course_lib.collectives.program import (
    MINE,
    PIECE,
    SHARED,
    SPARE,
    Offer,
    Part,
    Program,
    Reads,
    Store,
    Take,
    program,
)
from course_lib.collectives.schedule import Op
from course_lib.collectives.verify import goal, members, whole

from ..collectives.cases import NAMES, mine, schedules

POISON = 1 << 400  # stands wherever nothing has been put: whatever it gets into is wrong

Wait = Callable[[], bool]
Spot = tuple[int, int, int]  # rank, place, element


def number(bits: int) -> int:
    """The sum of what these ranks contribute: a digit for each rank, so that every sum says what is
    in it, and how often.
    """
    return sum([1 << 8 * r for r in members(bits)])


@dataclass
class Posted:
    """A piece on its way: what it says lies in these spots until somebody reads it there."""

    spots: list[Spot]
    count: int


@dataclass
class World:
    """All ranks of a schedule, each with its own array and a shared buffer (the same one if not
    `private`), and the links between them.

    A message to another host has not left until the receiver takes it, as if the network had no
    room at all. `turn` chooses who is next.
    """

    schedule: Schedule
    place: Sequence[int]
    private: bool
    programs: list[Program]
    length: int
    turn: Callable[[list[int]], int]
    memory: dict[Spot, int] = field(default_factory=lambda: defaultdict(lambda: POISON))
    # messages that still have to be read there
    readers: dict[Spot, int] = field(default_factory=lambda: defaultdict(int))
    queue: dict[tuple[int, int], deque[Posted]] = field(default_factory=lambda: defaultdict(deque))
    offered: dict[tuple[int, int], int] = field(default_factory=lambda: defaultdict(int))
    taken: dict[tuple[int, int], int] = field(default_factory=lambda: defaultdict(int))
    # as far as the sender knows
    cleared: dict[tuple[int, int], int] = field(default_factory=lambda: defaultdict(int))

    def run(self) -> None:
        s = self.schedule
        for rank in range(s.ranks):
            for chunk, element in self.elements():
                self.memory[rank, self.home, element] = number(whole(s, chunk) & 1 << rank)
        ranks = {rank: _Rank(self, rank, self.programs[rank]).run() for rank in range(s.ranks)}
        waits: dict[int, Wait] = {rank: lambda: True for rank in ranks}
        while ranks:
            ready = [rank for rank in ranks if waits[rank]()]
            assert ready, f"ranks {list(ranks)} wait for each other"
            rank = self.turn(ready)
            try:
                waits[rank] = next(ranks[rank])
            except StopIteration:
                del ranks[rank]

    @property
    def home(self) -> int:
        """Where the numbers of the callers are, before and after."""
        return MINE if self.private else SHARED

    def elements(self) -> Iterator[tuple[int, int]]:
        """All elements, each with its chunk."""
        ends = self.schedule.bounds(self.length).tolist()
        for chunk, (begin, end) in enumerate(itertools.pairwise(ends)):
            yield from ((chunk, element) for element in range(begin, end))

    def near(self, one: int, other: int) -> bool:
        return self.place[one] == self.place[other]

    def write(self, spot: Spot, value: int) -> None:
        assert not self.readers[spot], (
            f"rank, place, element {spot} is written again before it was read"
        )
        self.memory[spot] = value

    def judge(self) -> None:
        """Everybody has what the goal says, and nobody is left waiting for word that what it shared
        has been read.
        """
        s = self.schedule
        for rank in range(s.ranks):
            for chunk, element in self.elements():
                want = goal(s, rank, chunk)
                if want is not None:
                    assert self.memory[rank, self.home, element] == number(want), (rank, chunk)
        assert not any(self.queue.values())
        assert {link: n for link, n in self.cleared.items() if n} == {
            link: n for link, n in self.offered.items() if n
        }


class _Rank:
    """One rank at work. A generator: it stops at everything that others could come before, and
    yields what it waits for.
    """

    def __init__(self, world: World, rank: int, mine: Program) -> None:
        self.world, self.rank, self.program = world, rank, mine

    def run(self) -> Iterator[Wait]:
        w, me = self.world, self.rank
        for op in self.program.operations:
            match op:
                case Offer():
                    yield lambda: True
                    self._offer(op)
                case Take():
                    yield partial(bool, w.queue[op.peer, me])
                    yield partial(self._have_read, op.after)
                    self._take(op, w.queue[op.peer, me].popleft())
                case Store():
                    yield partial(self._have_read, op.after)
                    for e in elements(op.part.span):
                        sum_ = w.memory.pop((me, op.source, e))
                        self._put(op.part.target, op.part.leaves, e, sum_)

    def _offer(self, op: Offer) -> None:
        w, me = self.world, self.rank
        for where, enters, span in op.parts:
            for e in elements(span) if enters else ():
                w.write((me, where, e), w.memory[me, MINE, e])
            assert where == SHARED or not w.near(me, op.peer), (
                "what a rank of this host is to read lies in the shared buffer"
            )
        spots = [(me, place, e) for place, _, span in op.parts for e in elements(span)]
        for spot in spots:
            w.readers[spot] += 1
        w.offered[me, op.peer] += 1
        w.queue[me, op.peer].append(Posted(spots, w.offered[me, op.peer]))

    def _take(self, op: Take, posted: Posted) -> None:
        """A piece of this host is read where it lies, one of another host comes at a stroke, when
        there is room for all that goes straight to its place.
        """
        w, near = self.world, self.world.near(op.peer, self.rank)
        came = [w.memory[spot] for spot in posted.spots]
        if not near:
            self._done(op, posted)
        parts = [(part, e) for part in op.parts for e in elements(part.span)]
        for (part, e), spot, value in zip(parts, posted.spots, came, strict=True):
            assert spot[2] == e
            self._apply(part, e, w.memory[spot] if near else value)
        if near:
            self._done(op, posted)

    def _done(self, op: Take, posted: Posted) -> None:
        w, link = self.world, (op.peer, self.rank)
        for spot in posted.spots:
            w.readers[spot] -= 1
        w.taken[link] += 1
        assert w.taken[link] == posted.count
        w.cleared[link] = w.taken[link]

    def _apply(self, part: Part, e: int, came: int) -> None:
        if part.source is not None:
            came += self.world.memory[self.rank, part.source, e]
        else:
            assert part.target < SPARE, "a copy lands on nothing that leaves in the same round"
        self._put(part.target, part.leaves, e, came)

    def _put(self, place: int, leaves: bool, e: int, value: int) -> None:
        self.world.write((self.rank, place, e), value)
        if leaves:
            self.world.write((self.rank, MINE, e), value)

    def _have_read(self, reads: Reads) -> bool:
        return all(self.world.cleared[self.rank, peer] >= count for peer, count in reads)


def elements(span: slice) -> range:
    return range(span.start, span.stop)


TURNS: dict[str, Callable[[list[int]], int]] = {
    "the lowest first": min,
    "the highest first": max,
    "by chance": random.Random(7).choice,
}


def check(schedule: Schedule, hosts: Sequence[int], each: int = 1) -> None:
    """A schedule on these hosts, with an array of the caller's own in all orders, and without one;
    a piece holds one element, and a chunk `each`.
    """
    length = each * schedule.chunks
    for private, turns in ((True, TURNS.values()), (False, [TURNS["by chance"]])):
        compiled = [
            program(schedule, hosts, rank, length, PIECE, private) for rank in range(schedule.ranks)
        ]
        for turn in turns:
            world = World(schedule, hosts, private, compiled, length, turn)
            world.run()
            world.judge()


def placements(ranks: int) -> Iterator[tuple[int, ...]]:
    """One host, a host for each rank, blocks, and places that tear neighbours apart."""
    yield (0,) * ranks
    if ranks > 1:
        yield tuple(range(ranks))
    if ranks > 2:
        yield place(ranks, 2)
        yield tuple(r % 2 for r in range(ranks))
        yield (0,) * (ranks - 1) + (1,)
        yield (5, *((1,) * (ranks - 1)))
        yield tuple(random.Random(ranks).choices(range(3), k=ranks))


@pytest.mark.parametrize("name", NAMES)
def test_every_algorithm_is_right_on_every_placement_in_every_order(name: str) -> None:
    for workers in range(1, 10):
        for schedule in schedules(name, workers):
            hosts = (
                {*placements(schedule.ranks), schedule.hosts}
                if workers < 6
                else {schedule.hosts, place(schedule.ranks, 3)}
            )
            for placement in sorted(hosts):
                check(schedule, placement)


@st.composite
def composed(draw: st.DrawFn) -> tuple[Schedule, tuple[int, ...]]:
    """All-reduces that nobody would write: each chunk goes its own way, by a ring, a tree, a star,
    swaps or all at once, and begins when it likes.
    """
    workers, chunks = draw(st.integers(2, 6)), draw(st.integers(1, 4))
    rounds: dict[int, list[Transfer]] = defaultdict(list)
    for chunk in range(chunks):
        seats = draw(st.permutations(range(workers)))
        way = draw(st.sampled_from([_ring, _tree, _star, _flood, _swaps]))
        at = draw(st.integers(0, 2))
        for transfers in way(draw, seats, chunk):
            rounds[at] += transfers
            at += draw(st.integers(1, 2))
    listed = [draw(st.permutations(rounds[i])) for i in range(max(rounds) + 1)]
    hosts = draw(st.lists(st.integers(0, 2), min_size=workers, max_size=workers))
    return mine(workers, chunks, listed), tuple(hosts)


def _ring(draw: st.DrawFn, seats: Sequence[int], chunk: int) -> Iterator[list[Transfer]]:
    """Once around to add up, and once more to tell."""
    ops: list[Op] = ["reduce", "copy"]
    for i in range(2 * (len(seats) - 1)):
        yield [
            Transfer(
                seats[i % len(seats)],
                seats[(i + 1) % len(seats)],
                chunk,
                ops[i // (len(seats) - 1)],
            )
        ]


def _tree(draw: st.DrawFn, seats: Sequence[int], chunk: int) -> Iterator[list[Transfer]]:
    """Up a tree of any form, those of one depth at once, and down."""
    parent = [draw(st.integers(0, max(0, i - 1))) for i in range(len(seats))]
    depth = [0] * len(seats)
    for i in range(1, len(seats)):
        depth[i] = depth[parent[i]] + 1
    edges = [
        [(i, parent[i]) for i in range(1, len(seats)) if depth[i] == d]
        for d in range(1, max(depth) + 1)
    ]
    yield from (
        [Transfer(seats[i], seats[up], chunk, "reduce") for i, up in level]
        for level in reversed(edges)
    )
    yield from (
        [Transfer(seats[up], seats[i], chunk, "copy") for i, up in level] for level in edges
    )


def _star(draw: st.DrawFn, seats: Sequence[int], chunk: int) -> Iterator[list[Transfer]]:
    """All to two centres, which both have the sum then, and each tells some of the others."""
    ends = seats[:2]
    yield [Transfer(r, end, chunk, "reduce") for end in ends for r in seats if r != end]
    yield [Transfer(draw(st.sampled_from(ends)), r, chunk, "copy") for r in seats[2:]]


def _flood(draw: st.DrawFn, seats: Sequence[int], chunk: int) -> Iterator[list[Transfer]]:
    """Everyone to everyone at once."""
    yield [Transfer(a, b, chunk, "reduce") for a in seats for b in seats if a != b]


def _swaps(draw: st.DrawFn, seats: Sequence[int], chunk: int) -> Iterator[list[Transfer]]:
    """Recursive doubling of four, of two for fewer; the others tell the first one before and are
    told after.
    """
    core = seats[: 4 if len(seats) >= 4 else 2]
    others = seats[len(core) :]
    yield [Transfer(r, core[0], chunk, "reduce") for r in others]
    for far in (1, 2)[: len(core) // 2]:
        yield [Transfer(core[i], core[i ^ far], chunk, "reduce") for i in range(len(core))]
    yield [Transfer(draw(st.sampled_from(core)), r, chunk, "copy") for r in others]


@settings(max_examples=200)
@given(composed())
def test_any_schedule_that_verify_accepts_is_right(made: tuple[Schedule, tuple[int, ...]]) -> None:
    schedule, hosts = made
    assert verify(schedule).ok, schedule
    check(schedule, hosts)
    check(schedule, hosts, each=3)


def test_a_chunk_is_shared_before_the_first_message_that_has_it_leaves() -> None:
    """Though the round names it in a later message first."""
    gather = [
        [
            Transfer(0, 1, 0, "copy"),
            Transfer(0, 2, 1, "copy"),
            Transfer(0, 1, 1, "copy"),
            Transfer(0, 2, 0, "copy"),
        ]
    ]
    check(mine(3, 2, gather, kind="broadcast", owners=(0, 0)), (0, 0, 0))


def test_a_chunk_stays_in_the_own_array_until_it_has_left_for_another_host() -> None:
    """Though what is added to it in the same round, for others of this host, lies in the shared
    buffer.
    """
    check(
        mine(
            3,
            1,
            [
                [Transfer(1, 0, 0, "reduce")],
                [Transfer(0, 2, 0, "reduce"), Transfer(2, 0, 0, "reduce")],
                [Transfer(0, 1, 0, "copy")],
            ],
        ),
        (0, 0, 1),
    )


def test_between_hosts_nothing_goes_through_the_shared_buffer() -> None:
    for name in NAMES:
        schedule = build(name, 5)
        everywhere = range(schedule.ranks)
        plans = [program(schedule, everywhere, rank, 100, 8) for rank in everywhere]
        for op in [op for plan in plans for op in plan.operations]:
            if isinstance(op, Offer):
                assert not any(enters for _, enters, _ in op.parts)
                assert {place for place, *_ in op.parts} == {MINE}
            elif isinstance(op, Take):
                assert SHARED not in {p for part in op.parts for p in (part.source, part.target)}
                assert not any(part.leaves for part in op.parts)


def test_without_an_array_of_its_own_a_rank_copies_nothing_in_or_out() -> None:
    for name in NAMES:
        schedule = build(name, 5)
        hosts, ranks = place(schedule.ranks, 2), range(schedule.ranks)
        plans = [program(schedule, hosts, rank, 100, 8, private=False) for rank in ranks]
        for op in [op for plan in plans for op in plan.operations]:
            if isinstance(op, Offer):
                assert not any(enters for _, enters, _ in op.parts)
            elif isinstance(op, Take):
                assert not any(part.leaves for part in op.parts)


def test_a_program_names_its_peers_and_those_it_sends_to() -> None:
    up = [[Transfer(1, 0, 0, "reduce"), Transfer(2, 0, 0, "reduce")]]
    for rounds, to in ((up, ()), ([[t._replace(src=0, dst=t.src) for t in up[0]]], (1, 2))):
        work = program(Schedule("mine", 3, 1, rounds), (0,) * 3, 0, 1, 8)
        assert (work.peers, work.sent_to) == ((1, 2), to)


def test_neighbouring_chunks_of_a_message_are_one_part() -> None:
    halves = program(build("halving_doubling", 8), (0,) * 8, 0, 800, 8).operations
    assert [
        [(p.stop - p.start) for *_, p in op.parts] for op in halves if isinstance(op, Offer)
    ] == [[n] for n in (400, 200, 100, 100, 200, 400)]
