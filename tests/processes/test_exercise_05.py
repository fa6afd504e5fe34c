"""Exercise 05 on real processes: an all-reduce for unequal racks, wrong answers and unusual right
ones.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

from course_lib.collectives import Round, Schedule, Transfer, hierarchical
from tests.answers import Answers

ANSWERS = Answers("05_racks", "exercise_05_racks", varies=True, sample=5)
wrong, right = ANSWERS.wrong, ANSWERS.right
T = Transfer
Racks = list[int]
Rounds = list[list[Transfer]]
Ends = tuple[int, int]


def made(workers: int, chunks: int, rounds: Any, servers: int = 0) -> Schedule:
    return Schedule("mine", workers, chunks, rounds, servers=servers)


def firsts(racks: Racks) -> list[int]:
    """The first worker of each rack."""
    return [racks.index(rack) for rack in range(max(racks) + 1)]


def followers(racks: Racks, leaders: list[int]) -> list[Ends]:
    """The other workers, each with the leader of its rack."""
    return [(w, leaders[rack]) for w, rack in enumerate(racks) if w not in leaders]


def up(racks: Racks, leaders: list[int], chunks: int) -> list[Transfer]:
    return [T(w, to, c, "reduce") for w, to in followers(racks, leaders) for c in range(chunks)]


def down(racks: Racks, leaders: list[int], chunks: int) -> list[Transfer]:
    return [T(of, w, c, "copy") for w, of in followers(racks, leaders) for c in range(chunks)]


def pairs(count: int) -> list[Ends]:
    """All racks with all others; no two that begin together go to the same one."""
    return [(a, (a + step) % count) for step in range(1, count) for a in range(count)]


def swaps(leaders: list[int]) -> Rounds:
    """Each rack finishes a chunk, and sends it to all others."""
    both = pairs(len(leaders))
    return [
        [T(leaders[a], leaders[b], b, "reduce") for a, b in both],
        [T(leaders[a], leaders[b], a, "copy") for a, b in both],
    ]


def around(order: Sequence[int]) -> Rounds:
    """A ring of these workers, with a chunk for each."""
    n = len(order)
    return [
        [T(order[i], order[(i + 1) % n], (i + (op == "copy") - step) % n, op) for i in range(n)]
        for op in ("reduce", "copy")
        for step in range(n - 1)
    ]


def led(
    racks: Racks,
    across: Callable[[list[int]], Rounds] = swaps,
    chunks: int | None = None,
    leaders: list[int] | None = None,
) -> Schedule:
    """What the solution does, to be changed."""
    at = firsts(racks) if leaders is None else leaders
    count = len(at) if chunks is None else chunks
    rounds = [up(racks, at, count), *across(at), down(racks, at, count)]
    return made(len(racks), count, rounds)


# --- right ---


@right("rack_all_reduce")
def the_last_of_each_rack_leads(workers: int, racks: Racks) -> Any:
    """As a dictionary of leaders, with rounds as arrays."""
    leader = {rack: worker for worker, rack in enumerate(racks)}
    count = len(leader)
    inside = [(w, leader[r]) for w, r in enumerate(racks) if w != leader[r]]
    rounds: list[Any] = []
    if inside:
        src, dst = map(list, zip(*inside, strict=True))
        rounds += [Round(src, dst, 0, "reduce", span=count), Round(dst, src, 0, "copy", span=count)]
    if count > 1:
        a, b = map(list, zip(*pairs(count), strict=True))
        one, other = [leader[r] for r in a], [leader[r] for r in b]
        rounds[1:1] = [Round(one, other, b, "reduce"), Round(one, other, a, "copy")]
        if not inside:
            rounds = rounds[:2]
    return Schedule("last", workers, count, rounds)


@right("rack_all_reduce")
def whole_sums_at_once(workers: int, racks: Racks) -> Any:
    """Each leader sends all others the sum of its rack: more bytes, and one delay less."""

    def across(leaders: list[int]) -> Rounds:
        return [[T(leaders[a], leaders[b], 0, "reduce") for a, b in pairs(len(leaders))]]

    return led(racks, across, chunks=1)


@right("rack_all_reduce")
def a_leader_for_each_chunk(workers: int, racks: Racks) -> Any:
    """The workers of a rack divide the chunks among themselves, with plain tuples."""
    count = max(racks) + 1
    groups = [[w for w in range(workers) if racks[w] == rack] for rack in range(count)]

    def carrier(rack: int, chunk: int) -> int:
        return groups[rack][chunk % len(groups[rack])]

    inside = [
        (w, carrier(racks[w], c), c)
        for w in range(workers)
        for c in range(count)
        if w != carrier(racks[w], c)
    ]
    across = [(carrier(a, b), carrier(b, b), b) for a, b in pairs(count)]
    rounds: list[Any] = [
        [(w, to, c, "reduce") for w, to, c in inside],
        [(here, there, c, "reduce") for here, there, c in across],
        [(there, here, c, "copy") for here, there, c in across],
        [(to, w, c, "copy") for w, to, c in inside],
    ]
    return Schedule("carriers", workers, count, rounds).placed(racks)


@right("rack_all_reduce")
def sums_inside_by_trees(workers: int, racks: Racks) -> Any:
    """Halves the number of workers with the sum of each rack, round by round, and plays that
    backwards.
    """
    count = max(racks) + 1
    groups = [[w for w in range(workers) if racks[w] == rack] for rack in range(count)]
    steps: list[list[Ends]] = []
    while max(map(len, groups)) > 1:
        halves = [(g[: (len(g) + 1) // 2], g[(len(g) + 1) // 2 :]) for g in groups]
        steps.append([end for keep, give in halves for end in zip(give, keep, strict=False)])
        groups = [keep for keep, _ in halves]
    rounds = [[T(a, b, c, "reduce") for a, b in step for c in range(count)] for step in steps]
    rounds += swaps([group[0] for group in groups])
    rounds += [[T(b, a, c, "copy") for a, b in step for c in range(count)] for step in steps[::-1]]
    return made(workers, count, rounds)


# --- wrong sums ---


@wrong("rack_all_reduce")
def takes_the_workers_alone(workers: int) -> Any:
    return led([0] * workers)


@wrong("rack_all_reduce")
def returns_nothing(workers: int, racks: Racks) -> Any:
    led(racks)


@wrong("rack_all_reduce")
def returns_the_rounds(workers: int, racks: Racks) -> Any:
    at = firsts(racks)
    return [up(racks, at, len(at)), *swaps(at), down(racks, at, len(at))]


@wrong("rack_all_reduce")
def not_copied_inside(workers: int, racks: Racks) -> Any:
    at = firsts(racks)
    return made(workers, len(at), [up(racks, at, len(at)), *swaps(at)])


@wrong("rack_all_reduce")
def nothing_crosses(workers: int, racks: Racks) -> Any:
    return led(racks, lambda leaders: [])


@wrong("rack_all_reduce")
def finished_chunks_stay(workers: int, racks: Racks) -> Any:
    return led(racks, lambda leaders: swaps(leaders)[:1])


@wrong("rack_all_reduce")
def leaders_copy_at_once(workers: int, racks: Racks) -> Any:
    return led(racks, lambda at: [[t._replace(op="copy") for t in r] for r in swaps(at)])


@wrong("rack_all_reduce")
def leaders_add_finished_chunks(workers: int, racks: Racks) -> Any:
    return led(racks, lambda at: [[t._replace(op="reduce") for t in r] for r in swaps(at)])


@wrong("rack_all_reduce")
def exchange_in_one_round(workers: int, racks: Racks) -> Any:
    return led(racks, lambda at: [[t for r in swaps(at) for t in r]])


@wrong("rack_all_reduce")
def worker_r_leads_rack_r(workers: int, racks: Racks) -> Any:
    return led(racks, leaders=list(range(max(racks) + 1)))


@wrong("rack_all_reduce")
def equal_racks_in_order(workers: int, racks: Racks) -> Any:
    """As exercise 04 has its hosts."""
    count = max(racks) + 1
    size = workers // count
    return led([min(w // size, count - 1) for w in range(workers)])


@wrong("rack_all_reduce")
def equal_racks_as_in_exercise_04(workers: int, racks: Racks) -> Any:
    count = max(racks) + 1
    size = workers // count
    leaders = [rack * size for rack in range(count)]
    others = [(of + i, of) for of in leaders for i in range(1, size)]
    rounds = [
        [T(w, of, c, "reduce") for w, of in others for c in range(count)],
        *swaps(leaders),
        [T(of, w, c, "copy") for w, of in others for c in range(count)],
    ]
    return made(workers, count, rounds)


@wrong("rack_all_reduce")
def one_chunk_written_down(workers: int, racks: Racks) -> Any:
    whole = led(racks)
    return made(workers, 1, whole.rounds)


@wrong("rack_all_reduce")
def only_chunk_0_inside(workers: int, racks: Racks) -> Any:
    at = firsts(racks)
    rounds = [up(racks, at, 1), *swaps(at), down(racks, at, 1)]
    return made(workers, len(at), rounds)


@wrong("rack_all_reduce")
def leaders_send_to_themselves(workers: int, racks: Racks) -> Any:
    def across(leaders: list[int]) -> Rounds:
        own = [(leader, rack) for rack, leader in enumerate(leaders)]
        adds, copies = swaps(leaders)
        return [
            adds + [T(w, w, c, "reduce") for w, c in own],
            copies + [T(w, w, c, "copy") for w, c in own],
        ]

    return led(racks, across)


@wrong("rack_all_reduce")
def sender_and_receiver_exchanged(workers: int, racks: Racks) -> Any:
    at = firsts(racks)
    last = [t._replace(src=t.dst, dst=t.src) for t in down(racks, at, len(at))]
    return made(workers, len(at), [up(racks, at, len(at)), *swaps(at), last])


@wrong("rack_all_reduce")
def each_leader_sends_its_own_chunk_first(workers: int, racks: Racks) -> Any:
    """Chunk a instead of chunk b on the way to the sums."""

    def across(leaders: list[int]) -> Rounds:
        adds, copies = swaps(leaders)
        return [[t._replace(chunk=leaders.index(t.src)) for t in adds], copies]

    return led(racks, across)


@wrong("rack_all_reduce")
def leaders_one_after_another(workers: int, racks: Racks) -> Any:
    """Each adds its whole sum to all others, in a round of its own: what came before is in it."""

    def across(leaders: list[int]) -> Rounds:
        return [[T(a, b, 0, "reduce") for b in leaders if b != a] for a in leaders]

    return led(racks, across, chunks=1)


@wrong("rack_all_reduce")
def three_racks_only(workers: int, racks: Racks) -> Any:
    return led(racks, leaders=[racks.index(rack) for rack in range(3)])


@wrong("rack_all_reduce")
def as_many_workers_as_racks(workers: int, racks: Racks) -> Any:
    return made(max(racks) + 1, max(racks) + 1, swaps(list(range(max(racks) + 1))))


@wrong("rack_all_reduce")
def through_a_server(workers: int, racks: Racks) -> Any:
    rounds = [
        [T(w, workers, 0, "reduce") for w in range(workers)],
        [T(workers, w, 0, "copy") for w in range(workers)],
    ]
    return made(workers, 1, rounds, servers=1)


@wrong("rack_all_reduce")
def by_the_library(workers: int, racks: Racks) -> Any:
    return hierarchical(workers, racks)


# --- right sums, and too slow ---


@wrong("rack_all_reduce")
def ring_by_number(workers: int, racks: Racks) -> Any:
    return made(workers, workers, around(range(workers)))


@wrong("rack_all_reduce")
def ring_by_rack(workers: int, racks: Racks) -> Any:
    order = sorted(range(workers), key=racks.__getitem__)
    return made(workers, workers, around(order))


@wrong("rack_all_reduce")
def ring_of_leaders(workers: int, racks: Racks) -> Any:
    return led(racks, around)


@wrong("rack_all_reduce")
def all_through_worker_0(workers: int, racks: Racks) -> Any:
    return led([0] * workers)


@wrong("rack_all_reduce")
def everyone_to_everyone(workers: int, racks: Racks) -> Any:
    return led(list(range(workers)))


@wrong("rack_all_reduce")
def leaders_through_the_first(workers: int, racks: Racks) -> Any:
    def across(leaders: list[int]) -> Rounds:
        first, *rest = leaders
        return [[T(w, first, 0, "reduce") for w in rest], [T(first, w, 0, "copy") for w in rest]]

    return led(racks, across, chunks=1)


@wrong("rack_all_reduce")
def a_chain_of_leaders(workers: int, racks: Racks) -> Any:
    def across(leaders: list[int]) -> Rounds:
        along = list(pairwise(leaders))
        there = [[T(a, b, 0, "reduce")] for a, b in along]
        return there + [[T(b, a, 0, "copy")] for a, b in along[::-1]]

    return led(racks, across, chunks=1)


@wrong("rack_all_reduce")
def all_workers_send_to_all_leaders(workers: int, racks: Racks) -> Any:
    """Nothing is added up before it crosses."""
    leaders = firsts(racks)
    rounds = [
        [T(w, to, 0, "reduce") for w in range(workers) for to in leaders if w != to],
        down(racks, leaders, 1),
    ]
    return made(workers, 1, rounds)


@wrong("rack_all_reduce")
def each_worker_fetches_from_the_other_racks(workers: int, racks: Racks) -> Any:
    """Sums of racks go to all workers of the other racks."""
    leaders = firsts(racks)
    across = [T(w, to, 0, "reduce") for w in leaders for to in leaders if w != to]
    both = [up(racks, leaders, 1), across]
    home = [
        T(leaders[(racks[w] + 1) % len(leaders)], w, 0, "copy")
        for w in range(workers)
        if w not in leaders
    ]
    return made(workers, 1, [*both, home])


@wrong("rack_all_reduce")
def one_message_at_a_time(workers: int, racks: Racks) -> Any:
    whole = led(racks)
    return made(workers, whole.chunks, [[t] for r in whole.rounds for t in r])


@wrong("rack_all_reduce")
def piece_after_piece(workers: int, racks: Racks) -> Any:
    """Sixty small pieces, each with rounds of its own."""
    whole, pieces = led(racks), 60
    rounds = [
        [t._replace(chunk=t.chunk + piece * whole.chunks) for t in r]
        for piece in range(pieces)
        for r in whole.rounds
    ]
    return made(workers, pieces * whole.chunks, rounds)


test_wrong_answers_are_rejected_in_words = ANSWERS.rejected()
test_right_answers_pass = ANSWERS.accepted()
test_there_are_enough_of_each = ANSWERS.enough(8, 3, "rack_all_reduce")
