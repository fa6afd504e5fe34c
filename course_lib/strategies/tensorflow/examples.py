"""Training examples for graphs that run in other processes, where no Python of ours fetches
them.
"""

import contextlib
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import tensorflow as tf

from course_lib.record.files import whole
from course_lib.workloads.examples import Examples
from course_lib.workloads.trees import mapped, numbered


def write(folder: Path, examples: Examples) -> None:
    """Write examples into files, as bare numbers: a file for each leaf of inputs and targets."""
    names = numbered(examples.take([0]))
    with contextlib.ExitStack() as stack:
        files = mapped(lambda name: stack.enter_context(whole(folder / str(name))), names)
        for pair in examples.batches():
            mapped(lambda array, file: array.tofile(file), pair, files)


def in_files(folders: Sequence[Path], examples: Examples) -> Callable[[Any, Any], Any]:
    """A function that gathers, in a graph on a worker, the inputs and targets with some indices
    from the files in the folder of this worker.

    The process that runs the graph maps the files, and reads only the examples that it gathers. As
    constants of the graph they would all travel with it to each worker, and a graph can have 2 GB
    at most.
    """
    one, places = examples.take([0]), list(dict.fromkeys(folders))
    place_of = [places.index(folder) for folder in folders]

    def gathered(folder: Path, indices: Any) -> Any:
        def leaf(like: Any, name: int) -> Any:
            every = tf.raw_ops.ImmutableConst(
                dtype=like.dtype,
                shape=(len(examples), *like.shape[1:]),
                memory_region_name=str(folder / str(name)),
            )
            return tf.gather(every, indices)

        return mapped(leaf, one, numbered(one))

    def gather(worker: Any, indices: Any) -> Any:
        with tf.device("/device:CPU:0"):
            branches = [partial(gathered, place, indices) for place in places]
            if len(places) == 1:
                return branches[0]()
            return tf.switch_case(tf.gather(place_of, worker), branches)

    return gather
