"""The judge of top-k with error feedback that a learner writes: on vectors, and in a training of
real processes.
"""

from __future__ import annotations

import math
import secrets
from functools import partial
from typing import Any

import numpy as np

from course_lib.course.answers import ExerciseTask, Verdict
from course_lib.course.handed_in import Answer, bounded
from course_lib.text import kind_of

from .calls import asked
from .processes import carry_out, ended

Complaint = tuple[str, str]
close = partial(np.allclose, atol=1e-5)  # float32
COMPRESS_HINTS = (
    "What is still to be sent is the gradient and all that was not sent before. Choose from that.",
    (
        "whole = gradient + residual; k = max(1, int(share * len(whole))). whole.abs().topk(k)"
        ".indices are the places of the largest."
    ),
    "sent = torch.zeros_like(whole); sent[places] = whole[places]; return sent, whole - sent",
)


KEPT = "What is kept and what is sent together must be the gradient and the old residual."
Case = tuple[list[float], list[float], float]


def judge_compress(task: str, answer: Answer) -> Verdict:
    """On vectors, then in a training of real processes."""
    drawn = np.random.default_rng(secrets.randbits(64))
    cases: list[Case] = [([4.0, -9.0, 1.0, 2.0, 0.5], [0.0, 0.0, 5.0, -9.0, 0.0], 0.45)]
    for size, k in ((40, 4), (25, 1), (60, 20), (30, 0)):
        both = [drawn.normal(size=size).round(4).tolist() for _ in range(2)]
        cases.append((both[0], both[1], (k + 0.8) / size))
    vectors = asked(answer, compressed, cases)
    for (gradient, residual, share), given in zip(cases, vectors, strict=True):
        if wrong := uncompressed(np.array(gradient), np.array(residual), share, given):
            text = f"{len(gradient)} numbers, share {share:.3g}"
            if len(gradient) < 9:
                text += f", gradient {gradient}, residual {residual}"
            return Verdict(task, "not yet", f"{text}: {wrong[0]}", wrong[1])
    shown, losses = None, dict[str, float]()
    worlds = [{"workers": 3}]
    for done in ended(carry_out(answer, compress_role, secrets.randbelow(10**6), worlds=worlds)):
        shown, losses = done.run.trace, done.values[0]
        if not losses["yours"] < 2 * losses["ours"] + 0.01 * losses["without"]:
            text = f"Trained by 3 processes, the loss ends at {losses['yours']:.3g}; that of the"
            text += f" same rule in the check at {losses['ours']:.3g}."
            cure = "Does the function keep something from an earlier call? It may not."
            return Verdict(task, "not yet", text, cure, shown)
    text = (
        f"Right on {len(cases)} vectors: the k largest of gradient and residual are sent, and"
        f" nothing is lost. In a training of 3 processes the loss fell from {losses['first']:.3g}"
        f" to {losses['yours']:.3g}; without error feedback it stays at {losses['without']:.3g}."
    )
    return Verdict(task, "passed", text, shown=shown)


def compressed(learners: Any, cases: list[Case]) -> list[Any]:
    """Where the learner's code runs: what it returns for each case, and what it has changed."""
    import torch

    returned = list[Any]()
    for gradient, residual, share in cases:
        g, r = torch.tensor(gradient), torch.tensor(residual)
        given, came = learners(g, r, share), {"gradient": gradient, "residual": residual}
        if not isinstance(given, tuple | list) or len(given) != 2:
            returned.append(kind_of(given))
        elif not all(isinstance(t, torch.Tensor) and t.shape == g.shape for t in given):
            shapes = [list(getattr(t, "shape", ())) for t in given]
            returned.append(f"tensors of shapes {' and '.join(map(str, shapes))}")
        else:
            pairs = zip((g, r), came.items(), strict=True)
            changed = [name for now, (name, old) in pairs if not now.equal(torch.tensor(old))]
            returned.append([given[0].tolist(), given[1].tolist(), changed])
    return returned


def uncompressed(
    gradient: np.ndarray, residual: np.ndarray, share: float, given: Any
) -> Complaint | None:
    """What is wrong with what was sent and what was kept."""
    if isinstance(given, str):
        cure = f"Return two vectors of {len(gradient)} numbers: what is sent, with zeros elsewhere,"
        return f"it returns {given}.", f"{cure} and the new residual."
    sent, kept, changed = np.array(given[0]), np.array(given[1]), given[2]
    whole, k = gradient + residual, max(1, int(share * len(gradient)))
    if wrong := _sent(sent, kept, gradient, residual, k):
        return wrong
    if not close(sent + kept, whole):
        i = int(np.argmax(np.abs(sent + kept - whole)))
        text = f"number {i}: gradient and residual make {whole[i]:.4g}; sent are {sent[i]:.4g} and"
        return f"{text} kept {kept[i]:.4g}.", _lost(sent, kept, gradient, whole)
    if changed:
        text = f"the {changed[0]} that came in has been changed."
        return text, "`+=` and `sent = gradient` write into the caller's tensor: make a new one."
    return None


def _sent(
    sent: np.ndarray, kept: np.ndarray, gradient: np.ndarray, residual: np.ndarray, k: int
) -> Complaint | None:
    whole = gradient + residual
    by = {what: set(np.argsort(each)[-k:]) for what, each in (
        ("right", np.abs(whole)), ("gradient", np.abs(gradient)), ("residual", np.abs(residual)),
        ("signed", whole), ("small", -np.abs(whole)))}  # fmt: skip
    places = set(np.flatnonzero(sent))
    text = f"{len(places)} numbers are sent, at {sorted(map(int, places))[:8]}."
    if places == by["right"]:
        where = sorted(places)
        if close(sent[where], whole[where]):
            return None
        text = f"number {where[0]} is sent as {sent[where[0]]:.4g}; it is {whole[where[0]]:.4g}."
        if close(sent[where], gradient[where]):
            return text, "The residual is not in what is sent: send numbers of gradient + residual."
        if close(sent[where], np.abs(whole[where])):
            return text, "Its sign is lost: abs() is for choosing only."
        return text, "Send the numbers of gradient + residual as they are."
    if len(places) == len(whole) - k and set(np.flatnonzero(kept)) == by["right"]:
        return text, "What is sent and what is kept are swapped: return sent, residual."
    if len(places) != k:
        cures = {
            0: "Nothing is sent. At least one number is: k = max(1, int(share * len(gradient))).",
            len(whole): "Everything is sent: k = max(1, int(share * len(gradient))) numbers are.",
        }
        cure = f"{k} should be: share * len(gradient), rounded down, but at least 1."
        return text, cures.get(len(places), cure)
    text += f" The largest of gradient + residual are at {sorted(map(int, by['right']))[:8]}."
    if places == by["gradient"]:
        return text, (
            "They are the largest of the gradient alone. What waits in the residual never gets its"
            " turn so: choose from gradient + residual."
        )
    others = {
        "residual": "They are the largest of the residual alone: choose from gradient + residual.",
        "signed": "Large negative numbers count, too: choose by magnitude, abs().",
        "small": "They are the smallest. Send the largest.",
    }
    names = (cure for what, cure in others.items() if places == by[what])
    return text, next(names, "Send the k numbers of gradient + residual with the largest abs().")


def _lost(sent: np.ndarray, kept: np.ndarray, gradient: np.ndarray, whole: np.ndarray) -> str:
    for words, wrong in (
        ("Nothing is kept: small numbers are lost, in every step. That is top-k without error"
         " feedback.", 0 * whole),
        ("What was sent is kept, too, so it is sent again.", whole),
        ("The old residual is forgotten: keep gradient + residual - sent.", gradient - sent),
        ("What is kept lacks the old residual where nothing was sent.",
         np.where(sent == 0, gradient, 0)),
        ("What is sent is kept, and the rest is lost: the other way round.", sent),
        ("What is kept has the wrong sign: it is gradient + residual - sent.", sent - whole),
    ):  # fmt: skip
        if close(kept, wrong):
            return words
    return KEPT


def compress_role(task: Any, learners: Any, seed: int) -> dict[str, float]:
    """Three trainings of 40 numbers: with the answer, with our own rule, and without feedback. Each
    worker pulls eight of the numbers its own way, so that their gradients stay the largest though
    their mean is zero.
    """
    import torch
    import torch.distributed as dist

    def ours(gradient: Any, residual: Any, share: float) -> Any:
        whole = gradient + residual
        sent = torch.zeros_like(whole)
        places = whole.abs().topk(max(1, int(share * len(whole)))).indices
        sent[places] = whole[places]
        return sent, whole - sent

    def without(gradient: Any, residual: Any, share: float) -> Any:
        return ours(gradient, 0 * residual, share)

    dist.init_process_group("gloo")
    torch.manual_seed(seed)
    goal = 1 + torch.rand(40)  # of all together
    pull = torch.zeros_like(goal)
    turn = math.cos(2 * math.pi * (task.index + 0.1) / task.spec.workers)  # the sum of all is 0
    pull[torch.randperm(40)[:8]] = 20 * turn
    losses = {"first": float(goal.square().mean())}
    with bounded(20.0):
        for name, compress in (("yours", learners), ("ours", ours), ("without", without)):
            values, residual = torch.zeros_like(goal), torch.zeros_like(goal)
            for step in range(200):
                with task.phase("compute", step):
                    gradient = values - goal - pull
                    sent, residual = compress(gradient, residual, 0.2)
                with task.phase("reduce", step):
                    total = sent.clone()
                    dist.all_reduce(total)
                values = values - 0.05 * total / task.spec.workers
            losses[name] = float((values - goal).square().mean())
    return losses


COMPRESS = ExerciseTask(
    "compress", "compress", COMPRESS_HINTS, judge_compress, section="10_in_between#The thin line"
)
