"""What takes up the memory of each task, as the task counted it from its tensors.

A task counts in its first step only, as counting costs time. It records what it found as metrics
with these names, in bytes. Of several with one name the largest counts: a stage of a pipeline
records its activations after each microbatch.

    parameters       the weights that the task holds when a step begins, trained or frozen (in
                     TensorFlow frozen ones are buffers): all of the model, a shard, or a stage
    gradients        those that it holds when the backward pass is over
    optimizer_state  what its optimizer keeps for the parameters that it updates
    activations      what the forward pass keeps for the backward pass, at its peak: each tensor
                     once; parameters and buffers are left out, the task's share of the batch is
                     counted if the first layer needs it again
    buffers          tensors that are not trained, such as the statistics of batch normalisation;
                     and memory for exchanges: layers gathered for a moment, gradients on their way

Memory that belongs to no tensor is not counted: that of gloo, NCCL or gRPC, and what an operation
needs only while it runs.
"""

import math
from collections.abc import Iterable, Mapping

from course_lib import text
from course_lib.record.events import Metric

KINDS = ("parameters", "gradients", "optimizer_state", "activations", "buffers")

Held = dict[str, dict[str, int]]
"""Task -> kind of memory -> bytes."""


def added(memory: Held, metrics: Iterable[Metric]) -> Held:
    """The `memory` of tasks with these metrics."""
    memory = dict(memory)
    for m in metrics:
        if m.name in KINDS and math.isfinite(m.value):
            kinds = memory.setdefault(m.task, dict.fromkeys(KINDS, 0))
            kinds[m.name] = max(kinds[m.name], int(m.value))
    return memory


def table(memory: Held, formula: Mapping[str, Mapping[str, int]]) -> str:
    """The memory of each task as text, and below it what a formula says it should be."""
    rows = [["", *(kind.replace("_", " ") for kind in KINDS)]]
    for task, kinds in memory.items():
        expected = [formula.get(task, {}).get(kind) for kind in KINDS]
        rows.append([task, *(text.amount(kinds[kind]) for kind in KINDS)])
        by = ["-" if n is None else text.amount(n) for n in expected]
        rows += [["by the formula", *by]] if any(n is not None for n in expected) else []
    return text.table(rows, right=True)


def summary(kinds: Mapping[str, int]) -> str:
    """The memory of one task in a line; kinds of which it has none are left out."""
    whole = text.amount(sum(kinds.values()))
    parts = [f"{text.amount(n)} {kind.replace('_', ' ')}" for kind, n in kinds.items() if n]
    return f"{whole}: {', '.join(parts)}"
