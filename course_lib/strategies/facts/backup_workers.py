"""The facts of backup_workers."""

from __future__ import annotations

from course_lib.errors import SpecError
from course_lib.hardware import Machine
from course_lib.spec import RunSpec
from course_lib.strategies.strategy import (
    BY_PARAMETER_SERVERS,
    OVER_TCP,
    Facts,
    Strategy,
    batch_of,
    programs,
)


def check(spec: RunSpec, machine: Machine) -> None:
    """At least one gradient must count, and the batch must divide over those that do."""
    counted = spec.workers - spec.backups
    if counted < 1:
        text = f"at most {spec.workers - 1} of {spec.workers} workers"
        raise SpecError("backups", spec.backups, text)
    if spec.batch % counted:
        text = f"must divide evenly over the {counted} workers whose gradients count"
        raise SpecError("global_batch", spec.batch, text)


BACKUP_WORKERS = Strategy(
    "backup_workers",
    Facts(
        summary="Synchronous training with spare workers: the first (workers - backups) gradients "
        "of a step make the update, the rest are dropped.",
        variables="on the parameter servers, cut into equal pieces; workers pull copies",
        gradients="each worker, from a share of the batch; (workers - backups) shares make up the "
        "whole",
        update="the parameter server, with the mean of the first (workers - backups) gradients of "
        "a step",
        waits="every worker for the first (workers - backups), in each step; the slowest "
        "`backups` are not waited for",
        wire="each worker pulls S and pushes S bytes; all parameter servers together 2nS in a step",
        use="synchronous training on many machines, of which some are slow at any time",
        limits="what the backups compute is thrown away; the parameter servers' network carries "
        "everything",
        source="Chen et al., Revisiting Distributed Synchronous SGD, 2016 (arXiv:1604.00981)",
    ),
    programs("backup_workers", torch=("worker", "ps")),
    OVER_TCP,
    check,
    order=120,
    default_batch=lambda spec: batch_of(spec.workers, max(1, spec.workers - spec.backups)),
    all_reduce=BY_PARAMETER_SERVERS,
    takes=("backups",),
)
