"""The checks of exercise 11: a reduce-scatter, an optimizer and a model of which each rank keeps a
part. Ranks compare themselves with one process that has all the data, and count bytes.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import Any

import numpy as np

from course_lib.course.answers import ExerciseTask, Verdict
from course_lib.text import kind_of

from . import ready_made
from .processes import World
from .ranks import means, memory
from .ranks.worlds import Complaint, judged, unsent, worlds

# --- reduce_scatter: a part of the mean gradient ---

SCATTER_HINTS = (
    (
        "Three steps: make the row, with zeros at its end; exchange it, so that each rank gets its"
        " part from all others; add what has come. Where is the division by the ranks?"
    ),
    (
        "row = torch.nn.functional.pad(gradient.flatten(), (0, -gradient.numel() % ranks)) / ranks"
        " has a length that divides, and is a new tensor. Let came = torch.empty_like(row). After"
        " dist.all_to_all_single(came, row) it holds this rank's part as each rank has it."
    ),
    "came.view(ranks, -1).sum(0). Or: part = row.new_empty(len(row) // ranks);"
    " dist.reduce_scatter_single(part, row), which adds as well.",
)


def scatter_role(task: Any, witness: Any, answer: Any, seed: int) -> list[Any]:
    """For gradients of several shapes: what this rank had, what the answer returned, whether the
    gradient is as before, and the calls that were made.
    """
    import torch

    seen = []
    for turn, shape in enumerate(((5 + seed % 4, 3), (4 * task.spec.workers,), (1,))):
        mine = np.random.default_rng().normal(size=shape).astype("float32") + task.index
        gradient = torch.tensor(mine)
        calls = len(witness.calls)
        with task.phase("reduce", turn):
            part = answer(gradient)
        if not isinstance(part, torch.Tensor):
            raise TypeError(f"it returns {kind_of(part)}: return the part, a tensor")
        same = bool((gradient == torch.tensor(mine)).all())
        sent = [[*call] for call in witness.calls[calls:]]
        seen.append([mine.ravel(), part.detach().double().numpy(), same, sent])
    return seen


def scatter_complaint(world: World) -> Complaint | None:
    n = world.workers
    for turn in range(3):
        g = np.array([seen[turn][0] for seen in world.values], float)
        size = -(-g.shape[1] // n)
        rows = np.pad(g, ((0, 0), (0, n * size - g.shape[1])))
        parts = rows.mean(0).reshape(n, size)
        for rank, seen in reversed([*enumerate(world.values)]):
            _, part, same, _ = seen[turn]
            if not means.near(part, parts[rank]):
                text = f"{n} ranks, {g.shape[1]} numbers: rank {rank} does not return its part."
                return text, scatter_mistake(np.array(part, float), rows, rank, g.shape[1])
            if not same:
                return f"The gradient of rank {rank} has changed.", (
                    "Leave it as it is: divide the padded row, or work on a copy."
                )
    whole = sum(4 * len(mine) for mine, *_ in world.values[0])
    sent = [[call for turn in seen for call in turn[3]] for seen in world.values]
    handed = [sum(size for _, size in calls) for calls in sent]
    names = {name for calls in sent for name, _ in calls}
    if any("allreduce" in name for name in names) or sum(handed) > n * (1.5 * whole + 200):
        return f"The parts are right, but {n} ranks hand over {sum(handed):,} bytes.", (
            "All gradients go to all ranks, by an all-reduce or an all-gather, and most of what"
            " arrives is dropped. Send each rank its own part only."
        )
    return unsent(world, "The parts are", handed, whole // 2)


def scatter_mistake(got: Any, rows: Any, rank: int, count: int) -> str:
    """The name of the mistake by which a rank returned `got`; rows: the padded row of each rank."""
    n, mean = len(rows), rows.mean(0)
    cut = mean.reshape(n, -1)
    if got.size == count and means.near(got.ravel(), mean[:count]):
        return "It is the whole mean: return this rank's part of it only."
    if got.ndim > 1 and means.near(got.ravel(), cut[rank]):
        return f"The numbers are right; return them as one row, and not in the shape {got.shape}."
    short = np.array_split(mean[:count], n)[rank]
    mistakes = {
        "It is the sum of all ranks' parts: divide by the number of ranks.": cut[rank] * n,
        "It is divided by the number of ranks twice.": cut[rank] / n,
        "It is the part of this rank's own gradient: nothing has come from the others.": rows[
            rank
        ].reshape(n, -1)[rank],
        "It is the part of this rank's own gradient, divided by the number of ranks: nothing has"
        " come from the others.": rows[rank].reshape(n, -1)[rank] / n,
        "It is every n-th number: a part is a piece of the row, from one end to the other.": mean[
            rank::n
        ],
    }
    mistakes |= {f"It is part {k}: rank k returns part k.": cut[k] for k in range(n) if k != rank}
    if name := means.named(got, mistakes):
        return name
    if means.near(got, short) or (
        got.size < cut[rank].size and means.near(got, cut[rank][: got.size])
    ):
        return (
            "The parts have different lengths: fill the end of the row with zeros, so that all"
            " parts are equally long."
        )
    return f"Its part of the padded row has {cut[rank].size} numbers; it returns {got.size}."


def judge_scatter(task: str, answer: Any) -> Verdict:
    proof = "Each rank returned its part of the mean, and sent no more than that needs."
    made = worlds(answer, scatter_role, ready_made.AVERAGING, secrets.randbelow(10**6))
    return judged(task, made, scatter_complaint, proof)


# --- sharded_optimizer: each rank keeps the state of what it owns ---

OPTIMIZER_HINTS = (
    (
        "Three parts: say who owns which parameter; make an optimizer_cls for those that this rank"
        " owns; in step(), let it step, and have every owner send its parameters. All ranks must"
        " come to the same owners, by themselves."
    ),
    (
        "Begin __init__ with what add_param_group needs, then super().__init__(params, kwargs). In"
        " add_param_group give each parameter to the rank that has the fewest numbers so far, and"
        " hand optimizer_cls a group with the same settings and only your own parameters."
    ),
    (
        "step: copy the settings of self.param_groups (all but 'params') into the groups of your"
        " own optimizer, so that a changed lr counts; own.step(); then for each parameter, on all"
        " ranks in the same order: dist.broadcast(p.data, src=owner[p])."
    ),
)
STEPS, WIDTH = 4, 176
Case = dict[str, Any]


def cases(seed: int) -> list[tuple[str, Any, dict[str, Any], bool]]:
    """Name, class and settings of optimizers, and true where parameters come in groups."""
    import torch

    class Signs(torch.optim.Optimizer):
        """One that no library has: steps by signs, with a count of them as its state."""

        def __init__(self, params: Any, lr: float) -> None:
            super().__init__(params, {"lr": lr})

        def step(self, closure: Any = None) -> None:
            for group in self.param_groups:
                for p in group["params"]:
                    if p.grad is not None:
                        steps = self.state[p].setdefault("steps", torch.zeros(1)).add_(1)
                        p.data -= group["lr"] / steps * p.grad.sign()

    rate = 0.01 * (1 + seed % 5)
    momentum = {"lr": rate, "momentum": 0.8}
    return [  # the last one counts bytes: by then all that is loaded once has been loaded
        ("SGD with momentum, in groups,", torch.optim.SGD, momentum, True),
        ("an optimizer of ours", Signs, {"lr": rate}, False),
        ("AdamW", torch.optim.AdamW, {"lr": rate, "weight_decay": 0.1}, False),
    ]


def net(seed: int) -> Any:
    """Layers with large weights and small biases; two are tied, one is frozen."""
    import torch

    torch.manual_seed(seed)
    layers = [torch.nn.Linear(WIDTH, WIDTH) for _ in range(6)]
    layers[4].weight = layers[1].weight
    layers[2].requires_grad_(False)
    return torch.nn.Sequential(*layers)


def groups(model: Any, grouped: bool) -> list[Any]:
    p = [*model.parameters()]
    return [{"params": p[:4], "lr": 0.2}, {"params": p[4:], "weight_decay": 0.3}] if grouped else p


def optimizer_role(task: Any, witness: Any, answer: Any, seed: int) -> list[Case]:
    """For each optimizer: the bytes of its state, here and undivided, and what became of each
    parameter in each step, in a word.
    """
    return [one_case(answer, seed, *case) for case in cases(seed)]


def one_case(answer: Any, seed: int, name: str, cls: Any, settings: Any, grouped: bool) -> Case:
    twin, module = net(seed), net(seed)
    theirs = cls(groups(twin, grouped), **settings)
    wanted = []
    for step in range(STEPS):
        draw(twin, seed, step)
        theirs.step()
        halve(theirs)
        wanted.append([p.detach().clone() for p in twin.parameters()])
    copy = sum(t.nbytes for state in theirs.state.values() for t in state.values())
    largest = copy * WIDTH * WIDTH / sum(p.numel() for p in theirs.state)
    begun = [p.detach().clone() for p in module.parameters()]
    draw(module, seed, 0)
    before = memory.in_use()
    mine = answer(groups(module, grouped), cls, **settings)
    became, cleared = [], True
    for step in range(STEPS):
        draw(module, seed, step)
        mine.step()
        if step == 0:
            kept = memory.in_use() - before
        halve(mine)
        now = [p.detach() for p in module.parameters()]
        old = wanted[step - 1] if step else begun
        pairs = zip(now, wanted[step], old, strict=True)
        became.append([word(*each) for each in pairs])
        mine.zero_grad()
        cleared &= all(p.grad is None or not p.grad.any() for p in module.parameters())
    tied = module[4].weight is module[1].weight
    found = {"name": name, "kept": kept, "copy": copy, "largest": largest}
    return found | {"became": became, "cleared": cleared, "tied": tied}


def draw(model: Any, seed: int, step: int) -> None:
    """Gradients that are the same on all ranks; one has none in step 1."""
    import torch

    torch.manual_seed(seed + 31 * step)
    for k, p in enumerate(model.parameters()):
        grad = torch.randn_like(p)
        p.grad = grad if p.requires_grad and (step, k) != (1, 0) else None


def halve(optimizer: Any) -> None:
    """What a schedule does."""
    for group in optimizer.param_groups:
        group["lr"] *= 0.5


def word(now: Any, wanted: Any, old: Any) -> str:
    import torch

    if torch.allclose(now, wanted, rtol=1e-4, atol=1e-6):
        return "right"
    return "unchanged" if torch.equal(now, old) else "other"


def optimizer_complaint(world: World) -> Complaint | None:
    for case in range(len(world.values[0])):
        ranks = [values[case] for values in world.values]
        if wrong := updates_complaint(ranks) or (state_complaint(ranks) if case == 2 else None):
            return f"{ranks[0]['name']} on {world.workers} ranks: {wrong[0]}", wrong[1]
    return None


def updates_complaint(ranks: list[Case]) -> Complaint | None:
    for step in range(STEPS):
        for rank, case in reversed([*enumerate(ranks)]):
            words = case["became"][step]
            if set(words) == {"right"}:
                continue
            k = next(i for i, each in enumerate(words) if each != "right")
            what = (
                "has not changed" if words[k] == "unchanged" else "has another value than it gets"
            )
            text = f"in step {step} parameter {k} of rank {rank} {what}."
            return text, update_mistake(ranks, step, k)
    if not all(case["cleared"] for case in ranks):
        return "after zero_grad() some gradients are still there.", (
            "The next backward pass would add to them. Clear those of all parameters, also of those"
            " that another rank updates."
        )
    return None


def update_mistake(ranks: list[Case], step: int, k: int) -> str:
    words = [case["became"][step][k] for case in ranks]
    if all(each == "unchanged" for each in words):
        return (
            "No rank has changed it. Does every parameter have an owner, also those of the second"
            " group? Does the owner's optimizer step, and is it the owner that sends?"
        )
    if "right" in words:
        return (
            "Its owner has updated it, and has not sent it. After the step, each owner broadcasts"
            " its parameters to all ranks, in the same order everywhere."
        )
    if step == 0 and "groups" in ranks[0]["name"]:
        return "A group has settings of its own, such as lr: they go before those in kwargs."
    if step:
        return (
            "Step 0 was right. Before step 1 the rate in param_groups was halved, as a schedule"
            " does: does the optimizer that you keep see that? Has it all settings of kwargs? Is"
            " a parameter without a gradient left as it is?"
        )
    return "optimizer_cls(params, **kwargs) gives another value: does it get all of kwargs?"


def state_complaint(ranks: list[Case]) -> Complaint | None:
    share = ranks[0]["copy"] / len(ranks)
    most = 1.1 * (share + ranks[0]["largest"]) + 60_000
    rank = max(range(len(ranks)), key=lambda each: ranks[each]["kept"])
    kept, copy = ranks[rank]["kept"], ranks[rank]["copy"]
    if kept <= most:
        return None
    text = (
        f"rank {rank} keeps {memory.megabytes(kept)} for its optimizer. Undivided it takes"
        f" {memory.megabytes(copy)}, so an equal share is {memory.megabytes(share)}."
    )
    if sum(case["kept"] for case in ranks) > 0.9 * len(ranks) * copy:
        return text, (
            "Each rank has a full copy: nothing is divided. optimizer_cls makes state for every"
            " parameter that it updates, so give it only those that this rank owns."
        )
    if sum(case["kept"] for case in ranks) < 1.3 * copy:
        return text, (
            "The state is divided, and not equally. Weights and biases come in turn, so every n-th"
            " parameter can be a large one: give the next to the rank that has the fewest numbers."
        )
    return text, "It holds more than its state: copies of parameters or gradients, perhaps."


def judge_optimizer(task: str, answer: Any) -> Verdict:
    proof = (
        "AdamW, SGD and an optimizer of ours gave the parameters of the undivided one, and no rank"
        " keeps more state than a share."
    )
    forbidden = ready_made.SHARDED_OPTIMIZER | ready_made.AVERAGING
    made = worlds(answer, optimizer_role, forbidden, secrets.randbelow(10**6))
    return judged(task, made, optimizer_complaint, proof)


# --- fully_sharded: each rank keeps a part of everything ---

SHARDED_HINTS = (
    (
        "Begin with the parts: broadcast each parameter from rank 0, cut it as in task 1, and put"
        " the part, a Parameter of its own, into layer._parameters. Then four moments: before a"
        " layer computes, after it, when the backward pass arrives, when a gradient is complete."
    ),
    (
        "gather: all-gather the parts (dist.all_gather_single), give the whole tensor's storage its"
        " size back, and copy. free: storage to 0. Both work on the tensor that the layer has used"
        " in the forward pass, since autograd has kept that one. Remember it in __init__."
    ),
    (
        "before the layer: gather, layer._parameters[name] = whole. After it: output.register_hook"
        " with a gather; layer._parameters[name] = part; free. Gradient complete: part.grad ="
        " my_reduce_scatter(whole.grad), whole.grad = None, free. finish: free whatever is left."
    ),
)
LAYERS, SIDE = 12, 256
SLACK = 250_000  # bytes for each rank, which the exchange itself may hold
AWAY = "An empty tensor cannot compute: a layer is gathered before the forward pass, and before the"
AWAY += " backward pass once more. The first uses a pre-hook, the second a hook of the output."


def deep(seed: int, probes: Sequence[Any]) -> Any:
    """Twelve layers: two are tied, one is frozen, one counts. Probes note what passes at the front
    and at the end.
    """
    import torch
    from torch import nn

    torch.manual_seed(seed)
    layers = [nn.Linear(SIDE, SIDE) for _ in range(LAYERS)]
    layers[7].weight = layers[3].weight
    layers[5].requires_grad_(False)
    parts = [part for layer in layers for part in (layer, nn.Tanh())]
    model: Any = nn.Sequential(probes[0], *parts, probes[1])
    model.register_buffer("seen", torch.tensor([float(seed % 97)]))
    return model


def probe(passing: str, note: Any) -> Any:
    """A layer that does nothing but note what passes in that pass."""
    import torch

    class Passed(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            if passing == "forward":
                note(passing, x)
            return x.clone()

        @staticmethod
        def backward(ctx: Any, gradient: Any) -> Any:
            if passing == "backward":
                note(passing, gradient)
            return gradient

    class Probe(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            return Passed.apply(x)

    return Probe()


def batch(seed: int, rank: int, step: int) -> Any:
    import torch

    rng = np.random.default_rng([seed, rank, step])
    x = torch.tensor(rng.normal(size=(4, SIDE)).astype("float32"), requires_grad=True)
    return x, torch.tensor(rng.normal(size=(4, SIDE)).astype("float32") + rank)


def sharded_role(task: Any, witness: Any, answer: Any, seed: int) -> Case:
    """Bytes at four moments, and how far the whole parameters are from those of one process with
    all data, and from what known mistakes give.
    """
    import torch

    n = task.spec.workers
    wanted = trained(seed, n, 3)
    own = [trained(seed, n, 1, only=rank)[0] for rank in range(n)]
    known = {"sum": trained(seed, n, 1, times=n)[0], "own": {k: mixed(own, k) for k in own[0]}}
    found: Case = {"steps": [], "S": sum(v.nbytes for v in wanted[-1].values())}
    found["L"] = 4 * SIDE * (SIDE + 1)
    bytes_at: dict[str, int] = {}
    types: dict[str, str] = {}

    def note(when: str, x: Any) -> None:
        types.setdefault(when, str(x.dtype))
        bytes_at[when] = memory.in_use() - before

    def made(dtype: Any) -> tuple[Any, Any]:
        module = deep(seed + task.index, [probe("backward", note), probe("forward", note)])
        given = {"compute_dtype": dtype} if dtype else {}
        return module, answer(module, **given)

    # first in 16 bits: what is loaded once is loaded now, and not counted below
    before = 0
    small = made(torch.bfloat16)[1]
    x, y = batch(seed, task.index, 0)
    optimizer = torch.optim.SGD(small.parameters(), lr=0.5)
    (small(x) - y).square().mean().backward()
    small.finish()
    optimizer.step()
    kinds = {str(p.dtype) for p in small.parameters()}
    found["small"] = [types.get("forward", ""), sorted(kinds), apart(whole(small), wanted[0])]
    del small, optimizer
    before = memory.in_use()
    module, wrapped = made(None)
    names = [name for name, _ in module.named_parameters()]
    if not isinstance(wrapped, torch.nn.Module) or getattr(wrapped, "module", None) is not module:
        return {"module": False}
    bytes_at["start"] = memory.in_use() - before
    found["begun"] = apart(whole(wrapped), values(deep(seed, [torch.nn.Identity()] * 2)))
    optimizer = torch.optim.SGD(wrapped.parameters(), lr=0.5)
    calls = len(witness.calls)
    for step in range(3):
        x, y = batch(seed, task.index, step)
        with task.phase("compute", step):
            loss = (wrapped(x) - y).square().mean()
            loss.backward()
        with task.phase("reduce", step):
            wrapped.finish()
        bytes_at["end"] = memory.in_use() - before
        if step == 1:
            found["bytes"] = dict(bytes_at)
        optimizer.step()
        optimizer.zero_grad()
        got = whole(wrapped)
        found["steps"].append(apart(got, wanted[step]))
        found["names"] = [sorted(got), sorted(names)]
        if step == 0:
            found["known"] = [name for name, w in known.items() if apart(got, w)[1] < 1e-3]
        del got  # as large as the model, and counted otherwise
    found["called"] = len(witness.calls) > calls
    with torch.no_grad():
        out = wrapped(batch(seed, 0, 9)[0])
    found["eval"] = bool(torch.isfinite(out).all())
    return found | {"module": True}


def whole(wrapped: Any) -> dict[str, Any]:
    given = wrapped.full_parameters()
    if not isinstance(given, dict):
        raise TypeError(f"full_parameters returns {kind_of(given)}: return a dict of tensors")
    return {name: tensor.detach().float().numpy() for name, tensor in given.items()}


def trained(seed: int, n: int, steps: int, times: int = 1, only: int | None = None) -> list[Any]:
    """The parameters after each step of one process that has all ranks' data."""
    import torch

    twin = deep(seed, [torch.nn.Identity(), torch.nn.Identity()])
    optimizer, after = torch.optim.SGD(twin.parameters(), lr=0.5), []
    for step in range(steps):
        optimizer.zero_grad()
        for rank in range(n) if only is None else [only]:
            x, y = batch(seed, rank, step)
            share = times / n if only is None else 1
            (share * (twin(x) - y).square().mean()).backward()
        optimizer.step()
        after.append(values(twin))
    return after


def values(model: Any) -> dict[str, Any]:
    return {name: p.detach().clone().numpy() for name, p in model.named_parameters()}


def mixed(ranks: list[dict[str, Any]], name: str) -> Any:
    """A parameter that has part k of what rank k has."""
    shape, n = ranks[0][name].shape, len(ranks)
    rows = [np.pad(rank[name].ravel(), (0, -rank[name].size % n)) for rank in ranks]
    row = np.concatenate([np.split(each, n)[k] for k, each in enumerate(rows)])
    return row[: int(np.prod(shape))].reshape(shape)


def apart(got: Any, wanted: Any) -> list[Any]:
    """The first parameter that differs, and by how much at most, as a share of the largest."""
    worst = ["", 0.0]
    for name, w in wanted.items():
        g = got.get(name)
        far = float("inf") if g is None or g.shape != w.shape else float(np.abs(g - w).max())
        if not far / np.abs(w).max() <= worst[1]:
            worst = [name, far / np.abs(w).max()]
    return worst


def sharded_complaint(world: World) -> Complaint | None:
    for rank, found in enumerate(world.values):
        where = f"{world.workers} ranks: rank {rank}"
        if not found["module"]:
            return f"On rank {rank}, .module is not the module that came in.", (
                "It is a torch.nn.Module that keeps the module itself: self.module = module."
            )
        have, names = found["names"]
        if have != names:
            return f"full_parameters() has the names {', '.join(have[:3])} …", (
                f"It has those of the module that came in: {', '.join(names[:3])} …"
            )
        name, far = found["begun"]
        if far > 1e-6 and far < float("inf"):
            return f"{where} begins with other values in {name} than rank 0 has.", (
                "Broadcast each parameter from rank 0 before you cut it: otherwise every part is of"
                " another model."
            )
        for step, (name, far) in enumerate(found["steps"]):
            if far > 1e-3:
                text = f"{where} has other values in {name} after step {step} than one process"
                return f"{text} with all the data.", sharded_mistake(found, step, far)
    ranks = [*enumerate(world.values)]
    for rank, found in ranks:
        if wrong := bytes_complaint(found, world.workers, rank):
            return wrong
    seen, kinds, (name, far) = world.values[0]["small"]
    if kinds != ["torch.float32"]:
        return f"With compute_dtype=torch.bfloat16 the parts are {', '.join(kinds)}.", (
            "They stay float32: an update is often too small for 16 bits, and would be rounded"
            " away. Only what is gathered has the other type."
        )
    if seen != "torch.bfloat16":
        return f"With compute_dtype=torch.bfloat16 the layers compute in {seen}.", (
            "Gather weights in that type, and give each layer its inputs in it: a forward pre-hook"
            " may return them."
        )
    if far > 0.05:
        return f"With compute_dtype=torch.bfloat16 {name} is {100 * far:.0f} % off.", (
            "Only the computation is in 16 bits: the parts are updated in float32, by gradients"
            " that were averaged in float32."
        )
    return None


def sharded_mistake(found: Case, step: int, far: float) -> str:
    if far == float("inf"):
        return (
            "It has another shape. full_parameters gathers the parts, drops the zeros at the end,"
            " and gives each tensor the shape that it had in the module."
        )
    words = {
        "sum": "The gradients are sums: divide them by the number of ranks.",
        "own": "It has taken the step of its own gradient: nothing has come from the others.",
    }
    if not step and (name := next(iter(found["known"]), "")):
        return words[name]
    if step:
        return (
            "Step 0 was right. Is a gradient of the step before still added in? Are old weights"
            " used, which were gathered before the optimizer's step?"
        )
    return (
        "Do all begin with rank 0's weights and buffers? Does each part get its own piece of the"
        " mean gradient, the same piece of which it has the values?"
    )


MOMENTS = {
    "start": (
        "when it is made",
        1,
        3,
        "The module's own tensors are still whole: cut them, and free their storage.",
    ),
    "forward": (
        "at the end of the forward pass",
        1,
        3,
        "Layers that have computed are still whole. Free each one in its forward hook; the"
        " backward pass gathers it again.",
    ),
    "backward": (
        "at the end of the backward pass",
        2,
        3,
        "Whole layers or whole gradients are kept: when the gradient of a parameter is complete,"
        " keep this rank's part, set .grad to None, and free the parameter.",
    ),
    "end": ("after finish", 2, 3, "Free in finish what is still whole."),
}


def bytes_complaint(found: Case, ranks: int, rank: int) -> Complaint | None:
    for moment, (words, shares, layers, cure) in MOMENTS.items():
        have, most = found["bytes"][moment], shares * found["S"] / ranks + layers * found["L"]
        if have > most + SLACK * ranks:
            mb, parts, verb = memory.megabytes, "its part of the parameters", "is"
            if shares > 1:
                parts, verb = f"{parts} and of the gradients", "are"
            return (
                f"The values are right, but with {ranks} ranks rank {rank} holds {mb(have)}"
                f" {words}: {parts} {verb} {mb(shares * found['S'] / ranks)}, one layer is"
                f" {mb(found['L'])}, the whole model {mb(found['S'])}."
            ), cure
    return None


def judge_sharded(task: str, answer: Any) -> Verdict:
    proof = (
        "The parameters are those of one process with all the data, layers are whole only while"
        " they are used, and in bfloat16 the parts stay float32."
    )
    made = worlds(answer, sharded_role, ready_made.AVERAGING, secrets.randbelow(10**6))
    return judged(task, made, sharded_complaint, proof, fails=("storage", AWAY))


TASKS = (
    ExerciseTask(
        "reduce_scatter",
        "my_reduce_scatter",
        SCATTER_HINTS,
        judge_scatter,
        ready_made.AVERAGING,
        section="11_where_the_memory_goes#Divide it: ZeRO",
    ),
    ExerciseTask(
        "sharded_optimizer",
        "ShardedOptimizer",
        OPTIMIZER_HINTS,
        judge_optimizer,
        ready_made.SHARDED_OPTIMIZER | ready_made.AVERAGING,
        points=20,
        section="11_where_the_memory_goes#Divide it: ZeRO",
    ),
    ExerciseTask(
        "fully_sharded",
        "FullySharded",
        SHARDED_HINTS,
        judge_sharded,
        ready_made.AVERAGING,
        points=30,
        section="11_where_the_memory_goes#Divide it: ZeRO",
    ),
)
