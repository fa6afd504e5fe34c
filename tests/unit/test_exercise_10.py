"""Exercise 10, the tasks without processes: rates, gates and late gradients, each mistake told by
its name.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from typing import Any

import numpy as np

from tests.answers import Answers

ANSWERS = Answers("10_in_between", "exercise_10_unit", varies=True)
wrong, right = ANSWERS.wrong, ANSWERS.right
Arrivals = list[tuple[int, int, Any]]

# --- rate_for ---


@right("rate_for")
def by_cases(rate: float, staleness: int) -> float:
    if staleness <= 1:
        return rate
    return rate / staleness


@right("rate_for")
def by_the_smaller_factor(rate: float, staleness: int) -> Any:
    return np.float64(rate) * min(1.0, 1 / (staleness or 1))


@right("rate_for")
def of_the_truth(rate: float, staleness: int) -> float:
    return rate * (staleness or 1) ** -1


@wrong("rate_for")
def divides_by_zero(rate: float, staleness: int) -> float:
    return rate / staleness


@wrong("rate_for")
def divides_by_one_more(rate: float, staleness: int) -> float:
    return rate / (1 + staleness)


@wrong("rate_for")
def unchanged(rate: float, staleness: int) -> float:
    return rate


@wrong("rate_for")
def multiplies(rate: float, staleness: int) -> float:
    return rate * max(1, staleness)


@wrong("rate_for")
def squared(rate: float, staleness: int) -> float:
    return rate / max(1, staleness) ** 2


@wrong("rate_for")
def by_the_root(rate: float, staleness: int) -> float:
    return rate / math.sqrt(max(1, staleness))


@wrong("rate_for")
def in_whole_numbers(rate: float, staleness: int) -> float:
    return rate // max(1, staleness)


@wrong("rate_for")
def halves_each_time(rate: float, staleness: int) -> float:
    return rate / 2 ** max(0, staleness - 1)


@wrong("rate_for")
def zero_when_fresh(rate: float, staleness: int) -> float:
    return rate / staleness if staleness else 0.0


@wrong("rate_for")
def without_the_rate(rate: float, staleness: int) -> float:
    return 1 / max(1, staleness)


@wrong("rate_for")
def subtracts(rate: float, staleness: int) -> float:
    return rate - staleness if staleness > 1 else rate


@wrong("rate_for")
def prints(rate: float, staleness: int) -> None:
    print(rate / max(1, staleness))


@wrong("rate_for")
def as_text(rate: float, staleness: int) -> str:
    return f"{rate / max(1, staleness)}"


# --- may_begin ---


@right("may_begin")
def asks_everybody(clock: int, clocks: list[int], bound: int) -> bool:
    return all(clock <= other + bound for other in clocks)


@right("may_begin")
def sorts(clock: int, clocks: list[int], bound: int) -> bool:
    slowest, *_ = sorted(clocks)
    return not clock > slowest + bound


@right("may_begin")
def of_the_others(clock: int, clocks: list[int], bound: int) -> Any:
    """In numpy, without its own number."""
    others = np.array(clocks)[np.arange(len(clocks)) != clocks.index(clock)]
    return (clock - others <= bound).all()


@wrong("may_begin")
def strictly_less(clock: int, clocks: list[int], bound: int) -> bool:
    return clock - min(clocks) < bound


@wrong("may_begin")
def one_step_more(clock: int, clocks: list[int], bound: int) -> bool:
    return clock - min(clocks) <= bound + 1


@wrong("may_begin")
def always(clock: int, clocks: list[int], bound: int) -> bool:
    return True


@wrong("may_begin")
def only_the_slowest(clock: int, clocks: list[int], bound: int) -> bool:
    return clock == min(clocks)


@wrong("may_begin")
def behind_the_fastest(clock: int, clocks: list[int], bound: int) -> bool:
    return max(clocks) - clock <= bound


@wrong("may_begin")
def ahead_of_the_mean(clock: int, clocks: list[int], bound: int) -> bool:
    return clock - sum(clocks) / len(clocks) <= bound


@wrong("may_begin")
def all_near_each_other(clock: int, clocks: list[int], bound: int) -> bool:
    return max(clocks) - min(clocks) <= bound


@wrong("may_begin")
def in_either_direction(clock: int, clocks: list[int], bound: int) -> bool:
    return all(abs(clock - other) <= bound for other in clocks)


@wrong("may_begin")
def its_own_steps(clock: int, clocks: list[int], bound: int) -> bool:
    return clock <= bound


@wrong("may_begin")
def the_other_way(clock: int, clocks: list[int], bound: int) -> bool:
    return clock - min(clocks) >= bound


@wrong("may_begin")
def the_lead(clock: int, clocks: list[int], bound: int) -> int:
    return clock - min(clocks)


@wrong("may_begin")
def only_if_it_may(clock: int, clocks: list[int], bound: int) -> Any:
    if clock - min(clocks) <= bound:
        return True


# --- take_first ---


def grouped(arrivals: Arrivals) -> dict[int, list[Any]]:
    steps: dict[int, list[Any]] = {}
    for _, step, gradient in arrivals:
        steps.setdefault(step, []).append(gradient)
    return steps


@right("take_first")
def one_step_at_a_time(arrivals: Arrivals, needed: int) -> Any:
    """As a server does it: the present step, and a sum."""
    now, came, updates, total = 0, 0, [], 0.0
    for _, step, gradient in arrivals:
        if step != now:
            continue
        came, total = came + 1, total + gradient
        if came == needed:
            updates.append(total / needed)
            now, came, total = now + 1, 0, 0.0
    return updates


@right("take_first")
def by_counting(arrivals: Arrivals, needed: int) -> Any:
    seen: Counter[int] = Counter()
    chosen: dict[int, list[Any]] = {}
    for _, step, gradient in arrivals:
        seen[step] += 1
        if seen[step] <= needed:
            chosen.setdefault(step, []).append(gradient)
    return tuple(np.stack(g).mean(0) for g in chosen.values() if len(g) == needed)


@right("take_first")
def sorted_by_step(arrivals: Arrivals, needed: int) -> Any:
    ordered = sorted(arrivals, key=lambda arrival: arrival[1])  # keeps the order within a step
    groups = itertools.groupby(ordered, key=lambda arrival: arrival[1])
    firsts = ([g for _, _, g in group][:needed] for _, group in groups)
    return [np.average(first, axis=0) for first in firsts if len(first) == needed]


@wrong("take_first")
def whatever_comes(arrivals: Arrivals, needed: int) -> Any:
    updates, came = [], []
    for _, _, gradient in arrivals:
        came.append(gradient)
        if len(came) == needed:
            updates.append(np.mean(came, axis=0))
            came = []
    return updates


@wrong("take_first")
def waits_for_all(arrivals: Arrivals, needed: int) -> Any:
    return [np.mean(g, axis=0) for g in grouped(arrivals).values() if len(g) >= needed]


@wrong("take_first")
def takes_the_last(arrivals: Arrivals, needed: int) -> Any:
    return [np.mean(g[-needed:], axis=0) for g in grouped(arrivals).values() if len(g) >= needed]


@wrong("take_first")
def adds(arrivals: Arrivals, needed: int) -> Any:
    return [np.sum(g[:needed], axis=0) for g in grouped(arrivals).values() if len(g) >= needed]


@wrong("take_first")
def divides_by_all_workers(arrivals: Arrivals, needed: int) -> Any:
    workers = len({worker for worker, _, _ in arrivals})
    return [sum(g[:needed]) / workers for g in grouped(arrivals).values() if len(g) >= needed]


@wrong("take_first")
def updates_without_enough(arrivals: Arrivals, needed: int) -> Any:
    return [np.mean(g[:needed], axis=0) for g in grouped(arrivals).values()]


@wrong("take_first")
def a_second_update(arrivals: Arrivals, needed: int) -> Any:
    updates, came = [], dict[int, list[Any]]()
    for _, step, gradient in arrivals:
        came.setdefault(step, []).append(gradient)
        if len(came[step]) == needed:
            updates.append(np.mean(came.pop(step), axis=0))
    return updates


@wrong("take_first")
def never_begins_anew(arrivals: Arrivals, needed: int) -> Any:
    firsts = [g[:needed] for g in grouped(arrivals).values() if len(g) >= needed]
    return [np.mean(np.concatenate(firsts[: i + 1]), axis=0) for i in range(len(firsts))]


@wrong("take_first")
def smallest_workers(arrivals: Arrivals, needed: int) -> Any:
    return sorted_by_step(sorted(arrivals, key=lambda arrival: arrival[0]), needed)


@wrong("take_first")
def the_last_update(arrivals: Arrivals, needed: int) -> Any:
    return sorted_by_step(arrivals, needed)[-1:]


@wrong("take_first")
def into_the_first_gradient(arrivals: Arrivals, needed: int) -> Any:
    updates = []
    for came in grouped(arrivals).values():
        if len(came) >= needed:
            total = came[0]
            for gradient in came[1:needed]:
                total += gradient
            updates.append(total / needed)
    return updates


@wrong("take_first")
def by_step(arrivals: Arrivals, needed: int) -> Any:
    return {step: np.mean(g[:needed], axis=0) for step, g in grouped(arrivals).items()}


@wrong("take_first")
def no_return(arrivals: Arrivals, needed: int) -> None:
    sorted_by_step(arrivals, needed)


WITHOUT_PROCESSES = ("rate_for", "may_begin", "take_first")
test_a_wrong_answer_is_rejected_in_words_that_name_its_mistake = ANSWERS.rejected()
test_a_right_answer_that_is_written_in_another_way_is_accepted = ANSWERS.accepted()
test_there_are_enough_of_each = ANSWERS.enough(8, 3, *WITHOUT_PROCESSES)
