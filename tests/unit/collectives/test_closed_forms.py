"""The formulas of the textbooks, against the schedules, with no tolerance."""

import pytest

from course_lib.collectives import ALGORITHMS, AlphaBeta, Topology, build, closed_form, cost
from course_lib.errors import SpecError

OPTIONS: dict[str, list[dict[str, object]]] = {
    "parameter_server": [
        {},
        {"servers": 3},
        {"servers": 20},
        {"colocated": True},
        {"servers": 2, "colocated": True},
    ],
    "double_tree": [{}, {"pieces": 1}, {"pieces": 3}],
}
CASES = [(name, options) for name in ALGORITHMS for options in OPTIONS.get(name, [{}])]


@pytest.mark.parametrize(("name", "options"), CASES)
def test_closed_form_equals_the_schedule(name, options):
    for workers in range(1, 34):
        if options.get("colocated") and options.get("servers", 1) > workers:
            continue
        schedule = build(name, workers, **options)
        size = 16 * schedule.chunks * workers
        form, price = closed_form(name, workers, size, **options), cost(schedule, size)
        said = f"{name}, {workers} workers: the closed form, and the price of the schedule"
        assert form.rounds == price.rounds, said
        assert sum(price.sent) == sum(price.received), said
        if form.exact:
            assert form.bytes_per_rank == price.bytes_per_rank, said
            assert form.terms == price.terms, said
        else:
            assert form.bytes_per_rank >= price.bytes_per_rank
            assert form.terms.seconds(Topology()) >= price.seconds
            assert (
                form.terms.seconds(Topology(intra=AlphaBeta(1, 0), gamma=0))
                >= cost(schedule, size, Topology(intra=AlphaBeta(1, 0), gamma=0)).seconds
            )


@pytest.mark.parametrize(("hosts", "each"), [(1, 4), (2, 1), (2, 4), (3, 2), (4, 4), (5, 3)])
def test_closed_form_of_hierarchical_on_even_hosts(hosts, each):
    workers = hosts * each
    size = 16 * workers
    schedule = build("hierarchical", workers, hosts)
    form, price = closed_form("hierarchical", workers, size, hosts=hosts), cost(schedule, size)
    assert form.rounds == price.rounds
    assert form.bytes_per_rank == price.bytes_per_rank
    assert form.terms == price.terms
    assert price.busiest_link[1] == 2 * (hosts - 1) * size / hosts


def test_ring_sends_the_least_that_any_all_reduce_can():
    for workers in (2, 5, 8):
        size = 40 * workers
        least = cost(build("ring", workers), size).bytes_per_rank
        assert least == 2 * (workers - 1) * size // workers
        assert all(
            cost(build(name, workers), size).bytes_per_rank >= least
            for name in ALGORITHMS
            if name != "parameter_server"
        )


def test_no_closed_form_for_an_unknown_name():
    with pytest.raises(SpecError, match="did you mean 'tree'"):
        closed_form("tre", 4, 4)


@pytest.mark.parametrize("P", [1, 2, 3, 4, 8, 9])
def test_other_collectives_cost_what_their_pages_say(P: int) -> None:
    S, topology = P * P * 1000, Topology(intra=AlphaBeta(2.0, 0.001), gamma=0.01)
    down, across = (cost(build(n, P), S, topology) for n in ("tree_broadcast", "direct_all_to_all"))
    L = (P - 1).bit_length()
    assert (down.rounds, down.sent[0]) == (L, L * S)
    assert down.seconds == pytest.approx(L * (2 + S * 0.001))
    assert across.rounds == P - 1 and {*across.sent} == {(P - 1) * S // P**2}
    assert across.seconds == pytest.approx((P - 1) * (2 + S * 0.001 / P**2))
