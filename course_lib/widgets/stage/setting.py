"""What the stage is set to: workers, hosts, bytes and links."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from course_lib.collectives import Topology
from course_lib.errors import SpecError
from course_lib.spec.fields import Link
from course_lib.text import amount, count
from course_lib.widgets.stage.scene import LIMITS, Reduced


@dataclass(frozen=True)
class Setting:
    """How many workers on how many hosts, the bytes that each brings, the bytes a second of a link
    `inside` a host and `between` hosts, and the seconds of `delay` between hosts.

    `held`: what the links were really held to in a run with real processes, in words.
    """

    workers: int
    hosts: int
    bytes: int
    inside: float
    between: float
    delay: float = 0.0
    held: str = ""

    def __post_init__(self) -> None:
        for name, most in (("workers", LIMITS["workers"]), ("hosts", self.workers)):
            if not isinstance(value := getattr(self, name), int) or not 1 <= value <= most:
                raise SpecError(name, value, f"a whole number from 1 to {most}")
        for name in ("inside", "between"):
            if not 0 < getattr(self, name) < math.inf:
                raise SpecError(name, getattr(self, name), "bytes a second, above 0, not infinite")

    def topology(self, base: Topology) -> Topology:
        """`base` with links of these speeds and this delay."""
        inter = replace(base.inter, beta=1 / self.between, delay=self.delay)
        return replace(base, intra=replace(base.intra, beta=1 / self.inside), inter=inter)

    @property
    def link(self) -> Link | None:
        """The link of each host, to be imposed on real processes."""
        real = Link(mbit=self.between * 8e-6, delay_ms=1000 * self.delay)
        return real if self.hosts > 1 else None

    def words(self, clock: str) -> dict[str, str]:
        """What stands at hosts and links, and the whole setting in a sentence."""
        inside, between = in_words(self.inside), in_words(self.between, self.delay)
        where = f"{count(self.workers, 'worker')} on {count(self.hosts, 'host')}"
        about = f"{where}, {amount(self.bytes)} each"
        if clock == "measured":
            held = f", links between hosts held to {self.held}" if self.held else ""
            about += f"; real processes on this machine{held}."
            return {"inside": "shared memory", "between": self.held or "TCP", "about": about}
        links = f"{inside} inside a host" + (f", {between} between hosts" if self.hosts > 1 else "")
        return {"inside": f"{inside} inside", "between": between, "about": f"{about}; {links}."}


def alike(done: Sequence[Reduced]) -> tuple[int, int, int, Link | None]:
    """Workers, hosts, bytes and link of all-reduces that were carried out.

    Raises SpecError if they do not go together.
    """
    found = {(d.schedule.workers, len(set(d.schedule.hosts)), d.bytes, d.link) for d in done}
    if len(found) > 1:
        allowed = "all-reduces with the same workers, hosts, bytes and links"
        raise SpecError("algorithms", [f[:3] for f in found], allowed)
    return found.pop()


def in_words(rate: float, delay: float = 0.0) -> str:
    """The speed (bytes a second) and the delay (seconds) of a link, as far as it has them:
    "10 Mbit/s and 5 ms".
    """
    mbit, late = round(8 * rate / 1e6, 3), f"{1000 * delay:g} ms"
    if mbit == math.inf:
        return f"a delay of {late}" if delay else ""
    speed = f"{mbit / 1e3:g} Gbit/s" if mbit >= 1e3 else f"{mbit:g} Mbit/s"
    return f"{speed} and {late}" if delay else speed


def held_to(link: Link | None) -> str:
    return in_words(link.bytes_per_second, link.delay) if link else ""
