"""Exercise 06, the tasks whose wrong answers need no processes, each told by its name."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

from tests.answers import Answers

ANSWERS = Answers("06_overlap", "exercise_06_unit", varies=True)
wrong, right = ANSWERS.wrong, ANSWERS.right


def filled(sizes: list[int], most: int, order: Any = None, late: bool = False) -> list[list[int]]:
    """Buckets filled one after the other in an order, by default from the last to the first."""
    buckets: list[list[int]] = []
    for i in reversed(range(len(sizes))) if order is None else order:
        held = sum(sizes[j] for j in buckets[-1]) if buckets else most
        if buckets and (held < most if late else held + sizes[i] <= most):
            buckets[-1].append(i)
        else:
            buckets.append([i])
    return buckets


@right("buckets")
def with_a_helper(sizes: list[int], most: int) -> Any:
    return filled(sizes, most)


@right("buckets")
def by_slices(sizes: list[int], most: int) -> Any:
    """Walks from the end, and cuts where the sum is too large."""
    found, end = [], len(sizes)
    while end:
        begin = end - 1
        while begin and sum(sizes[begin - 1 : end]) <= most:
            begin -= 1
        found.append(range(begin, end)[::-1])
        end = begin
    return found


@right("buckets")
def one_by_one(sizes: list[int], most: int) -> Any:
    full: list[tuple[int, ...]] = []
    now: tuple[int, ...] = ()
    for i, size in list(enumerate(sizes))[::-1]:
        if now and sum(sizes[j] for j in now) + size > most:
            full.append(now)
            now = ()
        now += (i,)
    return [*full, now]


@wrong("buckets")
def forwards(sizes: list[int], most: int) -> Any:
    return filled(sizes, most, range(len(sizes)))


@wrong("buckets")
def without_the_last(sizes: list[int], most: int) -> Any:
    return filled(sizes, most)[:-1]


@wrong("buckets")
def closed_late(sizes: list[int], most: int) -> Any:
    return filled(sizes, most, late=True)


@wrong("buckets")
def each_alone(sizes: list[int], most: int) -> Any:
    return [[i] for i in reversed(range(len(sizes)))]


@wrong("buckets")
def begins_empty(sizes: list[int], most: int) -> Any:
    return [[], *filled(sizes, most)]


@wrong("buckets")
def empty_before_a_large_one(sizes: list[int], most: int) -> Any:
    buckets, bucket = list[list[int]](), list[int]()
    for i in reversed(range(len(sizes))):
        if sum(sizes[k] for k in bucket) + sizes[i] > most:
            buckets.append(bucket)
            bucket = []
        bucket.append(i)
    return [*buckets, bucket]


@wrong("buckets")
def sizes_returned(sizes: list[int], most: int) -> Any:
    return [[*range(len(sizes)), sizes[0] + 99]]


@wrong("buckets")
def overlapping(sizes: list[int], most: int) -> Any:
    return [*filled(sizes, most), [0]]


@wrong("buckets")
def even_ones_first(sizes: list[int], most: int) -> Any:
    return filled(sizes, most, sorted(range(len(sizes)), key=lambda i: (i % 2, -i)))


@wrong("buckets")
def nothing(sizes: list[int], most: int) -> None:
    filled(sizes, most)


# --- best_size ---

Measure = Callable[[float], float]


def by(number: Callable[..., float], measure: Measure, sizes: Any, times: int = 7) -> float:
    """The size whose steps have the smallest `number`."""
    return min(sizes, key=lambda size: number([measure(size) for _ in range(times)]))


@wrong("best_size")
def the_slowest(measure: Measure, sizes: list[float]) -> float:
    return max(sizes, key=lambda size: min(measure(size) for _ in range(5)))


@wrong("best_size")
def measured_once(measure: Measure, sizes: list[float]) -> float:
    return by(min, measure, sizes, 1)


@wrong("best_size")
def the_ends(measure: Measure, sizes: list[float]) -> float:
    return by(min, measure, (sizes[0], sizes[-1]))


@wrong("best_size")
def by_the_slowest_step(measure: Measure, sizes: list[float]) -> float:
    return by(max, measure, sizes, 2)


@wrong("best_size")
def the_middle(measure: Measure, sizes: list[float]) -> float:
    return sizes[len(sizes) // 2]


@wrong("best_size")
def its_time(measure: Measure, sizes: list[float]) -> float:
    return min(measure(size) for size in sizes)


@wrong("best_size")
def its_place(measure: Measure, sizes: list[float]) -> int:
    return sizes.index(by(min, measure, sizes))


@wrong("best_size")
def no_size(measure: Measure, sizes: list[float]) -> None:
    by(min, measure, sizes)


@wrong("best_size")
def for_ever(measure: Measure, sizes: list[float]) -> float:
    return by(min, measure, sizes, 1000)


@wrong("best_size")
def between(measure: Measure, sizes: list[float]) -> float:
    return by(min, measure, [(a + b) / 2 for a, b in itertools.pairwise(sizes)])


test_a_wrong_answer_is_rejected_in_words_that_name_its_mistake = ANSWERS.rejected()
test_a_right_answer_that_is_written_in_another_way_is_accepted = ANSWERS.accepted()
test_there_are_answers_that_are_told_apart = ANSWERS.enough(8, 3, "buckets")
test_wrong_choices_are_enough = ANSWERS.enough(8, 0, "best_size")
