"""`allreduce` with real processes: exact sums, figures that are those of the price, a trace of its
own, and a prediction beside the measurement.
"""

import functools
import itertools
import math
import tempfile
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from course_lib import allreduce, start
from course_lib.collectives import (
    ALGORITHMS,
    Schedule,
    Transfer,
    build,
    bus_bandwidth,
    cost,
    ring,
    simulate,
    verify,
)
from course_lib.record.events import Message
from course_lib.record.trace import Trace
from course_lib.reduction.allreduce import compare
from course_lib.reduction.measure import AllReduce, job, measure
from course_lib.spec.fields import Link
from tests.conftest import HOME
from tests.helpers import of_times, undisturbed, until

SIZE = "40KiB"


def scattered(workers: int) -> Schedule:
    """A ring in an order in which every message goes from one half of the workers to the other."""
    half = workers // 2
    return replace(
        ring(workers, [rank for i in range(half) for rank in (i, half + i)]), name="scattered"
    )


@functools.cache
def two_hosts() -> list[AllReduce]:
    """All algorithms, and one more, with four workers on two hosts: carried out once for several
    tests.
    """
    return compare(SIZE, [*ALGORITHMS, scattered], hosts=2, repeats=2)


def check_figures(result: AllReduce, itemsize: int = 4) -> None:
    """What was measured is what the schedule should cost, and the trace shows it."""
    price = cost(result.schedule, result.bytes, itemsize=itemsize)
    assert (result.exact, result.reality) == (True, "measured")
    assert result.rounds == price.rounds
    assert result.bytes_sent_per_worker == max(price.sent[: result.workers])
    assert result.busiest_link_bytes == price.busiest_link[1]
    assert result.seconds > 0
    assert result.bus_bandwidth == bus_bandwidth(result.bytes, result.seconds, result.workers)
    assert 0 < result.predicted_seconds < math.inf
    assert result.prediction_error == result.predicted_seconds / result.seconds - 1
    check_trace(result.trace, result.schedule, result.bytes, itemsize)


def check_trace(trace: Trace, schedule: Schedule, size: int, itemsize: int) -> None:
    """The trace has every transfer of the schedule once, as the receiver saw it, and nothing else;
    it begins at 0.
    """
    ends = schedule.bounds(size // itemsize) * itemsize
    expected = Counter(
        (
            number,
            schedule.task(t.src),
            schedule.task(t.dst),
            t.chunk,
            int(ends[t.chunk + 1] - ends[t.chunk]),
        )
        for number, transfers in enumerate(schedule.rounds)
        for t in transfers
    )
    messages = trace.all(Message)
    assert Counter((m.round, m.src, m.dst, m.chunk, m.bytes) for m in messages) == expected
    assert len(trace) == len(messages)
    assert all(m.task == m.dst and 0 <= m.start <= m.end for m in messages)
    assert min(m.start for m in messages) == 0


# --- figures and traces ---


@pytest.mark.parametrize("name", [*ALGORITHMS, "scattered"])
def test_every_algorithm_on_two_hosts_is_exact_at_its_price_and_traced(name: str) -> None:
    (result,) = [found for found in two_hosts() if found.algorithm == name]
    assert (result.workers, result.hosts, result.bytes) == (4, 2, 40960)
    check_figures(result)


def test_results_come_in_the_order_of_the_algorithms_whatever_clusters_they_needed() -> None:
    assert [result.algorithm for result in two_hosts()] == [*ALGORITHMS, "scattered"]
    assert [result.schedule.digest for result in two_hosts()] == [
        build(a, 4, 2).digest for a in [*ALGORITHMS.values(), scattered]
    ]


def test_between_hosts_a_hierarchy_sends_less_than_a_ring_and_much_less_than_a_bad_ring() -> None:
    busiest = {result.algorithm: result.busiest_link_bytes for result in two_hosts()}
    assert busiest["hierarchical"] == 40960
    assert busiest["ring"] == 1.5 * 40960
    assert busiest["scattered"] == 3 * 40960


def test_a_number_of_bytes_is_brought_in_any_dtype() -> None:
    result = allreduce(4096, "halving_doubling", workers=3, dtype="int64", repeats=1)
    assert (result.workers, result.bytes) == (3, 4096)
    check_figures(result, itemsize=8)


def test_any_dtype_and_any_length_are_exact_also_where_chunks_are_uneven_or_empty() -> None:
    schedule = build("hierarchical", 3, 2)
    cases = [
        *itertools.product([0, 1, 2, 7, 1001], ["float32", "int64", "int8", "float64"]),
        (300_000, "float32"),
    ]
    done = measure([job(schedule, length, dtype, repeats=1) for length, dtype in cases])
    for one, (_, dtype) in zip(done, cases, strict=True):
        assert one.exact
        check_trace(one.trace, schedule, one.bytes, np.dtype(dtype).itemsize)


def test_half_precision_is_exact_too() -> None:
    (done,) = measure([job(ring(8), 512, "float16", repeats=1)])
    assert done.exact


def test_simulated_and_measured_give_the_same_figures_but_for_the_times() -> None:
    times = {"seconds", "predicted_seconds", "prediction_error", "bus_bandwidth", "reality"}
    model = compare(SIZE, [*ALGORITHMS, scattered], hosts=2, simulated=True)
    for ours, simulated in zip(two_hosts(), model, strict=True):
        figures = [
            {name: value for name, value in one.as_dict().items() if name not in times}
            for one in (ours, simulated)
        ]
        assert figures[0] == figures[1]
        assert (simulated.reality, simulated.seconds) == (
            "simulated",
            simulate(ours.schedule, 40960, itemsize=4).seconds,
        )


def test_one_worker_has_its_sum_already() -> None:
    result = allreduce("1KiB", workers=1, repeats=1)
    assert (
        result.rounds,
        result.bytes_sent_per_worker,
        result.busiest_link_bytes,
        result.bus_bandwidth,
    ) == (0, 0, 0, 0)
    assert (result.exact, result.reality, result.hosts, len(result.trace)) == (
        True,
        "measured",
        1,
        0,
    )


def test_parameter_servers_have_processes_of_their_own() -> None:
    result = allreduce("6000", "parameter_server", workers=3, servers=2, repeats=1)
    check_figures(result)
    assert result.workers == 3
    assert {m.dst for m in result.trace.all(Message)} == {
        "worker:0",
        "worker:1",
        "worker:2",
        "ps:0",
        "ps:1",
    }
    assert result.bytes_sent_per_worker == 6000  # half of it to each server


def test_a_function_of_a_learners_own_is_carried_out() -> None:
    pairs = [(0, 1), (2, 3), (1, 3)]  # a closure, as in a notebook

    def up_and_down(workers: int) -> Schedule:
        up: Any = [[Transfer(a, b, 0, "reduce")] for a, b in pairs]
        down: Any = [[Transfer(b, a, 0, "copy")] for a, b in reversed(pairs)]
        return Schedule("up and down", workers, 1, up + down)

    result = allreduce(SIZE, up_and_down, repeats=2)
    assert (result.algorithm, result.rounds) == ("up and down", 6)
    check_figures(result)


# --- arrays ---


@pytest.mark.parametrize(
    ("algorithm", "workers", "hosts", "dtype", "shape"),
    [
        ("ring", 2, 1, "int64", (3, 5)),
        ("hierarchical", 4, 2, "float64", (4, 2, 3)),
        ("double_tree", 5, 1, "float32", (1000,)),
        ("parameter_server", 3, 1, "int32", (7, 1)),
        ("direct", 3, 3, ">i4", (10,)),
        ("tree", 3, 1, "complex128", ()),
        ("ring", 1, 1, "int64", (2, 2)),
        ("ring", 2, 1, "float32", (0, 4)),
    ],
)
def test_arrays_come_back_summed_in_their_own_shape_on_every_worker(
    algorithm: str, workers: int, hosts: int, dtype: str, shape: tuple[int, ...]
) -> None:
    arrays = [
        np.random.default_rng(rank).integers(-(2**20), 2**20, shape).astype(dtype)
        for rank in range(workers)
    ]
    before = [array.copy() for array in arrays]
    result = allreduce(arrays, algorithm, hosts=hosts, repeats=1)
    assert (result.workers, result.hosts, result.bytes) == (workers, hosts, arrays[0].nbytes)
    assert len(result.arrays) == workers
    for array in result.arrays:
        assert (array.shape, array.dtype) == (shape, arrays[0].dtype)
        np.testing.assert_array_equal(array, sum(before))
    np.testing.assert_array_equal(arrays, before)  # those that were given stay as they were
    if workers > 1:
        check_figures(result, arrays[0].itemsize)


def test_arrays_may_lie_in_memory_in_any_order_and_be_plain_lists() -> None:
    grid = np.arange(12).reshape(3, 4)
    found = compare([grid.T, 10 * grid.T, grid.T[::-1]], ["ring", "tree"], repeats=1)
    for result in found:
        for array in result.arrays:
            np.testing.assert_array_equal(array, 11 * grid.T + grid.T[::-1])
        assert result.exact
    lists: Any = [[1, 2, 3], [10, 20, 30]]
    np.testing.assert_array_equal(allreduce(lists, repeats=1).arrays, [[11, 22, 33]] * 2)


def test_true_and_false_add_up_as_numpy_adds_them() -> None:
    arrays = [
        np.array([True, False, False]),
        np.array([True, True, False]),
        np.array([True, False, False]),
    ]
    result = allreduce(arrays, repeats=1)
    np.testing.assert_array_equal(result.arrays, [[True, True, False]] * 3)
    assert result.exact


# --- what the figures rest on ---


def test_the_check_finds_out_a_schedule_that_forgets_or_doubles_a_contribution() -> None:
    whole = ring(4)
    forgets = replace(whole, rounds=whole.rounds[:-1])
    doubles = replace(
        whole, rounds=(*list(whole.rounds)[:3], *list(whole.rounds)[:3], *list(whole.rounds)[3:])
    )
    assert not verify(forgets)
    assert not verify(doubles)
    done = measure([job(schedule, 64, repeats=1) for schedule in (whole, forgets, doubles, whole)])
    assert [one.exact for one in done] == [True, False, False, True]


def test_each_job_is_timed_and_is_checked_only_if_it_is_traced() -> None:
    unchecked = job(ring(2), 1000, traced=0)
    checked, other = job(ring(2), 100, "int64", repeats=3), job(build("tree", 2), 1000, repeats=1)
    done = measure([checked, unchecked, other])
    assert [(one.exact, len(one.trace)) for one in done] == [(True, 4), (False, 0), (True, 2)]
    assert all(one.seconds > 0 for one in done)


def test_jobs_on_other_ranks_or_hosts_are_carried_out_in_a_cluster_of_their_own() -> None:
    placed = [ring(2), ring(2).placed(2), ring(3), ring(2)]
    done = measure([job(schedule, 100, repeats=1) for schedule in placed])
    assert [one.schedule for one in done] == placed
    assert all(one.exact for one in done)


@pytest.mark.alone
def test_over_slow_links_a_prediction_is_near_the_time_and_far_above_one_without_them() -> None:
    def measured() -> None:
        (result,) = compare("1MiB", ["ring"], workers=4, hosts=2, repeats=5, link=Link(mbit=50))
        with of_times():
            assert abs(result.prediction_error) < 0.5
        assert result.predicted_seconds > 1.5 * (1 << 20) / (50e6 / 8)

    undisturbed(measured)


# --- nothing left, nothing lost ---


def test_nothing_is_left_in_temporary_folders_and_no_meeting_stays_open(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))  # other programs use the usual one
    runs = set(Path(HOME, "runs").glob("*"))
    allreduce([np.ones(5), np.ones(5)], hosts=2, repeats=1)
    assert not list(tmp_path.iterdir())
    (run,) = set(Path(HOME, "runs").glob("*")) - runs
    assert not (run / "meetings").exists()


def test_a_server_that_is_told_to_leave_while_it_writes_down_its_result_spoils_nothing() -> None:
    def serve(task: Any) -> bytes:
        return bytes(100_000_000)

    def work(task: Any) -> str:  # over just when the server has begun to write
        server = task.run_dir / "tasks" / "ps-0"
        until(lambda: any(server.glob("value.*")), "the server to write", every=0.001)
        return "done"

    with start({"worker": work, "ps": serve}, framework="python", workers=1, ps=1) as run:
        assert run.wait(60).values["worker:0"] == "done"
