"""An algorithm on the stage under one setting: the part of its schedule that can be played, and
the times of its transfers on each clock.
"""

from __future__ import annotations

import math
import traceback
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from course_lib import text
from course_lib.collectives import Topology, build
from course_lib.collectives.algorithms import Algorithm, find
from course_lib.errors import SpecError
from course_lib.spec import Link
from course_lib.text import amount
from course_lib.widgets.stage.scene import (
    MOST,
    Reduced,
    Shown,
    measured,
    panel,
    simulated,
    totals,
)


@dataclass(frozen=True)
class Setting:
    """How many workers on how many hosts, the bytes that each brings, the bytes a second of a link
    `inside` a host and `between` hosts, and the seconds of `delay` between hosts.

    `held`: links were really held to that speed when the acts were carried out.
    """

    workers: int
    hosts: int
    bytes: int
    inside: float
    between: float
    delay: float = 0.0
    held: bool = False

    def __post_init__(self) -> None:
        for name, most in (("workers", MOST["workers"]), ("hosts", self.workers)):
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
        inside, between = _speed(self.inside), _speed(self.between)
        if self.delay:
            between += f" and {1000 * self.delay:g} ms"
        workers = f"{self.workers} worker{'s' if self.workers > 1 else ''}"
        hosts = f"{self.hosts} host{'s' if self.hosts > 1 else ''}"
        about = f"{workers} on {hosts}, {amount(self.bytes)} each"
        if clock == "measured":
            held = f", links between hosts held to {between}" if self.held else ""
            return {
                "inside": "shared memory",
                "between": between if self.held else "TCP",
                "about": f"{about}; real processes on this machine{held}.",
            }
        links = f"{inside} inside a host" + (f", {between} between hosts" if self.hosts > 1 else "")
        return {"inside": f"{inside} inside", "between": between, "about": f"{about}; {links}."}


@dataclass(frozen=True)
class Act:
    """What is shown of an algorithm, and its `clocks`; or the `error`, if nothing can be shown."""

    label: str
    shown: Shown | None
    clocks: dict[str, dict[str, Any]]
    error: str = ""

    @classmethod
    def of(
        cls,
        algorithm: str | Algorithm | Reduced,
        label: str,
        setting: Setting,
        base: Topology,
        done: Reduced | None = None,
    ) -> Act:
        """Build, verify and simulate; what a learner's function raises becomes the `error`."""
        if isinstance(algorithm, str) or callable(algorithm):
            function = find(algorithm)
            name = algorithm if isinstance(algorithm, str) else _name(algorithm)
            try:
                found = done.schedule if done else build(function, setting.workers, setting.hosts)
                shown = Shown.of(found)
            except Exception as error:  # whatever a learner's function raises is the answer
                return cls(label or name or "your function", None, {}, _said(function, error))
        else:
            done, shown, name = algorithm, Shown.of(algorithm.schedule), ""
        clocks = {"simulated": simulated(shown, setting.bytes, setting.topology(base))}
        if done:
            clock = "simulated" if done.reality == "simulated" else "measured"
            clocks[clock] = measured(shown, done)
        return cls(label or name or shown.schedule.name, shown, clocks)

    def panel(self, nbytes: int) -> dict[str, Any]:
        """The same as plain values."""
        if not self.shown:
            return {"label": self.label, "error": self.error}
        return panel(self.shown, self.label, nbytes, self.clocks)

    @property
    def problem(self) -> str:
        """What is wrong, in words; empty where nothing is."""
        return self.error or (self.shown.breaks.text if self.shown and self.shown.breaks else "")

    def rows(self, nbytes: int) -> list[tuple[str, ...]]:
        """A row for each clock in seconds: label, rounds, bytes, busiest link, time, bus bandwidth,
        and whether it was simulated or measured.
        """
        if not self.shown or self.problem:
            return []
        most, link, carried = totals(self.shown, nbytes)
        busiest = f"{link}: {amount(carried)}" if link else "none"
        facts = (self.label, str(len(self.shown.schedule.rounds)), amount(most), busiest)
        return [
            (*facts, f"{c['seconds'] * 1e3:.3g} ms", f"{c['bus'] / 1e9:.3g} GB/s", c["reality"])
            for c in self.clocks.values()
        ]


HEADS = ("", "rounds", "a rank sends", "busiest link", "time", "bus bandwidth", "")


def table(acts: Sequence[Act], setting: Setting) -> str:
    """The facts of all acts as text."""
    rows = [row for act in acts for row in act.rows(setting.bytes)]
    problems = [f"{act.label}: {act.problem}" for act in acts if act.problem]
    facts = [text.table([HEADS, *rows])] if rows else []
    return "\n".join([setting.words("simulated")["about"], *facts, *problems])


def scene(
    acts: Sequence[Act], setting: Setting, palette: Sequence[str], fixed: str
) -> dict[str, Any]:
    """All that the page draws. `fixed`: why the setting cannot be changed; "" if it can."""
    return {
        "panels": [act.panel(setting.bytes) for act in acts],
        "settings": asdict(setting),
        "words": {clock: setting.words(clock) for clock in ("rounds", "simulated", "measured")},
        "palette": list(palette),
        "fixed": fixed,
    }


def alike(done: Sequence[Reduced]) -> tuple[int, int, int, Link | None]:
    """Workers, hosts, bytes and link of all-reduces that were carried out.

    Raises SpecError if they do not go together.
    """
    found = {(d.schedule.workers, len(set(d.schedule.hosts)), d.bytes, d.link) for d in done}
    if len(found) > 1:
        allowed = "all-reduces with the same workers, hosts, bytes and links"
        raise SpecError("algorithms", [f[:3] for f in found], allowed)
    return found.pop()


def _name(function: Any) -> str:
    """The name of a learner's function; "" for a lambda, which has none."""
    return getattr(function, "__name__", "").replace("<lambda>", "")


def _said(function: Algorithm, error: Exception) -> str:
    if isinstance(error, SpecError):
        return str(error)
    name = getattr(function, "__name__", "the function")
    frames = [f for f in traceback.extract_tb(error.__traceback__) if f.name == name]
    line = f", in line {frames[-1].lineno}: {frames[-1].line}" if frames and frames[-1].line else ""
    return f"{name} raises {type(error).__name__}: {error}{line}"


def _speed(rate: float) -> str:
    mbit = round(8 * rate / 1e6, 3)
    return f"{mbit / 1e3:g} Gbit/s" if mbit >= 1e3 else f"{mbit:g} Mbit/s"
