"""Training examples for graphs that run in other processes, where no Python of ours fetches
them.
"""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import tensorflow as tf

from course_lib.record.files import whole
from course_lib.workloads.examples import Examples

NAMES = "inputs", "targets"


def write(folder: Path, examples: Examples) -> None:
    """Write examples into files, as bare numbers."""
    with whole(folder / NAMES[0]) as inputs, whole(folder / NAMES[1]) as targets:
        for x, y in examples.batches():
            x.tofile(inputs)
            y.tofile(targets)


def in_files(folders: Sequence[Path], examples: Examples) -> Callable[[Any, Any], list[Any]]:
    """A function that gathers, in a graph on a worker, the inputs and targets with some indices
    from the files in the folder of this worker.

    The process that runs the graph maps the files, and reads only the examples that it gathers. As
    constants of the graph they would all travel with it to each worker, and a graph can have 2 GB
    at most.
    """
    first, places = examples.take([0]), list(dict.fromkeys(folders))
    place_of = [places.index(folder) for folder in folders]

    def gathered(folder: Path, indices: Any) -> list[Any]:
        return [
            tf.gather(
                tf.raw_ops.ImmutableConst(
                    dtype=like.dtype,
                    shape=(len(examples), *like.shape[1:]),
                    memory_region_name=str(folder / name),
                ),
                indices,
            )
            for name, like in zip(NAMES, first, strict=True)
        ]

    def gather(worker: Any, indices: Any) -> list[Any]:
        with tf.device("/device:CPU:0"):
            branches = [partial(gathered, place, indices) for place in places]
            if len(places) == 1:
                return branches[0]()
            return list(tf.switch_case(tf.gather(place_of, worker), branches))

    return gather
