"""How a TensorFlow run saves what it goes on from: with `tf.train.Checkpoint`, each variable under
a name of its own, whole, whoever holds it. So all synchronous strategies go on from each other's:

    variable 3 slot 0     a variable of the model that is trained, whose copies are equal
    variable 3 slot 2     the second variable of the optimizer's state for it
    other 5 of 2          one that is not trained, as replica 2 has it
    seed 6 of 2           that of a replica's random numbers, such as those of dropout

Random numbers and statistics, such as those of batch normalisation, differ from replica to replica,
so every copy of them is written. A replica that was not there takes the statistics of the first,
and has random numbers of its own. Of several workers the first one writes what all of them hold
alike, and each one what it alone holds. On parameter servers (ps), the chief writes all.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf

from course_lib.cluster.task import Task
from course_lib.errors import trying
from course_lib.record import checkpoints
from course_lib.record.clock import clock
from course_lib.strategies import saving
from course_lib.strategies.tensorflow import models
from course_lib.strategies.tensorflow.models import copies_of, first

if TYPE_CHECKING:
    from course_lib.strategies.tensorflow.server import Model
    from course_lib.strategies.tensorflow.training import ReplicasStep

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


# --- replicas ---


def save(step: ReplicasStep, part: Path) -> None:
    """Write what this worker has to write of the state of all."""
    if step.task.index == 0:
        write(part, ALIKE, {name: first(each) for name, each in _alike(step).items()})
    if step.task.name in step.writers:
        write(part, OWN, dict(_own(step)))


def load(step: ReplicasStep, part: Path) -> None:
    """Read the state into the variables; each worker by itself."""
    found = read(part.parent)
    values = [(each, found[name]) for name, each in _alike(step).items()]
    counted = (step.count, step.updates), (step.scaling, step.scale.value)
    for variable, value in [*values, *counted]:
        for copy in copies_of(variable) if variable is not None else ():
            copy.assign(value)
    for name, copy in _own(step):
        # parameter servers have no seeds
        value = found.get(name, found.get(f"{name.partition(' of ')[0]} of 0", copy.numpy()))
        if name.startswith("seed"):
            value[0] = copy[0].numpy()  # and as many draws
        copy.assign(value)


def _alike(step: ReplicasStep) -> dict[str, Any]:
    """The variables that every replica holds alike, by name."""
    return named([step.variables, *zip(*step.state, strict=True)])


def _own(step: ReplicasStep) -> Iterator[tuple[str, Any]]:
    """The copies of the variables that are not trained, by name."""
    for i, variable in enumerate(step.model.non_trainable_variables):
        what = "seed" if models.is_seed(variable) else "other"
        before = step.task.index * step.spec.replicas
        for replica, copy in enumerate(copies_of(variable.value), before):
            yield f"{what} {i} of {replica}", copy


# --- parameter servers ---


def save_shards(task: Task, model: Model, steps: int, loss: float) -> None:
    """Leave a checkpoint, once so many steps are done and no worker has begun another. `loss`: that
    of the last of them.
    """
    begun, spec = clock(), task.spec
    part = checkpoints.part_of(task.files, task.name, steps, task.attempt)
    slots = (model.together([piece.read_value() for piece in slot]) for slot in _slots(model))
    held = named(slots) | dict(_others(model))
    write(part, ALIKE, {name: tf.Variable(value) for name, value in held.items()})
    numbers = {"samples": steps * spec.batch + model.ahead, "loss": loss, **model.scale.state}
    numbers["updates"] = int(model.shards[0].version)
    checkpoints.seal(part, steps, numbers, saving.facts_of(spec), [task.name])
    task.record("checkpoint", steps - 1, begun, clock())


def load_shards(task: Task, model: Model) -> None:
    """Go back to the last checkpoint, if the run goes on from one."""
    if last := saving.latest(task.files, task.spec):
        found, (part, manifest) = read(last.path), last.part(task.name)
        numbers = manifest.numbers
        with trying(f"the model is not that of the checkpoint in {part}"):
            for k, slot in enumerate(_slots(model)):
                for i, whole in enumerate(variables := models.variables_of(model.keras)):
                    whole.assign(found[f"variable {i} slot {k}"])  # which compares their shapes
                for variable, piece in zip(slot, model.cut(variables), strict=True):
                    variable.assign(piece)
            for name, variable in _others(model):
                variable.assign(found[name])
        for shard in model.shards:
            shard.version.assign(int(numbers["updates"]))
        model.steps_done, model.scale.state = last.steps, numbers
        model.ahead = int(numbers["samples"]) - last.steps * task.spec.batch
        model.loss = numbers.get("loss", math.nan)
        if model.scaling is not None:
            model.scaling.assign(model.scale.value)


def _slots(model: Model) -> Iterator[tuple[Any, ...]]:
    """The pieces on all ps: of the model's variables, and of each part of the optimizer's state."""
    return zip(*([shard.values, *shard.state] for shard in model.shards), strict=True)


def _others(model: Model) -> Iterator[tuple[str, Any]]:
    """The variables that are not trained, by name: one replica's."""
    every = enumerate(model.keras.non_trainable_variables)
    names = (f"other {i} of 0" for i, each in every if not models.is_seed(each))
    return zip(names, model.others, strict=True)
