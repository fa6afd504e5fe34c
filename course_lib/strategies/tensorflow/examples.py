"""Training examples for graphs that run in other processes, where no Python of ours fetches
them.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import tensorflow as tf

from course_lib.workloads.examples import Examples


def in_files(folder: Path, examples: Examples) -> Callable[[Any], list[Any]]:
    """Write examples into files, as bare numbers. Returns a function that gathers, in a graph, the
    inputs and targets with some indices.

    The process that runs the graph maps the files, and reads only the examples that it gathers. As
    constants of the graph they would all travel with it to each worker, and a graph can have 2 GB
    at most.
    """
    first, paths = examples.take([0]), [folder / "inputs", folder / "targets"]
    with paths[0].open("wb") as inputs, paths[1].open("wb") as targets:
        for x, y in examples.batches():
            x.tofile(inputs)
            y.tofile(targets)

    def mapped(path: Path, like: Any) -> Any:
        shape = (len(examples), *like.shape[1:])
        return tf.raw_ops.ImmutableConst(
            dtype=like.dtype, shape=shape, memory_region_name=str(path)
        )

    def gather(indices: Any) -> list[Any]:
        with tf.device("/device:CPU:0"):
            return [
                tf.gather(mapped(path, like), indices)
                for path, like in zip(paths, first, strict=True)
            ]

    return gather
