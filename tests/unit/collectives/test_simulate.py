"""Simulated time: the closed form where all are alike, and stragglers that are waited for."""

import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from course_lib.collectives import (
    ALGORITHMS,
    AlphaBeta,
    Topology,
    build,
    cost,
    hierarchical,
    ring,
    ring_reduce_scatter,
    simulate,
)
from course_lib.collectives.simulate import serve
from course_lib.errors import SpecError
from course_lib.record.events import Message

# whose rounds overlap, so that a barrier would change its time
EXACT = [name for name in ALGORITHMS if name != "double_tree"]
MODELS = [
    Topology(),
    Topology(intra=AlphaBeta(1, 0), gamma=0),
    Topology(intra=AlphaBeta(0, 1), gamma=2),
]


@pytest.mark.parametrize("name", EXACT)
@pytest.mark.parametrize("model", MODELS)
def test_equals_the_cost_where_all_ranks_are_alike(name, model):
    for workers in range(1, 18):
        schedule = build(name, workers)
        size = 16 * workers * schedule.chunks
        assert simulate(schedule, size, model).seconds == pytest.approx(
            cost(schedule, size, model).seconds, rel=1e-9
        )


@pytest.mark.parametrize("model", MODELS)
def test_pipelined_trees_are_near_their_cost(model):
    for workers in (2, 3, 5, 8, 13, 21, 34):
        schedule = build("double_tree", workers)
        size = 16 * workers * schedule.chunks
        assert simulate(schedule, size, model).seconds == pytest.approx(
            cost(schedule, size, model).seconds, rel=0.25
        )


@pytest.mark.parametrize("name", ["ring", "tree", "reduce_to_one", "parameter_server"])
def test_equals_the_cost_between_hosts_where_rounds_do_not_overlap(name):
    schedule = build(name, 12, hosts=3)
    assert simulate(schedule, 12_000).seconds == pytest.approx(
        cost(schedule, 12_000).seconds, rel=1e-9
    )


@pytest.mark.parametrize("name", ALGORITHMS)
def test_no_link_carries_more_than_it_can(name):
    for placement in (2, 3, (0, 1) * 6):
        schedule = build(name, 12, hosts=placement)
        price, links = cost(schedule, 120_000), Topology()
        assert simulate(schedule, 120_000).seconds >= price.busiest_link[1] * links.inter.beta


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_worker_waits_for_the_one_that_starts_late(name):
    schedule = build(name, 8)
    on_time = simulate(schedule, 8000)
    late = simulate(schedule, 8000, delay={3: 1.0})
    assert late.finish[: schedule.workers].min() > 1.0
    assert on_time.seconds < late.seconds <= on_time.seconds + 1.0 + 1e-9


def test_a_late_rank_is_felt_one_hop_further_each_round():
    late = simulate(ring_reduce_scatter(4), 4000, delay={3: 1.0}, trace=True)
    assert late.trace is not None
    for hops in (1, 2, 3):
        events = late.trace.all(Message, f"worker:{(3 + hops) % 4}")
        assert [e.end > 1.0 for e in events] == [e.round >= hops - 1 for e in events]
    assert late.finish == pytest.approx([1 + simulate(ring_reduce_scatter(4), 4000).seconds] * 4)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_the_trace_has_every_transfer_and_nothing_is_sent_before_it_is_there(name):
    schedule = build(name, 6, hosts=2)
    run = simulate(schedule, 6001, delay={2: 1e-4}, trace=True)
    assert run.trace is not None
    events = run.trace.all(Message)
    assert len(events) == sum(map(len, schedule.rounds))
    assert sum(e.bytes for e in events) == sum(cost(schedule, 6001).sent)
    assert max(e.end for e in events) <= run.seconds
    assert {e.src for e in events} | {e.dst for e in events} == {
        schedule.task(rank) for rank in range(schedule.ranks)
    }
    for e in events:
        assert e.task == e.dst and 0 <= e.start < e.end
        assert all(
            e.start >= earlier.end - 1e-12
            for earlier in events
            if earlier.dst == e.src and earlier.round < e.round
        )


def test_trace_is_off_by_default_and_refused_for_millions():
    assert simulate(ring(4), 400).trace is None
    with pytest.raises(SpecError, match="trace"):
        simulate(ring(1000), 4000, trace=True)


def test_ragged_and_empty_buffers():
    assert simulate(ring(5), 0, trace=True).seconds == pytest.approx(8 * Topology().intra.alpha)
    assert simulate(ring(5), 13).seconds == pytest.approx(cost(ring(5), 13).seconds, rel=1e-6)
    assert simulate(ring(1), 100).seconds == 0
    assert simulate(ring(1), 100, delay={0: 2.0}).seconds == 2


@pytest.mark.parametrize(
    "wrong",
    [{"delay": {9: 1.0}}, {"delay": {-1: 1.0}}, {"delay": {0: -1.0}}, {"delay": {0: float("nan")}}],
)
def test_impossible_stragglers(wrong):
    with pytest.raises(SpecError):
        simulate(ring(4), 400, **wrong)


def test_two_hosts_make_the_ring_of_the_worst_order_slow():
    slow_link = Topology(inter=AlphaBeta(50e-6, 8 / 200e6))
    size = 4 * 2**20
    seconds = [
        simulate(s, size, slow_link).seconds
        for s in (hierarchical(8, 2), ring(8).placed(2), ring(8).placed((0, 1) * 4))
    ]
    assert seconds == sorted(seconds) and seconds[2] > 3 * seconds[1]


def test_thousands_of_workers():
    size = 4096 * 1024
    began = time.perf_counter()
    run = simulate(ring(4096), size)
    print(f"ring, 4096 workers: {run.messages} messages in {time.perf_counter() - began:.2f} s")
    assert run.messages == 4096 * 8190
    assert run.seconds == pytest.approx(cost(ring(4096), size).seconds)
    for name in ("tree", "recursive_doubling", "halving_doubling", "double_tree"):
        began = time.perf_counter()
        run = simulate(build(name, 100_000), 2**26, delay={7: 1.0})
        print(
            f"{name}, 100000 workers: {run.messages} messages in"
            f" {time.perf_counter() - began:.2f} s"
        )
        assert run.finish.min() > 1.0


def one_by_one(
    server: list[int], free: list[float], arrive: list[float], work: list[float]
) -> list[float]:
    """`serve`, for one message after another."""
    end = [0.0] * len(server)
    for i in sorted(range(len(server)), key=lambda i: arrive[i]):
        end[i] = free[server[i]] = max(arrive[i], free[server[i]] + work[i])
    return end


@settings(max_examples=200)
@given(
    st.lists(st.tuples(st.integers(0, 4), st.integers(0, 20), st.integers(0, 5)), max_size=30),
    st.lists(st.integers(0, 9), min_size=5, max_size=5),
)
def test_queues_of_all_shapes(messages, free):
    server, arrive, work = (
        (list(column) for column in zip(*messages, strict=True)) if messages else ([], [], [])
    )
    left = np.array(free, dtype=float)
    end = serve(
        np.array(server, dtype=int),
        left,
        np.array(arrive, dtype=float),
        np.array(work, dtype=float),
    )
    expected_free = list(map(float, free))
    assert end.tolist() == one_by_one(server, expected_free, arrive, work)
    assert left.tolist() == expected_free
