"""Schedules as data: two ways to write rounds, chunk bounds, placement, and errors that say what is
wrong.
"""

import pickle
import tracemalloc

import numpy as np
import pytest

from course_lib.collectives import (
    ALGORITHMS,
    Round,
    Schedule,
    Transfer,
    bounds,
    build,
    place,
    ring,
)
from course_lib.collectives.algorithms import find
from course_lib.errors import SpecError

from .cases import mine


def test_rounds_read_as_sequences_of_transfers():
    rounds = ring(4).rounds
    assert len(rounds) == 6 and len(rounds[0]) == 4
    assert rounds[0][1] == Transfer(1, 2, 0, "reduce")
    assert rounds[-1][0].op == "copy"
    assert [t.dst for t in rounds[5]] == [1, 2, 3, 0]
    assert rounds[1:3] == (rounds[1], rounds[2])
    with pytest.raises(IndexError):
        rounds[6]


def test_lists_and_arrays_of_the_same_ring_are_equal():
    P = 5
    lists = [
        [Transfer(r, (r + 1) % P, (r - 1 - i) % P, "reduce") for r in range(P)]
        for i in range(P - 1)
    ]
    lists += [
        [Transfer(r, (r + 1) % P, (r - i) % P, "copy") for r in range(P)] for i in range(P - 1)
    ]
    by_hand = Schedule("ring", P, P, lists)  # type: ignore[arg-type]  # lists are taken too
    assert by_hand == ring(P)
    assert hash(by_hand) == hash(ring(P))
    assert by_hand.digest == ring(P).digest != ring(P, order=[0, 2, 1, 3, 4]).digest


def test_a_row_of_a_round_may_span_several_chunks():
    spanning = Round([0, 1], [1, 0], np.array([2, 0]), "copy", span=2)
    assert list(spanning) == [
        Transfer(0, 1, 2, "copy"),
        Transfer(0, 1, 3, "copy"),
        Transfer(1, 0, 0, "copy"),
        Transfer(1, 0, 1, "copy"),
    ]
    assert len(spanning) == 4
    assert "0→1 =c2" in repr(spanning)


def test_the_rounds_of_a_ring_of_thousands_share_their_memory():
    ranks = 2048
    tracemalloc.start()
    schedule = ring(ranks)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(schedule.rounds) == 2 * (ranks - 1)
    assert most < len(schedule.rounds) * ranks * 8 / 2  # less than half of one array for each


@pytest.mark.parametrize("name", ALGORITHMS)
def test_schedules_pickle(name):
    schedule = build(name, 6)
    again = pickle.loads(pickle.dumps(schedule))
    assert again == schedule and again.digest == schedule.digest


def test_plain_tuples_will_do():
    assert mine(2, 1, [[(0, 1, 0, "copy")]]).rounds[0][0] == Transfer(0, 1, 0, "copy")


@pytest.mark.parametrize("length", [0, 1, 3, 4, 100])
@pytest.mark.parametrize("chunks", [1, 2, 3, 8])
def test_chunk_bounds_follow_array_split(length, chunks):
    parts = np.array_split(np.arange(length), chunks)
    assert np.diff(bounds(length, chunks)).tolist() == [len(p) for p in parts]


def test_placement():
    assert place(5, 2) == (0, 0, 0, 1, 1)
    assert place(3, [1, 0, 1]) == (1, 0, 1)
    assert ring(4).hosts == (0, 0, 0, 0)
    assert ring(4).placed(2).hosts == (0, 0, 1, 1)
    assert build("ring", 4, hosts=(0, 1, 0, 1)).hosts == (0, 1, 0, 1)
    served = build("parameter_server", 4, hosts=2, servers=3)
    assert served.hosts == (0, 0, 1, 1, 0, 1, 0)
    assert served.placed((0, 0, 1, 1)).hosts == served.hosts
    assert [served.task(rank) for rank in (0, 3, 4)] == ["worker:0", "worker:3", "ps:0"]


def no_schedule(workers):
    return []


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: mine(2, 1, [[(0, 1, 0, "add")]]), "'reduce'"),
        (lambda: mine(2, 1, [[], [(0, 1 / 2, 0, "copy")]]), "//, not /"),
        (lambda: mine(2, 1, [[(0, 1, 0)]]), "Transfer(src, dst, chunk, op)"),
        (lambda: mine(2, 1, [[7]]), "Transfer(src, dst, chunk, op)"),
        (lambda: mine(0, 1, []), "workers"),
        (lambda: mine(2, 0, []), "chunks"),
        (lambda: mine(2, 1, [], kind="reduce_all"), "did you mean"),
        (lambda: mine(2, 2, [], kind="all_gather", owners=(0, 2)), "owners"),
        (lambda: mine(2, 1, [], hosts=(0,)), "hosts"),
        (lambda: place(2, 3), "hosts"),
        (lambda: ring(3, order=[0, 1, 1]), "each rank"),
        (lambda: build("parameter_server", 2, servers=3, colocated=True), "servers"),
        (lambda: build("double_tree", 4, pieces=0), "pieces"),
        (lambda: find("rong"), "did you mean 'ring'"),
        (lambda: build(no_schedule, 2), "must return a Schedule"),
        (lambda: build(lambda p: ring(3), 2), "2 workers"),
    ],
)
def test_errors_name_the_field_and_the_cure(make, words):
    with pytest.raises(SpecError) as error:
        make()
    assert words in str(error.value)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_no_workers_is_a_spec_error(name):
    with pytest.raises(SpecError):
        find(name)(0)


def test_find_takes_a_function():
    assert find(ring) is ring and find("ring") is ring


def test_text_of_a_schedule():
    assert repr(ring(3)) == "Schedule(ring: all_reduce, 3 workers, 3 chunks, 4 rounds)"
    assert "0: 0→1 +c2, 1→2 +c0, 2→0 +c1" in str(ring(3))
    assert str(ring(40)).endswith("...")
