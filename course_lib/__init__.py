"""Lockstep: learn distributed training by running it.

    from course_lib import start
    run = start("multi_worker_mirrored", workers=4)   # four TensorFlow processes, in the background
    run.wait().result

Importing this package loads neither TensorFlow nor PyTorch: they live in the processes it starts.
"""

from typing import TYPE_CHECKING

from course_lib import lazy

if TYPE_CHECKING:
    from course_lib.cards import machine_card, strategy_table
    from course_lib.cluster.nursery import warm
    from course_lib.cluster.run import Run
    from course_lib.hardware import probe as machine
    from course_lib.launch import start
    from course_lib.racing.call import Race, race
    from course_lib.record.trace import Trace
    from course_lib.reduction.call import allreduce, compare, stage
    from course_lib.spec import Link, RunSpec

__all__ = [
    "Link",
    "Race",
    "Run",
    "RunSpec",
    "Trace",
    "allreduce",
    "compare",
    "machine",
    "machine_card",
    "race",
    "stage",
    "start",
    "strategy_table",
    "warm",
]

__getattr__, __dir__ = lazy.names(
    __name__,
    {
        "start": "course_lib.launch:start",
        "allreduce": "course_lib.reduction.call:allreduce",
        "compare": "course_lib.reduction.call:compare",
        "stage": "course_lib.reduction.call:stage",
        "machine_card": "course_lib.cards:machine_card",
        "strategy_table": "course_lib.cards:strategy_table",
        "Link": "course_lib.spec:Link",
        "race": "course_lib.racing.call:race",
        "Race": "course_lib.racing.call:Race",
        "warm": "course_lib.cluster.nursery:warm",
        "machine": "course_lib.hardware:probe",
        "Run": "course_lib.cluster.run:Run",
        "RunSpec": "course_lib.spec:RunSpec",
        "Trace": "course_lib.record.trace:Trace",
    },
)
