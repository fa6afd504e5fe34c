"""The task "ring": the chunked ring.

A wrong one is compared with the ring that its own first round begins.
"""

from __future__ import annotations

from functools import partial
from math import lcm

from course_lib.collectives import Schedule, Transfer, cost, verify
from course_lib.collectives.schedule import Op
from course_lib.course.algorithm import judge
from course_lib.course.attempt import Attempt
from course_lib.course.mistakes import Rounds, rebuilt, rounds_of
from course_lib.course.task import Task

HINTS = (
    "Follow one chunk only. It starts on some rank and goes around the ring; each rank on its way adds its own numbers. After workers - 1 "
    "hops the sum is complete. How many more hops until everybody has it, and what is the op then? Each rank starts with another chunk, so "
    "that all ranks send in every round.",
    "The rule of the ring: pass on what you received in the round before. If rank r begins with chunk r, then in round i it sends chunk "
    "(r - i) % workers to rank (r + 1) % workers. The first workers - 1 rounds add, the last workers - 1 rounds copy, and the rule "
    "holds through all of them, from round 0 to the last.",
    "The first half, with chunks=workers:\n"
    '    [[Transfer(r, (r + 1) % workers, (r - i) % workers, "reduce") for r in range(workers)] for i in range(workers - 1)]\n'
    "After it rank r has all of chunk (r + 1) % workers. That is what it sends in the first round of the second half.",
)


def over_budget(schedule: Schedule) -> str:
    """Words for a right schedule that is not a ring; "" for one that is.

    P workers, S bytes: 2(P-1) rounds, every rank sends 2(P-1)/P S, and talks to its two neighbours
    only.
    """
    workers, rounds = schedule.workers, rounds_of(schedule)
    if workers == 1:
        return "One worker has the sum already, and has nobody to send it to." if rounds else ""
    shares = lcm(workers, schedule.chunks)
    sent = cost(schedule, shares).sent
    want, fair = 2 * (workers - 1), 2 * (workers - 1) * shares // workers
    if schedule.chunks == 1:
        return _whole_buffers(workers, max(sent) // shares)
    if len(rounds) > want and all(len(r) == 1 for r in rounds):
        return f"It takes {len(rounds)} rounds, with one transfer each; {want} are enough. In a ring all {workers} ranks send in every round."
    peers = max(
        len({t.src + t.dst - rank for r in rounds for t in r if rank in (t.src, t.dst)})
        for rank in range(workers)
    )
    if peers > 2:
        return f"This is no ring: a rank talks to {peers} others. In a ring each has two neighbours, and sends to the same one in every round."
    if len(rounds) != want:
        return f"It takes {len(rounds)} rounds; a ring takes 2(P-1) = {want}."
    if max(sent) != fair:
        share = f"{max(sent) / shares:.3g} S"
        return f"The busiest rank sends {share} (S is the buffer); in a ring each sends 2(P-1)/P S = {fair / shares:.3g} S, all equally much."
    return ""


def whole_buffers(attempt: Attempt) -> str:
    """The buffer is not cut."""
    schedules = [s for n, s in attempt.schedules.items() if n > 2]
    if schedules and all(
        s.chunks == 1 and {t.chunk for r in s.rounds for t in r} == {0} for s in schedules
    ):
        return _whole_buffers(schedules[0].workers)
    return ""


def _whole_buffers(workers: int, sends: int = 0) -> str:
    busiest = f" The busiest rank sends {sends} S in all, in a ring 2(P-1)/P S." if sends else ""
    return (
        f"Whole buffers are passed: a rank sends all S bytes in a round instead of S/P (here S/{workers}).{busiest} "
        "Cut the buffer: chunks=workers, and let every rank begin with a chunk of its own."
    )


def begun(schedule: Schedule) -> Rounds:
    """The ring that the first round of a schedule begins: each rank passes on what came to it; []
    where the first round begins none.
    """
    rounds, workers = rounds_of(schedule), schedule.workers
    if not rounds or len(rounds[0]) != workers or {t.src for t in rounds[0]} != set(range(workers)):
        return []
    right = {t.src: t.dst for t in rounds[0]}
    left = {dst: src for src, dst in right.items()}
    chunk = {t.src: t.chunk for t in rounds[0]}
    if set(left) != set(range(workers)):
        return []
    whole: Rounds = []
    for number in range(2 * (workers - 1)):
        op: Op = "reduce" if number < workers - 1 else "copy"
        whole.append([Transfer(r, right[r], chunk[r], op) for r in range(workers)])
        chunk = {r: chunk[left[r]] for r in range(workers)}
    return whole if verify(rebuilt(schedule, whole)).ok else []


def strays(attempt: Attempt) -> str:
    """Where the schedule leaves the ring that it began."""
    proof = attempt.first_wrong(least=2)  # one worker has no ring
    if proof is None or not (ring := begun(proof.schedule)):
        return ""
    mine, workers = rounds_of(proof.schedule), proof.schedule.workers
    if len(mine) != len(ring):
        return _count(mine, workers)
    for number, (have, want) in enumerate(zip(mine, ring, strict=True)):
        by_rank = {t.src: t for t in have}
        for right in want:
            t = by_rank.get(right.src)
            if t is None or t == right:
                continue
            if t.dst != right.dst:
                return f"In round {number} rank {t.src} sends to rank {t.dst}, before to rank {right.dst}: in a ring always to the same neighbour."
            if t.chunk != right.chunk:
                return _chunk(number, t, right, workers)
    return ""


def _count(mine: Rounds, workers: int) -> str:
    """Words for a ring with too few rounds or too many."""
    hops, total = workers - 1, 2 * (workers - 1)
    adding = sum(all(t.op == "reduce" for t in r) for r in mine)
    if len(mine) == hops == adding:
        so_far = f"{hops} round{'s' * (hops > 1)} of {total}"
        return f"The all-gather is missing: {so_far}. Every sum is complete on one rank; pass it on around the ring, with 'copy'."
    if adding == len(mine):
        return ""
    half, number = ("adds", adding) if adding != hops else ("copies", len(mine) - adding)
    so = "A chunk has been everywhere after P-1 hops"
    end = (
        f"{so}; one more adds it where it is already."
        if number > hops and half == "adds"
        else f"{so}."
    )
    return f"The half that {half} has {number} round{'s' * (number != 1)} for {workers} workers; it takes P-1 = {hops}. {end}"


def _chunk(number: int, t: Transfer, right: Transfer, workers: int) -> str:
    if number == workers - 1:
        return (
            f"The second half begins with the wrong chunk (off by one): in round {number} rank {t.src} sends chunk {t.chunk}, which it has not "
            f"finished; chunk {right.chunk} has just come to it complete. Pass on what you received in the round before."
        )
    return (
        f"The chunks go the wrong way round: in round {number} rank {t.src} sends chunk {t.chunk}, but what it received in round {number - 1} is "
        f"chunk {right.chunk}. Pass on what you received in the round before: if ranks send to r + 1, the chunk's number falls from round to round."
    )


TASK = Task(
    name="ring",
    answer="my_ring",
    hints=HINTS,
    judge=partial(
        judge,
        budget=over_budget,
        spent="2(P-1) rounds, every rank sends 2(P-1)/P of the buffer to one neighbour",
        known=(whole_buffers, strays),
    ),
)
