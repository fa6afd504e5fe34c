"""The smallest case in which a learner's function fails is found, and said in words."""

import importlib

import pytest

from course_lib.collectives import Schedule, Transfer, ring

from .cases import mine, ring_lists

smallest_failure = importlib.import_module("exercises.checks.schedules.smallest").smallest_failure


def off_by_one(P: int) -> Schedule:
    return ring_lists(P, rounds=2 * P - 3)


def no_modulo(P: int) -> Schedule:
    return mine(P, P, [[Transfer(r, r + 1, r, "reduce") for r in range(P)]])


def powers_only(P: int) -> Schedule:
    gaps = [2**k for k in range((P - 1).bit_length())]
    return mine(
        P, 1, [[Transfer(r, r ^ gap, 0, "reduce") for r in range(P) if r ^ gap < P] for gap in gaps]
    )


def raises(P: int) -> Schedule:
    return [][P]


def a_list(P: int) -> list[object]:
    return []


def halves(P: int) -> Schedule:
    return mine(P, 1, [[Transfer(0, P / 2, 0, "reduce")]])


def blind_to_hosts(P: int, hosts: object = 1) -> Schedule:
    return ring(P) if hosts in (1, 2) else ring_lists(P, gather="reduce")


@pytest.mark.parametrize(
    ("function", "workers", "words"),
    [
        (
            off_by_one,
            2,
            "rank 1 has all of chunk 1 after the last round, but does not send it to rank 0",
        ),
        (no_modulo, 1, "Is % 1 missing?"),
        (powers_only, 3, "powers of two only"),
        (raises, 1, "IndexError"),
        (a_list, 1, "must return a Schedule"),
        (halves, 1, "with //, not"),
        (blind_to_hosts, 3, "3 workers on hosts 3"),
    ],
)
def test_smallest_failure_of_a_learner(function, workers, words):
    failure = smallest_failure(function, up_to=8)
    assert failure is not None
    assert failure.workers == workers
    assert str(failure).startswith(
        f"{function.__name__} is wrong for {workers} worker"
    ) and words in str(failure)


def test_no_failure_of_a_right_function():
    assert smallest_failure("ring", up_to=9) is None
    assert smallest_failure("hierarchical", up_to=9) is None
    assert smallest_failure("ring_all_gather", up_to=9, kind="all_gather") is None


def test_the_kind_asked_for_counts():
    failure = smallest_failure("ring_reduce_scatter", up_to=4)
    assert failure is not None and "'all_reduce' is asked for" in str(failure)
