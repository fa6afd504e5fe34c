"""Proves a schedule right: every worker ends with every contribution exactly once. Otherwise it
says in words what goes wrong.

The kinds of problems (`Problem.kind`):

- "rank", "chunk": a transfer names a rank or a chunk that does not exist. "self": a rank sends to
  itself.
- "nothing": a rank sends a chunk in which it has nothing yet.
- "conflict": two transfers of a round write the same chunk of the same rank, and one of them is a
  copy, so that the result depends on their order.
- "overwrite": a copy lands on a chunk that its rank sends in the same round. As there is no
  barrier, it may land before the old value has left.
- "missing", "twice": after the last round a contribution is missing, or counted more than once.

A schedule with "nothing", "conflict", "overwrite" or "self" is refused even if its numbers would
come out right by luck. Several reduces into one chunk in one round are fine (they commute), and so
is a reduce into a chunk that its rank sends in the same round, as in a swap: the chunk that arrives
is kept in a second buffer until the old value has left.
"""

import itertools
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from course_lib.collectives.contributions import Problem, State, explain, goal, sound
from course_lib.collectives.schedule import Schedule, Transfer

LIMIT = 20  # problems kept: a wrong schedule is usually wrong in many places


@dataclass(frozen=True)
class Proof:
    """The verdict of `verify`: true if the schedule is right; as text, its first few problems.

    `problems` are in the order of their rounds, with those of the result last; `left_out`: how many
    more there are.
    """

    schedule: Schedule
    problems: tuple[Problem, ...]
    left_out: int

    @property
    def ok(self) -> bool:
        return not self.problems

    def __bool__(self) -> bool:
        return self.ok

    def state(self, rounds: int | None = None) -> State:
        """The contributions that each rank has after the first `rounds` rounds (0: at the start;
        default: at the end).
        """
        state = State(self.schedule)
        for transfers in self.schedule.rounds[:rounds]:
            state.apply(t for t in transfers if sound(self.schedule, t))
        return state

    def __str__(self) -> str:
        if self.ok:
            right = "every contribution ends where it should, exactly once"
            return _wrapped(f"{self.schedule!r} is right: {right}.")
        shown = [_wrapped(p.text) for p in self.problems[:3]]
        more = len(self.problems) - len(shown) + self.left_out
        return "\n".join(shown) + (f"\n... and {more} more" if more else "")


def _wrapped(text: str) -> str:
    """A text whose lines fit a notebook, which would break them within words."""
    return textwrap.fill(text, 100, subsequent_indent="  ")


def verify(schedule: Schedule) -> Proof:
    """Follow every contribution through the rounds of a schedule and judge the result."""
    problems: list[Problem] = []
    state = State(schedule)
    for number, transfers in enumerate(schedule.rounds):
        listed = list(transfers)
        usable = [t for t in listed if sound(schedule, t)]
        problems += [_misplaced(schedule, number, t) for t in listed if not sound(schedule, t)]
        problems += _nothing(state, number, usable)
        problems += _collisions(number, usable)
        state.apply(usable)
    wrong = []
    for r, c in itertools.product(range(schedule.workers), range(schedule.chunks)):
        want, has = goal(schedule, r, c), (state.once[r][c], state.twice[r][c])
        if want is not None and has != (want, 0):
            wrong.append((r, c))
    problems += explain(schedule, wrong) if wrong else []
    return Proof(schedule, tuple(problems[:LIMIT]), len(problems[LIMIT:]))


def _misplaced(schedule: Schedule, number: int, t: Transfer) -> Problem:
    """The problem of a transfer that is not sound."""
    if t.src == t.dst:
        text = f"rank {t.src} sends chunk {t.chunk} to itself. Leave that transfer out."
        return Problem("self", f"round {number}: {text}", number, t.src, t.chunk, t)
    for rank, does in ((t.src, "sends"), (t.dst, "receives")):
        if not 0 <= rank < schedule.ranks:
            text = f"rank {rank} {does} chunk {t.chunk}, but "
            text += _only("rank", schedule.ranks, rank, schedule.workers)
            return Problem("rank", f"round {number}: {text}", number, rank, t.chunk, t)
    text = f"rank {t.src} sends chunk {t.chunk} to rank {t.dst}, but "
    text += _only("chunk", schedule.chunks, t.chunk, schedule.chunks)
    return Problem("chunk", f"round {number}: {text}", number, t.src, t.chunk, t)


def _only(what: str, count: int, given: int, modulo: int) -> str:
    """The numbers that exist, and a hint if `given` would be right modulo `modulo`."""
    there = f"are only {what}s 0 to {count - 1}" if count > 1 else f"is only {what} 0"
    hint = f" Is % {modulo} missing?" if -modulo <= given < 2 * modulo else ""
    return f"there {there}.{hint}"


def _nothing(state: State, number: int, transfers: Sequence[Transfer]) -> Iterator[Problem]:
    for t in transfers:
        if not state.once[t.src][t.chunk]:
            text = f"rank {t.src} sends chunk {t.chunk} to rank {t.dst}, but has nothing in it yet."
            yield Problem("nothing", f"round {number}: {text}", number, t.src, t.chunk, t)


def _collisions(number: int, transfers: Sequence[Transfer]) -> Iterator[Problem]:
    """The problems of transfers of a round that write the same chunk, or one that is being sent;
    a reduce into what is being sent, as in a swap, is none.
    """
    sending = {(t.src, t.chunk) for t in transfers}
    landed: dict[tuple[int, int], Transfer] = {}
    for t in transfers:
        target = (t.dst, t.chunk)
        before = landed.setdefault(target, t)
        if before is t and t.op == "copy" and target in sending:
            text = (
                f"round {number}: the copy from rank {t.src} overwrites chunk {t.chunk} of "
                f"rank {t.dst}, which sends it in that round. "
                "Let one of the two wait for the next round."
            )
            yield Problem("overwrite", text, number, t.dst, t.chunk, t)
        elif before is not t and "copy" in (before.op, t.op):
            both = f"a {before.op} from rank {before.src} and a {t.op} from rank {t.src}"
            text = f"round {number}: {both} both write chunk {t.chunk} of rank {t.dst}; "
            text += "which comes first is not certain."
            yield Problem("conflict", text, number, t.dst, t.chunk, t)
