"""The plan of a run on a machine: devices, threads, collective backend, start method and memory,
each with its reason.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from course_lib.errors import SpecError
from course_lib.hardware.capabilities import Capability, network_parts
from course_lib.hardware.limits import gigabytes
from course_lib.hardware.machine import Machine, sentence
from course_lib.network.kinds import Imposer, Kind
from course_lib.record.reality import planned_links, reality
from course_lib.spec import NATIVE, RunSpec

Backend = Literal["nccl", "ring", "gloo", "none"]
StartMethod = Literal["fork", "spawn"]
MB = 2**20

# (once, each): MB that a cluster takes once, for its zygote or for the library pages that its tasks
# share, and again for each task. Measured on Linux x86-64 with /proc/<pid>/smaps_rollup: once is
# the zygote's Rss (spawn: file pages, Rss - Anonymous), each is Private_Clean + Private_Dirty of 2
# and of 4 tasks after ten steps of an MLP on digits (MultiWorkerMirroredStrategy with RING; DDP on
# gloo). Seen: tensorflow fork 621 and 96, spawn 388 and 295; torch fork 371 and 16, spawn 115 and
# 271; numpy with scikit-learn 119. Rounded up.
_MEMORY_MB = {
    ("tensorflow", "fork"): (650, 140),
    ("tensorflow", "spawn"): (400, 350),
    ("torch", "fork"): (450, 60),
    ("torch", "spawn"): (150, 320),
    ("python", "fork"): (150, 40),
    ("python", "spawn"): (50, 120),
}
# Copies of the float32 parameters that a task holds at its worst moment: weights, gradients, reduce
# buffers, temporaries. Same runs, the MLP grown to 10, 25 and 50 million parameters, 4 workers,
# from the peak (VmHWM): tensorflow 6.4 to 8.4 (the first step merges tensors for RING; up to 12
# with 2 workers), torch 3.1 to 4.1.
_COPIES = {"tensorflow": 8, "torch": 4, "python": 5}


@dataclass(frozen=True)
class Reason:
    """One decision of a plan: `what` was decided, the `choice`, and `why`, in one sentence for a
    learner.
    """

    what: str
    choice: str
    why: str


@dataclass(frozen=True)
class Plan:
    """Where and how the tasks of a run start. `devices`: task -> `cpu` or `gpu:0`; `threads`: of
    each task; `fits`: tasks that memory allows.

    `rate`, `delay`: who imposes those of the links between hosts; None where there are none.
    """

    start_method: StartMethod
    device: Literal["cpu", "gpu"]
    devices: dict[str, str]
    threads: int
    backend: Backend
    reality: str
    fits: int
    network: Kind
    rate: Imposer | None
    delay: Imposer | None
    reasons: tuple[Reason, ...]


def plan(
    spec: RunSpec, machine: Machine, warm: bool = False, all_reduce: Reason | None = None
) -> Plan:
    """Decide how a run is placed. Pure: it looks at nothing but its arguments.

    `warm` says that the zygote of this framework runs already, so that its memory is not counted
    twice. `all_reduce`: what the strategy has in place of the framework's own. Raises `SpecError`
    if the tasks need more memory than is free.
    """
    start: StartMethod = "fork" if machine.fork.ok else "spawn"
    fits, memory = _fit(spec, machine, start, warm)
    gpus, device = _gpus_used(spec, machine)
    backend, reduction = _backend(spec, gpus)
    if all_reduce or spec.all_reduce != NATIVE:
        reduction = all_reduce or _scheduled(spec)
    cores = _cores_reason(spec, machine, gpus)
    kind, rate, delay, network = _network(spec, machine.private_network)
    real = reality(spec)
    return Plan(
        start_method=start,
        device="gpu" if gpus else "cpu",
        devices=dict.fromkeys(spec.tasks, "cpu")
        | {f"worker:{i}": f"gpu:{i * spec.replicas}" for i in range(gpus // spec.replicas)},
        threads=_threads(spec, machine),
        backend=backend,
        reality=real.word,
        fits=fits,
        network=kind,
        rate=rate,
        delay=delay,
        reasons=(
            cores,
            device,
            reduction,
            _start_reason(spec, machine),
            memory,
            network,
            Reason("reality", real.word, real.why),
        ),
    )


def _fit(spec: RunSpec, machine: Machine, start: StartMethod, warm: bool) -> tuple[int, Reason]:
    """How many tasks of this kind fit in memory. Raises `SpecError` if those of `spec` do not."""
    once, each = (mb * MB for mb in _MEMORY_MB[spec.framework, start])
    once = 0 if warm and start == "fork" else once
    model = 4 * spec.parameters * _COPIES[spec.framework] if spec.workload == "wide" else 0
    each += model * spec.replicas
    tasks = len(spec.tasks)
    if machine.memory_total == 0:
        return tasks, Reason(
            "memory", "not known", "How much is free cannot be read here, so nothing is refused."
        )
    need, fits = gigabytes(once + tasks * each), max(0, (machine.memory - once) // each)
    free = gigabytes(machine.memory)
    if tasks <= fits:
        return fits, Reason(
            "memory",
            f"about {need}",
            f"For {_n(tasks, 'task')}; the {free} that are free would hold {fits} of this kind.",
        )
    most, what = fits - (tasks - spec.workers), _n(tasks, "task")
    if spec.replicas > 1:  # the workers that were asked for are the devices of one process
        most, what = (
            (machine.memory - once - each) // max(model, 1) + spec.replicas,
            f"{spec.replicas} devices of one process",
        )
    at_most = (
        f"at most {_n(most, 'worker')}"
        if most > 0
        else "not even one worker fits: close other programs or notebooks"
    )
    smaller = ", or fewer parameters" if spec.workload == "wide" else ""
    text = f"{spec.framework} needs about {need} for {what}, this machine has {free} free: {at_most}{smaller}"
    raise SpecError("workers", spec.shares, text)


def _gpus_used(spec: RunSpec, machine: Machine) -> tuple[int, Reason]:
    """How many workers get a GPU of their own: all that need one, or none, so that workers stay
    alike.
    """
    here, needed = len(machine.gpus), 1 if spec.strategy == "one_device" else spec.shares
    if not here:
        return 0, Reason("device", "cpu", "No GPU was found; this run needs none.")
    found = f"{_n(here, 'GPU')} ({machine.gpus[0].name})"
    if spec.framework == "python":
        why = f"{found} left alone: functions of your own compute on the CPU unless they say otherwise."
    elif spec.framework not in machine.cuda_frameworks:
        why = f"{found} left alone: the installed {spec.framework} is a build without CUDA."
    elif here < needed:
        why = f"{found} for {needed} workers: it takes one for each, so all compute on the CPU and stay alike."
    else:
        return needed, Reason(
            "device",
            "gpu",
            f"{found}: {'one for each worker' if needed > 1 else 'the worker computes on one'}.",
        )
    return 0, Reason("device", "cpu", why)


def _backend(spec: RunSpec, gpus: int) -> tuple[Backend, Reason]:
    """The framework's own way to all-reduce: NCCL where every worker has a GPU, else what works on
    CPUs.
    """
    if spec.framework == "python":
        return "none", Reason(
            "all-reduce", "none", "No framework is loaded, so no framework's collectives either."
        )
    if gpus > 1:
        return "nccl", Reason(
            "all-reduce",
            "nccl",
            "Every worker has an NVIDIA GPU, and NCCL moves gradients straight from GPU to GPU.",
        )
    native: Backend = "ring" if spec.framework == "tensorflow" else "gloo"
    if spec.workers == 1:
        return native, Reason(
            "all-reduce", native, "One worker has nobody to reduce with, so nothing is sent."
        )
    how = (
        "TensorFlow's RING passes chunks of the gradient from worker to worker"
        if native == "ring"
        else "torch's gloo adds gradients up over TCP"
    )
    return native, Reason(
        "all-reduce", native, f"NCCL works only between GPUs, one for each worker; on CPUs {how}."
    )


def _scheduled(spec: RunSpec) -> Reason:
    across = f", and over TCP between the {spec.hosts} hosts" if spec.hosts > 1 else ""
    return Reason(
        "all-reduce",
        spec.all_reduce,
        f"Ours: the workers carry out its schedule themselves, in shared memory on a host{across}.",
    )


def _network(spec: RunSpec, can: Capability) -> tuple[Kind, Imposer | None, Imposer | None, Reason]:
    """The kind of network, who imposes rate and delay of its links, and why."""
    own: Kind = "private" if can.ok else "loopback"
    seen = (
        "Nobody outside can reach or see the ports of its tasks."
        if can.ok
        else sentence(
            f"{can.why}: other users of this machine, and maybe other machines, can reach the ports of its tasks. {can.cure}"
        )
    )
    hosts = len(spec.all_hosts)
    if hosts == 1:
        return (
            own,
            None,
            None,
            Reason(
                "network", own, f"{seen} All tasks are on one host, so nothing goes over a wire."
            ),
        )
    parts = network_parts(can)
    rate: Imposer = "kernel" if parts["rate"].ok else "exchange"
    delay: Imposer = "kernel" if parts["delay"].ok else "exchange"
    planned = planned_links(spec)
    links = f" Links: {planned}." if planned else ""
    missing = {
        what: parts[what].why
        for what, needed in (("rate", _rated(spec)), ("delay", _delayed(spec)))
        if needed and not parts[what].ok
    }
    for what, why in missing.items():
        links += f" Their {what} binds our own exchange only, not what a framework sends: {why}."
    if not parts["hosts"].ok:
        return (
            own,
            rate,
            delay,
            Reason(
                "network", own, f"{seen} The {hosts} hosts are one, as {parts['hosts'].why}.{links}"
            ),
        )
    return (
        "hosts",
        rate,
        delay,
        Reason("network", f"{hosts} hosts", f"{seen} Each task has an address of its own.{links}"),
    )


def _rated(spec: RunSpec) -> bool:
    return any(spec.link_of(host).mbit for host in spec.all_hosts)


def _delayed(spec: RunSpec) -> bool:
    return any(spec.link_of(host).delay_ms for host in spec.all_hosts)


def _threads(spec: RunSpec, machine: Machine) -> int:
    return max(1, machine.cores // spec.workers)


def _cores_reason(spec: RunSpec, machine: Machine, gpus: int) -> Reason:
    cores, workers = machine.cores, spec.workers
    have = f"{_n(cores, 'core')} for {_n(workers, 'worker')}"
    if gpus:
        why = f"{have}: they only have to feed the GPUs."
    elif spec.replicas > 1:
        why = f"{have}: its {spec.replicas} replicas share them."
    elif workers == 1:
        why = f"{have}: all of this machine is its own."
    elif cores >= workers:
        why = f"{have}: each has {_n(cores // workers, 'core')} to itself, so they do compute at the same time."
    else:
        device = (
            "device time is emulated"
            if spec.device_ms > 0
            else "device_ms would emulate a device for each"
        )
        why = f"{have}: they take turns, so expect no speed-up from compute; {device}."
    return Reason("cores", f"{_n(_threads(spec, machine), 'thread')} a worker", why)


def _start_reason(spec: RunSpec, machine: Machine) -> Reason:
    name = "what they need" if spec.framework == "python" else spec.framework
    if machine.fork.ok:
        return Reason(
            "start",
            "fork",
            f"Tasks are copied from one process that has imported {name} already: at once, and sharing its memory.",
        )
    return Reason(
        "start",
        "spawn",
        sentence(
            f"{machine.fork.why}; every task imports {name} anew, which takes longer and more memory."
        ),
    )


def _n(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
