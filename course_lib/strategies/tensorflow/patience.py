"""How long a silent worker is waited for.

TensorFlow gives up a worker whose heartbeat stops for ten seconds; a lesson may pause one for
longer.
"""

from __future__ import annotations

from tensorflow.compiler.xla.tsl.protobuf import coordination_config_pb2
from tensorflow.python.eager import context

from course_lib.cluster.task import Task

SECONDS = 60


def be_patient(task: Task) -> None:
    """Give up a silent worker after `SECONDS` only. To be called before the strategy is made, which
    would ask for TensorFlow's default.

    A worker that died is still noticed at once, by its broken connections. TensorFlow has this
    setting but no public name for it.
    """
    workers = coordination_config_pb2.CoordinatedJob(name="worker", num_tasks=task.spec.workers)
    context.context().configure_coordination_service(
        service_type="standalone",
        service_leader="/job:worker/replica:0/task:0",
        heartbeat_timeout_in_ms=SECONDS * 1000,
        coordinated_jobs=[workers],
    )
