"""The judge of local SGD that a learner writes: a training that is noted step by step, and what
`check_strategy` says of it.
"""

from __future__ import annotations

import secrets
from functools import partial
from typing import Any

import numpy as np

from course_lib import check_strategy, strategy
from course_lib.course.answers import ENDLESS, ExerciseTask, Unusable, Verdict
from course_lib.course.handed_in import Answer, bounded

from . import ready_made
from .processes import World, carry_out, ended
from .ranks import means
from .ranks.witness import Witness
from .ranks.worlds import listed

Complaint = tuple[str, str]
LOCAL_HINTS = (
    "Begin with the loop of lesson 10's page. Where does the exchange stand, and how often is it?",
    (
        "Step(task, apart=True). After the update: if (step.number + 1) % every == 0, within"
        " step.reducing(), dist.all_reduce each parameter's .data and divide it by the workers."
    ),
    (
        "for parameter in step.parameters: dist.all_reduce(parameter.data); parameter.data /="
        " task.spec.workers. Then step.done(loss); after the loop return step.result()."
    ),
)
TRAINING = {"workload": "digits", "global_batch": 48, "learning_rate": 0.1, "optimizer": "sgd"}
PLACES = 12  # numbers of each parameter that are noted
SMALL = 500  # bytes of what is no parameter, such as a loss


def local_role(task: Any, learners: Any, every: int, seed: int) -> dict[str, Any]:
    """Train by the answer, and note in each step some numbers of each parameter: before and after
    the optimizer's step, and at the end; the share that was read; and the bytes handed over.
    """
    import torch
    from torch.optim import optimizer

    from course_lib.torch import Step

    witness, steps, made = Witness(), list[dict[str, Any]](), list[Any]()
    begin, read, drawn = Step.begin, Step.read, torch.Generator().manual_seed(seed)
    places = dict[int, Any]()

    def numbers() -> list[float]:
        found = []
        for i, p in enumerate(made[0].parameters):
            if i not in places:
                places[i] = torch.randint(p.numel(), (PLACES,), generator=drawn)
            found.append(p.detach().flatten()[places[i]])
        return [float(n) for n in torch.cat(found)]

    def begun(step: Any, *given: Any) -> bool:
        made[:] = [step]
        if steps:
            steps[-1]["after"] = numbers()
            steps[-1]["bytes"] = witness.handed(steps[-1]["calls"])
        if more := begin(step, *given):
            steps.append({"calls": len(witness.calls), "share": None})
        return more

    def shared(step: Any, share: int = 0, of: int = 1, *given: Any) -> Any:
        steps[-1]["share"] = [share, of]
        return read(step, share, of, *given)

    def note(moment: str) -> Any:
        def hook(*_: Any) -> None:
            if steps and "after" not in steps[-1]:
                steps[-1][moment] = numbers()

        return hook

    kind: Any = Step
    kind.begin, kind.read = begun, shared
    optimizer.register_optimizer_step_pre_hook(note("before"))
    optimizer.register_optimizer_step_post_hook(note("updated"))
    with bounded(8.0):
        result = learners(task, every=every)
    apart = bool(made and getattr(made[0], "apart", False))
    size = 4 * sum(p.numel() for p in made[0].parameters) if made else 0
    return {"steps": steps, "apart": apart, "size": size, "result": result is not None}


def local_complaint(world: World, every: int) -> Complaint | None:
    """What is wrong with a training that was noted."""
    values, workers, due = world.values, world.workers, world.run.spec.steps
    for v in values:
        if len(v["steps"]) != due or not all("after" in step for step in v["steps"]):
            text = f"It makes {len(v['steps'])} steps of {due}."
            return text, "Let `while step.begin():` go on until it is False."
    for s in range(due):
        of_step = [v["steps"][s] for v in values]
        shares = sorted(tuple(each["share"] or ()) for each in of_step)
        if shares != [(k, workers) for k in range(workers)]:
            read = ", ".join(f"{share[0]} of {share[1]}" for share in shares if share) or "none"
            text = f"In step {s}, {workers} workers read these shares of the batch: {read}."
            return text, "Each reads its own: step.read(task.index, task.spec.workers)."
        if not all("updated" in each for each in of_step):
            return f"In step {s} there is no update.", "Call step.optimizer.step() in every step."
    wrong = _when(values, every) or next(
        filter(None, (_mean(values, s) for s in range(every - 1, due, every))), None
    )
    if wrong:
        return f"every = {every}, {workers} workers. {wrong[0]}", wrong[1]
    if not all(v["result"] for v in values):
        return "It returns nothing.", "End with `return step.result()`."
    sent, size = sum(step["bytes"] for v in values for step in v["steps"]), values[0]["size"]
    if sent > 1.5 * workers * size * (due // every):
        text = f"The means are right, but {workers} workers handed over {sent:,} bytes, for"
        text += f" {size:,} bytes of parameters and {due // every} exchanges."
        return (
            text,
            "One all-reduce of the parameters is enough. To gather them, or to reduce and"
            " broadcast, is more.",
        )
    if not all(v["apart"] for v in values):
        text = "The replicas go their own ways, and the step does not know of it."
        return text, "Step(task, apart=True): else a checkpoint holds the replica of worker 0 only."
    return None


def _when(values: list[Any], every: int) -> Complaint | None:
    """What is wrong with the steps in which something was exchanged."""
    steps = [v["steps"] for v in values]
    updated = np.array([of[0]["updated"] for of in steps])
    if means.near(updated, [updated[0]] * len(updated)):
        text = "In step 0 all replicas take the same step, though they read different examples."
        return text, "Gradients are averaged. Each replica steps with its own."
    count = len(steps[0])
    due = list(range(every - 1, count, every))
    sent = [s for s in range(count) if any(of[s]["bytes"] > SMALL for of in steps)]
    if sent == due:
        return None
    if not sent:
        text = "Nothing is exchanged: no worker handed parameters to torch.distributed."
        return text, f"After every {every} steps all workers average their parameters."
    text = f"Steps with an exchange: {listed(sent)}. There should be one in {listed(due)}."
    if len(sent) == count:
        return text, "It exchanges in every step, so the bytes do not fall: ask for step.number."
    if set(sent) <= set(range(0, count, every)):
        return text, (
            "Steps count from 0, so the first `every` steps end with number every - 1: exchange if"
            " (step.number + 1) % every == 0."
        )
    if sent == due[:1]:
        return text, "There is one exchange only. Use %, so that it comes again and again."
    return text, "How often is for `every` to say: if (step.number + 1) % every == 0."


def _mean(values: list[Any], s: int) -> Complaint | None:
    """What is wrong with the parameters after an exchange in step `s`."""
    before, updated, after = (
        np.array([v["steps"][s][what] for v in values]) for what in ("before", "updated", "after")
    )
    mean, count = updated.mean(0), len(after)
    if means.near(after, [mean] * count):
        return None
    text = f"After step {s} the parameters are not the mean of the replicas'."
    for words, wrong in (
        ("They are the sum: divide by the number of workers.", updated.sum(0)),
        ("They are divided twice: before the sum, and after it.", mean / count),
        ("They are those of worker 0: a broadcast is no mean.", updated[0]),
        ("They are the largest of all workers: all_reduce adds, if no op is given.",
         updated.max(0)),
        ("The sum is divided by 2: divide by task.spec.workers.", updated.sum(0) / 2),
    ):  # fmt: skip
        if means.near(after, [wrong] * count):
            return text, words
    text = f"After step {s} the replicas are not equal."
    if not means.near(before, [v["steps"][s - 1]["after"] for v in values]):
        return text, (
            "The exchange comes before the update, so replicas drift apart at once. First the"
            " optimizer's step, then the mean."
        )
    if means.near(after, updated):
        return text, (
            "Something was sent, and the parameters are still each worker's own. Exchange"
            " parameter.data itself, not a copy and not the gradient."
        )
    if means.near(after[0], mean):
        return text, "Only worker 0 has the mean: dist.reduce gives the sum to one. Use all_reduce."
    if np.isclose(after, mean, atol=1e-6).all(0).any():
        return text, "Some parameters are right and others are not: exchange all of them."
    return text, "The mean of parameters over all workers takes the place of each worker's own."


SMALL = 500  # bytes of what is no parameter, such as a loss


def judge_local(task: str, answer: Answer) -> Verdict:
    """A training that is noted step by step, with 3 and 2 workers; then what a strategy has to keep
    and the bytes that the kernel counts.
    """
    every, seed, shown = (4, 5, 8)[secrets.randbelow(3)], secrets.randbelow(10**6), None
    worlds: list[dict[str, Any]] = [{"workers": n, "steps": 2 * every + 1} for n in (3, 2)]
    noted = [world | TRAINING for world in worlds]
    try:
        for done in ended(
            carry_out(answer, local_role, every, seed, ready_made=READY, worlds=noted)
        ):
            shown = shown or done.run.trace
            if wrong := local_complaint(done, every):
                return Verdict(task, "not yet", *wrong, done.run.trace)
    except Unusable as problem:
        text, cure = str(problem), ""
        if "TookTooLong" in text:
            cure = f"{ENDLESS} `while step.begin():` ends by itself."
        elif "wait" in text or "same calls" in text:
            cure = "All workers must make the same calls: the `if` may ask for step.number only."
        return Verdict(task, "not yet", text, cure)
    rows = answer.within(promises, every)
    if broken := [row for row in rows if row[1] == "broken"]:
        promise, _, why = broken[0]
        return Verdict(task, "not yet", f"check_strategy: {promise}? {why}", "")
    text = (
        f"With every = {every}, 2 and 3 workers: replicas go their own ways, and after every"
        f" {every} steps all have the mean. check_strategy: {rows[-1][0]}, {rows[-1][2]}."
    )
    return Verdict(task, "passed", text, shown=shown)


def promises(learners: Any, every: int) -> list[list[str]]:
    """Where the learner's code runs: what `check_strategy` finds."""
    strategy(wire=f"2(n-1)/n S / {every}", workers=(2, 3))(learners)
    return check_strategy(partial(learners, every=every)).rows()


READY = ready_made.AVERAGING
LOCAL = ExerciseTask(
    "local_sgd", "local_sgd", LOCAL_HINTS, judge_local, READY, section="10_in_between#The thin line"
)
