"""The checks of exercise 04: four all-reduces written by hand, and a training that uses one."""

from __future__ import annotations

from functools import partial
from math import lcm

from course_lib.collectives import Schedule, Transfer, cost, verify
from course_lib.collectives.schedule import Op
from course_lib.course.answers import ExerciseTask

from . import ready_made, training
from .schedules import Attempt, Rounds, across, judge, rebuilt, rounds_of, with_ways

# --- reduce_to_one: all send to one rank, which adds and sends back ---

REDUCE_TO_ONE_HINTS = (
    (
        "Two rounds are enough. In the first the sum comes together on rank 0; in the second it"
        " goes back. For each: who sends, who receives, and is it added to what is there ('reduce')"
        " or does it take its place ('copy')?"
    ),
    (
        "Round 0: every rank but 0 sends chunk 0 to rank 0, op 'reduce'. Round 1: rank 0 sends"
        " chunk 0 to every other rank, op 'copy'. A round is a list with one Transfer for each of"
        " the other ranks."
    ),
    (
        'The first round is [Transfer(r, 0, 0, "reduce") for r in range(1, workers)]. Write the'
        " second in the same way, with sender and receiver exchanged and another op, and put both"
        " into a list."
    ),
)


def over_reduce_to_one(schedule: Schedule) -> str:
    """Words for a right schedule that is not a reduction to one rank; "" for one that is.

    For P workers it is 2 rounds of P-1 messages each.
    """
    workers, rounds = schedule.workers, rounds_of(schedule)
    if workers == 1:
        return "One worker has the sum already, and has nobody to send it to." if rounds else ""
    messages = sum(len({(t.src, t.dst) for t in r}) for r in rounds)
    if len(rounds) != 2:
        return (
            f"It takes {len(rounds)} rounds where 2 are enough: what does not wait for another"
            " belongs in the same round. All can send to one rank at once; their numbers are added"
            " there."
        )
    if messages != 2 * (workers - 1):
        return (
            f"It takes {messages} messages where {2 * (workers - 1)} are enough: {workers - 1} to"
            f" one rank, and {workers - 1} back from it."
        )
    return ""


REDUCE_TO_ONE = ExerciseTask(
    name="reduce_to_one",
    answer="my_reduce_to_one",
    hints=REDUCE_TO_ONE_HINTS,
    judge=partial(
        judge, budget=over_reduce_to_one, spent="2 rounds, with P-1 messages in each of them"
    ),
    ready_made=ready_made.LIBRARY,
    section="04_all_reduce#Run",
)

# --- ring: the chunked ring ---

RING_HINTS = (
    (
        "Follow one chunk only. It starts on some rank and goes around the ring; each rank on its"
        " way adds its own numbers. After workers - 1 hops the sum is complete. How many more hops"
        " until everybody has it, and what is the op then? Each rank starts with another chunk, so"
        " that all ranks send in every round."
    ),
    (
        "The rule of the ring: pass on what you received in the round before. If rank r begins with"
        " chunk r, then in round i it sends chunk (r - i) % workers to rank (r + 1) % workers. The"
        " first workers - 1 rounds add, the last workers - 1 rounds copy, and the rule holds"
        " through all of them, from round 0 to the last."
    ),
    (
        "The first half, with chunks=workers:\n"
        '    [[Transfer(r, (r + 1) % workers, (r - i) % workers, "reduce") for r in range(workers)]'
        " for i in range(workers - 1)]\n"
        "After it rank r has all of chunk (r + 1) % workers. That is what it sends in the first"
        " round of the second half."
    ),
)


def over_ring(schedule: Schedule) -> str:
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
        return (
            f"It takes {len(rounds)} rounds, with one transfer each; {want} are enough. In a ring"
            f" all {workers} ranks send in every round."
        )
    peers = max(
        len({t.src + t.dst - rank for r in rounds for t in r if rank in (t.src, t.dst)})
        for rank in range(workers)
    )
    if peers > 2:
        return (
            f"This is no ring: a rank talks to {peers} others. In a ring each has two neighbours,"
            " and sends to the same one in every round."
        )
    if len(rounds) != want:
        return f"It takes {len(rounds)} rounds; a ring of P workers takes 2(P-1), here {want}."
    if max(sent) != fair:
        share = f"{max(sent) / shares:.3g} S"
        return (
            f"The busiest rank sends {share} (S is the buffer); in a ring each sends 2(P-1)/P S ="
            f" {fair / shares:.3g} S, all equally much."
        )
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
        "Whole buffers are passed: a rank sends all S bytes in a round instead of S/P (here"
        f" S/{workers}).{busiest} Cut the buffer: chunks=workers, and let every rank begin with a"
        " chunk of its own."
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


def same_chunk(attempt: Attempt) -> str:
    """The ranks send their chunks once more instead of what has come to them. Three workers show
    it: with two, each half of a ring has one round.
    """
    schedule = attempt.schedules.get(3)
    if schedule is None or not begun(schedule):
        return ""
    sent = [{t.src: t.chunk for t in r} for r in rounds_of(schedule)]
    for before, now in ((0, 1), (2, 3)):  # both rounds of each half
        if now < len(sent) and sent[before] == sent[now] and 0 in sent[now]:
            return (
                f"The ranks send the same chunk again: with 3 workers, rank 0 sends chunk"
                f" {sent[now][0]} in round {before} and in round {now}. Pass on what you received"
                " in the round before."
            )
    return ""


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
            for what, given in (("rank", t.dst), ("chunk", t.chunk)):
                if not 0 <= given < workers:
                    return (
                        f"A number runs over the end: in round {number} rank {t.src} sends"
                        f"{' to' * (what == 'rank')} {what} {given}, and there are only {what}s 0"
                        f" to {workers - 1}. Is % workers missing?"
                    )
            if t.dst != right.dst:
                return (
                    f"In round {number} rank {t.src} sends to rank {t.dst}, before to rank"
                    f" {right.dst}: in a ring always to the same neighbour."
                )
            if t.chunk != right.chunk:
                return _chunk(number, t, right, workers)
    return ""


def _count(mine: Rounds, workers: int) -> str:
    """Words for a ring with too few rounds or too many."""
    hops, total = workers - 1, 2 * (workers - 1)
    adding = sum(all(t.op == "reduce" for t in r) for r in mine)
    if len(mine) == hops == adding:
        so_far = f"{hops} round{'s' * (hops > 1)} of {total}"
        return (
            f"The all-gather is missing: {so_far}. Every sum is complete on one rank; pass it on"
            " around the ring, with 'copy'."
        )
    if adding == len(mine):
        return ""
    half, number = ("adds", adding) if adding != hops else ("copies", len(mine) - adding)
    so = "A chunk has been everywhere after P-1 hops"
    end = (
        f"{so}; one more adds it where it is already."
        if number > hops and half == "adds"
        else f"{so}."
    )
    return (
        f"The half that {half} has {number} round{'s' * (number != 1)} for {workers} workers; it"
        f" takes P-1 = {hops}. {end}"
    )


def _chunk(number: int, t: Transfer, right: Transfer, workers: int) -> str:
    if number == workers - 1:
        return (
            f"The second half begins with the wrong chunk (off by one): in round {number} rank"
            f" {t.src} sends chunk {t.chunk}, which it has not finished; chunk {right.chunk} has"
            " just come to it complete. Pass on what you received in the round before."
        )
    return (
        f"The chunks go the wrong way round: in round {number} rank {t.src} sends chunk {t.chunk},"
        f" but what it received in round {number - 1} is chunk {right.chunk}. Pass on what you"
        " received in the round before: if ranks send to r + 1, the chunk's number falls from"
        " round to round."
    )


RING = ExerciseTask(
    name="ring",
    answer="my_ring",
    hints=RING_HINTS,
    judge=partial(
        judge,
        budget=over_ring,
        spent="2(P-1) rounds, every rank sends 2(P-1)/P of the buffer to one neighbour",
        known=(whole_buffers, same_chunk, strays),
    ),
    ready_made=ready_made.LIBRARY,
    section="04_all_reduce#Spread the load",
)

# --- tree: a tree with a mistake in it, to be mended ---

TREE_HINTS = (
    (
        "For 2 and 3 workers the tree is right. Write down its rounds for 4 workers, and what is in"
        " chunk 0 of each rank after each of them. Which rank passes something on that it should"
        " not have passed on yet?"
    ),
    (
        "The way up is right: after it rank 0 has the sum. On the way down a rank may pass the sum"
        " on only when it has it. For 4 workers: who must get it first from rank 0, so that two"
        " ranks can pass it on in the next round?"
    ),
    (
        "The way down is the way up, played backwards: what was the last round going up is the"
        " first going down. Look at the order of `gaps`."
    ),
)


def over_tree(schedule: Schedule) -> str:
    """Words for a right schedule that is not a tree; "" for one that is: 2⌈lg P⌉ rounds, P-1
    messages up and P-1 down, a rank in one at a time.
    """
    workers, rounds = schedule.workers, rounds_of(schedule)
    want = 2 * (workers - 1).bit_length()
    busiest = max(
        (sum(rank in (t.src, t.dst) for t in r) for r in rounds for rank in range(workers)),
        default=0,
    )
    if busiest > 1:
        return (
            f"In one round a rank has {busiest} messages to send or receive. In this tree ranks"
            " meet in pairs: one message a round for each."
        )
    if len(rounds) != want:
        return (
            f"It takes {len(rounds)} rounds; the tree takes {want}: on each way one for each time"
            " that 1 must be doubled to reach the number of workers."
        )
    messages = sum(map(len, rounds))
    if messages != 2 * (workers - 1):
        return (
            f"It takes {messages} messages; the tree takes {2 * (workers - 1)}: each rank but 0"
            " hands in one, and gets one."
        )
    return ""


def wrong_order(attempt: Attempt) -> str:
    """One of the ways, or both, run backwards."""

    def right_if_backwards(up: bool, down: bool) -> bool:
        return attempt.right_if(with_ways(lambda rounds: rounds[::-1], up, down))

    if right_if_backwards(up=False, down=True):
        return (
            "The way down runs in the same order as the way up, so ranks far from rank 0 are served"
            " by ranks that do not have the sum yet. Rank 0 must first send it the farthest way,"
            " then everyone who has it a shorter way, and so on."
        )
    if right_if_backwards(up=True, down=False):
        return (
            "The way up runs in the wrong order: a rank hands in its sum before all that belongs in"
            " it has come. The nearest pairs come first."
        )
    if right_if_backwards(up=True, down=True):
        return (
            "Both ways run in the wrong order. The way up was right as it was: turn only the way"
            " down."
        )
    return ""


TREE = ExerciseTask(
    name="tree",
    answer="my_tree",
    hints=TREE_HINTS,
    judge=partial(
        judge,
        budget=over_tree,
        spent=(
            "2⌈lg P⌉ rounds (lg P: how often to double 1 to reach P), a rank in one message at a"
            " time"
        ),
        known=(wrong_order,),
    ),
    ready_made=ready_made.LIBRARY,
    section="04_all_reduce#Small messages",
)

# --- train: digits trained with the all-reduce that comes in ---

TRAIN_HINTS = (
    (
        'start("multi_worker_mirrored", ...) begins a run and returns at once. Which fields choose'
        " PyTorch, the number of workers and of steps, and the all-reduce? And what must be called"
        " on the run before it has a result?"
    ),
    (
        'framework="torch", workers=4, steps=60. The all-reduce is the function that came in: pass'
        " the function on, do not call it. wait(60) waits for the end of the run, at most 60"
        " seconds, and returns the run."
    ),
    (
        'One line: return start("multi_worker_mirrored", framework="torch", workers=4, steps=60,'
        " all_reduce=...).wait(60)"
    ),
)

TRAIN = ExerciseTask(
    name="train",
    answer="train",
    hints=TRAIN_HINTS,
    judge=training.judge,
    section="04_all_reduce#What do the frameworks use?",
)

# --- hierarchical: hosts with one slow link each ---

HIERARCHICAL_HINTS = (
    (
        "Three parts: add up inside each host, exchange across hosts, copy inside each host. Let"
        " one rank of each host, its leader, do the exchange. Which all-reduce of yours suits the"
        " leaders, if no link may carry more than 2(H-1)/H of the buffer?"
    ),
    (
        "The leader of rank r is r - r % size, for hosts of `size` ranks. In one round all others"
        " send their leader all chunks, op 'reduce'. Then the leaders are a ring of `hosts` ranks:"
        " rank i of that ring is rank i * size. In a last round the leaders send all chunks back,"
        " op 'copy'. The number of chunks is that of the ring: hosts."
    ),
    (
        "The rounds across come from task 2:\n"
        "    [[t._replace(src=t.src * size, dst=t.dst * size) for t in r] for r in"
        " my_ring(hosts).rounds]\n"
        "Put a round before them and one after, and end with .placed(hosts)."
    ),
)

HIERARCHICAL = ExerciseTask(
    name="hierarchical",
    answer="my_hierarchical",
    hints=HIERARCHICAL_HINTS,
    judge=across.judge,
    ready_made=ready_made.LIBRARY,
    section="05_ring_vs_hierarchical#Explain",
)

TASKS = (REDUCE_TO_ONE, RING, TREE, TRAIN, HIERARCHICAL)
