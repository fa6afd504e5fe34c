"""Count the memory of a task in its first step, and foretell it by a formula. The kinds of memory
stand in `record/measures.py`.

In the formulas S is the bytes of the model's trained parameters in float32. Gradients take S bytes
too, the optimizer's state k S bytes, with k from 0 to 2 (`STATE`). One example needs A bytes of
activations, and a replica computes its share of the batch at a time or, with `accumulate`, a part
of that share. In 16 bits it also keeps copies of weights, once for all examples.

Source: Rajbhandari et al., "ZeRO", SC 2020, section 3.
"""

from collections.abc import Callable
from typing import Any

from course_lib.cluster.task import Task
from course_lib.record.events import Metric, clock
from course_lib.record.measures import MEMORY, Memory
from course_lib.spec.run_spec import RunSpec
from course_lib.strategies.optimizers import STATE
from course_lib.workloads.layers import Sketch

Formula = Callable[[RunSpec, Sketch, int], Memory]
"""A run, its model, and the examples that a replica computes at a time -> the memory of each task.
A kind of memory that it does not foretell is missing."""


class Census:
    """The memory of a task, by kind, at its peak in the first step. Later steps are not counted."""

    def __init__(self, task: Task) -> None:
        self.task, self.open, self.peak = task, True, dict[str, int]()

    def note(self, **bytes_now: int) -> None:
        """So many bytes of each kind are held now. Those of an `exchange` count as buffers."""
        if self.open:
            for kind, count in bytes_now.items():
                self.peak[kind] = max(count, self.peak.get(kind, 0))

    def close(self, step: int, samples: int, memory: Callable[[], dict[str, int]]) -> None:
        """A step is over. If it was the first, record what was noted in it, and the `memory` now of
        the kinds that were not noted.
        """
        if self.open:
            self.open = False
            found = memory() | self.peak
            if "exchange" in found:
                found["buffers"] = found.get("buffers", 0) + found.pop("exchange")
            record(self.task, self.task.name, step, samples, found)


def record(task: Task, whose: str, step: int, samples: int, memory: dict[str, int]) -> None:
    """Record the memory of a task, which may be another one."""
    for kind in MEMORY:
        if kind in memory:
            task.recorder.add(Metric(whose, kind, memory[kind], step, samples, clock()))


def share_of(spec: RunSpec, model: Sketch, of: int = 1) -> dict[str, int]:
    """Parameters, gradients and optimizer state of `1 / of` of the model: S, S and k S."""
    whole = 4 * model.parameters // of
    state = STATE[spec.optimizer] * whole
    return {"parameters": whole, "gradients": whole, "optimizer_state": state}


def per_example(few: int, twice: int, examples: int) -> tuple[int, int]:
    """The `activations` and `copies` of a `Sketch`, from the bytes that so many `examples` keep and
    those that twice as many keep.
    """
    return (twice - few) // examples, max(0, 2 * few - twice)


def on_workers(spec: RunSpec, memory: dict[str, Any]) -> Memory:
    """The same on each worker."""
    return {f"worker:{k}": dict(memory) for k in range(spec.workers)}


def data_parallel(spec: RunSpec, model: Sketch, examples: int) -> Memory:
    """Every replica holds S + S + k S, and the activations of its examples; a worker holds that for
    each of its replicas.
    """
    replica = share_of(spec, model) | {"activations": model.kept(examples)}
    return on_workers(spec, {kind: spec.replicas * n for kind, n in replica.items()})
