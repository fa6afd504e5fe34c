"""Every algorithm is right: by proof for 1 to 33 workers, and in numbers on arrays of all kinds of
length.
"""

import numpy as np
import pytest

from course_lib.collectives import (
    ALGORITHMS,
    cost,
    double_tree,
    halving_doubling,
    hierarchical,
    ring,
    ring_worst_order,
    verify,
)
from course_lib.collectives.algorithms.double_tree import _parents

from .cases import NAMES, schedules
from .numeric import contributions, is_right, run


@pytest.mark.parametrize("name", NAMES)
def test_proved_for_1_to_33_workers(name):
    for workers in range(1, 34):
        for schedule in schedules(name, workers):
            proof = verify(schedule)
            assert proof.ok, f"{schedule!r} on {schedule.hosts}:\n{proof}"


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("length", [0, 1, 3, 4, 100, 1000])
def test_sums_are_exact(name, length):
    for workers in (*range(1, 10), 16):
        for schedule in schedules(name, workers):
            data = contributions(schedule, length)
            assert is_right(schedule, run(schedule, data), data), schedule


@pytest.mark.parametrize("name", ALGORITHMS)
def test_one_worker_alone_needs_no_rounds(name):
    rounds = ALGORITHMS[name](1).rounds
    # its server is on a rank of its own
    assert len(rounds) == (2 if name == "parameter_server" else 0)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_only_swaps_need_a_second_buffer(name):
    rounds = ALGORITHMS[name](16).rounds
    added_into_what_is_sent = [
        t for r in rounds for t in r if (t.dst, t.chunk) in {(u.src, u.chunk) for u in r}
    ]
    assert bool(added_into_what_is_sent) == (name in {"recursive_doubling"})
    assert all(t.op == "reduce" for t in added_into_what_is_sent)


def test_no_rank_works_inside_both_trees():
    for workers in range(1, 65):
        one, other = _parents(workers), _parents(workers, mirrored=True)
        assert not set(one[one >= 0]) & set(other[other >= 0]), workers
        for up in (one, other):
            assert (up == -1).sum() == 1
            assert np.bincount(up[up >= 0], minlength=1).max(initial=0) <= 2


def test_double_tree_in_more_and_fewer_pieces():
    for pieces in (1, 2, 7):
        assert verify(double_tree(13, pieces)).ok


def test_halving_doubling_swaps_the_most_with_the_nearest():
    first = halving_doubling(8).rounds[0]
    assert {abs(t.src - t.dst) for t in first} == {1} and len(first) == 8 * 4


def test_ring_goes_around_in_the_order_given():
    assert [(t.src, t.dst) for t in ring(4, order=[0, 2, 1, 3]).rounds[0]] == [
        (0, 2),
        (2, 1),
        (1, 3),
        (3, 0),
    ]


def test_hierarchical_crosses_only_in_the_middle():
    schedule = hierarchical(8, hosts=2)
    crossing = [
        any(schedule.hosts[t.src] != schedule.hosts[t.dst] for t in r) for r in schedule.rounds
    ]
    assert crossing == [False] * 3 + [True] * 2 + [False] * 3


def test_in_the_worst_order_every_message_of_a_ring_leaves_its_host():
    for workers, hosts in ((8, 2), (8, 4), (9, 3)):
        schedule = ring_worst_order(workers, hosts)
        assert all(
            schedule.hosts[t.src] != schedule.hosts[t.dst] for r in schedule.rounds for t in r
        )
        worst, best = (
            cost(s, 72_000).busiest_link[1] for s in (schedule, ring(workers).placed(hosts))
        )
        assert worst == best * workers // hosts
