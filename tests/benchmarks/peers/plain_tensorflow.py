"""A training under MultiWorkerMirroredStrategy as one writes it by hand: `plain_tensorflow.py FOLDER`, with TF_CONFIG set.

FOLDER/training.npz holds data, initial weights and the order of examples. Leaves the moment at which each step was over, and the last loss.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf


def main(folder: Path, rank: int) -> None:
    given = np.load(folder / "training.npz")
    tf.config.threading.set_intra_op_parallelism_threads(int(given["threads"]))
    tf.config.threading.set_inter_op_parallelism_threads(max(2, int(given["threads"])))
    ring = tf.distribute.experimental.CommunicationOptions(implementation=tf.distribute.experimental.CollectiveCommunication.RING)
    strategy = tf.distribute.MultiWorkerMirroredStrategy(communication_options=ring)
    with strategy.scope():
        hidden, classes = given["weight0"].shape[1], given["weight2"].shape[1]
        model = keras.Sequential([keras.Input((64,)), keras.layers.Dense(hidden, activation="relu"), keras.layers.Dense(classes)])
        model.set_weights([given[f"weight{i}"] for i in range(4)])
        step = make_step(strategy, model, float(given["rate"]))
    x, y, order = given["x"], given["y"], given["order"][rank]
    moments, loss = [], float("nan")
    for indices in order:
        loss = float(step(tf.constant(x[indices]), tf.constant(y[indices])))
        moments.append(time.monotonic())
    leave(folder, rank, {"moments": moments, "loss": loss})


def make_step(strategy: Any, model: Any, rate: float) -> Any:
    variables = [variable.value for variable in model.trainable_variables]

    def gradients(images: Any, labels: Any) -> list[Any]:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, model(images, training=True)))
        values = [loss, *tape.gradient(loss, variables)]
        return tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.MEAN, values)

    @tf.function
    def step(images: Any, labels: Any) -> Any:
        loss, *means = strategy.run(gradients, args=(images, labels))
        for variable, mean in zip(variables, means, strict=True):
            strategy.extended.update(variable, lambda v, g: v.assign_sub(rate * g), args=(mean,))
        return loss

    return step


def leave(folder: Path, rank: int, result: dict[str, Any]) -> None:
    """Write the result, and stay until whoever measures closes stdin."""
    (folder / f"{rank}.part").write_text(json.dumps(result))
    (folder / f"{rank}.part").rename(folder / f"{rank}.stamp")
    sys.stdin.read()
    os._exit(0)


if __name__ == "__main__":
    main(Path(sys.argv[1]), json.loads(os.environ["TF_CONFIG"])["task"]["index"])
