"""A ring all-reduce in SimPy, as its guide says: a process for each rank, an event for each
message.

The model: in each round a rank sends a chunk to its right neighbour and hears from its left one at
the same time. Both take α + β bytes; what it hears is there once it has been sent and received. In
the first half of the rounds it then adds the chunk, at γ a byte.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence

import simpy


def finish(
    chunks: Sequence[int], alpha: float, beta: float, gamma: float, delay: Sequence[float]
) -> list[float]:
    """When each rank is done. `chunks`: the bytes of each chunk, of which there are as many as
    ranks; `delay`: how late each rank starts.

    An event a message, not a Store a rank, which is the commoner way: it makes SimPy half as fast
    again.
    """
    ranks = len(chunks)
    rounds = 2 * (ranks - 1)
    environment = simpy.Environment()
    arrival = [[environment.event() for _ in range(rounds)] for _ in range(ranks)]
    taking, adding = [alpha + beta * n for n in chunks], [gamma * n for n in chunks]
    done = [0.0] * ranks

    def work(rank: int) -> Generator[simpy.Event, object, None]:
        arrived, arrived_right = arrival[rank], arrival[(rank + 1) % ranks]
        yield environment.timeout(delay[rank])
        for number in range(rounds):
            reduces = number < ranks - 1
            sent = (rank - 1 - number if reduces else rank - number + ranks - 1) % ranks
            received = sent - 1  # the left neighbour's; -1 is the last one
            heard = environment.now + taking[received]
            yield environment.timeout(taking[sent])
            arrived_right[number].succeed()
            yield arrived[number]
            if environment.now < heard:
                yield environment.timeout(heard - environment.now)
            if reduces:
                yield environment.timeout(adding[received])
        done[rank] = environment.now

    for rank in range(ranks):
        environment.process(work(rank))
    environment.run()
    return done
