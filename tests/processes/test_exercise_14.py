"""The capstone: workloads and plans, wrong ones and unusual right ones, each carried out."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch.distributed as dist
from torch import nn

from course_lib import Workload, strategy
from course_lib.torch import Step, join
from tests.answers import Answers

PAGES = str(Path(__file__).parents[2] / "notebooks")
ANSWERS = Answers("14_capstone", "exercise_14", varies=True, sample=5)
wrong, right = ANSWERS.wrong, ANSWERS.right
pytestmark = pytest.mark.xdist_group("capstone")  # runs that are timed, one after the other

# --- my_workload ---


def around_centers(width: int = 600, classes: int = 8) -> Workload:
    """What the solution has, to be changed."""
    rng = np.random.default_rng(0)
    y = rng.integers(0, classes, 6000)
    x = (rng.normal(size=(classes, 32))[y] + 1.5 * rng.normal(size=(6000, 32))).astype("float32")
    return workload(x, y, lambda: layers(width, classes))


def layers(width: int, classes: int) -> Any:
    return nn.Sequential(
        nn.Linear(32, width), nn.ReLU(), nn.Linear(width, 60), nn.ReLU(), nn.Linear(60, classes)
    )


def workload(x: Any, y: Any, model: Any, **more: Any) -> Workload:
    return Workload(
        "capstone", train=(x[:5120], y[:5120]), test=(x[5120:], y[5120:]), torch=model, **more
    )


@right("my_workload")
def convolutions() -> Any:
    """Bars in small pictures, upright or lying."""
    rng = np.random.default_rng(0)
    y = rng.integers(0, 2, 6000)
    x = rng.normal(size=(6000, 1, 8, 8)).astype("float32")
    for picture, upright, at in zip(x, y, rng.integers(0, 8, 6000), strict=True):
        picture[0, :, at] += 2.0 * upright
        picture[0, at, :] += 2.0 * (1 - upright)

    def model() -> Any:
        return nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(1024, 60),
            nn.ReLU(),
            nn.Linear(60, 2),
        )

    return workload(x, y, model)


@right("my_workload")
def words_of_a_language() -> Any:
    """An embedding: the class is the letter that comes most often."""
    rng = np.random.default_rng(0)
    y = rng.integers(0, 10, 6000)
    x = np.where(rng.random((6000, 12)) < 0.5, y[:, None], rng.integers(0, 1000, (6000, 12)))

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.out = nn.Embedding(1000, 64), nn.Linear(64, 10)

        def forward(self, x: Any) -> Any:
            return self.out(self.embed(x).sum(1))

    return workload(x, y, Model)


@right("my_workload")
def few_classes() -> Any:
    return around_centers(900, 3)


@wrong("my_workload")
def nothing() -> Any:
    around_centers()


@wrong("my_workload")
def a_model() -> Any:
    return layers(600, 8)


@wrong("my_workload")
def numbers_to_predict() -> Any:
    x = np.random.default_rng(0).normal(size=(6000, 32)).astype("float32")
    return workload(x, x[:, :1] * 2, lambda: layers(600, 1))


@wrong("my_workload")
def a_small_model() -> Any:
    return around_centers(40)


@wrong("my_workload")
def a_large_model() -> Any:
    return around_centers(6000)


@wrong("my_workload")
def classes_without_a_rule() -> Any:
    rng = np.random.default_rng(0)
    return workload(
        rng.normal(size=(6000, 32)).astype("float32"),
        rng.integers(0, 8, 6000),
        lambda: layers(600, 8),
    )


@wrong("my_workload")
def one_class_is_nearly_all() -> Any:
    rng = np.random.default_rng(0)
    y = (rng.random(6000) < 0.02).astype(int)
    return workload(rng.normal(size=(6000, 32)).astype("float32"), y, lambda: layers(600, 2))


@wrong("my_workload")
def other_inputs_than_the_model_takes() -> Any:
    rng = np.random.default_rng(0)
    return workload(
        rng.normal(size=(6000, 31)).astype("float32"),
        rng.integers(0, 8, 6000),
        lambda: layers(600, 8),
    )


@wrong("my_workload")
def a_model_in_place_of_its_function() -> Any:
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(6000, 32)).astype("float32"), rng.integers(0, 8, 6000)
    return Workload("capstone", train=(x[:5120], y[:5120]), test=(x[5120:], y[5120:]), torch=3)  # type: ignore[arg-type]


@wrong("my_workload")
def no_data() -> Any:
    return Workload("capstone", torch=lambda: layers(600, 8))  # type: ignore[call-arg]


# --- plan ---


@strategy(wire="2(n-1)/n S / 8")
def every_eighth(task: Any) -> Any:
    """Local SGD."""
    join(task)
    step = Step(task, apart=True)
    while step.begin():
        inputs, targets = step.read(task.index, task.spec.workers)
        with step.computing():
            loss = step.backward(inputs, targets)
        with step.applying():
            if step.unscale(loss):
                step.optimizer.step()
        if step.number % 8 == 7:
            with step.reducing():
                for parameter in step.parameters:
                    dist.all_reduce(parameter.data)
                    parameter.data /= task.spec.workers
        step.done(loss)
    return step.result()


SIZE = 4 * 56_348  # bytes of the model
BECAUSE = "The line is thin, so workers average only now and then. " * 4


def planned(**changes: Any) -> dict[str, Any]:
    """What the solution does, to be changed."""
    plan = {
        "workload": around_centers(),
        "strategy": every_eighth,
        "fields": {},
        "step_ms": 120.0,
        "rack_bytes": 5 * 1.5 * SIZE * 1.1,
        "memory_bytes": 2 * SIZE,
        "because": BECAUSE,
    }
    return plan | changes


def page(name: str) -> Any:
    if PAGES not in sys.path:
        sys.path.append(PAGES)
    return getattr(__import__(f"strategies.{name}", fromlist=[name]), name)


@right("plan")
def the_largest_of_each_gradient() -> Any:
    sent = 40 * 0.06 * SIZE * 1.35
    return planned(strategy=page("top_k"), step_ms=102, rack_bytes=sent, memory_bytes=3 * SIZE)


@right("plan")
def with_adamw() -> Any:
    fields = {"optimizer": "adamw", "learning_rate": 0.003}
    return planned(fields=fields, memory_bytes=np.float64(4 * SIZE))


@right("plan")
def outer_momentum() -> Any:
    return planned(strategy=page("diloco"), memory_bytes=4 * SIZE)


@wrong("plan")
def returns_nothing() -> Any:
    planned()


@wrong("plan")
def without_a_prediction() -> Any:
    plan = planned()
    del plan["memory_bytes"]
    return plan


@wrong("plan")
def with_conditions_of_its_own() -> Any:
    return planned(fields={"hosts": 1})


@wrong("plan")
def with_eight_workers() -> Any:
    return planned(fields={"workers": 8})


@wrong("plan")
def all_in_one_rack() -> Any:
    return planned(fields={"placement": {"worker:2": 0, "worker:3": 0}})


@wrong("plan")
def half_a_batch() -> Any:
    return planned(fields={"global_batch": 64.5})


@wrong("plan")
def nobody_is_late() -> Any:
    return planned(fields={"faults": ["slow worker:0=2"]})


@wrong("plan")
def a_text_for_a_number() -> Any:
    return planned(step_ms="120")


@wrong("plan")
def without_reasons() -> Any:
    return planned(because="It is fast.")


@wrong("plan")
def a_strategy_that_there_is_not() -> Any:
    return planned(strategy="local")


@wrong("plan")
def the_plain_all_reduce() -> Any:
    return planned(strategy="multi_worker_mirrored")


@wrong("plan")
def across_the_model() -> Any:
    return planned(strategy="tensor_parallel")


@wrong("plan")
def on_one_device() -> Any:
    return planned(strategy="one_device", fields={"workers": 1})


@wrong("plan")
def a_huge_batch() -> Any:
    fields = {"global_batch": 1280, "learning_rate": 0.1}
    return planned(strategy="multi_worker_mirrored", fields=fields)


@wrong("plan")
def bits() -> Any:
    return planned(rack_bytes=8 * 5 * 1.5 * SIZE * 1.1)


@wrong("plan")
def bytes_of_a_step() -> Any:
    return planned(rack_bytes=5 * 1.5 * SIZE * 1.1 / 40)


@wrong("plan")
def forgets_the_gradients() -> Any:
    return planned(memory_bytes=SIZE)


@wrong("plan")
def counts_parameters_and_no_bytes() -> Any:
    return planned(memory_bytes=SIZE / 2)


@wrong("plan")
def a_step_in_seconds() -> Any:
    return planned(step_ms=0.12)


@wrong("plan")
def time_of_all_steps() -> Any:
    return planned(step_ms=4800)


@wrong("plan")
def the_function_for_the_workload() -> Any:
    return planned(workload=around_centers)


@wrong("plan")
def momentum_with_the_rate_of_sgd() -> Any:
    fields = {"optimizer": "momentum", "learning_rate": 0.6}
    return planned(fields=fields, memory_bytes=3 * SIZE)


@wrong("plan")
def another_model() -> Any:
    plan = planned()
    return plan | {"workload": around_centers(40)}


test_wrong_answers_are_rejected_in_words = ANSWERS.rejected()
test_right_answers_pass = ANSWERS.accepted()
test_there_are_enough_of_each = ANSWERS.enough()
