"""The checks of exercise 06: gradients that leave while the backward pass goes on, one by one and
in buckets.
"""

from __future__ import annotations

import itertools
import secrets
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from course_lib.course.answers import Answer, ExerciseTask, Unusable, Verdict, bounded
from course_lib.record.events import Phase

from . import ready_made
from .processes import carry_out

WORLDS, STEPS, LAYERS, WIDTH = (2, 3, 5), 3, 6, 16
# nothing goes back through the input, so LAYERS - 1 layers note that they are passed
LIMIT = 2.5 * WIDTH * WIDTH * 4 / 2**20  # MiB: two layers fit into a bucket, three do not
CLOSE = 1e-4  # float32, sums in another order
Complaint = tuple[str, str]

LEAVE_HINTS = (
    (
        "register_post_accumulate_grad_hook(function) of a parameter calls the function with the"
        " parameter, as soon as its gradient is complete. What must begin there, and must not be"
        " waited for there?"
    ),
    (
        "In the hook: dist.all_reduce(parameter.grad, async_op=True) returns a handle."
        " Keep it with its parameter. In `finish`: wait for each handle, then divide the gradient"
        " by the number of ranks. Weights that are not trained have no gradient, and need no hook."
    ),
    (
        "pending = []; the hook appends (parameter, handle); finish goes through pending, waits,"
        " divides by dist.get_world_size(), and ends with pending.clear(), for the next step."
    ),
)
BUCKETS_HINTS = (
    (
        "The backward pass goes from the last layer to the first, so gradients become ready in the"
        " reverse order of the parameters. Fill one bucket after the other in that order."
    ),
    (
        "Begin a new bucket when the next gradient does not fit any more. One that is larger than"
        " `most` alone gets a bucket of its own."
    ),
    (
        "for i in reversed(range(len(sizes))): if the last bucket is empty or sum + sizes[i] <="
        " most, append i to it; else append [i] as a new bucket."
    ),
)
BUCKETED_HINTS = (
    (
        "Count, for each bucket, how many of its gradients are still missing. The hook of a"
        " parameter counts down; at 0 the bucket leaves."
    ),
    (
        "A bucket that is complete: flat = torch.cat of its gradients, each as one row"
        " (.flatten()); one dist.all_reduce(flat, async_op=True). In `finish`: wait, divide, copy"
        " the parts of `flat` back into the gradients, and set all counts back."
    ),
    (
        "Back: at = 0; for p in bucket: p.grad.copy_(flat[at : at + p.numel()].view_as(p)); at +="
        " p.numel(). The sizes for `my_buckets` are p.numel() * 4 bytes; one MiB is 2**20 bytes."
    ),
)


# --- buckets: which gradients leave together ---


def judge_buckets(task: str, answer: Answer) -> Verdict:
    drawn = [1 + secrets.randbelow(40) for _ in range(12)]
    cases = [
        ([4, 4, 4], 8),
        ([3], 5),
        ([9, 2, 2], 4),
        ([1, 2, 3, 4, 5], 6),
        (drawn, 50),
        (drawn, 90),
    ]
    for sizes, most in cases:
        with bounded(5.0):
            given = answer(list(sizes), most)
        if found := _buckets_wrong(_read(given), sizes, most):
            text = f"Gradients of {', '.join(map(str, sizes))} bytes, at most {most} in a bucket:"
            return Verdict(task, "not yet", f"{text} {found[0]}", found[1])
    text = "In the order in which they become ready, no bucket too large, and as few as can be."
    return Verdict(task, "passed", text)


def _read(given: Any) -> list[list[int]]:
    if given is None:
        raise Unusable("It returns nothing: is `return` missing?")
    try:
        return [[int(i) for i in bucket] for bucket in given]
    except (TypeError, ValueError):
        raise Unusable("Return a list of buckets, each a list of numbers of gradients.") from None


def _buckets_wrong(buckets: list[list[int]], sizes: Sequence[int], most: int) -> Complaint | None:
    order = [i for bucket in buckets for i in bucket]
    count = len(sizes)
    if not all(buckets):
        return f"{buckets}.", "A bucket is empty: begin one only when something goes into it."
    if sorted(order) != list(range(count)):
        missing = sorted(set(range(count)) - set(order))
        if missing:
            return f"gradient {missing[0]} is in no bucket.", (
                "Is the last bucket, which is not full, left out? It leaves as well."
            )
        if stray := [i for i in order if not 0 <= i < count]:
            return f"there is no gradient {stray[0]}.", "Return numbers of gradients, not sizes."
        return f"{buckets}.", "A gradient is in two buckets."
    full = [b for b in buckets if sum(sizes[i] for i in b) > most and len(b) > 1]
    if full:
        held = sum(sizes[i] for i in full[0])
        return f"bucket {full[0]} holds {held} bytes.", (
            "It is closed one too late: look whether the next one fits before you add it."
        )
    if order == list(range(count)) and count > 1:
        return f"{buckets}.", (
            "This is the order of the forward pass. The gradient of the last layer is ready first."
        )
    if order != list(range(count))[::-1]:
        return f"{buckets}.", (
            "Gradients become ready from last to first. A bucket leaves with its last gradient, so"
            " neighbours in that order belong together."
        )
    for one, two in itertools.pairwise(buckets):
        if sum(sizes[i] for i in one) + sizes[two[0]] <= most:
            return f"{buckets}.", (
                f"Gradient {two[0]} still fits into the bucket before. Fewer buckets are fewer"
                " messages."
            )
    return None


# --- on real processes ---


def judge(task: str, answer: Answer, buckets: bool) -> Verdict:
    seed, shown = secrets.randbelow(10**6), None
    given = (LIMIT,) if buckets else ()
    for workers in WORLDS:
        done = carry_out(
            answer, role, seed, given, ready_made=ready_made.DATA_PARALLEL, workers=workers
        )
        shown = shown or done.run.trace
        found = complaint(done.values, buckets)
        if found:
            return Verdict(
                task, "not yet", f"{workers} ranks: {found[0]}", found[1], done.run.trace
            )
        if not any(phase.what == "reduce" for phase in done.run.trace.all(Phase)):
            raise Unusable("The trace of the run has no exchange in it.")
    how = "bucket by bucket, none too large" if buckets else "one by one"
    text = (
        f"Carried out by 2, 3 and 5 real processes, {STEPS} steps each. All gradients are means;"
        f" they left {how}, while the backward pass went on; tied and frozen weights are right."
    )
    return Verdict(task, "passed", text, shown=shown)


def role(task: Any, learners: Any, seed: int, given: tuple[Any, ...]) -> dict[str, Any]:
    """Steps of a model whose layers note when their backward pass is done, and what was handed to
    the all-reduce by then.
    """
    import time
    from datetime import timedelta

    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo", timeout=timedelta(seconds=8))
    passed, calls = [0], list[tuple[int, int, int, bool]]()

    class Slow(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return x.view_as(x)

        @staticmethod
        def backward(ctx: Any, gradient: Any) -> Any:
            time.sleep(0.004)
            passed[0] += 1
            return gradient

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            layers = [torch.nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(LAYERS)]
            layers[3].weight = layers[1].weight  # tied
            layers[2].weight.requires_grad_(False)  # frozen
            self.layers = torch.nn.ModuleList(layers)

        def forward(self, x: Any) -> Any:
            for layer in self.layers:
                x = torch.tanh(layer(Slow.apply(x)))
            return x

    torch.manual_seed(seed)
    model, plain = Model(), Model()
    plain.load_state_dict(model.state_dict())
    mine, other = ([p for p in each.parameters() if p.requires_grad] for each in (model, plain))
    call = dist.all_reduce

    def noted(tensor: Any, *args: Any, **named: Any) -> Any:
        calls.append((step, passed[0], tensor.nbytes, bool(named.get("async_op"))))
        return call(tensor, *args, **named)

    step, after = 0, []
    torch.distributed.all_reduce = noted
    with bounded(5.0):
        finish = learners(model, *given)
        if not callable(finish):
            return {"trouble": "nothing" if finish is None else type(finish).__name__}
        for step in range(STEPS):
            torch.manual_seed(seed + 1000 * step + task.index)
            x = torch.randn(8, WIDTH)
            plain.zero_grad()
            plain(x).square().sum().backward()
            model.zero_grad()
            passed[0] = 0
            with task.phase("compute", step):
                model(x).square().sum().backward()
            with task.phase("reduce", step):
                finish()
            right = [p.grad.clone() for p in other]
            for gradient in right:
                call(gradient)
            world = dist.get_world_size()
            after.append(
                [
                    None
                    if p.grad is None
                    else float((p.grad * world / g).median())
                    if not torch.allclose(p.grad, g / world, atol=CLOSE)
                    else 1.0
                    for p, g in zip(mine, right, strict=True)
                ]
            )
    return {"after": after, "calls": [list(c) for c in calls], "workers": dist.get_world_size()}


def complaint(values: list[Any], buckets: bool) -> Complaint | None:
    """What is wrong with what the ranks have noted."""
    trouble = next((v["trouble"] for v in values if "trouble" in v), "")
    if trouble:
        what = "nothing" if trouble == "nothing" else f"a {trouble}"
        return f"it returns {what}.", "Return `finish`, the function itself, which ends a step."
    if not any(v["calls"] for v in values):
        return "no gradient was sent: dist.all_reduce is never called.", (
            "Each hook starts dist.all_reduce(gradient, async_op=True)."
        )
    for step in range(STEPS):
        for v in values:
            if found := _step(v, step, buckets):
                return found
    return None


def _step(v: Any, step: int, buckets: bool) -> Complaint | None:
    calls = [(passed, size, alone) for s, passed, size, alone in v["calls"] if s == step]
    world = v["workers"]
    if not calls:
        return f"in step {step} nothing is sent.", (
            "It works in the first step only: set back in `finish` what a step has used up."
        )
    if all(passed >= LAYERS - 1 for passed, _, _ in calls):
        return f"in step {step} the first gradient left when the backward pass was over.", (
            "Nothing overlaps. Start the all-reduce in the hook, not in `finish`."
        )
    if not any(alone for _, _, alone in calls):
        return f"in step {step} each all-reduce was waited for in its hook.", (
            "The backward pass stands still meanwhile, and nothing is hidden. Pass async_op=True,"
            " keep the handle, and wait in `finish`."
        )
    layer, trained = WIDTH * WIDTH * 4, LAYERS - 2  # one is frozen, one is tied to another
    if buckets:
        limit = LIMIT * 2**20
        if max(size for _, size, _ in calls) > limit:
            return f"a message of {max(s for _, s, _ in calls)} bytes left.", (
                f"With bucket_mb = {LIMIT:.4f} a bucket holds {limit:.0f} bytes at most. 1 MiB is"
                " 2**20 bytes, and a float32 has 4."
            )
        if len(calls) == trained:
            return f"{len(calls)} messages left in step {step}, one for each gradient.", (
                "Collect them: a bucket leaves once all of its gradients are ready."
            )
    elif len(calls) != trained:
        return f"{len(calls)} messages left in step {step}, for {trained} gradients.", (
            "Each parameter needs one hook, and once only. A weight that two layers share is one"
            " parameter; its gradient is ready when both have added to it."
            if len(calls) > trained
            else "Each gradient leaves on its own, as soon as it is ready."
        )
    if sum(size for _, size, _ in calls) != trained * layer:
        return f"{sum(s for _, s, _ in calls)} bytes left, of {trained * layer}.", (
            "Each gradient leaves once. Does the last bucket, which is not full, leave as well?"
        )
    off = [x for x in v["after"][step] if x is None or abs(x - 1) > 1e-6]
    if not off:
        return None
    text = f"the gradients are wrong after step {step}."
    ratios = [x for x in v["after"][step] if x is not None]
    if ratios and np.allclose(ratios, world, rtol=1e-3):
        return text, "They are sums over the ranks. Divide by dist.get_world_size()."
    if ratios and np.allclose(ratios, 1 / world, rtol=1e-3):
        return text, "They are divided twice."
    return text, (
        "They are not the means of all ranks. Does `finish` wait for every handle, divide after"
        " that, and put the result into .grad?"
    )


def _task(name: str, answer: str, hints: Any, judged: Any) -> ExerciseTask:
    return ExerciseTask(
        name=name, answer=answer, hints=hints, judge=judged, ready_made=ready_made.DATA_PARALLEL
    )


TASKS = (
    _task("leave_early", "leave_early", LEAVE_HINTS, partial(judge, buckets=False)),
    _task("buckets", "my_buckets", BUCKETS_HINTS, judge_buckets),
    _task("bucketed", "bucketed", BUCKETED_HINTS, partial(judge, buckets=True)),
)
