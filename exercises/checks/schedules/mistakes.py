"""Mistakes that many make in any all-reduce. A mistake is recognised by its cure: if one change
makes every schedule right, then what it changes is the mistake.

A recogniser takes a wrong `Attempt` and returns words that name the mistake, or "" if the mistake
is another one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from course_lib.collectives import Round, Schedule, Transfer
from course_lib.collectives.schedule import Op
from course_lib.collectives.verify import ranks_text, sound, whole
from course_lib.course.handed_in import TookTooLong, bounded

from .attempt import LONGEST_TRY, SIZES, Attempt

Recogniser = Callable[[Attempt], str]
Rounds = list[list[Transfer]]


def rounds_of(schedule: Schedule) -> Rounds:
    """The rounds in which something is sent, as lists."""
    return [list(transfers) for transfers in schedule.rounds if len(transfers)]


def rebuilt(schedule: Schedule, rounds: Rounds) -> Schedule:
    return replace(schedule, rounds=[Round.of(transfers) for transfers in rounds])


def halves(rounds: Rounds) -> tuple[Rounds, Rounds]:
    """The way to the sums and the way back: cut before the first copy, or in the middle where
    nothing is copied.
    """
    cut = next(
        (i for i, r in enumerate(rounds) if any(t.op == "copy" for t in r)), len(rounds) // 2
    )
    return rounds[:cut], rounds[cut:]


def with_ways(
    change: Callable[[Rounds], Rounds], up: bool, down: bool
) -> Callable[[Schedule], Schedule]:
    """Make a change to the rounds of the way to the sums (`up`), of the way back (`down`), or of
    both.
    """

    def changed(schedule: Schedule) -> Schedule:
        first, second = halves(rounds_of(schedule))
        both = [*(change(first) if up else first), *(change(second) if down else second)]
        return rebuilt(schedule, both)

    return changed


def returns_nothing(attempt: Attempt) -> str:
    if attempt.returned and all(given is None for given in attempt.returned.values()):
        return f"{attempt.name} returns nothing: is `return` missing?"
    return ""


def returns_rounds(attempt: Attempt) -> str:
    if attempt.returned and all(
        isinstance(given, (list, tuple)) for given in attempt.returned.values()
    ):
        return (
            "These are the rounds alone. Wrap them: return Schedule(name, workers, chunks=...,"
            " rounds=...)."
        )
    return ""


def hard_coded(attempt: Attempt) -> str:
    """One number of workers is written into the function."""
    sizes = {given.workers for given in attempt.returned.values() if isinstance(given, Schedule)}
    right = set(attempt.failure.right_for) - {1} if attempt.failure else set()
    only = sizes if len(sizes) == 1 and len(attempt.returned) > 1 else right
    if len(only) == 1 and (number := only.pop()) > 2:
        return (
            f"It works for {number} workers and for no others: is a {number} (or {number - 1})"
            " written where `workers` should stand?"
        )
    return ""


def powers_of_two(attempt: Attempt) -> str:
    if attempt.failure and attempt.failure.right_for == tuple(n for n in SIZES if n & (n - 1) == 0):
        return "Only powers of two come out right. What happens to the rank that has no partner?"
    return ""


def wrong_op(attempt: Attempt) -> str:
    """Adds where it should copy, or the other way round."""

    def mended(schedule: Schedule) -> Schedule:
        rounds = rounds_of(schedule)
        ops: list[Op] = ["reduce" if i < len(rounds) // 2 else "copy" for i in range(len(rounds))]
        return rebuilt(
            schedule, [[t._replace(op=op) for t in r] for r, op in zip(rounds, ops, strict=True)]
        )

    if attempt.failing is None or not attempt.right_if(mended):
        return ""
    for number, (mine, right) in enumerate(
        zip(
            rounds_of(attempt.failing.schedule),
            mended(attempt.failing.schedule).rounds,
            strict=True,
        )
    ):
        for t, m in zip(mine, right, strict=True):
            if (t.op, m.op) == ("reduce", "copy"):
                return (
                    f"Round {number} adds where it should copy: rank {t.src} sends rank {t.dst} a"
                    " finished sum, and 'reduce' counts what is in it a second time. On the way"
                    " back the op is 'copy'."
                )
            if (t.op, m.op) == ("copy", "reduce"):
                return (
                    f"Round {number} copies where it should add: what rank {t.src} sends takes the"
                    f" place of rank {t.dst}'s own gradient, which is lost. Until a sum is"
                    " complete, the op is 'reduce'."
                )
    return ""


def not_sent_back(attempt: Attempt) -> str:
    """Every sum is complete on some rank, and stays there."""
    proof = attempt.failing
    if (
        proof is None
        or len(attempt.schedules) < len(SIZES)
        or any(p.kind != "missing" for p in proof.problems)
    ):
        return ""
    schedule, end = proof.schedule, proof.state()
    if any(t.op == "copy" for r in schedule.rounds for t in r):
        return ""
    holders = [
        [r for r in range(schedule.workers) if end.once[r][c] == whole(schedule, c)]
        for c in range(schedule.chunks)
    ]
    if not all(holders):
        return ""
    so_far = len(rounds_of(schedule))
    where = "; ".join(f"chunk {c} on {ranks_text(ranks)}" for c, ranks in enumerate(holders))
    return (
        f"The answer is never sent back. After {so_far} round{'s' * (so_far > 1)} the sums are"
        f" complete ({where}), and nobody else gets them."
    )


def one_round_for_all(attempt: Attempt) -> str:
    """What must wait for another is in the same round."""

    def mended(schedule: Schedule) -> Schedule:
        apart = [
            [[t for t in r if t.op == op] for op in ("reduce", "copy")] for r in rounds_of(schedule)
        ]
        return rebuilt(schedule, [r for both in apart for r in both if r])

    if attempt.right_if(mended):
        return (
            "Adding and copying stand in one round. All transfers of a round read what was there"
            " when the round began, so the sum is not there yet: give the way back a round of its"
            " own."
        )
    return ""


def sends_to_itself(attempt: Attempt) -> str:
    if attempt.right_if(
        lambda s: rebuilt(s, [[t for t in r if t.src != t.dst] for r in rounds_of(s)])
    ):
        return (
            "A rank sends to itself, and has that already. Leave that rank out, as range(1,"
            " workers) leaves out rank 0."
        )
    return ""


def no_modulo(attempt: Attempt) -> str:
    def around(schedule: Schedule) -> Schedule:
        n, chunks = schedule.workers, schedule.chunks
        return rebuilt(
            schedule,
            [
                [t._replace(src=t.src % n, dst=t.dst % n, chunk=t.chunk % chunks) for t in r]
                for r in rounds_of(schedule)
            ],
        )

    if attempt.right_if(around):
        return (
            "A number runs over the end: after the last rank (or chunk) comes 0 again. Take %"
            " workers of it."
        )
    return ""


def wrong_direction(attempt: Attempt) -> str:
    """Sender and receiver are exchanged, in all rounds or on one of the two ways."""

    def turned(rounds: Rounds) -> Rounds:
        return [[t._replace(src=t.dst, dst=t.src) for t in r] for r in rounds]

    for up, down, where in (
        (False, True, "on the way back"),
        (True, False, "on the way to the sum"),
        (True, True, "in every round"),
    ):
        if attempt.right_if(with_ways(turned, up, down)):
            return (
                f"Sender and receiver are exchanged {where}: it is Transfer(src, dst, chunk, op),"
                " the sender first."
            )
    return ""


def left_out(attempt: Attempt) -> str:
    """A rank takes part in no transfer; with two workers that would say little, for if one does
    not, neither does the other.
    """
    schedule = attempt.schedules.get(max(3, attempt.failure.workers if attempt.failure else 0))
    if schedule is None:
        return ""
    there = {rank for r in schedule.rounds for t in r for rank in (t.src, t.dst)}
    missing = [rank for rank in range(schedule.workers) if rank not in there]
    if not missing or not there:
        return ""
    end = (
        " range(1, workers) ends with workers - 1; does yours end earlier?"
        if missing[-1] == schedule.workers - 1
        else ""
    )
    return (
        f"For {schedule.workers} workers {ranks_text(missing)} take{'s' * (len(missing) == 1)} part"
        f" in no transfer.{end}"
    )


def too_few_chunks(attempt: Attempt) -> str:
    """Chunks are sent that the schedule does not have."""

    def counted(schedule: Schedule) -> Schedule:
        return replace(
            schedule, chunks=1 + max((t.chunk for r in schedule.rounds for t in r), default=0)
        )

    if attempt.right_if(counted):
        return (
            "The transfers are right, but the schedule has another number of chunks than they use:"
            " set chunks=workers."
        )
    return ""


def too_early(attempt: Attempt) -> str:
    """A rank passes a sum on as the final one before it is."""
    if attempt.failing is None:
        return ""
    schedule = attempt.failing.schedule
    for number, transfers in enumerate(schedule.rounds):
        state = attempt.failing.state(number)
        for t in transfers:
            if (
                t.op == "copy"
                and sound(schedule, t)
                and (has := len(state.ranks(t.src, t.chunk))) < schedule.workers
            ):
                return (
                    f"In round {number} rank {t.src} copies chunk {t.chunk} to rank {t.dst}, with"
                    f" {has} of {schedule.workers} gradients in it: it is not complete yet."
                )
    return ""


ANY: tuple[Recogniser, ...] = (
    *(
        returns_nothing,
        returns_rounds,
        hard_coded,
        wrong_op,
        not_sent_back,
        one_round_for_all,
        sends_to_itself,
    ),
    *(no_modulo, wrong_direction, too_few_chunks, powers_of_two, left_out, too_early),
)


def name(attempt: Attempt, recognisers: tuple[Recogniser, ...]) -> str:
    """The first words that a recogniser finds, or "" where none knows the mistake (or a schedule is
    so long that looking for it takes too long).
    """
    try:
        with bounded(LONGEST_TRY):
            return next(filter(None, (recognise(attempt) for recognise in recognisers)), "")
    except TookTooLong:
        return ""
