"""Prices: bytes by rank and by link, shared links, bus bandwidth."""

import pytest

from course_lib.collectives import (
    ALGORITHMS,
    AlphaBeta,
    Topology,
    build,
    bus_bandwidth,
    cost,
    direct,
    hierarchical,
    parameter_server,
    ring,
    ring_all_gather,
)
from course_lib.errors import SpecError

ONE_BYTE_A_SECOND = Topology(intra=AlphaBeta(0, 1e-9), inter=AlphaBeta(0, 1), gamma=0)


def test_bytes_of_a_ring_by_rank_and_link():
    price = cost(ring(4).placed(2), 400)
    assert price.sent == price.received == (600, 600, 600, 600)
    assert price.up == price.down == (600, 600)
    assert (price.rounds, price.messages, price.busiest_link) == (6, 24, ("host 0 up", 600))


def test_chunks_of_one_round_to_one_rank_are_one_message():
    assert cost(build("halving_doubling", 8), 800).messages == 8 * 6


def test_ragged_chunks_hold_whole_elements():
    price = cost(ring(3), 28, itemsize=4)  # 7 elements: 3, 2 and 2
    assert sum(price.sent) == 4 * 28 and all(n % 4 == 0 for n in price.sent)
    with pytest.raises(SpecError, match="whole number of elements"):
        cost(ring(3), 30, itemsize=4)


@pytest.mark.parametrize("name", ALGORITHMS)
@pytest.mark.parametrize("elements", [0, 1, 3, 1000])
def test_each_byte_is_sent_as_often_as_numbers_of_chunks_say(name, elements):
    schedule = build(name, 7)
    ends = schedule.bounds(elements) * 4
    price = cost(schedule, elements * 4, itemsize=4)
    assert sum(price.sent) == sum(
        ends[t.chunk + 1] - ends[t.chunk] for r in schedule.rounds for t in r
    )
    assert price.messages == sum(len({(t.src, t.dst) for t in r}) for r in schedule.rounds)


def test_messages_take_turns_at_a_port():
    assert cost(direct(4), 400, Topology(intra=AlphaBeta(1, 0), gamma=0)).seconds == 6
    assert cost(direct(4), 400, Topology(intra=AlphaBeta(0, 1), gamma=0)).seconds == 600


def test_ranks_of_a_host_share_its_uplink():
    between = Topology(intra=AlphaBeta(0, 0), inter=AlphaBeta(1, 1), gamma=0)
    # two rounds of 4 messages of 100 bytes
    assert cost(hierarchical(8, hosts=2), 800, between).seconds == 2 * (1 + 400)
    assert cost(ring(8).placed(2), 800, between).seconds == 14 * (1 + 100)
    assert cost(ring(8).placed((0, 1) * 4), 800, between).seconds == 14 * (1 + 400)


def test_the_last_placement_of_a_schedule_counts():
    assert cost(ring(4).placed(2).placed(1), 400).busiest_link == ("none", 0)
    assert cost(ring(4).placed((0, 1, 0, 1)), 400).up == (1200, 1200)


def test_what_a_rank_adds_takes_time_after_it_was_received():
    assert cost(ring(8), 800, Topology(intra=AlphaBeta(0, 1), gamma=1)).seconds == 1400 + 700


def test_more_servers_than_workers_still_wait_for_the_slower_side():
    assert (
        cost(parameter_server(2, 4), 400, Topology(intra=AlphaBeta(0, 1), gamma=0)).seconds
        == 2 * 400
    )


def test_bus_bandwidth_as_nccl_tests_define_it():
    assert bus_bandwidth(800, 2.0, workers=4) == 2 * 3 / 4 * 800 / 2
    assert bus_bandwidth(800, 2.0, workers=4, kind="all_gather") == 3 / 4 * 800 / 2
    assert bus_bandwidth(800, 2.0, workers=4, kind="broadcast") == 400
    assert bus_bandwidth(800, 0.0, workers=4) == 0
    a_byte_a_second = Topology(intra=AlphaBeta(0, 1), gamma=0)
    for schedule in (ring(4), ring_all_gather(4), build("direct_all_to_all", 4)):
        seconds = cost(schedule, 400, a_byte_a_second).seconds
        assert bus_bandwidth(400, seconds, workers=4, kind=schedule.kind) == 1


def test_terms_times_parameters_are_the_seconds():
    price = cost(hierarchical(6, hosts=2), 6000, Topology())
    assert price.terms.seconds(Topology()) == price.seconds
    assert price.terms.messages == 4 and price.terms.messages_across == 2


def test_text_names_what_matters():
    assert (
        repr(cost(ring(4).placed(2), 400, ONE_BYTE_A_SECOND))
        == "Cost(ring: 6 rounds, at most 600 bytes sent by a rank, 600 s)"
    )


@pytest.mark.parametrize("wrong", [{"gamma": -1.0}, {"gamma": float("inf")}])
def test_impossible_topologies(wrong):
    with pytest.raises(SpecError):
        Topology(**wrong)
    with pytest.raises(SpecError):
        AlphaBeta(-1, 0)
