"""The files of a checkpoint in TensorFlow: written with `tf.train.Checkpoint`, each variable under
a name of its own, whole, whoever holds it. So all synchronous strategies go on from each other's:

    variable 3 slot 0     a variable of the model that is trained, whose copies are equal
    variable 3 slot 2     the second variable of the optimizer's state for it
    other 5 of 2          one that is not trained, as replica 2 has it
    seed 6 of 2           that of a replica's random numbers, such as those of dropout

Random numbers and statistics, such as those of batch normalisation, differ from replica to replica,
so every copy of them is written. A replica that was not there takes the statistics of the first,
and has random numbers of its own. On parameter servers (ps), the chief writes all.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

ALIKE, OWN = "alike", "own"
VALUE = "/.ATTRIBUTES/VARIABLE_VALUE"
"""What TensorFlow's name of a variable in a file ends with."""


def write(part: Path, name: str, variables: Mapping[str, Any]) -> None:
    """Write variables into a folder, as one checkpoint of TensorFlow's with this name."""
    tf.train.Checkpoint(**variables).write(str(part / name))


def read(checkpoint: Path) -> dict[str, np.ndarray]:
    """The values of all variables in all parts of a checkpoint, by name."""
    files = (str(index.with_suffix("")) for index in checkpoint.glob("*/*.index"))
    return {
        name.removesuffix(VALUE): reader.get_tensor(name)
        for reader in map(tf.train.load_checkpoint, files)
        for name in reader.get_variable_to_shape_map()
    }


def named(slots: Iterable[Iterable[Any]]) -> dict[str, Any]:
    """Variables by name. Each of the `slots` has one for each variable of the model that is
    trained: the first these themselves, the others those of the optimizer's state.
    """
    every = ((i, k, each) for k, slot in enumerate(slots) for i, each in enumerate(slot))
    return {f"variable {i} slot {k}": each for i, k, each in every}
