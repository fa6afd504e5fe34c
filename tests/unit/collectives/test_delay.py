"""Delays on links: what the textbook model leaves out."""

from __future__ import annotations

from dataclasses import replace

import pytest

from course_lib.collectives import (
    ALGORITHMS,
    AlphaBeta,
    Topology,
    closed_form,
    cost,
    direct,
    reduce_to_one,
    ring,
    simulate,
)

SLOW_START = Topology(intra=AlphaBeta(1e-6, 1e-9, delay=1e-3), gamma=0.0)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_delay_is_paid_once_in_each_round(name: str) -> None:
    schedule = ALGORITHMS[name](4)
    without = cost(schedule, 4096, replace(SLOW_START, intra=AlphaBeta(1e-6, 1e-9)))
    assert cost(schedule, 4096, SLOW_START).seconds == pytest.approx(
        without.seconds + len(schedule.rounds) * 1e-3
    )
    assert closed_form(name, 4, 4096).terms.delays == len(schedule.rounds)


@pytest.mark.parametrize("make", [ring, direct, reduce_to_one])
def test_simulation_and_price_agree_on_delays(make: object) -> None:
    schedule = make(6)  # type: ignore[operator]
    assert simulate(schedule, 6000, SLOW_START).seconds == pytest.approx(
        cost(schedule, 6000, SLOW_START).seconds, rel=0.02
    )


def test_hosts_across_have_a_delay_of_their_own() -> None:
    topology = Topology(AlphaBeta(0, 0, delay=1.0), AlphaBeta(0, 0, delay=10.0), gamma=0)
    # in each of 6 rounds some message crosses
    assert cost(ring(4).placed(2), 400, topology).seconds == pytest.approx(60.0)
    # without a barrier not every rank waits for it every time
    assert simulate(ring(4).placed(2), 400, topology).seconds < 60.0
