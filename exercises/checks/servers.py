"""Parameter servers that a learner writes, on real processes. Rank `workers` is the ps. The workers
are ours: they receive the parameters, push gradients, and note what comes back. The first numbers
of the parameters count the gradients of each worker that have been applied.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import numpy as np

from course_lib.course.answers import ENDLESS, Verdict
from course_lib.course.handed_in import Answer, TookTooLong, bounded
from course_lib.record.events import Update
from course_lib.text import kind_of

from . import processes, ready_made
from .processes import SIZES, carry_out, ended

STEPS = 4
PATIENCE = 4.0  # seconds that a rank waits for a message
HELD = 1.0  # seconds that the slow worker waits for the others
LONGEST = 3.0  # seconds that a ps may compute
LEAVES = 30.0  # seconds in which it returns then, on a busy machine too
CLOSE = 1e-9  # float64, and a mean of at most five
Complaint = tuple[str, str]


@dataclass(frozen=True)
class World:
    """What a run is about, drawn from its `seed`: `start`, and the gradient of each worker in each
    step. In a gradient of worker k number k is 1 and the numbers of the other workers are 0.
    """

    seed: int
    workers: int

    @property
    def rate(self) -> float:
        return float(3 * 2.0 ** -(3 + self.seed % 3))

    @property
    def start(self) -> np.ndarray:
        size = self.workers + 3 + self.seed % 7
        return np.random.default_rng(self.seed).integers(-50, 50, size).astype(float)

    def gradient(self, worker: int, step: int) -> np.ndarray:
        drawn = np.random.default_rng([self.seed, worker, step])
        gradient = drawn.integers(-20, 20, len(self.start)).astype(float)
        gradient[: self.workers] = np.eye(self.workers)[worker]
        return gradient


def role(task: Any, learners: Any, seed: int, waits: bool) -> dict[str, Any]:
    """What each rank does. With `waits`, the last worker pushes its first gradient once the others
    are done, or after `HELD` seconds.
    """
    import time

    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo", timeout=timedelta(seconds=PATIENCE))
    world = World(seed, task.spec.workers)
    if task.job == "ps":
        values = torch.tensor(world.start)
        try:
            with bounded(LONGEST):
                given = learners(task, values, world.rate, world.workers, STEPS)
        except TookTooLong:
            time.sleep(PATIENCE)  # until the workers have given up, too
            return {"trouble": "endless"}
        except RuntimeError as error:
            if not any(word in str(error) for word in ("imed out", "timeout", "closed", "reset")):
                raise
            return {"trouble": "waits"}
        if isinstance(given, torch.Tensor):
            return {"final": given.detach().tolist()}
        return {"trouble": kind_of(given)}
    store, got = dist.distributed_c10d._get_default_store(), []
    values = torch.zeros(len(world.start), dtype=torch.float64)
    held = False
    try:
        dist.recv(values, world.workers)
        got.append(values.tolist())
        for step in range(STEPS):
            with task.phase("compute", step):
                gradient = torch.tensor(world.gradient(task.index, step))
                if waits and step == 0 and task.index == world.workers - 1:
                    held = not _reached(store, world.workers - 1)
            with task.phase("reduce", step):
                dist.send(gradient, world.workers)
                dist.recv(values, world.workers)
            got.append(values.tolist())
        store.add("done", 1)
    except RuntimeError:  # nothing came, or the ps is gone
        pass
    await_servers(task)
    return {"got": got, "held": held}


def await_servers(task: Any) -> None:
    """On a worker: wait until each ps has returned. A ps that still runs when all workers are done
    is told to leave.
    """
    import time

    until = time.monotonic() + LEAVES
    for k in range(task.spec.ps):
        left = task.run_dir / "tasks" / f"ps-{k}"
        while not any((left / name).exists() for name in ("value.pickle", "error.json")):
            if time.monotonic() > until:
                return
            time.sleep(0.01)


def _reached(store: Any, count: int) -> bool:
    import time

    until = time.monotonic() + HELD
    while store.add("done", 0) < count:
        if time.monotonic() > until:
            return False
        time.sleep(0.01)
    return True


# --- what is said ---


def judge_sync(task: str, answer: Answer) -> Verdict:
    said = (
        "In each step all workers pulled the same version, and the ps applied the mean of their"
        " gradients once. Nobody's gradient was stale."
    )
    return _judge(task, answer, False, sync_complaint, said)


def judge_async(task: str, answer: Answer) -> Verdict:
    said = (
        "Each gradient was applied as it came, and its staleness is what you recorded. The last"
        " worker was held back until the others were done; they did not wait for it."
    )
    return _judge(task, answer, True, async_complaint, said)


def _judge(task: str, answer: Answer, waits: bool, complaint: Any, said: str) -> Verdict:
    seed, shown = secrets.randbelow(10**6), None
    ready, some = ready_made.PARAMETER_SERVER, [{"workers": n, "ps": 1} for n in SIZES]
    for done in ended(carry_out(answer, role, seed, waits, ready_made=ready, worlds=some)):
        shown = shown if shown and done.workers > 3 else done.run.trace
        world = World(seed, done.workers)
        found = _trouble(world, done) or complaint(world, done)
        if found:
            text = f"{done.workers} workers, rate {world.rate:g}. {found[0]}"
            return Verdict(task, "not yet", text, found[1], done.run.trace)
    text = f"Carried out by 2, 3 and 5 worker processes and a ps. {said}"
    return Verdict(task, "passed", text, shown=shown)


def _trouble(world: World, done: processes.World) -> Complaint | None:
    """What kept the run from its end."""
    *workers, ps = done.values
    trouble = ps.get("trouble", "")
    if trouble == "endless":
        return f"The ps computed for more than {LONGEST:g} seconds.", ENDLESS
    heard = [len(each["got"]) for each in workers]
    if not any(heard):
        return (
            "No worker ever received the parameters.",
            "Each worker begins with recv: first send the parameters to all workers.",
        )
    if min(heard) <= STEPS:
        late = heard.index(min(heard))
        step = f"its gradient of step {min(heard) - 1}" if min(heard) else "its first parameters"
        text = f"worker:{late} waited for the answer to {step}, in vain."
        if trouble == "waits":
            cure = "Meanwhile the ps waited for a message that nobody sends. Who sends what, when?"
        elif min(heard) == STEPS:
            cure = "A worker waits for the new parameters after each gradient, the last included."
        else:
            cure = "The ps was done already. How many gradients come in all?"
        return text, cure
    if trouble == "waits":
        return (
            "All workers were done, and the ps waited for one more gradient.",
            f"Each of {world.workers} workers sends {STEPS} gradients, one a step.",
        )
    if trouble:
        return f"The ps returns {trouble}.", "Return the parameters: the tensor, after all updates."
    return None


def _applied(world: World, values: Sequence[float]) -> np.ndarray:
    """How often the gradient of each worker has been applied to these parameters."""
    return (world.start - np.array(values))[: world.workers] / world.rate


def sync_complaint(world: World, done: processes.World) -> Complaint | None:
    *workers, ps = done.values
    got = np.array([each["got"] for each in workers])  # worker, version, number
    w, want = world.workers, [world.start]
    for step in range(STEPS):
        mean = np.mean([world.gradient(k, step) for k in range(w)], axis=0)
        want.append(want[-1] - world.rate * mean)
    for version, right in enumerate(want):
        if np.abs(got[:, version] - right).max() > CLOSE:
            return _why_not(world, got, version, want)
    if np.abs(np.array(ps["final"]) - want[-1]).max() > CLOSE:
        text = "The workers had the right parameters; those that the ps returns are others."
        return text, "Return the parameters after the last update."
    updates = done.run.trace.all(Update, f"ps:{0}")
    if len(updates) != STEPS:
        return _count(len(updates), STEPS, "one update a step")
    if any((u.read, u.written, u.gradients) != (k, k + 1, w) for k, u in enumerate(updates)):
        u = updates[0]
        text = (
            f"The first update is recorded as {u.gradients} gradients that read version {u.read},"
            f" written as version {u.written}."
        )
        cure = "task.update(step, 'all', 'cpu', read=step, written=step + 1, gradients=workers)"
        return text, f"An update takes all {w} gradients from version step to step + 1: {cure}."
    return None


def _count(have: int, want: int, what: str) -> Complaint:
    text = f"The trace has {have} updates of the ps, where {want} were made."
    return text, f"Record each update where you make it, with task.update(...): {what}."


def _why_not(world: World, got: np.ndarray, version: int, want: list[np.ndarray]) -> Complaint:
    """The mistake behind the first version that is not the right one."""
    w, have = world.workers, got[:, version]
    where = f"After step {version - 1} the parameters are wrong." if version else (
        "The parameters that the ps sends first are not those that it was given.")  # fmt: skip
    if not version:
        return where, "Send `values` as they came in, before any update."
    if np.abs(have - have[0]).max() > CLOSE:
        first = next(k for k in range(w) if np.abs(have[k] - have[0]).max() > CLOSE)
        return (
            f"After step {version - 1} worker:0 and worker:{first} have different parameters.",
            "That is the asynchronous rule, or half of it: an answer went out before all gradients"
            " of the step were in. Receive from all, update once, then send to all.",
        )
    mine = have[0]
    if np.abs(mine - got[0, version - 1]).max() <= CLOSE:
        cure = (
            "What is sent is never updated: does the update make a new tensor under another name?"
            if version == 1
            else "From here on the updates do not reach what is sent."
        )
        return f"After step {version - 1} the workers get the same parameters again.", cure
    counts = (got[0, version - 1] - mine)[:w] / world.rate
    if version > 1 and np.abs(counts - version / w).max() <= CLOSE:
        return where, (
            "Gradients of earlier steps are in it once more. Begin each step with an empty sum."
        )
    for words, share in (
        ("That is the sum of the gradients. Divide by the number of workers.", 1.0),
        (
            f"The sum is divided by {w + 1}: the ps is a rank too, but computes no gradient. Divide"
            " by the number of workers.",
            1 / (w + 1),
        ),
        ("The gradients are added. An update goes against the gradient: subtract.", -1 / w),
        ("The sum of the gradients is added: subtract their mean.", -1.0),
        ("The learning rate is missing: subtract rate times the mean.", 1 / w / world.rate),
        ("A sum, without the learning rate: subtract rate times the mean.", 1 / world.rate),
    ):  # fmt: skip
        if np.abs(counts - share).max() <= CLOSE:
            return where, words
    missing = [k for k in range(w) if abs(counts[k]) <= CLOSE]
    if missing:
        names = ", ".join(f"worker:{k}" for k in missing)
        return where, (
            f"The gradient of {names} is not in the update. Is one buffer used for all gradients,"
            " so that the last one takes the place of those before it?"
        )
    return where, "They should be: parameters - rate * (mean of the gradients of this step)."


def async_complaint(world: World, done: processes.World) -> Complaint | None:
    *workers, ps = done.values
    w = world.workers
    counts = np.array([[_applied(world, values) for values in each["got"]] for each in workers])
    if np.abs(counts[:, 0]).max() > CLOSE:
        return "The first parameters are not those that the ps was given.", "Send `values` first."
    one = counts[0, 1]
    if (one < -CLOSE).any():
        return (
            "The first gradient is added.",
            "An update goes against the gradient: subtract rate times the gradient.",
        )
    if np.abs(counts).max() <= CLOSE:
        return (
            "The workers get the same parameters again and again.",
            "What is sent is never updated, or is sent before the update.",
        )
    if any(each["held"] for each in workers):
        return _held(world, counts)
    share = counts[0, 1, 0]
    if share > CLOSE and abs(share - 1) > CLOSE:
        return _share(world, counts, share)
    for k in range(w):
        for step in range(STEPS):
            if abs(counts[k, step + 1, k] - step - 1) > CLOSE:
                return (
                    f"The answer to the gradient of step {step} of worker:{k} has"
                    f" {counts[k, step + 1, k]:.0f} of its gradients in it, not {step + 1}.",
                    "Apply a gradient first, then answer with the newest parameters, and answer"
                    " only the worker that has sent it.",
                )
    written = counts.sum(axis=2).round().astype(int)  # worker, answer
    right = _final(world)
    if sorted(written[:, 1:].ravel()) != list(range(1, w * STEPS + 1)):
        return (
            "Two answers are of the same version.",
            "One gradient makes one version; it is answered before the next is applied.",
        )
    if np.abs(np.array(ps["final"]) - right).max() > CLOSE:
        text = "The parameters that the ps returns are not those after the last update."
        return text, "Subtract rate times each gradient in full, and return the parameters."
    return _staleness(world, done, written)


def _held(world: World, counts: np.ndarray) -> Complaint:
    w = world.workers
    text = (
        f"worker:{w - 1} was slow with its first gradient, and the others were held up: they could"
        " not go on before it came."
    )
    if w > 2 and np.abs(counts[:, 1:] - counts[:1, 1:]).max() <= CLOSE:
        return text, "That is the synchronous rule. Here nobody waits: apply what comes, answer."
    return text, (
        "Does the ps receive from the workers in turn? dist.recv(buffer) without a src takes what"
        " comes first, and returns who sent it."
    )


def _share(world: World, counts: np.ndarray, share: float) -> Complaint:
    text = f"A gradient counts {share:.3g} times rate in the parameters, not once."
    if abs(share - 1 / world.workers) <= CLOSE:
        return text, (
            "It is divided by the number of workers. There is no mean here: each gradient is an"
            " update of its own, with the full rate."
        )
    if abs(share * world.rate - 1) <= CLOSE:
        return text, "The learning rate is missing: subtract rate times the gradient."
    return text, "Subtract rate times the gradient, once for each gradient that comes."


def _final(world: World) -> np.ndarray:
    all_of_them = [world.gradient(k, s) for k in range(world.workers) for s in range(STEPS)]
    final: np.ndarray = world.start - world.rate * np.sum(all_of_them, axis=0)
    return final


def _staleness(world: World, done: processes.World, written: np.ndarray) -> Complaint | None:
    """Compare the updates in the trace with what the workers saw."""
    w = world.workers
    right = {
        int(written[k, step + 1]): (k, step, int(written[k, step]))
        for k in range(w)
        for step in range(STEPS)
    }
    updates = done.run.trace.all(Update, "ps:0")
    if len(updates) != len(right):
        return _count(len(updates), len(right), "one for each gradient")
    have = {u.written: u for u in updates}
    if set(have) != set(right):
        return (
            f"The versions that are written run from {min(have)} to {max(have)}, and should run"
            f" from 1 to {len(right)}.",
            "The parameters that all begin with are version 0; each update writes one more.",
        )
    if all(u.staleness == 0 for u in updates):
        return (
            "By the trace no gradient is stale, and that cannot be.",
            "`read` is the version that the worker was sent before it computed, not the version"
            " before the update. Note for each worker which version you sent it.",
        )
    for version, (k, step, read) in right.items():
        if (u := have[version]).read != read:
            return (
                f"The gradient of step {step} of worker:{k} read version {read} and became version"
                f" {version}: staleness {version - read - 1}. Your record says {u.staleness}.",
                "`read` is the version that this worker was sent last.",
            )
    return None
