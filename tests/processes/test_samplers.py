"""Which examples each worker reads, as the traces of runs tell."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from course_lib import start, workloads
from course_lib.cluster.run import Run
from course_lib.errors import SpecError
from course_lib.record.events import Metric, Read
from course_lib.record.measures import coverage
from tests.helpers import examples_of, spec_for

EXAMPLES = 1437
STEPS = 24  # of 128: two epochs and a little


def finished(name: str, framework: str, **fields: Any) -> Run:
    with start(name, framework=framework, steps=STEPS, record_examples=True, **fields) as run:
        return run.wait(120)


@pytest.mark.parametrize(
    ("name", "framework"),
    [
        ("multi_worker_mirrored", "torch"),
        ("stale_synchronous", "torch"),
        ("fully_sharded", "torch"),
        ("central_storage", "torch"),
        ("sync_parameter_server", "torch"),
        ("sync_parameter_server", "tensorflow"),
        ("multi_worker_mirrored", "tensorflow"),
    ],
)
@pytest.mark.parametrize("sampler", ["global", "per_worker"])
def test_every_example_of_an_epoch_is_read_and_parts_stay_with_their_workers(
    name: str, framework: str, sampler: str
) -> None:
    run = finished(name, framework, workers=2, global_batch=128, sampler=sampler)
    found = coverage(run.trace, EXAMPLES)
    padded = int(sampler == "per_worker")  # one part has an example less
    for epoch in (0, 1):
        assert (found[epoch].read, len(found[epoch].repeated)) == (EXAMPLES, padded)
    assert run.result["examples_read"]["epoch 0"] == {
        "read": EXAMPLES,
        "repeated": padded,
        "never": 0,
    }
    reads = run.trace.all(Read)
    assert all(0 < len(e.examples) <= 64 for e in reads)
    parts = [{i for e in reads if e.task == f"worker:{k}" for i in e.examples} for k in range(2)]
    assert sum(map(len, parts)) == EXAMPLES if padded else len(parts[0]) > EXAMPLES / 2 + 100


def test_the_replicas_of_a_machine_learn_alike_in_both_frameworks() -> None:
    """Two processes in PyTorch, two devices of one process in TensorFlow."""
    losses = []
    for framework in ("torch", "tensorflow"):
        run = finished("mirrored", framework, workers=2, global_batch=128, sampler="per_worker")
        losses.append([m.value for m in run.trace.all(Metric, "worker:0", name="loss")])
        reads = sorted(run.trace.all(Read, step=0), key=lambda e: e.task)
        workload = workloads.load(run.spec)
        parts = [examples_of(workload, 0, 0, 128, k, 2, "per_worker").tolist() for k in range(2)]
        assert [i for e in reads for i in e.examples] == parts[0] + parts[1]
    np.testing.assert_allclose(losses[0], losses[1], rtol=0, atol=1e-4)
    assert losses[0][-1] < losses[0][0]


def test_asynchronous_shares_are_recorded_for_whoever_took_them() -> None:
    for framework in ("torch", "tensorflow"):
        run = finished("parameter_server", framework, workers=2, global_batch=128)
        found = coverage(run.trace, EXAMPLES)
        assert (found[0].repeated, found[0].never) == ({}, [])
        assert {e.task for e in run.trace.all(Read)} == {"worker:0", "worker:1"}


def test_examples_of_steps_that_a_straggler_misses_are_never_read() -> None:
    """Backup workers: the shares of a worker that jumps ahead are read by nobody."""
    fields = {"slow": {"worker:2": 8.0}, "device_ms": 30, "global_batch": 120}
    run = finished("backup_workers", "torch", workers=3, **fields)
    assert run.result["examples_read"]["epoch 0"]["never"] > 100


@pytest.mark.parametrize(
    ("name", "framework", "says"),
    [
        ("parameter_server", "torch", "whoever is free takes the next share"),
        ("parameter_server", "tensorflow", "whoever is free takes the next share"),
        ("tensor_parallel", "torch", "compute the same examples"),
        ("pipeline_parallel", "torch", "compute the same examples"),
    ],
)
def test_where_no_worker_has_examples_of_its_own_it_cannot_have_a_part(
    name: str, framework: str, says: str
) -> None:
    with pytest.raises(SpecError, match=says) as refused:
        spec_for(name, framework=framework, sampler="per_worker")
    assert refused.value.field == "sampler" and "\n" not in str(refused.value)
