"""The checks of exercise 05: a ring over racks, the bytes that it sends over their uplinks, and an
all-reduce for unequal racks that is carried out over slow links, beside that ring.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

from course_lib.course.answers import ExerciseTask, Unusable, Verdict
from course_lib.course.handed_in import Answer

from . import ready_made
from .calls import NOTHING, asked
from .schedules import racks as design
from .schedules.racks import drawn, shuffled

Complaint = tuple[str, str]

# the rack of each worker: small cases first, each of which tells some mistakes apart
PLACEMENTS = (
    *([0], [0, 0], [1, 0], [0, 1, 0], [1, 0, 1, 0, 0]),
    *([0, 1, 2, 0, 2, 0], [2, 0, 1, 1, 0, 1, 2]),
)


def placements() -> list[list[int]]:
    """These, and some that are drawn at each check."""
    return [*PLACEMENTS, *(drawn(6 + secrets.randbelow(7)) for _ in range(4))]


def called(learners: Any, *given: Any) -> dict[str, Any]:
    """Where the learner's code runs: what it returns, as plain data."""
    copies = deepcopy(given)
    result = learners(*copies)
    if isinstance(result, dict):
        result = {"pairs": [list(pair) for pair in result.items()]}
    elif result is not None and hasattr(result, "__iter__"):
        result = [int(n) if hasattr(n, "__index__") else n for n in result]
    return {"result": result, "changed": copies != given}


CURES = {  # by the name of an error
    "IndexError": (
        "An index lies outside its list. There may be any number of racks, and the worker after the"
        " last one is the first: take (i + 1) % n."
    ),
    "KeyError": "A dictionary lacks this key: begin with an entry for each rack.",
}


def result_of(answer: Answer, *given: Any) -> Any:
    """What comes back. Raises Unusable for an answer that fails, returns nothing, or changes what
    it is given.
    """
    where = f"{answer.__name__}({', '.join(map(str, given))})"
    try:
        came = asked(answer, called, *given)
    except Unusable as problem:
        text = str(problem).replace(answer.__name__, where, 1)
        cures = [cure for error, cure in CURES.items() if f" raises {error}: " in text]
        raise Unusable(". ".join([text, *cures])) from None
    if came["result"] is None:
        raise Unusable(f"{NOTHING} A list's sort() and append() return nothing either.")
    if came["changed"]:
        raise Unusable(
            f"{where} changes a list that it is given, which others still need. Work on a copy of"
            " it, such as list(...) makes."
        )
    return came["result"]


# --- ring_order ---

ORDER_HINTS = (
    (
        "If the ring goes through all workers of one rack before it goes on to the next, how often"
        " does it leave each rack?"
    ),
    (
        "Go through the racks one by one, and append the workers of each. Which numbers are wanted:"
        " those of workers, or those of racks?"
    ),
    "Python's sorted takes a key: sorted(range(len(racks)), key=...) sorts workers by their rack.",
)


def judge_order(task: str, answer: Answer) -> Verdict:
    cases = placements()
    orders = [result_of(answer, racks) for racks in cases]
    for racks, order in zip(cases, orders, strict=True):
        if wrong := workers_complaint(order, racks):
            return Verdict(task, "not yet", f"{case(racks, order)} {wrong[0]}", wrong[1])
    for racks, order in zip(cases, orders, strict=True):
        count, least = len(left(order, racks)), fewest(racks)
        if count > least:
            text = f"{case(racks, order)} It crosses between racks {count} times; {least} do."
            return Verdict(task, "not yet", text, order_mistake(cases, orders))
    text = (
        f"Right for {len(cases)} placements, {len(cases) - len(PLACEMENTS)} of them drawn at this"
        " check: the ring enters and leaves each rack once."
    )
    return Verdict(task, "passed", text)


def case(racks: list[int], order: Any) -> str:
    """Words for an answer and what it was given."""
    shown = order if isinstance(order, list) else f"a value of type {type(order).__name__}"
    return f"For racks {racks} it returns {shown}."


def left(order: Sequence[int], racks: Sequence[int], close: bool = True) -> list[int]:
    """The racks that a ring leaves, one for each crossing; without the way from its last worker
    back to its first unless it is closed.
    """
    after = [*order[1:], order[0]] if close else order[1:]
    steps = zip(order, after, strict=False)  # of an open ring one fewer
    return [racks[a] for a, b in steps if racks[a] != racks[b]]


def fewest(racks: list[int]) -> int:
    count = len(set(racks))
    return count if count > 1 else 0


def workers_complaint(order: Any, racks: list[int]) -> Complaint | None:
    """What is wrong with an order that does not have each worker once."""
    workers = range(len(racks))
    if not isinstance(order, list):
        return "That is no list.", "Return a list of all workers, in the order of the ring."
    pairs = [[racks[w], w] for w in workers]
    if all(pair in order for pair in pairs):
        return "There are pairs in it.", "Leave out the racks: return the workers alone."
    if any(isinstance(each, list) for each in order):
        return "There are lists in it.", "Join them: return one list, the racks one after another."
    if strange := [each for each in order if each not in workers]:
        return (
            f"{strange[0]} is no worker.",
            f"Workers are numbered from 0 on, so the last one here is {len(racks) - 1}.",
        )
    if sorted(order) == sorted(racks) and sorted(order) != list(workers):
        return "These are the racks.", "Return the numbers of the workers that sit there."
    if len(order) == len(racks) + 1 and order[0] == order[-1]:
        return f"Worker {order[0]} is in it twice.", (
            "The ring closes by itself: after the last worker comes the first again. Name it once."
        )
    if twice := [w for w in workers if order.count(w) > 1]:
        inside = sorted(racks[:w].count(racks[w]) for w in workers)
        return f"Worker {twice[0]} is in it more than once.", (
            "These are places inside a rack, which begin with 0 in each. Wanted are the workers."
            if sorted(order) == inside
            else "Each worker has one place in the ring."
        )
    if missing := [w for w in workers if w not in order]:
        return f"Worker {missing[0]} is missing.", missing_mistake(order, racks)
    return None


def missing_mistake(order: list[int], racks: list[int]) -> str:
    there = [racks[w] for w in order]
    if sorted(there) == sorted(set(racks)):
        return "Only one worker of each rack is in it: keep a list for each rack."
    if gone := sorted(set(racks) - set(there)):
        return (
            f"Rack {gone[0]} is left out as a whole. There may be any number of racks, and range(n)"
            " ends with n - 1."
        )
    return "All workers of a rack belong in the ring, however many it has."


def order_mistake(cases: list[list[int]], orders: list[list[int]]) -> str:
    both = list(zip(cases, orders, strict=True))
    if all(order == list(range(len(racks))) for racks, order in both):
        return (
            "This is the order of the workers' numbers. It does not depend on the racks. Put all"
            " workers of a rack next to each other."
        )
    if all(len(left(inverse(order), racks)) == fewest(racks) for racks, order in both):
        return (
            "At index w stands the place of worker w in the ring. Wanted is the reverse: at each"
            " place, which worker sits there."
        )
    if all(deals(order, racks) for racks, order in both):
        return (
            "This takes a worker from each rack in turn, so neighbours sit in different racks: the"
            " worst order of lesson 05. Finish one rack first."
        )
    return (
        "A rack is left, and entered a second time. Put all workers of a rack next to each other,"
        " however many it has."
    )


def inverse(order: list[int]) -> list[int]:
    return [order.index(w) for w in range(len(order))]


def deals(order: list[int], racks: list[int]) -> bool:
    """Tell if it takes a worker of each rack in turn, as long as the rack has one."""
    along = [racks[w] for w in order]
    turns = [along[:i].count(rack) for i, rack in enumerate(along)]
    return turns == sorted(turns)


# --- uplink_bytes ---

BYTES_HINTS = (
    (
        "In a ring every worker sends the same number of bytes, always to the worker behind it in"
        " the order. For which workers does this go over an uplink?"
    ),
    (
        "A chunk has nbytes / n bytes, and a worker sends 2 (n - 1) of them. Begin with 0 for each"
        " rack. For each worker whose successor sits in another rack, add this to the worker's own"
        " rack. The successor of the last worker is the first."
    ),
    (
        "each = 2 * (n - 1) * nbytes / n; for i in range(n): a, b = order[i], order[(i + 1) % n];"
        " if racks[a] != racks[b]: sent[racks[a]] += each."
    ),
)


@dataclass(frozen=True)
class Ring:
    """A ring over racks, and the number of bytes to be added up."""

    order: list[int]
    racks: list[int]
    nbytes: int

    @property
    def n(self) -> int:
        return len(self.order)

    @property
    def each(self) -> int:
        """The bytes that each worker sends."""
        return 2 * (self.n - 1) * self.nbytes // self.n

    def crossings(self, rack: int) -> int:
        return left(self.order, self.racks).count(rack)

    @property
    def sent(self) -> dict[int, float]:
        return {rack: self.crossings(rack) * self.each for rack in sorted(set(self.racks))}


Variant = Callable[[Ring, int], float]  # the bytes of a rack, with one mistake
ONE_ROUND = "This is what goes in one round. A ring takes 2 (n - 1) rounds."
VARIANTS: tuple[tuple[str, Variant], ...] = (
    (
        "A factor of 2 is missing: chunks go around once to be added and once to be copied.",
        lambda r, rack: r.crossings(rack) * r.each / 2,
    ),
    (
        "This is twice as much: what a rack receives comes over its downlink, and is not counted.",
        lambda r, rack: r.crossings(rack) * r.each * 2,
    ),
    (ONE_ROUND, lambda r, rack: r.crossings(rack) * r.nbytes / r.n),
    (
        "It is divided by n twice: 2 (n - 1) / n is a share of nbytes, not of a chunk.",
        lambda r, rack: r.crossings(rack) * r.each / r.n,
    ),
    (
        "It counts whole buffers: in each round a worker sends one chunk, nbytes / n.",
        lambda r, rack: r.crossings(rack) * r.each * r.n,
    ),
    (
        "It counts 2 n rounds. After n - 1 hops a chunk has been everywhere, so there are 2 (n - 1)"
        " rounds.",
        lambda r, rack: r.crossings(rack) * 2 * r.nbytes,
    ),
    (
        "The factor 2 (n - 1) / n has become 1: // rounds down. Divide with /, or multiply by"
        " nbytes first.",
        lambda r, rack: r.crossings(rack) * r.nbytes * (r.n > 1),
    ),
    (
        "n is the number of workers in the ring, not that of racks.",
        lambda r, rack: (
            r.crossings(rack) * r.nbytes * 2 * (len(set(r.racks)) - 1) / len(set(r.racks))
        ),
    ),
    (
        "It counts what all workers of the rack send. To a neighbour in the same rack nothing goes"
        " over the uplink.",
        lambda r, rack: r.racks.count(rack) * r.each,
    ),
    (
        "It counts what stays inside the rack. The uplink carries what goes to another rack.",
        lambda r, rack: (r.racks.count(rack) - r.crossings(rack)) * r.each,
    ),
    (
        "Each rack is counted once, but a ring may leave a rack several times: add, do not assign.",
        lambda r, rack: min(1, r.crossings(rack)) * r.each,
    ),
    (
        "The ring is not closed: the last worker of the order sends to the first.",
        lambda r, rack: left(r.order, r.racks, close=False).count(rack) * r.each,
    ),
    (
        "It takes worker w + 1 as the successor of worker w, or worker i for the one at place i of"
        " the ring. At place i stands order[i], and its successor is order[(i + 1) % n].",
        lambda r, rack: left(range(r.n), r.racks).count(rack) * r.each,
    ),
    ("These are bits: leave out the 8.", lambda r, rack: r.crossings(rack) * r.each * 8),
    ("These are megabytes: do not divide.", lambda r, rack: r.crossings(rack) * r.each / 1e6),
    (
        "Each rack gets the bytes of all racks together. Count what its own workers send.",
        lambda r, rack: len(left(r.order, r.racks)) * r.each,
    ),
)


# order and racks: small cases first, as above
RINGS = (
    *(([0], [0]), ([1, 0], [0, 0]), ([1, 0], [1, 0]), ([1, 0, 2], [0, 1, 0])),
    *(([3, 1, 0, 4, 2], [1, 0, 1, 0, 0]), ([5, 1, 3, 2, 4, 0], [0, 1, 2, 0, 2, 0])),
)


def rings_over_racks() -> list[Ring]:
    """These, and some that are drawn at each check; the sizes are drawn for all."""
    more = [(shuffled(range(len(racks))), racks) for racks in placements()[len(PLACEMENTS) :]]
    return [Ring(*both, len(both[0]) * (10 + secrets.randbelow(990))) for both in (*RINGS, *more)]


def judge_bytes(task: str, answer: Answer) -> Verdict:
    rings = rings_over_racks()
    answers = [numbers(result_of(answer, r.order, r.racks, r.nbytes)) for r in rings]
    for r, sent in zip(rings, answers, strict=True):
        if not same(sent, r.sent):
            text = (
                f"For order {r.order}, racks {r.racks} and {r.nbytes} bytes it gives {words(sent)}."
                f" Right is {words(r.sent)}."
            )
            return Verdict(task, "not yet", text, bytes_mistake(rings, answers))
    text = f"Right for {len(rings)} rings over racks, with orders and sizes drawn at this check."
    return Verdict(task, "passed", text)


def numbers(given: Any) -> dict[Any, float]:
    """The bytes of each rack. Raises Unusable for what is no dictionary of numbers."""
    if not isinstance(given, dict):
        raise Unusable(
            f"It returns a value of type {type(given).__name__}. Return a dictionary: for each rack"
            " the bytes, such as {0: 120, 1: 120}."
        )
    if any(isinstance(key, list) for key, _ in given["pairs"]):
        raise Unusable(
            "Its keys are tuples. A key is one rack: add up what leaves it, wherever that goes."
        )
    sent = dict(map(tuple, given["pairs"]))
    if strange := [n for n in sent.values() if not isinstance(n, (int, float))]:
        kind = type(strange[0]).__name__
        raise Unusable(
            f"The bytes of a rack are a value of type {kind}. They must be one number: add them up."
        )
    return sent


def same(sent: dict[Any, float], right: dict[int, float]) -> bool:
    return sent.keys() == right.keys() and all(math.isclose(sent[k], right[k]) for k in right)


def words(sent: dict[Any, float]) -> str:
    return ", ".join(f"{count:.10g} for rack {rack!r}" for rack, count in sent.items()) or "nothing"


def bytes_mistake(rings: list[Ring], answers: list[dict[Any, float]]) -> str:
    both = list(zip(rings, answers, strict=True))
    for text, variant in VARIANTS:
        if all(same(sent, {k: variant(r, k) for k in r.sent}) for r, sent in both):
            return text
    if all(same({k: n for k, n in r.sent.items() if n}, sent) for r, sent in both):
        return "A rack whose uplink carries nothing belongs in it as well, with 0."
    if all(sent.keys() == set(range(r.n)) for r, sent in both):
        return "The keys are workers: add up the bytes of all workers of a rack, under its number."
    if any(sent.keys() != r.sent.keys() for r, sent in both):
        return "The keys are the numbers of the racks, 0, 1 and so on: all of them, and no others."
    return (
        "A worker sends 2 (n - 1) / n * nbytes to the worker behind it. Add this up for each rack,"
        " over those of its workers whose successor sits in another rack."
    )


TASKS = (
    ExerciseTask(
        "ring_order", "ring_order", ORDER_HINTS, judge_order, section="05_ring_vs_hierarchical#Look"
    ),
    ExerciseTask(
        name="uplink_bytes",
        answer="uplink_bytes",
        hints=BYTES_HINTS,
        judge=judge_bytes,
        ready_made={**ready_made.LIBRARY, "course_lib.collectives.cost": "the library's own cost"},
        section="05_ring_vs_hierarchical#Explain",
    ),
    ExerciseTask(
        name="rack_all_reduce",
        answer="my_rack_allreduce",
        hints=design.HINTS,
        judge=design.judge,
        ready_made=ready_made.LIBRARY,
        section="05_ring_vs_hierarchical#Explain",
    ),
)
