"""The proof of a schedule: every worker ends with every contribution exactly once, or the words for
what goes wrong.

What is wrong, by `Problem.kind`:

- "rank", "chunk", "self": a transfer from, to or of something that is not there, or from a rank to
  itself.
- "nothing": a rank sends a chunk in which it has nothing yet.
- "conflict": two transfers of a round write the same chunk of the same rank, and one of them is a
  copy: the result hangs on their order.
- "overwrite": a copy lands on a chunk that its rank sends in the same round. Without a barrier it
  may land before the old value has left.
- "missing", "twice": after the last round a contribution is not there, or counted more than once.

A schedule may be refused for "nothing", "conflict", "overwrite" or "self" though its numbers would
come out right, by luck. Several reduces into one chunk in one round are fine (they commute), and so
is a reduce into a chunk that its rank sends in the same round, as in a swap: what arrives waits
beside the chunk until the old value has left. `Proof.second_buffer` says how much room that takes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from course_lib.collectives.contributions import State, goal, sound
from course_lib.collectives.explain import Problem, explain
from course_lib.collectives.schedule import Schedule, Transfer

LIMIT = 20  # problems kept: a schedule that is wrong is mostly wrong in many places


@dataclass(frozen=True)
class Proof:
    """What `verify` found. True where the schedule is right; as text the first few problems.

    `problems` come in the order of their rounds, those of the result last; `left_out` more were
    found. `second_buffer` is the largest number of chunks that a rank both sends and adds into in
    one round.
    """

    schedule: Schedule
    problems: tuple[Problem, ...]
    left_out: int
    second_buffer: int

    @property
    def ok(self) -> bool:
        return not self.problems

    def __bool__(self) -> bool:
        return self.ok

    def state(self, rounds: int | None = None) -> State:
        """Who has what after the first `rounds` rounds (0: at the start; default: at the end)."""
        state = State(self.schedule)
        for transfers in self.schedule.rounds[:rounds]:
            state.apply(t for t in transfers if sound(self.schedule, t))
        return state

    def __str__(self) -> str:
        if self.ok:
            return f"{self.schedule!r} is right: every contribution ends where it should, exactly once."
        shown = [p.text for p in self.problems[:3]]
        more = len(self.problems) - len(shown) + self.left_out
        return "\n".join(shown) + (f"\n... and {more} more" if more else "")


def verify(schedule: Schedule) -> Proof:
    """Follow every contribution through the rounds of a schedule and judge the result."""
    problems: list[Problem] = []
    second_buffer = 0
    state = State(schedule)
    for number, transfers in enumerate(schedule.rounds):
        listed = list(transfers)
        usable = [t for t in listed if sound(schedule, t)]
        problems += [_misplaced(schedule, number, t) for t in listed if not sound(schedule, t)]
        problems += _nothing(state, number, usable)
        swaps: Counter[int] = Counter()
        problems += _collisions(number, usable, swaps)
        second_buffer = max([second_buffer, *swaps.values()])
        state.apply(usable)
    wrong = [
        (r, c)
        for r in range(schedule.workers)
        for c in range(schedule.chunks)
        if _is_wrong(schedule, state, r, c)
    ]
    problems += explain(schedule, wrong) if wrong else []
    return Proof(schedule, tuple(problems[:LIMIT]), len(problems[LIMIT:]), second_buffer)


def _is_wrong(schedule: Schedule, end: State, rank: int, chunk: int) -> bool:
    want = goal(schedule, rank, chunk)
    return want is not None and (end.once[rank][chunk] != want or end.twice[rank][chunk] != 0)


def _misplaced(schedule: Schedule, number: int, t: Transfer) -> Problem:
    """The problem of a transfer that is not sound."""
    if t.src == t.dst:
        return Problem(
            "self",
            f"round {number}: rank {t.src} sends chunk {t.chunk} to itself. Leave that transfer out.",
            number,
            t.src,
            t.chunk,
        )
    for rank, does in ((t.src, "sends"), (t.dst, "receives")):
        if not 0 <= rank < schedule.ranks:
            hint = (
                f" Is % {schedule.workers} missing?"
                if -schedule.workers <= rank < 2 * schedule.workers
                else ""
            )
            there = (
                f"there are only ranks 0 to {schedule.ranks - 1}"
                if schedule.ranks > 1
                else "there is only rank 0"
            )
            return Problem(
                "rank",
                f"round {number}: rank {rank} {does} chunk {t.chunk}, but {there}.{hint}",
                number,
                rank,
                t.chunk,
            )
    hint = (
        f" Is % {schedule.chunks} missing?"
        if -schedule.chunks <= t.chunk < 2 * schedule.chunks
        else ""
    )
    there = (
        f"there are only chunks 0 to {schedule.chunks - 1}"
        if schedule.chunks > 1
        else "there is only chunk 0"
    )
    return Problem(
        "chunk",
        f"round {number}: rank {t.src} sends chunk {t.chunk} to rank {t.dst}, but {there}.{hint}",
        number,
        t.src,
        t.chunk,
    )


def _nothing(state: State, number: int, transfers: Sequence[Transfer]) -> Iterator[Problem]:
    for src, dst, chunk, _ in transfers:
        if not state.once[src][chunk]:
            text = f"round {number}: rank {src} sends chunk {chunk} to rank {dst}, but has nothing in it yet."
            yield Problem("nothing", text, number, src, chunk)


def _collisions(
    number: int, transfers: Sequence[Transfer], swaps: Counter[int]
) -> Iterator[Problem]:
    """Problems of transfers of one round that get in each other's way; swaps, which do not, are
    counted for each rank.
    """
    sending = {(t.src, t.chunk) for t in transfers}
    landed: dict[tuple[int, int], Transfer] = {}
    for t in transfers:
        target = (t.dst, t.chunk)
        before = landed.setdefault(target, t)
        if before is t:
            if target in sending and t.op == "reduce":
                swaps[t.dst] += 1
            elif target in sending:
                text = f"round {number}: the copy from rank {t.src} overwrites chunk {t.chunk} of rank {t.dst}, which sends it in that round."
                yield Problem(
                    "overwrite",
                    text + " Let one of the two wait for the next round.",
                    number,
                    t.dst,
                    t.chunk,
                )
        elif "copy" in (before.op, t.op):
            both = f"a {before.op} from rank {before.src} and a {t.op} from rank {t.src}"
            text = f"round {number}: {both} both write chunk {t.chunk} of rank {t.dst}; which comes first is not certain."
            yield Problem("conflict", text, number, t.dst, t.chunk)
