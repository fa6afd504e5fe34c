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
ANSWERS = Answers("04_allreduce_from_scratch")
wrong = ANSWERS.wrong


def star(workers: int, up: Any, down: Any, **fields: Any) -> Schedule:
    return Schedule("mine", workers, **{"chunks": 1, "rounds": [up, down], **fields})


def gather(workers: int) -> list[Transfer]:
    return [T(r, 0, 0, "reduce") for r in range(1, workers)]


def spread(workers: int) -> list[Transfer]:
    return [T(0, r, 0, "copy") for r in range(1, workers)]


# --- reduce_to_one ---


@wrong(
    "reduce_to_one",
    "The answer is never sent back. After 1 round the sums are complete (chunk 0 on rank 0)",
)
def one_way(workers: int) -> Schedule:
    return star(workers, gather(workers), [])


@wrong("reduce_to_one", "Round 1 adds where it should copy: rank 0 sends rank 1 a finished sum")
def adds_back(workers: int) -> Schedule:
    return star(workers, gather(workers), [t._replace(op="reduce") for t in spread(workers)])


@wrong(
    "reduce_to_one",
    "Round 0 copies where it should add: what rank 1 sends takes the place of rank 0's own"
    " gradient",
)
def copies_first(workers: int) -> Schedule:
    return star(workers, [t._replace(op="copy") for t in gather(workers)], spread(workers))


@wrong("reduce_to_one", "A rank sends to itself")
def with_rank_0(workers: int) -> Schedule:
    return star(
        workers,
        [T(r, 0, 0, "reduce") for r in range(workers)],
        [T(0, r, 0, "copy") for r in range(workers)],
    )


@wrong("reduce_to_one", "Adding and copying stand in one round")
def one_round(workers: int) -> Schedule:
    return Schedule("mine", workers, 1, [gather(workers) + spread(workers)])


@wrong(
    "reduce_to_one",
    "It works for 4 workers and for no others: is a 4 (or 3) written where `workers` should stand?",
)
def four_only(workers: int) -> Schedule:
    return star(workers, gather(4), spread(4))


@wrong("reduce_to_one", "It works for 4 workers and for no others")
def always_four(workers: int) -> Schedule:
    return star(4, gather(4), spread(4))


@wrong(
    "reduce_to_one",
    "For 3 workers rank 2 takes part in no transfer. range(1, workers) ends with workers - 1",
)
def without_the_last(workers: int) -> Schedule:
    return star(workers, gather(workers - 1), spread(workers - 1))


@wrong("reduce_to_one", "Sender and receiver are exchanged on the way back")
def back_to_front(workers: int) -> Schedule:
    return star(workers, gather(workers), [T(r, 0, 0, "copy") for r in range(1, workers)])


@wrong("reduce_to_one", "is `return` missing?")
def no_return(workers: int) -> None:
    star(workers, gather(workers), spread(workers))


@wrong("reduce_to_one", "These are the rounds alone. Wrap them")
def rounds_only(workers: int) -> Any:
    return [gather(workers), spread(workers)]


@wrong("reduce_to_one", "It takes 8 rounds where 2 are enough")
def chain(workers: int) -> Schedule:
    up = [[T(r, r - 1, 0, "reduce")] for r in reversed(range(1, workers))]
    return Schedule("mine", workers, 1, up + [[T(r, r + 1, 0, "copy")] for r in range(workers - 1)])


@wrong("reduce_to_one", "It takes 40 messages where 8 are enough")
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


@wrong(
    "ring",
    "Whole buffers are passed: a rank sends all S bytes in a round instead of S/P (here S/3)",
)
def whole_buffers(workers: int) -> Schedule:
    return Schedule("mine", workers, 1, around(workers, lambda r, i: 0, lambda r, i: 0))


@wrong("ring", "Whole buffers are passed")
def chain_there_and_around(workers: int) -> Schedule:
    """Right sums, but one rank at a time with everything."""
    up = [[T(r, r + 1, 0, "reduce")] for r in range(workers - 1)]
    return Schedule(
        "mine", workers, 1, up + [[T((r - 1) % workers, r, 0, "copy")] for r in range(workers - 1)]
    )


@wrong("ring", "The all-gather is missing: 1 round of 2")
def half_a_ring(workers: int) -> Schedule:
    return Schedule("mine", workers, workers, around(workers, falls, falls, (workers - 1, 0)))


@wrong("ring", "Round 1 adds where it should copy")
def adds_all_the_way(workers: int) -> Schedule:
    return Schedule(
        "mine", workers, workers, around(workers, falls, falls_later, ops=("reduce", "reduce"))
    )


@wrong("ring", "Round 0 copies where it should add")
def copies_all_the_way(workers: int) -> Schedule:
    return Schedule(
        "mine", workers, workers, around(workers, falls, falls_later, ops=("copy", "copy"))
    )


@wrong(
    "ring",
    "The second half begins with the wrong chunk (off by one): in round 1 rank 0 sends chunk 0,"
    " which it has not finished",
)
def off_by_one(workers: int) -> Schedule:
    return Schedule("mine", workers, workers, around(workers, falls, falls))


@wrong(
    "ring",
    "A number runs over the end: in round 1 rank 1 sends chunk 2, and there are only chunks 0 to"
    " 1. Is % workers missing?",
)
def chunks_without_modulo(workers: int) -> Schedule:
    right = [(r, (r + 1) % workers) for r in range(workers)]
    ways = [("reduce", falls), ("copy", falls_later)]
    rounds = [
        [T(src, dst, chunk(src, i), op) for src, dst in right]
        for op, chunk in ways
        for i in range(workers - 1)
    ]
    return Schedule("mine", workers, workers, rounds)


@wrong(
    "ring",
    "The chunks go the wrong way round: in round 1 rank 0 sends chunk 1, but what it received in"
    " round 0 is chunk 2",
)
def wrong_way_round(workers: int) -> Schedule:
    return Schedule(
        "mine", workers, workers, around(workers, lambda r, i: r + i, lambda r, i: r + 1 + i)
    )


AGAIN = "The ranks send the same chunk again: with 3 workers, rank 0 sends chunk"


@wrong("ring", f"{AGAIN} 0 in round 0 and in round 1. Pass on what you received")
def same_chunk_in_every_round(workers: int) -> Schedule:
    return Schedule("mine", workers, workers, around(workers, lambda r, i: r, lambda r, i: r))


@wrong("ring", f"{AGAIN} 0 in round 0 and in round 1")
def same_chunk_in_each_half(workers: int) -> Schedule:
    return Schedule("mine", workers, workers, around(workers, lambda r, i: r, lambda r, i: r + 1))


@wrong("ring", f"{AGAIN} 1 in round 2 and in round 3")
def same_chunk_on_the_way_back(workers: int) -> Schedule:
    return Schedule("mine", workers, workers, around(workers, falls, lambda r, i: r + 1))


@wrong("ring", "A number runs over the end")
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


@wrong("ring", "It works for 4 workers and for no others")
def ring_of_four(workers: int) -> Schedule:
    return Schedule("mine", workers, max(4, workers), around(4, falls, falls_later))


@wrong("ring", "The half that adds has 2 rounds for 2 workers; it takes P-1 = 1")
def one_hop_too_many(workers: int) -> Schedule:
    return Schedule("mine", workers, workers, around(workers, falls, falls, (workers, workers - 1)))


@wrong("ring", "The half that copies has 1 round for 3 workers; it takes P-1 = 2")
def one_hop_too_few(workers: int) -> Schedule:
    return Schedule(
        "mine",
        workers,
        workers,
        around(workers, falls, falls_later, (workers - 1, min(1, workers - 1))),
    )


@wrong("ring", "set chunks=workers")
def one_chunk_declared(workers: int) -> Schedule:
    return Schedule("mine", workers, 1, around(workers, falls, falls_later))


@wrong("ring", "It takes 40 rounds, with one transfer each; 8 are enough")
def one_transfer_a_round(workers: int) -> Schedule:
    return Schedule("mine", workers, workers, [[t] for t in itertools.chain(*ring(workers).rounds)])


@wrong("ring", "This is no ring: a rank talks to 4 others")
def all_to_all(workers: int) -> Schedule:
    return direct(workers)


@wrong("ring", "This is no ring: a rank talks to")
def another_that_sends_as_little(workers: int) -> Schedule:
    return halving_doubling(workers)


@wrong(
    "ring",
    "never_ends(2) had not come back after 5 seconds of computing. Does a loop in it never end?",
)
def never_ends(workers: int) -> Schedule:
    while workers > 1:
        pass
    return ring(workers)


@wrong(
    "ring",
    "another schedule when it is called a second time. Is there a list that outlives the call?",
)
def grows(workers: int, rounds: list[Any] = []) -> Schedule:  # noqa: B006  # the mistake
    rounds += around(workers, falls, falls_later)
    return Schedule("mine", workers, workers, rounds)


@wrong("ring", "wants_hosts_too() missing 1 required positional argument: 'hosts'")
def wants_hosts_too(workers: int, hosts: Any) -> Schedule:
    return ring(workers)


@wrong("ring", "it raises ZeroDivisionError: integer modulo by zero (line")
def divides_by_one_less(workers: int) -> Schedule:
    return Schedule("mine", workers, workers, [[T(0, 1 % (workers - 1), 0, "reduce")]])


@wrong("ring", "with whole numbers (divide with //, not /)")
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


@wrong("tree", "The way down runs in the same order as the way up")
def unchanged(workers: int) -> Schedule:
    return binomial(workers, list, list)


@wrong("tree", "Both ways run in the wrong order")
def turned_the_way_up(workers: int) -> Schedule:
    return binomial(workers, back, list)


@wrong("tree", "The way up runs in the wrong order")
def turned_both(workers: int) -> Schedule:
    return binomial(workers, back, back)


@wrong("tree", "The answer is never sent back")
def no_way_down(workers: int) -> Schedule:
    return binomial(workers, list, lambda gaps: [])


@wrong("tree", "Round 1 adds where it should copy")
def adds_on_the_way_down(workers: int) -> Schedule:
    return binomial(workers, list, back, op="reduce")


@wrong("tree", "Only powers of two come out right")
def powers_of_two_only(workers: int) -> Schedule:
    return binomial(workers, list, back, count=workers.bit_length() - 1)


@wrong("tree", "In one round a rank has 4 messages")
def star_down(workers: int) -> Schedule:
    up = binomial(workers, list, lambda gaps: []).rounds
    return Schedule("mine", workers, 1, [*up, spread(workers)])  # type: ignore[list-item]


@wrong("tree", "It is right for 1, 2, 3, 4, 5, 6, 7 workers")
def down_twice(workers: int) -> Schedule:
    """The same way down once more: that helps up to seven workers."""
    return binomial(workers, list, lambda gaps: gaps * 2)


@wrong("tree", "It takes 12 rounds; the tree takes 6: on each way")
def down_until_it_is_right(workers: int) -> Schedule:
    return binomial(workers, list, lambda gaps: gaps * 3)


@wrong("tree", "it is not complete yet")
def two_farthest_first(workers: int) -> Schedule:
    """Turns the way down by its first and last round only, which does for up to eight workers."""
    return binomial(
        workers, list, lambda gaps: [gaps[-1], *gaps[1:-1], gaps[0]] if len(gaps) > 1 else gaps
    )


@wrong("tree", "In one round a rank has 2 messages")
def another_all_reduce(workers: int) -> Schedule:
    return ring(workers)


@wrong("tree", "It takes 7 rounds; the tree takes 6: on each way")
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


@wrong("hierarchical", "This is a ring over all ranks. Add up inside each host first.")
def one_ring(workers: int, hosts: int) -> Schedule:
    return ring(workers)


@wrong("hierarchical", "over the busiest link go 2 S; 1 S are enough. Every rank sends its whole")
def all_across(workers: int, hosts: int) -> Schedule:
    return reduce_to_one(workers)


@wrong("hierarchical", "All hosts send to one, and its link carries everything.")
def leaders_to_one(workers: int, hosts: int) -> Schedule:
    return levels(workers, hosts, reduce_to_one)


@wrong("hierarchical", "Whole buffers go from host to host. Cut the buffer into one chunk")
def leaders_in_a_chain(workers: int, hosts: int) -> Schedule:
    def line(n: int) -> Schedule:
        up = [[T(r, r - 1, 0, "reduce")] for r in reversed(range(1, n))]
        return Schedule("line", n, 1, [*up, *([T(r, r + 1, 0, "copy")] for r in range(n - 1))])

    return levels(workers, hosts, line)


@wrong("hierarchical", "on 2 hosts:\nrank 0 has all of chunk 0")
@wrong("hierarchical", "Each host has the sum of all, but not each of its ranks")
def never_back_inside(workers: int, hosts: int) -> Schedule:
    return ring(workers) if hosts == 1 else levels(workers, hosts, down=False)


@wrong("hierarchical", "The answer is never sent back.")
def no_way_back(workers: int, hosts: int) -> Schedule:
    return levels(workers, hosts, down=False)


@wrong("hierarchical", "rank r is on host r // (workers // hosts)")
def neighbours_apart(workers: int, hosts: int) -> Schedule:
    return levels(workers, hosts, leader=lambda rank: rank % hosts)


@wrong(
    "hierarchical", "Your function is called with two numbers: def my_hierarchical(workers, hosts)"
)
def without_hosts(workers: int) -> Schedule:
    return ring(workers)


@wrong("hierarchical", "It suits 2 hosts: is a 2 written where `hosts`")
def always_two_hosts(workers: int, hosts: int) -> Schedule:
    return levels(workers, min(workers, 2))


@wrong("hierarchical", "is `return` missing?")
def nothing_returned(workers: int, hosts: int) -> None:
    levels(workers, hosts)


@wrong("hierarchical", "had not come back after 5 seconds of computing")
def hangs(workers: int, hosts: int) -> Schedule:
    while True:
        pass


# --- train: those that no process is needed for ---

FIELDS: dict[str, Any] = {"framework": "torch", "workers": 4, "steps": 60}


@wrong("train", 'the strategy that is asked for: start("multi_worker_mirrored", ...)')
def with_another_strategy(all_reduce: Any) -> Any:
    return start("parameter_server", all_reduce=all_reduce, **FIELDS)


@wrong("train", 'the strategy that is asked for: start("multi_worker_mirrored", ...)')
def on_one_device(all_reduce: Any) -> Any:
    return start("one_device", all_reduce=all_reduce, **FIELDS)


@wrong("train", "Hand on the function itself, not what it returns and not its name")
def by_its_name(all_reduce: Any) -> Any:
    return start("multi_worker_mirrored", all_reduce=all_reduce.__name__, **FIELDS)


# --- answers that are right and not the learner's own ---

OWN = "This is the library's own all-reduce: right, and not yet yours."


@wrong("ring", f"{OWN} a_wrapper runs course_lib.collectives.algorithms.ring.ring.")
def a_wrapper(workers: int) -> Schedule:
    return ring(workers)


@wrong("ring", f"{OWN} rewritten_rounds runs course_lib")
def rewritten_rounds(workers: int) -> Schedule:
    made = sys.modules["course_lib"].collectives.ring(workers)  # type: ignore[attr-defined]
    return Schedule("mine", workers, made.chunks, [list(r) for r in made.rounds])


@wrong("ring", f"{OWN} in_a_thread runs")
def in_a_thread(workers: int) -> Schedule:
    with ThreadPoolExecutor(1) as other:
        return other.submit(ring, workers).result()


@wrong("ring", "not yet yours. blinded runs sys.setprofile.")
def blinded(workers: int) -> Schedule:
    sys.setprofile(None)
    return ring(workers)


wrong("ring", f"{OWN} ring runs course_lib.collectives.algorithms.ring.ring.")(ring)
wrong("tree", f"{OWN} tree runs course_lib.collectives.algorithms.tree.tree.")(tree)
wrong("reduce_to_one", f"{OWN} reduce_to_one runs")(reduce_to_one)
wrong("hierarchical", f"{OWN} hierarchical runs")(hierarchical)


# --- what is said ---


test_a_wrong_answer_is_rejected_in_words_that_name_its_mistake = ANSWERS.rejected()


def test_a_wrong_answer_is_shown_in_the_smallest_case_that_fails_with_its_rounds() -> None:
    text = check("tree", unchanged).text
    assert text.startswith(
        "unchanged is wrong for 4 workers:\nrank 2 has all of chunk 0 after the last round, but"
    )
    assert "It is right for 1, 2, 3 workers." in text
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
            assert verdict.text.startswith("broken is wrong for 6 workers:"), (t, instead)


test_each_task_has_wrong_answers_here_that_are_told_apart = ANSWERS.enough(
    8, 0, "reduce_to_one", "ring", "tree", "hierarchical"
)
