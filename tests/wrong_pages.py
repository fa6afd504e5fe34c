"""Strategies that promise to equal one device, and do not, each with the words that name its
mistake; and unusual ones that do.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.distributed as dist

from course_lib import strategy
from course_lib.torch import Step, join

Part = Callable[..., Any]
WRONG: dict[str, tuple[Any, str]] = {}
"""Name -> the strategy, and the words that name its mistake (a regular expression)."""
RIGHT: dict[str, Any] = {}


def gradients(step: Any) -> list[Any]:
    return [parameter.grad for parameter in step.parameters]


def share(step: Any, task: Any) -> Any:
    return step.read(task.index, task.spec.workers)


def mean(step: Any, loss: Any) -> None:
    for tensor in [*gradients(step), loss]:
        dist.all_reduce(tensor)
        tensor /= step.spec.workers


def own(step: Any, loss: Any) -> None:
    pass


def update(step: Any) -> None:
    step.optimizer.step()


def training(read: Part, average: Part, apply: Part, done: Part, task: Any) -> Any:
    """The skeleton that most of them share."""
    join(task)
    step = Step(task)
    while step.begin():
        inputs, targets = read(step, task)
        with step.computing():
            loss = step.backward(inputs, targets)
        with step.reducing():
            average(step, loss)
        with step.applying():
            apply(step)
        step.done(done(loss))
    return step.result()


def with_parts(
    read: Part = share, average: Part = mean, apply: Part = update, done: Part = lambda loss: loss
) -> Any:
    page = partial(training, read, average, apply, done)
    return strategy(exact=True)(lambda task: page(task))


def wrong(words: str, **parts: Part) -> Callable[[Part], Part]:
    """Add a strategy that is wrong in one part: the decorated function. Its parameter's name says
    which.
    """

    def add(function: Part) -> Part:
        (part,) = parts or {"average": None}
        WRONG[function.__name__] = with_parts(**{part: function}), words
        return function

    return add


IN: Any = None  # the part that a decorated function takes the place of
TOO_LARGE = r"too large: divide the sum by the \d workers"
TOO_SMALL = "too small: it is divided by the"
SAME = "All workers read the same part of the batch"
LEFT_OUT = "are read by nobody"
NOT_ALONG = "not along the mean gradient"
DRIFTS = "Replicas drift"
LATER = "The first update is right, and a later one is not"

# --- how gradients are averaged ---


@wrong(TOO_LARGE)
def sums(step: Any, loss: Any) -> None:
    for tensor in gradients(step):
        dist.all_reduce(tensor)


@wrong(TOO_LARGE)
def sums_by_gathering(step: Any, loss: Any) -> None:
    for tensor in gradients(step):
        parts = [torch.empty_like(tensor) for _ in range(step.spec.workers)]
        dist.all_gather(parts, tensor)
        tensor.copy_(torch.stack(parts).sum(0))


@wrong(TOO_LARGE)
def sums_at_rank_0(step: Any, loss: Any) -> None:
    for tensor in gradients(step):
        dist.reduce(tensor, 0)
        dist.broadcast(tensor, 0)


@wrong(TOO_SMALL)
def divides_twice(step: Any, loss: Any) -> None:
    mean(step, loss)
    for tensor in gradients(step):
        tensor /= step.spec.workers


@wrong(TOO_SMALL)
def divides_before_and_after(step: Any, loss: Any) -> None:
    for tensor in gradients(step):
        tensor /= step.spec.workers
        dist.all_reduce(tensor)
        tensor /= step.spec.workers


@wrong("1.5 times that of one device")
def divides_by_two(step: Any, loss: Any) -> None:
    for tensor in gradients(step):
        dist.all_reduce(tensor)
        tensor /= min(2, step.spec.workers)


@wrong(r"2 times too large|1\.\d+ times that")
def divides_by_all_others(step: Any, loss: Any) -> None:
    for tensor in gradients(step):
        dist.all_reduce(tensor)
        tensor /= max(1, step.spec.workers - 1)


@wrong(DRIFTS)
def exchanges_nothing(step: Any, loss: Any) -> None:
    pass


@wrong(DRIFTS)
def averages_the_loss_alone(step: Any, loss: Any) -> None:
    dist.all_reduce(loss)
    loss /= step.spec.workers


@wrong(DRIFTS)
def averages_copies(step: Any, loss: Any) -> None:
    for tensor in gradients(step):
        copy = tensor.clone()
        dist.all_reduce(copy)
        copy /= step.spec.workers


@wrong(DRIFTS)
def leaves_out_biases(step: Any, loss: Any) -> None:
    for tensor in gradients(step):
        if tensor.dim() > 1:
            dist.all_reduce(tensor)
            tensor /= step.spec.workers


@wrong(DRIFTS)
def leaves_out_the_last(step: Any, loss: Any) -> None:
    for tensor in gradients(step)[:-1]:
        dist.all_reduce(tensor)
        tensor /= step.spec.workers


@wrong(DRIFTS)
def leaves_out_the_first(step: Any, loss: Any) -> None:
    for tensor in gradients(step)[1:]:
        dist.all_reduce(tensor)
        tensor /= step.spec.workers


@wrong(DRIFTS)
def averages_at_rank_0_and_keeps_it(step: Any, loss: Any) -> None:
    for tensor in gradients(step):
        dist.reduce(tensor, 0)
        if step.task.index == 0:
            tensor /= step.spec.workers


@wrong(f"{DRIFTS}|{NOT_ALONG}")
def does_not_wait(step: Any, loss: Any) -> None:
    for tensor in gradients(step):
        tensor /= step.spec.workers
        step.late = dist.all_reduce(tensor, async_op=True)


@wrong(NOT_ALONG)
def takes_those_of_rank_0(step: Any, loss: Any) -> None:
    for tensor in gradients(step):
        dist.broadcast(tensor, 0)


@wrong(NOT_ALONG)
def takes_those_of_the_last(step: Any, loss: Any) -> None:
    for tensor in gradients(step):
        dist.broadcast(tensor, step.spec.workers - 1)


@wrong(NOT_ALONG)
def takes_the_largest(step: Any, loss: Any) -> None:
    for tensor in gradients(step):
        dist.all_reduce(tensor, op=dist.ReduceOp.MAX)


@wrong(NOT_ALONG)
def takes_the_smallest(step: Any, loss: Any) -> None:
    for tensor in gradients(step):
        dist.all_reduce(tensor, op=dist.ReduceOp.MIN)


@wrong(NOT_ALONG)
def takes_the_signs(step: Any, loss: Any) -> None:
    for tensor in gradients(step):
        tensor.copy_(tensor.sign())
        dist.all_reduce(tensor)
        tensor /= step.spec.workers


@wrong(NOT_ALONG)
def counts_rank_0_twice(step: Any, loss: Any) -> None:
    for tensor in gradients(step):
        tensor *= 2 if step.task.index == 0 else 1
        dist.all_reduce(tensor)
        tensor /= step.spec.workers + 1


@wrong(DRIFTS)
def sends_one_hop_of_a_ring(step: Any, loss: Any) -> None:
    rank, size = step.task.index, step.spec.workers
    if size < 3:
        return mean(step, loss)
    for tensor in gradients(step):
        came = torch.empty_like(tensor)
        sent = dist.isend(tensor.clone(), (rank + 1) % size)
        dist.recv(came, (rank - 1) % size)
        sent.wait()
        tensor.add_(came).div_(2)


@wrong("were gradients rounded, or clipped")
def rounds_to_bfloat16(step: Any, loss: Any) -> None:
    for tensor in gradients(step):
        tensor.copy_(tensor.bfloat16())
    mean(step, loss)


@wrong("were gradients rounded, or clipped|times that of one device")
def clips(step: Any, loss: Any) -> None:
    mean(step, loss)
    torch.nn.utils.clip_grad_norm_(step.parameters, 0.1)


@wrong("deadlock|waits|stand")
def only_rank_0_reduces(step: Any, loss: Any) -> None:
    if step.task.index == 0:
        mean(step, loss)


@wrong("All ranks of a group must make the same calls")
def each_reduces_as_many_as_its_rank(step: Any, loss: Any) -> None:
    for tensor in gradients(step)[step.task.index :]:
        dist.all_reduce(tensor)


@wrong("name 'number' is not defined")
def fails(step: Any, loss: Any) -> None:
    number  # type: ignore[name-defined] # noqa: B018, F821  # that is its mistake


# --- which examples are read ---


@wrong(SAME, read=IN)
def reads_the_first_share(step: Any, task: Any) -> Any:
    return step.read(0, task.spec.workers)


@wrong(SAME, read=IN)
def reads_the_last_share(step: Any, task: Any) -> Any:
    return step.read(task.spec.workers - 1, task.spec.workers)


@wrong(LEFT_OUT, read=IN)
def reads_quarters(step: Any, task: Any) -> Any:
    return step.read(task.index, 4)


@wrong(LEFT_OUT, read=IN)
def reads_half_of_its_share(step: Any, task: Any) -> Any:
    return step.read(task.index, 2 * task.spec.workers)


@wrong(f"{LEFT_OUT}, and .* too often", read=IN)
def reads_one_of_two_shares(step: Any, task: Any) -> Any:
    return step.read(task.index % 2, task.spec.workers)


@wrong("It reads no examples", read=IN)
def reads_nothing(step: Any, task: Any) -> Any:
    return torch.rand(8, 64), torch.zeros(8, dtype=torch.int64)


# --- how it is applied ---


@wrong("changes nothing", apply=IN)
def applies_nothing(step: Any) -> None:
    pass


@wrong("changes nothing", apply=IN)
def forgets_them_first(step: Any) -> None:
    step.optimizer.zero_grad()
    step.optimizer.step()


@wrong("its sign is wrong", apply=IN)
def goes_up(step: Any) -> None:
    for parameter in step.parameters:
        parameter.grad.neg_()
    step.optimizer.step()


@wrong("2 times that of one device|2 times too large", apply=IN)
def applies_twice(step: Any) -> None:
    step.optimizer.step()
    step.optimizer.step()


@wrong("times that of one device|times too", apply=IN)
def has_a_rate_of_its_own(step: Any) -> None:
    for parameter in step.parameters:
        parameter.data -= 0.03 * parameter.grad


@wrong(LATER, apply=IN)
def adds_old_gradients(step: Any) -> None:
    old = getattr(step, "old", None)
    step.old = [gradient.clone() for gradient in gradients(step)]
    for gradient, before in zip(gradients(step), old or [], strict=bool(old)):
        gradient += before
    step.optimizer.step()


@wrong("changes nothing", apply=IN)
def applies_those_of_the_step_before(step: Any) -> None:
    new = [gradient.clone() for gradient in gradients(step)]
    for gradient, before in zip(gradients(step), getattr(step, "old", []), strict=False):
        gradient.copy_(before)
    if hasattr(step, "old"):
        step.optimizer.step()
    step.old = new


@wrong(LATER, apply=IN)
def stops_after_three(step: Any) -> None:
    if step.number < 3:
        step.optimizer.step()


@wrong(f"{LATER}|{DRIFTS}", apply=IN)
def lets_rank_0_alone_apply(step: Any) -> None:
    if step.task.index == 0:
        step.optimizer.step()


@wrong(DRIFTS, apply=IN)
def shifts_each_replica(step: Any) -> None:
    step.optimizer.step()
    for parameter in step.parameters:
        parameter.data += 1e-3 * step.task.index


# --- what it says of itself ---


@wrong("not the mean over the whole batch", done=IN)
def reports_a_multiple(loss: Any) -> Any:
    return loss * 2


@wrong("reports no loss", done=IN)
def reports_nothing(loss: Any) -> Any:
    return None


@strategy(exact=True)
def copies_rank_0(task: Any) -> Any:
    """Each applies its own gradients; then all take the parameters of rank 0."""

    def apply(step: Any) -> None:
        step.optimizer.step()
        for parameter in step.parameters:
            dist.broadcast(parameter.data, 0)

    return training(share, own, apply, lambda loss: loss, task)


WRONG["copies_rank_0"] = copies_rank_0, NOT_ALONG


def returns_nothing(task: Any) -> None:
    training(share, mean, update, lambda loss: loss, task)


WRONG["returns_nothing"] = strategy(exact=True)(returns_nothing), "return step.result"


@strategy(exact=True)
def loses_its_momentum(task: Any) -> Any:
    """It keeps the momentum of another optimizer, and leaves it out of the checkpoint."""
    return own_momentum(task, keep=False)


@strategy(exact=True, wire="2(n-1)/n S")
def sends_too_much(task: Any) -> Any:
    def gathered(step: Any, loss: Any) -> None:
        for tensor in [*gradients(step), loss]:
            parts = [torch.empty_like(tensor) for _ in range(step.spec.workers)]
            dist.all_gather(parts, tensor)
            tensor.copy_(torch.stack(parts).mean(0))

    return training(share, gathered, update, lambda loss: loss, task)


WRONG["sends_too_much"] = sends_too_much, "each sends .* with 3 workers"
WRONG["loses_its_momentum"] = loses_its_momentum, "put such tensors into `step.own_state`"


def own_momentum(task: Any, keep: bool) -> Any:
    velocity: list[Any] = []

    def apply(step: Any) -> None:
        for parameter, speed in zip(step.parameters, velocity, strict=True):
            speed.mul_(0.9).add_(parameter.grad)
            parameter.data -= step.rates[step.updates] * speed

    join(task)
    step = Step(task)
    velocity += [torch.zeros_like(parameter) for parameter in step.parameters]
    if keep:
        step.own_state = {str(i): speed for i, speed in enumerate(velocity)}
    while step.begin():
        inputs, targets = share(step, task)
        with step.computing():
            loss = step.backward(inputs, targets)
        with step.reducing():
            mean(step, loss)
        with step.applying():
            apply(step)
        step.done(loss)
    return step.result()


# --- unusual, and right ---


def all_in_one(step: Any, loss: Any) -> None:
    flat = torch.cat([tensor.reshape(-1) for tensor in [*gradients(step), loss]])
    dist.all_reduce(flat)
    flat /= step.spec.workers
    sizes = [tensor.numel() for tensor in [*gradients(step), loss]]
    for tensor, piece in zip([*gradients(step), loss], flat.split(sizes), strict=True):
        tensor.copy_(piece.view_as(tensor))


def at_rank_0(step: Any, loss: Any) -> None:
    for tensor in [*gradients(step), loss]:
        dist.reduce(tensor, 0)
        tensor /= step.spec.workers
        dist.broadcast(tensor, 0)


def round_a_ring(step: Any, loss: Any) -> None:
    rank, size = step.task.index, step.spec.workers
    for tensor in gradients(step):
        parts = {rank: tensor.clone()}
        moving = tensor.clone()
        for hop in range(size - 1):
            came = torch.empty_like(moving)
            sent = dist.isend(moving, (rank + 1) % size)
            dist.recv(came, (rank - 1) % size)
            sent.wait()
            moving = came
            parts[(rank - hop - 1) % size] = came
        tensor.copy_(sum(parts[k] for k in range(size)) / size)


def gathered(step: Any, loss: Any) -> None:
    for tensor in [*gradients(step), loss]:
        parts = [torch.empty_like(tensor) for _ in range(step.spec.workers)]
        dist.all_gather(parts, tensor)
        tensor.copy_(torch.stack(parts).mean(0))


def waited_for(step: Any, loss: Any) -> None:
    works = [dist.all_reduce(tensor, async_op=True) for tensor in gradients(step)]
    for work in works:
        work.wait()
    for tensor in gradients(step):
        tensor /= step.spec.workers


def whole_batch(step: Any, task: Any) -> Any:
    """Everybody computes everything: slow, and right."""
    return step.read()


def averages_parameters(step: Any) -> None:
    step.optimizer.step()
    for parameter in step.parameters:
        dist.all_reduce(parameter.data)
        parameter.data /= step.spec.workers


def backwards(step: Any, task: Any) -> Any:
    """The shares in the other order: their mean is the same."""
    return step.read(task.spec.workers - 1 - task.index, task.spec.workers)


@strategy(exact=True)
def keeps_its_momentum(task: Any) -> Any:
    return own_momentum(task, keep=True)


@strategy(exact=True)
def scales_its_loss(task: Any) -> Any:
    """It divides the loss before the backward pass, so that sums are means."""

    def divided(step: Any, task: Any) -> Any:
        plain = type(step).loss_of
        step.loss_of = lambda outputs, targets: plain(step, outputs, targets) / step.spec.workers
        return share(step, task)

    def summed(step: Any, loss: Any) -> None:
        for tensor in [*gradients(step), loss]:
            dist.all_reduce(tensor)

    return training(divided, summed, update, lambda loss: loss, task)


RIGHT |= {
    part.__name__: with_parts(average=part)
    for part in (all_in_one, at_rank_0, round_a_ring, gathered, waited_for)
}
RIGHT |= {
    "whole_batch": with_parts(read=whole_batch, average=own),
    "backwards": with_parts(read=backwards),
    "averages_parameters": with_parts(average=own, apply=averages_parameters),
    "keeps_its_momentum": keeps_its_momentum,
    "scales_its_loss": scales_its_loss,
}
