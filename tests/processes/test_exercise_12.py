"""Exercise 12 on real processes: linear layers that are cut over ranks, wrong answers and unusual
right ones.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import linear

from tests.answers import Answers

ANSWERS = Answers("12_models_in_pieces", "exercise_12_layers", varies=True, sample=5)
wrong, right = ANSWERS.wrong, ANSWERS.right
Change = Callable[[Any], Any]


def same(x: Any) -> Any:
    return x


def added(x: Any) -> Any:
    x = x.contiguous().clone()
    dist.all_reduce(x)
    return x


def averaged(x: Any) -> Any:
    return added(x) / dist.get_world_size()


def on_the_way(x: Any, forward: Change = same, backward: Change = same) -> Any:
    """An exchange in the forward pass, and one in the backward pass."""

    class Exchange(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return forward(x.view_as(x))

        @staticmethod
        def backward(ctx: Any, gradient: Any) -> Any:
            return backward(gradient)

    return Exchange.apply(x)


def part(x: Any, dim: int = 0) -> Any:
    return x.detach().chunk(dist.get_world_size(), dim)[dist.get_rank()].clone()


def parameter(x: Any) -> Any:
    return None if x is None else nn.Parameter(x)


class Column(nn.Module):
    """What the solution does, to be changed."""

    forwards: Any = staticmethod(same)
    backwards: Any = staticmethod(added)

    def __init__(self, whole: Any) -> None:
        super().__init__()
        self.weight = nn.Parameter(self.cut(whole.weight))
        self.bias = parameter(None if whole.bias is None else self.cut(whole.bias))

    def cut(self, x: Any) -> Any:
        return part(x)

    def forward(self, x: Any) -> Any:
        x = on_the_way(x, backward=self.backwards)
        return on_the_way(linear(x, self.weight, self.bias), self.forwards)


class Row(nn.Module):
    """What the solution does, to be changed."""

    forwards: Any = staticmethod(added)
    backwards: Any = staticmethod(same)

    def __init__(self, whole: Any) -> None:
        super().__init__()
        self.weight = nn.Parameter(self.cut(whole.weight))
        self.bias = parameter(None if whole.bias is None else whole.bias.detach().clone())

    def cut(self, x: Any) -> Any:
        return part(x, 1)

    def forward(self, share: Any) -> Any:
        y = on_the_way(linear(share, self.weight), self.forwards, self.backwards)
        return y if self.bias is None else y + self.bias


# --- column ---


@right("column")
class ByAHook(Column):
    """The exchange is a hook of the input."""

    def forward(self, x: Any) -> Any:
        x = x.view_as(x)
        if x.requires_grad:
            x.register_hook(added)
        return linear(x, self.weight, self.bias)


@right("column")
class InALinearLayer(nn.Linear):
    """Is a smaller nn.Linear itself."""

    def __init__(self, whole: Any) -> None:
        out = whole.out_features // dist.get_world_size()
        super().__init__(whole.in_features, out, bias=whole.bias is not None)
        with torch.no_grad():
            for name, p in self.named_parameters():
                p.copy_(part(getattr(whole, name)))

    def forward(self, x: Any) -> Any:
        return super().forward(on_the_way(x, backward=added))


@right("column")
class AllInOneFunction(Column):
    """Both passes by hand, with the product of matrices in them."""

    def forward(self, x: Any) -> Any:
        class Product(torch.autograd.Function):
            @staticmethod
            def forward(ctx: Any, x: Any, weight: Any) -> Any:
                ctx.save_for_backward(x, weight)
                return x @ weight.T

            @staticmethod
            def backward(ctx: Any, gradient: Any) -> Any:
                x, weight = ctx.saved_tensors
                work = dist.all_reduce(dx := gradient @ weight, async_op=True)
                dw = torch.einsum("...o,...i->oi", gradient, x)  # while the other one is under way
                work.wait()
                return dx, dw

        y = Product.apply(x, self.weight)
        return y if self.bias is None else y + self.bias


@wrong("column")
class NothingIsSent(Column):
    backwards = staticmethod(same)


@wrong("column")
class MeanOfGradients(Column):
    backwards = staticmethod(averaged)


@wrong("column")
class AddedInTheForwardPass(Column):
    forwards = staticmethod(added)


@wrong("column")
class InputsAreAddedInTheForwardPass(Column):
    def forward(self, x: Any) -> Any:
        return linear(on_the_way(x, added, added), self.weight, self.bias)


@wrong("column")
class GathersAllOutputs(Column):
    def forward(self, x: Any) -> Any:
        def gathered(y: Any) -> Any:
            parts = [torch.empty_like(y) for _ in range(dist.get_world_size())]
            dist.all_gather(parts, y.contiguous())
            return torch.cat(parts, -1)

        return on_the_way(super().forward(x), gathered, lambda gradient: part(gradient, -1))


@wrong("column")
class EveryNthOutput(Column):
    def cut(self, x: Any) -> Any:
        return x.detach()[dist.get_rank() :: dist.get_world_size()].clone()


@wrong("column")
class PartsTheOtherWayRound(Column):
    def cut(self, x: Any) -> Any:
        return x.detach().chunk(dist.get_world_size())[-1 - dist.get_rank()].clone()


@wrong("column")
class KeepsTheWholeLayer(Column):
    def __init__(self, whole: Any) -> None:
        super().__init__(whole)
        self.whole = whole


@wrong("column")
class ForgetsTheBias(Column):
    def __init__(self, whole: Any) -> None:
        super().__init__(whole)
        self.bias = None


@wrong("column")
class WeightGradientsAreExchangedToo(Column):
    def __init__(self, whole: Any) -> None:
        super().__init__(whole)
        self.weight.register_hook(added)


@wrong("column")
class NoParameter(Column):
    def __init__(self, whole: Any) -> None:
        super().__init__(whole)
        weight = self.cut(whole.weight).requires_grad_(True)
        del self.weight
        self.weight = weight


@wrong("column")
class ReduceAndBroadcast(Column):
    @staticmethod
    def backwards(gradient: Any) -> Any:
        gradient = gradient.contiguous().clone()
        dist.reduce(gradient, 0)
        dist.broadcast(gradient, 0)
        return gradient


@wrong("column")
class BackwardPassIsCutOff(Column):
    def forward(self, x: Any) -> Any:
        return linear(x.detach(), self.weight, self.bias)


@wrong("column")
class ReturnsNothing(Column):
    def forward(self, x: Any) -> Any:
        super().forward(x)


# --- row ---


@right("row")
class InPlace(Row):
    """The all-reduce changes the product where it lies, unseen by autograd."""

    def forward(self, share: Any) -> Any:
        y = share @ self.weight.T
        dist.all_reduce(y.data)
        return y if self.bias is None else y + self.bias


@right("row")
class BiasOnRank0(Row):
    """One rank adds the bias before the sum; its gradient comes by itself."""

    def forward(self, share: Any) -> Any:
        y = linear(share, self.weight)
        if self.bias is None:
            return on_the_way(y, added)
        y = y + (self.bias if dist.get_rank() == 0 else 0 * self.bias)
        y = on_the_way(y, added)
        return y if dist.get_rank() == 0 else y + (self.bias - self.bias.detach())


@right("row")
class ByGathering(Row):
    """The difference to the sum is a constant for autograd."""

    def forward(self, share: Any) -> Any:
        y = linear(share, self.weight)
        y = y + (added(y.detach()) - y.detach())
        return y if self.bias is None else y + self.bias


@wrong("row")
class NotAdded(Row):
    forwards = staticmethod(same)


@wrong("row")
class MeanOverRanks(Row):
    forwards = staticmethod(averaged)


@wrong("row")
class BiasOnEveryRank(Row):
    def forward(self, share: Any) -> Any:
        return on_the_way(linear(share, self.weight, self.bias), added)


@wrong("row")
class AddedInBothPasses(Row):
    backwards = staticmethod(added)


@wrong("row")
class MeanInTheBackwardPass(Row):
    backwards = staticmethod(averaged)


@wrong("row")
class ByTheFunctionForAutograd(Row):
    def forward(self, share: Any) -> Any:
        from torch.distributed.nn.functional import all_reduce

        y = all_reduce(linear(share, self.weight))
        return y if self.bias is None else y + self.bias


@wrong("row")
class CutByItsOutputs(Row):
    def cut(self, x: Any) -> Any:
        return part(x)


@wrong("row")
class EveryNthInput(Row):
    def cut(self, x: Any) -> Any:
        return x.detach()[:, dist.get_rank() :: dist.get_world_size()].clone()


@wrong("row")
class NoBias(Row):
    def __init__(self, whole: Any) -> None:
        super().__init__(whole)
        self.bias = None


@wrong("row")
class WithoutAWayBack(Row):
    def forward(self, share: Any) -> Any:
        y = added(linear(share, self.weight).detach())
        return y if self.bias is None else y + self.bias


@wrong("row")
class GathersTheInputs(Row):
    """Keeps the whole weight, and makes every output itself."""

    def __init__(self, whole: Any) -> None:
        super().__init__(whole)
        self.weight = nn.Parameter(whole.weight.detach().clone())

    def forward(self, share: Any) -> Any:
        def gathered(share: Any) -> Any:
            parts = [torch.empty_like(share) for _ in range(dist.get_world_size())]
            dist.all_gather(parts, share.contiguous())
            return torch.cat(parts, -1)

        whole = on_the_way(share, gathered, lambda gradient: part(gradient, -1))
        return linear(whole, self.weight, self.bias)


@wrong("row")
class OnlyRank0AddsUp(Row):
    def forward(self, share: Any) -> Any:
        y = linear(share, self.weight)
        if dist.get_rank() == 0:
            dist.all_reduce(y.data)
        return y if self.bias is None else y + self.bias


@wrong("row")
class ReduceThenBroadcast(Row):
    @staticmethod
    def forwards(y: Any) -> Any:
        y = y.clone()
        dist.reduce(y, 0)
        dist.broadcast(y, 0)
        return y


test_wrong_answers_are_rejected_in_words = ANSWERS.rejected()
test_right_answers_pass = ANSWERS.accepted()
test_there_are_enough_of_each = ANSWERS.enough(8, 3, "column", "row")
