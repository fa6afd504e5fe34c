"""How FSDP's exchanges hide behind computing on CPUs, and how they are recorded.

On a GPU FSDP starts each of its collective operations in a stream beside that of computing. CPUs
have no streams: there the operation is called asynchronously. FSDP waits by itself for the gathered
parameters of a layer before it computes with them. It does not wait for the gradients that a
reduce-scatter leaves, so whoever uses them has to.
"""

import contextlib
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from course_lib.strategies.torch.memory import Borrowed
from course_lib.strategies.torch.steps import TorchStep


@dataclass
class Collective:
    """A collective operation as FSDP calls it. With `overlap` it goes on beside computing until
    somebody waits for it; a `thread` notes when it is over. A reduce-scatter is added to
    `scatters`, to be waited for; one that is not in float32 is waited for here, as FSDP converts
    its result at once.
    """

    collective: Callable[..., Any]
    step: TorchStep
    thread: ThreadPoolExecutor
    borrowed: Borrowed
    scatters: list[Any] | None = None

    def allocate(self, size: Any, *, dtype: Any, device: Any) -> Any:
        """Memory for an exchange."""
        return self.borrowed.memory(size, dtype, device)

    def __call__(self, output_tensor: Any, input_tensor: Any, **how: Any) -> Any:
        """Exchange, or begin to."""
        self.borrowed.note()
        at_once = self.scatters is not None and output_tensor.dtype != torch.float32
        if at_once or not self.step.spec.overlap:
            with self.step.exchanging():
                return self.collective(output_tensor, input_tensor, **how)
        over = self.step.exchange_begins()
        if output_tensor.is_cuda:  # FSDP calls it in a stream of its own
            self.collective(output_tensor, input_tensor, **how)
            over()
            return None
        work = self.collective(output_tensor, input_tensor, **{**how, "async_op": True})
        exchange = Exchange(self.step, self.thread.submit(finish, work, over))
        if self.scatters is not None:
            self.scatters.append(exchange)
        return exchange


def finish(work: Any, over: Callable[[], None]) -> None:
    """Wait for an exchange, and say when it was over."""
    work.wait()
    over()


class Exchange(dist.Work):
    """An exchange under way."""

    def __init__(self, step: TorchStep, outcome: Future[Any]) -> None:
        super().__init__()
        self.step, self.outcome = step, outcome

    def wait(self, *timeout: Any) -> bool:
        """Return when it is over. If it is not over yet, the `compute` phase ends here."""
        with contextlib.nullcontext() if self.outcome.done() else self.step.held_up():
            self.outcome.result()
        return True
