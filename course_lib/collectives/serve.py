"""Servers that take one at a time: when is each message through, if each waits for those before it?"""

from __future__ import annotations

import numpy as np


def serve(
    server: np.ndarray, free: np.ndarray, arrive: np.ndarray, work: np.ndarray, alone: bool = False
) -> np.ndarray:
    """The time at which each of n messages is through its server; every server takes messages in
    the order in which they arrive.

    `server`, `arrive`, `work`: which server, from when on, and for how long, for each message,
    shape (n,). `free`: when each server is first free; on return, when it is free again (changed in
    place). `alone`: no two messages have the same server. A message is over no earlier than it
    arrives: it comes in while its sender is still sending it.
    """
    if alone:
        free[server] = end = np.maximum(arrive, free[server] + work)
        return end
    end = np.empty(len(server))
    if not len(server):
        return end
    order = np.lexsort((arrive, server))
    # where in `order` each server's queue begins
    starts = np.flatnonzero(np.diff(server[order], prepend=-1))
    lengths = np.diff(starts, append=len(order))
    if len(starts) <= lengths.max():  # few servers with long queues: each queue at a stroke
        for begin, length in zip(starts, lengths, strict=True):
            queue = order[begin : begin + length]
            done = np.cumsum(work[queue])
            # Unrolled: end[i] = max(arrive[i], end[i - 1] + work[i]), with end[-1] = free
            end[queue] = done + np.maximum(
                np.maximum.accumulate(arrive[queue] - done), free[server[queue[0]]]
            )
            free[server[queue[0]]] = end[queue[-1]]
        return end
    # many servers with short queues: the first of each queue, the second of each, ...
    for turn in range(lengths.max()):
        now = order[starts[lengths > turn] + turn]
        end[now] = np.maximum(arrive[now], free[server[now]] + work[now])
        free[server[now]] = end[now]
    return end
