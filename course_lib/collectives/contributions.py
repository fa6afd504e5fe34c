"""Which ranks' contributions each chunk of each rank holds, followed round by round without
numbers.
"""

from collections.abc import Iterable

from course_lib.collectives.schedule import Schedule, Transfer


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
    if schedule.kind in ("all_gather", "broadcast"):
        return 1 << rank if schedule.owners[chunk] == rank else 0
    return 1 << rank if rank < schedule.workers else 0


def whole(schedule: Schedule, chunk: int) -> int:
    """The contributions (a bit set) that belong in the result of a chunk, each once."""
    return (
        1 << schedule.owners[chunk]
        if schedule.kind in ("all_gather", "broadcast")
        else (1 << schedule.workers) - 1
    )


def goal(schedule: Schedule, rank: int, chunk: int) -> int | None:
    """The contributions (a bit set) that `rank` must have in `chunk` after the last round, each
    once; None if any are allowed.
    """
    if rank >= schedule.workers or (
        schedule.kind in ("reduce_scatter", "reduce") and schedule.owners[chunk] != rank
    ):
        return None
    return whole(schedule, chunk)


def sound(schedule: Schedule, transfer: Transfer) -> bool:
    """Whether a transfer is between two different ranks, and these and its chunk exist."""
    src, dst, chunk, _ = transfer
    return (
        src != dst
        and 0 <= src < schedule.ranks
        and 0 <= dst < schedule.ranks
        and 0 <= chunk < schedule.chunks
    )


def members(bits: int) -> tuple[int, ...]:
    """The ranks in a bit set."""
    found = []
    while bits:
        low = bits & -bits
        found.append(low.bit_length() - 1)
        bits ^= low
    return tuple(found)
