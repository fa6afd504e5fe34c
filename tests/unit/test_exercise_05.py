"""Exercise 05: the order of a ring over racks, and its bytes over the uplinks; each mistake is told
by its name.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from itertools import pairwise
from typing import Any

import numpy as np

from tests.answers import Answers

ANSWERS = Answers("05_racks", "exercise_05", varies=True)
wrong, right = ANSWERS.wrong, ANSWERS.right
Racks = list[int]

# --- ring_order ---


def members(racks: Racks) -> dict[int, list[int]]:
    """The workers of each rack."""
    groups = defaultdict(list)
    for worker, rack in enumerate(racks):
        groups[rack].append(worker)
    return groups


@right("ring_order")
def from_the_last_rack_down(racks: Racks) -> Any:
    order: list[int] = []
    for rack in range(max(racks), -1, -1):
        order = [w for w in range(len(racks)) if racks[w] == rack] + order[::-1]
    return tuple(order)


@right("ring_order")
def by_numpy(racks: Racks) -> Any:
    return np.argsort(racks, kind="stable")


@right("ring_order")
def worker_by_worker(racks: Racks) -> Any:
    """Goes on to a worker of the same rack as long as there is one."""
    free, order = set(range(1, len(racks))), [0]
    while free:
        here = [w for w in free if racks[w] == racks[order[-1]]]
        order.append(max(here or free))
        free.remove(order[-1])
    return order


@right("ring_order")
def begins_inside_a_rack(racks: Racks) -> Any:
    """The end of the order and its beginning are one rack."""
    order = sorted(range(len(racks)), key=racks.__getitem__)
    return order[1:] + order[:1]


@right("ring_order")
def as_a_generator(racks: Racks) -> Any:
    return (worker for group in members(racks).values() for worker in group)


@wrong("ring_order")
def by_number(racks: Racks) -> Any:
    return list(range(len(racks)))


@wrong("ring_order")
def sorted_racks(racks: Racks) -> Any:
    return sorted(racks)


@wrong("ring_order")
def a_list_for_each_rack(racks: Racks) -> Any:
    return list(members(racks).values())


@wrong("ring_order")
def pairs_of_rack_and_worker(racks: Racks) -> Any:
    return sorted(zip(racks, range(len(racks)), strict=True))


@wrong("ring_order")
def a_dictionary_of_racks(racks: Racks) -> Any:
    return dict(members(racks))


@wrong("ring_order")
def first_worker_again_at_the_end(racks: Racks) -> Any:
    order = sorted(range(len(racks)), key=racks.__getitem__)
    return [*order, order[0]]


@wrong("ring_order")
def place_of_each_worker(racks: Racks) -> Any:
    order = sorted(range(len(racks)), key=racks.__getitem__)
    places = [0] * len(racks)
    for place, worker in enumerate(order):
        places[worker] = place
    return places


@wrong("ring_order")
def a_worker_of_each_rack_in_turn(racks: Racks) -> Any:
    groups, order = list(members(racks).values()), []
    while any(groups):
        order += [group.pop(0) for group in groups if group]
    return order


@wrong("ring_order")
def one_worker_of_each_rack(racks: Racks) -> Any:
    return list({rack: worker for worker, rack in enumerate(racks)}.values())


@wrong("ring_order")
def two_racks_only(racks: Racks) -> Any:
    return [w for rack in (0, 1) for w in range(len(racks)) if racks[w] == rack]


@wrong("ring_order")
def without_the_last_rack(racks: Racks) -> Any:
    return [w for rack in range(max(racks)) for w in range(len(racks)) if racks[w] == rack]


@wrong("ring_order")
def the_first_rack_and_the_rest(racks: Racks) -> Any:
    return sorted(range(len(racks)), key=lambda w: racks[w] != racks[0])


@wrong("ring_order")
def two_of_each_rack(racks: Racks) -> Any:
    return [w for group in members(racks).values() for w in group[:2]]


@wrong("ring_order")
def numbers_inside_the_rack(racks: Racks) -> Any:
    return [place for group in members(racks).values() for place in range(len(group))]


@wrong("ring_order")
def counts_from_one(racks: Racks) -> Any:
    return [w + 1 for w in sorted(range(len(racks)), key=racks.__getitem__)]


@wrong("ring_order")
def sorts_in_place(racks: Racks) -> Any:
    order = sorted(range(len(racks)), key=racks.__getitem__)
    racks.sort()
    return order


@wrong("ring_order")
def returns_what_sort_returns(racks: Racks) -> Any:
    return list(range(len(racks))).sort(key=racks.__getitem__)


@wrong("ring_order")
def number_of_crossings(racks: Racks) -> Any:
    return len(set(racks))


@wrong("ring_order")
def runs_over_the_end(racks: Racks) -> Any:
    order = sorted(range(len(racks)), key=racks.__getitem__)
    return [order[i + 1] for i in range(len(order))]


# --- uplink_bytes ---

Order = list[int]


def leaving(order: Order, racks: Racks) -> list[int]:
    """The rack of each worker whose successor is in another one."""
    after = order[1:] + order[:1]
    return [racks[a] for a, b in zip(order, after, strict=True) if racks[a] != racks[b]]


def times(order: Order, racks: Racks, each: float, senders: list[int] | None = None) -> Any:
    """So many bytes for each of these crossings; without a list, for those of the ring."""
    count = Counter(leaving(order, racks) if senders is None else senders)
    return {rack: count[rack] * each for rack in racks}


def share(order: Order, nbytes: float) -> float:
    return 2 * (len(order) - 1) * nbytes / len(order)


@right("uplink_bytes")
def counted_where_they_arrive(order: Order, racks: Racks, nbytes: int) -> Any:
    """A ring enters each rack as often as it leaves it."""
    sent = [0.0] * (max(racks) + 1)
    for i in range(len(order)):
        if racks[order[i - 1]] != racks[order[i]]:
            sent[racks[order[i]]] += share(order, nbytes)
    return dict(enumerate(sent))


@right("uplink_bytes")
def round_by_round(order: Order, racks: Racks, nbytes: int) -> Any:
    """Plays the ring with its chunks."""
    n, sent = len(order), defaultdict(int, dict.fromkeys(sorted(racks), 0))
    for _ in range(2 * (n - 1)):
        for here, there in zip(order, np.roll(order, -1), strict=True):
            sent[racks[here]] += nbytes // n if racks[here] != racks[there] else 0
    return sent


@right("uplink_bytes")
def with_numpy(order: Order, racks: Racks, nbytes: int) -> Any:
    here = np.array(racks)[order]
    crosses = here != np.roll(here, -1)
    count = np.bincount(here[crosses], minlength=max(racks) + 1)
    total = 2 * (len(order) - 1) * nbytes // len(order) * count
    return {rack: total[rack] for rack in np.unique(racks)}


@wrong("uplink_bytes")
def without_the_copies(order: Order, racks: Racks, nbytes: int) -> Any:
    return times(order, racks, share(order, nbytes) / 2)


@wrong("uplink_bytes")
def receives_as_well(order: Order, racks: Racks, nbytes: int) -> Any:
    sent = dict.fromkeys(racks, 0.0)
    for i, worker in enumerate(order):
        successor = order[(i + 1) % len(order)]
        if racks[worker] != racks[successor]:
            sent[racks[worker]] += share(order, nbytes)
            sent[racks[successor]] += share(order, nbytes)
    return sent


@wrong("uplink_bytes")
def one_round(order: Order, racks: Racks, nbytes: int) -> Any:
    return times(order, racks, nbytes / len(order))


@wrong("uplink_bytes")
def divides_by_n_twice(order: Order, racks: Racks, nbytes: int) -> Any:
    return times(order, racks, share(order, nbytes / len(order)))


@wrong("uplink_bytes")
def whole_buffers(order: Order, racks: Racks, nbytes: int) -> Any:
    return times(order, racks, 2 * (len(order) - 1) * nbytes)


@wrong("uplink_bytes")
def a_round_too_many(order: Order, racks: Racks, nbytes: int) -> Any:
    return times(order, racks, 2 * len(order) * (nbytes / len(order)))


@wrong("uplink_bytes")
def rounds_down(order: Order, racks: Racks, nbytes: int) -> Any:
    return times(order, racks, 2 * (len(order) - 1) // len(order) * nbytes)


@wrong("uplink_bytes")
def n_is_the_number_of_racks(order: Order, racks: Racks, nbytes: int) -> Any:
    return times(order, racks, share(sorted(set(racks)), nbytes))


@wrong("uplink_bytes")
def all_that_its_workers_send(order: Order, racks: Racks, nbytes: int) -> Any:
    return times(order, racks, share(order, nbytes), racks)


@wrong("uplink_bytes")
def what_stays_inside(order: Order, racks: Racks, nbytes: int) -> Any:
    inside = Counter(racks) - Counter(leaving(order, racks))
    return times(order, racks, share(order, nbytes), list(inside.elements()))


@wrong("uplink_bytes")
def assigns(order: Order, racks: Racks, nbytes: int) -> Any:
    sent = dict.fromkeys(racks, 0.0)
    for rack in leaving(order, racks):
        sent[rack] = share(order, nbytes)
    return sent


@wrong("uplink_bytes")
def not_closed(order: Order, racks: Racks, nbytes: int) -> Any:
    steps = pairwise(order)
    senders = [racks[a] for a, b in steps if racks[a] != racks[b]]
    return times(order, racks, share(order, nbytes), senders)


@wrong("uplink_bytes")
def next_number_as_successor(order: Order, racks: Racks, nbytes: int) -> Any:
    senders = [racks[w] for w in order if racks[w] != racks[(w + 1) % len(order)]]
    return times(order, racks, share(order, nbytes), senders)


@wrong("uplink_bytes")
def racks_of_places(order: Order, racks: Racks, nbytes: int) -> Any:
    return times(order, racks, share(order, nbytes), leaving(list(range(len(racks))), racks))


@wrong("uplink_bytes")
def bits(order: Order, racks: Racks, nbytes: int) -> Any:
    return times(order, racks, 8 * share(order, nbytes))


@wrong("uplink_bytes")
def megabytes(order: Order, racks: Racks, nbytes: int) -> Any:
    return times(order, racks, share(order, nbytes) / 1e6)


@wrong("uplink_bytes")
def all_racks_together(order: Order, racks: Racks, nbytes: int) -> Any:
    return dict.fromkeys(racks, len(leaving(order, racks)) * share(order, nbytes))


@wrong("uplink_bytes")
def one_number_for_all(order: Order, racks: Racks, nbytes: int) -> Any:
    return len(leaving(order, racks)) * share(order, nbytes)


@wrong("uplink_bytes")
def a_list(order: Order, racks: Racks, nbytes: int) -> Any:
    sent = times(order, racks, share(order, nbytes))
    return [sent[rack] for rack in sorted(sent)]


@wrong("uplink_bytes")
def without_quiet_racks(order: Order, racks: Racks, nbytes: int) -> Any:
    return {rack: n * share(order, nbytes) for rack, n in Counter(leaving(order, racks)).items()}


@wrong("uplink_bytes")
def for_each_worker(order: Order, racks: Racks, nbytes: int) -> Any:
    sent = {}
    for i, worker in enumerate(order):
        crosses = racks[worker] != racks[order[(i + 1) % len(order)]]
        sent[worker] = share(order, nbytes) if crosses else 0
    return sent


@wrong("uplink_bytes")
def for_each_pair_of_racks(order: Order, racks: Racks, nbytes: int) -> Any:
    sent: Counter[tuple[int, int]] = Counter()
    for i, worker in enumerate(order):
        ends = racks[worker], racks[order[(i + 1) % len(order)]]
        sent[ends] += int(share(order, nbytes)) if ends[0] != ends[1] else 0
    return sent


@wrong("uplink_bytes")
def names_as_keys(order: Order, racks: Racks, nbytes: int) -> Any:
    sent = times(order, racks, share(order, nbytes))
    return {f"rack {rack}": count for rack, count in sent.items()}


@wrong("uplink_bytes")
def a_list_of_messages(order: Order, racks: Racks, nbytes: int) -> Any:
    sent: dict[int, list[float]] = {rack: [] for rack in racks}
    for rack in leaving(order, racks):
        sent[rack].append(share(order, nbytes))
    return sent


@wrong("uplink_bytes")
def closes_the_order_that_is_given(order: Order, racks: Racks, nbytes: int) -> Any:
    n = len(order)
    order.append(order[0])
    senders = [racks[order[i]] for i in range(n) if racks[order[i]] != racks[order[i + 1]]]
    return times(order, racks, share(order[:-1], nbytes), senders)


@wrong("uplink_bytes", "runs over the end")
def no_modulo(order: Order, racks: Racks, nbytes: int) -> Any:
    senders = [racks[w] for i, w in enumerate(order) if racks[w] != racks[order[i + 1]]]
    return times(order, racks, share(order, nbytes), senders)


@wrong("uplink_bytes")
def begins_with_nothing(order: Order, racks: Racks, nbytes: int) -> Any:
    sent: dict[int, float] = {}
    for rack in leaving(order, racks):
        sent[rack] += share(order, nbytes)
    return sent


@wrong("uplink_bytes", "returns nothing")
def no_return(order: Order, racks: Racks, nbytes: int) -> Any:
    times(order, racks, share(order, nbytes))


test_wrong_answers_are_rejected_in_words = ANSWERS.rejected()
test_right_answers_pass = ANSWERS.accepted()
test_there_are_enough_of_each = ANSWERS.enough(8, 3, "ring_order", "uplink_bytes")
