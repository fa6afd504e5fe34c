"""Answers to the tasks of exercise 06 that run on real processes, right and wrong ones."""

from __future__ import annotations

import statistics
from typing import Any

from tests.answers import Answers

ANSWERS = Answers("06_overlap", "exercise_06", varies=True, sample=5)
right, wrong = ANSWERS.right, ANSWERS.wrong


def dist() -> Any:
    import torch.distributed

    return torch.distributed


def trained(module: Any) -> list[Any]:
    return [p for p in module.parameters() if p.requires_grad]


def hooked(parameters: Any, hook: Any) -> None:
    for parameter in parameters:
        parameter.register_post_accumulate_grad_hook(hook)


def leaving(module: Any, before: Any = None, after: Any = None, parameters: Any = None) -> Any:
    """Ours, in parts that an answer may replace."""
    held: list[Any] = []

    def hook(p: Any) -> None:
        if before:
            before(p)
        held.append((p, dist().all_reduce(p.grad, async_op=True)))

    def finish() -> None:
        for p, handle in held:
            handle.wait()
            (after or averaged)(p)
        held.clear()

    hooked(parameters or trained(module), hook)
    return finish


def averaged(p: Any) -> None:
    p.grad /= dist().get_world_size()


# --- leave_early ---


@right("leave_early")
def divides_first(module: Any) -> Any:
    return leaving(module, before=averaged, after=lambda p: None)


@right("leave_early")
class Leaving:
    """A class whose object is called; the all-reduce has a name of its own."""

    def __init__(self, module: Any) -> None:
        from torch.distributed import ReduceOp, all_reduce

        self.sent: dict[Any, Any] = {}
        for p in filter(lambda p: p.requires_grad, set(module.parameters())):
            p.register_post_accumulate_grad_hook(
                lambda p: self.sent.update({p: all_reduce(p.grad, ReduceOp.SUM, None, True)})
            )

    def __call__(self) -> None:
        while self.sent:
            p, handle = self.sent.popitem()
            handle.wait()
            averaged(p)


@right("leave_early")
def by_futures_into_copies(module: Any) -> Any:
    """Sends a copy, and takes the sum from the future of its handle."""
    futures: dict[Any, Any] = {}

    def hook(p: Any) -> None:
        futures[p] = dist().all_reduce(p.grad.clone(), async_op=True).get_future()

    def finish() -> None:
        for p, future in futures.items():
            p.grad = future.wait()[0] / dist().get_world_size()

    hooked(trained(module), hook)
    return finish


@right("leave_early")
def in_a_thread(module: Any) -> Any:
    """Another thread makes the calls, one after the other, and waits for them."""
    from concurrent.futures import ThreadPoolExecutor

    thread, sent = ThreadPoolExecutor(1), list[Any]()

    def finish() -> None:
        for p, done in sent:
            done.result()
            averaged(p)
        sent.clear()

    hooked(trained(module), lambda p: sent.append((p, thread.submit(dist().all_reduce, p.grad))))
    return finish


@wrong("leave_early")
def ddp(module: Any) -> Any:
    from torch.nn.parallel import DistributedDataParallel

    DistributedDataParallel(module)
    return lambda: None


@wrong("leave_early")
def no_finish(module: Any) -> None:
    leaving(module)


@wrong("leave_early")
def returns_handles(module: Any) -> Any:
    return [leaving(module)]


@wrong("leave_early")
def all_at_the_end(module: Any) -> Any:
    def finish() -> None:
        for p in trained(module):
            dist().all_reduce(p.grad)
            averaged(p)

    return finish


@wrong("leave_early")
def waits_at_once(module: Any) -> Any:
    def hook(p: Any) -> None:
        dist().all_reduce(p.grad)
        averaged(p)

    hooked(trained(module), hook)
    return lambda: None


@wrong("leave_early")
def waits_for_its_handle(module: Any) -> Any:
    def hook(p: Any) -> None:
        dist().all_reduce(p.grad, async_op=True).wait()

    hooked(trained(module), hook)
    return lambda: [averaged(p) for p in trained(module)]


@wrong("leave_early")
def never_waits(module: Any) -> Any:
    hooked(trained(module), lambda p: dist().all_reduce(p.grad, async_op=True) and None)
    return lambda: [averaged(p) for p in trained(module)]


@wrong("leave_early")
def sums(module: Any) -> Any:
    return leaving(module, after=lambda p: None)


@wrong("leave_early")
def divides_twice(module: Any) -> Any:
    return leaving(module, before=averaged)


@wrong("leave_early")
def keeps_its_handles(module: Any) -> Any:
    held: list[Any] = []
    hooked(trained(module), lambda p: held.append((p, dist().all_reduce(p.grad, async_op=True))))

    def finish() -> None:
        for p, handle in held:
            handle.wait()
            averaged(p)

    return finish


@wrong("leave_early")
def a_hook_for_each_layer(module: Any) -> Any:
    layers = [layer.weight for layer in module.layers]
    return leaving(module, parameters=[p for p in layers if p.requires_grad])


@wrong("leave_early")
def of_frozen_ones_too(module: Any) -> Any:
    return leaving(module, parameters=list(module.parameters()))


@wrong("leave_early")
def all_but_the_last(module: Any) -> Any:
    return leaving(module, parameters=trained(module)[1:])


@wrong("leave_early")
def keeps_everything(module: Any) -> Any:
    return lambda: [averaged(p) for p in trained(module)]


# --- bucketed ---


def filled(parameters: list[Any], most: float, each: int = 4) -> list[list[Any]]:
    buckets: list[list[Any]] = []
    for p in parameters:
        if buckets and sum(each * q.numel() for q in [*buckets[-1], p]) <= most:
            buckets[-1].append(p)
        else:
            buckets.append([p])
    return buckets


def in_buckets(
    buckets: list[list[Any]],
    again: bool = True,
    share: Any = None,
    wait: bool = True,
    at_once: bool = False,
    back: int = 1,
    into: bool = True,
) -> Any:
    """Ours, with the parts in which answers differ."""
    import torch

    missing = [len(bucket) for bucket in buckets]
    sent: list[Any] = []

    def hook(p: Any) -> None:
        b = next(b for b, bucket in enumerate(buckets) if any(p is q for q in bucket))
        missing[b] -= 1
        if missing[b] == 0:
            flat = torch.cat([q.grad.flatten() for q in buckets[b]])
            handle = dist().all_reduce(flat, async_op=True)
            if at_once:
                handle.wait()
            sent.append((buckets[b], flat, handle))

    def finish() -> None:
        for bucket, flat, handle in sent:
            if wait:
                handle.wait()
            parts = (flat / (share or dist().get_world_size())).chunk(len(bucket))[::back]
            for p, part in zip(bucket, parts, strict=True):
                if into:
                    p.grad.copy_(part.view_as(p))
        sent.clear()
        if again:
            missing[:] = [len(bucket) for bucket in buckets]

    hooked([p for bucket in buckets for p in bucket], hook)
    return finish


@right("bucketed")
def counts_down(module: Any, bucket_mb: float) -> Any:
    return in_buckets(filled(trained(module)[::-1], bucket_mb * 2**20))


@right("bucketed")
def into_one_buffer(module: Any, bucket_mb: float) -> Any:
    """Each bucket has a buffer for good, and the gradients become views of it."""
    import torch

    buffers = []
    for bucket in filled(trained(module)[::-1], bucket_mb * 1024 * 1024):
        flat = torch.zeros(sum(p.numel() for p in bucket))
        buffers.append((bucket, flat, flat.split([p.numel() for p in bucket]), set[int]()))
    place = {id(p): (*b, i) for b in buffers for i, p in enumerate(b[0])}
    handles: list[Any] = []

    def hook(p: Any) -> None:
        bucket, flat, parts, there, i = place[id(p)]
        parts[i].copy_(p.grad.reshape(-1))
        there.add(i)
        if len(there) == len(bucket):
            flat.div_(dist().get_world_size())
            handles.append(dist().all_reduce(flat, async_op=True))
            there.clear()

    def finish() -> None:
        while handles:
            handles.pop().wait()
        for bucket, _, parts, _ in buffers:
            for p, part in zip(bucket, parts, strict=True):
                p.grad = part.view(p.shape)

    hooked(trained(module), hook)
    return finish


@right("bucketed")
class Bucketed:
    """Buckets are filled as the gradients come, and not planned before."""

    def __init__(self, module: Any, bucket_mb: float) -> None:
        self.most, self.all = bucket_mb * 2**20, trained(module)
        self.seen, self.bucket, self.sent = 0, list[Any](), list[Any]()
        hooked(self.all, self.ready)

    def ready(self, p: Any) -> None:
        if sum(q.grad.nbytes for q in [*self.bucket, p]) > self.most:
            self.leave()
        self.bucket.append(p)
        self.seen += 1
        if self.seen == len(self.all) or sum(q.grad.nbytes for q in self.bucket) >= self.most:
            self.leave()

    def leave(self) -> None:
        from torch.nn.utils import parameters_to_vector

        if self.bucket:
            flat = parameters_to_vector([p.grad for p in self.bucket])
            self.sent.append((self.bucket, flat, dist().all_reduce(flat, async_op=True)))
        self.bucket = []

    def __call__(self) -> None:
        from torch.nn.utils import vector_to_parameters

        for bucket, flat, handle in self.sent:
            handle.wait()
            vector_to_parameters(flat / dist().get_world_size(), [p.grad for p in bucket])
        self.sent, self.seen = [], 0


def ours(module: Any, bucket_mb: float, **parts: Any) -> Any:
    return in_buckets(filled(trained(module)[::-1], bucket_mb * 2**20), **parts)


@wrong("bucketed")
def numbers_for_bytes(module: Any, bucket_mb: float) -> Any:
    return in_buckets(filled(trained(module)[::-1], bucket_mb * 2**20, each=1))


@wrong("bucketed")
def megabytes_for_bytes(module: Any, bucket_mb: float) -> Any:
    return in_buckets(filled(trained(module)[::-1], bucket_mb))


@wrong("bucketed")
def a_million_bytes(module: Any, bucket_mb: float) -> Any:
    return in_buckets(filled(trained(module)[::-1], bucket_mb * 10**6))


@wrong("bucketed")
def forwards(module: Any, bucket_mb: float) -> Any:
    return in_buckets(filled(trained(module), bucket_mb * 2**20))


@wrong("bucketed")
def at_the_end(module: Any, bucket_mb: float) -> Any:
    import torch

    def finish() -> None:
        for bucket in filled(trained(module)[::-1], bucket_mb * 2**20):
            flat = torch.cat([p.grad.flatten() for p in bucket])
            dist().all_reduce(flat)
            for p, part in zip(bucket, flat.chunk(len(bucket)), strict=True):
                p.grad.copy_(part.view_as(p) / dist().get_world_size())

    return finish


@wrong("bucketed")
def waits_for_buckets(module: Any, bucket_mb: float) -> Any:
    return ours(module, bucket_mb, at_once=True)


@wrong("bucketed")
def never_waits_for_buckets(module: Any, bucket_mb: float) -> Any:
    return ours(module, bucket_mb, wait=False)


@wrong("bucketed")
def counts_once(module: Any, bucket_mb: float) -> Any:
    return ours(module, bucket_mb, again=False)


@wrong("bucketed")
def only_full_ones(module: Any, bucket_mb: float) -> Any:
    buckets = filled(trained(module)[::-1], bucket_mb * 2**20)
    return in_buckets(buckets[:-1])


@wrong("bucketed")
def sums_of_buckets(module: Any, bucket_mb: float) -> Any:
    return ours(module, bucket_mb, share=1)


@wrong("bucketed")
def not_put_back(module: Any, bucket_mb: float) -> Any:
    return ours(module, bucket_mb, into=False)


@wrong("bucketed")
def put_back_in_another_order(module: Any, bucket_mb: float) -> Any:
    return ours(module, bucket_mb, back=-1)


# --- best_size: wrong ones are in tests/unit ---


@right("best_size")
def medians(measure: Any, sizes: list[float]) -> Any:
    return min(sizes, key=lambda size: statistics.median(measure(size) for _ in range(5)))


@right("best_size")
def shortest_of_rounds(measure: Any, sizes: list[float]) -> Any:
    """Goes through the sizes again and again."""
    rounds = [[measure(size) for size in sizes] for _ in range(6)]
    best = [min(times) for times in zip(*rounds, strict=True)]
    return sizes[best.index(min(best))]


@right("best_size")
def without_the_slow_half(measure: Any, sizes: list[float]) -> Any:
    import numpy as np

    means = [np.mean(sorted(measure(size) for _ in range(8))[:4]) for size in sizes]
    return sizes[int(np.argmin(means))]
