"""The checks of exercise 12: orders of work in a pipeline, carried out slot by slot, linear layers
that are cut over ranks, and the softmax of ring attention, block by block.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from course_lib.course.answers import ExerciseTask, Unusable, Verdict
from course_lib.course.handed_in import Answer
from course_lib.text import kind_of

from . import layers
from .calls import NOTHING, asked

Complaint = tuple[str, str]
Order = list[list[tuple[str, int]]]  # for each stage its passes: ("F", microbatch), ("B", 3), ...

# --- gpipe and one_f_one_b ---

GPIPE_HINTS = (
    (
        "GPipe has two halves: all microbatches go forward, then all go backward. What does one"
        " stage do, from the first pass to the last? Is that different on another stage?"
    ),
    (
        "Each stage does F0, F1, ... and then B0, B1, ...; the waiting comes by itself, since a"
        " stage can only begin a pass when its input is there."
    ),
    (
        'one = [("F", i) for i in range(microbatches)] + [("B", i) for i in range(microbatches)];'
        " return [one for _ in range(stages)]"
    ),
)
ONE_HINTS = (
    (
        "A stage begins with some forward passes, then it alternates: one forward, one backward."
        " The last stage can go backward after its first F. How many F does the one before it need"
        " first, so that it has no pause?"
    ),
    (
        "Stage s of p begins with min(p - s - 1, m) forward passes. Then, as long as there are"
        " microbatches: one F, one B. At the end the remaining B."
    ),
    (
        'ahead = min(p - s - 1, m); order = [("F", i) for i in range(ahead)]; for i in range(m -'
        ' ahead): order += [("F", ahead + i), ("B", i)]; and at the end ("B", i) for the others.'
    ),
)


def sizes() -> list[tuple[int, int]]:
    """Stages and microbatches: first a case that tells mistakes apart."""
    drawn = 3 + secrets.randbelow(3), 6 + secrets.randbelow(6)
    return [(3, 5), (2, 2), (1, 3), (3, 1), (4, 8), (4, 2), drawn]


def judge_order(alternates: bool, task: str, answer: Answer) -> Verdict:
    for p, m in sizes():
        given = read(asked(answer, listed, p, m))
        if wrong := order_complaint(given, p, m, alternates):
            case = f"{p} stages, {m} microbatches: {wrong[0]}"
            return Verdict(task, "not yet", case, wrong[1])
    kept = ", and no stage keeps more microbatches than it must" if alternates else ""
    text = f"Carried out slot by slot: no stage waits longer than (p-1)/(m+p-1) of the time{kept}."
    return Verdict(task, "passed", text)


def listed(learners: Any, p: int, m: int) -> Order | str | None:
    """Where the learner's code runs: what it returns, as lists; a word for what is no order."""
    given = learners(p, m)
    if given is None:
        return None
    try:
        return [[(str(kind), int(number)) for kind, number in stage] for stage in given]
    except (TypeError, ValueError):
        return "other"


def read(order: Any) -> Order:
    if order is None:
        raise Unusable(NOTHING)
    if order == "other" or any(kind not in ("F", "B") for stage in order for kind, _ in stage):
        raise Unusable(
            'Return a list with a list for each stage, of pairs such as ("F", 0) and ("B", 0).'
        )
    return [[(kind, number) for kind, number in stage] for stage in order]


def order_complaint(order: Order, p: int, m: int, alternates: bool) -> Complaint | None:
    if len(order) != p:
        return f"there are {len(order)} lists.", "Return one list for each stage."
    for s, stage in enumerate(order):
        if wrong := passes_complaint(s, stage, m):
            return wrong
    slots, stuck = carried_out(order)
    if stuck:
        return stuck, (
            "Nobody can go on. F needs the F of the stage before it, B the B of the stage behind"
            " it: all stages must take microbatches in the same order."
        )
    if wrong := kept_complaint(order, m) if alternates else first_complaint(order):
        return wrong
    least = 2 * (m + p - 1)
    if slots > least:
        return f"it takes {slots} slots; {least} are enough.", slow_mistake(
            slots == 2 * p * m, alternates
        )
    return None


def passes_complaint(s: int, stage: Sequence[tuple[str, int]], m: int) -> Complaint | None:
    """What is wrong with the passes of a stage, whatever the others do."""
    where = f"stage {s}"
    for kind, word in (("F", "forward"), ("B", "backward")):
        numbers = [number for each, number in stage if each == kind]
        if stray := [number for number in numbers if not 0 <= number < m]:
            return f"{where} has {kind}{stray[0]}.", f"Microbatches are 0 to {m - 1}."
        if twice := [number for number in numbers if numbers.count(number) > 1]:
            return f"{where} has {kind}{twice[0]} more than once.", "Each pass is made once."
        if missing := [number for number in range(m) if number not in numbers]:
            return f"{where} has no {kind}{missing[0]}.", (
                f"Every microbatch goes {word} through every stage. Does the order end too soon?"
            )
    for number in range(m):
        if stage.index(("B", number)) < stage.index(("F", number)):
            return f"{where} has B{number} before F{number}.", (
                "A backward pass needs the activations of its forward pass."
            )
    return None


def carried_out(order: Order) -> tuple[int, str]:
    """The slots that an order takes if every pass takes one, and, if it never ends, where it
    stands.
    """
    p, done, at, slot = len(order), dict[tuple[int, str, int], int](), [0] * len(order), 0
    while any(at[s] < len(order[s]) for s in range(p)):
        begun = []
        for s in range(p):
            if at[s] < len(order[s]):
                kind, number = order[s][at[s]]
                before = (s - 1, "F", number) if kind == "F" else (s + 1, "B", number)
                if not 0 <= before[0] < p or before in done:
                    begun.append((s, kind, number))
        if not begun:
            waits = [
                f"stage {s} for {order[s][at[s]][0]}{order[s][at[s]][1]}"
                for s in range(p)
                if at[s] < len(order[s])
            ]
            return slot, f"after {slot} slots it stands: {', '.join(waits)}."
        for s, kind, number in begun:
            done[s, kind, number] = slot
            at[s] += 1
        slot += 1
    return slot, ""


def first_complaint(order: Order) -> Complaint | None:
    for s, stage in enumerate(order):
        kinds = [kind for kind, _ in stage]
        if kinds != sorted(kinds, reverse=True):
            return f"stage {s} goes backward before all microbatches have gone forward.", (
                "GPipe makes all forward passes first. What you have alternates; that is task 2."
            )
    return None


def kept_complaint(order: Order, m: int) -> Complaint | None:
    """A stage that keeps the activations of more microbatches than 1F1B needs."""
    for s, stage in enumerate(order):
        kept = most = 0
        for kind, _ in stage:
            kept += 1 if kind == "F" else -1
            most = max(most, kept)
        bound = min(len(order) - s, m)
        if most > bound:
            cure = (
                "All go forward first, as in GPipe: that keeps the activations of all of them."
                if most == m > bound + 1
                else "It goes forward too often before its first B. The nearer a stage is to the"
                " end, the sooner it can go backward."
            )
            return f"stage {s} keeps {most} microbatches; {bound} are enough.", cure
    return None


def slow_mistake(alone: bool, alternates: bool) -> str:
    if alone:
        return "Only one stage works at a time: a microbatch goes forward and back alone."
    if not alternates:
        return "Stages take the microbatches in different orders, so some wait for each other."
    return (
        "Some stage waits in the middle of its work: it goes backward too soon, and could have gone"
        " forward with another microbatch meanwhile."
    )


# --- merge: one more block of keys ---

MERGE_HINTS = (
    (
        "What was added so far was scaled by exp(-top), with the old top. With a larger top all of"
        " it must be scaled anew. By which factor?"
    ),
    (
        "above = torch.maximum(top, scores.amax(1, keepdim=True)); the old sums are multiplied by"
        " exp(top - above), the new weights are exp(scores - above). Where above is still -inf,"
        " -inf - -inf is NaN: use 0 in its place there."
    ),
    (
        "safe = above.masked_fill(above == -math.inf, 0.0); old, new = torch.exp(top - safe),"
        " torch.exp(scores - safe); return above, weights * old + new.sum(1, keepdim=True), mixed *"
        " old + new @ values"
    ),
)
BLOCKS = {
    "two blocks": (1.0, (3, 3), False),
    "blocks of 1, 4 and 2 keys": (3.0, (1, 4, 2), False),
    "scores of a thousand": (400.0, (3, 4, 5), False),
    "scores of minus a thousand": (-400.0, (4, 3), False),
    "places that are masked, and a whole block for some queries": (2.0, (2, 3, 4), True),
}


def judge_merge(task: str, answer: Answer) -> Verdict:
    seed = secrets.randbelow(10**6)
    for name, case in BLOCKS.items():
        found = asked(answer, merged, seed, *case)
        if wrong := merge_complaint(found, name):
            return Verdict(task, "not yet", *wrong)
    return Verdict(task, "passed", "The same as the softmax over all keys, whatever the blocks.")


def blocks_of(seed: int, scale: float, cuts: Sequence[int], masked: bool) -> tuple[Any, Any]:
    """Scores (5 queries, keys) and values (keys, 3)."""
    rng = np.random.default_rng(seed)
    rise = 2 * np.arange(sum(cuts)) * np.array([[1], [-1], [1], [-1], [1]])  # or fall
    scores = rng.normal(size=(5, sum(cuts))) + rise
    scores = scores * abs(scale) - (1000 if scale < 0 else 0)
    if masked:
        scores[:2, : cuts[0]] = -np.inf  # these queries see nothing of the first block
        scores[2, -cuts[-1] :] = -np.inf
        scores[3, 1::2] = -np.inf
    return scores, rng.normal(size=(sum(cuts), 3))


def merged(
    learners: Any, seed: int, scale: float, cuts: Sequence[int], masked: bool
) -> dict[str, Any]:
    """Where the learner's code runs: add block after block, and see what has become of it."""
    import torch

    scores, values = (torch.tensor(each) for each in blocks_of(seed, scale, cuts, masked))
    state = [torch.full((5, 1), -torch.inf).double(), torch.zeros(5, 1).double()]
    state.append(torch.zeros(5, 3).double())
    tops, parts, changed, at = [], [], False, 0
    for cut in cuts:
        given = *state, scores[:, at : at + cut], values[at : at + cut]
        copies = [each.clone() for each in given]
        after = learners(*given)
        changed |= any(not torch.equal(*pair) for pair in zip(given, copies, strict=True))
        if not isinstance(after, tuple | list) or len(after) != 3:
            return {"returned": kind_of(after)}
        state, at = list(after), at + cut
        parts.append(state[2])
        tops.append(bool(torch.equal(state[0], scores[:, :at].amax(1, keepdim=True))))
    softmax = torch.softmax(scores, 1) @ values
    split = [
        torch.nan_to_num(torch.softmax(s, 1)) @ v
        for s, v in zip(scores.split(cuts, 1), values.split(cuts), strict=True)
    ]
    last = torch.softmax(scores[:, -cuts[-1] :], 1) @ values[-cuts[-1] :]
    have = state[2] / state[1]
    near = {
        "right": softmax,
        "mean": sum(split) / len(split),
        "sum": sum(split),
        "last": last,
    }
    shape = tuple(state[2].shape)
    same = {
        name: shape == (5, 3) and bool(torch.allclose(have, want, rtol=1e-6, atol=1e-9))
        for name, want in near.items()
    }
    same["divided"] = bool(torch.allclose(parts[0], split[0]))
    return same | {"finite": bool(torch.isfinite(have).all()), "tops": tops, "changed": changed}


def merge_complaint(found: dict[str, Any], name: str) -> Complaint | None:
    if returned := found.get("returned"):
        return f"It returns {returned}.", "Return three tensors: top, weights and mixed."
    if not found["finite"]:
        text = f"With {name} there are numbers that are infinite or no numbers (NaN)."
        if "masked" in name:
            return text, (
                "Where a query has seen no key yet, top is -inf, and -inf - -inf is NaN. Subtract 0"
                " there: exp(-inf) is 0, as it should be."
            )
        return text, (
            "exp(1000) is infinite, and exp(-1000) is 0. Subtract the largest score so far before"
            " exp."
        )
    if found["changed"]:
        return "It has changed the tensors that came in.", "Return new ones."
    if not found["right"]:
        return f"With {name} it is not the softmax over all keys.", merge_mistake(found)
    if not all(found["tops"]):
        return f"With {name} top is not the largest score so far.", (
            "The next block is compared with it: return the larger of the old top and this block's."
        )
    return None


def merge_mistake(found: dict[str, Any]) -> str:
    if not all(found["tops"]):
        return (
            "top is not the largest score so far. All blocks are scaled by one and the same top:"
            " the larger of the old one and this block's."
        )
    words = {
        "mean": "It is the mean of the blocks' softmaxes. A block with larger scores weighs more.",
        "sum": "It is the sum of the blocks' softmaxes. Divide once, at the end, by all weights.",
        "last": "Only the last block is in it: add to the weights and to mixed that came in.",
        "divided": "mixed is divided by the weights already: that is done once, after all blocks.",
    }
    scaled = (
        "The top is right. Are weights and mixed of the blocks before scaled by exp(old top - new"
        " top), both of them, before the new ones are added?"
    )
    return next((sentence for kind, sentence in words.items() if found[kind]), scaled)


TASKS = (
    ExerciseTask(
        "gpipe",
        "gpipe",
        GPIPE_HINTS,
        partial(judge_order, False),
        section="12_models_in_pieces#The bubble",
    ),
    ExerciseTask(
        "one_f_one_b",
        "one_f_one_b",
        ONE_HINTS,
        partial(judge_order, True),
        section="12_models_in_pieces#Better orders of work",
    ),
    ExerciseTask(
        name="column",
        answer="ColumnLinear",
        hints=layers.COLUMN_HINTS,
        judge=partial(layers.judge, "column"),
        ready_made=layers.READY_MADE,
        section="12_models_in_pieces#Explain: batch against width",
    ),
    ExerciseTask(
        name="row",
        answer="RowLinear",
        hints=layers.ROW_HINTS,
        judge=partial(layers.judge, "row"),
        ready_made=layers.READY_MADE,
        section="12_models_in_pieces#Explain: batch against width",
    ),
    ExerciseTask(
        "merge", "merge", MERGE_HINTS, judge_merge, section="12_models_in_pieces#In the wild"
    ),
)
