"""The checks of exercise 04: wrong answers that people give, and whether each is told by its
name.
"""

from __future__ import annotations

import base64
import itertools
import re
import sys
import xml.etree.ElementTree as ET
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from course_lib import start
from course_lib.collectives import (
    Schedule,
    Transfer,
    direct,
    halving_doubling,
    hierarchical,
    reduce_to_one,
    ring,
    tree,
)
from course_lib.course import check
from tests.answers import Answers

T = Transfer
Answer = Callable[..., Any]
ANSWERS = Answers("04_allreduce_from_scratch", "exercise_04", sample=4)
wrong = ANSWERS.wrong


def star(workers: int, up: Any, down: Any, **fields: Any) -> Schedule:
    return Schedule("mine", workers, **{"chunks": 1, "rounds": [up, down], **fields})


def gather(workers: int) -> list[Transfer]:
    return [T(r, 0, 0, "reduce") for r in range(1, workers)]


def spread(workers: int) -> list[Transfer]:
    return [T(0, r, 0, "copy") for r in range(1, workers)]


# --- reduce_to_one ---


@wrong("reduce_to_one")
def one_way(workers: int) -> Schedule:
    return star(workers, gather(workers), [])


@wrong("reduce_to_one")
def adds_back(workers: int) -> Schedule:
    return star(workers, gather(workers), [t._replace(op="reduce") for t in spread(workers)])


@wrong("reduce_to_one")
def copies_first(workers: int) -> Schedule:
    return star(workers, [t._replace(op="copy") for t in gather(workers)], spread(workers))


@wrong("reduce_to_one")
def with_rank_0(workers: int) -> Schedule:
    return star(
        workers,
        [T(r, 0, 0, "reduce") for r in range(workers)],
        [T(0, r, 0, "copy") for r in range(workers)],
    )


@wrong("reduce_to_one")
def one_round(workers: int) -> Schedule:
    return Schedule("mine", workers, 1, [gather(workers) + spread(workers)])


@wrong("reduce_to_one")
def four_only(workers: int) -> Schedule:
    return star(workers, gather(4), spread(4))


@wrong("reduce_to_one")
def always_four(workers: int) -> Schedule:
    return star(4, gather(4), spread(4))


@wrong("reduce_to_one")
def without_the_last(workers: int) -> Schedule:
    return star(workers, gather(workers - 1), spread(workers - 1))


@wrong("reduce_to_one")
def back_to_front(workers: int) -> Schedule:
    return star(workers, gather(workers), [T(r, 0, 0, "copy") for r in range(1, workers)])


@wrong("reduce_to_one")
def no_return(workers: int) -> None:
    star(workers, gather(workers), spread(workers))


@wrong("reduce_to_one")
def rounds_only(workers: int) -> Any:
    return [gather(workers), spread(workers)]


@wrong("reduce_to_one")
def chain(workers: int) -> Schedule:
    up = [[T(r, r - 1, 0, "reduce")] for r in reversed(range(1, workers))]
    return Schedule("mine", workers, 1, up + [[T(r, r + 1, 0, "copy")] for r in range(workers - 1)])


@wrong("reduce_to_one")
def everyone_to_everyone(workers: int) -> Schedule:
    return direct(workers)


# --- ring ---


def around(
    p: int,
    first: Any,
    second: Any,
    hops: tuple[int, int] | None = None,
    ops: Any = ("reduce", "copy"),
    n: int | None = None,
) -> Any:
    """A ring to the right: `first(r, i)` and `second(r, i)` are the chunks of its halves, before %
    P.
    """
    before, after = hops or (p - 1, p - 1)
    n = n or p
    half = [[T(r, (r + 1) % n, first(r, i) % n, ops[0]) for r in range(n)] for i in range(before)]
    return half + [
        [T(r, (r + 1) % n, second(r, i) % n, ops[1]) for r in range(n)] for i in range(after)
    ]


def falls(r: int, i: int) -> int:
    return r - i


def falls_later(r: int, i: int) -> int:
    return r + 1 - i


@wrong("ring")
def whole_buffers(workers: int) -> Schedule:
    return Schedule("mine", workers, 1, around(workers, lambda r, i: 0, lambda r, i: 0))


@wrong("ring")
def chain_there_and_around(workers: int) -> Schedule:
    """Right sums, but one rank at a time with everything."""
    up = [[T(r, r + 1, 0, "reduce")] for r in range(workers - 1)]
    return Schedule(
        "mine", workers, 1, up + [[T((r - 1) % workers, r, 0, "copy")] for r in range(workers - 1)]
    )


@wrong("ring")
def half_a_ring(workers: int) -> Schedule:
    return Schedule("mine", workers, workers, around(workers, falls, falls, (workers - 1, 0)))


@wrong("ring")
def adds_all_the_way(workers: int) -> Schedule:
    return Schedule(
        "mine", workers, workers, around(workers, falls, falls_later, ops=("reduce", "reduce"))
    )


@wrong("ring")
def copies_all_the_way(workers: int) -> Schedule:
    return Schedule(
        "mine", workers, workers, around(workers, falls, falls_later, ops=("copy", "copy"))
    )


@wrong("ring")
def off_by_one(workers: int) -> Schedule:
    return Schedule("mine", workers, workers, around(workers, falls, falls))


@wrong("ring")
def chunks_without_modulo(workers: int) -> Schedule:
    right = [(r, (r + 1) % workers) for r in range(workers)]
    ways = [("reduce", falls), ("copy", falls_later)]
    rounds = [
        [T(src, dst, chunk(src, i), op) for src, dst in right]
        for op, chunk in ways
        for i in range(workers - 1)
    ]
    return Schedule("mine", workers, workers, rounds)


@wrong("ring")
def wrong_way_round(workers: int) -> Schedule:
    return Schedule(
        "mine", workers, workers, around(workers, lambda r, i: r + i, lambda r, i: r + 1 + i)
    )


AGAIN = "The ranks send the same chunk again: with 3 workers, rank 0 sends chunk"


@wrong("ring")
def same_chunk_in_every_round(workers: int) -> Schedule:
    return Schedule("mine", workers, workers, around(workers, lambda r, i: r, lambda r, i: r))


@wrong("ring")
def same_chunk_in_each_half(workers: int) -> Schedule:
    return Schedule("mine", workers, workers, around(workers, lambda r, i: r, lambda r, i: r + 1))


@wrong("ring")
def same_chunk_on_the_way_back(workers: int) -> Schedule:
    return Schedule("mine", workers, workers, around(workers, falls, lambda r, i: r + 1))


@wrong("ring")
def without_modulo(workers: int) -> Schedule:
    rounds = [
        [T(r, r + 1, (r - i) % workers, "reduce") for r in range(workers)]
        for i in range(workers - 1)
    ]
    rounds += [
        [T(r, r + 1, (r + 1 - i) % workers, "copy") for r in range(workers)]
        for i in range(workers - 1)
    ]
    return Schedule("mine", workers, workers, rounds)


@wrong("ring")
def ring_of_four(workers: int) -> Schedule:
    return Schedule("mine", workers, max(4, workers), around(4, falls, falls_later))


@wrong("ring")
def one_hop_too_many(workers: int) -> Schedule:
    return Schedule("mine", workers, workers, around(workers, falls, falls, (workers, workers - 1)))


@wrong("ring")
def one_hop_too_few(workers: int) -> Schedule:
    return Schedule(
        "mine",
        workers,
        workers,
        around(workers, falls, falls_later, (workers - 1, min(1, workers - 1))),
    )


@wrong("ring")
def one_chunk_declared(workers: int) -> Schedule:
    return Schedule("mine", workers, 1, around(workers, falls, falls_later))


@wrong("ring")
def one_transfer_a_round(workers: int) -> Schedule:
    return Schedule("mine", workers, workers, [[t] for t in itertools.chain(*ring(workers).rounds)])


@wrong("ring")
def all_to_all(workers: int) -> Schedule:
    return direct(workers)


@wrong("ring")
def another_that_sends_as_little(workers: int) -> Schedule:
    return halving_doubling(workers)


@wrong("ring")
def never_ends(workers: int) -> Schedule:
    while workers > 1:
        pass
    return ring(workers)


@wrong("ring")
def grows(workers: int, rounds: list[Any] = []) -> Schedule:  # noqa: B006  # the mistake
    rounds += around(workers, falls, falls_later)
    return Schedule("mine", workers, workers, rounds)


@wrong("ring")
def wants_hosts_too(workers: int, hosts: Any) -> Schedule:
    return ring(workers)


@wrong("ring")
def divides_by_one_less(workers: int) -> Schedule:
    return Schedule("mine", workers, workers, [[T(0, 1 % (workers - 1), 0, "reduce")]])


@wrong("ring")
def halves_with_a_slash(workers: int) -> Schedule:
    return Schedule("mine", workers, workers, [[T(0, workers / 2, 0, "reduce")]])  # type: ignore[arg-type]


# --- tree ---


def binomial(
    workers: int, up: Any, down: Any, op: Any = "copy", count: int | None = None
) -> Schedule:
    """The tree of the exercise; `up` and `down` put the gaps in order."""
    gaps = [2**k for k in range((workers - 1).bit_length() if count is None else count)]
    rounds = [
        [T(r, r - gap, 0, "reduce") for r in range(gap, workers, 2 * gap)] for gap in up(gaps)
    ]
    rounds += [[T(r - gap, r, 0, op) for r in range(gap, workers, 2 * gap)] for gap in down(gaps)]
    return Schedule("mine", workers, 1, rounds)


def back(gaps: list[int]) -> list[int]:
    return gaps[::-1]


@wrong("tree")
def unchanged(workers: int) -> Schedule:
    return binomial(workers, list, list)


@wrong("tree")
def turned_the_way_up(workers: int) -> Schedule:
    return binomial(workers, back, list)


@wrong("tree")
def turned_both(workers: int) -> Schedule:
    return binomial(workers, back, back)


@wrong("tree")
def no_way_down(workers: int) -> Schedule:
    return binomial(workers, list, lambda gaps: [])


@wrong("tree")
def adds_on_the_way_down(workers: int) -> Schedule:
    return binomial(workers, list, back, op="reduce")


@wrong("tree")
def powers_of_two_only(workers: int) -> Schedule:
    return binomial(workers, list, back, count=workers.bit_length() - 1)


@wrong("tree")
def star_down(workers: int) -> Schedule:
    up = binomial(workers, list, lambda gaps: []).rounds
    return Schedule("mine", workers, 1, [*up, spread(workers)])  # type: ignore[list-item]


@wrong("tree")
def down_twice(workers: int) -> Schedule:
    """The same way down once more: that helps up to seven workers."""
    return binomial(workers, list, lambda gaps: gaps * 2)


@wrong("tree")
def down_until_it_is_right(workers: int) -> Schedule:
    return binomial(workers, list, lambda gaps: gaps * 3)


@wrong("tree")
def two_farthest_first(workers: int) -> Schedule:
    """Turns the way down by its first and last round only, which does for up to eight workers."""
    return binomial(
        workers, list, lambda gaps: [gaps[-1], *gaps[1:-1], gaps[0]] if len(gaps) > 1 else gaps
    )


@wrong("tree")
def another_all_reduce(workers: int) -> Schedule:
    return ring(workers)


@wrong("tree")
def one_after_the_other_down(workers: int) -> Schedule:
    up = binomial(workers, list, lambda gaps: []).rounds
    return Schedule("mine", workers, 1, [*up, *([t] for t in spread(workers))])  # type: ignore[list-item]


# --- hierarchical ---


def levels(
    workers: int, hosts: int, around: Any = ring, leader: Any = None, down: bool = True
) -> Schedule:
    """Each host adds up on its leader; the leaders exchange; each host copies."""
    size = workers // hosts
    first = leader or (lambda rank: rank - rank % size)
    leaders = sorted({first(rank) for rank in range(workers)})
    pairs = [(r, first(r)) for r in range(workers) if r not in leaders]
    across = around(len(leaders))
    chunks = range(across.chunks)
    rounds = [
        [t._replace(src=leaders[t.src], dst=leaders[t.dst]) for t in r] for r in across.rounds
    ]
    up = [T(r, to, c, "reduce") for r, to in pairs for c in chunks]
    back = [T(to, r, c, "copy") for r, to in pairs for c in chunks]
    return Schedule("mine", workers, across.chunks, [up, *rounds, *([back] * down)])  # type: ignore[list-item]


@wrong("hierarchical")
def one_ring(workers: int, hosts: int) -> Schedule:
    return ring(workers)


@wrong("hierarchical")
def all_across(workers: int, hosts: int) -> Schedule:
    return reduce_to_one(workers)


@wrong("hierarchical")
def leaders_to_one(workers: int, hosts: int) -> Schedule:
    return levels(workers, hosts, reduce_to_one)


@wrong("hierarchical")
def leaders_in_a_chain(workers: int, hosts: int) -> Schedule:
    def line(n: int) -> Schedule:
        up = [[T(r, r - 1, 0, "reduce")] for r in reversed(range(1, n))]
        return Schedule("line", n, 1, [*up, *([T(r, r + 1, 0, "copy")] for r in range(n - 1))])

    return levels(workers, hosts, line)


@wrong("hierarchical")
def never_back_inside(workers: int, hosts: int) -> Schedule:
    return ring(workers) if hosts == 1 else levels(workers, hosts, down=False)


@wrong("hierarchical")
def no_way_back(workers: int, hosts: int) -> Schedule:
    return levels(workers, hosts, down=False)


@wrong("hierarchical")
def neighbours_apart(workers: int, hosts: int) -> Schedule:
    return levels(workers, hosts, leader=lambda rank: rank % hosts)


@wrong("hierarchical")
def without_hosts(workers: int) -> Schedule:
    return ring(workers)


@wrong("hierarchical")
def always_two_hosts(workers: int, hosts: int) -> Schedule:
    return levels(workers, min(workers, 2))


@wrong("hierarchical")
def nothing_returned(workers: int, hosts: int) -> None:
    levels(workers, hosts)


@wrong("hierarchical")
def hangs(workers: int, hosts: int) -> Schedule:
    while True:
        pass


# --- train: those that no process is needed for ---

FIELDS: dict[str, Any] = {"framework": "torch", "workers": 4, "steps": 60}


@wrong("train")
def with_another_strategy(all_reduce: Any) -> Any:
    return start("parameter_server", all_reduce=all_reduce, **FIELDS)


@wrong("train")
def on_one_device(all_reduce: Any) -> Any:
    return start("one_device", all_reduce=all_reduce, **FIELDS)


@wrong("train")
def by_its_name(all_reduce: Any) -> Any:
    return start("multi_worker_mirrored", all_reduce=all_reduce.__name__, **FIELDS)


# --- answers that are right and not the learner's own ---


@wrong("ring")
def a_wrapper(workers: int) -> Schedule:
    return ring(workers)


@wrong("ring")
def rewritten_rounds(workers: int) -> Schedule:
    made = sys.modules["course_lib"].collectives.ring(workers)  # type: ignore[attr-defined]
    return Schedule("mine", workers, made.chunks, [list(r) for r in made.rounds])


@wrong("ring")
def in_a_thread(workers: int) -> Schedule:
    with ThreadPoolExecutor(1) as other:
        return other.submit(ring, workers).result()


@wrong("ring")
def blinded(workers: int) -> Schedule:
    sys.setprofile(None)
    return ring(workers)


wrong("ring", "the library's own")(ring)
wrong("tree", "the library's own")(tree)
wrong("reduce_to_one", "the library's own")(reduce_to_one)
wrong("hierarchical", "the library's own")(hierarchical)


# --- what is said ---


test_a_wrong_answer_is_rejected_in_words_that_name_its_mistake = ANSWERS.rejected()


def test_a_wrong_answer_is_shown_in_the_smallest_case_that_fails_with_its_rounds() -> None:
    text = check("tree", unchanged).text
    assert text.startswith(
        "unchanged is wrong for 4 workers:\nrank 2 has all of chunk 0 after the last round, but"
    )
    assert "for 1, 2, 3 workers" in text
    assert text.endswith(
        "(+ adds, = replaces):\n  0: 1→0 +c0, 3→2 +c0\n  1: 2→0 +c0\n  2: 0→1 =c0, 2→3 =c0\n  3:"
        " 0→2 =c0"
    )


def film(answer: Answer, task: str) -> tuple[list[str], int]:
    """What stands above the pictures in the card of a wrong answer, and how many crosses are in
    them.
    """
    data = re.search(r'src="data:image/svg\+xml;base64,([^"]+)"', check(task, answer)._repr_html_())
    assert data
    root = ET.fromstring(base64.b64decode(data[1]))
    words = [e.text or "" for e in root.iter(f"{SVG}text")]
    crosses = [e for e in root.iter(f"{SVG}path") if e.get("stroke-width") == "4"]
    return [w for w in words if "round" in w or "end" in w], len(crosses)


SVG = "{http://www.w3.org/2000/svg}"


def test_a_card_draws_the_failing_case_up_to_the_round_that_goes_wrong() -> None:
    assert film(off_by_one, "ring") == (["round 0", "round 1  ✗"], 1)
    assert film(adds_back, "reduce_to_one") == (["round 0", "round 1  ✗"], 1)
    assert film(unchanged, "tree") == ([*(f"round {i}" for i in range(4)), "in the end"], 1)
    # right sums, but too many rounds: nothing to cross out
    assert film(chain, "reduce_to_one")[1] == 0


def test_a_card_says_the_diagnosis_first_and_gives_a_hint_at_a_click() -> None:
    html = check("ring", off_by_one)._repr_html_()
    parts = ["The second half begins with the wrong chunk", "<img", "All that was found"]
    parts += ["off_by_one is wrong for 2 workers:", *(f"Hint {n} of 3" for n in (1, 2, 3))]
    places = [html.index(part) for part in parts]
    assert places == sorted(places)
    assert html.count("<details>") == 4 and "<script" not in html


def broken_once(
    algorithm: Answer, workers: int, number: int, index: int, instead: list[Transfer]
) -> Answer:
    """An algorithm in which, for one number of workers, one transfer is replaced by others."""

    def broken(n: int) -> Schedule:
        schedule: Schedule = algorithm(n)
        rounds = [list(r) for r in schedule.rounds]
        if n == workers:
            rounds[number][index : index + 1] = instead
        return Schedule("broken", n, schedule.chunks, rounds)  # type: ignore[arg-type]

    return broken


@pytest.mark.parametrize(
    ("task", "algorithm"), [("reduce_to_one", reduce_to_one), ("ring", ring), ("tree", tree)]
)
def test_one_wrong_transfer_for_one_number_of_workers_is_always_found_and_told(
    task: str, algorithm: Answer
) -> None:
    """Dropped, doubled, with the other op, to a rank or with a chunk that is not there: every
    fourth transfer for six workers.
    """
    listed = [
        (number, index, t)
        for number, r in enumerate(algorithm(6).rounds)
        for index, t in enumerate(r)
    ][::4]
    for number, index, t in listed:
        flipped = t._replace(op="copy" if t.op == "reduce" else "reduce")
        for instead in (
            [],
            [t, t],
            [flipped],
            [t._replace(dst=6)],
            [t._replace(chunk=6)],
            [t._replace(dst=-1)],
        ):
            verdict = check(task, broken_once(algorithm, 6, number, index, instead))
            assert verdict.state == "not yet"
            assert verdict.text.startswith("broken is wrong for 6"), (t, instead)


test_each_task_has_wrong_answers_here_that_are_told_apart = ANSWERS.enough(
    8, 0, "reduce_to_one", "ring", "tree", "hierarchical"
)
