"""The outcome of a strategy's run, as one flat record: what the command line prints and a
lesson's cell shows.
"""

import math
from statistics import mean
from typing import Any

from course_lib import workloads
from course_lib.cluster.run import Run
from course_lib.record import measures
from course_lib.record.events import Metric, Update
from course_lib.record.ledger import ledger
from course_lib.record.observed import observed
from course_lib.record.reality import computing
from course_lib.strategies import catalog


def summarize(run: Run) -> dict[str, Any]:
    """The summary of a finished run, or of a stopped one as far as it came. It has the same keys
    for every run: what there is none of is None, or empty. Digests, devices and the test metric
    come from tasks at their end: a stopped run has none.

    `replicas` compute, each a share of the batch; they live in so many `workers`, which are
    processes. `all_reduce` is as the plan says. `stopped`: whether the run was stopped; it took
    `steps_done` steps, with so many `examples`. In float16, by task: the `loss_scale` at the end,
    how many gradients were not used because of `overflows`, and the mean share of `zeros` in the
    others (see `optimizers.py`).

    `parameter_digest` maps each task to a hash of the parameters it ended with: equal digests are
    equal to the last bit. `flops_per_step`: of the model, for a global batch (see
    `training_flops`). `diverged`: None, or why it trained nothing any more, see `Digest`.

    `variables_on`: bytes of parameters by the device that the runtime names; `optimizer_state_on`:
    those of the optimizer's state. `memory`: bytes by task and kind, see `record/measures.py`;
    `memory_formula`: what the strategy's formula says.

    `observed`: the facts of the strategy as the trace shows them, see `record/observed.py`.
    `staleness`: how many updates had how many others between their read and their write. `ledger`:
    see `record/ledger.py`. `restarts`: how often tasks were started again after a failure;
    `steps_again`: how many steps were done again for that reason, which count once in all figures;
    `tasks_lost`: those that the run went on without, and `taken_over`: which pieces of batches that
    they had taken were given to whom.

    `seconds` are counted from `start`; `examples_per_second` leaves out the first step, which
    compiles. `idle_share`: the part of the time from a task's first phase to its last in which it
    waited for others. (A race and the boards count it from the start of the clock, which leaves out
    the first step.) `exchange_ms`: of a step, how many milliseconds of exchange were `hidden`
    behind computing, and how many were `exposed`. `mfu` and `mfu_why`: see `utilization`. `faults`:
    what was done to the run, and when.

    `wire_bytes_per_step`: what each task and each host `sent` and `received` in a step, counted by
    the kernel; on a Ray cluster, to and from other nodes. None where there are no hosts or nodes
    whose traffic it could count. A packet has 66 bytes of headers, and up to 64 KB of the
    frameworks' bytes. `examples_read`, with `record_examples`: how many examples of each epoch were
    read, how many of these more than once, and how many never.
    """
    spec, digest, trace = run.spec, run.digest, run.trace.once()
    returned = run.values
    if spec.own and returned and not any(map(_of_step, returned.values())):
        return returned  # functions that make no training step
    values = {task: value if _of_step(value) else {} for task, value in returned.items()}
    workload, reasons = workloads.load(spec), {reason.what: reason for reason in run.plan.reasons}
    model = workload.sketch_in(spec.framework, spec.precision)
    examples, losses, rate = digest.losses.examples, digest.losses.values, digest.losses.rate()
    # of the task that measured the model at the end
    usual = {"final_loss": float(losses[-1]) if len(losses) else None}
    usual |= {f"test_{workload.metric_name}": None}
    measured = (v for v in values.values() if any(name.startswith("test_") for name in v))
    final: dict[str, Any] = next(measured, usual)
    flops = final.get("flops_per_step", 0)
    mfu, mfu_why = utilization(run, flops / spec.batch * (rate or 0))
    resumed = {"step": run.plan.resumed_from, "run_dir": str(spec.resume)}
    given = run.trace.all(Metric, name="taken_over")
    places = _by_device(values, "variables_on")
    seconds = measures.seconds_to(trace)
    seen = observed(spec, trace, places, 4 * (final.get("parameters") or 0))
    links = {f"host:{host}": spec.link_of(host).model_dump() for host in spec.all_hosts}
    return {
        "strategy": spec.strategy,
        "framework": spec.framework,
        "workload": spec.workload,
        "all_reduce": reasons["all-reduce"].choice,
        "hosts": spec.hosts,
        "replicas": spec.shares,
        "workers": spec.workers,
        "steps": spec.steps,
        "stopped": run.state == "stopped",
        "steps_done": digest.steps_done,
        "examples": int(examples[-1]) if len(examples) else 0,
        "resumed_from": resumed if spec.resume else {},
        "global_batch": spec.batch,
        "optimizer": spec.optimizer,
        "precision": spec.precision,
        **_float16(run),
        "parameters": final.get("parameters") or (model.parameters if model else None),
        "flops_per_step": flops,
        "final_loss": final["final_loss"],
        **{name: value for name, value in final.items() if name.startswith("test_")},
        "diverged": digest.diverged or None,
        "sample": final.get("sample"),
        "parameter_digest": {task: v["digest"] for task, v in values.items() if "digest" in v},
        "update_applied_by": sorted({_device(e.task, e.device) for e in trace.all(Update)}),
        "variables_on": places,
        "optimizer_state_on": _by_device(values, "optimizer_state_on"),
        "memory": {task: digest.memory[task] for task in spec.tasks if task in digest.memory},
        "observed": dict(seen._asdict()),
        "memory_formula": catalog.of(spec).foretold(spec, model) if model else {},
        "staleness": digest.updates.as_dict(),
        "dropped_gradients": digest.dropped,
        "ledger": ledger(run.trace).as_dict(),
        "restarts": digest.life.restarts,
        "steps_again": digest.repeats.steps,
        "tasks_lost": digest.lost,
        "taken_over": [
            {"step": m.step, "from": f"worker:{m.value:.0f}", "to": m.task} for m in given
        ],
        "idle_share": {task: round(share, 4) for task, share in measures.idle_share(trace).items()},
        "exchange_ms": measures.exchange_ms(trace),
        "seconds": {n: round(s, 4) if math.isfinite(s) else None for n, s in seconds.items()},
        "examples_per_second": round(rate, 1) if rate else None,
        "mfu": mfu,
        "mfu_why": mfu_why,
        "device_ms": spec.device_ms,
        "jitter": spec.jitter,
        "faults": _faults(run),
        "reality": run.reality.word,
        "network": run.plan.network,
        "network_why": reasons["network"].why,
        "link": links if spec.link else None,
        "wire_bytes_per_step": measures.wire_bytes_per_step(trace) or None,
        "examples_read": _examples_read(run) if spec.record_examples else {},
        "run_dir": str(run.run_dir),
    }


def _of_step(value: Any) -> bool:
    """Tell whether a task returned the result of a training step."""
    return isinstance(value, dict) and "digest" in value


def _faults(run: Run) -> list[str]:
    """The faults that happened, and those for which the run was over too soon."""
    done = [span for span in run.digest.life.of(None) if span.cause.fault]
    happened = {span.cause.fault for span in done}
    missed = [str(fault) for fault in run.spec.faults if str(fault) not in happened]
    happened_at = [f"{s.who} {s.state} after {s.start:.2f} s ({s.cause.fault})" for s in done]
    return happened_at + [f"did not happen: {fault}" for fault in missed]


def _float16(run: Run) -> dict[str, dict[str, float]]:
    def by_task(name: str) -> dict[str, list[float]]:
        values: dict[str, list[float]] = {}
        for metric in run.trace.all(Metric, name=name):
            values.setdefault(metric.task, []).append(metric.value)
        return values

    return {
        "loss_scale": {task: values[-1] for task, values in by_task("loss_scale").items()},
        "overflows": {task: int(sum(values)) for task, values in by_task("overflow").items()},
        "zeros": {task: round(mean(values), 4) for task, values in by_task("zeros").items()},
    }


def _examples_read(run: Run) -> dict[str, dict[str, int]]:
    epochs = measures.coverage(run.trace, len(workloads.load(run.spec).train))
    return {
        f"epoch {epoch}": {"read": e.read, "repeated": len(e.repeated), "never": len(e.never)}
        for epoch, e in epochs.items()
    }


def utilization(run: Run, flops: float) -> tuple[float | None, str]:
    """The model FLOPs utilization (MFU) of a run that trained with so many FLOP/s: a number from 0
    on, and what it is a share of; or None, and why it is left out.

    It is the operations that the model needs, over those that the devices could do in the same
    time. The time is that on the wall, so waiting and communication lower it. As the peak of a
    machine is not always known, the devices could do what a float32 matrix product of the run's
    framework did on them when training was over. Source: Chowdhery et al., "PaLM", 2022,
    appendix B.
    """
    spec, plan = run.spec, run.plan
    if (computed := computing(spec, run.digest.life)).word != "measured":
        return None, f"Left out, as computing is {computed.word}. {computed.why}"
    product = next((v["matmul_flops"] for v in run.values.values() if v and "matmul_flops" in v), 0)
    if not (flops > 0 and product):
        return None, "Left out, as no product was counted in the model, or no step was timed."
    devices, where = spec.shares, "each GPU"
    if plan.device == "cpu":
        cores = min(plan.cores, spec.workers * plan.threads)
        if spec.framework == "tensorflow" and plan.threads < cores:
            why = "Left out: a task can measure only with its own threads, and TensorFlow fixes"
            return None, f"{why} their number at the start: {plan.threads} of {cores} here."
        devices, where = 1, f"{cores} core{'s' * (cores > 1)}"
    per = f"{product / 1e9:,.0f} GFLOP/s that a float32 matrix product does on {where}"
    share = round(flops / (devices * product), 4)
    many = f"{devices} x " * (devices > 1)
    return share, f"{flops / 1e9:,.1f} of the {many}{per}."


def _by_device(values: dict[str, dict[str, Any]], what: str) -> dict[str, int]:
    """The figures that tasks report of their devices, by the devices of the whole cluster."""
    by_task = {task: value.get(what, {}) for task, value in values.items()}
    return {_device(task, d): n for task, devices in by_task.items() for d, n in devices.items()}


def _device(task: str, device: str) -> str:
    """A device of the whole cluster. TensorFlow's names begin with the job; torch's are the same
    everywhere, unless a task speaks for another.
    """
    return device if device.startswith(("/job:", "ps:")) else f"{task}/{device}"
