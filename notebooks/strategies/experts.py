"""Expert parallelism: a layer has many small networks, each token passes through one or two of
them, every worker has some, and tokens travel.

A model grows by experts, and the work on a token does not. The router gives each token a weight for
each expert; the `top` largest are chosen. In expert parallelism worker k of n has experts k E/n to
(k+1) E/n, and its own share of the batch. An all-to-all sends each token to the worker that has its
expert, and another brings back what that has made. All other layers are replicas, whose gradients
are averaged. The gradients of an expert are complete where it is: all its tokens came there.

Some experts get more tokens than others, and the busiest keeps the rest waiting. With a `capacity`
each expert takes so many times its even share of a worker's tokens, and those above it are dropped:
the layer adds nothing to them. The metric `dropped` counts them.

Source: Lepikhin et al., "GShard", ICLR 2021 (arXiv:2006.16668); Fedus, Zoph and Shazeer, "Switch
Transformers", JMLR 2022 (arXiv:2101.03961). Their loss for balance is left out.
"""

import math

import torch
import torch.distributed as dist
from torch import nn

from course_lib import strategy
from course_lib.torch import Step, join


class Mixture(nn.Module):
    """Experts and a router, which chooses `top` of them for each token: (..., width) in and out."""

    def __init__(self, width, hidden, experts, top=1, capacity=None):
        super().__init__()
        self.top, self.capacity, self.dropped = top, capacity, 0
        self.router = nn.Linear(width, experts, bias=False)
        made = (
            nn.Sequential(nn.Linear(width, hidden), nn.ReLU(), nn.Linear(hidden, width))
            for _ in range(experts)
        )
        self.experts = nn.ModuleList(made)
        self.compute = self.compute_here

    def forward(self, values):
        tokens = values.reshape(-1, values.shape[-1])  # (tokens, width)
        weights, chosen = self.router(tokens).softmax(1).topk(self.top)  # (tokens, top) each
        chosen, experts = chosen.flatten(), len(self.experts)
        order = chosen.argsort(stable=True)  # those of expert 0 first
        counts = chosen.bincount(minlength=experts)  # (experts,)
        if self.capacity:
            most = math.ceil(self.capacity * len(chosen) / experts)
            order = torch.cat([each[:most] for each in order.split(counts.tolist())])
            counts = counts.clamp(max=most)
        self.dropped = len(chosen) - len(order)
        made = self.compute(tokens[order // self.top], counts)
        made = made * weights.flatten()[order, None]
        return values + torch.zeros_like(tokens).index_add(0, order // self.top, made).view_as(
            values
        )

    def compute_here(self, tokens, counts):
        """Pass each token through its expert; the first `counts[0]` belong to expert 0."""
        pieces = zip(self.experts, tokens.split(counts.tolist()))
        return torch.cat([expert(piece) for expert, piece in pieces])


@strategy(exact=True, workers=(1, 2, 4))
def experts(task):
    join(task)
    step, workers = Step(task, holds=f"experts of {task.name}"), task.spec.workers
    mixtures = [m for m in step.model.modules() if type(m).__name__ == "Mixture"]
    if not mixtures or any(len(mixture.experts) % workers for mixture in mixtures):
        raise ValueError(f"a model with Mixture layers is needed, whose experts {workers} divides")
    for mixture in mixtures:
        here = len(mixture.experts) // workers
        for number in range(len(mixture.experts)):
            if number // here != task.index:
                mixture.experts[number] = nn.Identity()  # another worker has it
        mixture.compute = Travel(task, step, mixture.experts, here)
    mine = {id(p) for mixture in mixtures for p in mixture.experts.parameters()}
    while step.begin():
        inputs, targets = step.read(task.index, workers)  # (batch / workers, ...) each
        with step.computing():
            loss = step.backward(inputs, targets)
        with step.reducing():
            for parameter in step.parameters:
                if id(parameter) not in mine:
                    dist.all_reduce(parameter.grad)
                parameter.grad /= workers  # that of an expert is the sum over all tokens already
            dist.all_reduce(loss)
            loss /= workers
        with step.applying():
            if step.unscale(loss):
                step.optimizer.step()
        task.metric("dropped", sum(m.dropped for m in mixtures), step.number, step.samples)
        step.done(loss)
    return step.result()


class Travel:
    """In place of `compute_here`: send tokens to the workers of their experts, and back."""

    def __init__(self, task, step, experts, here):
        self.step, self.workers = step, task.spec.workers
        self.experts = list(experts)[task.index * here : (task.index + 1) * here]

    def __call__(self, tokens, counts):
        counts = counts.view(self.workers, -1)  # (workers, experts of each)
        came = torch.empty_like(counts)  # (workers, experts here): tokens of each for each
        with self.step.exchanging():
            dist.all_to_all_single(came, counts)
        there, here = counts.sum(1).tolist(), came.sum(1).tolist()
        pieces = AllToAll.apply(tokens, there, here, self.step).split(came.flatten().tolist())
        made = [
            expert(torch.cat(pieces[number :: len(self.experts)])).split(came[:, number].tolist())
            for number, expert in enumerate(self.experts)
        ]
        back = torch.cat([piece for its in zip(*made) for piece in its])  # as they came
        return AllToAll.apply(back, here, there, self.step)


class AllToAll(torch.autograd.Function):
    """Send so many rows to each worker, and receive so many. Gradients go the way back."""

    @staticmethod
    def forward(context, rows, sent, received, step):
        context.back = received, sent, step
        came = rows.new_empty(sum(received), rows.shape[1])
        with step.exchanging():
            dist.all_to_all_single(came, rows.contiguous(), received, sent)
        return came

    @staticmethod
    def backward(context, gradient):
        return AllToAll.forward(context, gradient, *context.back), None, None, None
