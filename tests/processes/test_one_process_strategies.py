"""Many replicas in one TensorFlow process: what the trace, the variables and TensorFlow's own log
of where it ran what must show.
"""

import functools
import importlib
import itertools
import re
import statistics
import time
from collections import Counter
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from course_lib import RunSpec, Trace, start, workloads
from course_lib.errors import Unavailable
from course_lib.hardware import probe
from course_lib.record.events import Metric, Phase, Update
from course_lib.strategies.facts.one_machine import CENTRAL_STORAGE, MIRRORED, ONE_DEVICE, TPU
from course_lib.strategies.strategy import Standing
from tests.helpers import SUM_ORDER, examples_of, refused, spec_for

STEPS, BATCH = 30, 48
CPU = "/job:localhost/replica:0/task:0/device:CPU:"


# bfloat16 rounds every input of a multiplication at its 8th bit, so by up to 1 part in 512. Such
# errors differ in sign and mostly cancel, in a sum of 64 products as in 30 steps; a loss that is
# off by 1 part in 100 would be a mistake. Seen: up to 1 part in 270.
BFLOAT16: dict[str, Any] = {"rtol": 0.01}

SYNCHRONOUS = [
    ("mirrored", 2, {}),
    ("mirrored", 4, {}),
    ("mirrored", 3, {}),
    ("central_storage", 3, {}),
    ("tpu", 2, {"emulate": True}),  # in float32, which is not usual there
]
IDS = [f"{name}-{replicas}" for name, replicas, _ in SYNCHRONOUS]
FACTS = {strategy.name: strategy for strategy in (ONE_DEVICE, MIRRORED, CENTRAL_STORAGE, TPU)}


def watched(
    path: str, slow_replica: float = 0.0, make: str = "", average: str = ""
) -> Callable[[Any], dict[str, Any]]:
    """The role function at `path`, with TensorFlow's log of placements on; it also returns the
    weights of every copy.

    `slow_replica`: seconds by which the last replica is late in each step; `make`: another builder
    of steps; `average`: how the replicas of `mirrored` reduce.
    """

    def worker(task):
        import tensorflow as tf

        from course_lib.strategies.tensorflow import mirrored, models, tpu, training

        tf.debugging.set_log_device_placement(True)
        copies, loss_of = [], models.loss_of
        result = training.ReplicasStep.result

        def late(labels: Any, device: str) -> Any:
            if device != tf.distribute.get_strategy().extended.worker_devices[-1]:
                return labels
            return tf.ensure_shape(
                tf.numpy_function(lambda v: time.sleep(slow_replica) or v, [labels], labels.dtype),
                labels.shape,
            )

        def keeping(step):
            parts = [models.copies_of(variable) for variable in step.variables]
            copies.extend([part.numpy() for part in copy] for copy in zip(*parts, strict=True))
            return result(step)

        training.ReplicasStep.result = keeping
        if make:
            builder = getattr(tpu, make)
            tpu.make_step = lambda *given, compiler: builder(*given)
        if average:
            mirrored.reduction = lambda spec: average
        if slow_replica:
            models.loss_of = lambda workload: (
                lambda logits, classes: loss_of(workload)(logits, late(classes, logits.device))
            )
        module, _, function = path.partition(":")
        return getattr(importlib.import_module(module), function)(task) | {"copies": copies}

    return worker


class Ran:
    """What is left of a run: its result with all `copies` of the weights, its trace, and where
    TensorFlow placed which operations.
    """

    def __init__(self, result: dict[str, Any], trace: Trace, log: str) -> None:
        self.result, self.trace = result, trace
        self.losses = [metric.value for metric in trace.all(Metric, name="loss")]
        self.placed = Counter(re.findall(r"\((\w+)\): (/job:\S+)", log))

    def devices_of(self, operation: str) -> set[str]:
        return {device for name, device in self.placed if name == operation}


@functools.cache
def ran(
    name: str,
    replicas: int = 1,
    slow_replica: float = 0.0,
    make: str = "",
    average: str = "",
    **fields: Any,
) -> Ran:
    role = watched(FACTS[name].programs["tensorflow"]["worker"], slow_replica, make, average)
    options = {"global_batch": BATCH, "steps": STEPS, **fields}
    with start(role, framework="tensorflow", workers=1, replicas=replicas, **options) as run:
        result = run.wait(100).values["worker:0"]
        logs = [
            (run.run_dir / "tasks" / "worker-0" / log).read_text()
            for log in ("stdout.log", "stderr.log")
        ]
        return Ran(result, run.trace, "\n".join(logs))


def synchronous(name: str, replicas: int, fields: dict[str, Any]) -> Ran:
    return ran(name, replicas, **fields)


def devices(*numbers: int) -> set[str]:
    return {f"{CPU}{number}" for number in numbers}


# --- synchronous is synchronous ---


@pytest.mark.parametrize(("name", "replicas", "fields"), SYNCHRONOUS, ids=IDS)
def test_replicas_of_one_process_learn_what_one_device_learns(
    name: str, replicas: int, fields: dict[str, Any]
) -> None:
    alone, together = ran("one_device"), synchronous(name, replicas, fields)
    np.testing.assert_allclose(together.losses, alone.losses, **SUM_ORDER)
    for copy in together.result["copies"]:
        for ours, theirs in zip(copy, alone.result["copies"][0], strict=True):
            np.testing.assert_allclose(ours, theirs, **SUM_ORDER)


@pytest.mark.parametrize(("name", "replicas", "fields"), SYNCHRONOUS, ids=IDS)
def test_there_are_as_many_copies_as_it_says_and_they_end_equal_to_the_last_bit(
    name: str, replicas: int, fields: dict[str, Any]
) -> None:
    copies = synchronous(name, replicas, fields).result["copies"]
    assert len(copies) == (1 if name == "central_storage" else replicas)
    for copy in copies:
        for ours, first in zip(copy, copies[0], strict=True):
            np.testing.assert_array_equal(ours, first)


@pytest.mark.parametrize("name", ["mirrored", "central_storage"])
def test_the_update_waits_for_the_slowest_replica_in_every_step_and_is_the_same(name: str) -> None:
    late = 0.02
    slowed = ran(name, 3, slow_replica=late, steps=10)
    computed = [phase.end - phase.start for phase in slowed.trace.all(Phase, what="compute")]
    updated = [update.at for update in slowed.trace.all(Update, device=f"{CPU}0")]
    assert len(computed) == len(updated) == 10
    assert min(computed) >= late
    assert min(b - a for a, b in itertools.pairwise(updated)) >= late
    np.testing.assert_allclose(slowed.losses, ran("one_device").losses[:10], **SUM_ORDER)


def test_convolutions_on_many_replicas_too() -> None:
    alone = ran("one_device", workload="digits_cnn", steps=5)
    for name in ("mirrored", "central_storage"):
        np.testing.assert_allclose(
            ran(name, 2, workload="digits_cnn", steps=5).losses, alone.losses, **SUM_ORDER
        )


def test_hierarchical_copy_between_an_odd_number_of_devices_loses_a_gradient() -> None:
    """When this fails, TensorFlow has mended it, and the check in the facts of `mirrored` can
    go.
    """
    first, whole = (
        ran("mirrored", 3, steps=1, average="hierarchical_copy"),
        ran("one_device"),
    )
    workload = workloads.load(RunSpec())
    shares = [examples_of(workload, 0, 0, BATCH, k, 3) for k in range(3)]
    losses = [softmax_cross_entropy(workload, share) for share in shares]
    assert whole.losses[0] == pytest.approx(sum(losses) / 3, rel=1e-4)
    # the loss goes the way of the gradients
    assert first.losses[0] == pytest.approx(sum(losses[:2]) / 3, rel=1e-4)


def softmax_cross_entropy(workload: workloads.Workload, indices: np.ndarray) -> float:
    """The loss of the untrained model on some examples, with no framework."""
    w1, b1, w2, b2 = workload.initial_weights(0)
    logits = np.maximum(workload.train.inputs[indices] @ w1 + b1, 0) @ w2 + b2
    chosen = logits[np.arange(len(indices)), workload.train.targets[indices]]
    return float(np.mean(np.log(np.exp(logits).sum(axis=1)) - chosen))


# --- who does what, and where ---


@pytest.mark.parametrize(("name", "replicas", "fields"), SYNCHRONOUS, ids=IDS)
def test_every_device_that_holds_variables_applies_every_update_and_no_other_does(
    name: str, replicas: int, fields: dict[str, Any]
) -> None:
    done = synchronous(name, replicas, fields)
    holders = devices(0) if name == "central_storage" else devices(*range(replicas))
    for device in holders:
        updates = done.trace.all(Update, device=device)
        assert [(u.step, u.read, u.written, u.staleness, u.gradients) for u in updates] == [
            (n, n, n + 1, 0, replicas) for n in range(STEPS)
        ]
    assert len(done.trace.all(Update)) == STEPS * len(holders)
    # where TensorFlow says that it placed them
    assert done.devices_of("AssignSubVariableOp") == holders
    assert set(done.result["variables_on"]) == holders
    assert set(done.result["variables_on"].values()) == {4 * done.result["parameters"]}


def test_the_replicas_compute_the_gradients_and_not_the_host_of_central_storage() -> None:
    for name, replicas, computing in [
        ("mirrored", 4, devices(0, 1, 2, 3)),
        ("central_storage", 3, devices(1, 2, 3)),
    ]:
        assert ran(name, replicas).devices_of("ReluGrad") == computing


def test_a_program_compiled_by_xla_is_one_operation_on_each_core() -> None:
    done = ran("tpu", 2, emulate=True)
    assert done.devices_of("StatefulPartitionedCall") == devices(0, 1)
    # nothing of the backward pass is left for TensorFlow to place
    assert done.devices_of("ReluGrad") == set()
    assert ran("mirrored", 2).devices_of("ReluGrad") == devices(0, 1)


@pytest.mark.parametrize(("name", "replicas", "fields"), SYNCHRONOUS, ids=IDS)
def test_phases_of_a_step_follow_each_other(
    name: str, replicas: int, fields: dict[str, Any]
) -> None:
    slack = 1e-3  # the clock inside a TensorFlow graph is another one, converted
    phases = synchronous(name, replicas, fields).trace.all(Phase)
    order = ["read", "compute", "reduce", "apply"]
    assert [(p.task, p.step, p.what) for p in phases] == [
        ("worker:0", step, what) for step in range(STEPS) for what in order
    ]
    assert all(p.start <= p.end for p in phases)
    assert all(a.end <= b.start + slack for a, b in itertools.pairwise(phases))


# --- tpu ---


def test_bfloat16_changes_the_losses_by_its_rounding_and_by_no_more() -> None:
    done = ran("tpu", 2, emulate=True, precision="bfloat16")
    exact, rounded = ran("one_device").losses, done.losses
    np.testing.assert_allclose(rounded, exact, **BFLOAT16)
    off = [abs(a - b) / b for a, b in zip(rounded, exact, strict=True)]
    assert statistics.median(off) > 10 * SUM_ORDER["atol"]  # it did round
    # the parameters stay float32
    assert set(done.result["variables_on"].values()) == {4 * 4810}


def test_the_program_for_a_real_tpu_does_the_same_step_on_logical_devices() -> None:
    whole = ran("tpu", 2, make="one_program", emulate=True)
    np.testing.assert_allclose(whole.losses, ran("one_device").losses, **SUM_ORDER)
    assert whole.devices_of("AssignSubVariableOp") == devices(0, 1)


def test_without_a_tpu_it_is_unavailable_and_says_that_it_can_be_emulated() -> None:
    laptop: Any = SimpleNamespace(gpus=(), cuda_frameworks=(), tpu=False)
    with pytest.raises(Unavailable, match=r"TPUStrategy needs .*--emulate"):
        list(TPU.check(RunSpec(strategy="tpu", workers=1, replicas=2), laptop))
    emulated = RunSpec(strategy="tpu", workers=1, replicas=2, emulate=True)
    assert not list(TPU.check(emulated, laptop))
    real: Any = SimpleNamespace(tpu=True)
    assert not list(TPU.check(RunSpec(strategy="tpu", workers=1, replicas=2), real))
    assert (TPU.standing("tensorflow", laptop).reality, TPU.standing("torch", laptop).reality) == (
        "unavailable",
        "unavailable",
    )
    with pytest.raises(
        Unavailable,
        match=r"tpu with torch .*torch_xla.*--framework tensorflow",
    ):
        spec_for("tpu", framework="torch", workers=2, emulate=True)


# --- what can be asked for ---


def test_workers_of_a_strategy_in_one_process_are_its_replicas() -> None:
    for name in ("mirrored", "central_storage"):
        spec = spec_for(name, workers=2)
        assert (spec.workers, spec.replicas, spec.tasks) == (1, 2, ("worker:0",))


def test_nccl_without_a_gpu_for_each_replica_is_unavailable_before_any_process_starts() -> None:
    if len(probe().gpus) < 2:
        with pytest.raises(
            Unavailable,
            match=r"nccl is unavailable.* 2 of them",
        ):
            start("mirrored", workers=2, all_reduce="nccl")
    spec = RunSpec(strategy="mirrored", workers=1, replicas=2, all_reduce="nccl")
    two: Any = SimpleNamespace(gpus=("a", "b"), cuda_frameworks=("tensorflow",))
    assert not list(MIRRORED.check(spec, two))
    for gpus, frameworks in [(("a",), ("tensorflow",)), (("a", "b"), ("torch",)), ((), ())]:
        without: Any = SimpleNamespace(gpus=gpus, cuda_frameworks=frameworks)
        with pytest.raises(Unavailable):
            list(MIRRORED.check(spec, without))


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("mirrored", {"workers": 3, "all_reduce": "hierarchical_copy"}),
        ("central_storage", {"all_reduce": "nccl"}),
        ("tpu", {"all_reduce": "nccl", "emulate": True}),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(name: str, fields: dict[str, Any]) -> None:
    refused("one_process_strategies", name, **fields)


def test_one_replica_is_enough() -> None:
    for name in ("mirrored", "central_storage"):
        np.testing.assert_allclose(
            ran(name, 1, steps=3).losses, ran("one_device").losses[:3], **SUM_ORDER
        )


def test_what_is_real_is_said_for_each_framework_and_machine() -> None:
    laptop: Any = SimpleNamespace(gpus=(), cuda_frameworks=(), tpu=False)
    server: Any = SimpleNamespace(gpus=("a", "b"), cuda_frameworks=("tensorflow",), tpu=False)
    for strategy in (MIRRORED, CENTRAL_STORAGE):
        standing: Standing = strategy.standing("tensorflow", laptop)
        assert standing.reality == "measured"
        assert "logical CPU device" in standing.why
        assert "2 GPUs" in strategy.standing("tensorflow", server).why
        assert "real processes" in strategy.standing("torch", laptop).why


def test_replicas_take_gpus_only_if_there_is_one_for_each() -> None:
    def ask(task):
        import tensorflow as tf

        from course_lib.strategies.tensorflow.steps import use, use_several

        seen: dict[str, Any] = {}
        physical = {"GPU": ["gpu a", "gpu b", "gpu c"], "CPU": ["the cpu"]}
        tf.config.list_physical_devices = physical.get
        tf.config.set_visible_devices = lambda found, kind: seen.update(visible=list(found))
        tf.config.experimental.set_memory_growth = lambda gpu, on: None
        tf.config.set_logical_device_configuration = lambda cpu, parts: seen.update(
            parts=len(parts)
        )
        asked = []
        for device, count, host in [("gpu:1", 2, True), ("gpu:1", 3, True), ("cpu", 2, False)]:
            seen.clear()
            asked.append((use_several(device, count, host), dict(seen)))
        return [*asked, (use("gpu:2"), seen["visible"]), (use("cpu"), seen["visible"])]

    with start(ask, framework="tensorflow", workers=1) as run:
        assert run.wait(60).values["worker:0"] == [
            (["/gpu:0", "/gpu:1"], {"visible": ["gpu b", "gpu c"]}),
            (["/cpu:1", "/cpu:2", "/cpu:3"], {"visible": [], "parts": 4}),
            (["/cpu:0", "/cpu:1"], {"visible": [], "parts": 2}),
            ("/gpu:0", ["gpu c"]),
            ("/cpu:0", []),
        ]


@pytest.mark.parametrize("name", ["mirrored", "central_storage"])
def test_a_short_run_by_its_name_halves_the_loss(name: str) -> None:
    with start(name, workers=2, steps=50) as run:
        result, trace = run.wait(100).result, run.trace
    losses = [metric.value for metric in trace.all(Metric, name="loss")]
    assert losses[-1] == result["final_loss"] < losses[0] / 2
    holders = devices(0) if name == "central_storage" else devices(0, 1)
    assert result["update_applied_by"] == sorted(holders) == sorted(result["variables_on"])
    assert result["staleness"]["max"] == 0


# --- what learners write first: model.fit ---


def fit(strategy: Any, workload: workloads.Workload) -> tuple[list[float], list[np.ndarray]]:
    """`model.fit` under any of these strategies: only the model is made differently, inside the
    strategy's scope. Losses of all epochs, weights.
    """
    import keras

    with strategy.scope():
        layers = [
            keras.Input((64,)),
            keras.layers.Dense(
                32, "relu", kernel_initializer=keras.initializers.GlorotUniform(seed=1)
            ),
            keras.layers.Dense(10, kernel_initializer=keras.initializers.GlorotUniform(seed=2)),
        ]
        model = keras.Sequential(layers)
        model.compile(
            keras.optimizers.SGD(0.3), keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        )
    history = model.fit(
        workload.train.inputs[:1280],
        workload.train.targets[:1280],
        batch_size=64,
        epochs=3,
        shuffle=False,
        verbose=0,
    )
    return history.history["loss"], model.get_weights()


def test_keras_fit_under_mirrored_and_central_storage_learns_what_one_device_learns() -> None:
    def fits(task):
        import tensorflow as tf

        (cpu,) = tf.config.list_physical_devices("CPU")
        tf.config.set_logical_device_configuration(
            cpu, [tf.config.LogicalDeviceConfiguration()] * 3
        )
        workload = workloads.load(task.spec)
        mirrored = tf.distribute.MirroredStrategy(
            ["/cpu:0", "/cpu:1"], tf.distribute.HierarchicalCopyAllReduce()
        )
        central = tf.distribute.experimental.CentralStorageStrategy(
            compute_devices=["/cpu:1", "/cpu:2"], parameter_device="/cpu:0"
        )
        return [
            fit(strategy, workload)
            for strategy in (tf.distribute.OneDeviceStrategy("/cpu:0"), mirrored, central)
        ]

    with start(fits, framework="tensorflow", workers=1) as run:
        (
            (losses, weights),
            (mirrored_losses, mirrored_weights),
            (central_losses, central_weights),
        ) = run.wait(100).values["worker:0"]
    assert losses[-1] < losses[0] / 2
    for ours in (mirrored_weights, central_weights):
        for a, b in zip(ours, weights, strict=True):
            np.testing.assert_allclose(a, b, **SUM_ORDER)
    np.testing.assert_allclose(mirrored_losses, losses, **SUM_ORDER)
    # It trains right but reports wrong: both replicas add to the running sums of Keras' metrics,
    # which are then added up, and so doubled, in each step. What is shown is mostly the loss of an
    # epoch's first batch. When this fails, Keras 3 has mended it.
    assert central_losses[0] > 1.1 * losses[0]
