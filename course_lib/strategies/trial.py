"""A learner's own model is tried before a run: it is built, and takes a step with two examples, in
a process of its framework. What its strategy has to know of it is found there, and a builder that
fails stops nothing but this trial.
"""

import tempfile
import warnings
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

from course_lib import hardware, workloads
from course_lib.cluster.run import START, Prepared, Run
from course_lib.errors import SpecError, Stalled, TaskFailed
from course_lib.hardware import Reason
from course_lib.record.events import clock
from course_lib.record.progress import Line
from course_lib.spec.run_spec import RunSpec
from course_lib.workloads.layers import Sketch
from course_lib.workloads.workload import Workload

MADE_OF: WeakKeyDictionary[Workload, str] = WeakKeyDictionary()
"""A learner's own workload -> the fingerprint of what its model was made of when it was tried."""


def sketch(spec: RunSpec) -> Sketch:
    """Return what is known of the model of a run; a learner's own is tried once in each framework
    and precision, and again once it is made of something else.

    Raises `SpecError` that says what is wrong with it.
    """
    workload = workloads.load(spec)
    if not workload.ours:
        made_of = workload.fingerprint()
        if MADE_OF.setdefault(workload, made_of) != made_of:
            workload.sketches.clear()
            MADE_OF[workload] = made_of
    known = workload.sketch_in(spec.framework, spec.precision)
    if known is None:
        known = workload.sketches[spec.framework, spec.precision] = tried(spec)
    return known


def reasons(spec: RunSpec, model: Sketch, device: str, divided: bool) -> list[Reason]:
    """The reasons in the plan of a model that is trained on a `device` (cpu or gpu), by batches
    that are `divided` or not. Raises `SpecError` if it cannot be trained there, and warns if its
    loss is no mean over the examples that are divided.
    """
    notes = list(model.notes)
    if model.uneven and divided:
        warnings.warn_explicit(model.uneven, UserWarning, spec.workload, 1)  # no line of ours
        notes.append(model.uneven)
    if model.synchronized and spec.shares > 1:
        if spec.framework == "torch" and device == "cpu":
            text = "torch.nn.SyncBatchNorm works on GPUs only, and this run is on CPUs"
            raise SpecError("workload", spec.workload, f"{text}: take torch.nn.BatchNorm1d or 2d")
        whose = "all replicas, which exchange them in the forward pass"
        if spec.ps:
            whose = "each worker's own share of a batch, as workers meet at parameter servers only"
        notes.append(f"Synchronized batch normalisation takes means and variances of {whose}.")
    return [Reason("model", f"{model.parameters:,} parameters", each) for each in notes]


def tried(spec: RunSpec, role: str = "sketch", workers: int = 1) -> Any:
    """Try a learner's own model, or (`pieces`) its pieces on so many workers.

    Raises `SpecError` that says what is wrong with it.
    """
    same: dict[str, Any] = {
        name: getattr(spec, name) for name in ("framework", "workload", "precision", "seed")
    }
    roles = {"worker": f"{__package__}.{spec.framework}.trial:{role}"}
    with tempfile.TemporaryDirectory(prefix="lockstep-trial-") as place:
        same |= {"strategy": f"{role}()", "trace": False, "run_dir": Path(place, "run")}
        alone, machine = RunSpec(**same, workers=workers).complete(), hardware.probe()
        run = Run(Prepared(alone, machine, hardware.plan(alone, machine), roles), clock())
        began, on = clock(), "one worker" if workers == 1 else f"{workers} workers"
        with run, Line(lambda: f"trying out {spec.workload} on {on}, {clock() - began:.0f} s"):
            try:
                return run.wait(START).values["worker:0"]
            except TaskFailed as failure:
                reason = failure.reason.removeprefix("ValueError: ")
                raise SpecError("workload", spec.workload, reason) from None
            except Stalled as late:
                reason = f"its model was not built and tried within {late.seconds:g} s"
                raise SpecError("workload", spec.workload, reason) from None
