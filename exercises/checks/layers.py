"""The judges of linear layers that are cut over ranks: a column-parallel and a row-parallel one,
beside one whole layer, with the exchanges that they make in each pass.

Cut as in Shoeybi et al., Megatron-LM (2019), section 3.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from functools import partial
from typing import Any, Literal

from course_lib.course.answers import Verdict
from course_lib.text import kind_of

from .processes import World
from .ranks import means
from .ranks.worlds import Complaint, judged, worlds

Kind = Literal["column", "row"]
COLUMN_HINTS = (
    (
        "The output is x @ weight.T + bias, and rank k makes the k-th part of the outputs. Which"
        " rows of weight (outputs, inputs) does it need? And in the backward pass: each rank knows"
        " how x works on its own outputs. What has to be done with these gradients of x?"
    ),
    (
        "self.weight = nn.Parameter(whole.weight.detach().chunk(ranks)[rank].clone()), and the same"
        " for the bias, or None if whole.bias is None. forward: linear(CopyToRanks.apply(x),"
        " self.weight, self.bias). CopyToRanks gives x on as it is, and its backward adds up the"
        " gradients of all ranks."
    ),
    (
        "CopyToRanks: forward returns x.view_as(x); backward: gradient = gradient.clone();"
        " dist.all_reduce(gradient); return gradient."
    ),
)
ROW_HINTS = (
    (
        "Rank k has the k-th part of the inputs. Which columns of weight belong to them? Each rank"
        " then has a part of the sum for every output. When is the bias added, and how often?"
    ),
    (
        "self.weight = nn.Parameter(whole.weight.detach().chunk(ranks, dim=1)[rank].clone()); the"
        " bias whole, or None. forward: y = SumOverRanks.apply(share @ self.weight.T), and then +"
        " self.bias."
    ),
    (
        "SumOverRanks: forward: y = y.clone(); dist.all_reduce(y); return y. backward returns the"
        " gradient as it is: each rank has the gradient of the sum already."
    ),
)
READY_MADE = {
    "torch.distributed.tensor": "PyTorch's own tensor parallelism",
    "course_lib.strategies.torch.tensor_parallel": "the library's own tensor parallelism",
}
NO_WAY = (
    "keep weight and bias as nn.Parameter, detach nothing on the way, and put an exchange into a"
)
NO_WAY += " torch.autograd.Function."
INPUTS, OUTPUTS = 4, 3  # for each rank
ROWS = (5, 2)  # of an input


def role(kind: Kind, task: Any, witness: Any, answer: Any, seed: int) -> list[dict[str, Any]]:
    """With and without a bias: what the layer gave in both passes and after an update, what whole
    layers give there, and the calls that were made.
    """
    import torch
    from torch import nn

    n, k = task.spec.workers, task.index
    cases = []
    for bias in (True, False):
        torch.manual_seed(seed + bias)
        whole = nn.Linear(INPUTS * n, OUTPUTS * n, bias=bias)
        twin = nn.Linear(INPUTS * n, OUTPUTS * n, bias=bias)
        twin.load_state_dict(whole.state_dict())
        layer = answer(twin)
        shapes = [
            [*p.shape] for p in (getattr(layer, "weight", None), whole.weight) if p is not None
        ]
        if shapes[0] != ([OUTPUTS, INPUTS * n] if kind == "column" else [OUTPUTS * n, INPUTS]):
            return [{"shapes": shapes}]
        x = torch.randn(*ROWS, INPUTS * n, requires_grad=True)
        toward = torch.randn(*ROWS, OUTPUTS * n)
        given = x.detach().clone()
        if kind == "row":
            given = given.chunk(n, -1)[k].contiguous()
        given.requires_grad_(True)
        begin = len(witness.calls)
        with task.phase("compute", 2 * bias):
            out = layer(given)
        if not isinstance(out, torch.Tensor):
            raise TypeError(f"forward returns {kind_of(out)}")
        middle = len(witness.calls)
        y = whole(x)
        (y * toward).sum().backward()
        have: dict[str, Any] = {"output": out}
        if out.shape == (y.shape if kind == "row" else y.chunk(n, -1)[k].shape):
            part = toward if kind == "row" else toward.chunk(n, -1)[k]
            with task.phase("compute", 2 * bias + 1):
                (out * part).sum().backward()
            have |= {"input": given.grad, "weight": layer.weight.grad}
            have |= {"bias": layer.bias.grad} if bias and layer.bias is not None else {}
        cases.append(
            {
                "have": {name: numbers(each) for name, each in have.items()},
                "whole": {
                    "x": numbers(x),
                    "toward": numbers(toward),
                    "weight": numbers(whole.weight),
                    "bias": numbers(whole.bias) if bias else None,
                    "input": numbers(x.grad),
                },
                "forward": [list(call) for call in witness.calls[begin:middle]],
                "backward": [list(call) for call in witness.calls[middle:]],
                "kept": sum(p.numel() for p in layer.parameters()),
                "names": sorted(name for name, _ in layer.named_parameters()),
            }
        )
    return cases


def numbers(tensor: Any) -> Any:
    return None if tensor is None else tensor.detach().double().numpy()


def complaint(kind: Kind, world: World) -> Complaint | None:
    n = world.workers
    if shapes := world.values[0][0].get("shapes"):
        return shape_complaint(kind, shapes, n)
    for case in range(2):
        ranks = [values[case] for values in world.values]
        where = f"{n} ranks, a layer {'without' if case else 'with'} a bias: "
        for rank in reversed(range(n)):
            wrong = (
                output_complaint(kind, ranks, rank)
                or kept_complaint(ranks[rank], n, kind == "row")
                or gradient_complaint(kind, ranks, rank)
            )
            if wrong:
                return where + wrong[0], wrong[1]
        if wrong := calls_complaint(kind, ranks):
            return where + wrong[0], wrong[1]
    return None


def shape_complaint(kind: Kind, shapes: Any, n: int) -> Complaint:
    weight, whole = (tuple(shape) for shape in (shapes[0], shapes[-1]))
    if len(shapes) == 1:
        return "The layer has no weight.", "Keep this rank's part of it: self.weight = ..."
    text = f"{n} ranks: of a weight of the shape {whole} a rank keeps {weight}."
    if weight == whole:
        return text, "That is all of it, so nothing is saved: keep this rank's part."
    parts = (
        "outputs: rows of weight, chunk(ranks)"
        if kind == "column"
        else ("inputs: columns of weight, chunk(ranks, dim=1)")
    )
    return text, f"A {kind}-parallel layer is cut by its {parts}."


def pieces(kind: Kind, whole: dict[str, Any], n: int) -> list[Any]:
    """The weight that each rank should have."""
    size = OUTPUTS if kind == "column" else INPUTS
    cut = [slice(k * size, (k + 1) * size) for k in range(n)]
    return [whole["weight"][c] if kind == "column" else whole["weight"][:, c] for c in cut]


def output_complaint(kind: Kind, ranks: Sequence[Any], rank: int) -> Complaint | None:
    n, whole = len(ranks), ranks[rank]["whole"]
    x, weight, have = whole["x"], whole["weight"], ranks[rank]["have"]["output"]
    bias = 0.0 if whole["bias"] is None else whole["bias"]
    y = x @ weight.T + bias
    shares = [slice(k * OUTPUTS, (k + 1) * OUTPUTS) for k in range(n)]
    parts = [
        x[..., k * INPUTS : (k + 1) * INPUTS] @ w.T for k, w in enumerate(pieces("row", whole, n))
    ]
    want = y if kind == "row" else y[..., shares[rank]]
    if means.near(have, want):
        return None
    text = f"the output of rank {rank} is not that of the whole layer."
    known: dict[str, Any]
    if kind == "column":
        text = f"rank {rank} does not return its outputs."
        known = {
            f"It has those of rank {k}: rank k makes the k-th part.": y[..., shares[k]]
            for k in range(n)
        }
        known |= {
            "It returns all outputs. The next layer needs this rank's part only, and gathering all"
            " of them costs an exchange.": y,
            "It takes every n-th output. The parts are pieces, one after the other: chunk, and not"
            " [rank::n].": y[..., rank::n],
            "The bias is missing.": (y - bias)[..., shares[rank]],
            "x was added up over ranks in the forward pass. It is the same on all ranks already:"
            " send nothing forward, and add up its gradient in backward.": (n * (y - bias) + bias)[
                ..., shares[rank]
            ],
            "These are the outputs added up over ranks. They belong to different outputs: nothing"
            " is added in the forward pass.": sum(y[..., each] for each in shares),
        }
    else:
        alone = "It is this rank's part of the sum, without the bias: add up those of all ranks."
        known = {
            alone: parts[rank],
            "It is this rank's part of the sum: add up those of all ranks.": parts[rank] + bias,
            "The bias is added on every rank before the sum, so it counts as often as there are"
            " ranks. Add it once, after the sum.": y + (n - 1) * bias,
            "The bias is missing: add it after the sum.": y - bias,
            "It is the mean over ranks. A row-parallel layer needs the sum.": (y - bias) / n + bias,
            "It is the mean over ranks. A row-parallel layer needs the sum, and then the bias.": y
            / n,
        }
    if have.shape != want.shape and not means.named(have, known):
        return text, f"It returns the shape {have.shape}; {want.shape} is right."
    return text, means.named(have, known) or (
        "Rank k has the rows of weight that make its outputs: chunk(ranks)[rank]."
        if kind == "column"
        else "Rank k has the columns of weight that belong to its inputs: chunk(ranks, 1)[rank]."
    )


def gradient_complaint(kind: Kind, ranks: Sequence[Any], rank: int) -> Complaint | None:
    n, whole, have = len(ranks), ranks[rank]["whole"], ranks[rank]["have"]
    x, toward = whole["x"], whole["toward"]
    flat_x, flat_to = x.reshape(-1, x.shape[-1]), toward.reshape(-1, toward.shape[-1])
    mine, put = (
        slice(rank * OUTPUTS, (rank + 1) * OUTPUTS),
        slice(rank * INPUTS, (rank + 1) * INPUTS),
    )
    if kind == "column":
        dx, dw, db = whole["input"], flat_to[:, mine].T @ flat_x, flat_to[:, mine].sum(0)
        alone = toward[..., mine] @ pieces(kind, whole, n)[rank]
    else:
        dx, dw, db = whole["input"][..., put], flat_to.T @ flat_x[:, put], flat_to.sum(0)
        alone = dx
    text = f"in the backward pass rank {rank} gets a wrong gradient of "
    for name, want in (("input", dx), ("weight", dw), ("bias", db)):
        if name == "bias" and whole["bias"] is None:
            continue
        if have.get(name) is None:
            return f"in the backward pass rank {rank} gets no gradient of {name}.", (
                "autograd does not find the way back: " + NO_WAY
            )
        if means.near(have[name], want):
            continue
        known = {
            "It is multiplied by the number of ranks: it is added up once too often. Every rank"
            " has this gradient already.": want * n,
            "It is divided by the number of ranks. These are parts of one sum, not of a mean.": want
            / n,
        }
        if name == "input":
            known = {
                "It is this rank's part only. Every rank's outputs depend on x, so the gradients"
                " of all ranks are added up: one all-reduce in the backward pass.": alone,
                "It is the mean over ranks: x works on all outputs, so it is the sum.": want / n,
                **known,
            }
        return f"{text}{name}.", means.named(have[name], known) or (
            "Each rank's weight and bias have gradients of their own: nothing of them is exchanged."
            if name != "input"
            else "Compare it with that of one whole layer."
        )
    return None


def kept_complaint(seen: dict[str, Any], n: int, whole_bias: bool) -> Complaint | None:
    share = OUTPUTS * INPUTS * n
    if seen["whole"]["bias"] is not None:
        share += OUTPUTS * (n if whole_bias else 1)
    if seen["kept"] > share:
        return f"a rank has {seen['kept']} numbers in its parameters; its part has {share}.", (
            "It keeps the whole layer, so nothing is saved. Keep a copy of the piece, and not the"
            " layer that came in."
        )
    if seen["kept"] < share:
        return (
            f"its parameters are {', '.join(seen['names']) or 'none'}: {share} numbers are right.",
            (
                "An optimizer sees what is an nn.Parameter of the module: self.weight ="
                " nn.Parameter(...)."
            ),
        )
    return None


def calls_complaint(kind: Kind, ranks: Sequence[Any]) -> Complaint | None:
    """Words for right numbers by more exchanges than one all-reduce, in the pass that needs it."""
    n = len(ranks)
    size = 4 * ROWS[0] * ROWS[1] * n * (INPUTS if kind == "column" else OUTPUTS)
    busy, idle = ("backward", "forward") if kind == "column" else ("forward", "backward")
    if made := ranks[0][idle]:
        return f"in the {idle} pass it calls {made[0][0]}.", (
            "That pass needs no exchange: "
            + (
                "every rank has the whole x."
                if kind == "column"
                else "every rank has the gradient of the whole output."
            )
        )
    made = ranks[0][busy]
    if len(made) > 1 or (made and made[0][1] > size):
        names = ", ".join(f"{name} of {count:,} bytes" for name, count in made)
        return f"in the {busy} pass rank 0 makes these exchanges: {names}.", (
            f"One all-reduce of {size:,} bytes is enough."
        )
    if not made:
        return f"the numbers are right, and nothing was sent in the {busy} pass.", (
            "So they came by another way than torch.distributed. Exchange them by dist.all_reduce."
        )
    return None


def judge(kind: Kind, task: str, answer: Any) -> Verdict:
    proof = "Equal to one whole layer in both passes, with one all-reduce in one of them."
    made = worlds(answer, partial(role, kind), READY_MADE, secrets.randbelow(10**6))
    cut_off = "does not require grad", "autograd does not see how the output came about: " + NO_WAY
    return judged(task, made, partial(complaint, kind), proof, fails=cut_off)
