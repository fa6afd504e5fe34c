"""All-reduces side by side, without processes: what is refused, what the model says of the rest,
and the numbers that the check relies on.
"""

import functools
import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from course_lib import hardware
from course_lib.collectives import (
    ALGORITHMS,
    COLLECTIVES,
    AlphaBeta,
    Schedule,
    Topology,
    Transfer,
    build,
    bus_bandwidth,
    closed_form,
    cost,
    ring,
    simulate,
    tree,
    verify,
)
from course_lib.commands import allreduce as allreduce_command
from course_lib.errors import SpecError
from course_lib.record.events import Message
from course_lib.reduction import measure as measuring
from course_lib.reduction import measure as prediction
from course_lib.reduction.allreduce import compare
from course_lib.reduction.measure import (
    HERE,
    REPEATS,
    SIZES,
    AllReduce,
    fitted,
    imposed,
    job,
    measure,
    measure_and_predict,
)
from course_lib.reduction.role import Job, as_due, known
from course_lib.spec.fields import Link, parse_bytes
from course_lib.spec.run_spec import RunSpec
from course_lib.spec.settings import MAX_WORKERS
from tests.helpers import ALL_REDUCE
from tests.screens import refusals, says

MIB = 1 << 20

simulated = functools.partial(compare, simulated=True)


def forgetful(workers: int) -> Schedule:
    """A ring that stops a round early: the mistake of an off-by-one."""
    return replace(ring(workers), name="forgetful", rounds=ring(workers).rounds[:-1])


def rounds(*lists: Any) -> Any:
    """Rounds the way a learner writes them, as lists."""
    return list(lists)


@pytest.fixture
def no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fail as soon as a process would be started."""

    def start(*_: Any, **__: Any) -> None:
        raise AssertionError("a process would have been started")

    monkeypatch.setattr(measuring, "start", start)


def machine(monkeypatch: pytest.MonkeyPatch, **facts: Any) -> None:
    """Let this machine be another one."""
    made_up = replace(hardware.probe(), **facts)
    monkeypatch.setattr(hardware, "probe", lambda: made_up)


# --- sizes in words ---


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("4MiB", 4 * MIB),
        ("4 MiB", 4 * MIB),
        ("64KiB", 65536),
        ("64kib", 65536),
        ("1GiB", 2**30),
        ("1MB", 10**6),
        ("1mb", 10**6),
        ("2k", 2000),
        ("2Ki", 2048),
        ("0.5KiB", 512),
        ("1.5KB", 1500),
        (" 7 b ", 7),
        ("100", 100),
        ("0", 0),
        (100, 100),
        (2**40, 2**40),
    ],
)
def test_a_size_is_read_as_people_write_it(text: str | int, size: int) -> None:
    assert parse_bytes(text) == size


BAD_SIZES = [
    "",
    "MiB",
    "much",
    "-4",
    -4,
    "1.5",
    "1.0001KiB",
    "4MiB/s",
    "1e6",
    "1TiB",
    "4 M i B",
    "4MiB 2",
    "1,5KiB",
    True,
    "nan",
]


@pytest.mark.parametrize("text", BAD_SIZES)
def test_what_is_no_size_is_refused_in_one_line(text: str | int) -> None:
    with pytest.raises(SpecError) as caught:
        parse_bytes(text)
    assert (caught.value.field, caught.value.value) == ("bytes", text)
    assert "number of bytes" in caught.value.allowed
    assert "\n" not in str(caught.value)


def test_a_size_beyond_all_bounds_is_refused_and_does_not_break() -> None:
    with pytest.raises(SpecError):
        parse_bytes("9" * 400)


# --- what is refused ---


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        ({"algorithms": ["rign"]}, "algorithm"),
        ({"algorithms": ["ring", "hierachical"]}, "algorithm"),
        ({"algorithms": [4]}, "algorithm"),
        ({"workers": 0}, "workers"),
        ({"workers": -3}, "workers"),
        ({"workers": 2.5}, "workers"),
        ({"hosts": 5}, "hosts"),
        ({"hosts": 0}, "hosts"),
        ({"algorithms": ["hierarchical"], "hosts": 9}, "hosts"),
        ({"what": 6}, "bytes"),
        ({"what": 4, "dtype": "int64"}, "bytes"),
        ({"what": "much"}, "bytes"),
        ({"what": 4.5}, "bytes"),
        ({"dtype": "float31"}, "dtype"),
        ({"dtype": ""}, "dtype"),
        ({"dtype": "str"}, "dtype"),
        ({"dtype": "object"}, "dtype"),
        ({"dtype": "datetime64[s]"}, "dtype"),
        ({"what": []}, "workers"),
        ({"what": [np.ones(3), np.ones(4)]}, "arrays[1]"),
        ({"what": [np.ones(3), np.ones((3, 1))]}, "arrays[1]"),
        ({"what": [np.ones(3), np.ones(3), np.ones(3, "f4")]}, "arrays[2]"),
        ({"what": [np.ones(3)] * 3, "workers": 2}, "workers"),
        ({"what": [np.array([1, None])] * 2}, "dtype"),
        ({"what": [np.array(["a", "b"])] * 2}, "dtype"),
        ({"repeats": 0, "simulated": False}, "repeats"),
        ({"engine": "10.0.0.1:6379"}, "engine"),
    ],
    ids=str,
)
@pytest.mark.usefixtures("no_process")
def test_bad_input_names_the_field_and_what_is_allowed_before_any_process(
    arguments: dict[str, Any], field: str
) -> None:
    with pytest.raises(SpecError) as caught:
        compare(**{"what": 64, "algorithms": ["ring"], "simulated": True, **arguments})
    assert caught.value.field == field
    assert "\n" not in str(caught.value)
    says("reduction", arguments, caught.value)


@pytest.mark.usefixtures("no_process")
def test_a_wrong_function_of_a_learners_own_is_refused_in_the_words_of_the_proof() -> None:
    for is_simulated in (True, False):
        with pytest.raises(SpecError) as caught:
            compare(64, ["ring", forgetful], simulated=is_simulated)
        assert caught.value.value == "forgetful"
        assert f"{verify(forgetful(4))}" in f"{caught.value}"


def returns_none(workers: int) -> Any:
    return None


def for_one_more(workers: int) -> Schedule:
    return ring(workers + 1)


def to_nobody(workers: int) -> Schedule:
    return Schedule("mine", workers, 1, rounds([Transfer(0, 9, 0, "reduce")]))


def of_pairs(workers: int) -> Schedule:
    return Schedule("mine", workers, 1, rounds([(0, 1)]))


@pytest.mark.parametrize("function", [returns_none, for_one_more, to_nobody, of_pairs])
def test_a_function_that_makes_no_schedule_for_these_workers_is_told_so(
    function: Callable[..., Any],
) -> None:
    with pytest.raises(SpecError) as caught:
        simulated(64, [function])
    says("reduction", function.__name__, caught.value)


def test_a_number_of_bytes_may_be_one_of_numpys() -> None:
    size: Any = np.int64(4096)  # from a loop over 2 ** np.arange(10, 20), say
    (result,) = simulated(size, ["ring"])
    assert result.bytes == 4096


def test_what_needs_more_memory_than_is_free_is_refused_with_the_figures(
    monkeypatch: pytest.MonkeyPatch, no_process: None
) -> None:
    machine(monkeypatch, memory=4 * 2**30, memory_total=8 * 2**30)
    with pytest.raises(SpecError) as caught:
        compare("1GiB", ["ring", "tree"])
    assert (caught.value.field, caught.value.value) == ("bytes", 2**30)
    says("reduction", "1GiB", caught.value)
    with pytest.raises(AssertionError, match="would have been started"):
        compare("256MiB", ["ring"])  # just fits
    machine(monkeypatch, memory=0, memory_total=0)
    with pytest.raises(AssertionError, match="would have been started"):
        compare("1GiB", ["ring"])  # who knows


def test_an_algorithm_that_does_not_fit_is_refused_before_the_others_are_started(
    monkeypatch: pytest.MonkeyPatch, no_process: None
) -> None:
    # four ranks fit, and a server no more
    machine(monkeypatch, memory=16 * 64 * MIB, memory_total=2**40)
    with pytest.raises(SpecError, match="5 ranks"):
        compare("64MiB", ["ring", "parameter_server"])


@pytest.mark.usefixtures("no_process")
def test_jobs_have_not_too_many_ranks() -> None:
    said = refusals(lambda: measure([job(ring(MAX_WORKERS + 1), 8)]))
    says("reduction", "too many ranks", said)


# --- simulated ---

# bytes: float32 elements that divide evenly over the chunks of all algorithms below
SIZE = 4 * 2520
PLACES = [(1, 1), (2, 1), (4, 1), (5, 1), (6, 1), (2, 2), (4, 2), (5, 3), (6, 3)]


@pytest.mark.parametrize(("workers", "hosts"), PLACES)
@pytest.mark.usefixtures("no_process")
def test_simulated_figures_are_those_of_the_price_and_the_simulation(
    workers: int, hosts: int
) -> None:
    found = simulated(SIZE, workers=workers, hosts=hosts)
    assert [result.algorithm for result in found] == list(ALGORITHMS)
    for result in found:
        schedule = build(result.algorithm, workers, hosts)
        price, simulation = cost(schedule, SIZE, itemsize=4), simulate(schedule, SIZE, itemsize=4)
        assert (result.workers, result.hosts, result.bytes, result.rounds) == (
            workers,
            hosts,
            SIZE,
            price.rounds,
        )
        assert (result.bytes_sent_per_worker, result.busiest_link_bytes) == (
            max(price.sent[:workers]),
            price.busiest_link[1],
        )
        assert (result.seconds, result.predicted_seconds) == (simulation.seconds, price.seconds)
        assert result.bus_bandwidth == bus_bandwidth(SIZE, simulation.seconds, workers)
        assert (result.exact, result.reality, result.arrays) == (True, "simulated", [])
        assert (result.schedule.digest, result.schedule.hosts) == (schedule.digest, schedule.hosts)
        assert {type(event) for event in result.trace} <= {Message}
        assert len(result.trace) == sum(map(len, schedule.rounds))


@pytest.mark.parametrize("workers", [2, 3, 4, 8])
def test_simulated_figures_are_those_of_the_books(workers: int) -> None:
    size = 4 * 3 * 8 * 8
    for result in simulated(size, workers=workers):
        form = closed_form(result.algorithm, workers, size)
        assert result.rounds == form.rounds
        if result.algorithm == "parameter_server":
            # the busiest rank is the server, and no worker
            assert result.bytes_sent_per_worker == size
        elif form.exact:
            assert result.bytes_sent_per_worker == form.bytes_per_rank
        else:
            assert 0 < result.bytes_sent_per_worker <= form.bytes_per_rank


def test_four_workers_are_the_default_and_arrays_bring_their_own_number() -> None:
    assert simulated(64, ["ring"])[0].workers == 4
    (result,) = simulated([np.ones((2, 3), "int16")] * 3, ["tree"])
    assert (result.workers, result.bytes) == (3, 12)


def test_options_go_to_the_algorithm() -> None:
    (server,) = simulated(64, ["parameter_server"], servers=2)
    assert server.schedule.servers == 2
    orderly, scattered = (
        simulated("4KiB", ["ring"], hosts=2, order=order)[0]
        for order in ([0, 1, 2, 3], [0, 2, 1, 3])
    )
    assert scattered.busiest_link_bytes == 2 * orderly.busiest_link_bytes


def test_a_function_of_a_learners_own_is_simulated_under_its_name() -> None:
    def mine(workers: int) -> Schedule:
        return replace(tree(workers), name="mine")

    mine_result, book = simulated("1KiB", [mine, "tree"], hosts=2)
    assert mine_result.algorithm == "mine"
    assert mine_result.as_dict() | {"algorithm": "tree"} == book.as_dict()


def test_more_workers_than_can_be_started_can_be_simulated() -> None:
    (result,) = simulated("4MiB", ["ring"], workers=256)
    assert (result.rounds, result.bytes_sent_per_worker) == (510, 2 * 255 * 16384)


def test_a_result_has_the_agreed_fields_as_plain_values_and_says_what_it_is() -> None:
    (result,) = simulated("4KiB", ["ring"])
    assert list(result.as_dict()) == ALL_REDUCE
    assert all(isinstance(value, (str, int, float, bool)) for value in result.as_dict().values())
    assert repr(result).startswith("AllReduce(ring, 4 workers, 4096 bytes: 6 rounds, ")
    assert repr(result).endswith(" predicted (+0%), exact)")
    assert "simulated" in repr(result)
    assert repr(replace(result, exact=False)).endswith("NOT EXACT)")


# --- the numbers that the check relies on ---

DTYPES = ["float32", "float64", "float16", "int8", "uint8", "int64", "complex64"]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("workers", [1, 2, 5, 8, 16])
def test_the_known_numbers_sum_to_what_is_due_in_any_order(workers: int, dtype: str) -> None:
    for length in (0, 1, 97, 500):
        brought = [known(rank, length, np.dtype(dtype)) for rank in range(workers)]
        for order in (brought, brought[::-1], brought[::2] + brought[1::2]):
            total = functools.reduce(np.add, order)
            assert total.dtype == dtype and as_due(build("ring", workers), 0, total)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("length", [1, 5, 1000])
def test_a_worker_that_is_missing_or_counted_twice_changes_the_sum(length: int, dtype: str) -> None:
    for workers in (2, 3, 6):
        brought = [known(rank, length, np.dtype(dtype)) for rank in range(workers)]
        total, due = functools.reduce(np.add, brought), build("ring", workers)
        for rank, one in enumerate(brought):
            assert not as_due(due, 0, total - one), f"without worker {rank}"
            assert not as_due(due, 0, total + one), f"worker {rank} twice"


@pytest.mark.parametrize("name", COLLECTIVES)
def test_what_a_collective_leaves_is_due_at_some_ranks_and_not_at_others(name: str) -> None:
    schedule, length = build(name, 4), 64
    left = [known(rank, length, np.dtype("int64")) for rank in range(4)]
    assert not all(as_due(schedule, rank, mine) for rank, mine in enumerate(left))
    bounds = schedule.bounds(length)
    for round_ in schedule.rounds:
        sent = [(t, left[t.src][bounds[t.chunk] : bounds[t.chunk + 1]].copy()) for t in round_]
        for t, values in sent:
            place = slice(bounds[t.chunk], bounds[t.chunk + 1])
            left[t.dst][place] = values + left[t.dst][place] * (t.op == "reduce")
    assert all(as_due(schedule, rank, mine) for rank, mine in enumerate(left))


def test_no_two_different_sums_over_workers_are_alike() -> None:
    some = [ranks for n in range(1, 6) for ranks in itertools.combinations(range(5), n)]
    sums = {
        ranks: tuple(sum(known(rank, 200, np.dtype("int64")) for rank in ranks).tolist())
        for ranks in some
    }  # type: ignore[union-attr]
    same = [(a, b) for a, b in itertools.combinations(some, 2) if sums[a] == sums[b]]
    assert same == []


# --- what is measured, and the formula that comes of it ---


def test_a_job_is_so_often_called_that_its_time_means_something() -> None:
    short, long = job(ring(4), 256), job(ring(4), 4 * MIB)
    assert (short.repeats, long.repeats) == (REPEATS, REPEATS)
    assert short.calls > long.calls == 1
    assert job(ring(4), 0).calls == short.calls
    assert job(ring(4), 256, "int64", repeats=3, traced=0) == replace(
        short, dtype="int64", repeats=3, traced=0
    )


def test_a_call_that_takes_long_over_its_link_is_made_less_often() -> None:
    held = Link(mbit=50, delay_ms=1)
    short, long = (job(ring(8).placed(2), length, link=held) for length in (256, MIB))
    assert (short.repeats, short.calls) == (REPEATS, 7)  # 0.1 s in all
    assert (long.repeats, long.calls, long.traced) == (3, 1, 1)  # seconds each


PATH = AlphaBeta(5e-6, 1 / 15e9)


def made_up(
    monkeypatch: pytest.MonkeyPatch, truth: Callable[[Job, Link | None], float]
) -> list[tuple[Link | None, list[str]]]:
    """Let jobs take the seconds that `truth` gives them, without processes. Returns what has been
    measured so far: the link and the names of the schedules.
    """
    calls: list[tuple[Link | None, list[str]]] = []

    def measured(jobs: Sequence[Job], where: RunSpec = HERE, watch: Any = None) -> list[AllReduce]:
        calls.append((where.link.get("*"), [j.schedule.name for j in jobs]))
        (some,) = simulated("4KiB", ["ring"])
        return [
            replace(
                some,
                schedule=j.schedule,
                seconds=truth(j, where.link.get("*")),
                predicted_seconds=0.0,
            )
            for j in jobs
        ]

    monkeypatch.setattr(prediction, "measure", measured)
    return calls


@pytest.mark.parametrize("ranks", [2, 3, 4, 8])
def test_alpha_and_beta_are_recovered_exactly_from_made_up_times_of_a_ring(ranks: int) -> None:
    truth = Topology(PATH, gamma=0.0)
    seconds = [closed_form("ring", ranks, size).terms.seconds(truth) for size in SIZES]
    found = fitted(ranks, seconds)
    assert (found.alpha, found.beta) == pytest.approx((PATH.alpha, PATH.beta), rel=1e-9)


def test_disturbed_times_give_alpha_and_beta_near_by_and_never_below_zero() -> None:
    truth = Topology(PATH, gamma=0.0)
    seconds = [closed_form("ring", 4, size).terms.seconds(truth) for size in SIZES]
    found = fitted(4, [0.95 * seconds[0], 1.05 * seconds[1], 0.95 * seconds[2]])
    assert (found.alpha, found.beta) == pytest.approx((PATH.alpha, PATH.beta), rel=0.1)
    found = fitted(4, [1.0, 0.1, 0.01])  # the larger the faster: no machine is so
    assert min(found.alpha, found.beta) >= 0
    assert fitted(1, [1e-6] * 3) == AlphaBeta(0.0, 0.0)  # a rank alone sends nothing


@pytest.mark.parametrize("hosts", [1, 2])
def test_a_prediction_is_the_cost_with_alpha_and_beta_of_a_ring_on_the_same_ranks(
    hosts: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    true = Topology(PATH, PATH, gamma=0.0)
    calls = made_up(monkeypatch, lambda j, link: j.price(true).seconds)
    schedules = [build(name, 4, hosts) for name in ALGORITHMS]
    found = measure_and_predict([job(s, 2520) for s in schedules])
    names = [s.name for s in schedules]
    # timed together; the parameter server has a rank more, and a ring of its own
    assert calls == [(None, ["ring"] * 6 + names)]
    assert [one.schedule for one in found] == schedules
    for one in found:
        assert one.predicted_seconds == pytest.approx(one.seconds, rel=0.01)


def test_over_links_the_formula_takes_their_own_figures_and_times_of_a_ring_without_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    held = Link(mbit=50, delay_ms=1)

    def truth(j: Job, link: Link | None) -> float:
        path = Topology(PATH, PATH, gamma=0.0)
        return j.price(imposed(link, path) if link else path).seconds

    calls = made_up(monkeypatch, truth)
    names = ["ring", "hierarchical", "tree"]
    jobs = [job(build(name, 8, 2), length, link=held) for name in names for length in (256, MIB)]
    found = measure_and_predict(jobs, RunSpec(hosts=2, link=held))
    assert [link for link, _ in calls] == [None, held]
    for one in found:
        assert one.predicted_seconds == pytest.approx(one.seconds, rel=0.01)
        assert one.predicted_seconds > 2 * held.delay


def test_a_link_changes_the_path_across_and_leaves_open_what_it_does_not_say() -> None:
    path = Topology(PATH, PATH, gamma=0.0)
    slow, late = (imposed(link, path) for link in (Link(mbit=8), Link(delay_ms=2)))
    assert (slow.intra, late.intra) == (PATH, PATH)
    # packets have headers: less than 8 Mbit/s is left
    assert 1e-6 < slow.inter.beta < 1.1e-6
    assert late.inter == AlphaBeta(PATH.alpha, PATH.beta, 0.002)


def test_a_result_says_by_how_much_the_prediction_misses() -> None:
    (result,) = simulated("4KiB", ["ring"])
    twice = replace(result, seconds=1.0, predicted_seconds=2.0)
    assert twice.prediction_error == twice.as_dict()["prediction_error"] == 1.0
    assert "2e+03 ms predicted (+100%)" in repr(twice)
    assert replace(twice, predicted_seconds=0.5).prediction_error == -0.5
    assert allreduce_command.cells(twice.as_dict())[4:7] == ["1000", "2000", "+100%"]
    (nothing,) = simulated("4KiB", ["ring"], workers=1)
    assert (nothing.seconds, nothing.prediction_error) == (0, 0)
