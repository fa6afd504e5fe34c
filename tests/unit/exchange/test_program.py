"""The parts of all ranks, compiled from a schedule, give the right result in whatever order the
ranks get to run: no processes, no bytes.
"""

import random
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from course_lib.collectives import Schedule, Transfer, build, place, verify
from course_lib.collectives.contributions import goal, members, start
from course_lib.collectives.schedule import Op
from course_lib.exchange.program import Incoming, Program, Received, Step, program

from ..collectives.cases import NAMES, mine, schedules

POISON = 1 << 400  # stands wherever nothing has been put: whatever it gets into is wrong
MINE, SHARED = False, True

Wait = Callable[[], bool]
Spot = tuple[int, bool, int]  # rank, in its shared buffer or in its own array, chunk


def number(bits: int) -> int:
    """The sum of what these ranks contribute: a digit for each rank, so that every sum says what is
    in it, and how often.
    """
    return sum([1 << 8 * r for r in members(bits)])


@dataclass
class Posted:
    """A message on its way: what it says lies in these spots until somebody reads it there."""

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
            for chunk in range(s.chunks):
                self.memory[rank, not self.private, chunk] = number(start(s, rank, chunk))
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

    def near(self, one: int, other: int) -> bool:
        return self.place[one] == self.place[other]

    def write(self, spot: Spot, value: int) -> None:
        assert not self.readers[spot], (
            f"rank, shared, chunk {spot} is written again before it was read"
        )
        self.memory[spot] = value

    def judge(self) -> None:
        """Everybody has what the goal says, and nobody is left waiting for word that what it shared
        has been read.
        """
        s = self.schedule
        for rank in range(s.ranks):
            for chunk in range(s.chunks):
                want = goal(s, rank, chunk)
                if want is not None:
                    assert self.memory[rank, not self.private, chunk] == number(want), (rank, chunk)
        assert not any(self.queue.values())
        assert {link: n for link, n in self.cleared.items() if n} == {
            link: n for link, n in self.offered.items() if n
        }


class _Rank:
    """One rank at work. A generator: it stops at everything that others could come before, and
    yields what it waits for.
    """

    def __init__(self, world: World, rank: int, program: Program) -> None:
        self.world, self.rank, self.program = world, rank, program
        self.unread: dict[tuple[bool, int], list[tuple[int, int]]] = defaultdict(list)

    def run(self) -> Iterator[Wait]:
        steps = self.program.steps
        yield from self._offer(steps[0] if steps else Step((), ()))
        for n, step in enumerate(steps):
            yield from self._receive(step)
            yield from self._offer(steps[n + 1] if n + 1 < len(steps) else Step((), ()))

    def _offer(self, step: Step) -> Iterator[Wait]:
        w, me = self.world, self.rank
        for peer, parts in step.sends:
            yield lambda: True
            spots = []
            for part in parts:
                if part.enters:
                    w.write((me, SHARED, part.chunk), w.memory[me, MINE, part.chunk])
                assert part.shared or not w.near(me, peer), (
                    "what a rank of this host is to read lies in the shared buffer"
                )
                spots.append((me, part.shared, part.chunk))
                w.readers[spots[-1]] += 1
            w.offered[me, peer] += 1
            w.queue[me, peer].append(Posted(spots, w.offered[me, peer]))
            for part in parts:
                if part.guarded:
                    self.unread[part.shared, part.chunk].append((peer, w.offered[me, peer]))

    def _receive(self, step: Step) -> Iterator[Wait]:
        staged: dict[int, tuple[Received, int]] = {}
        for message in step.receives:
            queue = self.world.queue[message.peer, self.rank]
            yield partial(bool, queue)
            take = self._look if self.world.near(self.rank, message.peer) else self._read
            yield from take(message, queue.popleft(), staged)
        for part, value in staged.values():
            yield from self._until_read(part)
            self._put(part, value)

    def _look(
        self, message: Incoming, posted: Posted, staged: dict[int, tuple[Received, int]]
    ) -> Iterator[Wait]:
        """A message of this host is read where it lies, part by part."""
        for part, spot in zip(message.parts, posted.spots, strict=True):
            yield from self._apply(part, spot, None, staged)
        self._done(message, posted)

    def _read(
        self, message: Incoming, posted: Posted, staged: dict[int, tuple[Received, int]]
    ) -> Iterator[Wait]:
        """A message of another host comes at a stroke, when there is room for all that goes
        straight to its place.
        """
        for part in message.parts:
            if not part.reduce:
                yield from self._until_read(part)
        came = [self.world.memory[spot] for spot in posted.spots]
        self._done(message, posted)
        for part, spot, value in zip(message.parts, posted.spots, came, strict=True):
            yield from self._apply(part, spot, value, staged)

    def _done(self, message: Incoming, posted: Posted) -> None:
        w, link = self.world, (message.peer, self.rank)
        for spot in posted.spots:
            w.readers[spot] -= 1
        w.taken[link] += 1
        assert w.taken[link] == posted.count
        if message.confirm or not w.near(*link):
            w.cleared[link] = w.taken[link]

    def _apply(
        self, part: Received, spot: Spot, value: int | None, staged: dict[int, tuple[Received, int]]
    ) -> Iterator[Wait]:
        """`value`: what came, or None where it still has to be read at `spot`."""
        w, chunk = self.world, part.chunk
        assert spot[2] == chunk
        if part.staged:
            assert part.reduce, "a copy lands on nothing that leaves in the same round"
            there = staged[chunk][1] if chunk in staged else w.memory[self.rank, part.source, chunk]
            staged[chunk] = part, there + (w.memory[spot] if value is None else value)
            return
        yield from self._until_read(part)
        came = w.memory[spot] if value is None else value
        self._put(part, came + (w.memory[self.rank, part.source, chunk] if part.reduce else 0))

    def _put(self, part: Received, value: int) -> None:
        self.world.write((self.rank, part.target, part.chunk), value)
        if part.leaves:
            self.world.write((self.rank, MINE, part.chunk), value)

    def _has_read(self, peer: int, count: int) -> bool:
        return self.world.cleared[self.rank, peer] >= count

    def _until_read(self, part: Received) -> Iterator[Wait]:
        for written in {part.target, part.target and not part.leaves}:
            for peer, count in self.unread.pop((written, part.chunk), ()):
                yield partial(self._has_read, peer, count)


TURNS: dict[str, Callable[[list[int]], int]] = {
    "the lowest first": min,
    "the highest first": max,
    "by chance": random.Random(7).choice,
}


def check(schedule: Schedule, hosts: Sequence[int]) -> None:
    """A schedule on these hosts, with an array of the caller's own in all orders, and without one."""
    for private, turns in ((True, TURNS.values()), (False, [TURNS["by chance"]])):
        programs = [program(schedule, rank, hosts, private) for rank in range(schedule.ranks)]
        for turn in turns:
            world = World(schedule, hosts, private, programs, turn)
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


@settings(max_examples=200, deadline=None)
@given(composed())
def test_any_schedule_that_verify_accepts_is_right(made: tuple[Schedule, tuple[int, ...]]) -> None:
    schedule, hosts = made
    assert verify(schedule).ok, schedule
    check(schedule, hosts)


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
        for rank in range(schedule.ranks):
            for step in program(schedule, rank, range(schedule.ranks)).steps:
                assert not any(part.enters or part.shared for m in step.sends for part in m.parts)
                assert not any(
                    part.source or part.target or part.leaves
                    for m in step.receives
                    for part in m.parts
                )


def test_without_an_array_of_its_own_a_rank_copies_nothing_in_or_out() -> None:
    for name in NAMES:
        schedule = build(name, 5)
        for rank in range(schedule.ranks):
            for step in program(schedule, rank, place(schedule.ranks, 2), private=False).steps:
                assert not any(part.enters for m in step.sends for part in m.parts)
                assert not any(part.leaves for m in step.receives for part in m.parts)


def test_a_part_names_its_peers_and_those_it_sends_to() -> None:
    up, down = (
        program(build("tree_reduce", 4), 0, (0,) * 4),
        program(build("tree_broadcast", 4), 0, (0,) * 4),
    )
    assert (up.peers, up.sent_to) == ((1, 2), ())
    assert (down.peers, down.sent_to) == ((1, 2), (1, 2))
