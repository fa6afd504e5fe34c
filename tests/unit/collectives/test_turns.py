"""Ranks that take turns on a few cores: the work is that of the exchange, none of it is lost, and
the time is what stands on its longest way.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import numpy as np
import pytest

from course_lib.collectives import (
    ALGORITHMS,
    AlphaBeta,
    Schedule,
    Terms,
    Topology,
    build,
    cost,
    reduce_to_one,
    ring,
    simulate,
    tree,
    verify,
)
from course_lib.collectives.program import Await, Operation, Programs, Take
from course_lib.collectives.turns import CALL, HEARD, SWAP, TURN, take_turns, work
from course_lib.errors import SpecError
from course_lib.record.events import Message

MIB = 1 << 20
LAPTOP = Topology(
    AlphaBeta(1 / 2**17, 1 / 2**34), AlphaBeta(1 / 2**15, 1 / 2**32), gamma=1 / 2**36, cores=2
)
BYTES_ONLY = replace(LAPTOP, intra=AlphaBeta(0, 1), gamma=0.0)
GRID = [
    (name, workers, hosts)
    for name in ALGORITHMS
    for workers, hosts in [(1, 1), (2, 1), (3, 1), (4, 1), (6, 1), (4, 2), (5, 3)]
]


def done(schedule: Schedule, nbytes: int) -> list[tuple[Operation, Terms]]:
    """All operations of all ranks, each with its work."""
    plan = Programs(schedule, schedule.hosts, private=False)
    return [
        (op, work(op, schedule.hosts[getattr(op, "peer", rank)] == schedule.hosts[rank]))
        for rank in range(schedule.ranks)
        for op in plan.program(rank, nbytes, 1)
    ]


# --- what is done ---


@pytest.mark.parametrize(("name", "workers", "hosts"), GRID)
def test_what_is_read_and_added_are_the_bytes_of_the_price(
    name: str, workers: int, hosts: int
) -> None:
    schedule = build(name, workers, hosts)
    price, size = cost(schedule, 4 * MIB), 4 * MIB
    across = sum(price.up)
    works = done(schedule, size)
    total = Terms(*(sum(column) for column in zip(*(terms for _, terms in works), strict=True)))
    assert total.bytes_across == 2 * across  # both ends work
    assert total.reduced == sum(price.reduced)
    if name != "recursive_doubling":  # whose sums have to wait
        from_across = sum(
            terms.bytes for op, terms in works if isinstance(op, Take) and terms.messages_across
        )
        assert total.bytes == sum(price.sent) - across + from_across


def test_a_sum_that_replaces_what_is_being_read_waits_in_a_third_array() -> None:
    swap, n = build("recursive_doubling", 2), 1000
    ours = done(swap, n)[: len(done(swap, n)) // 2]
    assert [terms for op, terms in ours if not isinstance(op, Await)] == [
        CALL,
        Terms(messages=1),
        Terms(messages=1, bytes=n, reduced=n),
        HEARD,
        Terms(bytes=SWAP * n),
    ]


# --- when it is done ---


def test_the_time_of_two_ranks_is_the_sum_along_the_way_of_the_message() -> None:
    turn, n = TURN.messages, 1000
    handed = turn + CALL.messages + 1
    read = handed + turn + 1  # rank 0 has waited
    # rank 1 has waited until its own was read; meanwhile rank 0 has handed back
    over = read + turn + HEARD.messages + 1
    assert take_turns(tree(2), n, LAPTOP).terms == Terms(
        messages=over, bytes=2 * n, reduced=n, delays=1
    )


@pytest.mark.parametrize(("name", "workers", "hosts"), GRID)
@pytest.mark.parametrize("cores", [1, 2, 3, 99])
def test_the_terms_times_the_parameters_are_the_time_of_the_last_rank(
    name: str, workers: int, hosts: int, cores: int
) -> None:
    schedule, topology = build(name, workers, hosts), replace(LAPTOP, cores=cores)
    turns = take_turns(schedule, 6000, topology)
    assert turns.terms.seconds(topology) == pytest.approx(turns.finish.max(), rel=1e-6)
    price = cost(schedule, 6000, topology)
    assert price.terms == turns.terms
    assert price.sent == cost(schedule, 6000, replace(topology, cores=None)).sent


@pytest.mark.parametrize("name", ALGORITHMS)
def test_one_core_does_all_the_work_of_all_ranks_without_a_pause(name: str) -> None:
    schedule = build(name, 5)
    total = sum(terms.bytes for _, terms in done(schedule, 60_000))
    assert take_turns(schedule, 60_000, replace(BYTES_ONLY, cores=1)).finish.max() == pytest.approx(
        total
    )


@pytest.mark.parametrize(("name", "workers", "hosts"), GRID)
def test_cores_cannot_do_more_than_they_can(name: str, workers: int, hosts: int) -> None:
    schedule = build(name, workers, hosts)
    seconds = [np.dot(terms, LAPTOP.parameters) for _, terms in done(schedule, 60_000)]
    assert take_turns(schedule, 60_000, LAPTOP).finish.max() > sum(seconds) / 2


def test_a_rank_that_is_read_from_is_not_kept_busy() -> None:
    fan_out = reduce_to_one(9)
    books, ours = (
        cost(fan_out, 8000, Topology(AlphaBeta(0, 1e-9), gamma=0, cores=cores)).seconds
        for cores in (None, 9)
    )
    assert books == pytest.approx(2 * 8 * 8000e-9)  # eight in, eight out, one after another
    # eight in, and then all eight read at the same time
    assert ours == pytest.approx((8 + 1) * 8000e-9)


def test_long_messages_overlap_in_pieces() -> None:
    up_and_down: Any = [[(r, r + 1, 0, "reduce")] for r in range(3)] + [
        [(r + 1, r, 0, "copy")] for r in (2, 1, 0)
    ]
    chain = Schedule("chain", 4, 1, up_and_down)
    assert verify(chain)
    one, many = (
        take_turns(chain, size, replace(BYTES_ONLY, cores=4)).finish.max()
        for size in (MIB, 8 * MIB)
    )
    assert one == 6 * MIB
    assert many < 6 * 8 * MIB / 2


def test_a_delay_is_paid_once_on_the_way_of_each_message_and_keeps_no_core_busy() -> None:
    far = Topology(AlphaBeta(0, 0, delay=1.0), AlphaBeta(0, 0, delay=10.0), gamma=0, cores=1)
    assert take_turns(tree(4), 400, far).finish.max() == pytest.approx(4.0)
    assert take_turns(tree(4).placed(2), 400, far).finish.max() == pytest.approx(22.0)


# --- over links of a set speed ---

WIRE_ONLY = Topology(AlphaBeta(0, 0), AlphaBeta(0, 0), gamma=0, cores=1, wire=1.0)
WIRED = replace(LAPTOP, wire=1e-7)


def test_messages_of_one_host_take_turns_on_its_uplink_and_those_to_one_host_on_its_downlink() -> (
    None
):
    four = [(0, 2), (1, 3)], [(0, 1), (2, 3)]
    for pairs, place, seconds in (
        (four[0], (0, 0, 1, 1), 20),
        (four[0], (0, 1, 2, 2), 20),
        (four[0], (0, 0, 1, 2), 20),
        (four[0], (0, 1, 2, 3), 10),
        (four[1], (0, 0, 1, 1), 0),
    ):
        together = Schedule("together", 4, 1, cast(Any, [[(a, b, 0, "copy") for a, b in pairs]]))
        turns = take_turns(together.placed(place), 10, WIRE_ONLY)
        assert (turns.finish.max(), turns.terms.wired) == (pytest.approx(seconds), seconds)


def test_a_downlink_carries_what_the_uplink_does_at_the_same_time_and_a_delay_comes_on_top() -> (
    None
):
    schedule = tree(2).placed(2)
    assert take_turns(schedule, 10, WIRE_ONLY).finish.max() == pytest.approx(20)
    assert take_turns(
        schedule, 10, replace(WIRE_ONLY, inter=AlphaBeta(0, 0, delay=5))
    ).finish.max() == pytest.approx(30)


@pytest.mark.parametrize(("name", "workers", "hosts"), [case for case in GRID if case[2] > 1])
@pytest.mark.parametrize("size", [0, 400, 60_000])
def test_a_time_over_links_is_that_of_the_cores_or_the_busiest_link_at_least_and_both_at_most(
    name: str, workers: int, hosts: int, size: int
) -> None:
    schedule = build(name, workers, hosts)
    whole, cores_only = (
        take_turns(schedule, size, WIRED),
        take_turns(schedule, size, LAPTOP).finish.max(),
    )
    price = cost(schedule, size, WIRED)
    assert price.seconds == pytest.approx(whole.finish.max(), rel=1e-6)
    assert whole.finish.max() >= max(cores_only * 0.99, price.busiest_link[1] * WIRED.wire)
    assert whole.finish.max() <= cores_only + sum(price.up) * WIRED.wire + 1e-9


def test_short_messages_take_the_time_of_the_cores_and_long_ones_that_of_the_link() -> None:
    schedule = ring(8).placed(2)
    short, long = (take_turns(schedule, size, WIRED).finish.max() for size in (1024, 4 * MIB))
    assert short == pytest.approx(take_turns(schedule, 1024, LAPTOP).finish.max(), rel=0.1)
    assert long == pytest.approx(cost(schedule, 4 * MIB).busiest_link[1] * WIRED.wire, rel=0.1)


def test_a_wire_without_cores_is_refused_as_the_link_is_then_beta() -> None:
    with pytest.raises(SpecError, match=r"wire=1e-07: 0 without cores"):
        Topology(wire=1e-7)


# --- simulated ---


@pytest.mark.parametrize(("name", "workers", "hosts"), GRID)
def test_a_simulation_on_few_cores_takes_the_time_of_the_price_and_traces_every_transfer(
    name: str, workers: int, hosts: int
) -> None:
    schedule = build(name, workers, hosts)
    run = simulate(schedule, 6001, LAPTOP, trace=True)
    assert run.seconds == pytest.approx(cost(schedule, 6001, LAPTOP).seconds, rel=1e-6)
    assert run.trace is not None
    events = run.trace.all(Message)
    assert len(events) == sum(map(len, schedule.rounds))
    assert sum(e.bytes for e in events) == sum(cost(schedule, 6001).sent)
    assert run.messages == cost(schedule, 6001).messages
    assert all(e.task == e.dst and 0 < e.start < e.end <= run.seconds for e in events)
    for e in events:
        assert all(
            e.start >= earlier.end
            for earlier in events
            if earlier.dst == e.src and earlier.round < e.round
        )


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_worker_waits_for_the_one_that_begins_late_or_is_slow(name: str) -> None:
    schedule = build(name, 4)
    assert simulate(schedule, 8000, LAPTOP, delay={3: 1.0}).finish[: schedule.workers].min() > 1.0
    alike = simulate(schedule, 80_000, BYTES_ONLY).seconds
    assert simulate(
        schedule, 80_000, BYTES_ONLY, slow=[2.0] * schedule.ranks
    ).seconds == pytest.approx(2 * alike)
    assert (
        simulate(schedule, 80_000, LAPTOP, slow={2: 10.0}).seconds
        > 2 * simulate(schedule, 80_000, LAPTOP).seconds
    )
