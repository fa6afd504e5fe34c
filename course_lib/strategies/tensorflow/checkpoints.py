"""How a TensorFlow run saves what it goes on from: with `tf.train.Checkpoint`.

Each device has its own copy of a variable. TensorFlow would write one of them, or their mean, and
give that to all. This is right for the variables that are trained, whose copies are equal. But with
random numbers, such as those of dropout, and statistics, such as those of batch normalisation, each
replica goes on from its own, so here every copy is written. Of several workers the first one writes
what all of them hold alike, and each one what it alone holds.

On parameter servers (ps), every ps writes its own shard, when the chief says so. All of them and
the chief must see the same folder; production systems have a shared file system for that.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from course_lib.clock import clock
from course_lib.cluster.task import Task
from course_lib.record import checkpoints
from course_lib.record.rundir import folder_name
from course_lib.strategies import saving
from course_lib.strategies.tensorflow.models import copies_of

if TYPE_CHECKING:
    from course_lib.strategies.tensorflow.server import Model
    from course_lib.strategies.tensorflow.training import ReplicasStep

ALIKE, OWN, SHARDS = "alike", "own", "shards"


def write(part: Path, name: str, variables: Mapping[str, Any]) -> None:
    """Write variables into a folder, as one checkpoint of TensorFlow's with this name."""
    tf.train.Checkpoint(**variables).write(str(part / name))


def read(part: Path, name: str, variables: Mapping[str, Any]) -> None:
    """Set variables to what was written; raises AssertionError if that is not there for all."""
    found = tf.train.Checkpoint(**variables).read(str(part / name))
    found.assert_existing_objects_matched().assert_consumed()


# --- replicas ---


def save(step: ReplicasStep, part: Path) -> None:
    """Write what this worker has to write of the state of all."""
    if step.task.index == 0:
        write(part, ALIKE, _alike(step))
    if step.task.name in step.writers:
        write(part, OWN, _own(step))


def load(step: ReplicasStep, part: Path) -> None:
    """Read the state into the variables; each worker by itself."""
    read(part.parent / folder_name(step.writers[0]), ALIKE, _alike(step))
    read(part, OWN, _own(step))


def _alike(step: ReplicasStep) -> dict[str, Any]:
    """The copies of all variables that every worker holds alike."""
    return {
        "trained": _copies(step.variables),
        "optimizer": _copies(each for state in step.state for each in state),
        "counted": _copies(each for each in (step.count, step.scaling) if each is not None),
    }


def _own(step: ReplicasStep) -> dict[str, Any]:
    """The copies of the variables that are not trained."""
    return {"others": _copies(each.value for each in step.model.non_trainable_variables)}


def _copies(variables: Iterable[Any]) -> list[list[Any]]:
    return [list(copies_of(variable)) for variable in variables]


# --- parameter servers ---


def save_shards(task: Task, model: Model, steps: int, loss: float) -> None:
    """Leave a checkpoint, once so many steps are done and no worker has begun another. `loss`: that
    of the last of them.
    """
    begun, spec = clock(), task.spec
    part = checkpoints.part_of(task.files, task.name, steps, task.attempt)
    write(part, SHARDS, _shards(model))
    numbers = {"samples": steps * spec.batch, **model.scale.state}
    if math.isfinite(loss):
        numbers["loss"] = loss
    checkpoints.seal(part, steps, numbers, saving.facts_of(spec), [task.name])
    task.record("checkpoint", steps - 1, begun, clock())


def load_shards(task: Task, model: Model) -> None:
    """Go back to the last checkpoint, if the run goes on from one."""
    if found := saving.latest(task.files, task.spec):
        part, manifest = found.part(task.name)
        read(part, SHARDS, _shards(model))
        model.steps_done, model.scale.state = found.steps, manifest.numbers
        model.loss = manifest.numbers.get("loss", math.nan)
        if model.scaling is not None:
            model.scaling.assign(model.scale.value)


def _shards(model: Model) -> dict[str, Any]:
    shards = [[shard.values, shard.version, *shard.state] for shard in model.shards]
    return {"shards": shards, "others": model.others}
