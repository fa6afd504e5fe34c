"""The checks of exercise 03: data parallelism by hand, on torch.distributed alone."""

from __future__ import annotations

import secrets
from functools import partial
from typing import Any

import numpy as np

from course_lib.course.answers import ExerciseTask, Verdict

from . import ready_made
from .processes import World
from .ranks import means
from .ranks.worlds import Complaint, judged, unsent, worlds

READY = (
    "{} does all of that, and well: at work, use it. Here you write what it does, with"
    " dist.broadcast and dist.all_reduce."
)
ONE_PROCESS = (
    "torch.nn.DataParallel divides a batch over the GPUs of one process, and exchanges nothing with"
    " other ranks. Here each rank is a process: keep the module as it is, and average in finish."
)
WRAPPERS = ("torch.distributed.fsdp", "torch.nn.parallel", "torch.distributed._composable")
COPY = (
    "An optimizer that was made before holds the old tensors. Change what is in them: broadcast the"
    " tensor itself, or t.copy_(…)."
)


# --- same_start: all ranks begin with what rank 0 has ---

START_HINTS = (
    (
        "Which tensors make up the state of a module? The optimizer changes some of them, the"
        " forward pass others, and some are never changed. All must begin alike."
    ),
    (
        "module.parameters() and module.buffers(). dist.broadcast(tensor, src=0) sends rank 0's"
        " tensor, and on the other ranks writes into the tensor that it is given."
    ),
    (
        "with torch.no_grad(): for t in [*module.parameters(), *module.buffers()]:"
        " dist.broadcast(t, src=0). Every rank makes the same calls."
    ),
)
STATE = ("a weight", "a weight", "a weight that is not trained", "a buffer", "an integer buffer")


def start_role(task: Any, witness: Any, answer: Any, seed: int) -> list[Any]:
    """The state of a module on this rank before and after, and whether its tensors are the same
    objects.
    """
    import torch

    torch.seed()  # what a rank draws is its own: no other can work out what it has
    module: Any = torch.nn.Linear(4, 3 + seed % 3)
    module.frozen = torch.nn.Parameter(torch.randn(5), requires_grad=False)
    module.register_buffer("mean", torch.randn(6))
    module.register_buffer("steps", torch.tensor([task.index + 1 + secrets.randbelow(50) * 10]))
    names = ["weight", "bias", "frozen", "mean", "steps"]
    held = [getattr(module, name) for name in names]
    before = [t.detach().double().numpy().ravel().copy() for t in held]
    with task.phase("reduce", 0):
        answer(module)
    now = [getattr(module, name) for name in names]
    same = [a is b and a.dtype == b.dtype for a, b in zip(held, now, strict=True)]
    asks = [bool(t.requires_grad) for t in now]
    after = [t.detach().double().numpy().ravel() for t in now]
    return [before, after, same, asks, witness.handed()]


def start_complaint(world: World) -> Complaint | None:
    first = [np.array(t) for t in world.values[0][0]]
    befores = [[np.array(t) for t in seen[0]] for seen in world.values]
    for rank, (_, after, same, asks, _) in enumerate(world.values):
        wrong = [k for k, t in enumerate(after) if not means.near(t, first[k])]
        if wrong:
            k = wrong[0]
            other = "that of rank 0" if rank else "what it was"
            text = f"{world.workers} ranks: on rank {rank}, {STATE[k]} differs from {other}."
            return text, start_mistake(wrong, after[k], k, rank, befores)
        if not all(same):
            k = same.index(False)
            return f"Rank {rank} has {STATE[k]} in a new tensor.", COPY
        if asks != [True, True, False, False, False]:
            text = f"On rank {rank} it has changed which weights are trained (requires_grad)."
            return text, "Copy values only."
    return unsent(
        world, "The state is", [seen[-1] for seen in world.values], 4 * sum(map(len, first))
    )


def start_mistake(wrong: list[int], got: Any, k: int, rank: int, befores: Any) -> str:
    values = [before[k] for before in befores]
    others = {
        f"It has that of rank {r}: src is the rank that all take from, 0.": values[r]
        for r in range(1, len(values))
        if r != rank
    }
    others[
        "It has the mean of all ranks' values. Equal, but not what rank 0 has: a model that rank"
        " 0 has loaded from a checkpoint would be lost. Broadcast, do not average."
    ] = np.mean(values, axis=0)
    others["It has the sum of all ranks' values: use dist.broadcast, not all_reduce."] = np.sum(
        values, axis=0
    )
    if rank == 0:
        changed = "Rank 0's own values have changed: it is the one that others take from."
        return means.named(got, others) or changed
    if means.near(got, values[rank]):
        if wrong == [3, 4]:
            return (
                "The weights are right, the buffers are not: those are no parameters, and are part"
                " of the state as well (module.buffers()). Think of batch normalisation."
            )
        if wrong == [4]:
            return "Buffers of integers, such as counters, belong to the state as well."
        if wrong[0] == 2:
            return (
                "A weight with requires_grad=False is not trained, so it never becomes equal by"
                " itself. It must begin equal as well."
            )
        return (
            "It still has its own: nothing has arrived in the module. Does a copy receive it? Each"
            " rank must give dist.broadcast the module's own tensor."
        )
    return means.named(got, others)


def judge_start(task: str, answer: Any) -> Verdict:
    said = "All began with weights and buffers of rank 0, in the tensors that they had."
    found = worlds(answer, start_role, ready_made.AVERAGING, secrets.randbelow(10**6))
    return judged(task, found, start_complaint, said)


SAME_START = ExerciseTask(
    "same_start",
    "my_broadcast",
    START_HINTS,
    judge_start,
    ready_made.AVERAGING,
    section="03_synchronous_training#Are the replicas still equal?",
)

# --- average: one gradient, in place ---

AVERAGE_HINTS = (
    "A mean is a sum, divided. Which call gives every rank the sum? By what is it divided?",
    (
        "dist.all_reduce(gradient) replaces the gradient by the sum over all ranks, in place."
        " dist.get_world_size() is the number of ranks. Dividing must happen in place too."
    ),
    "After the all_reduce: gradient /= dist.get_world_size(). (gradient = gradient / … makes a new"
    " tensor, which nobody else sees.)",
)


def average_role(task: Any, witness: Any, answer: Any, seed: int) -> list[Any]:
    import torch

    found = []
    for turn, shape in enumerate(((3 + seed % 4,), (4, 5), (1,))):
        rng = np.random.default_rng()  # of this rank alone
        sign = (-1.0) ** np.arange(np.prod(shape)).reshape(shape)  # no rank has the largest of all
        mine = (rng.normal(size=shape) + 10 * task.index * sign).astype("float32")
        gradient = torch.tensor(mine)
        with task.phase("reduce", turn):
            answer(gradient)
        found.append([mine.ravel(), gradient.detach().double().numpy().ravel()])
    return [found, witness.handed()]


def average_complaint(world: World) -> Complaint | None:
    for turn in range(3):
        g = np.array([found[turn][0] for found, _ in world.values], float)
        for rank, (found, _) in reversed([*enumerate(world.values)]):  # rank 0 is often special
            if not means.near(found[turn][1], g.mean(0)):
                text = f"{world.workers} ranks: the gradient of rank {rank} is not the mean of all."
                return text, average_mistake(np.array(found[turn][1]), g, rank)
    size = 4 * sum(len(mine) for mine, _ in world.values[0][0])
    return unsent(world, "The mean is", [handed for _, handed in world.values], size)


def average_mistake(got: Any, g: Any, rank: int) -> str:
    """The name of the mistake by which a rank has `got`; g: the gradient of each rank."""
    n, total = len(g), g.sum(0)
    mistakes = {
        "It is what this rank had: its tensor has not changed. The mean must be written into the"
        " tensor that came in (gradient /= …, gradient.copy_(…)), on every rank.": g[rank],
        "It is the sum: divide it by the number of ranks.": total,
        "It is divided twice: before the sum and after it?": total / n**2,
        "It is this rank's own gradient, divided by the number of ranks: nothing has come from the"
        " others.": g[rank] / n,
        "It is the largest of all: all_reduce adds, if no other op is given.": g.max(0),
        "It is the gradient of rank 0: a broadcast gives all ranks the same, but no mean.": g[0],
    }
    mistakes |= {
        f"It is the sum over {n} ranks, divided by {k}: is a number, or the"
        " largest rank, written where dist.get_world_size() belongs?": total / k
        for k in (2, 3, 4, 5, 8)
    }
    if name := means.named(got, mistakes):
        return name
    pairs = [(g[rank] + g[(rank + step) % n]) / by for step in (1, -1) for by in (2, n)]
    if any(means.near(got, pair) for pair in pairs):
        return "Only this rank and a neighbour are in it. With 2 ranks that is all of them."
    return ""


def judge_average(task: str, answer: Any) -> Verdict:
    said = "The gradients of all shapes became their mean, in place."
    found = worlds(answer, average_role, ready_made.AVERAGING, secrets.randbelow(10**6))
    return judged(task, found, average_complaint, said)


AVERAGE = ExerciseTask(
    "average",
    "my_average",
    AVERAGE_HINTS,
    judge_average,
    ready_made.AVERAGING,
    section="03_synchronous_training#Is it the same training?",
)

# --- data_parallel and awkward: the class ---

CLASS_HINTS = (
    (
        "Three moments: at the start all replicas become equal, the forward pass is the module's"
        " own, and between backward and the optimizer's step the gradients become equal. You have"
        " written the first and the third already."
    ),
    (
        "__init__ keeps the module in self.module and calls my_broadcast. __call__ hands everything"
        " on to self.module and returns what it gives. finish calls my_average for the gradient of"
        " every parameter."
    ),
    "finish: for p in self.module.parameters(): my_average(p.grad)",
)
AWKWARD_HINTS = (
    (
        "For each parameter ask: is it trained? Has it a gradient on this rank? Could it have one"
        " on another? Only the last question decides whether this rank must take part."
    ),
    (
        "Go through module.parameters(), which lists a tied weight once. Leave out those with"
        " requires_grad=False. Where p.grad is None, this rank's part of the mean is zero, and it"
        " must take part with that."
    ),
    (
        "for p in self.module.parameters(): if p.requires_grad: if p.grad is None: p.grad ="
        " torch.zeros_like(p); then my_average(p.grad)."
    ),
)
SKIPS = (
    "Does a rank leave out a parameter because its own p.grad is None? Another rank has a gradient"
    " for it, and waits: take part with zeros. Who takes part must not depend on a rank's data."
)
NONE = (
    "p.grad is None where a weight is frozen, or was not used on this rank. Which of the two has to"
    " take part in the average all the same?"
)
STEPS = 4


def class_role(awkward: bool, task: Any, witness: Any, answer: Any, seed: int) -> list[Any]:
    """Train a few steps. For each: the gradients that the answer leaves, those of every rank's data
    as a twin of rank 0's module has them (which rank 0 returns for all, as they are the same on
    each), and the bytes that were handed over.
    """
    import torch

    def made(rank: int) -> Any:
        torch.manual_seed(seed + 1000 * rank)
        return awkward_module(seed) if awkward else plain_module(seed)

    module, twin, workers = made(task.index), made(0), task.spec.workers
    wrapped = answer(module)
    calls = len(witness.calls)
    inner = getattr(wrapped, "module", None)
    ready = wrappers(wrapped)
    if ready or not isinstance(inner, torch.nn.Module):
        return [False, [], [], True, ready]
    begun = [[state(m.parameters()), state(m.buffers())] for m in (inner, twin)]
    optimizer = torch.optim.SGD(inner.parameters(), lr=0.1)
    task.watch(inner, optimizer)
    found = []
    for step in range(STEPS):
        alone = []
        for rank in range(workers):
            twin.zero_grad()
            loss_of(twin, seed, rank, step, awkward).backward()
            alone.append(gradients(twin))
        optimizer.zero_grad()
        loss_of(wrapped, seed, task.index, step, awkward).backward()
        wrapped.finish()
        asks = [p.requires_grad for p in inner.parameters()]
        sent = [[*call] for call in witness.calls[calls:]]
        found.append([gradients(inner), [] if task.index else alone, sent, asks])
        calls = len(witness.calls)
        optimizer.step()
        follow(twin, alone)
    tied = not awkward or inner.last.weight is inner.first.weight
    return [inner is module, begun, found, tied, []]


def wrappers(wrapped: Any) -> list[str]:
    """PyTorch's own wrappers in what a learner made, by what they are; none of them is imported."""
    import torch

    held = [wrapped, *getattr(wrapped, "__dict__", {}).values()]
    modules = [m for each in held if isinstance(each, torch.nn.Module) for m in each.modules()]
    kinds = [kind for m in modules for kind in type(m).__mro__]
    names = [k.__name__ for k in kinds if k.__module__.startswith(WRAPPERS)]
    made = {"FSDP": "fully_shard (FSDP)", "DDP": "replicate (DDP)"}  # these make such classes
    return [next((made[k] for k in made if name.startswith(k)), name) for name in names]


def state(tensors: Any) -> Any:
    return np.concatenate([np.zeros(0), *(t.detach().double().numpy().ravel() for t in tensors)])


def follow(twin: Any, alone: Any) -> None:
    """Take the step that one process with all data would take."""
    import torch

    with torch.no_grad():
        for k, p in enumerate(twin.parameters()):
            parts = [g[k] for g in alone if g[k] is not None]
            if parts and p.requires_grad:
                p -= 0.1 * torch.tensor(sum(parts) / len(alone), dtype=p.dtype).reshape(p.shape)


def gradients(module: Any) -> list[Any]:
    """The gradient of each parameter, None where there is none."""
    return [
        None if p.grad is None else p.grad.detach().double().numpy().ravel().copy()
        for p in module.parameters()
    ]


def loss_of(model: Any, seed: int, rank: int, step: int, awkward: bool) -> Any:
    """The loss on the data of a rank, which are like no other's."""
    import torch

    rng = np.random.default_rng([seed, rank, step])
    x = torch.tensor(rng.normal(size=(4, 6)).astype("float32"))
    y = torch.tensor(rng.normal(size=(4, 1)).astype("float32") + rank)
    # a branch that rank 0 takes, and another; in step 2 all take the same
    branch = {"branch": 0 if rank == 0 or step == 2 else 1} if awkward else {}
    found = model(x, **branch)
    if found is None:
        raise TypeError("__call__ returns nothing: is `return` missing?")
    return (found - y).square().mean()


def plain_module(seed: int) -> Any:
    from torch import nn

    return nn.Sequential(nn.Linear(6, 8 + seed % 4), nn.Tanh(), nn.Linear(8 + seed % 4, 1))


def awkward_module(seed: int) -> Any:
    """Weights that are frozen, tied, used on some ranks and never used; and buffers."""
    import torch
    from torch import nn

    class Awkward(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.frozen = nn.Linear(6, 24)
            self.frozen.requires_grad_(False)
            self.first = nn.Linear(24, 24, bias=False)
            self.last = nn.Linear(24, 24, bias=False)
            self.last.weight = self.first.weight
            self.branches = nn.ModuleList(nn.Linear(24, size) for size in (1, 2))
            self.spare = nn.Linear(3, 1)
            self.register_buffer("scale", torch.rand(1) + 0.5)

        def forward(self, x: Any, branch: int = 0) -> Any:
            x = torch.tanh(self.first(self.frozen(x))) * self.scale
            return self.branches[branch](torch.tanh(self.last(x))).mean(1, keepdim=True)

    return Awkward()


def class_complaint(awkward: bool, world: World) -> Complaint | None:
    for rank, (same, begun, _, tied, ready) in enumerate(world.values):
        if not same:
            if ready:
                told = ONE_PROCESS if ready[0] == "DataParallel" else READY.format(ready[0])
                return "Inside is a ready-made wrapper.", told
            return (
                f"On rank {rank}, .module is not the module that came in.",
                "Keep the module itself, self.module = module, not a copy: optimizers hold its"
                " parameters.",
            )
        if not tied:
            return "The tied weights are two weights now.", "Change values, not the module."
        for k, what in enumerate(("weights", "buffers")):
            if not means.near(begun[0][k], begun[1][k]):
                return (
                    f"{world.workers} ranks: rank {rank} begins with other {what} than rank 0.",
                    "The replicas must begin alike: call your my_broadcast in __init__.",
                )
    for step in range(STEPS):
        for rank, (_, _, found, _, _) in reversed([*enumerate(world.values)]):
            if wrong := step_complaint(world, found[step], rank, step, awkward):
                return wrong
    for step in range(STEPS):
        handed = [sum(size for _, size in found[step][2]) for _, _, found, *_ in world.values]
        need = needed(world.values[0][2][step][1], world.values[0][2][step][3])
        if wrong := unsent(world, f"The gradients of step {step} are", handed, need):
            return wrong
    for rank, (_, _, found, *_) in enumerate(world.values):
        for step, (_, _, calls, asks) in enumerate(found):
            alone = world.values[0][2][step][1]
            if wrong := too_much(rank, step, alone, calls, asks, awkward):
                return wrong
    return None


def needed(alone: Any, asks: list[bool]) -> int:
    """The bytes of the gradients that are trained, of weights that some rank has used."""
    sizes = [
        max((len(g[k]) for g in alone if g[k] is not None), default=0) for k in range(len(asks))
    ]
    return 4 * sum(size for size, asked in zip(sizes, asks, strict=True) if asked)


def too_much(
    rank: int, step: int, alone: Any, calls: Any, asks: list[bool], awkward: bool
) -> Complaint | None:
    """Words for more bytes in a step than those of the trained gradients; a few may be flags."""
    need = needed(alone, asks)
    by_kind = {name: sum(size for of, size in calls if of == name) for name, _ in calls}
    summed, spread = by_kind.get("allreduce", 0), by_kind.get("broadcast", 0)
    # a reduce and a broadcast make an all-reduce; messages from rank to rank may be any number
    handed = summed + spread if summed else max(by_kind.get("reduce", 0), spread)
    if handed <= 1.1 * need + (300 if awkward else 64):
        return None
    text = (
        f"In step {step} rank {rank} hands {handed:,} bytes to torch.distributed; the gradients"
        f" that are trained have {need:,}."
    )
    if awkward:
        return text, (
            "Is a tied weight sent twice? module.parameters() lists it once. Or is something sent"
            " for frozen weights, or the weights with the gradients?"
        )
    return text, (
        "Something is sent more than once. Are the weights broadcast in each step? Equal weights"
        " that take equal steps stay equal: once, in __init__, is enough."
    )


def step_complaint(
    world: World, step_found: Any, rank: int, step: int, awkward: bool
) -> Complaint | None:
    got, _, _, asks = step_found
    alone = world.values[0][2][step][1]
    where = f"{world.workers} ranks, step {step}: rank {rank}"
    for k, have in enumerate(got):
        parts = [g[k] for g in alone]
        used = [np.array(part) for part in parts if part is not None]
        frozen = awkward and k < 2
        if frozen:
            if asks[k] or have is not None:
                return (
                    f"{where} has a gradient for a frozen weight.",
                    "Leave weights with requires_grad=False out: even a gradient of zeros lets an"
                    " optimizer with weight decay change them.",
                )
            continue
        if not used:  # on no rank: no gradient, or zeros
            if have is not None and np.abs(have).max() > 0:
                return f"{where} has a gradient for a weight that nobody used.", ""
            continue
        zero = np.zeros_like(used[0])
        g = np.array([zero if part is None else part for part in parts])
        if have is None:
            return (
                f"{where} has no gradient for a weight that another rank used.",
                "The mean counts on every rank: this one would not follow. Give it p.grad, zeros,"
                " before the all-reduce.",
            )
        if not means.near(have, g.mean(0)):
            text = f"{where} does not have the mean of all ranks' gradients."
            return text, class_mistake(np.array(have), g, len(used), rank, k, step, got, alone)
    return None


def class_mistake(
    have: Any, g: Any, used: int, rank: int, k: int, step: int, got: Any, alone: Any
) -> str:
    """The name of the mistake by which a parameter has the gradient `have`."""
    n = len(g)
    if used < n and means.near(have, g.sum(0) / used):
        return (
            f"It is the mean over the {used} of {n} ranks that used this weight. One process with"
            " all the data would divide by all: a rank that did not use it counts as zero."
        )
    mistakes = {
        "It is the sum: divide by the number of ranks.": g.sum(0),
        "It is divided twice by the number of ranks.": g.sum(0) / n**2,
        "It is this rank's own gradient, divided by the number of ranks: finish does not sum.": (
            g[rank] / n
        ),
        "It is the gradient of rank 0: use an all-reduce, not a broadcast.": g[0],
    }
    own = alone[rank]
    if means.near(have, g[rank]):
        if k and own[0] is not None and not means.near(got[0], own[0]):
            return "Only the first parameters are averaged. Go through all of them."
        return (
            "It is this rank's own gradient: finish leaves it as it was. Is the mean written into"
            " p.grad itself? And is it formed after the backward pass?"
        )
    if name := means.named(have, mistakes):
        return name
    if step == 0:
        return (
            "It is no mean of these gradients. Does __call__ return what the module gives, and does"
            " finish do nothing but average?"
        )
    return "Step 0 was right, so the replicas have become different, or something is kept too long."


def judge_class(awkward: bool, task: str, answer: Any) -> Verdict:
    said = "In every step all ranks had the mean gradient, that of one process with all the data."
    if awkward:
        said += " Frozen and tied weights, and those that only some ranks use, were right as well."
    found = worlds(
        answer, partial(class_role, awkward), ready_made.AVERAGING, secrets.randbelow(10**6)
    )
    return judged(task, found, partial(class_complaint, awkward), said, SKIPS, ("NoneType", NONE))


DATA_PARALLEL = ExerciseTask(
    "data_parallel",
    "DataParallel",
    CLASS_HINTS,
    partial(judge_class, False),
    ready_made.AVERAGING,
    section="03_synchronous_training#Who applies the update?",
)
AWKWARD = ExerciseTask(
    "awkward_model",
    "CarefulDataParallel",
    AWKWARD_HINTS,
    partial(judge_class, True),
    ready_made.AVERAGING,
    section="03_synchronous_training#Is it the same training?",
)

TASKS = (SAME_START, AVERAGE, DATA_PARALLEL, AWKWARD)
