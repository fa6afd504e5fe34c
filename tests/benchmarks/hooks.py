"""The time of a training step with an all-reduce of ours, against the same with the framework's
own, on the same model and data.
"""

from __future__ import annotations

import course_lib
from course_lib.record import measures
from tests.benchmarks import clusters
from tests.benchmarks.harness import Aim, Options, Rows, compare

WORKERS = 4
STEPS = 40
BATCH = 32  # examples over all workers: few, so that the exchange counts


def rows(options: Options) -> Rows:
    """A row for each size of the `wide` model and each framework.

    The trace is on, as it is for learners.
    """
    for framework, sizes in (
        ("torch", (100_000, 1_000_000, 3_000_000, 10_000_000)),
        ("tensorflow", (1_000_000,)),
    ):
        clusters.warm(framework)
        for parameters in sizes[:1] if options.quick else sizes:
            name = (
                f"step of wide with {parameters / 1e6:g} M parameters, {WORKERS} workers,"
                f" {framework}, ring"
            )
            native = "gloo, native DDP" if framework == "torch" else "TensorFlow's own ring"
            aim = Aim("faster", 1.0) if parameters >= 1_000_000 else Aim("shown")
            figures = [
                lambda f=framework, p=parameters, a=a: step_ms(f, p, a) for a in ("ring", "native")
            ]
            yield compare(name, "ms", figures[0], (native, figures[1]), aim, options)


def step_ms(framework: str, parameters: int, all_reduce: str) -> float:
    """The median step of a run, in milliseconds."""
    fields = dict(workload="wide", workers=WORKERS, global_batch=BATCH, steps=STEPS)
    fields["sizes"] = {"parameters": parameters}
    run = course_lib.start(
        "multi_worker_mirrored", framework=framework, all_reduce=all_reduce, **fields
    )
    return measures.median_step(run.wait(clusters.LONGEST).trace) * 1e3
