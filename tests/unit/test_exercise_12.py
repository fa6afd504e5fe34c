"""Exercise 12: orders of work in a pipeline, and the softmax from blocks; each mistake is told by
its name.
"""

from __future__ import annotations

from typing import Any

from tests.answers import Answers

ANSWERS = Answers("12_models_in_pieces", "exercise_12", varies=True)
wrong, right = ANSWERS.wrong, ANSWERS.right


def all_first(p: int, m: int) -> Any:
    return [[("F", i) for i in range(m)] + [("B", i) for i in range(m)] for _ in range(p)]


def alternating(p: int, m: int, ahead: Any = None) -> Any:
    orders = []
    for s in range(p):
        k = min(p - s - 1 if ahead is None else ahead(s), m)
        order = [("F", i) for i in range(k)]
        for i in range(m - k):
            order += [("F", k + i), ("B", i)]
        orders.append(order + [("B", i) for i in range(m - k, m)])
    return orders


# --- gpipe ---


@right("gpipe")
def the_last_one_backward_first(p: int, m: int) -> Any:
    return [[("F", i) for i in range(m)] + [("B", i) for i in range(m)[::-1]] for _ in range(p)]


@right("gpipe")
def as_generators_of_tuples(p: int, m: int) -> Any:
    return (tuple((kind, i) for kind in "FB" for i in range(m)) for _ in range(p))


@right("gpipe")
def by_slots(p: int, m: int) -> Any:
    """Fills a grid of slots, and reads the stages off it."""
    grid: dict[tuple[int, int], tuple[str, int]] = {}
    for s in range(p):
        for i in range(m):
            grid[s, s + i] = "F", i
            grid[s, 2 * (m + p - 1) - 1 - s - i] = "B", i
    return [[grid[s, t] for t in range(2 * (m + p - 1)) if (s, t) in grid] for s in range(p)]


@wrong("gpipe")
def one_after_the_other(p: int, m: int) -> Any:
    return [[(kind, i) for i in range(m) for kind in "FB"] for _ in range(p)]


@wrong("gpipe")
def one_f_one_b_here(p: int, m: int) -> Any:
    return alternating(p, m)


@wrong("gpipe")
def forward_only(p: int, m: int) -> Any:
    return [[("F", i) for i in range(m)] for _ in range(p)]


@wrong("gpipe")
def counts_from_one(p: int, m: int) -> Any:
    return [[(kind, i) for kind in "FB" for i in range(1, m + 1)] for _ in range(p)]


@wrong("gpipe")
def one_list(p: int, m: int) -> Any:
    return [(kind, i) for kind in "FB" for i in range(m)]


@wrong("gpipe")
def a_list_for_each_microbatch(p: int, m: int) -> Any:
    return [[("F", i), ("B", i)] for i in range(m)]


@wrong("gpipe")
def backward_first(p: int, m: int) -> Any:
    return [[(kind, i) for kind in "BF" for i in range(m)] for _ in range(p)]


@wrong("gpipe")
def another_order_on_the_last_stage(p: int, m: int) -> Any:
    given = all_first(p, m)
    given[-1] = [("F", i) for i in range(m)[::-1]] + [("B", i) for i in range(m)]
    given[0] = [("F", i) for i in range(m)] + [("B", i) for i in range(m)[::-1]]
    return given


@wrong("gpipe")
def every_pass_twice(p: int, m: int) -> Any:
    return [stage + stage for stage in all_first(p, m)]


@wrong("gpipe")
def returns_nothing(p: int, m: int) -> Any:
    all_first(p, m)


# --- one_f_one_b ---


@right("one_f_one_b")
def by_counting_what_is_kept(p: int, m: int) -> Any:
    """Goes forward as long as there is room, else backward."""
    orders = []
    for s in range(p):
        order: list[tuple[str, int]] = []
        forward = backward = 0
        while backward < m:
            if forward < m and forward - backward < p - s:
                order.append(("F", forward))
                forward += 1
            else:
                order.append(("B", backward))
                backward += 1
        orders.append(order)
    return orders


@right("one_f_one_b")
def recursively(p: int, m: int) -> Any:
    """A stage does what the one behind it does, with one more F ahead."""
    if p == 1:
        return [[(kind, i) for i in range(m) for kind in "FB"]]
    return [alternating(p, m)[0], *recursively(p - 1, m)]


@right("one_f_one_b")
def as_arrays(p: int, m: int) -> Any:
    import numpy as np

    return [[(kind, np.int64(i)) for kind, i in stage] for stage in alternating(p, m)]


@wrong("one_f_one_b")
def gpipe_here(p: int, m: int) -> Any:
    return all_first(p, m)


@wrong("one_f_one_b")
def one_ahead_too_few(p: int, m: int) -> Any:
    return alternating(p, m, lambda s: max(0, p - s - 2))


@wrong("one_f_one_b")
def one_ahead_too_many(p: int, m: int) -> Any:
    return alternating(p, m, lambda s: p - s)


@wrong("one_f_one_b")
def the_same_ahead_everywhere(p: int, m: int) -> Any:
    return alternating(p, m, lambda s: p - 1)


@wrong("one_f_one_b")
def stages_the_other_way_round(p: int, m: int) -> Any:
    return alternating(p, m)[::-1]


@wrong("one_f_one_b")
def nothing_ahead(p: int, m: int) -> Any:
    return alternating(p, m, lambda s: 0)


@wrong("one_f_one_b", "counts from one")
def numbers_from_one(p: int, m: int) -> Any:
    return [[(kind, i + 1) for kind, i in stage] for stage in alternating(p, m)]


@wrong("one_f_one_b")
def without_the_end(p: int, m: int) -> Any:
    return [[each for each in stage if each != ("B", m - 1)] for stage in alternating(p, m)]


@wrong("one_f_one_b")
def more_ahead_than_there_are(p: int, m: int) -> Any:
    return [[("F", i) for i in range(p - s - 1)] + stage for s, stage in enumerate(all_first(p, m))]


@wrong("one_f_one_b")
def backward_by_the_same_number(p: int, m: int) -> Any:
    """Alternates with the B of the microbatch that has just gone forward."""
    orders = []
    for s in range(p):
        k = min(p - s - 1, m)
        order = [("F", i) for i in range(k)]
        order += [(kind, i) for i in range(k, m) for kind in "FB"]
        orders.append(order + [("B", i) for i in range(k)])
    return orders


# --- merge ---


def added(top: Any, weights: Any, mixed: Any, scores: Any, values: Any, change: str = "") -> Any:
    """What the solution does, to be changed."""
    import torch

    above = torch.maximum(top, scores.amax(1, keepdim=True))
    safe = torch.where(torch.isinf(above), 0.0, above)
    if change == "nan":
        safe = above
    old, new = torch.exp(top - safe), torch.exp(scores - safe)
    if change == "unscaled":
        old = torch.ones_like(old)
    total = weights * (1 if change == "weights" else old) + new.sum(1, keepdim=True)
    both = mixed * (1 if change == "mixed" else old) + new @ values
    return (top if change == "top" else above), total, both


@right("merge")
def by_log_sum_exp(top: Any, weights: Any, mixed: Any, scores: Any, values: Any) -> Any:
    """Joins what was so far to the block, as one more key."""
    import torch

    above = torch.cat([top, scores], 1).amax(1, keepdim=True)
    safe = torch.nan_to_num(above, neginf=0.0)
    share = torch.exp(torch.cat([top, scores], 1) - safe)
    old, new = share[:, :1], share[:, 1:]
    return (
        above,
        old * weights + new.sum(1)[:, None],
        old * mixed + torch.einsum("qk,ks->qs", new, values),
    )


@right("merge")
def key_by_key(top: Any, weights: Any, mixed: Any, scores: Any, values: Any) -> Any:
    for k in range(scores.shape[1]):
        top, weights, mixed = added(top, weights, mixed, scores[:, k : k + 1], values[k : k + 1])
    return top, weights, mixed


@right("merge")
def as_a_list(*given: Any) -> Any:
    return list(added(*given))


@wrong("merge")
def without_a_top(top: Any, weights: Any, mixed: Any, scores: Any, values: Any) -> Any:
    import torch

    new = torch.exp(scores)
    top = torch.maximum(top, scores.amax(1, keepdim=True))
    return top, weights + new.sum(1, keepdim=True), mixed + new @ values


@wrong("merge")
def old_not_scaled(*given: Any) -> Any:
    return added(*given, change="unscaled")


@wrong("merge")
def only_mixed_is_scaled(*given: Any) -> Any:
    return added(*given, change="weights")


@wrong("merge")
def only_weights_are_scaled(*given: Any) -> Any:
    return added(*given, change="mixed")


@wrong("merge")
def top_stays(*given: Any) -> Any:
    return added(*given, change="top")


@wrong("merge")
def not_a_number(*given: Any) -> Any:
    return added(*given, change="nan")


@wrong("merge")
def mean_of_softmaxes(top: Any, weights: Any, mixed: Any, scores: Any, values: Any) -> Any:
    import torch

    top = torch.maximum(top, scores.amax(1, keepdim=True))
    return top, weights + 1, mixed + torch.softmax(scores, 1) @ values


@wrong("merge")
def this_block_only(top: Any, weights: Any, mixed: Any, scores: Any, values: Any) -> Any:
    return added(top, weights * 0, mixed * 0, scores, values)


@wrong("merge")
def top_of_this_block(top: Any, weights: Any, mixed: Any, scores: Any, values: Any) -> Any:
    import torch

    above = scores.amax(1, keepdim=True)
    safe = torch.nan_to_num(above, neginf=0.0)
    old, new = torch.exp(top - safe), torch.exp(scores - safe)
    return above, weights * old + new.sum(1, keepdim=True), mixed * old + new @ values


@wrong("merge")
def divides_at_once(*given: Any) -> Any:
    top, weights, mixed = added(*given)
    return top, weights, mixed / weights


@wrong("merge")
def in_place(top: Any, weights: Any, mixed: Any, scores: Any, values: Any) -> Any:
    above, total, both = added(top, weights, mixed, scores, values)
    weights.copy_(total)
    mixed.copy_(both)
    return above, weights, mixed


@wrong("merge")
def returns_the_result(*given: Any) -> Any:
    _, weights, mixed = added(*given)
    return mixed / weights


test_wrong_answers_are_rejected_in_words = ANSWERS.rejected()
test_right_answers_pass = ANSWERS.accepted()
test_there_are_enough_of_each = ANSWERS.enough(8, 3, "gpipe", "one_f_one_b", "merge")
