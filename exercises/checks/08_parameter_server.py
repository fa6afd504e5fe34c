"""The checks of exercise 08: a synchronous and an asynchronous parameter server, and variables cut
over several.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import Any

from course_lib.course.answers import ExerciseTask, Unusable, Verdict
from course_lib.course.handed_in import Answer, bounded
from course_lib.record.events import Metric

from . import ready_made, servers
from .processes import carry_out, ended
from .servers import Complaint

# --- the two rules ---

SYNC_HINTS = (
    (
        "Follow one step. All workers wait for parameters, compute, and push. What must be in"
        " before anything may change? What must have changed before anybody gets an answer?"
    ),
    (
        "First send `values` to ranks 0 to workers - 1. Then, steps times: receive a gradient from"
        " each worker, add them up, subtract rate / workers times the sum from `values`, record the"
        " update, and send `values` to each worker."
    ),
    (
        "total = torch.zeros_like(values); for each worker: dist.recv(buffer, worker); total +="
        " buffer. Then values -= rate * total / workers, and task.update(step, 'all', 'cpu', step,"
        " step + 1, gradients=workers)."
    ),
)

ASYNC_HINTS = (
    (
        "Nobody waits for anybody. Which message comes next is not known: dist.recv without a"
        " source takes the first that comes, and returns the rank that sent it."
    ),
    (
        "There are workers * steps gradients. For each: receive it, subtract rate times it,"
        " count the version up, and answer the one that sent it. `read` in the record is the"
        " version that you sent this worker last: keep a list with one number for each worker."
    ),
    (
        "src = dist.recv(buffer); values -= rate * buffer; version += 1; task.update(version - 1,"
        " 'all', 'cpu', read[src], version, workers=f'worker:{src}'); dist.send(values, src);"
        " read[src] = version."
    ),
)

SYNC = ExerciseTask(
    name="sync_ps",
    answer="sync_ps",
    hints=SYNC_HINTS,
    judge=servers.judge_sync,
    ready_made=ready_made.PARAMETER_SERVER,
    section="08_parameter_server#Who applies the update?",
)
ASYNC = ExerciseTask(
    name="async_ps",
    answer="async_ps",
    hints=ASYNC_HINTS,
    judge=servers.judge_async,
    ready_made=ready_made.PARAMETER_SERVER,
    section="08_parameter_server#Does it help not to wait?",
)

# --- shards: variables cut over several ps ---

SHARDS_HINTS = (
    (
        "Lay all variables end to end, as one long vector. Cut that into equal pieces, as a ruler"
        " would. Then ask of each variable: which part of it lies in piece k?"
    ),
    (
        "Piece k of p goes from k * total // p to (k + 1) * total // p. A variable that begins at"
        " place `at` of the vector overlaps it from max(at, begin) to min(at + size, end). If that"
        " is not empty, it is a piece; take `at` off both ends."
    ),
    (
        "Two loops: for each ps, for each variable with its `at`. first, end = max(begin, at) - at,"
        " min(stop, at + size) - at; append (variable, first, end) if first < end."
    ),
)
CASES: tuple[tuple[tuple[int, ...], int], ...] = (
    *(((10, 4), 2), ((64, 20, 30, 6), 3), ((7,), 3), ((5, 5, 5), 1), ((1, 2, 300, 4), 5)),
    ((3, 3, 3, 3), 2),
)
Piece = tuple[int, int, int]
Shards = list[list[Piece]]


def judge_shards(task: str, answer: Answer) -> Verdict:
    """Every number of every variable on one ps, the shards equal, and few pieces; then real ps that
    hold these shards.
    """
    hidden = tuple(3 + secrets.randbelow(60) for _ in range(5))
    for sizes, count in (*CASES, (hidden, 2), (hidden, 3), (hidden, 5)):
        with bounded(5.0):
            shards = _shards(answer(list(sizes), count), count)
        if found := uneven(shards, sizes, count):
            where = f"Variables of {', '.join(map(str, sizes))} numbers on {count} ps."
            return Verdict(task, "not yet", f"{where} {found[0]}", found[1])
    shown = None
    some = [{"workers": 2, "ps": count} for count in (2, 3, 5)]
    for done in ended(carry_out(answer, shard_role, list(hidden), worlds=some)):
        shown, count = shown or done.run.trace, done.run.spec.ps
        held = [m.value for m in done.run.trace.all(Metric, name="parameters") if "ps" in m.task]
        most = 8 * -(-sum(hidden) // count)
        if len(held) != count or max(held) > most:
            text = f"{count} ps hold {held} bytes; none should hold more than {most}."
            return Verdict(task, "not yet", text, "Does the function return the same each time?")
        if not all(value["whole"] for value in done.values[:2]):
            raise Unusable("The workers pulled all pieces, and they do not make up the variables.")
    text = (
        f"Variables of {', '.join(map(str, hidden))} numbers, drawn for this check, on 2, 3, 5 ps"
        " processes: each counted its own tensors, and none holds more than its share. Two workers"
        " pulled the pieces and had every number once."
    )
    return Verdict(task, "passed", text, shown=shown)


def shard_role(task: Any, learners: Any, sizes: list[int]) -> dict[str, Any]:
    """A ps holds its pieces; a worker pulls them and puts the variables together."""
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    shards = _shards(learners(list(sizes), task.spec.ps), task.spec.ps)
    model = [torch.arange(size, dtype=torch.float64) + 1000 * v for v, size in enumerate(sizes)]
    if task.job == "ps":
        mine = [model[v][first:end].clone() for v, first, end in shards[task.index]]
        task.metric("parameters", sum(each.nbytes for each in mine), 0, 0)
        with task.phase("read", 0):
            for each in mine:
                for worker in range(task.spec.workers):
                    dist.send(each, worker)
        return {"whole": True}
    task.metric("parameters", sum(each.nbytes for each in model), 0, 0)
    pulled = [torch.zeros_like(each) for each in model]
    with task.phase("read", 0):
        for k, shard in enumerate(shards):
            for v, first, end in shard:
                dist.recv(pulled[v][first:end], task.spec.workers + k)
    servers.await_servers(task)
    return {"whole": all(map(torch.equal, pulled, model))}


def _shards(given: Any, count: int) -> Shards:
    """What came back, as pieces. Raises Unusable if it is something else."""
    form = "Return a list with one list for each ps, of pieces (variable, first, end)."
    if given is None:
        raise Unusable(f"It returns nothing: is `return` missing? {form}")
    try:
        shards = [[(int(v), int(a), int(b)) for v, a, b in shard] for shard in given]
    except (TypeError, ValueError):
        raise Unusable(f"What it returns cannot be read. {form}") from None
    if len(shards) != count:
        raise Unusable(f"It returns {len(shards)} lists for {count} ps. {form}")
    return shards


def uneven(shards: Shards, sizes: Sequence[int], servers: int) -> Complaint | None:
    """What is wrong with shards: each number belongs on one ps, and each ps has its share."""
    held: dict[tuple[int, int], list[int]] = {
        (v, i): [] for v, size in enumerate(sizes) for i in range(size)
    }
    for k, shard in enumerate(shards):
        for v, first, end in shard:
            if not (0 <= v < len(sizes) and 0 <= first < end <= sizes[v]):
                return _stray(k, (v, first, end), sizes)
            for i in range(first, end):
                held[v, i].append(k)
    return (
        _twice(held, shards, servers)
        or _nowhere(held, sizes)
        or _unequal(shards, sizes, servers)
        or _crumbs(shards, sizes, servers)
    )


def _stray(k: int, piece: Piece, sizes: Sequence[int]) -> Complaint:
    v, first, end = piece
    text = f"ps:{k} is given the piece ({v}, {first}, {end})."
    if not 0 <= v < len(sizes):
        return text, f"There is no variable {v}: they count from 0 to {len(sizes) - 1}."
    if first >= end:
        return text, "It is empty: leave out pieces of no numbers."
    return text, (
        f"Variable {v} has {sizes[v]} numbers, 0 to {sizes[v] - 1}. Are these places in the long"
        " vector? Count from the beginning of the variable."
    )


def _twice(
    held: dict[tuple[int, int], list[int]], shards: Shards, servers: int
) -> Complaint | None:
    double = next((where for where, by in held.items() if len(by) > 1), None)
    if double is None:
        return None
    v, i = double
    text = f"Number {i} of variable {v} is on {', '.join(f'ps:{k}' for k in held[double])}."
    if servers > 1 and all(len(set(by)) == servers for by in held.values()):
        return text, "Every ps holds everything: a full replica, and nothing is divided."
    return (
        text,
        "`end` is the first number that is no longer in the piece, as in range(first, end).",
    )


def _nowhere(held: dict[tuple[int, int], list[int]], sizes: Sequence[int]) -> Complaint | None:
    lost = [where for where, by in held.items() if not by]
    if not lost:
        return None
    v, i = lost[0]
    text = f"Number {i} of variable {v} is on no ps; {len(lost)} of {sum(sizes)} are on none."
    if set(lost) == set(list(held)[-len(lost) :]):
        return text, "The remainder of the division is dropped. Some shards need one number more."
    return text, (
        "All shards together must be all variables. `end` is the first number that is no longer in"
        " the piece, as in range(first, end)."
    )


def _unequal(shards: Shards, sizes: Sequence[int], servers: int) -> Complaint | None:
    holds = [sum(end - first for _, first, end in shard) for shard in shards]
    share = -(-sum(sizes) // servers)
    if max(holds) <= share:
        return None
    most = holds.index(max(holds))
    text = f"ps:{most} holds {max(holds)} of {sum(sizes)} numbers; {share} is its share."
    if sum(map(bool, holds)) == 1:
        return text, "One ps holds everything, and its link carries everything."
    pieces = [piece for shard in shards for piece in shard]
    if all((first, end) == (0, sizes[v]) for v, first, end in pieces):
        return text, "Whole variables are handed out. The largest has to be cut."
    if max(holds) - share < servers and most == servers - 1 and min(holds) == sum(sizes) // servers:
        return text, "The last ps gets all of the remainder. Give it out, one number each."
    return text, "Piece k of p goes from k * total // p to (k + 1) * total // p of the long vector."


def _crumbs(shards: Shards, sizes: Sequence[int], servers: int) -> Complaint | None:
    pieces, enough = sum(map(len, shards)), len(sizes) + servers - 1
    if pieces <= enough:
        return None
    return (
        f"The shares are equal, in {pieces} pieces; {enough} are enough.",
        "Each piece is a message in every step. Neighbours belong in one piece, and a variable is"
        " cut only where a share ends.",
    )


SHARDS = ExerciseTask(
    name="shards",
    answer="my_shards",
    hints=SHARDS_HINTS,
    judge=judge_shards,
    section="08_parameter_server#Cut the parameters: several ps",
)

TASKS = (SYNC, ASYNC, SHARDS)
