"""Exercise 08 on real processes: wrong answers are named by what the workers received, and right
ones may be written in other ways.
"""

from __future__ import annotations

import threading
from typing import Any

import torch
import torch.distributed as dist

from tests.answers import Answers

ANSWERS = Answers("08_parameter_server", "exercise_08", varies=True, sample=4)
wrong, right = ANSWERS.wrong, ANSWERS.right


def to_all(values: Any, workers: int) -> None:
    for worker in range(workers):
        dist.send(values, worker)


def received(values: Any, workers: int) -> Any:
    """The sum of a gradient from each worker."""
    total = torch.zeros_like(values)
    for worker in range(workers):
        total += came(values, worker)
    return total


def came(values: Any, worker: int) -> Any:
    buffer = torch.zeros_like(values)
    dist.recv(buffer, worker)
    return buffer


def sync(update: Any, record: Any = None) -> Any:
    """A synchronous ps with another update: update(values, sum, rate, workers) -> values."""

    def ps(task: Any, values: Any, rate: float, workers: int, steps: int) -> Any:
        to_all(values, workers)
        for step in range(steps):
            values = update(values, received(values, workers), rate, workers)
            (record or task.update)(step, "all", "cpu", step, step + 1, gradients=workers)
            to_all(values, workers)
        return values

    return ps


# --- sync_ps: right ones ---


@right("sync_ps")
def as_they_come(task: Any, values: Any, rate: float, workers: int, steps: int) -> Any:
    """Takes the gradients in the order in which they come, each with its share of the mean."""
    buffer, at = torch.empty_like(values), values.clone()
    to_all(at, workers)
    for step in range(steps):
        new = at.clone()
        for _ in range(workers):
            dist.recv(buffer)
            new.sub_(buffer, alpha=rate / workers)
        at = new
        task.update(step, "all", "cpu", step, step + 1, gradients=workers)
        for worker in reversed(range(workers)):
            dist.send(at, worker)
    return at


@right("sync_ps")
def in_rows(task: Any, values: Any, rate: float, workers: int, steps: int) -> Any:
    """Keeps a row for each worker, and receives them all at once."""
    rows = torch.zeros(workers, len(values), dtype=values.dtype)
    for step in range(steps + 1):
        for each in [dist.isend(values, worker) for worker in range(workers)]:
            each.wait()
        if step == steps:
            return values
        for each in [dist.irecv(rows[worker], worker) for worker in range(workers)]:
            each.wait()
        values = values - rate * rows.mean(0)
        task.update(step, "all", "cpu", step, step + 1, gradients=workers)


def subtracted(values: Any, total: Any, rate: float, workers: int) -> Any:
    return values - total * (rate / workers)


right("sync_ps")(sync(subtracted))

# --- sync_ps: wrong ones ---

wrong("sync_ps", "adds up")(sync(lambda v, t, r, w: v - r * t))
wrong("sync_ps", "divides by 3")(sync(lambda v, t, r, w: v - r * t / dist.get_world_size()))
wrong("sync_ps", "adds")(sync(lambda v, t, r, w: v + r * t / w))
wrong("sync_ps", "no rate")(sync(lambda v, t, r, w: v - t / w))
wrong("sync_ps", "never updates")(sync(lambda v, t, r, w: v))
wrong("sync_ps", "records none")(sync(subtracted, record=lambda *_, **__: None))


@wrong("sync_ps")
def waits_first(task: Any, values: Any, rate: float, workers: int, steps: int) -> Any:
    received(values, workers)
    to_all(values, workers)
    return values


@wrong("sync_ps")
def one_by_one(task: Any, values: Any, rate: float, workers: int, steps: int) -> Any:
    to_all(values, workers)
    for _ in range(steps):
        for worker in range(workers):
            values = values - rate / workers * came(values, worker)
            dist.send(values, worker)
    return values


@wrong("sync_ps")
def last_one_only(task: Any, values: Any, rate: float, workers: int, steps: int) -> Any:
    to_all(values, workers)
    for _ in range(steps):
        for worker in range(workers):
            total = came(values, worker)
        values = values - rate * total / workers
        to_all(values, workers)
    return values


@wrong("sync_ps")
def never_empty(task: Any, values: Any, rate: float, workers: int, steps: int) -> Any:
    total = torch.zeros_like(values)
    to_all(values, workers)
    for _ in range(steps):
        total += received(values, workers)
        values = values - rate * total / workers
        to_all(values, workers)
    return values


@wrong("sync_ps")
def no_last_answer(task: Any, values: Any, rate: float, workers: int, steps: int) -> Any:
    for _ in range(steps):
        to_all(values, workers)
        values = subtracted(values, received(values, workers), rate, workers)
    return values


@wrong("sync_ps")
def no_return(task: Any, values: Any, rate: float, workers: int, steps: int) -> None:
    sync(subtracted)(task, values, rate, workers, steps)


@wrong("sync_ps")
def leaves(task: Any, values: Any, rate: float, workers: int, steps: int) -> None:
    raise SystemExit(1)


@wrong("sync_ps")
def endless(task: Any, values: Any, rate: float, workers: int, steps: int) -> None:
    while True:
        pass


# --- async_ps ---


def asynchronous(
    update: Any = None, read: Any = None, written: int = 0, answer: Any = None, total: int = 0
) -> Any:
    """An asynchronous ps with another part: see how each is used."""

    def ps(task: Any, values: Any, rate: float, workers: int, steps: int) -> Any:
        buffer, sent = torch.empty_like(values), dict.fromkeys(range(workers), 0)
        to_all(values, workers)
        for version in range(1, workers * steps + 1 + total):
            source = dist.recv(buffer)
            old = values
            values = (update or plainly)(values, buffer, rate, workers)
            seen = (read or (lambda last, now: last))(sent[source], version - 1)
            task.update(version, "all", "cpu", seen, version + written)
            dist.send(old if answer else values, source)
            sent[source] = version
        return values

    return ps


def plainly(values: Any, gradient: Any, rate: float, workers: int) -> Any:
    return values - rate * gradient


right("async_ps")(asynchronous())


@right("async_ps")
def while_any_is_left(task: Any, values: Any, rate: float, workers: int, steps: int) -> Any:
    """Counts what each worker has still to send, and answers without blocking."""
    left, version = [steps] * workers, 0
    read, pending = [0] * workers, [dist.isend(values.clone(), k) for k in range(workers)]
    buffer = torch.zeros_like(values)
    while sum(left):
        k = dist.recv(buffer)
        left[k] -= 1
        values.add_(buffer, alpha=-rate)
        version += 1
        task.update(steps - left[k], "all", "cpu", read[k], version, workers=f"worker:{k}")
        pending.append(dist.isend(values.clone(), k))
        read[k] = version
    for each in pending:
        each.wait()
    return values


@right("async_ps")
def one_receiver_for_each(task: Any, values: Any, rate: float, workers: int, steps: int) -> Any:
    """A receive for each worker stands open; whichever is complete is applied."""
    buffers = [torch.zeros_like(values) for _ in range(workers)]
    to_all(values, workers)
    read, version = [0] * workers, 0

    lock = threading.Lock()

    def serve(k: int) -> None:
        nonlocal version
        for _ in range(steps):
            dist.recv(buffers[k], k)
            with lock:
                values.sub_(rate * buffers[k])
                version += 1
                task.update(version, "all", "cpu", read[k], version)
                dist.send(values, k)
                read[k] = version

    threads = [threading.Thread(target=serve, args=(k,)) for k in range(workers)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    return values


wrong("async_ps", "divides")(asynchronous(lambda v, g, r, w: v - r * g / w))
wrong("async_ps", "no rate")(asynchronous(lambda v, g, r, w: v - g))
wrong("async_ps", "adds")(asynchronous(lambda v, g, r, w: v + r * g))
wrong("async_ps", "answers first")(asynchronous(answer=True))
wrong("async_ps", "reads the newest")(asynchronous(read=lambda last, now: now))
wrong("async_ps", "writes one version")(asynchronous(written=1))
wrong("async_ps", "reads the first")(asynchronous(read=lambda last, now: 0))
wrong("async_ps", "receives too much")(asynchronous(total=1))
wrong("async_ps", "returns early")(asynchronous(total=-3))


@wrong("async_ps")
def in_turn(task: Any, values: Any, rate: float, workers: int, steps: int) -> Any:
    to_all(values, workers)
    for _ in range(steps):
        for worker in range(workers):
            values = values - rate * came(values, worker)
            dist.send(values, worker)
    return values


# --- shards: right ones ---


@right("shards")
def by_share(sizes: Any, servers: int) -> Any:
    """Fills one ps after the other; the first ones hold one number more."""
    total, shards = sum(sizes), []
    left = [(v, 0, size) for v, size in enumerate(sizes)]
    for k in range(servers):
        room, mine = total // servers + (k < total % servers), []
        while room and left:
            v, first, end = left.pop(0)
            take = min(room, end - first)
            mine.append((v, first, first + take))
            room -= take
            if first + take < end:
                left.insert(0, (v, first + take, end))
        shards.append(mine)
    return shards


@right("shards")
def largest_first(sizes: Any, servers: int) -> Any:
    """The same with the variables in another order, and tuples."""
    order = sorted(range(len(sizes)), key=lambda v: -sizes[v])
    found = by_share([sizes[v] for v in order], servers)
    return tuple(tuple((order[v], a, b) for v, a, b in shard) for shard in found)


@right("shards")
def from_the_end(sizes: Any, servers: int) -> Any:
    """The last ps is given the first share."""
    return by_share(sizes, servers)[::-1]


test_a_wrong_answer_is_rejected_in_words_that_name_its_mistake = ANSWERS.rejected()
test_a_right_answer_that_is_written_in_another_way_is_accepted = ANSWERS.accepted()
test_each_task_has_answers_here_that_are_told_apart = ANSWERS.enough(8, 3, "sync_ps", "async_ps")
test_shards_has_right_answers = ANSWERS.enough(0, 3, "shards")
