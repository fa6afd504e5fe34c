"""Optimizers and accumulation in real processes: several workers do what one device does,
and both frameworks do the same.
"""

import functools
from typing import Any

import pytest

from course_lib import Run, RunSpec, start
from course_lib.strategies import catalog
from course_lib.strategies.optimizers import STATE, Optimizer
from tests.helpers import losses, losses_of

STEPS = 20
BATCH = 48
TOLERANCE = 1e-4  # of a loss: the order of additions differs, and nothing else
BFLOAT16 = 0.02  # a tpu rounds what it multiplies to 8 significant bits
WARM: dict[str, Any] = {"warmup_steps": 4}
KINDS: dict[str, dict[str, Any]] = {
    "momentum": {"optimizer": "momentum"},
    "adamw": {"optimizer": "adamw", "learning_rate": 0.01} | WARM,
}
SYNCHRONOUS = [
    (framework, strategy.name)
    for framework in ("torch", "tensorflow")
    for strategy in catalog.STRATEGIES.values()
    if strategy.jobs.get(framework)
    and not strategy.asynchronous
    and strategy.name not in ("one_device", "backup_workers", "mirrored" * (framework == "torch"))
]


@functools.cache
def trained(framework: str, strategy: str, kind: str, **more: Any) -> Run:
    fields = {"global_batch": BATCH, "steps": STEPS, "workload": "digits", **KINDS[kind], **more}
    if strategy != "one_device":
        fields["workers"] = 2
    if strategy == "tpu":
        fields["emulate"] = True
    with start(strategy, framework=framework, **fields) as run:
        return run.wait(150)


def curve(run: Run) -> list[float]:
    """The mean loss of each step, as the first task has it that knows it."""
    return next(found for task in run.spec.tasks if (found := losses(run.trace, task)))


@pytest.mark.sample(4)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("framework", "strategy"), SYNCHRONOUS)
def test_several_workers_do_what_one_device_does(framework: str, strategy: str, kind: str) -> None:
    alone, together = trained(framework, "one_device", kind), trained(framework, strategy, kind)
    close = BFLOAT16 if strategy == "tpu" else TOLERANCE
    assert curve(together) == pytest.approx(curve(alone), rel=close)
    assert curve(together)[-1] < 0.8 * curve(together)[0]


@pytest.mark.parametrize("kind", KINDS)
def test_both_frameworks_do_the_same(kind: str) -> None:
    torch, tensorflow = (trained(f, "one_device", kind) for f in ("torch", "tensorflow"))
    assert curve(tensorflow) == pytest.approx(curve(torch), rel=TOLERANCE)


@pytest.mark.parametrize(
    ("framework", "strategy"),
    [
        *((f, "one_device") for f in ("torch", "tensorflow")),
        *(row for row in SYNCHRONOUS if row[1] not in ("pipeline_parallel", "tpu")),
    ],
)
def test_a_batch_in_parts_is_the_batch(framework: str, strategy: str) -> None:
    whole = trained(framework, strategy, "momentum")
    parts = trained(framework, strategy, "momentum", accumulate=4)
    assert curve(parts) == pytest.approx(curve(whole), rel=TOLERANCE)


@pytest.mark.parametrize(
    ("framework", "strategy", "kind", "holders"),
    [
        ("torch", "multi_worker_mirrored", "adamw", 2),
        ("torch", "fully_sharded", "adamw", 1),
        ("torch", "central_storage", "momentum", 1),
        ("torch", "sync_parameter_server", "adamw", 1),
        ("tensorflow", "multi_worker_mirrored", "adamw", 2),
        ("tensorflow", "central_storage", "momentum", 1),
        ("tensorflow", "sync_parameter_server", "adamw", 1),
        ("tensorflow", "tensor_parallel", "adamw", 1),
    ],
)
def test_the_state_lives_where_the_parameters_live(
    framework: str, strategy: str, kind: str, holders: int
) -> None:
    result = trained(framework, strategy, kind).result
    slots = STATE[KINDS[kind]["optimizer"]]
    expected = {where: slots * held for where, held in result["variables_on"].items()}
    assert result["optimizer_state_on"] == expected
    if strategy != "tensor_parallel":  # the bias behind a cut by rows is on every device
        assert sum(expected.values()) == holders * slots * 4 * result["parameters"]


def leaps(task: Any) -> list[float]:
    """The largest change of a parameter, in learning rates, after ten updates that came at once; a
    hundred times.
    """
    from concurrent.futures import ThreadPoolExecutor

    import tensorflow as tf

    from course_lib.strategies.tensorflow.models import Optimizer as InGraph

    fields: dict[str, Any] = {"optimizer": "adamw", "learning_rate": 0.001}
    optimizer = InGraph(RunSpec(strategy="parameter_server", framework="tensorflow", **fields))
    value = tf.Variable(tf.zeros(20_000))
    state = optimizer.state_of(value)
    gradients = tf.unstack(tf.nn.relu(tf.random.stateless_normal([10, 20_000], (0, 0))))

    @tf.function(autograph=False)
    def update(gradient: Any) -> Any:
        with tf.control_dependencies(optimizer.apply(value, gradient, state, optimizer.at(0, 0))):
            return tf.constant(0)

    largest = []
    with ThreadPoolExecutor(len(gradients)) as pool:
        for _ in range(100):
            for each in (value, *state):
                each.assign(tf.zeros(20_000))
            list(pool.map(update, gradients))
            largest.append(float(tf.reduce_max(tf.abs(value))) / 0.001)
    return largest


def test_updates_of_adamw_that_come_at_once_never_leap() -> None:
    """A mean without its square would be divided by almost nothing. Each of ten steps is at
    most the root of ten rates long.
    """
    with start(leaps, framework="tensorflow", workers=1) as run:
        assert max(run.wait(60).result["worker:0"]) < 10 * 10**0.5


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("framework", "strategy"),
    [
        ("torch", "parameter_server"),
        ("tensorflow", "parameter_server"),
        ("torch", "stale_synchronous"),
        ("torch", "backup_workers"),
    ],
)
def test_where_updates_come_in_another_order_it_learns_too(
    framework: str, strategy: str, kind: str
) -> None:
    more = {} if strategy == "backup_workers" else {"ps": 2}
    run = trained(framework, strategy, kind, steps=60, **more)
    found = losses_of(run.trace)
    assert min(found) < 0.5 * found[0]  # how stale the last gradients are depends on the machine
    state = run.result["optimizer_state_on"]
    slots = STATE[KINDS[kind]["optimizer"]]
    assert len(state) == run.spec.ps
    assert sum(state.values()) == slots * 4 * run.result["parameters"]


def as_by_the_rules(task: Any) -> dict[str, float]:
    """The largest difference between PyTorch's own optimizers and our rules, which TensorFlow's
    runs go by, after 50 updates.
    """
    import torch

    from course_lib.strategies.torch.models import optimizer_of, set_rate

    found = {}
    for name in ("momentum", "adamw"):
        torch.manual_seed(0)
        spec = RunSpec(optimizer=name, steps=50, learning_rate=0.05, **WARM)
        rules, mine = Optimizer(spec), torch.randn(1000)
        state = [torch.zeros(1000) for _ in range(STATE[name])]
        theirs = mine.clone()
        optimizer = optimizer_of(spec, [theirs])
        for step, rate in enumerate(rules.rates):
            gradient = torch.randn(1000)
            changes = rules.changes(mine, gradient, state, float(rate), rules.corrections(step + 1))
            mine, *state = (a + b for a, b in zip([mine, *state], changes, strict=True))
            theirs.grad = gradient
            set_rate(optimizer, rate)
            optimizer.step()
        found[name] = float((mine - theirs).abs().max())
    return found


def test_the_rules_are_those_of_torch_optim() -> None:
    with start(as_by_the_rules, framework="torch", workers=1) as run:
        found = run.wait(60).values["worker:0"]
    assert found["momentum"] < 2e-5 and found["adamw"] < 2e-5
