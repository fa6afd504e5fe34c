"""Alpha, beta and gamma found again from times made with known ones, and predictions that hold what
they say.
"""

from dataclasses import replace

import numpy as np
import pytest

from course_lib.collectives import (
    ALGORITHMS,
    AlphaBeta,
    Sample,
    Schedule,
    Topology,
    build,
    cost,
    fit,
)
from course_lib.collectives.fit import NAMES
from course_lib.errors import SpecError

TRUE = Topology(intra=AlphaBeta(30e-6, 1 / 3e9), inter=AlphaBeta(200e-6, 1 / 50e6), gamma=1 / 5e9)
SIZES = [2**10, 2**16, 2**22]


def measured(
    schedules: list[Schedule],
    noise: float = 0.0,
    repeats: int = 1,
    truth: Topology = TRUE,
    seed: int = 3,
) -> list[Sample]:
    random = np.random.default_rng(seed)
    return [
        Sample(s, size, cost(s, size, truth).seconds * (1 + noise * random.standard_normal()))
        for s in schedules
        for size in SIZES
        for _ in range(repeats)
    ]


def test_exact_times_give_back_the_parameters():
    found = fit(measured([build("ring", 8), build("recursive_doubling", 8)])).topology
    assert found.intra.alpha == pytest.approx(TRUE.intra.alpha)
    assert found.intra.beta == pytest.approx(TRUE.intra.beta)
    assert found.gamma == pytest.approx(TRUE.gamma)
    assert found.inter == Topology().inter  # no sample used it


def test_both_links_from_runs_on_two_hosts():
    samples = measured(
        [build("hierarchical", 8, 2), build("ring", 8, 2), build("recursive_doubling", 8, 2)]
    )
    found = fit(samples)
    assert found.found == ("alpha", "beta", "alpha across", "beta across", "gamma")
    assert found.topology.inter.beta == pytest.approx(TRUE.inter.beta, rel=1e-3)


def test_one_algorithm_predicts_the_others_if_gamma_is_given():
    others = [name for name in NAMES if name != "gamma"]
    found = fit(measured([build("ring", 4)]), Topology(gamma=TRUE.gamma), others)
    assert found.found == ("alpha", "beta")
    for name in ALGORITHMS:
        schedule = build(name, 6)
        for size in (5000, 2**20, 2**25):
            assert cost(schedule, size, found.topology).seconds == pytest.approx(
                cost(schedule, size, TRUE).seconds, rel=1e-6
            )


def test_what_cannot_be_told_apart_is_not_made_up():
    found = fit(measured([build("ring", 4)]))
    assert "gamma" not in found.found and found.topology.gamma == 0
    assert cost(build("tree", 8), 2**20, found.topology).seconds == pytest.approx(
        cost(build("tree", 8), 2**20, TRUE).seconds
    )  # adds half of what it moves


def test_noisy_times_are_fitted_as_well_as_their_noise_allows():
    found = fit(measured([build("ring", 4), build("recursive_doubling", 4)], noise=0.05, repeats=5))
    assert 0.01 < found.error < 0.1
    for schedule in (build("halving_doubling", 6), build("direct", 5), build("tree", 7)):
        for size in SIZES:
            assert cost(schedule, size, found.topology).seconds == pytest.approx(
                cost(schedule, size, TRUE).seconds, rel=0.05
            )


def test_no_parameter_is_below_zero():
    # the larger the faster: no machine is so
    samples = [Sample(build("ring", 4), size, 1e-3 / (1 + size)) for size in (1, 10, 100, 1000)]
    found = fit(samples).topology
    assert min(found.intra.alpha, found.intra.beta, found.gamma) >= 0


def test_crowded_hosts_are_fitted_with_their_cores():
    crowded = Topology(intra=TRUE.intra, gamma=TRUE.gamma, cores=2)
    samples = measured([build("ring", 8), build("recursive_doubling", 8)], truth=crowded)
    found = fit(samples, Topology(cores=2)).topology
    assert found.cores == 2 and found.intra.beta == pytest.approx(TRUE.intra.beta)


def test_the_speed_of_a_link_is_found_beside_what_the_cores_do():
    held = Topology(TRUE.intra, AlphaBeta(200e-6, 0), gamma=0, cores=2, wire=1 / 25e6)
    samples = measured([build("ring", 8, 2), build("ring_worst_order", 8, 2)], truth=held)
    found = fit(samples, replace(held, wire=1 / 10e6), wanted=("alpha across", "wire"))
    assert found.found == ("alpha across", "wire")
    assert (found.topology.inter.alpha, found.topology.wire) == pytest.approx(
        (200e-6, 1 / 25e6), rel=0.01
    )


def test_the_same_samples_give_the_same_fit():
    samples = measured([build("ring", 4), build("tree", 4)], noise=0.1, repeats=3)
    assert fit(samples).topology == fit(samples).topology


@pytest.mark.parametrize(
    "samples", [[], [Sample(build("ring", 4), 100, 0.0)], measured([build("ring", 4)])[:2]]
)
def test_too_few_samples(samples):
    with pytest.raises(SpecError, match="samples"):
        fit(samples)
