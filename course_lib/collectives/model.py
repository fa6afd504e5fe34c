"""The alpha-beta-gamma model: the cost of a message and of an addition, and the links that a
schedule runs on.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from course_lib.errors import SpecError


@dataclass(frozen=True)
class AlphaBeta:
    """The cost of a path between two ranks: n bytes keep both ends busy for alpha + n beta seconds.

    `alpha`: seconds for each message. `beta`: seconds for each byte. `delay`: further seconds for
    which a message is under way, without keeping either end busy (the L of LogP, Culler et al.
    1993; books on the alpha-beta model leave it out). Raises SpecError for a negative or infinite
    number.
    """

    alpha: float
    beta: float
    delay: float = 0.0

    def __post_init__(self) -> None:
        for name in ("alpha", "beta", "delay"):
            if not 0 <= getattr(self, name) < float("inf"):
                raise SpecError(name, getattr(self, name), "seconds, 0 or more")


@dataclass(frozen=True)
class Topology:
    """The paths between ranks, and the speed of an addition. On which host a rank is, its schedule
    says (`Schedule.placed`).

    - `intra`, `inter`: the path between two ranks of one host, and between two hosts. A rank sends
      one message at a time and receives one at a time. All ranks of a host share one uplink and one
      downlink, each of 1/inter.beta bytes a second.
    - `gamma`: seconds to add one byte to another.
    - `cores`: the number of cores that the ranks of all hosts share, if one machine plays all
      hosts. Ranks of one host then read from each other's memory: a message keeps its receiver busy
      for alpha + n beta, but its sender only for alpha. A rank that waits gives up its core (see
      `turns`). None: each rank has a core and a port of its own, as in textbooks.
    - `wire`: seconds for which a byte occupies the uplink of one host and the downlink of another,
      if the speed of links is imposed; only with `cores`. It occupies no core: `inter` is then the
      work of the cores.

    The defaults have only the right order of magnitude, for processes on a laptop and 1 Gbit/s
    between hosts; `fit` finds the numbers of a machine. Raises SpecError for impossible numbers.
    """

    intra: AlphaBeta = AlphaBeta(alpha=10e-6, beta=1 / 2e9)
    inter: AlphaBeta = AlphaBeta(alpha=50e-6, beta=1 / 125e6)
    gamma: float = 1 / 8e9
    cores: int | None = None
    wire: float = 0.0

    def __post_init__(self) -> None:
        for name in ("gamma", "wire"):
            if not 0 <= getattr(self, name) < float("inf"):
                raise SpecError(name, getattr(self, name), "seconds for a byte, 0 or more")
        if self.cores is not None and self.cores < 1:
            raise SpecError("cores", self.cores, "a number from 1 on, or None")
        if self.wire and self.cores is None:
            raise SpecError("wire", self.wire, "0 without cores: there the link is inter.beta")

    @property
    def parameters(self) -> np.ndarray:
        """The seconds that each of the `Terms` is multiplied by, in the order of `Terms`."""
        i, x = self.intra, self.inter
        return np.array([i.alpha, i.beta, x.alpha, x.beta, self.gamma, i.delay, x.delay, self.wire])


class Terms(NamedTuple):
    """The counts that a time is made of, in the order of `Topology.parameters`: messages and bytes
    inside hosts and across, bytes added, delays inside and across, and bytes on a wire.
    """

    messages: float = 0
    bytes: float = 0
    messages_across: float = 0
    bytes_across: float = 0
    reduced: float = 0
    delays: float = 0
    delays_across: float = 0
    wired: float = 0

    def seconds(self, topology: Topology) -> float:
        """α messages + β bytes + γ reduced + delays, each with the numbers of its path, + wire."""
        return float(np.dot(self, topology.parameters))


@dataclass(frozen=True)
class ClosedForm:
    """The textbook cost of an algorithm, from formulas and not from its schedule: rounds, messages,
    the bytes that the busiest rank sends, the bytes that all ranks send, and the terms of the time.

    It holds for sizes that divide evenly into the chunks, with all ranks on one host (for
    `hierarchical`: on equal hosts). It is exact, or with `exact=False` an upper bound.
    """

    rounds: int
    messages: int
    bytes_per_rank: float
    total_bytes: float
    terms: Terms
    exact: bool = True
