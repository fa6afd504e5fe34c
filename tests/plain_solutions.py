"""The answers of exercises as plain modules, each rank a process of torch's own: `torchrun` or
`torch.multiprocessing` starts it, and nothing of this library is imported.

    torchrun --nproc-per-node 3 tests/plain_solutions.py
    python tests/plain_solutions.py 3 NEW_FILE
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.functional import mse_loss

SOLUTIONS = Path(__file__).parents[1] / "solutions"
STEPS, EACH = 6, 4  # examples of a rank in a step


class Tied(nn.Module):
    """A model with tied weights, and one that is never trained."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(10, 13), nn.Linear(13, 13, bias=False)
        self.third, self.last = nn.Linear(13, 13, bias=False), nn.Linear(13, 5)
        self.third.weight = self.second.weight
        self.fixed = nn.Parameter(torch.tensor([2.0, 2.0]), requires_grad=False)

    def forward(self, x: Any) -> Any:
        x = torch.relu(self.first(x))
        return self.last(torch.relu(self.third(torch.relu(self.second(x))))) * self.fixed[0]


def data(step: int) -> tuple[Any, Any]:
    """A batch of all ranks, the same on each."""
    torch.manual_seed(100 + step)
    count = EACH * dist.get_world_size()
    return torch.randn(count, 10), torch.randn(count, 5)


def mine(tensor: Any) -> Any:
    return tensor.chunk(dist.get_world_size())[dist.get_rank()]


def alone(optimizer: Any, **settings: Any) -> dict[str, Any]:
    """The parameters after training by one process with all the data."""
    torch.manual_seed(0)  # as rank 0
    model = Tied()
    made = optimizer(model.parameters(), **settings)
    for step in range(STEPS):
        x, y = data(step)
        made.zero_grad()
        mse_loss(model(x), y).backward()
        made.step()
    return {name: p.detach() for name, p in model.named_parameters()}


def equal(have: dict[str, Any], want: dict[str, Any], close: float = 1e-5) -> None:
    assert have.keys() == want.keys()
    for name, its in want.items():
        torch.testing.assert_close(have[name].detach(), its, rtol=close, atol=close)


def model_of_this_rank() -> Tied:
    torch.manual_seed(dist.get_rank())
    return Tied()


def data_parallel() -> None:
    from data_parallel import CarefulDataParallel, DataParallel

    for wrapper in (DataParallel, CarefulDataParallel):
        module = model_of_this_rank()
        if wrapper is DataParallel:
            del module.fixed  # which has no gradient
            module.fixed = torch.tensor([2.0])  # type: ignore[assignment]
        model = wrapper(module)
        optimizer = torch.optim.SGD(model.module.parameters(), lr=0.1, momentum=0.9)
        for step in range(STEPS):
            x, y = data(step)
            optimizer.zero_grad()
            mse_loss(model(mine(x)), mine(y)).backward()
            model.finish()
            optimizer.step()
        want = alone(torch.optim.SGD, lr=0.1, momentum=0.9)
        have = dict(model.module.named_parameters())
        equal(have, {name: want[name] for name in have})


def overlap() -> None:
    from overlap import bucketed, leave_early

    for prepare in (leave_early, lambda module: bucketed(module, 0.0005)):
        torch.manual_seed(0)
        model = Tied()
        finish = prepare(model)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        for step in range(STEPS):
            x, y = data(step)
            optimizer.zero_grad()
            mse_loss(model(mine(x)), mine(y)).backward()
            finish()
            optimizer.step()
        equal(dict(model.named_parameters()), alone(torch.optim.AdamW, lr=0.01), 1e-4)


def sharded() -> None:
    from sharded import FullySharded, ShardedOptimizer

    settings = {"lr": 0.01, "weight_decay": 0.1, "betas": (0.8, 0.99)}
    want = alone(torch.optim.AdamW, **settings)
    torch.manual_seed(0)
    model = Tied()
    optimizer = ShardedOptimizer(model.parameters(), torch.optim.AdamW, **settings)
    for step in range(STEPS):
        x, y = data(step)
        optimizer.zero_grad()
        mse_loss(model(x), y).backward()
        optimizer.step()
    equal(dict(model.named_parameters()), want)
    for dtype, close in ((None, 1e-4), (torch.bfloat16, 0.1)):
        whole = FullySharded(model_of_this_rank(), compute_dtype=dtype)
        adam: Any = torch.optim.AdamW(whole.parameters(), **settings)  # type: ignore[arg-type]
        for step in range(STEPS):
            x, y = data(step)
            adam.zero_grad()
            mse_loss(whole(mine(x)), mine(y)).backward()
            whole.finish()
            adam.step()
        equal(whole.full_parameters(), want, close)


def pieces() -> None:
    from pieces import ColumnLinear, RowLinear, merge

    torch.manual_seed(0)
    ranks = dist.get_world_size()
    for bias in (True, False):
        whole = nn.Sequential(
            nn.Linear(7, 4 * ranks, bias), nn.GELU(), nn.Linear(4 * ranks, 5, bias)
        )
        block = nn.Sequential(ColumnLinear(whole[0]), nn.GELU(), RowLinear(whole[2]))
        x = torch.randn(3, 2, 7, requires_grad=True)
        same = x.detach().clone().requires_grad_(True)
        for model, given in ((whole, x), (block, same)):
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            for _ in range(2):
                optimizer.zero_grad()
                model(given).square().sum().backward()
                optimizer.step()
        torch.testing.assert_close(block(same), whole(x))
        torch.testing.assert_close(same.grad, x.grad)
        torch.testing.assert_close(block[0].weight, mine(whole[0].weight))
    n, k = dist.get_world_size(), dist.get_rank()
    queries, keys, values = (torch.randn(3 * n, 8) for _ in range(3))
    at = 3 * k  # places behind a query are masked
    state = torch.full((3, 1), -torch.inf), torch.zeros(3, 1), torch.zeros(3, 8)
    mask = torch.full((3 * n, 3 * n), -torch.inf).triu(1)
    for owner in [(k - hop) % n for hop in range(n)]:
        there = slice(3 * owner, 3 * owner + 3)
        scores = queries[at : at + 3] @ keys[there].T + mask[at : at + 3, there]
        state = merge(*state, scores, values[there])
    want = torch.softmax(queries @ keys.T + mask, 1) @ values
    torch.testing.assert_close(state[2] / state[1], want[at : at + 3])


def rank(index: int, count: int, store: str) -> None:
    """What a process of `torch.multiprocessing.spawn` does."""
    where = f"file://{store}" if store else "env://"
    dist.init_process_group("gloo", init_method=where, rank=index, world_size=count)
    sys.path.insert(0, str(SOLUTIONS))
    checks: list[Callable[[], None]] = [data_parallel, overlap, sharded, pieces]
    for check in checks:
        check()
    assert "course_lib" not in sys.modules
    dist.barrier()
    dist.destroy_process_group()
    os._exit(0)  # all is checked; torn down, a process may be aborted by threads of torch


if __name__ == "__main__":
    if "RANK" in os.environ:
        rank(int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), "")
    else:
        count, store = sys.argv[1:]
        mp.spawn(rank, (int(count), store), nprocs=int(count))  # type: ignore[no-untyped-call]
