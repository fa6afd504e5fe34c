"""Answers to exercise 03, right and wrong ones; the ranks of small clusters run them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tests.answers import Answers

ANSWERS = Answers("03_data_parallel", "exercise_03", varies=True, sample=5)
right, wrong = ANSWERS.right, ANSWERS.wrong


def dist() -> Any:
    import torch.distributed

    return torch.distributed


# --- same_start ---


def state(module: Any) -> list[Any]:
    return [*module.parameters(), *module.buffers()]


def broadcast(tensors: Iterable[Any]) -> None:
    import torch

    with torch.no_grad():
        for tensor in tensors:
            dist().broadcast(tensor, src=0)


@right("same_start")
def of_the_state_dict(module: Any) -> None:
    broadcast(module.state_dict().values())


@right("same_start")
def as_an_object(module: Any) -> None:
    held = [module.state_dict() if dist().get_rank() == 0 else None]
    dist().broadcast_object_list(held, src=0)
    module.load_state_dict(held[0])


@right("same_start")
def by_messages(module: Any) -> None:
    """Rank 0 sends to each."""
    for tensor in state(module):
        if dist().get_rank():
            dist().recv(tensor.data, src=0)
        else:
            for rank in range(1, dist().get_world_size()):
                dist().send(tensor.data, dst=rank)


@wrong("same_start")
def nothing(module: Any) -> None:
    pass


@wrong("same_start")
def into_copies(module: Any) -> None:
    broadcast([tensor.clone() for tensor in state(module)])


@wrong("same_start")
def trained_only(module: Any) -> None:
    broadcast([p for p in module.parameters() if p.requires_grad])


@wrong("same_start")
def without_buffers(module: Any) -> None:
    broadcast(module.parameters())


@wrong("same_start")
def floats_only(module: Any) -> None:
    broadcast(t for t in state(module) if t.is_floating_point())


@wrong("same_start")
def from_rank_1(module: Any) -> None:
    for tensor in state(module):
        dist().broadcast(tensor.data, src=1)


@wrong("same_start")
def averaged(module: Any) -> None:
    for tensor in state(module):
        dist().all_reduce(tensor.data)
        if tensor.is_floating_point():
            tensor.data /= dist().get_world_size()


@wrong("same_start")
def added(module: Any) -> None:
    for tensor in state(module):
        dist().all_reduce(tensor.data)


@wrong("same_start")
def new_weights(module: Any) -> None:
    import torch

    broadcast(state(module))
    module.weight = torch.nn.Parameter(module.weight.detach().clone())


@wrong("same_start")
def only_rank_0_calls(module: Any) -> None:
    if dist().get_rank() == 0:
        broadcast(state(module))
    else:
        dist().barrier()


@wrong("same_start")
def as_ddp_does(module: Any) -> None:
    from torch.distributed.utils import _sync_module_states

    _sync_module_states(module, dist().group.WORLD, 2**28, 0, [])


@wrong("same_start")
def through_the_store(module: Any) -> None:
    import pickle

    store = dist().group.WORLD.get_group_store()
    if dist().get_rank() == 0:
        store.set("state", pickle.dumps(module.state_dict()))
    module.load_state_dict(pickle.loads(store.get("state")))


@wrong("same_start")
def all_trained(module: Any) -> None:
    broadcast(state(module))
    module.requires_grad_(True)


# --- average ---


@right("average")
def halves_first(gradient: Any) -> None:
    gradient /= dist().get_world_size()
    dist().all_reduce(gradient)


@right("average")
def through_rank_0(gradient: Any) -> None:
    dist().reduce(gradient, dst=0)
    gradient /= dist().get_world_size()
    dist().broadcast(gradient, src=0)


@right("average")
def by_hand(gradient: Any) -> None:
    """Sends and receives, around a ring."""
    import torch

    rank, workers = dist().get_rank(), dist().get_world_size()
    passed, total = gradient.clone(), gradient.clone()
    for _ in range(workers - 1):
        came = torch.empty_like(passed)
        sent = dist().isend(passed, (rank + 1) % workers)
        dist().recv(came, (rank - 1) % workers)
        sent.wait()
        total += came
        passed = came
    gradient.copy_(total / workers)


@wrong("average")
def not_divided(gradient: Any) -> None:
    dist().all_reduce(gradient)


@wrong("average")
def divided_twice(gradient: Any) -> None:
    halves_first(gradient)
    gradient /= dist().get_world_size()


@wrong("average")
def returned_only(gradient: Any) -> Any:
    total = gradient.clone()
    dist().all_reduce(total)
    return total / dist().get_world_size()


@wrong("average")
def always_two(gradient: Any) -> None:
    dist().all_reduce(gradient)
    gradient /= 2


@wrong("average")
def rank_0_for_all(gradient: Any) -> None:
    dist().broadcast(gradient, src=0)


@wrong("average")
def the_largest(gradient: Any) -> None:
    dist().all_reduce(gradient, op=dist().ReduceOp.MAX)


@wrong("average")
def divides_its_own(gradient: Any) -> None:
    gradient /= dist().get_world_size()


@wrong("average")
def one_hop(gradient: Any) -> None:
    import torch

    rank, workers = dist().get_rank(), dist().get_world_size()
    came = torch.empty_like(gradient)
    sent = dist().isend(gradient.clone(), (rank + 1) % workers)
    dist().recv(came, (rank - 1) % workers)
    sent.wait()
    gradient += came
    gradient /= workers


@wrong("average")
def all_receive_first(gradient: Any) -> None:
    import torch

    came = torch.empty_like(gradient)
    dist().recv(came, (dist().get_rank() + 1) % dist().get_world_size())
    dist().send(gradient, (dist().get_rank() - 1) % dist().get_world_size())


@wrong("average")
def as_a_model(gradient: Any) -> None:
    import torch
    from torch.distributed.algorithms.model_averaging.utils import average_parameters

    mine = torch.nn.Parameter(gradient)
    average_parameters(iter([mine]), dist().group.WORLD)
    gradient.copy_(mine.data)


@wrong("average")
def ready_made_average(gradient: Any) -> None:
    import torch.distributed.nn.functional as nn

    gradient.copy_(nn.all_reduce(gradient) / dist().get_world_size())


@wrong("average")
def endless(gradient: Any) -> None:
    while True:
        pass


# --- data_parallel ---


class Plain:
    """What the solution does, to be changed."""

    def __init__(self, module: Any) -> None:
        self.module = module
        broadcast(state(module))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.module(*args, **kwargs)

    def finish(self) -> None:
        for p in self.module.parameters():
            halves_first(p.grad)


@right("data_parallel")
class OneBucket(Plain):
    def finish(self) -> None:
        import torch

        grads = [p.grad for p in self.module.parameters()]
        flat = torch.cat([g.ravel() for g in grads]).double()
        halves_first(flat)
        for g, piece in zip(grads, flat.split([g.numel() for g in grads]), strict=True):
            g.copy_(piece.reshape(g.shape))


@right("data_parallel")
class WithHooks(Plain):
    """Each gradient leaves as soon as it is ready."""

    def __init__(self, module: Any) -> None:
        super().__init__(module)
        self.begun: list[Any] = []
        for p in module.parameters():
            p.register_post_accumulate_grad_hook(self.ready)

    def ready(self, p: Any) -> None:
        self.begun.append((p, dist().all_reduce(p.grad, async_op=True)))

    def finish(self) -> None:
        for p, work in self.begun:
            work.wait()
            p.grad /= dist().get_world_size()
        self.begun.clear()


@right("data_parallel")
def as_a_module(module: Any) -> Any:
    import torch

    class Wrapped(torch.nn.Module):
        def __init__(self, inner: Any) -> None:
            super().__init__()
            self.module = inner
            broadcast(state(inner))

        def forward(self, *args: Any) -> Any:
            return self.module(*args)

        def finish(self) -> None:
            for p in self.parameters():
                through_rank_0(p.grad)

    return Wrapped(module)


@wrong("data_parallel")
class NoBroadcast(Plain):
    def __init__(self, module: Any) -> None:
        self.module = module


@wrong("data_parallel")
class FinishesNothing(Plain):
    def finish(self) -> None:
        pass


@wrong("data_parallel")
class Sums(Plain):
    def finish(self) -> None:
        for p in self.module.parameters():
            dist().all_reduce(p.grad)


@wrong("data_parallel")
class FirstLayer(Plain):
    def finish(self) -> None:
        for p in self.module[0].parameters():
            halves_first(p.grad)


@wrong("data_parallel")
class AveragesCopies(Plain):
    def finish(self) -> None:
        for p in self.module.parameters():
            halves_first(p.grad.clone())


@wrong("data_parallel")
class BroadcastsEachTime(Plain):
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        broadcast(state(self.module))
        return self.module(*args, **kwargs)


@wrong("data_parallel")
class Copies(Plain):
    def __init__(self, module: Any) -> None:
        import copy

        super().__init__(copy.deepcopy(module))


@wrong("data_parallel")
class BroadcastsGradients(Plain):
    def finish(self) -> None:
        broadcast(p.grad for p in self.module.parameters())


@wrong("data_parallel")
class ReturnsNothing(Plain):
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.module(*args, **kwargs)


@wrong("data_parallel")
class Leaves(Plain):
    def finish(self) -> None:
        import sys

        sys.exit(0)


@wrong("data_parallel")
class Ddp:
    def __init__(self, module: Any) -> None:
        from torch.nn.parallel import DistributedDataParallel

        self.module, self.ddp = module, DistributedDataParallel(module)

    def __call__(self, *args: Any) -> Any:
        return self.ddp(*args)

    def finish(self) -> None:
        pass


def cpu() -> Any:
    import torch

    return torch.device("cpu")


@wrong("data_parallel")
class Fsdp(Ddp):
    def __init__(self, module: Any) -> None:
        from torch.distributed.fsdp import FullyShardedDataParallel

        self.module, self.ddp = module, FullyShardedDataParallel(module, device_id=cpu())


@wrong("data_parallel")
class FullyShard(Ddp):
    def __init__(self, module: Any) -> None:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        mesh = init_device_mesh("cpu", (dist().get_world_size(),))
        self.module = self.ddp = fully_shard(module, mesh=mesh)


@wrong("data_parallel")
class OneProcess(Ddp):
    def __init__(self, module: Any) -> None:
        import torch

        self.module, self.ddp = module, torch.nn.DataParallel(module)


# --- awkward_model ---


def with_zeros(p: Any) -> Any:
    import torch

    if p.grad is None:
        p.grad = torch.zeros_like(p)
    return p.grad


class Careful(Plain):
    def finish(self) -> None:
        for p in self.module.parameters():
            if p.requires_grad:
                halves_first(with_zeros(p))


@right("awkward_model")
class Careful1(Careful):
    pass


@right("awkward_model")
class CarefulBucket(Plain):
    def finish(self) -> None:
        import torch

        trained = [p for p in self.module.parameters() if p.requires_grad]
        flat = torch.cat([with_zeros(p).ravel() for p in trained])
        halves_first(flat)
        for p, piece in zip(trained, flat.split([p.numel() for p in trained]), strict=True):
            p.grad = piece.reshape(p.shape).clone()


@right("awkward_model")
class WithFlags(Plain):
    """What nobody used stays without a gradient."""

    def finish(self) -> None:
        import torch

        trained = [p for p in self.module.parameters() if p.requires_grad]
        used = torch.tensor([float(p.grad is not None) for p in trained])
        dist().all_reduce(used)
        for p, by in zip(trained, used.tolist(), strict=True):
            if by:
                halves_first(with_zeros(p))


@wrong("awkward_model")
class NotCareful(Plain):
    pass


@wrong("awkward_model")
class SkipsNone(Plain):
    def finish(self) -> None:
        for p in self.module.parameters():
            if p.grad is not None:
                halves_first(p.grad)


@wrong("awkward_model")
class ZerosForFrozen(Plain):
    def finish(self) -> None:
        for p in self.module.parameters():
            halves_first(with_zeros(p))


@wrong("awkward_model")
class TiedTwice(Plain):
    def finish(self) -> None:
        for _, p in self.module.named_parameters(remove_duplicate=False):
            if p.requires_grad:
                dist().all_reduce(with_zeros(p))
                p.grad /= dist().get_world_size()


@wrong("awkward_model")
class MeanOfThoseWhoUsed(Plain):
    def finish(self) -> None:
        import torch

        for p in self.module.parameters():
            if p.requires_grad:
                used = torch.tensor(float(p.grad is not None))
                dist().all_reduce(with_zeros(p))
                dist().all_reduce(used)
                p.grad /= max(used.item(), 1)


@wrong("awkward_model")
class KeepsNone(Plain):
    def finish(self) -> None:
        import torch

        for p in self.module.parameters():
            if p.requires_grad:
                grad = torch.zeros_like(p) if p.grad is None else p.grad
                halves_first(grad)


@wrong("awkward_model")
class NoBuffers(Careful):
    def __init__(self, module: Any) -> None:
        self.module = module
        broadcast(module.parameters())


@wrong("awkward_model")
class FrozenLeftOut(Careful):
    def __init__(self, module: Any) -> None:
        self.module = module
        broadcast([p for p in module.parameters() if p.requires_grad])
        broadcast(module.buffers())


@wrong("awkward_model")
class Untied(Careful):
    def __init__(self, module: Any) -> None:
        import torch

        super().__init__(module)
        module.last.weight = torch.nn.Parameter(module.first.weight.detach().clone())


@wrong("awkward_model")
class SendsFrozenToo(Careful):
    def finish(self) -> None:
        super().finish()
        for p in self.module.parameters():
            broadcast([p])


@wrong("awkward_model")
class SumsOnly(Plain):
    def finish(self) -> None:
        for p in self.module.parameters():
            if p.requires_grad:
                dist().all_reduce(with_zeros(p))


@wrong("awkward_model")
class DdpUnused(Ddp):
    def __init__(self, module: Any) -> None:
        from torch.nn.parallel import DistributedDataParallel

        self.module = module
        self.ddp = DistributedDataParallel(module, find_unused_parameters=True)

    def __call__(self, *args: Any, **named: Any) -> Any:
        return self.ddp(*args, **named)
