"""What learners do wrong in distributed code: each function of `TENSORFLOW` and `TORCH` fails."""

import os
import socket
from collections.abc import Callable
from typing import Any

from course_lib.cluster.task import Task
from tests.own_loops import keras_model

Mistake = Callable[..., Any]


def classes() -> tuple[Any, Any]:
    """128 examples of four classes, as `keras_model` takes them."""
    import numpy as np

    random = np.random.default_rng(0)
    return random.random((128, 20), np.float32), random.integers(0, 4, 128)


def workers() -> Any:
    import tensorflow as tf

    return tf.distribute.MultiWorkerMirroredStrategy()


def mirrored() -> Any:
    """A strategy of two logical CPUs."""
    import tensorflow as tf

    (cpu,) = tf.config.list_physical_devices("CPU")
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
    return tf.distribute.MirroredStrategy(["cpu:0", "cpu:1"])


def fit_on_several_workers() -> None:
    with workers().scope():
        model = keras_model("sgd")
    model.fit(*classes(), 64, verbose=0)


def train_on_batch_on_several_workers() -> None:
    with workers().scope():
        model = keras_model("sgd")
    model.train_on_batch(*classes())


def call_outside_of_run(strategy: Any) -> None:
    import tensorflow as tf

    with strategy.scope():
        model = keras_model()
    dataset = tf.data.Dataset.from_tensor_slices(classes()[0]).batch(64)
    options = tf.data.Options()
    policy = tf.data.experimental.AutoShardPolicy.DATA
    options.experimental_distribute.auto_shard_policy = policy
    for batch in strategy.experimental_distribute_dataset(dataset.with_options(options)):
        model(batch)


def call_outside_of_run_on_workers() -> None:
    call_outside_of_run(workers())


def call_outside_of_run_mirrored() -> None:
    call_outside_of_run(mirrored())


def loss_along_an_axis() -> None:
    import tensorflow as tf

    strategy = workers()
    strategy.reduce("SUM", strategy.run(tf.reduce_sum, args=(tf.ones(3),)), axis=0)


def strategy_after_a_tensor() -> None:
    import tensorflow as tf

    tf.ones(3) + 1
    workers()


def devices_after_a_tensor() -> None:
    import tensorflow as tf

    tf.ones(3) + 1
    mirrored()


def model_outside_of_the_scope() -> None:
    strategy, model = mirrored(), keras_model()
    with strategy.scope():
        model.compile("sgd", "mse")
    x, _ = classes()
    model.fit(x, x[:, :4], verbose=0)


def random_numbers_without_a_seed() -> None:
    import keras
    import tensorflow as tf

    strategy = workers()
    step = tf.function(lambda: strategy.run(lambda: keras.random.normal((3,))))
    step()


def optimizer_outside_of_the_scope() -> None:
    import keras
    import tensorflow as tf

    strategy = workers()
    with strategy.scope():
        model = keras_model()
    optimizer = keras.optimizers.Adam()

    def step(x: Any) -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(model(x) ** 2)
        variables = model.trainable_variables
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))

    tf.function(lambda x: strategy.run(step, args=(x,)))(classes()[0])


def nccl_in_tensorflow() -> None:
    import tensorflow as tf

    mirrored()  # for its devices
    nccl = tf.distribute.NcclAllReduce()
    with tf.distribute.MirroredStrategy(["cpu:0", "cpu:1"], nccl).scope():
        model = keras_model("sgd")
    model.fit(*classes(), verbose=0)


def another_server_in_tensorflow(task: Task) -> None:
    import json

    with socket.create_server(("127.0.0.1", 0)) as server:
        mine = f"127.0.0.1:{server.getsockname()[1]}"
        this = {"type": "worker", "index": 0}
        os.environ["TF_CONFIG"] = json.dumps({"cluster": {"worker": [mine]}, "task": this})
        workers()


def too_large_in_tensorflow() -> None:
    import tensorflow as tf

    tf.ones([10**7, 10**6])


def outputs_outside_of_the_tape() -> None:
    import keras
    import tensorflow as tf

    model, optimizer = keras_model(), keras.optimizers.SGD()
    outputs = model(classes()[0])
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(outputs**2)
    variables = model.trainable_variables
    optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))


def wrong_width_in_keras() -> None:
    keras_model()(classes()[0][:, :7])


def meet() -> None:
    import torch.distributed as dist

    dist.init_process_group("gloo")


def parallel(module: Any) -> Any:
    from torch.nn.parallel import DistributedDataParallel

    meet()
    return DistributedDataParallel(module)


def nobody_met() -> None:
    import torch
    import torch.distributed as dist

    dist.all_reduce(torch.ones(3))


def nccl_in_torch() -> None:
    import torch
    import torch.distributed as dist

    dist.init_process_group("nccl")
    dist.all_reduce(torch.ones(3))


def one_rank_is_late(task: Task) -> None:
    import time
    from datetime import timedelta

    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo", timeout=timedelta(seconds=1))
    if task.rank:
        time.sleep(60)
    dist.all_reduce(torch.ones(3))


def port_twice() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        socket.create_server(server.getsockname())


def too_large_in_torch() -> None:
    import torch

    torch.ones(10**14)


def too_large_in_numpy() -> None:
    import numpy as np

    np.ones(10**14)


def out_of_memory() -> None:
    bytes(2**62)


def a_layer_is_not_used() -> None:
    import torch
    from torch import nn

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.unused = nn.Linear(3, 3), nn.Linear(3, 3)

        def forward(self, x: Any) -> Any:
            return self.used(x)

    model = parallel(Model())
    for _ in range(2):
        model(torch.ones(2, 3)).sum().backward()


def all_is_frozen() -> None:
    from torch import nn

    parallel(nn.Linear(3, 3).requires_grad_(False))


def loss_is_detached() -> None:
    import torch

    torch.nn.Linear(3, 3)(torch.ones(2, 3)).detach().sum().backward()


def no_such_device() -> None:
    import torch

    torch.ones(3).cuda()


def two_devices() -> None:
    import torch

    torch.nn.Linear(3, 4, device="meta")(torch.ones(2, 3))


def wrong_width_in_torch() -> None:
    import torch

    torch.nn.Linear(3, 4)(torch.ones(2, 7))


def weights_of_a_wrapped_model() -> None:
    from torch import nn

    nn.Linear(3, 3).load_state_dict(parallel(nn.Linear(3, 3)).state_dict())


TENSORFLOW: list[Mistake] = [
    fit_on_several_workers,
    train_on_batch_on_several_workers,
    call_outside_of_run_on_workers,
    call_outside_of_run_mirrored,
    loss_along_an_axis,
    strategy_after_a_tensor,
    devices_after_a_tensor,
    model_outside_of_the_scope,
    optimizer_outside_of_the_scope,
    random_numbers_without_a_seed,
    nccl_in_tensorflow,
    another_server_in_tensorflow,
    too_large_in_tensorflow,
    outputs_outside_of_the_tape,
    wrong_width_in_keras,
]
TORCH: list[Mistake] = [
    nobody_met,
    nccl_in_torch,
    one_rank_is_late,
    port_twice,
    too_large_in_torch,
    too_large_in_numpy,
    out_of_memory,
    a_layer_is_not_used,
    all_is_frozen,
    loss_is_detached,
    no_such_device,
    two_devices,
    wrong_width_in_torch,
    weights_of_a_wrapped_model,
]
