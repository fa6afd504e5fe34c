"""Which ranks' contributions each chunk of each rank holds, followed round by round without
numbers.
"""

from collections.abc import Iterable

from course_lib.collectives.schedule import Schedule, Transfer

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
    """Whether a transfer is between two different ranks, and these and its chunk exist."""
    src, dst, chunk, _ = transfer
    ranks, chunks = range(schedule.ranks), range(schedule.chunks)
    return src != dst and src in ranks and dst in ranks and chunk in chunks


def members(bits: int) -> tuple[int, ...]:
    """The ranks in a bit set."""
    return tuple(rank for rank in range(bits.bit_length()) if bits >> rank & 1)
