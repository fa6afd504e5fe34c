"""Follows the contributions of the ranks from chunk to chunk, round by round and without numbers,
and explains a wrong result: which rank lacks which contribution, and in which transfer it was lost
or added twice.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Literal, NamedTuple

from course_lib.collectives.schedule import Schedule, Transfer

ProblemKind = Literal[
    "rank", "chunk", "self", "nothing", "conflict", "overwrite", "missing", "twice"
]
Cell = tuple[int, int]  # rank, chunk

FROM_OWNER = ("all_gather", "broadcast")  # kinds in which a chunk comes from its owner alone


class State:
    """For each rank and chunk two bit sets of ranks: those whose contribution is in it (`once`),
    and those whose contribution is in it more than once (`twice`).
    """

    def __init__(self, schedule: Schedule) -> None:
        self.schedule = schedule
        self.once = [
            [start(schedule, rank, chunk) for chunk in range(schedule.chunks)]
            for rank in range(schedule.ranks)
        ]
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


def start(schedule: Schedule, rank: int, chunk: int) -> int:
    """The contributions (a bit set) that `rank` has in `chunk` before the first round."""
    return whole(schedule, chunk) & (1 << rank)


def whole(schedule: Schedule, chunk: int) -> int:
    """The contributions (a bit set) that belong in the result of a chunk, each once."""
    every_worker = (1 << schedule.workers) - 1
    return 1 << schedule.owners[chunk] if schedule.kind in FROM_OWNER else every_worker


def goal(schedule: Schedule, rank: int, chunk: int) -> int | None:
    """The contributions (a bit set) that `rank` must have in `chunk` after the last round, each
    once; None if any are allowed.
    """
    to_owner = schedule.kind in ("reduce_scatter", "reduce")
    wants = rank < schedule.workers and not (to_owner and schedule.owners[chunk] != rank)
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


class Step(NamedTuple):
    """A transfer in a round, and the contributions (a bit set) that it wiped out or added twice."""

    round: int
    transfer: Transfer
    bits: int


class Cause(NamedTuple):
    """The cause of a wrong result: the round and the rank where it began, a text, and the transfer
    that did it, if one did.
    """

    round: int
    rank: int
    text: str
    transfer: Transfer | None = None


def explain(schedule: Schedule, wrong: Sequence[Cell]) -> list[Problem]:
    """The problems behind the cells that are `wrong` at the end of a schedule; cells that are wrong
    for the same reason share a problem.
    """
    history = _History(schedule, {chunk for _, chunk in wrong})
    groups: dict[tuple[ProblemKind, Cause, int, int], list[int]] = defaultdict(list)
    for rank, chunk in wrong:
        once, twice = history.once[rank][chunk], history.twice[rank][chunk]
        missing = (goal(schedule, rank, chunk) or 0) & ~once
        if twice:
            groups["twice", history.why_twice(rank, chunk), chunk, twice].append(rank)
        if missing:
            cause = history.why_missing(rank, chunk, missing)
            groups["missing", cause, chunk, missing].append(rank)
    problems = []
    for (kind, cause, chunk, bits), ranks in groups.items():
        whose = history.whose(bits)
        result = f"lacks {whose}" if kind == "missing" else f"counts {whose} more than once"
        text = f"{cause.text}, so chunk {chunk} of {ranks_text(ranks)} {result}."
        where = cause.round, cause.rank, chunk, cause.transfer
        problems.append(Problem(kind, text, *where, tuple(ranks), members(bits)))
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
        for chunk in chunks:
            for rank in range(schedule.workers):
                self._note_complete((rank, chunk), 0)
        for number, transfers in enumerate(schedule.rounds):
            before = dict(self.doubled)
            usable = [t for t in transfers if t.chunk in chunks and sound(schedule, t)]
            for t, had, brought in self.apply(usable):
                cell = (t.dst, t.chunk)
                lost = had & ~brought if t.op == "copy" else 0
                self.arrived[cell] = Step(number, t, lost)
                if t.op == "copy":
                    self.doubled.pop(cell, None)
                    for row in self.once:
                        lost &= ~row[t.chunk]
                    self.lost[t.chunk] += [Step(number, t, lost)] if lost else []
                if (t.src, t.chunk) in before:  # the double count came with the chunk
                    self.doubled.setdefault(cell, before[t.src, t.chunk])
                elif t.op == "reduce" and had & brought:
                    self.doubled.setdefault(cell, Step(number, t, had & brought))
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
        return Cause(number, t.dst, f"round {number}: {sends}, {adds}", t)

    def why_missing(self, rank: int, chunk: int, missing: int) -> Cause:
        """The likeliest reason: a rank had all of the chunk but did not send it on, or a copy
        replaced contributions, or no rank ever had them all.
        """
        holders = {r: after for (r, c), after in self.complete.items() if c == chunk}
        if holders:
            return self._not_sent(rank, chunk, missing, holders)
        for number, t, lost in self.lost[chunk]:
            if lost & missing:
                copy = f"the copy of chunk {chunk} from rank {t.src} to rank {t.dst}"
                gone = f"wipes out {self.whose(lost)}, which no other rank has by then"
                return Cause(number, t.dst, f"round {number}: {copy} {gone}", t)
        once = [row[chunk] for row in self.once]
        has = [r for r, bits in enumerate(once) if bits & missing == missing]
        if tuple(has) == members(missing):
            whose = self.whose(missing)
            never = "never get away" if whose.startswith("the gradients") else "never gets away"
            text = f"{whose} in chunk {chunk} {never} from {ranks_text(has)}"
            return Cause(0, has[0], text)
        if has:
            came = (self.arrived[r, chunk].round for r in has if (r, chunk) in self.arrived)
            number = max(came, default=0)
            whose, end = self.whose(missing), ranks_text(has)
            text = f"after round {number}: chunk {chunk} with {whose} gets no further than {end}"
            return Cause(number, has[0], text)
        best = max(range(len(once)), key=lambda r: once[r].bit_count())
        lacks = self.whose(whole(self.schedule, chunk) & ~once[best])
        closest = f"rank {best} comes closest, and lacks {lacks}"
        last = max(len(self.schedule.rounds) - 1, 0)
        return Cause(last, best, f"no rank ever has all of chunk {chunk} ({closest})")

    def _not_sent(self, rank: int, chunk: int, missing: int, holders: dict[int, int]) -> Cause:
        """Of the ranks that have all of a chunk in the end, name the one that should have sent it
        to `rank`, or to the rank from which `rank` has it.
        """
        last = self.arrived.get((rank, chunk))
        while last and last.transfer.op == "copy" and last.transfer.src not in holders:
            before = self.arrived.get((last.transfer.src, chunk))
            if before and before.round >= last.round:
                break
            rank, last = last.transfer.src, before
        neighbours = {step.transfer.src for (dst, _), step in self.arrived.items() if dst == rank}
        # preferably one that sends to it anyway, then the earliest
        holder = min(holders, key=lambda r: (r not in neighbours, holders[r], r))
        after = holders[holder]
        end = "the last round" if after == len(self.schedule.rounds) else f"round {after - 1}"
        since = f"after {end}" if after else "from the start"
        if last is None:
            number = min(after, max(len(self.schedule.rounds) - 1, 0))
            text = f"rank {rank} never receives chunk {chunk} from rank {holder}, "
            return Cause(number, rank, f"{text}which has all of it {since}")
        text = (
            f"rank {rank} receives chunk {chunk} for the last time in round {last.round}, "
            f"from rank {last.transfer.src}; "
            f"rank {holder} has all of it {since}, but does not send it to rank {rank} then"
        )
        return Cause(last.round, rank, text, last.transfer if last.bits & missing else None)


def ranks_text(ranks: Sequence[int]) -> str:
    """ "rank 3", "ranks 0 and 2", "ranks 0, 1, 2 and 5"; runs of more than three become "ranks 0 to
    6".
    """
    parts: list[str] = []
    for _, neighbours in groupby(enumerate(ranks), lambda pair: pair[1] - pair[0]):
        run = [rank for _, rank in neighbours]
        parts += [f"{run[0]} to {run[-1]}"] if len(run) > 3 else map(str, run)
    *most, last = parts
    listed = f"{', '.join(most)} and {last}" if most else last
    return f"rank{'s' if len(ranks) > 1 else ''} {listed}"
