"""What a schedule runs on, in the alpha-beta-gamma model: which rank is on which host, and what a
message and an addition cost.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from course_lib.collectives.schedule import Schedule
from course_lib.errors import SpecError


@dataclass(frozen=True)
class Link:
    """Seconds for a message (`alpha`) and for each of its bytes (`beta`): n bytes keep both ends
    busy for alpha + n beta.

    `delay`: seconds for which a message is on its way besides, and keeps nobody busy (the L of
    LogP, Culler et al. 1993). Books leave it out.
    """

    alpha: float
    beta: float
    delay: float = 0.0

    def __post_init__(self) -> None:
        for name in ("alpha", "beta", "delay"):
            if not 0 <= getattr(self, name) < float("inf"):
                raise SpecError(name, getattr(self, name), "seconds, 0 or more")

    @classmethod
    def of(cls, bandwidth: float, delay: float = 0.0) -> Link:
        """From bytes a second and seconds of delay."""
        return cls(0.0, 1 / bandwidth, delay)


@dataclass(frozen=True)
class Topology:
    """Hosts and what lies between their ranks.

    - `intra`, `inter`: the link of two ranks on one host, and of two hosts. A rank sends one
      message at a time and receives one at a
      time. A host has one uplink and one downlink of bandwidth 1/inter.beta, which its ranks share.
    - `gamma`: seconds to add one byte to what is there.
    - `hosts`: the placement, as a number of hosts or the host of each rank; None: as the schedule
      says.
    - `cores`: how many cores the ranks share, on all hosts together, as when one machine plays them
      all; None: each rank has its own port and
      its own core, as in books. With a number, times are those of `turns`: ranks of one host read from each other's memory, so that a message
      keeps its receiver busy and its sender only for α, and who waits gives way to others.
    - `wire`: only with `cores`: seconds for which a byte keeps the uplink of one host and the
      downlink of the other, where these are held to a
      speed. It keeps no core, while `inter` is then what the cores have to do.

    The numbers that stand here are only the right order of magnitude for processes on a laptop and
    1 Gbit/s between hosts: `fit` finds those of a machine.
    """

    intra: Link = Link(alpha=10e-6, beta=1 / 2e9)
    inter: Link = Link(alpha=50e-6, beta=1 / 125e6)
    gamma: float = 1 / 8e9
    hosts: int | Sequence[int] | None = None
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

    def place(self, schedule: Schedule) -> np.ndarray:
        """The host of each rank of a schedule."""
        return np.array(schedule.hosts if self.hosts is None else schedule.placed(self.hosts).hosts)

    @property
    def parameters(self) -> np.ndarray:
        """The seconds that each of `Terms` is multiplied with, in that order."""
        i, x = self.intra, self.inter
        return np.array([i.alpha, i.beta, x.alpha, x.beta, self.gamma, i.delay, x.delay, self.wire])


class Terms(NamedTuple):
    """What a time is made of, in the order of `Topology.parameters`: messages and bytes inside
    hosts and across, bytes added, delays, and bytes on a wire.
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
        """α messages + β bytes + γ reduced + delays, with the α, β and delay of each link, + wire
        wired.
        """
        return float(np.dot(self, topology.parameters))
