"""Exercise 08, the task without processes: wrong ways to cut variables, each told by its name."""

from __future__ import annotations

from typing import Any

from tests.answers import Answers

ANSWERS = Answers("08_parameter_server", "exercise_08_unit")
wrong = ANSWERS.wrong


def cut(sizes: list[int], cuts: list[int]) -> list[Any]:
    """The variables end to end, cut at these places."""
    shards = []
    for begin, stop in zip([0, *cuts], [*cuts, sum(sizes)], strict=True):
        at, mine = 0, []
        for v, size in enumerate(sizes):
            piece = (v, max(begin, at) - at, min(stop, at + size) - at)
            mine += [piece] if piece[1] < piece[2] else []
            at += size
        shards.append(mine)
    return shards


def even(sizes: list[int], servers: int) -> list[Any]:
    return cut(sizes, [k * sum(sizes) // servers for k in range(1, servers)])


@wrong("shards")
def in_turn(sizes: list[int], servers: int) -> Any:
    return [[(v, 0, sizes[v]) for v in range(k, len(sizes), servers)] for k in range(servers)]


@wrong("shards")
def replicas(sizes: list[int], servers: int) -> Any:
    return [[(v, 0, size) for v, size in enumerate(sizes)]] * servers


@wrong("shards")
def all_on_one(sizes: list[int], servers: int) -> Any:
    return [[(v, 0, size) for v, size in enumerate(sizes)], *([] for _ in range(servers - 1))]


@wrong("shards")
def rest_to_the_last(sizes: list[int], servers: int) -> Any:
    return cut(sizes, [k * (sum(sizes) // servers) for k in range(1, servers)])


@wrong("shards")
def rest_dropped(sizes: list[int], servers: int) -> Any:
    share = sum(sizes) // servers
    return cut(sizes, [k * share for k in range(1, servers + 1)])[:servers]


@wrong("shards")
def one_too_many(sizes: list[int], servers: int) -> Any:
    return [[(v, a, min(b + 1, sizes[v])) for v, a, b in shard] for shard in even(sizes, servers)]


@wrong("shards")
def places_in_the_vector(sizes: list[int], servers: int) -> Any:
    at = [sum(sizes[:v]) for v in range(len(sizes))]
    return [[(v, a + at[v], b + at[v]) for v, a, b in shard] for shard in even(sizes, servers)]


@wrong("shards")
def dealt_like_cards(sizes: list[int], servers: int) -> Any:
    places = [(v, i, i + 1) for v, size in enumerate(sizes) for i in range(size)]
    return [places[k::servers] for k in range(servers)]


@wrong("shards")
def each_by_itself(sizes: list[int], servers: int) -> Any:
    ends = [[-(-k * size // servers) for k in range(servers + 1)] for size in sizes]
    return [
        [(v, e[k], e[k + 1]) for v, e in enumerate(ends) if e[k] < e[k + 1]] for k in range(servers)
    ]


@wrong("shards")
def empty_pieces(sizes: list[int], servers: int) -> Any:
    return [[*shard, (0, 0, 0)] for shard in even(sizes, servers)]


@wrong("shards")
def nothing(sizes: list[int], servers: int) -> None:
    even(sizes, servers)


@wrong("shards")
def without_variables(sizes: list[int], servers: int) -> Any:
    return [[(a, b) for _, a, b in shard] for shard in even(sizes, servers)]


@wrong("shards")
def endless(sizes: list[int], servers: int) -> Any:
    while True:
        pass


test_a_wrong_answer_is_rejected_in_words_that_name_its_mistake = ANSWERS.rejected()
test_each_task_has_wrong_answers_here_that_are_told_apart = ANSWERS.enough(8, 0, "shards")
