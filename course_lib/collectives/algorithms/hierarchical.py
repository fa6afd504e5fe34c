"""Hierarchical: reduce-scatter inside each host, a ring across hosts for each part, all-gather
inside each host.

With ranks 0 and 1 on one host, 2 and 3 on another, and buffers in quarters q0 to q3 ("a ↔ b": they
send each other something):

    round 0   0 ↔ 1, 2 ↔ 3   inside: halves. 0 and 2 get q0 q1 and add, 1 and 3 get q2 q3: now they
                             have the sums of their hosts
    round 1   0 ↔ 2, 1 ↔ 3   across: a quarter each, which the other adds to its own; now each
                             quarter is finished on one rank
    round 2   0 ↔ 2, 1 ↔ 3   across: the finished quarters
    round 3   0 ↔ 1, 2 ↔ 3   inside: the finished halves; each has all

So two hosts of two do what halving and doubling does. With more of either, rings take the place of
the swaps. The letters are explained in `ring.py`.
"""

from collections.abc import Sequence

import numpy as np

from course_lib.collectives.cost import ClosedForm, Terms
from course_lib.collectives.schedule import Op, Round, Schedule, bounds, place

ORDER = 7


def hierarchical(workers: int, hosts: int | Sequence[int] = 1) -> Schedule:
    """All-reduce in which as few bytes as possible cross between hosts.

    P workers on H hosts with L = P/H each, S bytes. Rounds 2(L-1) + 2(H-1). Every rank sends
    2(L-1)/L S inside its host and 2(H-1)/H S/L across; a host's uplink carries 2(H-1)/H S, against
    2(P-1)/P S for a ring in the order of hosts. With links i inside and x across, time 2(L-1)(αi +
    Sβi/L) + 2(H-1)(αx + Sβx/H) + ((L-1)/L + (H-1)/(H L))Sγ; the L rings across share the uplink.

    `hosts` is a number of hosts or the host of each rank. If hosts are uneven, there are as many
    parts as the largest host has ranks, and a rank of a smaller host carries several parts.
    Sources: Horovod's hierarchical all-reduce; BytePS (Jiang et al., OSDI 2020). An older relative,
    `tf.distribute.HierarchicalCopyAllReduce`, lets one device of each group add for all.
    """
    placement = place(workers, hosts)
    members = [np.flatnonzero(np.array(placement) == host) for host in sorted(set(placement))]
    parts, count = max(map(len, members)), len(members)
    # the m-th rank of a host carries parts carried[m] to carried[m + 1]
    carried = [bounds(parts, len(m)) for m in members]
    # host, part -> rank
    carrier = np.array([np.repeat(m, np.diff(c)) for m, c in zip(members, carried, strict=True)])
    # Every part is cut into one chunk for each host, for its own ring across hosts.
    host, part = np.indices(carrier.shape).reshape(2, -1)
    src, dst = carrier.ravel(), np.roll(carrier, -1, axis=0).ravel()

    def across(behind: int, op: Op) -> Round:
        return Round(src, dst, part * count + (host - behind) % count, op)

    rounds = [
        *(_inside(members, carried, step + 1, "reduce") for step in range(parts - 1)),
        *(across(step + 1, "reduce") for step in range(count - 1)),
        *(across(step, "copy") for step in range(count - 1)),
        *(_inside(members, carried, step, "copy") for step in range(parts - 1)),
    ]
    return Schedule("hierarchical", workers, chunks=parts * count, rounds=rounds, hosts=placement)


def closed_form(P: int, S: int, hosts: int = 1) -> ClosedForm:
    """The cost of `hierarchical` for P workers with S bytes each on equal hosts."""
    H, L = hosts, P // hosts
    # the bytes that a rank sends inside its host, and those that a host sends across
    inside, across = 2 * (L - 1) * S / L, 2 * (H - 1) * S / H
    steps, steps_across = 2 * (L - 1), 2 * (H - 1)
    each = inside + across / L
    terms = Terms(steps, inside, steps_across, across, each / 2, steps, steps_across)
    return ClosedForm(steps + steps_across, each, terms)


def _inside(members: list[np.ndarray], carried: list[np.ndarray], behind: int, op: Op) -> Round:
    """A round of the rings inside those hosts that are not done with theirs: each rank sends the
    block that is `behind` places before its own to the rank on its right.
    """
    legs = []
    for ranks, ends in zip(members, carried, strict=True):
        if behind - (op == "reduce") < len(ranks) - 1:
            block = (np.arange(len(ranks)) - behind) % len(ranks)
            chunks = len(members) * np.array([ends[block], np.diff(ends)[block]])  # first, span
            legs.append([ranks, np.roll(ranks, -1), *chunks])
    src, dst, chunk, span = np.concatenate(legs, axis=1)
    return Round(src, dst, chunk, op, span)
