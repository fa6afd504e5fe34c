"""A training under a strategy of tf.distribute as one writes it by hand: `plain_tensorflow.py
STRATEGY FOLDER [MODEL]`; with TF_CONFIG set, if it has several workers.

FOLDER/training.npz holds data, initial weights and the order of examples; without MODEL, which is
one of tests/own_models.py, the model is two dense layers. Leaves the moment at which each step was
over, and the last loss.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf


def several_workers(replicas: int) -> Any:
    ring = tf.distribute.experimental.CommunicationOptions(
        implementation=tf.distribute.experimental.CollectiveCommunication.RING
    )
    return tf.distribute.MultiWorkerMirroredStrategy(communication_options=ring)


def one_device(replicas: int) -> Any:
    return tf.distribute.OneDeviceStrategy("/cpu:0")


def mirrored(replicas: int) -> Any:
    return tf.distribute.MirroredStrategy(cpus(replicas), tf.distribute.HierarchicalCopyAllReduce())


def central_storage(replicas: int) -> Any:
    host, *devices = cpus(1 + replicas)
    return tf.distribute.experimental.CentralStorageStrategy(
        compute_devices=devices, parameter_device=host
    )


STRATEGIES = {
    "multi_worker_mirrored": several_workers,
    "one_device": one_device,
    "mirrored": mirrored,
    "central_storage": central_storage,
}


def cpus(count: int) -> list[str]:
    """So many logical devices of the CPU."""
    (cpu,) = tf.config.list_physical_devices("CPU")
    tf.config.set_logical_device_configuration(
        cpu, [tf.config.LogicalDeviceConfiguration()] * count
    )
    return [f"/cpu:{i}" for i in range(count)]


def main(name: str, folder: Path, rank: int, own: str = "") -> None:
    given = np.load(folder / "training.npz")
    tf.config.threading.set_intra_op_parallelism_threads(int(given["threads"]))
    tf.config.threading.set_inter_op_parallelism_threads(max(2, int(given["threads"])))
    replicas = int(given["replicas"])
    strategy = STRATEGIES[name](replicas)
    with strategy.scope():
        model = own_model(own, given) if own else two_layers(given)
        step = make_step(strategy, model, float(given["rate"]))
    x, y, order = given["x"], given["y"], given["order"][rank * replicas : (rank + 1) * replicas]
    moments, loss, stop_after = [], float("nan"), int(given["stop_after"])
    for shares in order.swapaxes(0, 1):
        loss = float(step(*batch(strategy, x, y, shares)))
        moments.append(time.monotonic())
        if len(moments) == stop_after:
            os.kill(os.getpid(), signal.SIGSTOP)  # until whoever measures lets it go on
    leave(folder, rank, {"moments": moments, "loss": loss})


def two_layers(given: Any) -> Any:
    hidden, classes = given["weight0"].shape[1], given["weight2"].shape[1]
    model = keras.Sequential(
        [
            keras.Input((64,)),
            keras.layers.Dense(hidden, activation="relu"),
            keras.layers.Dense(classes),
        ]
    )
    model.set_weights([given[f"weight{i}"] for i in range(4)])
    return model


def own_model(name: str, given: Any) -> Any:
    from tests import own_models

    keras.utils.set_random_seed(int(given["seed"]))
    model = getattr(own_models, f"keras_{name}")()
    model(given["x"][:2])  # some make their variables only now
    return model


def batch(strategy: Any, x: Any, y: Any, shares: Any) -> tuple[Any, Any]:
    """Images and labels, a share for each replica of this process."""

    def share(k: int) -> tuple[Any, Any]:
        return tf.constant(x[shares[k]]), tf.constant(y[shares[k]])

    if len(shares) == 1:
        return share(0)
    both: tuple[Any, Any] = strategy.experimental_distribute_values_from_function(
        lambda context: share(context.replica_id_in_sync_group)
    )
    return both


def make_step(strategy: Any, model: Any, rate: float) -> Any:
    variables = [variable.value for variable in model.trainable_variables]

    def gradients(images: Any, labels: Any) -> list[Any]:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(
                tf.nn.sparse_softmax_cross_entropy_with_logits(labels, model(images, training=True))
            )
        # an embedding's are only the rows that were looked up
        values = [loss, *map(tf.convert_to_tensor, tape.gradient(loss, variables))]
        return tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.MEAN, values)

    @tf.function
    def step(images: Any, labels: Any) -> Any:
        loss, *means = strategy.run(gradients, args=(images, labels))
        for variable, mean in zip(variables, means, strict=True):
            strategy.extended.update(variable, lambda v, g: v.assign_sub(rate * g), args=(mean,))
        return strategy.experimental_local_results(loss)[0]

    return step


def leave(folder: Path, rank: int, result: dict[str, Any]) -> None:
    """Write the result, and stay until whoever measures closes stdin."""
    (folder / f"{rank}.part").write_text(json.dumps(result))
    (folder / f"{rank}.part").rename(folder / f"{rank}.stamp")
    sys.stdin.read()
    os._exit(0)


if __name__ == "__main__":
    place = json.loads(os.environ.get("TF_CONFIG", "{}")).get("task", {})
    main(sys.argv[1], Path(sys.argv[2]), place.get("index", 0), *sys.argv[3:])
