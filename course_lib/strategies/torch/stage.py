"""A stage of a pipeline that tells the trace what it does: when it computes, when it waits, and how
many bytes of activations it keeps.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from torch.autograd.graph import saved_tensors_hooks
from torch.distributed.pipelining import PipelineStage

from course_lib.cluster.task import Task, clock
from course_lib.strategies.torch.devices import now

FORWARD, BACKWARD = 1 / 3, 2 / 3  # of the emulated device time of a microbatch


class Stage(PipelineStage):
    """PyTorch's stage, which a schedule drives; all that is added is notes. A phase `compute` is
    one microbatch, forward or backward.

    After each of them the metric `activations` says how many bytes are kept for backward passes to
    come, over all microbatches. Buffers to receive into are not counted: PyTorch has one for each
    microbatch, with any schedule.
    """

    def __init__(self, task: Task, layers: Any, device: Any) -> None:
        super().__init__(layers, task.index, task.spec.workers, device)
        self.task, self.step, self.idle_since = task, 0, clock()
        self.share = 1 / (task.spec.workers * task.spec.microbatches)
        self.kept: dict[int, int] = {}  # microbatch -> bytes

    def begin(self, step: int) -> None:
        """A step begins. Until the first microbatch comes, that is waiting."""
        self.step, self.idle_since = step, clock()

    def forward_one_chunk(self, microbatch: int, *args: Any, **kwargs: Any) -> Any:
        """Called by the schedule when the activations of a microbatch are here."""
        found: dict[int, int] = {}
        with self._computing(FORWARD), kept_for_backward(found, self.submod):
            output = super().forward_one_chunk(microbatch, *args, **kwargs)
        self.kept[microbatch] = sum(found.values())
        self._tell()
        return output

    def backward_one_chunk(self, microbatch: int, *args: Any, **kwargs: Any) -> None:
        """Called by the schedule when the gradient of a microbatch's output is here."""
        with self._computing(BACKWARD):
            super().backward_one_chunk(microbatch, *args, **kwargs)
        del self.kept[microbatch]
        self._tell()

    def wait(self) -> None:
        """Record that nothing was computed since the last microbatch."""
        self.task.record("wait", self.step, self.idle_since, clock())

    @contextlib.contextmanager
    def _computing(self, part: float) -> Iterator[None]:
        self.wait()
        start = clock()
        yield
        self.task.pace(now(self.device) - start, share=part * self.share)
        self.idle_since = clock()
        self.task.record("compute", self.step, start, self.idle_since)

    def _tell(self) -> None:
        self.task.metric(
            "activations",
            sum(self.kept.values()),
            self.step,
            (self.step + 1) * self.task.spec.batch,
        )


@contextlib.contextmanager
def kept_for_backward(found: dict[int, int], module: Any) -> Iterator[None]:
    """Collect in `found` what autograd saves during the block, apart from the module's parameters:
    address -> bytes.
    """
    parameters = {parameter.data_ptr() for parameter in module.parameters()}

    def pack(tensor: Any) -> Any:
        if tensor.data_ptr() not in parameters:
            found[tensor.data_ptr()] = tensor.nbytes
        return tensor.detach()  # an output that is saved as it is would keep itself alive

    with saved_tensors_hooks(pack, lambda tensor: tensor):
        yield
