"""Training loops of a learner's own, as tutorials have them, watched by one line."""

import math
import re
from collections import defaultdict
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from course_lib import Run, start
from course_lib.cluster.task import Task
from course_lib.errors import TaskFailed
from course_lib.record.digest import Digest
from course_lib.record.events import Metric, Phase, Update
from course_lib.record.ledger import ledger
from course_lib.widgets.board.view import View
from tests import own_loops
from tests.helpers import SUM_ORDER, compares_times, losses, of_times, usual

STEP = ["read", "compute", "reduce", "apply"]


def phases(run: Run, task: str = "worker:0") -> dict[int, list[str]]:
    """Step -> what the task did in it, in order. No phase begins before the last has ended."""
    found, end = defaultdict(list), 0.0
    for p in run.trace.all(Phase, task):
        assert end <= p.start <= p.end, p
        end = p.end
        found[p.step].append(p.what)
    return dict(found)


def check_curve(run: Run, told: dict[str, list[float]]) -> None:
    """Each worker's losses are those that its loop had, and are a curve with as many steps."""
    for task, mine in told.items():
        np.testing.assert_allclose(losses(run.trace, task), mine, rtol=1e-5)
    digest = Digest(run.spec, run.trace).update(over=True)
    steps = len(told["worker:0"])
    assert digest.steps_done == steps and math.isfinite(digest.zero)
    # of a few steps, of which only the last may come after the clock has started, it is 0
    rate = digest.losses.rate()
    assert rate is not None and digest.updates.staleness == {0: steps}
    view = View({"mine": run})
    view.update()
    assert re.match(rf"\*\*mine\*\* is finished: step {steps}, loss", view.headline())
    assert ("examples/s" in view.sides[0].summary()) == (rate > 0)


def test_the_loop_of_pytorchs_tutorial_on_ddp_draws_lanes_and_a_curve() -> None:
    run = start(own_loops.torch_ddp, framework="torch", workers=2).wait(120)
    values = run.values
    check_curve(run, {task: value["losses"] for task, value in values.items()})
    assert values["worker:0"]["weights"] == values["worker:1"]["weights"]
    assert phases(run) == dict.fromkeys(range(12), STEP)
    metrics = run.trace.all(Metric, "worker:1", name="loss")
    assert [m.samples for m in metrics] == [40 * n for n in range(1, 13)]  # 20 of each worker
    updates = run.trace.all(Update, "worker:0")
    assert [(u.read, u.written, u.gradients) for u in updates[:2]] == [(0, 1, 2), (1, 2, 2)]


@compares_times()
def test_emulated_device_time_and_a_straggler_hold_for_a_loop_of_ones_own() -> None:
    fields = {"device_ms": 10, "slow": {"worker:1": 4}}
    run = start(own_loops.torch_ddp, framework="torch", workers=2, **fields).wait(120)
    assert usual(run.trace, "worker:0", "compute") >= 0.01
    assert usual(run.trace, "worker:1", "compute") >= 0.04
    with of_times():
        idle = Digest(run.spec, run.trace).update(over=True).idle
        assert idle["worker:0"] > 0.4 > 0.2 > idle["worker:1"]


def test_collectives_that_a_loop_calls_itself_are_seen_and_evaluations_are_not() -> None:
    run = start(own_loops.torch_by_hand, framework="torch", workers=2).wait(120)
    found = phases(run)
    for step in found.values():  # two gradients; dividing them may take long enough to be seen
        assert [what for what in step if what != "compute"] == ["reduce", "reduce", "apply"]
        assert step[0] == "compute"
    told = [m.value for m in run.trace.all(Metric, "worker:0", name="loss")]
    whole = run.values["worker:0"]
    # the halves as `backward` saw them, divided by two; then as the loop says itself
    np.testing.assert_allclose(told, [*np.divide(whole[:3], 2), *whole[3:]], rtol=1e-5)
    assert run.trace.all(Metric, "worker:0")[-1].samples == 6 * 8 * 2


def test_fit_of_keras_draws_lanes_and_the_loss_of_each_batch() -> None:
    run = start(own_loops.keras_fit, framework="tensorflow", workers=2).wait(120)
    check_curve(run, {task: losses(run.trace, task) for task in run.values})
    value = run.values["worker:0"]
    found = phases(run)
    # two epochs of 300, 300 and 200 examples; what follows an evaluation is not read
    rest = ["compute", "apply"]
    assert found == {n: rest if n == 3 else ["read", *rest] for n in range(6)}
    epochs = np.reshape(losses(run.trace), (2, 3))
    np.testing.assert_allclose(epochs @ [3 / 8, 3 / 8, 2 / 8], value["losses"], rtol=1e-5)
    assert value["samples"] == 2 * 800 * 2


@pytest.mark.parametrize(
    ("loop", "phases_of_a_step", "batch"),
    [
        ("keras_fit_mirrored", STEP, 200),
        # XLA has no clocks, and nobody counts examples: the run's batch counts
        ("keras_fit_xla", ["read", "compute"], 128),
    ],
)
def test_fit_is_watched_under_a_strategy_and_under_xla(
    loop: str, phases_of_a_step: list[str], batch: int
) -> None:
    run = start(getattr(own_loops, loop), framework="tensorflow", workers=1).wait(120)
    assert phases(run) == dict.fromkeys(range(4), phases_of_a_step)
    # the loss of each batch, where `fit` tells the mean over the epoch so far
    assert np.mean(losses(run.trace)) == pytest.approx(run.values["worker:0"]["losses"][0], 1e-5)
    assert run.values["worker:0"]["samples"] == 4 * batch


def test_the_exchanges_of_fsdp_are_seen_between_parts_of_computing() -> None:
    run = start(own_loops.torch_fsdp, framework="torch", workers=2).wait(120)
    np.testing.assert_allclose(losses(run.trace), run.values["worker:0"], rtol=1e-5)
    for step in phases(run).values():
        # an all-gather and a reduce-scatter of each layer at least
        assert step[:2] == ["read", "compute"] and step[-1] == "apply"
        assert step.count("reduce") >= 4


@pytest.mark.parametrize("loop", ["tensorflow_mirrored", "tensorflow_workers"])
def test_the_loops_of_tensorflows_tutorials_draw_lanes_and_a_curve(loop: str) -> None:
    workers = 2 if loop == "tensorflow_workers" else 1
    fields = {"device_ms": 5, "slow": {"worker:0": 2}}
    run = start(getattr(own_loops, loop), framework="tensorflow", workers=workers, **fields).wait(
        120
    )
    check_curve(run, {task: value["losses"] for task, value in run.values.items()})
    found = phases(run)
    assert found == dict.fromkeys(range(len(found)), STEP)
    assert usual(run.trace, "worker:0", "compute") >= 0.01
    value = run.values["worker:0"]
    batch = 80 if workers == 2 else 100
    assert value["samples"] == batch * len(value["losses"])


GANS = [
    ("torch", 2, {}),
    ("torch", 2, {"critic_updates": 3}),
    ("tensorflow", 2, {}),
    ("tensorflow", 1, {"critic_updates": 3, "replicas": 2}),
]


@pytest.mark.parametrize(("framework", "workers", "fields"), GANS)
def test_a_gan_is_watched_by_name_and_ends_with_the_weights_of_a_plain_script(
    framework: str, workers: int, fields: dict[str, int]
) -> None:
    loop, critic = getattr(own_loops, f"{framework}_gan"), fields.get("critic_updates", 1)
    plain = start(partial(loop, critic_updates=critic, watch=False), framework=framework, workers=1)
    run = start(partial(loop, **fields), framework=framework, workers=workers).wait(240)
    alone, steps = plain.wait(240).values["worker:0"], own_loops.GAN_STEPS
    values = run.values
    for name, updates in (("generator", steps), ("critic", critic * steps)):
        for task, value in values.items():
            for mine, its in zip(value["weights"][name], alone["weights"][name], strict=True):
                np.testing.assert_allclose(mine, its, **SUM_ORDER)
            told = [m.value for m in run.trace.all(Metric, task, name=f"{name} loss")]
            np.testing.assert_allclose(told, value["losses"][name], rtol=1e-5)
            made = [(u.read, u.written) for u in run.trace.all(Update, task, variables=name)]
            assert made == [(n, n + 1) for n in range(updates)]
        # of a step the mean over workers, which have half of each batch
        told = [value["losses"][name] for value in values.values()]
        np.testing.assert_allclose(np.mean(told, axis=0), alone["losses"][name], rtol=1e-5)
    assert {u.gradients for u in run.trace.all(Update)} == {2}
    assert {u.step for u in run.trace.all(Update)} == set(range(steps))
    count = (1 + critic) * steps * workers
    assert ledger(run.trace) == (count, count, {}, 0, ())
    seen = [m.samples for m in run.trace.all(Metric, "worker:0", name="generator loss")]
    # those that the generator is given: in TensorFlow for its update, in PyTorch in each pass
    given = own_loops.GAN_BATCH * (critic if framework == "torch" else 1)
    assert seen == [given * (n + 1) for n in range(steps)]
    size = sum(w.nbytes for weights in alone["weights"].values() for w in weights)
    copies = fields.get("replicas", 1)
    held = Digest(run.spec, run.trace).update(over=True).memory["worker:0"]
    assert held["parameters"] == held["gradients"] == copies * size
    assert held["optimizer_state"] == pytest.approx(2 * copies * size, rel=0.01)  # of Adam
    for step in phases(run).values():
        assert step[:3] == ["read", "compute", "reduce"] and step.count("apply") > critic
    view = View({"gan": run})
    view.update()
    assert re.match(
        rf".* step {steps}, generator loss [\d.]+, critic loss [\d.]+ ", view.headline()
    )
    assert f"{critic * steps} of critic" in view.table() and f"{steps} of generator" in view.table()


@pytest.mark.parametrize("both_at_once", [False, True])
def test_the_losses_of_an_actor_and_a_critic_are_told_apart_before_either_is_updated(
    both_at_once: bool,
) -> None:
    loop = partial(own_loops.torch_pair, both_at_once=both_at_once)
    run = start(loop, framework="torch", workers=1).wait(120)
    for name, mine in run.values["worker:0"].items():
        np.testing.assert_allclose(losses(run.trace, name=f"{name} loss"), mine, rtol=1e-5)
    assert {u.variables for u in run.trace.all(Update)} == {"actor", "critic"}  # and no teacher
    assert ledger(run.trace) == (8, 8, {}, 0, ())
    # the teacher's pass is computing, although it is under `no_grad`
    assert [step[:2] for step in phases(run).values()] == [["read", "compute"]] * 4


@pytest.mark.parametrize("loop", ["torch_wasserstein", "tensorflow_pair"])
def test_a_step_may_have_several_updates_of_one_optimizer(loop: str) -> None:
    run = start(getattr(own_loops, loop), framework=loop.split("_")[0], workers=1).wait(120)
    for name, mine in run.values["worker:0"].items():
        np.testing.assert_allclose(losses(run.trace, name=f"{name} loss"), mine, rtol=1e-5)
    first, second = run.values["worker:0"]
    made = [u.variables for u in run.trace.all(Update)]
    assert made == [second, second, first] * 4
    assert ledger(run.trace) == (12, 12, {}, 0, ())


def test_a_sparse_gradient_is_watched_and_counted() -> None:
    run = start(own_loops.torch_sparse, framework="torch", workers=1).wait(120)
    np.testing.assert_allclose(losses(run.trace), run.values["worker:0"], rtol=1e-5)
    held = Digest(run.spec, run.trace).update(over=True).memory["worker:0"]
    assert held["parameters"] == 4 * 100 * 4 > 2 * held["gradients"] > 0


@pytest.mark.parametrize("framework", ["torch", "tensorflow"])
def test_the_gan_of_the_page_on_loops_runs(framework: str) -> None:
    page = (Path(__file__).parents[2] / "notebooks" / "reference" / "your_loop.md").read_text()
    (code,) = re.findall(rf"^def {framework}_gan.*?\n(?=\n\n\S)", page, re.DOTALL | re.MULTILINE)
    space: dict[str, Any] = {}
    exec(code.replace("range(300)", "range(4)"), space)
    run = start(space[f"{framework}_gan"], framework=framework, workers=2).wait(240)
    assert list(Digest(run.spec, run.trace).update(over=True).by_name) == [
        "generator loss",
        "critic loss",
    ]
    assert run.trace.all(Metric, "worker:0", name="critic loss")[-1].samples == 4 * 2 * 32
    assert ledger(run.trace) == (16, 16, {}, 0, ())


def refused(work: Any, framework: str) -> str:
    with pytest.raises(TaskFailed) as caught:
        start(work, framework=framework, workers=1).wait(60)
    return caught.value.reason


def test_what_cannot_be_watched_is_refused_in_a_sentence() -> None:
    def nothing(task: Task) -> None:
        task.watch([1, 2])

    def twice(task: Task) -> None:
        import torch

        model = torch.nn.Linear(2, 2)
        for _ in range(2):
            task.watch(model, torch.optim.SGD(model.parameters()))

    def no_optimizer(task: Task) -> None:
        import torch

        task.watch(torch.nn.Linear(2, 2))

    def late(task: Task) -> None:
        import torch

        model = torch.nn.Linear(2, 2)
        task.watch(model, torch.optim.SGD(model.parameters())).loss(1.0)

    def no_pair(task: Task) -> None:
        import torch

        task.watch(critic=torch.nn.Linear(2, 2))

    def nobody_learns(task: Task) -> None:
        import torch

        task.watch(teacher=(torch.nn.Linear(2, 2), None))

    def exchanged(task: Task) -> None:
        import torch

        g, d = torch.nn.Linear(2, 2), torch.nn.Linear(2, 1)
        g_opt, d_opt = (torch.optim.SGD(each.parameters()) for each in (g, d))
        task.watch(generator=(g, d_opt), critic=(d, g_opt))

    def other_name(task: Task) -> None:
        import torch

        model = torch.nn.Linear(2, 2)
        task.watch(critic=(model, torch.optim.SGD(model.parameters()))).loss(1.0)

    def below(task: Task) -> None:
        import tensorflow as tf

        model = own_loops.keras_model()
        tf.function(task.watch(model).step(lambda: model(tf.ones([1, 20]))))()

    assert "model='list': a torch.nn.Module" in refused(nothing, "python")
    assert "watches one loop" in refused(twice, "torch")
    assert "optimizer=None: the torch.optim.Optimizer" in refused(no_optimizer, "torch")
    assert "watch='critic': " in refused(no_pair, "torch")
    assert "optimizer=None: the torch.optim" in refused(nobody_learns, "torch")
    assert "optimizer='SGD': " in refused(exchanged, "torch")
    assert "name='': allowed: critic" in refused(other_name, "torch")
    assert "optimizer.step()" in refused(late, "torch")
    assert "above @tf.function" in refused(below, "tensorflow")
    said = refused(own_loops.tensorflow_xla, "tensorflow")
    assert "XLA compiles no clocks" in said and "\n" not in said
