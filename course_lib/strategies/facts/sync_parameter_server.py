"""sync_parameter_server."""

from __future__ import annotations

from course_lib.strategies.strategy import Facts, Strategy, programs

SYNC_PARAMETER_SERVER = Strategy(
    "sync_parameter_server",
    Facts(*"123456789"),
    programs("sync_parameter_server", tensorflow=("chief", "worker", "ps"), torch=("worker", "ps")),
    default_workers=3,
    default_ps=1,
    chief=("tensorflow",),
)
