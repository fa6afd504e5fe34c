"""The checks of exercise 06: gradients that leave while the backward pass goes on, one by one and
in buckets.
"""

from __future__ import annotations

import functools
import itertools
import secrets
import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

from course_lib.course.answers import ExerciseTask, Unusable, Verdict
from course_lib.course.handed_in import Answer, bounded
from course_lib.launch import start
from course_lib.record.events import Phase
from course_lib.spec.fields import Link
from course_lib.text import kind_of
from course_lib.workloads import Workload

from . import ready_made
from .processes import carry_out, ended

# nothing goes back through the input, so LAYERS - 1 layers note that they are passed
STEPS, LAYERS, WIDTH = 3, 8, 16
TRAINED = LAYERS - 2  # one layer is frozen, and one has the weights of another
LAYER = WIDTH * WIDTH * 4  # bytes
FIT = 4  # layers in a bucket, so the last one is not full
LIMIT = FIT * LAYER  # bytes
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
BEST_HINTS = (
    (
        "No formula knows this machine: ask it. How often must a size be measured before you"
        " believe the result, when one step in four is disturbed?"
    ),
    (
        "Measure every size several times, five or seven. For each size take a number that a few"
        " slow steps do not change: the median, or the shortest. Return the size, not its time."
    ),
    (
        "times = {size: statistics.median(measure(size) for _ in range(7)) for size in sizes};"
        " return min(times, key=times.get)"
    ),
)
MOST, SIZES = 12, 5  # measurements of a size; sizes of a made-up machine
REAL = (0.016, 0.064, 0.13)  # MiB: one layer, four, all eight
LINK = Link(mbit=20, delay_ms=8)


# --- buckets: which gradients leave together ---


def judge_buckets(task: str, answer: Answer) -> Verdict:
    drawn = [1 + secrets.randbelow(40) for _ in range(12)]
    cases = [
        ([4, 4, 4], 8),
        ([3], 5),
        ([9, 2, 2], 4),
        ([4, 4, 20], 8),
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

THEIRS = (
    "DistributedDataParallel does this at work, in a model that is called through it. Here you"
    " write what it does, with a hook for each parameter."
)

# what PyTorch and Python say where a frozen weight is treated as the others are
OF_FROZEN = "doesn't require gradient", "'NoneType' "
FROZEN = (
    "One weight of the model is frozen: its requires_grad is False and its .grad stays None. Leave"
    " such parameters out."
)


def judge(task: str, answer: Answer, buckets: bool) -> Verdict:
    seed, shown = secrets.randbelow(10**6), None
    given = (LIMIT / 2**20,) if buckets else ()
    try:
        ready = ready_made.DATA_PARALLEL
        for done in ended(carry_out(answer, role, seed, given, ready_made=ready)):
            shown = shown or done.run.trace
            if found := complaint(done.values, buckets):
                text, cure = (
                    f"{done.workers} ranks: {found[0]}",
                    THEIRS if answer.used else found[1],
                )
                return Verdict(task, "not yet", text, cure, done.run.trace)
            if not any(phase.what == "reduce" for phase in done.run.trace.all(Phase)):
                raise Unusable("The trace of the run has no exchange in it.")
    except Unusable as problem:
        if any(sign in str(problem) for sign in OF_FROZEN):
            return Verdict(task, "not yet", str(problem), FROZEN)
        raise
    how = "bucket by bucket, none too large" if buckets else "one by one"
    text = (
        f"Carried out by 2, 3 and 5 real processes, {STEPS} steps each. All gradients are means;"
        f" they left {how}, while the backward pass went on; tied and frozen weights are right."
    )
    return Verdict(task, "passed", text, shown=shown)


def role(task: Any, learners: Any, seed: int, given: tuple[Any, ...]) -> dict[str, Any]:
    """Steps of a model whose layers note when their backward pass is done. It returns, for each
    all-reduce, how far the pass was when it started and when somebody waited for it, and what
    became of each gradient.
    """
    import threading
    import time
    from datetime import timedelta
    from functools import partialmethod

    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo", timeout=timedelta(seconds=8))
    passed, calls, below = [0], list[dict[str, Any]](), dist.ProcessGroup

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

    class Handle:
        """Notes how far the backward pass was when it was first used."""

        def __init__(self, work: Any, call: dict[str, Any]) -> None:
            self._work, self._call = work, call

        def __getattr__(self, name: str) -> Any:
            self._call.setdefault("waited", passed[0] if name == "wait" else LAYERS)
            return getattr(self._work, name)

    # below torch.distributed.all_reduce, which may have been imported by its own name
    def noted(group: Any, begin: Any, tensors: Any, options: Any) -> Any:
        if not theirs:
            return begin(group, tensors, options)
        call = {"step": step, "passed": passed[0], "bytes": sum(each.nbytes for each in tensors)}
        calls.append(call)
        work = begin(group, tensors, options)
        if options.asyncOp:
            return Handle(work, call)
        # a thread of its own holds nobody up
        beside = threading.current_thread() is not threading.main_thread()
        call["waited"] = LAYERS if beside else passed[0]
        return work

    torch.manual_seed(seed)
    model, plain = Model(), Model()
    plain.load_state_dict(model.state_dict())
    mine, other = ([p for p in each.parameters() if p.requires_grad] for each in (model, plain))
    step, after, world, theirs = 0, [], dist.get_world_size(), False
    for name in ("allreduce", "allreduce_coalesced"):
        setattr(below, name, partialmethod(noted, getattr(below, name)))
    with bounded(5.0):
        finish = learners(model, *given)
        if not callable(finish):
            return {"trouble": kind_of(finish)}
        for step in range(STEPS):
            torch.manual_seed(seed + 1000 * step + task.index)
            x = torch.randn(8, WIDTH)
            plain.zero_grad()
            plain(x).square().sum().backward()
            model.zero_grad()
            passed[0] = 0
            theirs = True
            with task.phase("compute", step):
                model(x).square().sum().backward()
            with task.phase("reduce", step):
                finish()
            theirs = False
            sums = [p.grad.clone() for p in other]
            for gradient in sums:
                dist.all_reduce(gradient)
            means = [gradient / world for gradient in sums]

            def became(gradient: Any, i: int, means: Any = means) -> str:
                """What a gradient is now, in a word."""
                if gradient is None:
                    return "none"
                known = {"sum": world, "mean": 1, "twice": 1 / world}
                known = {word: times * means[i] for word, times in known.items()}
                known |= {"own": other[i].grad, "swapped": means[i - 1], "other": means[i - 3]}
                same = (w for w, g in known.items() if torch.allclose(gradient, g, atol=CLOSE))
                return next(same, "wrong")

            after.append([became(p.grad, i) for i, p in enumerate(mine)])
    return {"after": after, "calls": calls}


def complaint(values: list[Any], buckets: bool) -> Complaint | None:
    """What is wrong with what the ranks have noted."""
    trouble = next((v["trouble"] for v in values if "trouble" in v), "")
    if trouble:
        return f"it returns {trouble}.", "Return `finish`, the function itself, which ends a step."
    if not any(v["calls"] for v in values):
        return "no gradient was sent: dist.all_reduce is never called.", (
            "Each hook starts dist.all_reduce(gradient, async_op=True)."
        )
    for step in range(STEPS):
        for v in values:
            calls = [call for call in v["calls"] if call["step"] == step]
            found = _sent(calls, step, buckets) or _became(set(v["after"][step]), step)
            if found:
                return found
    return None


def _sent(calls: list[Any], step: int, buckets: bool) -> Complaint | None:
    """What is wrong with the messages of a step."""
    if not calls:
        return f"in step {step} nothing is sent.", (
            "It works in the first step only: set back in `finish` what a step has used up."
        )
    sizes = [call["bytes"] for call in calls]
    if buckets and max(sizes) > LIMIT:
        return f"a message of {max(sizes)} bytes left.", (
            f"With bucket_mb = {LIMIT / 2**20:.4f} a bucket holds {LIMIT} bytes at most. 1 MiB is"
            " 2**20 bytes, and a float32 has 4."
        )
    if all(call["passed"] >= LAYERS - 1 for call in calls):
        return f"in step {step} the first gradient left when the backward pass was over.", (
            "Nothing overlaps. Start the all-reduce in the hook, not in `finish`."
        )
    if any(call.get("waited", LAYERS) < LAYERS - 1 for call in calls):
        return f"in step {step} an all-reduce was waited for in its hook.", (
            "The backward pass stands still meanwhile, and nothing is hidden. Pass async_op=True,"
            " keep the handle, and wait in `finish`."
        )
    expected = [LAYER * n for n in ((FIT, TRAINED - FIT) if buckets else (1,) * TRAINED)]
    if sizes != expected:
        return _other_sizes(sizes, expected, step, buckets)
    if late := sum("waited" not in call for call in calls):
        return f"in step {step} {late} of {len(calls)} all-reduces are never waited for.", (
            "async_op=True returns at once; the sum is there after handle.wait(). Keep each handle,"
            " and wait for all of them in `finish`."
        )
    return None


def _other_sizes(sizes: list[int], expected: list[int], step: int, buckets: bool) -> Complaint:
    said = f"{len(sizes)} message{'s' * (len(sizes) != 1)} left in step {step}"
    if sum(sizes) != sum(expected) and (buckets or len(sizes) < TRAINED):
        return f"{said}, with {sum(sizes)} bytes of {sum(expected)}.", (
            "Each gradient leaves once. Does the last bucket, which is not full, leave as well?"
            if buckets
            else "Each gradient leaves on its own, as soon as it is ready."
        )
    if not buckets:
        return f"{said}, for {TRAINED} gradients.", (
            "Each parameter needs one hook, and once only. A weight that two layers share is one"
            " parameter; its gradient is ready when both have added to it."
        )
    if len(sizes) == TRAINED:
        return f"{said}, one for each gradient.", (
            "Collect them: a bucket leaves once all of its gradients are ready."
        )
    return f"{said}, of {' and '.join(map(str, sizes))} bytes.", (
        f"It should be {' and '.join(map(str, expected))}: gradients go into buckets from the last"
        f" to the first, until the next one does not fit; {LIMIT} bytes fit exactly."
    )


def _became(found: set[str], step: int) -> Complaint | None:
    """What is wrong with the gradients after a step; `found` holds a word for each kind."""
    if found == {"mean"}:
        return None
    text = f"the gradients are wrong after step {step}."
    if step and "none" not in found:
        return text, (
            "Step 0 was right. Set back in `finish` what a step has used up: handles that were"
            " waited for, counts, sums."
        )
    if found == {"sum"}:
        return text, "They are sums over the ranks. Divide by dist.get_world_size()."
    if found == {"twice"}:
        return text, "They are divided twice."
    if "own" in found:
        return text, (
            "Some are still those of the rank itself: what came back is not in .grad. Copy it"
            " there: p.grad.copy_(...)."
        )
    if found & {"swapped", "other"}:
        return text, (
            "Some have got the mean of another gradient. Cut `flat` in the order in which its"
            " gradients were joined."
        )
    return text, (
        "They are not the means of all ranks. Does `finish` wait for every handle, divide after"
        " that, and put the result into .grad?"
    )


# --- the best size ---

Samples = dict[float, list[float]]  # seconds of steps, by bucket size in MiB


def made_up(best: int) -> Samples:
    """A machine on which bucket size number `best` is the best. One step in four is disturbed: of
    the best size the first one, of the others a later one.
    """
    scale = 0.3 * 2.0 ** (secrets.randbelow(7) - 5)
    samples = {}
    for i in range(SIZES):
        step, late = 0.2 * (1 + 0.3 * abs(i - best)), 0 if i == best else 2 + i % 2
        noise = [1 + secrets.randbelow(100) / 5000 for _ in range(MOST)]
        disturbed = [3 if k % 4 == late else 1 for k in range(MOST)]
        samples[scale * 2**i] = [step * a * b for a, b in zip(noise, disturbed, strict=True)]
    return samples


@functools.cache  # a machine is measured once, for all answers
def measured() -> Samples:
    """Seconds of real steps: two workers on two hosts, a slow link, eight layers of 16 kB each."""
    from sklearn.datasets import load_digits

    def layers() -> Any:
        from torch import nn

        return nn.Sequential(*[nn.Linear(64, 64) for _ in range(8)])

    images, digits = load_digits(return_X_y=True)
    data = (images / 16).astype("float32"), digits
    model, samples = Workload("eight_layers", train=data, test=data, torch=layers), {}
    for size in REAL:
        run = start(
            "multi_worker_mirrored",
            framework="torch",
            workload=model,
            workers=2,
            hosts=2,
            link=LINK,
            device_ms=160,
            all_reduce="ring",
            bucket_mb=size,
            steps=8,
        ).wait(60)
        reads = [p for p in run.trace.all(Phase) if (p.task, p.what) == ("worker:0", "read")]
        begins = sorted(phase.start for phase in reads)
        samples[size] = [b - a for a, b in itertools.pairwise(begins)][2:]  # buckets are built anew
    return samples


def judge_best(task: str, answer: Answer) -> Verdict:
    for best in (2, 1, 0, SIZES - 1, SIZES - 2):
        samples = made_up(best)
        typical, (chosen, asked) = _typical(samples), _asked(answer, samples)
        right = list(samples)[best]
        if chosen != right:
            steps = f"steps of {_list(typical.values(), 's')} with {_list(samples, 'MiB')}"
            text = f"A machine with {steps}: it chooses {chosen:g} MiB, and {right:g} is best."
            return Verdict(task, "not yet", text, _why(chosen, right, typical, asked))
    typical, (chosen, asked) = _typical(measured()), _asked(answer, measured())
    right = min(typical, key=typical.__getitem__)
    times = ", ".join(f"{size:g} MiB {1e3 * s:.0f} ms" for size, s in typical.items())
    said = f"two workers and a link of {LINK.mbit:g} Mbit/s: {times}; it chooses {chosen:g} MiB."
    if not _near(chosen, measured()):
        text = f"Real steps, {said}"
        return Verdict(task, "not yet", text, _why(chosen, right, typical, asked))
    text = f"The best on five made-up machines, whose steps are disturbed. Real steps, {said}"
    return Verdict(task, "passed", text)


def _near(chosen: float, samples: Samples) -> bool:
    """Whether a size is about as good as the best, by median or by shortest step."""
    for number in (statistics.median, min):
        steps = {size: number(held) for size, held in samples.items()}
        if steps[chosen] <= 1.15 * min(steps.values()):
            return True
    return False


def _asked(answer: Answer, samples: Samples) -> tuple[float, Counter[float]]:
    """Which size an answer chose, and how often it measured each. Raises Unusable for no size."""
    with bounded(5.0):
        said = answer.within(ask, list(samples.items()))
    if said["stub"]:
        raise NotImplementedError
    if said["wrong"]:
        raise Unusable(said["wrong"])
    return said["chosen"], Counter(said["asked"])


def ask(learners: Any, held: list[tuple[float, list[float]]]) -> dict[str, Any]:
    """Where the learner's code runs: `measure` hands out the steps of each size in turn."""
    samples, asked, wrong = dict(held), list[float](), ""
    sizes = list(samples)

    def measure(size: float) -> float:
        nonlocal wrong
        if size not in samples:
            wrong = f"measure({size!r}): measure one of the given sizes, {_list(sizes)}."
            raise ValueError(wrong)
        if (count := asked.count(size)) == MOST:
            wrong = f"It measures {size:g} MiB more than {MOST} times. Each is a step of training."
            raise ValueError(wrong)
        asked.append(size)
        return samples[size][count % len(samples[size])]

    chosen: Any = None
    try:
        chosen = learners(measure, list(sizes))
    except NotImplementedError:
        return {"stub": True}
    except ValueError:
        if not wrong:
            raise
    if not wrong and chosen not in sizes:
        wrong = _no_size(chosen, samples)
    if not wrong and not asked:
        wrong = (
            "It measures nothing. Which size is best depends on the model, the link and the"
            " machine: call measure(size)."
        )
    return {"stub": False, "wrong": wrong, "asked": asked, "chosen": 0.0 if wrong else chosen}


def _no_size(chosen: Any, samples: Samples) -> str:
    if chosen is None:
        return "It returns nothing: is `return` missing?"
    times = [seconds for each in samples.values() for seconds in each]
    if isinstance(chosen, float) and min(times) <= chosen <= max(times):
        return f"It returns {chosen:.3g}, the time of a step. Return the size."
    if isinstance(chosen, int) and 0 <= chosen < len(samples):
        return f"It returns {chosen}, a place in the list. Return sizes[{chosen}]."
    return f"It returns {str(chosen)[:60]}, which is none of the sizes: {_list(samples)}."


def _typical(samples: Samples) -> dict[float, float]:
    return {size: statistics.median(held) for size, held in samples.items()}


def _list(numbers: Iterable[float], unit: str = "") -> str:
    return f"{', '.join(f'{n:.3g}' for n in numbers)} {unit}".strip()


def _why(chosen: float, right: float, typical: dict[float, float], often: Counter[float]) -> str:
    """What went wrong in a choice."""
    if right not in often:
        return (
            f"{right:g} MiB was never measured. The best may be any of the sizes: one at an end, or"
            " one between two that are worse."
        )
    if often[right] == 1:
        return (
            "One step is no measurement: whatever else the machine does may disturb it. Measure"
            " each size several times."
        )
    if typical[chosen] > 0.95 * max(typical.values()):  # both ends may be as long
        return "Its steps are the longest. The shortest are wanted."
    return (
        "A disturbed step takes three times as long, and a mean or a maximum goes up with it. Take"
        " the median, or the shortest."
    )


def _task(name: str, answer: str, hints: Any, judged: Any, section: str) -> ExerciseTask:
    return ExerciseTask(name, answer, hints, judged, ready_made.DATA_PARALLEL, section=section)


TASKS = (
    _task(
        "leave_early",
        "leave_early",
        LEAVE_HINTS,
        partial(judge, buckets=False),
        "06_overlap_and_buckets#Look",
    ),
    _task(
        "buckets",
        "my_buckets",
        BUCKETS_HINTS,
        judge_buckets,
        "06_overlap_and_buckets#Buckets in both frameworks",
    ),
    _task(
        "bucketed",
        "bucketed",
        BUCKETED_HINTS,
        partial(judge, buckets=True),
        "06_overlap_and_buckets#Buckets in both frameworks",
    ),
    _task("best_size", "best_size", BEST_HINTS, judge_best, "06_overlap_and_buckets#Explain"),
)
