"""What a widget is given to look at: a run, its directory, a saved trace, a simulation, or a trace
in hand, all as one `Source`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple, Protocol

from course_lib.collectives import Simulation
from course_lib.errors import SpecError
from course_lib.record.reality import SIMULATED, reality
from course_lib.record.trace import Trace
from course_lib.spec import RunSpec


class Traced(Protocol):
    """Whatever has a trace: a run, an entrant of a race, an all-reduce."""

    @property
    def trace(self) -> Trace: ...


Given = Trace | Traced | Simulation | Path | str


class Source(NamedTuple):
    """A trace, what ran (`title`), how real it is (`reality`, "" where nobody says) and `why`, and
    the `slow` tasks of its spec.
    """

    trace: Trace
    title: str
    reality: str
    why: str
    slow: dict[str, float]


def source(given: Given) -> Source:
    """Read what was given.

    Raises `SpecError` for a path that holds no trace, and for an object that has none.
    """
    if isinstance(given, (str, Path)):
        given = _saved(Path(given))
    trace = given if isinstance(given, Trace) else getattr(given, "trace", None)
    if isinstance(given, Simulation):
        if trace is None:
            allowed = "a simulation with its messages: simulate(..., trace=True)"
            raise SpecError("trace", given, allowed)
        title = f"{given.schedule.name}, {given.schedule.ranks} ranks"
        return Source(trace, title, *SIMULATED, {})
    if not isinstance(trace, Trace):
        raise SpecError("trace", given, "a run, the directory of one, a simulation, or a Trace")
    if spec := getattr(given, "spec", None) or _spec(trace):
        title = (
            f"{spec.strategy} · {spec.framework} · "
            f"{spec.shares} {'replicas' if spec.replicas > 1 else 'workers'}"
        )
        return Source(trace, title, *reality(spec, trace), dict(spec.slow))
    named: Any = given if hasattr(given, "algorithm") and hasattr(given, "workers") else None
    title = f"{named.algorithm}, {named.workers} workers" if named else ""
    return Source(trace, title, getattr(given, "reality", ""), "", {})


def is_over(given: Given) -> bool:
    """Whether no more will come: a live run has a state that says so."""
    return getattr(given, "state", "finished") not in ("starting", "running")


def _saved(path: Path) -> Trace:
    try:
        return Trace.of_run(path) if path.is_dir() else Trace.load(path)
    except (OSError, ValueError) as error:
        allowed = f"the directory of a run, or a file that Trace.save wrote ({error})"
        raise SpecError("trace", str(path), allowed) from None


def _spec(trace: Trace) -> RunSpec | None:
    """The spec of the run that a trace is of, if it is from a run directory."""
    return trace.files.spec if trace.files and trace.files.holds_run else None
