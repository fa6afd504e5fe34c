"""Parameter servers: each of k servers adds up one part of the gradient for all workers and gives
the sum back.

A server is a rank too, but has no gradients of its own. The letters are explained in `ring.py`.
"""

from course_lib.collectives.cost import ClosedForm, Terms
from course_lib.collectives.schedule import Round, Schedule, Transfer, check_number
from course_lib.errors import SpecError

ORDER = 9


def parameter_server(workers: int, servers: int = 1, colocated: bool = False) -> Schedule:
    """All-reduce in 2 rounds, push and pull, through k servers that hold S/k bytes each.

    P workers, S bytes, k servers. On ranks of their own (`workers` and up) a server sends and
    receives P S/k, a worker S; time 2 max(P, k)(α + Sβ/k) + P Sγ/k. With P servers no rank handles
    more than S each way, less than the 2(P-1)/P S of a ring among the workers alone: BytePS uses
    spare CPU machines in this way. If colocated, server j is on worker j (k ≤ P), which does not
    send its own part; time 2(P-1)(α + Sβ/k) + (P-1)Sγ/k, and k = P is `direct`. Sources: Li et al.,
    OSDI 2014; Jiang et al., OSDI 2020 (BytePS).
    """
    if colocated and servers > workers:
        allowed = f"from 1 to {workers} when they share the workers' ranks"
        raise SpecError("servers", servers, allowed)
    check_number("servers", servers)
    first = 0 if colocated else workers
    # Worker w begins with server w, so that not all workers send to the same server first.
    pairs = [(w, (w + turn) % servers) for turn in range(servers) for w in range(workers)]
    push = [Transfer(w, first + s, s, "reduce") for w, s in pairs if w != first + s]
    pull = [Transfer(first + s, w, s, "copy") for w, s in pairs if w != first + s]
    rounds = [Round.of(push), Round.of(pull)] if push else []
    own_ranks = 0 if colocated else servers
    return Schedule("parameter_server", workers, servers, rounds, servers=own_ranks)


def closed_form(P: int, S: int, servers: int = 1, colocated: bool = False) -> ClosedForm:
    """The cost of `parameter_server` for P workers with S bytes each."""
    k, part = servers, S / servers
    if colocated:
        rounds, pulls = (2 if P > 1 else 0), P - 1
        terms = Terms(2 * pulls, 2 * pulls * part, reduced=pulls * part, delays=rounds)
        # a worker that is a server answers P-1 workers, and pushes to k-1 other servers
        return ClosedForm(rounds, (pulls + k - 1) * part if P > 1 else 0, terms)
    most = max(P, k)
    terms = Terms(2 * most, 2 * most * part, reduced=P * part, delays=2)
    return ClosedForm(2, most * part, terms)
