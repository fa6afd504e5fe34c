"""Traces and machines that no run and no computer stands behind, for tests of several files."""

from __future__ import annotations

import numpy as np

from course_lib.hardware import Capability, Machine
from course_lib.record.events import Event, Lifecycle, Message, Metric, Phase, Update
from course_lib.record.trace import Trace
from course_lib.spec.run_spec import RunSpec

GB = 2**30
LAPTOP = Machine(
    system="Linux",
    python="3.11.7",
    cpu_name="a processor",
    cores=2,
    cores_total=8,
    memory=4 * GB,
    memory_total=8 * GB,
    memory_why="Nothing limits it.",
    gpus=(),
    cuda_frameworks=(),
    tpu=False,
    fork=Capability(True, "tasks are copied"),
    private_network=Capability(False, "there are none on macOS", "Use Linux."),
)
BATCH = 64
SPEC = RunSpec(workers=2, global_batch=BATCH, steps=10, device_ms=100)

EVENTS: list[Event] = [
    Lifecycle("worker:0", "running", "", 0.5),
    Phase("worker:0", 0, "compute", 1.0, 2.0),
    Phase("worker:1", 0, "compute", 1.0, 4.0),
    Phase("worker:0", 0, "reduce", 2.0, 5.0),
    Phase("worker:1", 0, "reduce", 4.0, 5.0),
    Message("worker:0", "worker:0", "worker:1", 1024, 0, 1, 4.0, 4.5),
    Phase("worker:0", 0, "apply", 5.0, 6.0),
    Phase("worker:1", 0, "apply", 5.0, 6.5),
    Update("worker:0", 0, "all", "/device:CPU:0", 0, 1, 6.0),
    Metric("worker:0", "loss", 2.3, 0, 128, 6.1),
]


def training(workers: int, steps: int, step: float = 0.03) -> list[Event]:
    """A synchronous run: in step n worker n % workers is the last."""
    events: list[Event] = []
    for n in range(steps):
        begin, rng = n * step, np.random.default_rng(n)
        computed = {
            w: begin + step * (0.6 if w == n % workers else 0.3 + 0.1 * float(rng.random()))
            for w in range(workers)
        }
        for w, end in computed.items():
            task, done = f"worker:{w}", begin + 0.9 * step
            events += [
                Phase(task, n, "compute", begin, end),
                Phase(task, n, "reduce", end, done),
                Phase(task, n, "apply", done, begin + step),
            ]
    return events


def lockstep(
    steps: int = 10,
    compute: tuple[float, ...] = (0.1, 0.4),
    compile_time: float = 5.0,
    begin: float = 2.0,
) -> Trace:
    """A synchronous run: the workers compute, the all-reduce takes 0.05 s once the last has come,
    the update 0.01 s; losses are 1/(step + 1).
    """
    events: list[Event] = []
    now = begin
    for step in range(steps):
        ready = [now + seconds + (compile_time if step == 0 else 0.0) for seconds in compute]
        reduced = max(ready) + 0.05
        for k, arrived in enumerate(ready):
            task = f"worker:{k}"
            events += [
                Phase(task, step, "compute", now, arrived),
                Phase(task, step, "reduce", arrived, reduced),
                Phase(task, step, "apply", reduced, reduced + 0.01),
                Update(task, step, "all", "cpu", step, step + 1, reduced + 0.01),
                Metric(
                    task,
                    "loss",
                    1 / (step + 1),
                    step,
                    (step + 1) * BATCH,
                    reduced + 0.01 + k * 1e-4,
                ),
            ]
        now = reduced + 0.01
    return Trace(events)


def asynchronous(
    seconds: tuple[float, ...] = (0.1, 0.4),
    until: float = 6.0,
    begin: float = 2.0,
    compile_time: float = 1.0,
) -> Trace:
    """A run with a parameter server: every worker computes and pushes (0.02 s) at its own pace;
    each push is an update on the server at once.

    The workers number their steps themselves, so two of them are seldom at the same step. Losses
    are 1/(updates so far + 1).
    """
    pushes = []
    for k, each in enumerate(seconds):
        now, step = begin, 0
        while now < until:
            computed = now + each + (compile_time if step == 0 else 0.0)
            pushes.append((computed + 0.02, f"worker:{k}", step, now, computed))
            now, step = computed + 0.02, step + 1
    events: list[Event] = []
    applied: list[float] = []
    for version, (end, task, step, start, computed) in enumerate(sorted(pushes)):
        read = sum(at <= start for at in applied)
        applied.append(end)
        events += [
            Phase(task, step, "compute", start, computed),
            Phase(task, step, "reduce", computed, end),
            Phase("ps:0", step, "apply", end - 0.001, end),
            Update("ps:0", step, "all", "cpu", read, version + 1, end, 1, task),
            Metric(
                task, "loss", 1 / (version + 1), step, (version + 1) * BATCH // len(seconds), end
            ),
        ]
    return Trace(events)
