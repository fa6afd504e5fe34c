"""parameter_server."""

from __future__ import annotations

from course_lib.strategies.strategy import Facts, Strategy, programs

PARAMETER_SERVER = Strategy(
    "parameter_server",
    Facts(*"123456789"),
    programs("parameter_server", tensorflow=("chief", "worker", "ps"), torch=("worker", "ps")),
    default_workers=3,
    default_ps=1,
    chief=("tensorflow",),
)
