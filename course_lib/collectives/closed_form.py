"""The closed forms of the docstrings, as functions: what the books say an algorithm costs, without
looking at its rounds.

They hold for sizes that divide evenly into the chunks, and are exact except where `exact` is False
(then they are the most it can be). All ranks are on one host, save in the hierarchical form, where
all hosts have equally many.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from course_lib.collectives.cost import Terms
from course_lib.errors import SpecError


@dataclass(frozen=True)
class ClosedForm:
    """Rounds, messages, bytes that the busiest rank sends and that all send, and the terms of the
    time (`terms.seconds(topology)`).
    """

    rounds: int
    messages: int
    bytes_per_rank: float
    total_bytes: float
    terms: Terms
    exact: bool = True


def closed_form(algorithm: str, workers: int, bytes: int, **options: Any) -> ClosedForm:
    """The closed form of a built-in all-reduce; `options` are those of its function.

    Raises SpecError for a name that has none.
    """
    if algorithm not in FORMULAS:
        raise SpecError.unknown("algorithm", algorithm, FORMULAS)
    return FORMULAS[algorithm](workers, bytes, **options)


def _reduce_to_one(P: int, S: int) -> ClosedForm:
    return ClosedForm(
        2 * (P > 1),
        2 * (P - 1),
        (P - 1) * S,
        2 * (P - 1) * S,
        Terms(2 * (P - 1), 2 * (P - 1) * S, reduced=(P - 1) * S, delays=2 * (P > 1)),
    )


def _tree(P: int, S: int) -> ClosedForm:
    L = (P - 1).bit_length()
    return ClosedForm(
        2 * L,
        2 * (P - 1),
        L * S,
        2 * (P - 1) * S,
        Terms(2 * L, 2 * L * S, reduced=L * S, delays=2 * L),
    )


def _double_tree(P: int, S: int, pieces: int = 4) -> ClosedForm:
    H, k = P.bit_length() - 1, pieces
    if not H:
        return ClosedForm(0, 0, 0, 0, Terms())
    # messages: two edges down and two up (inside one tree, a leaf of the other) while pieces come
    # by
    busy = 4 * (H + k - 1)
    terms = Terms(busy, busy * S / (2 * k), reduced=(H + k - 1) * S / k, delays=2 * H + k - 1)
    return ClosedForm(2 * H + k - 1, 4 * k * (P - 1), 2 * S, 2 * (P - 1) * S, terms, exact=False)


def _ring(P: int, S: int) -> ClosedForm:
    each = 2 * (P - 1) * S / P
    return ClosedForm(
        2 * (P - 1),
        2 * P * (P - 1),
        each,
        P * each,
        Terms(2 * (P - 1), each, reduced=each / 2, delays=2 * (P - 1)),
    )


def _halving_doubling(P: int, S: int) -> ClosedForm:
    L = P.bit_length() - 1
    C = 2**L
    e = C < P
    once = (C - 1) / C * S
    terms = Terms(
        2 * L + 3 * e, 2 * once + 2 * e * S, reduced=once + e * S / 2, delays=2 * L + 3 * e
    )
    return ClosedForm(
        2 * L + 3 * e,
        2 * C * L + 4 * (P - C),
        2 * once + 1.5 * e * S,
        2 * (C - 1) * S + 2.5 * (P - C) * S,
        terms,
    )


def _recursive_doubling(P: int, S: int) -> ClosedForm:
    L = P.bit_length() - 1
    C = 2**L
    e = C < P
    terms = Terms(L + 2 * e, (L + 2 * e) * S, reduced=(L + e) * S, delays=L + 2 * e)
    return ClosedForm(L + 2 * e, C * L + 2 * (P - C), (L + e) * S, (C * L + 2 * (P - C)) * S, terms)


def _direct(P: int, S: int) -> ClosedForm:
    each = 2 * (P - 1) * S / P
    return ClosedForm(
        2 * (P > 1),
        2 * P * (P - 1),
        each,
        P * each,
        Terms(2 * (P - 1), each, reduced=each / 2, delays=2 * (P > 1)),
    )


def _parameter_server(P: int, S: int, servers: int = 1, colocated: bool = False) -> ClosedForm:
    k, part = servers, S / servers
    if colocated:
        terms = Terms(2 * (P - 1), 2 * (P - 1) * part, reduced=(P - 1) * part, delays=2 * (P > 1))
        return ClosedForm(
            2 * (P > 1),
            2 * k * (P - 1),
            (P - 1 + k - 1) * part if P > 1 else 0,
            2 * (P - 1) * S,
            terms,
        )
    most = max(P, k)
    return ClosedForm(
        2,
        2 * P * k,
        most * part,
        2 * P * S,
        Terms(2 * most, 2 * most * part, reduced=P * part, delays=2),
    )


def _hierarchical(P: int, S: int, hosts: int = 1) -> ClosedForm:
    H, L = hosts, P // hosts
    # a rank's bytes inside its host, a host's bytes across
    inside, across = 2 * (L - 1) * S / L, 2 * (H - 1) * S / H
    terms = Terms(
        2 * (L - 1),
        inside,
        2 * (H - 1),
        across,
        inside / 2 + across / L / 2,
        2 * (L - 1),
        2 * (H - 1),
    )
    return ClosedForm(
        2 * (L - 1) + 2 * (H - 1),
        2 * P * (L - 1) + 2 * P * (H - 1),
        inside + across / L,
        P * inside + H * across,
        terms,
    )


FORMULAS: dict[str, Callable[..., ClosedForm]] = {
    "reduce_to_one": _reduce_to_one,
    "tree": _tree,
    "double_tree": _double_tree,
    "ring": _ring,
    "halving_doubling": _halving_doubling,
    "recursive_doubling": _recursive_doubling,
    "hierarchical": _hierarchical,
    "direct": _direct,
    "parameter_server": _parameter_server,
}
