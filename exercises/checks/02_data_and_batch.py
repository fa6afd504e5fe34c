"""The checks of exercise 02: which examples each worker reads, and what their mean is."""

from __future__ import annotations

import itertools
import secrets
from typing import Any

import numpy as np

from course_lib.course.answers import ExerciseTask, Verdict
from course_lib.errors import line_of
from course_lib.text import a

from . import ready_made
from .processes import World
from .ranks import ids, means
from .ranks.worlds import SLACK, Complaint, judged, unsent, unthrifty, worlds

# --- shard: each id on one rank ---

SHARD_HINTS = (
    (
        "Write down the ids of both ranks for 7 ids and 2 ranks. Deal them out like cards: who gets"
        " id 0, id 1, id 2? Nobody has to know what the others took."
    ),
    (
        "Id i belongs to rank i % workers. Or cut into blocks: each has count // workers ids, and"
        " the first count % workers blocks have one more."
    ),
    "range has a third argument, the distance from one number to the next: range(first, count, …).",
)


def shard_role(task: Any, witness: Any, answer: Any, seed: int) -> list[Any]:
    """Each rank reads its shard; the trace keeps what it read."""
    workers = task.spec.workers
    mine = ids.as_ids(answer(workers * 9 + seed % 5 + 1, task.index, workers))
    with task.phase("read", 0):
        task.examples(0, 0, mine)
    return []


def judge_shard(task: str, answer: Any) -> Verdict:
    seed = secrets.randbelow(10**6)
    try:
        for count, workers in ids.counts(seed):
            calls = [(count, rank, workers) for rank in range(workers)]
            shards = ids.asked(answer, calls)
            if ids.asked(answer, calls) != shards:
                return Verdict(task, "not yet", *AGAIN)
            if wrong := ids.uneven(shards, count):
                return Verdict(task, "not yet", *wrong)
    except NotImplementedError:
        raise
    except Exception as error:
        return _raised(task, error, answer)

    def complaint(world: World) -> Complaint | None:
        return ids.uneven(ids.read_by(world), world.workers * 9 + seed % 5 + 1)

    said = "Each id was read by one of them, and no shard has two ids more than another."
    return judged(task, worlds(answer, shard_role, ready_made.SAMPLER, seed), complaint, said)


AGAIN = (
    "Asked twice for the same, it gives different ids.",
    "Ranks are processes of their own: what is random, or kept from call to call, differs between"
    " them, and after a restart. Let the ids depend on the arguments alone.",
)


def _raised(task: str, error: Exception, answer: Any) -> Verdict:
    text = str(error)
    if text.startswith("It returns"):
        return Verdict(task, "not yet", text)
    argument = isinstance(error, TypeError) and "argument" in text
    hint = "Keep the arguments that the function had." if argument else ""
    words = f"It raises {type(error).__name__}: {text}{line_of(error, answer)}"
    return Verdict(task, "not yet", words, hint)


SHARD = ExerciseTask(
    name="shard",
    answer="my_shard",
    hints=SHARD_HINTS,
    judge=judge_shard,
    ready_made=ready_made.SAMPLER,
    section="02_global_batch#Change: everybody reads the same",
)

# --- reshuffle: another order in each epoch, the same on all ranks ---

RESHUFFLE_HINTS = (
    (
        "Two things at once: all ranks must make the same order, and it must be another one in each"
        " epoch. So what may the order depend on, and what not?"
    ),
    (
        "Make a generator from seed and epoch, np.random.default_rng([seed, epoch]), on every rank"
        " the same. It shuffles all ids; then each rank takes its shard of the shuffled list."
    ),
    (
        "order = np.random.default_rng([seed, epoch]).permutation(count), and then the shard of"
        " this rank: every workers-th id of `order`, from the rank-th on."
    ),
)
EPOCHS = 3


def reshuffle_role(task: Any, witness: Any, answer: Any, seed: int) -> list[Any]:
    workers = task.spec.workers
    for epoch in range(EPOCHS):
        count = workers * 20 + seed % 5 + 1
        mine = ids.as_ids(answer(count, epoch, seed, task.index, workers))
        with task.phase("read", epoch):
            task.examples(epoch, epoch, mine)
    return []


def judge_reshuffle(task: str, answer: Any) -> Verdict:
    seed = 1 + secrets.randbelow(10**6)
    try:
        for workers, count in ((2, 41), (3, 62), (5, 104)):
            epochs = []
            for epoch in range(EPOCHS):
                calls = [(count, epoch, seed, rank, workers) for rank in range(workers)]
                epochs.append(ids.asked(answer, calls))
                if ids.asked(answer, calls) != epochs[-1]:
                    return Verdict(task, "not yet", *AGAIN)
                if wrong := ids.uneven(epochs[-1], count):
                    return Verdict(task, "not yet", *wrong)
            calls = [(count, 0, seed + 1, rank, workers) for rank in range(workers)]
            if wrong := _order(epochs, ids.asked(answer, calls)):
                return Verdict(task, "not yet", *wrong)
    except NotImplementedError:
        raise
    except Exception as error:
        return _raised(task, error, answer)

    def complaint(world: World) -> Complaint | None:
        count = world.workers * 20 + seed % 5 + 1
        found = [ids.read_by(world, epoch) for epoch in range(EPOCHS)]
        return next(filter(None, (ids.uneven(shards, count) for shards in found)), None)

    said = f"In each of {EPOCHS} epochs each id was read once, in another order every time."
    return judged(task, worlds(answer, reshuffle_role, ready_made.SAMPLER, seed), complaint, said)


def _order(epochs: list[list[list[int]]], other_seed: list[list[int]]) -> Complaint | None:
    """What is wrong with the order of right shards."""
    first, second = epochs[0], epochs[1]
    if first == second:
        return (
            "Epochs 0 and 1 have the same order.",
            "This is the commonest mistake with PyTorch's DistributedSampler as well: without"
            " set_epoch every epoch is the same. Let the generator depend on `epoch`.",
        )
    if any(shard == sorted(shard) and len(shard) > 9 for e in epochs for shard in e):
        return (
            "Within its shard a rank reads the ids in ascending order, so batches are not random.",
            "Shuffle first, then cut; and do not sort afterwards.",
        )
    if [set(shard) for shard in first] == [set(shard) for shard in second]:
        return (
            "Each rank has the same ids in every epoch; only their order changes.",
            "The shards are cut before the shuffle. Shuffle all ids, then cut: so examples come"
            " together in ever new batches.",
        )
    if first == other_seed:
        return (
            "Epoch 0 has the same order for two different seeds.",
            "The order must depend on seed and epoch. Are they multiplied, or is `seed` not used?"
            " In epoch 0, seed * epoch is 0 for every seed. Use both: default_rng([seed, epoch]).",
        )
    if _neighbours(first) & _neighbours(second) and _kept(first, second) > 0.5:
        return (
            "The order of epoch 1 is that of epoch 0, begun elsewhere: neighbours stay neighbours.",
            "Draw a new permutation for each epoch.",
        )
    return None


def _neighbours(shards: list[list[int]]) -> set[tuple[int, int]]:
    return {pair for shard in shards for pair in itertools.pairwise(shard)}


def _kept(first: list[list[int]], second: list[list[int]]) -> float:
    before = _neighbours(first)
    return len(before & _neighbours(second)) / max(1, len(before))


RESHUFFLE = ExerciseTask(
    name="reshuffle",
    answer="my_epoch",
    hints=RESHUFFLE_HINTS,
    judge=judge_reshuffle,
    ready_made=ready_made.SAMPLER,
    section="02_global_batch#Change: everybody reads the same",
)

# --- uneven_mean: the mean over all examples, from means over uneven shards ---

MEAN_HINTS = (
    (
        "Two ranks: one has the mean of 9 examples, the other that of 1. Whose mean should weigh"
        " more in the mean of all 10? Which two sums do you need of all ranks?"
    ),
    (
        "gradient * count is the sum over this rank's examples. Sum that over all ranks, and count"
        " as well: two all-reduces, and a division. A rank without examples takes part in both."
    ),
    (
        "total = gradient * count; examples = torch.tensor(float(count)); dist.all_reduce(...) of"
        " each of them; then return total / examples."
    ),
)
ROUNDS = 4
TAKES_PART = (
    "All ranks must make the same calls. Does one that has no examples leave the all-reduce out?"
    " Its gradient is all zeros: let it take part with these, and with the count 0."
)


def mean_role(task: Any, witness: Any, answer: Any, seed: int) -> list[Any]:
    """For each round: gradient and count of this rank, and what the answer returns for them."""
    import torch

    rng = np.random.default_rng()  # this rank's own: no other can work out what it has
    found: list[Any] = []
    calls = 0
    for turn in range(ROUNDS):
        count = 6 if turn == 1 else int(rng.integers(1, 40)) + 40 * (task.index == turn)
        if turn == 3 and task.index == task.spec.workers - 1:
            count = 0
        mine = rng.normal(size=(50, 40 + seed % 5)).astype("float32") * (count > 0)
        with task.phase("reduce", turn):
            got = answer(torch.tensor(mine), count)
        kind = "Tensor" if isinstance(got, torch.Tensor) else type(got).__name__
        array = got.detach().double().numpy() if isinstance(got, torch.Tensor) else np.zeros(0)
        found.append([mine.ravel(), count, array.ravel(), kind, witness.handed(calls)])
        calls = len(witness.calls)
    return found


def judge_mean(task: str, answer: Any) -> Verdict:
    said = "Each rank had the mean over all examples, with even counts, uneven ones, and none."
    seed = secrets.randbelow(10**6)
    return judged(
        task,
        worlds(answer, mean_role, ready_made.AVERAGING, seed),
        mean_complaint,
        said,
        stands=TAKES_PART,
    )


def mean_complaint(world: World) -> Complaint | None:
    for turn in range(ROUNDS):
        each = [found[turn] for found in world.values]
        counts = np.array([count for _, count, *_ in each])
        g = np.array([gradient for gradient, *_ in each], float)
        want = counts @ g / counts.sum()
        case = f"{world.workers} ranks with {', '.join(map(str, counts))} examples"
        for rank, (_, _, got, kind, _) in enumerate(each):
            if kind != "Tensor":
                missing = "nothing: is `return` missing?" if kind == "NoneType" else f"{a(kind)}."
                return f"It returns {missing}", "Return the mean gradient, a tensor."
            if means.near(got, want):
                continue
            text = f"{case}: rank {rank} does not have the mean over all {counts.sum()} examples."
            return text, mean_mistake(np.array(got), g, counts, rank, world.workers)
        size, handed = 4 * len(want), [rank[-1] for rank in each]
        if wrong := unsent(world, "The mean is", handed, size) or unthrifty(
            "The mean is", handed, size, MANY
        ):
            return wrong
    return None


MANY = (
    "Does every rank get the gradients of all? With 1,000 ranks that is 1,000 gradients. Their sum"
    " is as large as one of them: dist.all_reduce."
)


def mean_mistake(got: Any, g: Any, counts: Any, rank: int, workers: int) -> str:
    """The name of the mistake by which a rank has `got`; g: the gradient of each rank."""
    if not np.isfinite(got).all():
        return "It has NaN or infinity: is something divided by the count of this rank, which is 0?"
    total, weighed = counts.sum(), counts @ g
    own = max(counts[rank], 1)
    mistakes = {
        "This is the mean of the means: a rank with few examples weighs as much as one with many."
        " Weigh each gradient by its count.": g.mean(0),
        "This is the sum of the gradients: nothing is divided.": g.sum(0),
        "This is the sum over all examples: divide it by the number of all of them.": weighed,
        "The sum over all examples is divided by the number of ranks; divide by the number of"
        " examples.": weighed / workers,
        "The sum over all examples is divided by this rank's own count, not by the sum of all"
        " counts.": weighed / own,
        "The sum over all examples is divided by this rank's count times the number of ranks. The"
        " others have other counts: sum these as well.": weighed / (own * workers),
        "The gradients are added without their counts, and the sum is divided by the number of all"
        " examples. Multiply each by its count first.": g.sum(0) / total,
        "It is this rank's own gradient: nothing has come from the others. Is what all_reduce"
        " changed, in place, what you return? And does the result reach every rank?": g[rank],
        "It is this rank's own sum, over the number of all examples: the counts are summed over all"
        " ranks, the gradients are not.": g[rank] * counts[rank] / total,
        "It is this rank's own sum: nothing has come from the others.": g[rank] * counts[rank],
        "It is divided twice: by the number of examples and by that of ranks.": weighed
        / total
        / workers,
        "It is multiplied by the number of ranks: the mean is over all examples, not over those of"
        " one rank.": weighed / total * workers,
    }
    return means.named(got, mistakes)


MEAN = ExerciseTask(
    name="uneven_mean",
    answer="my_mean_gradient",
    hints=MEAN_HINTS,
    judge=judge_mean,
    ready_made=ready_made.AVERAGING,
    section="02_global_batch#Change: uneven shares",
)

# --- accumulate: many micro-batches, one step ---

ACCUMULATE_HINTS = (
    (
        "loss_of gives a mean over one micro-batch, and these differ in size. Which number turns"
        " that mean into a sum? Sums may be added up as they come; what is divided, and when?"
    ),
    (
        "For each micro-batch: (loss_of(model, x, y) * len(x)).backward(), which adds to p.grad."
        " Count the examples. After the last: sum each p.grad and the count over the ranks, once,"
        " and divide."
    ),
    (
        "First model.zero_grad(). After the loop: examples = torch.tensor(float(count));"
        " dist.all_reduce(examples); and for each p of model.parameters(): dist.all_reduce(p.grad);"
        " p.grad /= examples."
    ),
)
ONCE = (
    "The ranks have different numbers of micro-batches, so an all-reduce for each of them never"
    " meets the others' in the end. Exchange once, after the last."
)


def accumulate_role(task: Any, witness: Any, answer: Any, seed: int) -> list[Any]:
    """The gradients of each micro-batch alone, by a twin of the model; those that the answer leaves
    in the model; the order of forward passes ("forward" and a batch) and backward passes; and the
    bytes that were handed over before the last forward pass, and in all.
    """
    import copy

    import torch
    from torch import nn

    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(6, 150 + seed % 9), nn.Tanh(), nn.Linear(150 + seed % 9, 3))
    twin, rng = copy.deepcopy(model), np.random.default_rng()  # of this rank alone
    many = 3 if task.spec.workers == 2 else 2 + task.index
    batches = []
    for k in range(many):
        size = int(rng.integers(2, 9)) + 7 * (k == task.index)
        batches.append((_tensor(rng, size, 6), _tensor(rng, size, 3) + task.index))

    def loss_of(model: Any, x: Any, y: Any) -> Any:
        return nn.functional.mse_loss(model(x), y)

    alone = []
    for x, y in batches:
        twin.zero_grad()
        loss_of(twin, x, y).backward()
        alone.append(_flat(twin))
    for p in model.parameters():
        p.grad = torch.full_like(p, 3.0)  # of the step before
    before, order, early = _flat(model, grads=False), list[Any](), [0]

    def passed(module: Any, given: Any, out: Any) -> None:
        again = torch._C._current_graph_task_id() >= 0  # within a backward pass: a checkpoint
        if torch.is_grad_enabled() and not again:  # else it holds no activations
            order.append(["forward", len(given[0])])
            if len([what for what, _ in order if what == "forward"]) <= many:
                early[0] = witness.handed()

    model.register_forward_hook(passed)
    model[2].register_full_backward_hook(lambda *_: order.append(["backward", 0]))
    with task.phase("compute", 0):
        answer(model, loss_of, batches)
    moved = bool(np.abs(_flat(model, grads=False) - before).max() > 0)
    sizes = [len(x) for x, _ in batches]
    return [alone, sizes, _flat(model), order, moved, early[0], witness.handed()]


def _tensor(rng: Any, *shape: int) -> Any:
    import torch

    return torch.tensor(rng.normal(size=shape).astype("float32"))


def _flat(model: Any, grads: bool = True) -> Any:
    """All gradients of a model, or its weights, as one vector; NaN where there is none."""
    import torch

    parts = [p.grad if grads else p for p in model.parameters()]
    parts = [
        torch.full_like(p, torch.nan) if t is None else t
        for p, t in zip(model.parameters(), parts, strict=True)
    ]
    return torch.cat([t.detach().ravel() for t in parts]).double().numpy()


def judge_accumulate(task: str, answer: Any) -> Verdict:
    said = (
        "Each rank ended with the gradient of one large batch, held one micro-batch at a time, and"
        " exchanged once."
    )
    found = worlds(answer, accumulate_role, ready_made.AVERAGING, secrets.randbelow(10**6))
    return judged(task, found, accumulate_complaint, said, stands=ONCE)


def accumulate_complaint(world: World) -> Complaint | None:
    many = sum(len(alone) for alone, *_ in world.values)
    for rank, (_, sizes, _, order, moved, _, _) in enumerate(world.values):
        if wrong := order_complaint(rank, sizes, order, moved):
            return wrong
    for rank, (alone, _, got, *_) in enumerate(world.values):
        want = np.average(
            [g for alone, *_ in world.values for g in alone],
            axis=0,
            weights=[n for _, sizes, *_ in world.values for n in sizes],
        )
        if not means.near(got, want):
            text = (
                f"{world.workers} ranks, {many} micro-batches: rank {rank} does not have the"
                " gradient of one large batch."
            )
            return text, accumulate_mistake(np.array(got), world, rank)
    size, handed = 4 * len(world.values[0][2]), [all_of_it for *_, all_of_it in world.values]
    for rank, (alone, *_, early, _) in enumerate(world.values):
        if early > size / 2 + SLACK:
            return (
                f"Rank {rank} hands {early:,} bytes to torch.distributed before the last of its"
                f" {len(alone)} micro-batches; a gradient has {size:,}.",
                ONE_EXCHANGE,
            )
    what = "The gradient is"
    return unsent(world, what, handed, size) or unthrifty(what, handed, size, ONE_EXCHANGE)


ONE_EXCHANGE = "Exchange once, after the last micro-batch: that is what accumulation saves."


def order_complaint(rank: int, sizes: list[int], order: list[Any], moved: bool) -> Complaint | None:
    """What the passes of a rank show: `order` has ["forward", size of the batch] or ["backward",
    0].
    """
    largest = max((size for what, size in order if what == "forward"), default=0)
    if largest > max(sizes):
        return (
            f"Rank {rank} puts {largest} examples through the model at once; its largest"
            f" micro-batch has {max(sizes)}.",
            "The large batch is joined again, and would not fit into memory. Take one micro-batch"
            " at a time.",
        )
    passes = [what for what, _ in order]
    if ("forward", "forward") in itertools.pairwise(passes):
        return (
            f"Rank {rank} makes another forward pass before the backward pass of the last one, so"
            " it holds the activations of both.",
            "Call backward for each micro-batch before the next one: gradients add up in p.grad.",
        )
    if moved:
        return (
            "It changes the weights.",
            "Leave the gradients in p.grad: no optimizer step, and none between micro-batches.",
        )
    return None


def accumulate_mistake(got: Any, world: World, rank: int) -> str:
    """The name of the mistake by which a rank has the gradient `got`."""
    if np.isnan(got).any():
        return "Some p.grad is None, or not a number. Were gradients cleared at the end?"
    return _mistake(got, world, rank)


def _mistake(got: Any, world: World, rank: int) -> str:
    alone = [np.array(grads) for grads, *_ in world.values]
    sizes = [np.array(n) for _, n, *_ in world.values]
    total, workers = sum(n.sum() for n in sizes), world.workers
    weighed = [n @ g for n, g in zip(sizes, alone, strict=True)]  # sums over examples
    own = [w / n.sum() for w, n in zip(weighed, sizes, strict=True)]
    means_added, mean = sum(g.sum(0) for g in alone), sum(weighed) / total
    for want in (mean, sum(weighed), own[rank], weighed[rank], means_added, means_added / workers):
        if not means.near(got, want) and means.near(got - want, np.full_like(got, (got - want)[0])):
            return (
                "The gradients of the step before are still in it. Clear them first:"
                " model.zero_grad()."
            )
    last = [g[-1] for g in alone]
    counted = [n[-1] * g[-1] for n, g in zip(sizes, alone, strict=True)]
    only_last = (
        "Only the last micro-batch is in it. Is zero_grad called, or p.grad set, for each one?"
    )
    mistakes = {
        "It is this rank's gradient only: the others' have not come in. Sum p.grad over all"
        " ranks.": own[rank],
        "It is the sum over this rank's examples: nothing has come from the others, and nothing is"
        " divided.": weighed[rank],
        "It is the mean of the ranks' means, but ranks have different numbers of examples. Divide"
        " by the number of all.": np.mean(own, axis=0),
        "It is the sum over all examples: divide it by their number.": sum(weighed),
        "It is the sum over all examples, divided by the number of ranks; divide by the number of"
        " examples.": sum(weighed) / workers,
        "The sum over all examples is divided by this rank's own number of examples.": sum(weighed)
        / sizes[rank].sum(),
        "The means of micro-batches are added up, and divided by nothing.": means_added,
        "Means of micro-batches are added up on each rank, then averaged over ranks: the gradient"
        " is too large by the number of micro-batches.": means_added / workers,
        "All micro-batches weigh the same, but they have different sizes. Weigh each by len(x).": (
            np.mean([g.mean(0) for g in alone], axis=0)
        ),
        " All micro-batches weigh the same, but they have different sizes. Weigh each by len(x).": (
            np.concatenate(alone).mean(0)
        ),
        only_last: sum(counted) / total,
        f"{only_last} ": sum(last) / workers,
        f"{only_last}  ": sum(counted) / sum(n[-1] for n in sizes),
        "The first micro-batches are in it, the last one is not.": (
            sum(n[:-1] @ g[:-1] for n, g in zip(sizes, alone, strict=True)) / total
        ),
        "The means of micro-batches are added up and divided by the number of examples: multiply"
        " each loss by len(x) first.": means_added / total,
    }
    return means.named(got, mistakes).strip()


ACCUMULATE = ExerciseTask(
    name="accumulate",
    answer="my_accumulate",
    hints=ACCUMULATE_HINTS,
    judge=judge_accumulate,
    ready_made=ready_made.AVERAGING,
    section="02_global_batch#Accumulation: a large batch on a small device",
)

TASKS = (SHARD, RESHUFFLE, MEAN, ACCUMULATE)
