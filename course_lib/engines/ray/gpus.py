"""GPUs of a Ray cluster. Which of a node's they are Ray tells only an actor that has taken them, so
for as long as a run lasts one actor sits in each of its bundles that have any.
"""

from collections.abc import Sequence
from typing import Any

import ray
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from course_lib.errors import Unavailable
from course_lib.spec.run_spec import RunSpec


class Seat:
    """The actor. It ends with its placement group."""

    def gpus(self) -> list[str]:
        return [str(gpu) for gpu in ray.get_gpu_ids()]


def taken(
    group: Any, spec: RunSpec, crews: Sequence[Sequence[str]], timeout: float
) -> tuple[list[Any], dict[str, str]]:
    """The actors that hold the GPUs of these crews, one crew in each bundle of the group, and the
    first GPU of each worker, as its node counts them (`gpu:1`). Raises `Unavailable`.
    """
    remote: Any = ray.remote  # its types do not know that a method has one
    workers = [[task for task in crew if task.startswith("worker")] for crew in crews]
    seats = {
        i: remote(Seat)
        .options(
            num_cpus=0,
            num_gpus=spec.task_gpus * len(crew),
            scheduling_strategy=PlacementGroupSchedulingStrategy(
                group, placement_group_bundle_index=i
            ),
        )
        .remote()
        for i, crew in enumerate(workers)
        if crew
    }
    try:
        found = ray.get([seat.gpus.remote() for seat in seats.values()], timeout=timeout)
    except ray.exceptions.GetTimeoutError:
        why = f"Ray has not said within {timeout:g} s which they are"
        raise Unavailable("GPUs of this Ray cluster", why, "`ray status` says how it is.") from None
    devices = dict[str, str]()
    for i, gpus in zip(seats, found, strict=True):
        for task, first in zip(workers[i], gpus[:: spec.task_gpus], strict=True):
            devices[task] = f"gpu:{first}"
    return list(seats.values()), devices
