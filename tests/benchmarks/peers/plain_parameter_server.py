"""A training under ParameterServerStrategy as TensorFlow's tutorial writes it:
`plain_parameter_server.py FOLDER`, with TF_CONFIG set.

FOLDER/training.npz holds data and initial weights. The chief leaves the moment after each stretch
of steps, and the loss of the last.
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
from stretch import STRETCH


def serve(resolver: Any, given: Any) -> None:
    options = tf.compat.v1.ConfigProto(
        intra_op_parallelism_threads=int(given["threads"]),
        inter_op_parallelism_threads=resolver.cluster_spec().num_tasks("worker") + 1,
    )
    server = tf.distribute.Server(
        resolver.cluster_spec(),
        job_name=resolver.task_type,
        task_index=resolver.task_id,
        config=options,
    )
    sys.stdin.read()  # until whoever measures closes it
    del server
    os._exit(0)


def lead(resolver: Any, given: Any, folder: Path) -> None:
    workers, steps = len(given["order"]), given["order"].shape[1]
    strategy = tf.distribute.ParameterServerStrategy(resolver)
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    with strategy.scope():
        hidden, classes = given["weight0"].shape[1], given["weight2"].shape[1]
        model = keras.Sequential(
            [
                keras.Input((64,)),
                keras.layers.Dense(hidden, activation="relu"),
                keras.layers.Dense(classes),
            ]
        )
        model.set_weights([given[f"weight{i}"] for i in range(4)])
    step = make_step(strategy, model, float(given["rate"]))
    data = given["x"], given["y"]
    share = given["order"].shape[2]

    def examples() -> Any:
        return tf.data.Dataset.from_tensor_slices(data).shuffle(len(data[0])).repeat().batch(share)

    batches = iter(coordinator.create_per_worker_dataset(examples))
    moments, loss = [], float("nan")
    for _ in range(steps // STRETCH):
        results = [coordinator.schedule(step, args=(batches,)) for _ in range(STRETCH * workers)]
        coordinator.join()
        moments.append(time.monotonic())
        loss = float(results[-1].fetch())
    (folder / "0.part").write_text(json.dumps({"moments": moments, "loss": loss}))
    (folder / "0.part").rename(folder / "0.stamp")
    sys.stdin.read()
    os._exit(0)


def make_step(strategy: Any, model: Any, rate: float) -> Any:
    variables = [variable.value for variable in model.trainable_variables]

    def replica(images: Any, labels: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(
                tf.nn.sparse_softmax_cross_entropy_with_logits(labels, model(images, training=True))
            )
        for variable, gradient in zip(variables, tape.gradient(loss, variables), strict=True):
            variable.assign_sub(rate * gradient, read_value=False)
        return loss

    @tf.function
    def step(batches: Any) -> Any:
        return strategy.run(replica, args=next(batches))

    return step


if __name__ == "__main__":
    where, found = Path(sys.argv[1]), tf.distribute.cluster_resolver.TFConfigClusterResolver()
    training = np.load(where / "training.npz")
    if found.task_type == "chief":
        lead(found, training, where)
    else:
        serve(found, training)
