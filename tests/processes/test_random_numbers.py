"""Random numbers of a learner's own: in the dataset, the model and the loss. Each share of a batch
draws numbers of its own in each step; a run that is repeated or resumed draws the same ones.
"""

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from course_lib import Run, Workload, start
from course_lib.workloads import order
from tests.helpers import SUM_ORDER, compares_times, of_times, planned, spec_for
from tests.own_models import LARGEST

STEPS, HALF, BATCH, RATE = 6, 3, 8, 0.1


class Augmented:
    """Examples that are noisy each time they are read."""

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        import random

        noise = random.gauss(0, 0.1) + np.random.normal(0, 0.1, 20)
        return LARGEST["train"][0][index] + noise, LARGEST["train"][1][index]


def torch_noisy() -> Any:
    class Drawn(nn.Module):
        def forward(self, values: Any) -> Any:
            if self.training:
                print(f"drew {torch.rand(()).item():.6f}", flush=True)
            return values

    first = nn.Linear(20, 32), Drawn(), nn.Dropout(0.5), nn.Linear(32, 16)
    return nn.Sequential(*first, nn.ReLU(), nn.Linear(16, 8), Drawn(), nn.Linear(8, 4))


def torch_loss(outputs: Any, targets: Any) -> Any:
    return nn.functional.cross_entropy(outputs + 0.1 * torch.randn_like(outputs), targets)


def keras_noisy() -> Any:
    import keras
    import tensorflow as tf
    from keras import layers

    # Keras has no types: with some of its versions its classes are Any
    class Drawn(keras.Layer):  # type: ignore[misc, unused-ignore]
        def __init__(self) -> None:
            super().__init__()
            self.seed = keras.random.SeedGenerator(1)

        def call(self, values: Any, training: bool = False) -> Any:
            if not training:
                return values
            with tf.control_dependencies(
                [tf.print("drew", keras.random.uniform((), seed=self.seed))]
            ):
                return tf.identity(values)

    return keras.Sequential([layers.Dense(32), Drawn(), layers.Dropout(0.5), layers.Dense(4)])


noisy = Workload(
    "noisy_of_draws",
    train=Augmented(),
    test=LARGEST["test"],
    torch=torch_noisy,
    tensorflow=keras_noisy,
    loss="cross_entropy",
    learning_rate=RATE,
)
noisier = Workload(
    "noisier_of_draws",
    train=Augmented(),
    test=LARGEST["test"],
    torch=torch_noisy,
    loss=torch_loss,
    learning_rate=RATE,
)


def trained(strategy: str, framework: str, **fields: Any) -> Run:
    own = noisier if framework == "torch" else noisy
    fields = {"workload": own, "workers": 2, "global_batch": BATCH, "steps": STEPS, **fields}
    with start(strategy, framework=framework, **fields) as run:
        return run.wait(120)


def draws(run: Run) -> list[set[str]]:
    """What each task drew in its model."""
    logs = [run.log(task) for task in run.spec.tasks]
    return [set(re.findall(r"drew ([\d.e-]+)", log)) for log in logs]


ROWS = [  # how many of each step are different
    ("torch", "one_device", 2),
    ("torch", "multi_worker_mirrored", 4),
    ("torch", "fully_sharded", 4),
    ("torch", "central_storage", 4),
    ("torch", "pipeline_parallel", 4),  # in two stages of a layer, for two microbatches
    ("torch", "tensor_parallel", 2),  # alike on both workers
    ("tensorflow", "mirrored", 2),
    ("tensorflow", "multi_worker_mirrored", 2),
    ("tensorflow", "sync_parameter_server", 2),
]


@pytest.mark.sample(4)
@pytest.mark.parametrize(("framework", "strategy", "count"), ROWS)
def test_workers_draw_apart_and_a_resumed_run_draws_as_one_that_was_not_disturbed(
    framework: str, strategy: str, count: int
) -> None:
    fields: dict[str, Any] = {"workers": 1} if strategy == "one_device" else {}
    fields |= {"accumulate": 2} if strategy == "pipeline_parallel" else {}
    whole = trained(strategy, framework, **fields)
    half = trained(strategy, framework, **fields, steps=HALF, checkpoint_every=HALF)
    rest = trained(strategy, framework, **fields, resume=half.run_dir)
    assert rest.result["parameter_digest"] == whole.result["parameter_digest"]
    all_of, first, last = (set[str]().union(*draws(run)) for run in (whole, half, rest))
    assert len(all_of) == STEPS * count
    assert first < all_of and len(first) == HALF * count
    assert first | last >= all_of  # what is drawn to see the shapes of a pipeline is beside them
    if strategy == "tensor_parallel":
        assert draws(whole)[0] == draws(whole)[1]
    elif framework == "torch" and strategy != "one_device":
        assert not draws(whole)[0] & draws(whole)[1]


def by_hand(seed: int) -> list[np.ndarray]:
    """What two workers' training comes to, in one process and without the library's steps."""
    torch.manual_seed(seed)
    model = torch_noisy()
    optimizer = torch.optim.SGD(model.parameters(), RATE)
    spec = spec_for("multi_worker_mirrored", framework="torch", workload=noisier, workers=2)
    spec = spec.model_copy(update={"global_batch": BATCH, "seed": seed})
    for step in range(STEPS):
        for share in range(2):
            python, numpy, torchs = np.random.SeedSequence([seed, step, share]).generate_state(3)
            __import__("random").seed(int(python))
            np.random.seed(numpy)
            torch.manual_seed(int(torchs))
            pieces = order.pieces(spec, noisier.train, step, share, 2)
            inputs, targets = noisier.train.take(np.concatenate([which for _, which in pieces]))
            outputs = model(torch.from_numpy(inputs))
            (torch_loss(outputs, torch.from_numpy(targets)) / 2).backward()
        optimizer.step()
        optimizer.zero_grad()
    return [each.detach().numpy() for each in model.parameters()]


@pytest.mark.parametrize(
    "strategy", ["multi_worker_mirrored", "fully_sharded", "sync_parameter_server"]
)
def test_two_workers_draw_what_a_plain_script_draws_for_their_shares(strategy: str) -> None:
    run = trained(strategy, "torch", seed=5)
    for found, expected in zip(run.model().parameters(), by_hand(5), strict=True):
        np.testing.assert_allclose(found.detach().numpy(), expected, **SUM_ORDER)


@compares_times()
def test_whoever_computes_a_share_draws_the_same_for_it() -> None:
    """Under `parameter_server` a fast worker may compute two shares of a step."""
    run = trained("parameter_server", "torch", slow={"worker:1": 3}, device_ms=10)
    mine, other, _ = draws(run)
    with of_times():
        assert len(mine) > len(other)
    assert mine | other == set[str]().union(*draws(trained("multi_worker_mirrored", "torch")))


def test_random_layers_follow_from_the_seed() -> None:
    ends = [trained("mirrored", "torch", seed=n).result["parameter_digest"] for n in (3, 3, 4)]
    assert ends[0] == ends[1] != ends[2] and len(set(ends[0].values())) == 1


def loss_with(draw: Callable[[], Any]) -> Callable[..., Any]:
    def loss(outputs: Any, targets: Any) -> Any:
        import tensorflow as tf

        with tf.control_dependencies([tf.print("drew", draw())]):
            return tf.reduce_mean(tf.keras.losses.sparse_categorical_crossentropy(targets, outputs))

    return loss


def keras_plain() -> Any:
    import keras

    return keras.Sequential([keras.layers.Dense(4, activation="softmax")])


def test_what_tf_random_draws_is_each_worker_s_own_and_the_plan_says_what_it_lacks() -> None:
    def uniform() -> Any:
        import tensorflow as tf

        return tf.random.uniform(())

    own = Workload("stateful", **LARGEST, tensorflow=keras_plain, loss=loss_with(uniform))
    runs = [trained("multi_worker_mirrored", "tensorflow", workload=own) for _ in range(2)]
    mine, other = draws(runs[0])
    assert len(mine) == len(other) == STEPS and not mine & other
    assert [mine, other] == draws(runs[1])
    assert "It draws with tf.random" in str(runs[0].plan)
    fields = {"framework": "tensorflow", "workload": noisy, "workers": 2}
    assert "draws with" not in str(planned("mirrored", **fields))
