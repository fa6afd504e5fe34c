"""Proves a schedule right: every worker ends with every contribution exactly once. Otherwise it
says in words which rank lacks which contribution, and in which transfer that was lost or added
twice.

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
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from course_lib.collectives.schedule import Schedule, Transfer

ProblemKind = Literal[
    "rank", "chunk", "self", "nothing", "conflict", "overwrite", "missing", "twice"
]
Cell = tuple[int, int]  # rank, chunk
Step = tuple[int, Transfer, int]
"""A round, a transfer, and the contributions (a bit set) that it wiped out or added twice."""
Cause = tuple[int, int, str, Transfer | None]
"""Where a wrong result began: the round, the rank, in words, and the transfer that did it."""

# kinds in which a chunk comes from its owner alone
FROM_OWNER = ("all_gather", "broadcast", "all_to_all")
LIMIT = 20  # problems kept: a wrong schedule is usually wrong in many places


class State:
    """For each rank and chunk two bit sets of ranks: those whose contribution is in it (`once`),
    and those whose contribution is in it more than once (`twice`).
    """

    def __init__(self, schedule: Schedule) -> None:
        self.schedule = schedule
        contributed = [whole(schedule, chunk) for chunk in range(schedule.chunks)]
        self.once = [[bits & 1 << rank for bits in contributed] for rank in range(schedule.ranks)]
        self.twice = [[0] * schedule.chunks for _ in range(schedule.ranks)]

    def apply(self, transfers: Iterable[Transfer]) -> list[tuple[Transfer, int, int]]:
        """One round: everything is read first, then written in the order listed.

        Returns each transfer with two bit sets: the ranks whose contributions its target had just
        before, and those whose contributions it brought.
        """
        read = [(t, self.once[t.src][t.chunk], self.twice[t.src][t.chunk]) for t in transfers]
        written = []
        for t, once, twice in read:
            had = self.once[t.dst][t.chunk]
            written.append((t, had, once))
            if t.op == "reduce":
                twice |= self.twice[t.dst][t.chunk] | (once & had)
                once |= had
            self.once[t.dst][t.chunk], self.twice[t.dst][t.chunk] = once, twice
        return written

    def ranks(self, rank: int, chunk: int) -> tuple[int, ...]:
        """The ranks whose contributions `rank` has in `chunk`."""
        return members(self.once[rank][chunk])


def whole(schedule: Schedule, chunk: int) -> int:
    """The contributions (a bit set) that belong in the result of a chunk, each once."""
    every_worker = (1 << schedule.workers) - 1
    return 1 << schedule.owners[chunk] if schedule.kind in FROM_OWNER else every_worker


def goal(schedule: Schedule, rank: int, chunk: int) -> int | None:
    """The contributions (a bit set) that `rank` must have in `chunk` after the last round, each
    once; None if any are allowed.
    """
    wants = rank < schedule.workers
    if schedule.kind in ("reduce_scatter", "reduce"):
        wants = schedule.owners[chunk] == rank
    elif schedule.kind == "all_to_all":
        wants = chunk % schedule.workers == rank
    return whole(schedule, chunk) if wants else None


def sound(schedule: Schedule, transfer: Transfer) -> bool:
    """Return true if a transfer is between two different ranks, and these and its chunk exist."""
    src, dst, chunk, _ = transfer
    ranks, chunks = range(schedule.ranks), range(schedule.chunks)
    return src != dst and src in ranks and dst in ranks and chunk in chunks


def members(bits: int) -> tuple[int, ...]:
    """The ranks in a bit set."""
    return tuple(rank for rank in range(bits.bit_length()) if bits >> rank & 1)


@dataclass(frozen=True)
class Problem:
    """One problem of a schedule, in words (`text`) and as values: its kind, the round, rank and
    chunk in which it arises, and the `transfer` that is wrong (None if one is missing).

    For "missing" and "twice": the results of `ranks` are wrong because of it. They lack the data of
    the ranks in `contributions`, or count them more than once.
    """

    kind: ProblemKind
    text: str
    round: int
    rank: int
    chunk: int
    transfer: Transfer | None
    ranks: tuple[int, ...] = ()
    contributions: tuple[int, ...] = ()


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
        texts = [p.text for p in self.problems[:3]]
        if self.ok:
            right = "every contribution ends where it should, exactly once"
            texts = [f"{self.schedule!r} is right: {right}."]
        elif more := len(self.problems) - len(texts) + self.left_out:
            texts.append(f"... and {more} more")
        # a notebook would break longer lines within words
        return "\n".join(textwrap.fill(text, 100, subsequent_indent="  ") for text in texts)


def verify(schedule: Schedule) -> Proof:
    """Follow every contribution through the rounds of a schedule and judge the result."""
    problems: list[Problem] = []
    state = State(schedule)
    for number, transfers in enumerate(schedule.rounds):
        usable = [t for t in transfers if sound(schedule, t)]
        if len(usable) < len(transfers):
            unsound = (t for t in transfers if not sound(schedule, t))
            problems += (_misplaced(schedule, number, t) for t in unsound)
        problems += _unsafe(state, number, usable)
        state.apply(usable)
    wrong = []
    for r, c in itertools.product(range(schedule.workers), range(schedule.chunks)):
        want, has = goal(schedule, r, c), (state.once[r][c], state.twice[r][c])
        if want is not None and has != (want, 0):
            wrong.append((r, c))
    problems += _explained(schedule, wrong) if wrong else []
    return Proof(schedule, tuple(problems[:LIMIT]), len(problems[LIMIT:]))


def _misplaced(schedule: Schedule, number: int, t: Transfer) -> Problem:
    """The problem of a transfer that is not sound."""
    text = f"round {number}: rank {t.src} sends chunk {t.chunk} to rank {t.dst}, "
    if t.src == t.dst:
        text += "which is itself. Leave that transfer out."
        return Problem("self", text, number, t.src, t.chunk, t)
    ranks = range(schedule.ranks)
    rank = t.dst if t.src in ranks else t.src
    kind: ProblemKind = "chunk" if rank in ranks else "rank"
    given, count = (t.chunk, schedule.chunks) if kind == "chunk" else (rank, schedule.ranks)
    hint = f" Is % {count} missing?" if -count <= given < 2 * count else ""
    text += f"but {kind}s are numbered from 0 to {count - 1}.{hint}"
    return Problem(kind, text, number, rank if kind == "rank" else t.src, t.chunk, t)


def _unsafe(state: State, number: int, transfers: Sequence[Transfer]) -> Iterator[Problem]:
    """The problems of a round in which a rank has nothing to send, or transfers write the same
    chunk, or one that is being sent; a reduce into what is being sent, as in a swap, is none.
    """
    sending = {(t.src, t.chunk) for t in transfers}
    landed: dict[Cell, Transfer] = {}
    for t in transfers:
        before, text = landed.setdefault((t.dst, t.chunk), t), f"round {number}: "
        if not state.once[t.src][t.chunk]:
            nothing = f"rank {t.src} sends chunk {t.chunk} to rank {t.dst}, but has nothing in it"
            yield Problem("nothing", f"{text}{nothing} yet.", number, t.src, t.chunk, t)
        if before is t and t.op == "copy" and (t.dst, t.chunk) in sending:
            text += f"the copy from rank {t.src} overwrites chunk {t.chunk} of rank {t.dst}, which "
            text += "sends it in that round. Let one of the two wait for the next round."
            yield Problem("overwrite", text, number, t.dst, t.chunk, t)
        elif before is not t and "copy" in (before.op, t.op):
            both = f"a {before.op} from rank {before.src} and a {t.op} from rank {t.src}"
            text += f"{both} both write chunk {t.chunk} of rank {t.dst}; "
            text += "which comes first is not certain."
            yield Problem("conflict", text, number, t.dst, t.chunk, t)


def _explained(schedule: Schedule, wrong: Sequence[Cell]) -> list[Problem]:
    """The problems behind the cells that are `wrong` at the end of a schedule; cells that are wrong
    for the same reason share a problem.
    """
    history = _History(schedule, {chunk for _, chunk in wrong})
    groups: dict[tuple[ProblemKind, Cause, int, int], list[int]] = defaultdict(list)
    for rank, chunk in wrong:
        once, twice = history.once[rank][chunk], history.twice[rank][chunk]
        if twice:
            groups["twice", history.why_twice(rank, chunk), chunk, twice].append(rank)
        if missing := (goal(schedule, rank, chunk) or 0) & ~once:
            cause = history.why_missing(rank, chunk, missing)
            groups["missing", cause, chunk, missing].append(rank)
    problems = []
    for (kind, (number, rank, text, transfer), chunk, bits), ranks in groups.items():
        whose = history.whose(bits)
        result = f"lacks {whose}" if kind == "missing" else f"counts {whose} more than once"
        text += f", so chunk {chunk} of {ranks_text(ranks)} {result}."
        ends = tuple(ranks), members(bits)
        problems.append(Problem(kind, text, number, rank, chunk, transfer, *ends))
    return sorted(problems, key=lambda p: p.round)


class _History(State):
    """The state at the end of a schedule, and what happened to some of the chunks on the way."""

    def __init__(self, schedule: Schedule, chunks: set[int]) -> None:
        super().__init__(schedule)
        # the last transfer into a cell, and what that wiped out
        self.arrived: dict[Cell, Step] = {}
        # chunk -> copies that replaced contributions which no other rank had
        self.lost: dict[int, list[Step]] = defaultdict(list)
        # the reduce that made the double count in a cell
        self.doubled: dict[Cell, Step] = {}
        # the number of rounds after which a rank had all of a chunk
        self.complete: dict[Cell, int] = {}
        for cell in itertools.product(range(schedule.workers), chunks):
            self._note_complete(cell, 0)
        for number, transfers in enumerate(schedule.rounds):
            before = dict(self.doubled)
            usable = [t for t in transfers if t.chunk in chunks and sound(schedule, t)]
            for t, had, brought in self.apply(usable):
                cell = (t.dst, t.chunk)
                lost = had & ~brought if t.op == "copy" else 0
                self.arrived[cell] = (number, t, lost)
                if t.op == "copy":
                    self.doubled.pop(cell, None)
                    for row in self.once:
                        lost &= ~row[t.chunk]
                    self.lost[t.chunk] += [(number, t, lost)] if lost else []
                if (t.src, t.chunk) in before:  # the double count came with the chunk
                    self.doubled.setdefault(cell, before[t.src, t.chunk])
                elif t.op == "reduce" and had & brought:
                    self.doubled.setdefault(cell, (number, t, had & brought))
                self._note_complete(cell, number + 1)

    def _note_complete(self, cell: Cell, rounds: int) -> None:
        rank, chunk = cell
        if self.once[rank][chunk] == whole(self.schedule, chunk):
            self.complete.setdefault(cell, rounds)
        else:
            self.complete.pop(cell, None)

    def whose(self, bits: int) -> str:
        """A bit set as "the gradients of ranks 0 and 3"."""
        data = "data" if self.schedule.kind in FROM_OWNER else "gradient"
        s = "s" if data == "gradient" and bits.bit_count() > 1 else ""
        return f"the {data}{s} of {ranks_text(members(bits))}"

    def why_twice(self, rank: int, chunk: int) -> Cause:
        number, t, doubled = self.doubled[rank, chunk]
        sends = f"rank {t.src} sends chunk {chunk} with {self.whose(doubled)} to rank {t.dst}"
        adds = "which has that already, and op 'reduce' adds it again"
        return number, t.dst, f"round {number}: {sends}, {adds}", t

    def why_missing(self, rank: int, chunk: int, missing: int) -> Cause:
        """The likeliest reason: a rank had all of the chunk but did not send it on, or a copy
        replaced contributions, or no rank ever had them all.
        """
        if any(c == chunk for _, c in self.complete):
            return self._not_sent(rank, chunk, missing)
        for number, t, lost in self.lost[chunk]:
            if lost & missing:
                copy = f"the copy of chunk {chunk} from rank {t.src} to rank {t.dst}"
                gone = f"wipes out {self.whose(lost)}, which no other rank has by then"
                return number, t.dst, f"round {number}: {copy} {gone}", t
        once = [row[chunk] for row in self.once]
        if has := [r for r, bits in enumerate(once) if bits & missing == missing]:
            came = (self.arrived[r, chunk][0] for r in has if (r, chunk) in self.arrived)
            text = f"chunk {chunk} with {self.whose(missing)} gets no further than "
            return max(came, default=0), has[0], text + ranks_text(has), None
        best = max(range(len(once)), key=lambda r: once[r].bit_count())
        lacks = self.whose(whole(self.schedule, chunk) & ~once[best])
        text = f"no rank ever has all of chunk {chunk} (rank {best} comes closest, and lacks "
        return max(len(self.schedule.rounds) - 1, 0), best, f"{text}{lacks})", None

    def _not_sent(self, rank: int, chunk: int, missing: int) -> Cause:
        """Of the ranks that have all of a chunk in the end, name the one that should have sent it
        to `rank`, or to the rank from which `rank` has it.
        """
        holders = {r: after for (r, c), after in self.complete.items() if c == chunk}
        last = self.arrived.get((rank, chunk))
        while last and last[1].op == "copy" and last[1].src not in holders:
            before = self.arrived.get((last[1].src, chunk))
            if before and before[0] >= last[0]:
                break
            rank, last = last[1].src, before
        neighbours = {t.src for (dst, _), (_, t, _) in self.arrived.items() if dst == rank}
        # preferably one that sends to it anyway, then the earliest
        holder = min(holders, key=lambda r: (r not in neighbours, holders[r], r))
        after = holders[holder]
        end = "the last round" if after == len(self.schedule.rounds) else f"round {after - 1}"
        since = f"after {end}" if after else "from the start"
        text = f"rank {holder} has all of chunk {chunk} {since}, but does not send it to rank "
        text += f"{rank} then"
        if last:
            return last[0], rank, text, last[1] if last[2] & missing else None
        return min(after, max(len(self.schedule.rounds) - 1, 0)), rank, text, None


def ranks_text(ranks: Sequence[int]) -> str:
    """ "rank 3", "ranks 0 and 2", "ranks 0, 1, 2 and 5"; runs of more than three become "ranks 0 to
    6".
    """
    parts: list[str] = []
    for _, neighbours in itertools.groupby(enumerate(ranks), lambda pair: pair[1] - pair[0]):
        run = [rank for _, rank in neighbours]
        parts += [f"{run[0]} to {run[-1]}"] if len(run) > 3 else map(str, run)
    *most, last = parts
    listed = f"{', '.join(most)} and {last}" if most else last
    return f"rank{'s' if len(ranks) > 1 else ''} {listed}"
