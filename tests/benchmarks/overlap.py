"""Communication behind computing: a step of multi_worker_mirrored over slow links with overlap and
without, beside the least that it could take; and how large buckets should be.

Computing is emulated device time, about as long as the all-reduce takes on such links. The models
have layers of equal size. Nothing is added to a message: what small buckets cost more is the work
of the processes that exchange them, which share this machine's cores.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

import course_lib
from course_lib import Workload
from course_lib.record import measures
from course_lib.spec.fields import Link
from tests.benchmarks import clusters
from tests.benchmarks.harness import Aim, Options, Row, Rows, compare

WORKERS = 4
STEPS = 20
LINK = Link(mbit=200)
LAYERS, WIDTH = 32, 128  # 2 MiB of gradients
MORE_LAYERS = (128, 64)  # as many bytes, which can be cut into more buckets
DEVICE = 0.12  # seconds
BUCKET = 0.25  # MiB: four layers
SIZES = (0.01, 0.06, 0.25, 0.5, 1.0, 2.1)  # MiB: about 1, 4, 16, 32, 64 and all 128 layers


def rows(options: Options) -> Rows:
    """With overlap and without in each framework, and against the limit; then sizes of buckets."""
    for framework in ("torch", "tensorflow"):
        clusters.warm(framework)
        ours = partial(step_ms, framework, BUCKET)
        name = f"step with overlap, {WORKERS} hosts, 200 Mbit/s, {framework}"
        without = ("without", partial(step_ms, framework, BUCKET, overlap=False))
        yield compare(name, "ms", ours, without, Aim("at most", 0.85), options)
        limit = ("what the device and the exchange alone allow", partial(least_ms, framework))
        yield compare(name, "ms", ours, limit, Aim("at most", 1.2), options)
    yield from by_size("torch", options)


def by_size(framework: str, options: Options) -> Rows:
    """A row for each size of the buckets beside the best, and one for the best of those in between
    beside the better of the smallest and the largest.
    """
    turns: list[list[float]] = []
    for i in range(options.repeats):
        options.say(f"sizes of buckets, {framework}: {i + 1} of {options.repeats}")
        turns.append([step_ms(framework, size, *MORE_LAYERS) for size in SIZES])
    for size, steps in zip(SIZES, zip(*turns, strict=True), strict=True):
        pairs = tuple((each, min(turn)) for each, turn in zip(steps, turns, strict=True))
        name = f"step with buckets of {size:g} MiB, {framework}"
        yield Row(name, "the best size", "ms", pairs, Aim("shown"))
    pairs = tuple((min(turn[1:-1]), min(turn[0], turn[-1])) for turn in turns)
    peer = "the better of the smallest and the largest"
    yield Row(
        f"step with the best size in between, {framework}", peer, "ms", pairs, Aim("at most", 1)
    )


def step_ms(
    framework: str,
    bucket_mb: float,
    layers: int = LAYERS,
    width: int = WIDTH,
    overlap: bool = True,
    device_ms: float = 1e3 * DEVICE,
) -> float:
    """The median step of a run, in milliseconds."""
    run = course_lib.start(
        "multi_worker_mirrored",
        framework=framework,
        workload=deep(layers, width),
        workers=WORKERS,
        hosts=WORKERS,
        link=LINK,
        global_batch=4 * WORKERS,
        steps=STEPS,
        device_ms=device_ms,
        bucket_mb=bucket_mb,
        overlap=overlap,
    )
    return measures.median_step(run.wait(clusters.LONGEST).trace) * 1e3


def least_ms(framework: str) -> float:
    """What a step would take if nothing but the device and the exchange took time: the last bucket
    travels after the backward pass, and none before the first is full.

    The exchange takes as long as a step without device time. That is more than the link asks for
    (127 ms): four processes on this machine's cores share it.
    """
    device = 1e3 * DEVICE
    exchange = step_ms(framework, BUCKET, overlap=False, device_ms=0.0)
    bucket = round(BUCKET * 2**20 / (4 * WIDTH * (WIDTH + 1))) / LAYERS  # of all
    return max(device + bucket * exchange, device * (1 + 2 * bucket) / 3 + exchange)


def deep(layers: int, width: int) -> Workload:
    rng = np.random.default_rng(0)
    data = rng.normal(size=(256, width)).astype(np.float32), rng.integers(0, width, 256)
    torch, tensorflow = (partial(make, layers, width) for make in (for_torch, for_tensorflow))
    return Workload("deep", train=data, test=data, torch=torch, tensorflow=tensorflow)


def for_torch(layers: int, width: int) -> Any:
    from torch import nn

    dense = [nn.Sequential(nn.Linear(width, width), nn.ReLU()) for _ in range(layers)]
    return nn.Sequential(*dense)


def for_tensorflow(layers: int, width: int) -> Any:
    import keras

    dense = [keras.layers.Dense(width, activation="relu") for _ in range(layers)]
    return keras.Sequential([keras.Input((width,)), *dense])
