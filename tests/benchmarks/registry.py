"""The benchmarks: one line each."""

from __future__ import annotations

from collections.abc import Callable

from tests.benchmarks import (
    allreduce,
    boards,
    commands,
    hooks,
    kills,
    memory,
    named,
    network,
    overlap,
    own,
    ray_train,
    simulator,
    stage,
    start,
    steps,
    strategies,
    tracing,
    watching,
)
from tests.benchmarks.harness import Options, Rows

SUBJECTS: dict[str, Callable[[Options], Rows]] = {
    "start": start.rows,
    "memory": memory.rows,
    "tracing": tracing.rows,
    "watching": watching.rows,
    "steps": steps.rows,
    "own": own.rows,
    "strategies": strategies.rows,
    "commands": commands.rows,
    "allreduce": allreduce.rows,
    "simulator": simulator.rows,
    "kills": kills.rows,
    "named": named.rows,
    "hooks": hooks.rows,
    "network": network.rows,
    "overlap": overlap.rows,
    "stage": stage.rows,
    "boards": boards.rows,
    "ray": ray_train.rows,
}
