"""What a widget is given to look at: a run, its directory, a saved trace, a simulation, or a trace
in hand, all as one `Source`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple, Protocol

from course_lib.collectives import Simulation
from course_lib.errors import SpecError
from course_lib.record.events import Lifecycle
from course_lib.record.trace import Trace
from course_lib.spec import RunSpec


class Traced(Protocol):
    """Whatever has a trace: a run, an entrant of a race, an all-reduce."""

    @property
    def trace(self) -> Trace: ...


Given = Trace | Traced | Simulation | Path | str


class Source(NamedTuple):
    """A trace, what ran (`title`), how real it is (`reality`, "" where nobody says) and `why`, and
    who was slow from the start.
    """

    trace: Trace
    title: str
    reality: str
    why: str
    slow: dict[str, float]


def source(given: Given) -> Source:
    """See what was given.

    Raises `SpecError` for a path that holds no trace, and for a thing that has none.
    """
    if isinstance(given, (str, Path)):
        return _saved(Path(given))
    if isinstance(given, Simulation):
        if given.trace is None:
            raise SpecError(
                "trace", given, "a simulation with its messages: simulate(..., trace=True)"
            )
        return Source(
            given.trace,
            f"{given.schedule.name}, {given.schedule.ranks} ranks",
            "simulated",
            "The model ran; no process did.",
            {},
        )
    if isinstance(given, Trace):
        return _recorded(given, given.run_dir)
    if not isinstance(getattr(given, "trace", None), Trace):
        raise SpecError("trace", given, "a run, the directory of one, a simulation, or a Trace")
    if directory := getattr(given, "run_dir", None):
        return _recorded(given.trace, directory)
    title = (
        f"{given.algorithm}, {given.workers} workers"
        if hasattr(given, "algorithm") and hasattr(given, "workers")
        else ""
    )
    return Source(given.trace, title, getattr(given, "reality", ""), "", {})


def is_over(given: Given) -> bool:
    """Whether no more will come: a live run has a state that says so."""
    return getattr(given, "state", "finished") not in ("starting", "running")


def _saved(path: Path) -> Source:
    try:
        return (
            _recorded(Trace.of_run(path), path)
            if path.is_dir()
            else _recorded(Trace.load(path), None)
        )
    except (OSError, ValueError) as error:
        raise SpecError(
            "trace", str(path), f"the directory of a run, or a file that Trace.save wrote ({error})"
        ) from None


def _recorded(trace: Trace, directory: Path | None) -> Source:
    """A trace with what its run directory says of the run; a trace without one does not know."""
    if directory is None or not (directory / "spec.json").exists():
        return Source(trace, "", "", "", {})
    spec = RunSpec.model_validate_json((directory / "spec.json").read_text())
    plan = json.loads((directory / "run.json").read_text())
    reality, why = (
        plan["reality"],
        next((why for what, _, why in plan["reasons"] if what == "reality"), ""),
    )
    if reality == "measured" and trace.all(Lifecycle, state="slowed"):
        reality, why = (
            "emulated",
            "Real processes and real bytes, but a task was slowed on purpose.",
        )
    title = f"{spec.strategy} · {spec.framework} · {spec.shares} {'replicas' if spec.replicas > 1 else 'workers'}"
    return Source(trace, title, reality, why, dict(spec.slow))
