"""The judge of a function that trains digits with the all-reduce that it is given. The check hands
it a ring that only the check knows, and looks at the trace of the run that comes back.
"""

from __future__ import annotations

import functools
from typing import Any
from unittest.mock import patch

import numpy as np

from course_lib import launch
from course_lib.cluster.run import Run
from course_lib.collectives import Schedule
from course_lib.collectives.algorithms.ring import ring
from course_lib.course.answers import Verdict
from course_lib.course.handed_in import bounded
from course_lib.errors import SpecError
from course_lib.launch import start
from course_lib.record.events import ACTIVE, Message, Metric
from course_lib.record.saved import SavedRun
from course_lib.spec.run_spec import RunSpec
from course_lib.spec.settings import NATIVE
from course_lib.strategies import gate
from course_lib.text import kind_of

STRATEGY, WORKERS, STEPS = "multi_worker_mirrored", 4, 60
# Two all-reduces add the same float32 numbers in different orders, and training carries the
# differences on; losses are of size 1.
CLOSE = 1e-5
LONGEST_ANSWER = 30.0  # seconds of computing in the notebook's own process, which has little to do
LONGEST_RUN = 90.0  # seconds that a run may take

BEGIN = f'Begin the run with the strategy that is asked for: start("{STRATEGY}", ...).'
Complaint = tuple[str, str]  # what is wrong, and the name of the mistake


def probe(workers: int) -> Schedule:
    """A ring that runs the other way, so that its messages are like no other's."""
    return ring(workers, order=range(workers)[::-1])


def judge(task: str, answer: Any) -> Verdict:
    """Judge a function from an all-reduce to a finished run by the trace of the run that it makes
    with `probe`. First it is called with runs of one step, so that most mistakes are told at once.
    """
    given: Any = None
    try:
        with bounded(LONGEST_ANSWER):
            complaint = _tried(answer.within(_try, probe))
            if not complaint:
                given = answer(probe)
                complaint = _complaint(given)
    except NotImplementedError:
        raise
    except Exception as error:
        complaint = f"It raises {type(error).__name__}: {error}", ""
        if mistake := _raised(error):  # in words of this task: they come first
            complaint = mistake, complaint[0]
    finally:
        if isinstance(given, Run):
            given.stop()
    shown = given.trace if isinstance(given, Run | SavedRun) else None
    if complaint:
        return Verdict(task, "not yet", *complaint, shown=shown)
    spec = given.spec
    text = (
        f"A ring of ours, handed to your function, trained {spec.workload} for {spec.steps} steps "
        f"in {spec.workers} PyTorch processes; all messages of the run are its.\n"
        "The losses are those of PyTorch's own all-reduce: the largest difference is "
        f"{_difference(given):.0e}, from float32 sums in another order."
    )
    return Verdict(task, "passed", text, shown=shown)


def _try(learners: Any, all_reduce: Any) -> dict[str, Any]:
    """Where the learner's code runs: each run that it asks for is noted, and in its place comes
    one of a single step, with PyTorch's own all-reduce.
    """
    asked: list[str] = []
    prepare, given = launch.prepare, None

    def short(request: gate.Request, machine: Any) -> Any:
        asked.append(request.spec.model_dump_json())
        fields = {"framework": "torch", "workers": WORKERS, "steps": 1}
        return prepare(gate.admit(gate.requested(STRATEGY, fields), machine), machine)

    try:
        with patch.object(launch, "prepare", short):
            given = learners(all_reduce)
        run = isinstance(given, Run)
        state = given.state if isinstance(given, Run) else ""
    finally:
        if isinstance(given, Run):
            given.stop()
    returned = kind_of(given)
    return {"asked": asked, "returned": "" if run else returned, "state": state}


def _tried(found: dict[str, Any]) -> Complaint | None:
    """What is wrong with what a function asked for and returned when it was tried."""
    other = None
    if found["asked"]:
        other = _other_run(RunSpec.model_validate_json(found["asked"][-1]))
    if found["returned"]:
        text, mistake = _no_run(found["returned"])
        return text, f"{mistake} And another thing: {other[1]}" if other else mistake
    return other or _unfinished(found["state"])


def _complaint(run: Any) -> Complaint | None:
    """What is wrong with the run that came back, and the name of the mistake; None where all is as
    it should be.
    """
    if not isinstance(run, Run | SavedRun):
        return _no_run(kind_of(run))
    return (
        _other_run(run.spec) or _unfinished(run.state) or _other_messages(run) or _other_losses(run)
    )


def _no_run(returned: str) -> Complaint:
    if returned == "nothing":
        return "It returns nothing.", "Is `return` missing?"
    return (
        f"It returns {returned}, not the run.",
        "Return what start(...).wait(60) returns: the run, which has result and trace.",
    )


def _other_run(spec: RunSpec) -> Complaint | None:
    asked = {
        "strategy": STRATEGY,
        "framework": "torch",
        "workers": WORKERS,
        "workload": "digits",
        "steps": STEPS,
        "trace": True,
    }
    for field, want in asked.items():
        if (have := getattr(spec, field)) != want:
            text = f"The run has {field}={have!r}; asked for is {field}={want!r}."
            return text, BEGIN if field == "strategy" else f"Pass {field}={want!r} to start."
    if spec.all_reduce == NATIVE:
        return (
            "The run used PyTorch's own all-reduce: not one message of ours is in its trace.",
            "The all-reduce that came in is not handed on: start(..., all_reduce=all_reduce).",
        )
    return None


def _unfinished(state: str) -> Complaint | None:
    if state in ACTIVE:
        return (
            f"The run that came back is still {state}.",
            "start returns at once. Wait for the end of the run: .wait(60).",
        )
    if state != "finished":
        return (
            f"The run that came back is {state}, not finished.",
            "Do not stop it; wait for its end: .wait(60).",
        )
    return None


def _other_messages(run: Run | SavedRun) -> Complaint | None:
    """Compare the messages of the run with the schedule that it should have followed."""
    schedule = probe(run.spec.workers)
    asked = {
        (number, schedule.task(t.src), schedule.task(t.dst))
        for number, r in enumerate(schedule.rounds)
        for t in r
    }
    if {(m.round, m.src, m.dst) for m in run.trace.all(Message)} == asked:
        return None
    return (
        (
            f"The run followed another all-reduce ({run.spec.all_reduce!r}) than the one that your"
            " function was given."
        ),
        (
            "Is the name of an all-reduce written in the function? Hand on what came in:"
            " all_reduce=all_reduce."
        ),
    )


def _other_losses(run: Run | SavedRun) -> Complaint | None:
    if _difference(run) > CLOSE:
        return (
            (
                "The losses differ from those with PyTorch's own all-reduce by up to"
                f" {_difference(run):.1e}."
            ),
            "Leave seed and batch as they are.",
        )
    return None


def _difference(run: Run | SavedRun) -> float:
    """The largest difference to the losses of the same run with the framework's own all-reduce."""
    alone = {
        "all_reduce": NATIVE,
        "run_dir": None,
        "resume": None,
    }  # reads no file of the learner's
    native = _native(run.spec.model_copy(update=alone).model_dump_json())
    return float(np.abs(np.subtract(_curve(run), native)).max())


@functools.cache
def _native(spec: str) -> tuple[float, ...]:
    with start(RunSpec.model_validate_json(spec)) as run:
        return _curve(run.wait(LONGEST_RUN))


def _curve(run: Run | SavedRun) -> tuple[float, ...]:
    return tuple(metric.value for metric in run.trace.all(Metric, "worker:0", name="loss"))


def _raised(error: Exception) -> str:
    """The name of the mistake behind an error; "" where its own text says what to do."""
    if isinstance(error, SpecError) and STRATEGY in error.allowed:  # another one was begun
        return BEGIN
    if (
        isinstance(error, SpecError)
        and error.field == "all_reduce"
        and isinstance(error.value, (str, Schedule))
    ):
        return (
            "Hand on the function itself, not what it returns and not its name:"
            " all_reduce=all_reduce."
        )
    if isinstance(error, TypeError) and "positional argument" in str(error):
        return "Your function is called with one thing, the all-reduce: def train(all_reduce)."
    return ""
