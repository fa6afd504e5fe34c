"""Exchanges beside computing, and the record of them: the all-reduces of DistributedDataParallel
(DDP), by gloo, NCCL or a schedule of ours; and on CPUs the gathers and scatters of FSDP.

DDP calls a communication hook whenever the backward pass has filled a bucket of gradients. The hook
here does what DDP does without one, and records when each bucket's reduction began and ended. DDP
checks its annotations, so these must not be strings.

On a GPU FSDP starts each of its collective operations in a stream beside that of computing, and
there they are part of `compute`. CPUs have no streams: there the operation is called
asynchronously. FSDP waits by itself for the gathered parameters of a layer before it computes with
them. It does not wait for the gradients that a reduce-scatter leaves, so whoever uses them has to.
"""

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any
from weakref import WeakSet

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor
from torch.futures import Future

from course_lib.strategies.torch.models import counts
from course_lib.strategies.torch.steps import TorchStep
from course_lib.strategies.torch.tensors import bytes_of, storages

Hook = Callable[[None, dist.GradBucket], Future[torch.Tensor]]
Call = Callable[[], Any]
ASYNCHRONOUS = dist.AllreduceOptions()
ASYNCHRONOUS.asyncOp = True


class LossAmongGradients(nn.Module):
    """A model that returns its part of the mean loss, made so that the all-reduce of gradients adds
    up to means, and averages the loss as well.

    The loss is multiplied by one parameter more, `part`, whose first number is 1 / workers. So the
    sum of all workers' gradients is their mean, and nobody has to pass over them once more to
    divide; and the gradient of `part` is the loss, which needs no message of its own. Of a loss
    that is a sum and a count, the count is multiplied by the second number, which is 0.
    """

    def __init__(self, step: TorchStep) -> None:
        super().__init__()
        sketch, self.tables = step.workload.sketch_in("torch", step.spec.precision), nn.ModuleList()
        for name in sketch.sparse if sketch else ():
            # DDP takes a sparse gradient only of what it meets first as the weight of an embedding
            self.tables.append(table := nn.Embedding(1, 1, sparse=True))
            table.weight = step.model.get_parameter(name)
        self.model, self.loss_of, self.workers = step.model, step.loss_of, step.spec.workers
        part = [1 / self.workers, 0.0][: 2 if counts(step.workload) else 1]
        self.part, self.counts = nn.Parameter(torch.tensor(part, device=step.device)), False

    def forward(self, inputs: Any, targets: Any) -> Any:
        loss = self.loss_of(self.model(inputs), targets)
        self.counts = loss.dim() > 0
        return (loss * self.part).sum() if self.counts else loss * self.part[0]

    def mean_loss(self) -> torch.Tensor:
        """The mean of all workers' losses, once the backward pass is over."""
        assert self.part.grad is not None
        total, self.part.grad = self.part.grad / self.workers, None
        return total if self.counts else total[0]


def lay_out(ddp: Any, step: TorchStep) -> None:
    """If the run goes on from a checkpoint, let DDP lay out its buckets as it had before.

    It does so in its first backward pass, in which all gradients are one bucket. Which gradients
    lie in a bucket, and where, decides in which order the workers' values are added up, and so the
    last bits of the sums. Here that first pass is made in advance, and its gradients are dropped.
    To be called before the hook is registered.
    """
    if step.origin:
        inputs, targets = step.tensors(np.arange(step.spec.per_worker_batch))
        step.mixed(ddp)(inputs, targets).backward()
        ddp.zero_grad(set_to_none=True)


def adding_up(step: TorchStep) -> Hook:
    """The hook for the all-reduce of this run.

    With `overlap`, a bucket's all-reduce starts as soon as the backward pass has filled the bucket;
    without, all start when the last bucket is full, which is when the pass is over. Then the hook
    waits for them. So all futures that it returns to DDP are done, and if an all-reduce fails, the
    backward pass raises its own error. (Of an error in a future DDP makes a RuntimeError.)
    """
    begin = _scheduled(step) if step.task.schedule else _native
    devices = [step.device] if step.device.type == "cuda" else []
    full: list[torch.Tensor] = []
    waits: list[Call] = []

    def hook(state: None, bucket: dist.GradBucket) -> Future[torch.Tensor]:
        full.append(bucket.buffer())
        if bucket.is_last():
            step.task.enter("reduce")
        if bucket.is_last() or step.spec.overlap:
            over = partial(step.reduced_beside, step.now())
            waits.extend(begin(sums, over) for sums in full)
            full.clear()
        if bucket.is_last():
            for wait in waits:
                wait()
            waits.clear()
        done: Future[torch.Tensor] = Future(devices=devices)
        done.set_result(bucket.buffer())
        return done

    return hook


def _native(sums: torch.Tensor, over: Call) -> Call:
    """Begin the all-reduce of the process group, as DDP does without a hook, and call `over` when
    it is over; what is returned waits for that. (`dist.all_reduce` does the same, after checks in
    Python that take 0.03 ms of a small model's step.)
    """
    assert dist.group.WORLD
    here = sums.to_dense() if sums.is_cuda else sums  # NCCL adds up no sparse tensors
    work = dist.group.WORLD.allreduce([here], ASYNCHRONOUS)
    noted = work.get_future().then(lambda _: over())

    def wait() -> None:
        work.wait()
        put_back(here, sums)
        noted.wait()

    return wait


def _scheduled(step: TorchStep) -> Callable[[torch.Tensor, Call], Call]:
    """The all-reduce by the schedule of the run.

    It goes on in a thread beside the backward pass, one bucket after the other in the order in
    which they are filled, which is the same on all workers.
    """
    assert step.task.schedule
    schedule, group = step.task.schedule, step.task.group()
    thread = ThreadPoolExecutor(1, "lockstep-exchange")

    def exchange(sums: torch.Tensor, over: Call) -> None:
        here = sums.to_dense().cpu()  # the tensor itself, if it is a dense one on the CPU
        group.execute(schedule, here.numpy())
        put_back(here, sums)
        step.census.note(exchange=group.buffered)
        over()

    return lambda sums, over: thread.submit(exchange, sums, over).result


def put_back(whole: torch.Tensor, sums: torch.Tensor) -> None:
    """Copy what an all-reduce has made of a dense copy of a bucket into the bucket, which is sparse
    for an embedding with sparse gradients.
    """
    sums.copy_(whole.to_sparse(sums.sparse_dim()) if sums.is_sparse else whole)


# --- FSDP ---


class Exchanges:
    """The exchanges of a step's `layers`: the reduce-scatters to be waited for, and what is
    borrowed for a moment beside the shards: layers that are gathered, gradients of whole layers,
    and the memory in which both are exchanged.
    """

    def __init__(self, step: TorchStep, layers: Iterable[nn.Module]) -> None:
        self.step, self.scatters = step, list[Exchange]()
        self.thread = ThreadPoolExecutor(1, "lockstep-exchange")  # notes when they are over
        self.memory = WeakSet[Any]()  # storages, as long as they are not freed
        self.whole: dict[int, Any] = {}  # parameters of gathered layers, emptied after use
        for layer in layers:
            layer.register_forward_pre_hook(self._gathered)

    def _gathered(self, layer: nn.Module, inputs: Any) -> None:
        self.whole |= {id(p): p for p in layer.parameters() if not isinstance(p, DTensor)}

    def borrowed(self) -> int:
        """Bytes that are borrowed now. The result of a reduce-scatter is not, once it is the
        gradient of a shard.
        """
        shards = storages(each.grad for each in self.step.model.parameters())
        exchanged = {storage.data_ptr(): storage.nbytes() for storage in self.memory}
        here = storages(self.whole.values()) | exchanged
        return sum(count for address, count in here.items() if address not in shards)

    def note(self) -> None:
        """Note them, and the gradients of whole layers."""
        if self.step.census.open:
            whole = bytes_of(each.grad for each in self.whole.values())
            self.step.census.note(exchange=self.borrowed(), gradients=whole)

    def wait(self) -> None:
        """Wait for the reduce-scatters that are still under way."""
        while self.scatters:
            self.scatters.pop().wait()


@dataclass
class Collective:
    """A collective operation as FSDP calls it. With `overlap` it goes on beside computing until
    somebody waits for it. A reduce-scatter that is not in float32 is waited for here, as FSDP
    converts its result at once.
    """

    among: Exchanges
    collective: Callable[..., Any]

    def allocate(self, size: Any, *, dtype: Any, device: Any) -> Any:
        """Memory for an exchange."""
        memory = torch.empty(*size, dtype=dtype, device=device)
        self.among.memory.add(memory.untyped_storage())
        return memory

    def __call__(self, output_tensor: Any, input_tensor: Any, **how: Any) -> Any:
        """Exchange, or begin to."""
        self.among.note()
        step, scatters = self.among.step, self.collective is dist.reduce_scatter_single
        if output_tensor.is_cuda:  # FSDP calls it in a stream of its own
            return self.collective(output_tensor, input_tensor, **how)
        if not step.spec.overlap or (scatters and output_tensor.dtype != torch.float32):
            with step.exchanging():
                return self.collective(output_tensor, input_tensor, **how)
        over = step.exchange_begins()
        work = self.collective(output_tensor, input_tensor, **how | {"async_op": True})

        def finish() -> None:
            work.wait()
            over()

        exchange = Exchange(step, self.among.thread.submit(finish))
        if scatters:
            self.among.scatters.append(exchange)
        return exchange


class Exchange(dist.Work):
    """An exchange under way."""

    def __init__(self, step: TorchStep, outcome: Any) -> None:
        super().__init__()
        self.step, self.outcome = step, outcome

    def wait(self, *timeout: Any) -> bool:
        """Return when it is over. If it is not over yet, the `compute` phase ends here."""
        with nullcontext() if self.outcome.done() else self.step.held_up():
            self.outcome.result()
        return True
