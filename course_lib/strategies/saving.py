"""Checkpoints, the same in both frameworks: when one is due, and who may go on from it. What they
hold, and how they lie in the directory of a run: see `record/checkpoints.py`.
"""

from collections.abc import Mapping
from typing import Any

from course_lib import workloads
from course_lib.errors import LockstepError, SpecError
from course_lib.record import checkpoints
from course_lib.record.checkpoints import Checkpoint
from course_lib.record.rundir import Plan, Reason, RunDir
from course_lib.spec.run_spec import RunSpec
from course_lib.strategies import catalog

SAME = ("framework", "workload", "optimizer", "precision", "seed", "sampler")
"""The fields of `RunSpec` that a run shares with the one it goes on from, beside its `sizes`.
Others, such as the learning rate, may differ."""

LAYOUT = ("strategy", "workers", "replicas", "ps", "global_batch")
"""Those that say who holds what of the state, and reads which examples: see `free`."""


def due(spec: RunSpec, steps: int) -> bool:
    """Return whether a checkpoint is left once so many steps are done: after every
    `checkpoint_every`, and after the last.
    """
    every = spec.checkpoint_every
    return every > 0 and (steps % every == 0 or steps == spec.steps)


def latest(files: RunDir, spec: RunSpec) -> Checkpoint | None:
    """The checkpoint that a run goes on from: its own last one, once its tasks were started again,
    else the last one of the run that it resumes. Raises `LockstepError` if that has none any more.
    """
    checkpoint = checkpoints.latest(files)
    if checkpoint or not spec.resume:
        return checkpoint
    if not (checkpoint := checkpoints.latest(RunDir(spec.resume))):
        raise LockstepError(f"the run in {spec.resume} has no checkpoint any more to resume from")
    return checkpoint


def facts_of(spec: RunSpec) -> dict[str, Any]:
    """Return the facts that a run shares with those that go on from its checkpoints."""
    workload = workloads.load(spec)
    sketch = workload.sketch_in(spec.framework, spec.precision)
    fields = {name: getattr(spec, name) for name in (*SAME, *LAYOUT)}
    fields["sizes"] = workloads.sizes(spec)
    counts = {"trained parameters": sketch and sketch.parameters, "examples": len(workload.train)}
    return fields | {name: count for name, count in counts.items() if count}


def free(spec: RunSpec, theirs: Mapping[str, Any]) -> set[str]:
    """The fields of `LAYOUT` in which a run may differ from one with these facts, to go on from it:
    those that change nothing but the order of sums. The global batch may differ only if it does not
    divide over the devices that are there now.
    """
    if not all(map(catalog.carries_over, (spec.strategy, theirs.get("strategy", "")))):
        return set()
    if spec.sampler == "per_worker":  # each worker goes on in its own part of the data
        return {"strategy", "ps"}
    return {*LAYOUT} - ({"global_batch"} if theirs["global_batch"] % spec.shares == 0 else set())


def resumed(spec: RunSpec, plan: Plan) -> Plan:
    """The plan of a run whose model is known, with the checkpoint that it goes on from, if it does.

    Raises `SpecError` if there is none, or if it is that of a run which is not alike.
    """
    if not (path := spec.resume):
        return plan
    if not RunDir(path).holds_run:
        raise SpecError("resume", str(path), "no run is there: name the directory of another run")
    saved = checkpoints.of_run(RunDir(path))
    usable = [each for each in saved if not each.problem]
    problems = "; ".join(f"step {each.steps}: {each.problem}" for each in saved if each.problem)
    if not usable:
        why = f"none of its checkpoints can be used ({problems})" if saved else "it has none"
        raise SpecError("resume", str(path), f"{why}: name a run with checkpoint_every=50 or so")
    manifest = next(iter(usable[-1].parts.values()))
    ours, theirs = facts_of(spec), manifest.facts
    differ = [name for name in theirs if name in ours and ours[name] != theirs[name]]
    for name in (name for name in differ if name not in free(spec, theirs)):
        text = f"the checkpoint of step {manifest.step} in {path} has {theirs[name]!r}"
        if name in RunSpec.model_fields:
            if name == "strategy":
                able = ", ".join(filter(catalog.carries_over, catalog.STRATEGIES))
                text = f"{text}, and only these go on from each other ({able})"
            raise SpecError(name, ours[name], f"{text}: set the same, or leave resume out")
        text = f"{text} {name}, this one has {ours[name]!r}: take the same, or leave resume out"
        raise SpecError("workload", spec.workload, text)
    if manifest.step >= spec.steps:
        raise SpecError("steps", spec.steps, f"{manifest.step} are done in {path}: set more")
    unused = f" Not used: {problems}." if problems else ""
    other = ", ".join(f"{name}={theirs[name]}" for name in differ)
    left = f", which was left with {other}" if other else ""
    why = f"It goes on from the last checkpoint in {path}{left}.{unused}"
    reasons = (*plan.reasons, Reason("resume", f"step {manifest.step}", why))
    return plan.model_copy(update={"resumed_from": manifest.step, "reasons": reasons})
