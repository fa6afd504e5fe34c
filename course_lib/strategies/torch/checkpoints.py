"""Save and load the state of a PyTorch run with `torch.distributed.checkpoint` (DCP).

All tasks give DCP what they hold, by name. What several hold, the first of them writes; a shard of
a DTensor is known as that piece of the whole. So it can be read by other shards as well, and by
tasks that hold the whole: all synchronous strategies go on from each other's checkpoints. A replica
that was not there then takes the buffers of the first worker.
"""

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.tensor import DTensor

from course_lib.strategies.torch.models import parameters_of

if TYPE_CHECKING:
    from course_lib.strategies.torch.steps import TorchStep


def state_of(step: "TorchStep", replica: str) -> dict[str, Any]:
    """All tensors of this task that its next step depends on, by name: those of the model, the
    optimizer's state of each parameter, and the buffers, as those of a `replica`: a task's name.
    """
    mine = set(map(id, [*step.model.parameters(), *step.model.buffers()]))
    whole = step.workloads_model
    names = {id(each): name for name, each in whole.named_parameters() if id(each) in mine}
    state = {f"model.{names[id(each)]}": each.detach() for each in step.model.parameters()}
    for name, buffer in whole.named_buffers():
        if id(buffer) in mine:
            state[f"{replica}.{name}"] = buffer
    updated = parameters_of(step.optimizer)
    for parameter, tensor in zip(step.parameters, updated, strict=True):
        for key, its in step.optimizer.state[tensor].items():  # none before the first update
            if key != "step":
                state[f"optimizer.{names[id(parameter)]}.{key}"] = as_held(parameter, its)
    return state


def as_held(parameter: Any, state: Any) -> Any:
    """The optimizer's state of a parameter: a shard of a DTensor, if that is one."""
    if not isinstance(parameter, DTensor):
        return state
    shape, stride = parameter.shape, parameter.stride()
    how = parameter.device_mesh, parameter.placements
    return DTensor.from_local(state, *how, run_check=False, shape=shape, stride=stride)


def save(step: "TorchStep", part: Path) -> None:
    """Write the state of all tasks into one folder; all call it together."""
    write(state_of(step, step.task.name), part)


def write(state: Mapping[str, Any], part: Path) -> None:
    """Write tensors by name, together with the others of the process group, if there is one."""
    alone = not dist.is_initialized()
    with plainly():
        writer = dcp.FileSystemWriter(part, sync_files=False)  # `seal` does that for all files
        planner = dcp.DefaultSavePlanner(dedup_save_to_lowest_rank=True)
        dcp.save(dict(state), storage_writer=writer, planner=planner, no_dist=alone)


def load(step: "TorchStep", part: Path) -> None:
    """Read the state into the tensors that hold it, which `step.optimizer` has by now; each task by
    itself.
    """
    names = dcp.FileSystemReader(part).read_metadata().state_dict_metadata
    there = any(name.startswith(f"{step.task.name}.") for name in names)
    read(state_of(step, step.task.name if there else "worker:0"), part)


def read(state: Mapping[str, Any], part: Path) -> None:
    """Read into these tensors what was written by their names."""
    with plainly():
        dcp.load(dict(state), checkpoint_id=part, no_dist=True)


@contextmanager
def plainly() -> Iterator[None]:
    """Without DCP's warning that a task is alone; and if it fails, with the first error itself in
    place of one that lists those of all tasks.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "torch.distributed is disabled")
        try:
            yield
        except dcp.CheckpointException as error:
            first, _ = next(iter(error.failures.values()))
            raise first from None
