"""Exercise 10 on real processes: local SGD and top-k, wrong answers and unusual right ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from course_lib.torch import Step, join
from tests.answers import Answers

ANSWERS = Answers("10_in_between", "exercise_10", varies=True, sample=5)
wrong, right = ANSWERS.wrong, ANSWERS.right

# --- local_sgd ---


def mean(step: Any) -> None:
    """The mean of parameters over all workers."""
    for parameter in step.parameters:
        dist.all_reduce(parameter.data)
        parameter.data /= step.spec.workers


def after(step: Any, every: int) -> bool:
    return bool((step.number + 1) % every == 0)


def nothing(step: Any) -> None:
    pass


def train(
    task: Any,
    every: int,
    exchange: Callable[[Any], None] = mean,
    when: Callable[[Any, int], bool] = after,
    before: Callable[[Any], None] = nothing,
    own: bool = True,
    apart: bool = True,
) -> Any:
    """What the solution does, to be changed: `before` comes before each update."""
    join(task)
    step, workers = Step(task, apart=apart), task.spec.workers
    while step.begin():
        inputs, targets = step.read(task.index, workers) if own else step.read()
        with step.computing():
            loss = step.backward(inputs, targets)
        before(step)
        with step.applying():
            if step.unscale(loss):
                step.optimizer.step()
        if when(step, every):
            with step.reducing():
                exchange(step)
        step.done(loss)
    return step.result()


@right("local_sgd")
def in_one_vector(task: Any, every: int) -> Any:
    def exchange(step: Any) -> None:
        flat = torch.cat([p.data.flatten() for p in step.parameters]) / task.spec.workers
        dist.all_reduce(flat)
        for p, part in zip(
            step.parameters, flat.split([p.numel() for p in step.parameters]), strict=True
        ):
            p.data.copy_(part.view_as(p))

    return train(task, every, exchange)


@right("local_sgd")
def as_a_vector_of_torch(task: Any, every: int) -> Any:
    from torch.nn.utils import parameters_to_vector, vector_to_parameters

    def exchange(step: Any) -> None:
        with torch.no_grad():
            whole = parameters_to_vector(step.parameters)
            dist.all_reduce(whole)
            vector_to_parameters(whole / task.spec.workers, step.parameters)

    return train(task, every, exchange)


@wrong("local_sgd")
def as_torch_averages(task: Any, every: int) -> Any:
    def exchange(step: Any) -> None:
        from torch.distributed.algorithms.model_averaging.utils import average_parameters

        average_parameters(iter(step.parameters), dist.group.WORLD)

    return train(task, every, exchange)


@wrong("local_sgd")
def through_worker_0(task: Any, every: int) -> Any:
    def exchange(step: Any) -> None:
        with torch.no_grad():
            for p in step.parameters:
                dist.reduce(p, 0)
                p /= task.spec.workers
                dist.broadcast(p, 0)

    return train(task, every, exchange)


@right("local_sgd")
def counts_by_itself(task: Any, every: int) -> Any:
    """Counts down, and begins all messages before it waits for one."""
    left = [every]

    def when(step: Any, every: int) -> bool:
        left[0] = left[0] - 1 or every
        return left[0] == every

    def exchange(step: Any) -> None:
        works = [dist.all_reduce(p.data, async_op=True) for p in step.parameters]
        for work, p in zip(works, step.parameters, strict=True):
            work.wait()
            p.data.div_(task.spec.workers)

    return train(task, every, exchange, when)


@wrong("local_sgd")
def sums(task: Any, every: int) -> Any:
    def exchange(step: Any) -> None:
        for p in step.parameters:
            dist.all_reduce(p.data)

    return train(task, every, exchange)


@wrong("local_sgd")
def never_exchanges(task: Any, every: int) -> Any:
    return train(task, every, nothing)


@wrong("local_sgd")
def in_every_step(task: Any, every: int) -> Any:
    return train(task, every, when=lambda step, every: True)


@wrong("local_sgd")
def one_step_early(task: Any, every: int) -> Any:
    return train(task, every, when=lambda step, every: step.number % every == 0)


@wrong("local_sgd")
def once_only(task: Any, every: int) -> Any:
    return train(task, every, when=lambda step, every: step.number + 1 == every)


@wrong("local_sgd")
def half_as_often(task: Any, every: int) -> Any:
    return train(task, 2 * every)


@wrong("local_sgd")
def averages_gradients_too(task: Any, every: int) -> Any:
    def before(step: Any) -> None:
        for p in step.parameters:
            dist.all_reduce(p.grad)
            p.grad /= task.spec.workers

    return train(task, every, before=before)


@wrong("local_sgd")
def averages_old_gradients(task: Any, every: int) -> Any:
    def exchange(step: Any) -> None:
        for p in step.parameters:
            dist.all_reduce(p.grad)
            p.grad /= task.spec.workers

    return train(task, every, exchange)


@wrong("local_sgd")
def before_the_update(task: Any, every: int) -> Any:
    def before(step: Any) -> None:
        if after(step, every):
            mean(step)

    return train(task, every, nothing, before=before)


@wrong("local_sgd")
def takes_worker_0(task: Any, every: int) -> Any:
    def exchange(step: Any) -> None:
        for p in step.parameters:
            dist.broadcast(p.data, 0)

    return train(task, every, exchange)


@wrong("local_sgd")
def only_worker_0_has_it(task: Any, every: int) -> Any:
    def exchange(step: Any) -> None:
        for p in step.parameters:
            dist.reduce(p.data, 0)
            if task.index == 0:
                p.data /= task.spec.workers

    return train(task, every, exchange)


@wrong("local_sgd")
def without_biases(task: Any, every: int) -> Any:
    def exchange(step: Any) -> None:
        for p in step.parameters:
            if p.dim() > 1:
                dist.all_reduce(p.data)
                p.data /= task.spec.workers

    return train(task, every, exchange)


@wrong("local_sgd")
def halves(task: Any, every: int) -> Any:
    def exchange(step: Any) -> None:
        for p in step.parameters:
            dist.all_reduce(p.data)
            p.data /= 2

    return train(task, every, exchange)


@wrong("local_sgd")
def the_whole_batch(task: Any, every: int) -> Any:
    return train(task, every, own=False)


@wrong("local_sgd")
def not_apart(task: Any, every: int) -> Any:
    return train(task, every, apart=False)


@wrong("local_sgd")
def gathers(task: Any, every: int) -> Any:
    def exchange(step: Any) -> None:
        for p in step.parameters:
            parts = [torch.empty_like(p.data) for _ in range(task.spec.workers)]
            dist.all_gather(parts, p.data)
            p.data.copy_(torch.stack(parts).mean(0))

    return train(task, every, exchange)


@wrong("local_sgd")
def worker_0_alone(task: Any, every: int) -> Any:
    def when(step: Any, every: int) -> bool:
        return after(step, every) and task.index == 0

    return train(task, every, when=when)


@wrong("local_sgd")
def returns_no_result(task: Any, every: int) -> None:
    train(task, every)


@wrong("local_sgd")
def endless(task: Any, every: int) -> None:
    while True:
        pass


# --- compress ---

Both = tuple[Any, Any]


def largest(whole: Any, share: float) -> Any:
    """The places of the k largest by magnitude."""
    return whole.abs().topk(max(1, int(share * len(whole)))).indices


def at(places: Any, values: Any) -> Any:
    """These values at their places, and zeros elsewhere."""
    sent = torch.zeros_like(values)
    sent[places] = values[places]
    return sent


@right("compress")
def by_sorting(gradient: Any, residual: Any, share: float) -> Both:
    whole = gradient + residual
    order = sorted(range(len(whole)), key=lambda i: -abs(float(whole[i])))
    kept = whole.clone()
    kept[order[: max(1, int(share * len(whole)))]] = 0
    return whole - kept, kept


@right("compress")
def by_a_mask(gradient: Any, residual: Any, share: float) -> Both:
    whole = torch.add(gradient, residual)
    mask = torch.zeros(len(whole))
    mask[largest(whole, share)] = 1
    return mask * whole, (1 - mask) * whole


@right("compress")
def by_a_threshold(gradient: Any, residual: Any, share: float) -> Any:
    whole = gradient + residual
    least = whole.abs().sort(descending=True).values[max(1, int(share * len(whole))) - 1]
    zeros = torch.zeros_like(whole)
    sends = whole.abs() >= least
    return [torch.where(sends, whole, zeros), torch.where(sends, zeros, whole)]


@wrong("compress")
def forgets(gradient: Any, residual: Any, share: float) -> Both:
    whole = gradient + residual
    return at(largest(whole, share), whole), torch.zeros_like(whole)


@wrong("compress")
def chooses_by_the_gradient(gradient: Any, residual: Any, share: float) -> Both:
    whole = gradient + residual
    sent = at(largest(gradient, share), whole)
    return sent, whole - sent


@wrong("compress")
def sends_the_gradient_alone(gradient: Any, residual: Any, share: float) -> Both:
    sent = at(largest(gradient + residual, share), gradient)
    return sent, gradient + residual - sent


@wrong("compress")
def keeps_what_it_sent(gradient: Any, residual: Any, share: float) -> Both:
    whole = gradient + residual
    return at(largest(whole, share), whole), whole


@wrong("compress")
def drops_the_old_residual(gradient: Any, residual: Any, share: float) -> Both:
    whole = gradient + residual
    sent = at(largest(whole, share), whole)
    return sent, gradient - sent


@wrong("compress")
def without_abs(gradient: Any, residual: Any, share: float) -> Both:
    whole = gradient + residual
    sent = at(whole.topk(max(1, int(share * len(whole)))).indices, whole)
    return sent, whole - sent


@wrong("compress")
def smallest(gradient: Any, residual: Any, share: float) -> Both:
    whole = gradient + residual
    k = max(1, int(share * len(whole)))
    sent = at(whole.abs().topk(k, largest=False).indices, whole)
    return sent, whole - sent


@wrong("compress")
def magnitudes(gradient: Any, residual: Any, share: float) -> Both:
    whole = gradient + residual
    sent = at(largest(whole, share), whole.abs())
    return sent, whole - sent


@wrong("compress")
def swapped(gradient: Any, residual: Any, share: float) -> Both:
    whole = gradient + residual
    sent = at(largest(whole, share), whole)
    return whole - sent, sent


@wrong("compress")
def rounds_up(gradient: Any, residual: Any, share: float) -> Both:
    whole = gradient + residual
    sent = at(whole.abs().topk(int(share * len(whole)) + 1).indices, whole)
    return sent, whole - sent


@wrong("compress")
def perhaps_none(gradient: Any, residual: Any, share: float) -> Both:
    whole = gradient + residual
    sent = at(whole.abs().topk(int(share * len(whole))).indices, whole)
    return sent, whole - sent


@wrong("compress")
def values_and_places(gradient: Any, residual: Any, share: float) -> Both:
    whole = gradient + residual
    places = largest(whole, share)
    return whole[places], places


@wrong("compress")
def in_place(gradient: Any, residual: Any, share: float) -> Both:
    residual += gradient
    sent = at(largest(residual, share), residual)
    return sent, residual - sent


@wrong("compress")
def sends_all(gradient: Any, residual: Any, share: float) -> Both:
    return gradient + residual, torch.zeros_like(gradient)


@wrong("compress")
def only_what_is_sent(gradient: Any, residual: Any, share: float) -> Any:
    return at(largest(gradient + residual, share), gradient + residual)


test_wrong_answers_are_rejected_in_words = ANSWERS.rejected()
test_right_answers_pass = ANSWERS.accepted()
test_there_are_enough_of_each = ANSWERS.enough(8, 3, "local_sgd", "compress")
