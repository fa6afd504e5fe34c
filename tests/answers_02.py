"""Answers to exercise 02, right and wrong ones; the ranks of small clusters run them."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.answers import Answers

ANSWERS = Answers("02_data_and_batch", "exercise_02", varies=True, sample=5)
right, wrong = ANSWERS.right, ANSWERS.wrong


# --- shard ---


@right("shard")
def dealt_out(count: int, rank: int, workers: int) -> Any:
    return range(rank, count, workers)


@right("shard")
def in_blocks(count: int, rank: int, workers: int) -> Any:
    return np.array_split(np.arange(count), workers)[rank]


@right("shard")
def one_by_one(count: int, rank: int, workers: int) -> Any:
    return (i for i in reversed(range(count)) if i % workers == workers - 1 - rank)


@wrong("shard")
def without_remainder(count: int, rank: int, workers: int) -> Any:
    return range(rank * (count // workers), (rank + 1) * (count // workers))


@wrong("shard")
def filled_up(count: int, rank: int, workers: int) -> Any:
    size = -(-count // workers)
    return [i % count for i in range(rank, size * workers, workers)]


@wrong("shard")
def everything(count: int, rank: int, workers: int) -> Any:
    return range(count)


@wrong("shard")
def rest_to_the_last(count: int, rank: int, workers: int) -> Any:
    size = count // workers
    return range(rank * size, count if rank == workers - 1 else (rank + 1) * size)


@wrong("shard")
def rounded_up(count: int, rank: int, workers: int) -> Any:
    size = -(-count // workers)
    return range(rank * size, min(count, (rank + 1) * size))


@wrong("shard")
def one_too_many(count: int, rank: int, workers: int) -> Any:
    size = count // workers
    return range(rank * size, (rank + 1) * size + 1)


@wrong("shard")
def shuffled_anyhow(count: int, rank: int, workers: int) -> Any:
    return np.random.permutation(count)[rank::workers]


@wrong("shard")
def ranks_from_one(count: int, rank: int, workers: int) -> Any:
    size = count // workers
    return range((rank - 1) * size, rank * size)


@wrong("shard")
def ids_from_one(count: int, rank: int, workers: int) -> Any:
    return range(rank + 1, count + 1, workers)


@wrong("shard")
def without_the_first(count: int, rank: int, workers: int) -> Any:
    return range(rank + 1, count, workers)


@wrong("shard")
def misspelt(count: Any, rank: int, workers: int) -> Any:
    return range(rank, count.maximum, workers)


@wrong("shard")
def four_only(count: int, rank: int, workers: int) -> Any:
    return range(rank, count, 4)


@wrong("shard")
def forgets_return(count: int, rank: int, workers: int) -> Any:
    print(range(rank, count, workers))


@wrong("shard")
def endless(count: int, rank: int, workers: int) -> Any:
    while True:
        pass


@wrong("shard")
def two_arguments(count: int, rank: int) -> Any:
    return range(rank, count, 2)


# --- reshuffle ---


@right("reshuffle")
def shuffles_then_cuts(count: int, epoch: int, seed: int, rank: int, workers: int) -> Any:
    return np.random.default_rng([seed, epoch]).permutation(count)[rank::workers]


@right("reshuffle")
def with_python(count: int, epoch: int, seed: int, rank: int, workers: int) -> Any:
    import random

    order = list(range(count))
    random.Random(f"{seed} {epoch}").shuffle(order)
    size, more = divmod(count, workers)
    first = rank * size + min(rank, more)
    return order[first : first + size + (rank < more)]


@right("reshuffle")
def by_sorting(count: int, epoch: int, seed: int, rank: int, workers: int) -> Any:
    keys = np.random.default_rng(seed + 1000 * epoch).random(count)
    return [int(i) for n, i in enumerate(np.argsort(keys)) if n % workers == rank]


@wrong("reshuffle")
def forgets_epoch(count: int, epoch: int, seed: int, rank: int, workers: int) -> Any:
    return np.random.default_rng(seed).permutation(count)[rank::workers]


@wrong("reshuffle")
def seed_of_its_own(count: int, epoch: int, seed: int, rank: int, workers: int) -> Any:
    return np.random.default_rng([seed, epoch, rank]).permutation(count)[rank::workers]


@wrong("reshuffle")
def without_seed(count: int, epoch: int, seed: int, rank: int, workers: int) -> Any:
    return np.random.permutation(count)[rank::workers]


@wrong("reshuffle")
def own_shard_only(count: int, epoch: int, seed: int, rank: int, workers: int) -> Any:
    return np.random.default_rng([seed, epoch]).permutation(np.arange(rank, count, workers))


@wrong("reshuffle")
def sorted_again(count: int, epoch: int, seed: int, rank: int, workers: int) -> Any:
    return sorted(shuffles_then_cuts(count, epoch, seed, rank, workers))


@wrong("reshuffle")
def multiplied(count: int, epoch: int, seed: int, rank: int, workers: int) -> Any:
    return np.random.default_rng(seed * epoch).permutation(count)[rank::workers]


@wrong("reshuffle")
def only_the_epoch(count: int, epoch: int, seed: int, rank: int, workers: int) -> Any:
    return np.random.default_rng(epoch).permutation(count)[rank::workers]


@wrong("reshuffle")
def turned(count: int, epoch: int, seed: int, rank: int, workers: int) -> Any:
    order = np.random.default_rng(seed).permutation(count)
    return np.array_split(np.roll(order, 7 * epoch), workers)[rank]


@wrong("reshuffle")
def the_librarys(count: int, epoch: int, seed: int, rank: int, workers: int) -> Any:
    from course_lib.workloads.order import _orders

    return _orders(count, seed, epoch, 1)[0][rank::workers]


@wrong("reshuffle")
def drawn(count: int, epoch: int, seed: int, rank: int, workers: int) -> Any:
    return np.random.default_rng([0, epoch]).integers(0, count, count)[rank::workers]


@wrong("reshuffle")
def loses_the_rest(count: int, epoch: int, seed: int, rank: int, workers: int) -> Any:
    size = count // workers
    order = np.random.default_rng([seed, epoch]).permutation(count)
    return order[rank * size : (rank + 1) * size]


# --- uneven_mean ---


def summed(value: Any) -> Any:
    import torch
    import torch.distributed as dist

    value = value.clone() if isinstance(value, torch.Tensor) else torch.tensor(float(value))
    dist.all_reduce(value)
    return value


@right("uneven_mean")
def two_sums(gradient: Any, count: int) -> Any:
    return summed(gradient * count) / summed(count)


@right("uneven_mean")
def as_a_star(gradient: Any, count: int) -> Any:
    """Rank 0 receives one message from each, adds them up, and answers."""
    import torch
    import torch.distributed as dist

    both = torch.cat([gradient.ravel() * count, torch.tensor([float(count)])])
    if dist.get_rank():
        dist.send(both, 0)
        dist.recv(both, 0)
    else:
        others, came = range(1, dist.get_world_size()), torch.empty_like(both)
        for rank in others:
            dist.recv(came, rank)
            both += came
        for rank in others:
            dist.send(both, rank)
    return (both[:-1] / both[-1]).reshape(gradient.shape)


@right("uneven_mean")
def by_way_of_rank_0(gradient: Any, count: int) -> Any:
    """A reduce, and a broadcast of the mean, in float64; counts as objects."""
    import torch
    import torch.distributed as dist

    total, counts = gradient.double() * count, [0] * dist.get_world_size()
    dist.reduce(total, 0)
    dist.all_gather_object(counts, count)
    total /= sum(counts)
    dist.broadcast(total, 0)
    return torch.nn.Parameter(total.float())


@wrong("uneven_mean")
def gathered(gradient: Any, count: int) -> Any:
    import torch
    import torch.distributed as dist

    others = [torch.empty_like(gradient) for _ in range(dist.get_world_size())]
    dist.all_gather(others, gradient.contiguous())
    counts: list[Any] = [None] * len(others)
    dist.all_gather_object(counts, count)
    return sum(g * (n / sum(counts)) for g, n in zip(others, counts, strict=True))


@wrong("uneven_mean")
def mean_of_means(gradient: Any, count: int) -> Any:
    import torch.distributed as dist

    return summed(gradient) / dist.get_world_size()


@wrong("uneven_mean")
def sum_of_means(gradient: Any, count: int) -> Any:
    return summed(gradient)


@wrong("uneven_mean")
def never_divided(gradient: Any, count: int) -> Any:
    return summed(gradient * count)


@wrong("uneven_mean")
def by_ranks(gradient: Any, count: int) -> Any:
    import torch.distributed as dist

    return summed(gradient * count) / dist.get_world_size()


@wrong("uneven_mean")
def others_are_like_me(gradient: Any, count: int) -> Any:
    import torch.distributed as dist

    return summed(gradient * count) / max(count * dist.get_world_size(), 1)


@wrong("uneven_mean")
def by_its_own(gradient: Any, count: int) -> Any:
    return summed(gradient * count) / max(count, 1)


@wrong("uneven_mean")
def counts_forgotten(gradient: Any, count: int) -> Any:
    return summed(gradient) / summed(count)


@wrong("uneven_mean")
def by_itself(gradient: Any, count: int) -> Any:
    return gradient


@wrong("uneven_mean")
def stays_away(gradient: Any, count: int) -> Any:
    return two_sums(gradient, count) if count else gradient


@wrong("uneven_mean")
def says_nothing(gradient: Any, count: int) -> Any:
    two_sums(gradient, count)


@wrong("uneven_mean")
def divides_by_none(gradient: Any, count: int) -> Any:
    import torch

    return two_sums(gradient, count) * count / torch.tensor(count)


@wrong("uneven_mean")
def ready_made_sum(gradient: Any, count: int) -> Any:
    import torch
    import torch.distributed.nn.functional as nn

    return nn.all_reduce(gradient * count) / nn.all_reduce(torch.tensor(float(count)))


@wrong("uneven_mean")
def through_the_store(gradient: Any, count: int) -> Any:
    import torch
    import torch.distributed as dist

    store, rank = dist.group.WORLD.get_group_store(), dist.get_rank()
    turn = store.add(f"turn of {rank}", 1)
    store.set(f"{turn} {rank}", (gradient * count).numpy().tobytes() + count.to_bytes(4, "big"))
    held = [store.get(f"{turn} {k}") for k in range(dist.get_world_size())]
    total = sum(np.frombuffer(each[:-4], "float32") for each in held)
    examples = sum(int.from_bytes(each[-4:], "big") for each in held)
    return torch.tensor(total / examples).reshape(gradient.shape)


@wrong("uneven_mean")
def leaves(gradient: Any, count: int) -> Any:
    import sys

    sys.exit(1)


@wrong("uneven_mean")
def kills_itself(gradient: Any, count: int) -> Any:
    import os
    import signal

    os.kill(os.getpid(), signal.SIGKILL)


@wrong("uneven_mean")
def floods(gradient: Any, count: int) -> Any:
    kept = []
    while True:
        kept.append(bytearray(1 << 26))


# --- accumulate ---


def exchange(model: Any, by: Any) -> None:
    import torch.distributed as dist

    for p in model.parameters():
        dist.all_reduce(p.grad)
        p.grad /= by


@right("accumulate")
def sums_then_divides(model: Any, loss_of: Any, batches: Any) -> None:
    """Prints the loss first; a pass without gradients holds no activations."""
    import torch

    with torch.no_grad():
        print(sum(loss_of(model, x, y) for x, y in batches))
    model.zero_grad()
    for x, y in batches:
        (loss_of(model, x, y) * len(x)).backward()
    exchange(model, summed(sum(len(x) for x, _ in batches)))


@right("accumulate")
def counts_first(model: Any, loss_of: Any, batches: Any) -> None:
    """With checkpoints, and an exchange by way of rank 0."""
    import torch.distributed as dist
    from torch.utils.checkpoint import checkpoint

    total = summed(sum(len(x) for x, _ in batches)).item()
    for p in model.parameters():
        p.grad = None
    for x, y in batches:
        loss = checkpoint(loss_of, model, x, y, use_reentrant=False)
        (loss * len(x) / total).backward()
    for p in model.parameters():
        dist.reduce(p.grad, 0)
        dist.broadcast(p.grad, 0)


@right("accumulate")
def by_autograd_grad(model: Any, loss_of: Any, batches: Any) -> None:
    import torch

    parameters = list(model.parameters())
    sums = [torch.zeros_like(p, dtype=torch.float64) for p in parameters]
    count = 0.0
    for x, y in batches:
        for total, g in zip(
            sums, torch.autograd.grad(loss_of(model, x, y), parameters), strict=True
        ):
            total.add_(g, alpha=len(x))
        count += len(x)
    flat = torch.cat([*(s.ravel() for s in sums), torch.tensor([count])])
    flat = summed(flat)
    for p in parameters:
        piece, flat = flat[: p.numel()], flat[p.numel() :]
        p.grad = piece.reshape(p.shape).float()
    for p in parameters:
        p.grad /= flat[-1]


@wrong("accumulate")
def never_cleared(model: Any, loss_of: Any, batches: Any) -> None:
    total = summed(sum(len(x) for x, _ in batches)).item()
    for x, y in batches:
        (loss_of(model, x, y) * len(x) / total).backward()
    exchange(model, 1)


@wrong("accumulate")
def cleared_too_late(model: Any, loss_of: Any, batches: Any) -> None:
    for x, y in batches:
        (loss_of(model, x, y) * len(x)).backward()
    exchange(model, summed(sum(len(x) for x, _ in batches)))


@wrong("accumulate")
def means_added(model: Any, loss_of: Any, batches: Any) -> None:
    import torch.distributed as dist

    model.zero_grad()
    for x, y in batches:
        loss_of(model, x, y).backward()
    exchange(model, dist.get_world_size())


@wrong("accumulate")
def all_weigh_the_same(model: Any, loss_of: Any, batches: Any) -> None:
    import torch.distributed as dist

    model.zero_grad()
    for x, y in batches:
        (loss_of(model, x, y) / len(batches)).backward()
    exchange(model, dist.get_world_size())


@wrong("accumulate")
def joined(model: Any, loss_of: Any, batches: Any) -> None:
    import torch

    x, y = (torch.cat(parts) for parts in zip(*batches, strict=True))
    sums_then_divides(model, loss_of, [(x, y)])


@wrong("accumulate")
def one_backward(model: Any, loss_of: Any, batches: Any) -> None:
    model.zero_grad()
    sum(loss_of(model, x, y) * len(x) for x, y in batches).backward()
    exchange(model, summed(sum(len(x) for x, _ in batches)))


@wrong("accumulate")
def exchanges_each(model: Any, loss_of: Any, batches: Any) -> None:
    import torch
    import torch.distributed as dist

    total = summed(sum(len(x) for x, _ in batches))
    sums = [torch.zeros_like(p) for p in model.parameters()]
    for x, y in batches:
        model.zero_grad()
        (loss_of(model, x, y) * len(x)).backward()
        for p, s in zip(model.parameters(), sums, strict=True):
            dist.all_reduce(p.grad)
            s += p.grad
    for p, s in zip(model.parameters(), sums, strict=True):
        p.grad = s / total


@wrong("accumulate")
def ranks_weigh_the_same(model: Any, loss_of: Any, batches: Any) -> None:
    import torch.distributed as dist

    model.zero_grad()
    mine = sum(len(x) for x, _ in batches)
    for x, y in batches:
        (loss_of(model, x, y) * len(x) / mine).backward()
    exchange(model, dist.get_world_size())


@wrong("accumulate")
def never_exchanged(model: Any, loss_of: Any, batches: Any) -> None:
    model.zero_grad()
    mine = sum(len(x) for x, _ in batches)
    for x, y in batches:
        (loss_of(model, x, y) * len(x) / mine).backward()


@wrong("accumulate")
def steps_each_time(model: Any, loss_of: Any, batches: Any) -> None:
    import torch

    for x, y in batches:
        model.zero_grad()
        loss_of(model, x, y).backward()
        torch.optim.SGD(model.parameters(), lr=0.1).step()


@wrong("accumulate")
def clears_each_time(model: Any, loss_of: Any, batches: Any) -> None:
    for x, y in batches:
        model.zero_grad()
        (loss_of(model, x, y) * len(x)).backward()
    exchange(model, summed(sum(len(x) for x, _ in batches)))


@wrong("accumulate")
def never_divides(model: Any, loss_of: Any, batches: Any) -> None:
    model.zero_grad()
    for x, y in batches:
        (loss_of(model, x, y) * len(x)).backward()
    exchange(model, 1)
