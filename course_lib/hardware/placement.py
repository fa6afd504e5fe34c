"""The plan of a run on a machine: devices, threads, collective backend, start method and memory,
each with its reason.
"""

from typing import Any

from course_lib import workloads
from course_lib.errors import SpecError, Unavailable
from course_lib.hardware.limits import gigabytes
from course_lib.hardware.machine import Machine, network_parts, sentence
from course_lib.record.reality import planned_links, reality
from course_lib.record.rundir import Network, Plan, Reason
from course_lib.spec.run_spec import FRAMEWORKS, RunSpec
from course_lib.spec.settings import NATIVE
from course_lib.text import count

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


def plan(
    spec: RunSpec,
    machine: Machine,
    warm: bool = False,
    all_reduce: Reason | None = None,
    parameters: int = 0,
) -> Plan:
    """Decide how a run is placed. Pure: it looks at nothing but its arguments.

    `warm` says that the zygote of this framework runs already, so that its memory is not counted
    twice. `all_reduce`: what the strategy has in place of the framework's own. `parameters`: how
    many the model has. Raises `SpecError` if the tasks need more memory than is free, `Unavailable`
    if other people could reach what the frameworks open, or if links cannot lose packets here.
    """
    start = _start(spec, machine)
    memory = _memory(spec, machine, start.choice, warm, parameters)
    gpus, device = _gpus(spec, machine)
    native = _native(spec, gpus)
    ours = native if spec.all_reduce in (NATIVE, "nccl") else _scheduled(spec, machine)
    threads = max(1, machine.cores // spec.workers)
    _refuse_open_doors(spec, machine)
    kind, imposers, network = _network(spec, machine)
    real = reality(spec)
    cores = Reason("cores", f"{count(threads, 'thread')} a worker", _cores(spec, machine, gpus))
    reasons = [cores, device, all_reduce or ours, start, memory, network]
    reasons.append(Reason("reality", real.word, real.why))
    if spec.precision != "float32" and device.choice == "cpu":
        why = f"Where a CPU has no instructions for {spec.precision}, this is slower than float32."
        reasons.append(Reason("precision", spec.precision, why))
    reasons += machine.settled  # in place of ours
    devices = dict.fromkeys(spec.tasks, "cpu")
    devices |= {f"worker:{i}": f"gpu:{i * spec.replicas}" for i in range(gpus // spec.replicas)}
    devices |= machine.devices if gpus else {}
    choices: dict[str, Any] = {"start_method": start.choice, "device": device.choice, **imposers}
    choices |= {"devices": devices, "cores": machine.cores, "threads": threads, "network": kind}
    choices |= {"backend": native.choice, "reality": real.word}
    return Plan(**choices, reasons=tuple({reason.what: reason for reason in reasons}.values()))


def _start(spec: RunSpec, machine: Machine) -> Reason:
    name = "what they need" if spec.framework == "python" else spec.framework
    if machine.fork.ok:
        why = f"Tasks are copied from one process that has imported {name} already: at once, "
        return Reason("start", "fork", f"{why}and sharing its memory.")
    why = f"{machine.fork.why}; every task imports {name} anew, which takes longer and more memory."
    return Reason("start", "spawn", sentence(why))


def _memory(spec: RunSpec, machine: Machine, start: str, warm: bool, parameters: int) -> Reason:
    """Reckon what the tasks need. Raises `SpecError` if they do not fit in the free memory."""
    if machine.memory_total == 0:
        why = "How much is free cannot be read here, so nothing is refused."
        return Reason("memory", "not known", why)
    once, each = (mb * MB for mb in _MEMORY_MB[spec.framework, start])
    once = 0 if warm and start == "fork" else once
    model = 4 * parameters * _COPIES[spec.framework]
    each += model * spec.replicas
    tasks = len(spec.tasks)
    need, fits = gigabytes(once + tasks * each), max(0, (machine.memory - once) // each)
    free, what = gigabytes(machine.memory), count(tasks, "task")
    if tasks <= fits:
        why = f"For {what}; the {free} that are free would hold {fits} of this kind."
        return Reason("memory", f"about {need}", why)
    most = fits - (tasks - spec.workers)
    if spec.replicas > 1:  # the workers that were asked for are the devices of one process
        most = (machine.memory - once - each) // max(model, 1) + spec.replicas
        what = f"{spec.replicas} devices of one process"
    none = "not even one worker fits: close other programs or notebooks"
    cure = f"at most {count(most, 'worker')}" if most > 0 else none
    cure += ", or smaller sizes" if workloads.sizes(spec) else ""
    text = f"{spec.framework} needs about {need} for {what}, this machine has {free} free: {cure}"
    raise SpecError("workers", spec.shares, text)


def _gpus(spec: RunSpec, machine: Machine) -> tuple[int, Reason]:
    """Choose the GPUs: one for each worker that computes, or none, so that workers stay alike."""
    here, needed = len(machine.gpus), spec.shares
    if not here:
        return 0, Reason("device", "cpu", "No GPU was found; this run needs none.")
    gpus = f"{count(here, 'GPU')} ({machine.gpus[0].name})"
    if spec.framework == "python":
        why = "left alone: functions of your own compute on the CPU unless they say otherwise"
    elif spec.framework not in machine.cuda_frameworks:
        why = f"left alone: the installed {spec.framework} is a build without CUDA"
    elif here < needed:
        why = f"for {needed} workers: as there is not one for each, all compute on the CPU"
    else:
        each = "one for each worker" if needed > 1 else "the worker computes on one"
        return needed, Reason("device", "gpu", f"{gpus}: {each}.")
    return 0, Reason("device", "cpu", f"{gpus} {why}.")


def _native(spec: RunSpec, gpus: int) -> Reason:
    """The framework's own way to all-reduce: NCCL where every worker has a GPU, else what works on
    CPUs.
    """
    if spec.framework == "python":
        choice, why = "none", "No framework is loaded, so no framework's collectives either."
    elif gpus > 1:
        choice = "nccl"
        why = "Every worker has an NVIDIA GPU, and NCCL moves gradients straight from GPU to GPU."
    else:
        choice, how = "gloo", "torch's gloo adds gradients up over TCP"
        if spec.framework == "tensorflow":
            choice = "ring"
            how = "TensorFlow's RING passes chunks of the gradient from worker to worker"
        why = f"NCCL works only between GPUs, one for each worker; on CPUs {how}."
        if spec.workers == 1:
            why = "One worker has nobody to reduce with, so nothing is sent."
    return Reason("all-reduce", choice, why)


def _scheduled(spec: RunSpec, machine: Machine) -> Reason:
    place, places = "node" if machine.nodes else "host", len(spec.all_hosts)
    across = f", and over TCP between the {places} {place}s" if places > 1 else ""
    why = f"the workers carry out its schedule themselves, in shared memory on a {place}{across}"
    return Reason("all-reduce", spec.all_reduce, f"Ours: {why}.")


def _refuse_open_doors(spec: RunSpec, machine: Machine) -> None:
    """Raise `Unavailable` if other people could reach the servers of TensorFlow or PyTorch, which
    ask nobody who he is: a client of TensorFlow's may read and write files.
    """
    can, who = machine.private_network, machine.others
    if can.ok or not who or spec.framework == "python" or len(spec.tasks) == 1:
        return
    names = f"{', '.join(who[:3])}{' and others' if len(who) > 3 else ''}"
    why = f"{can.why}, so its servers, which let in anybody, would be open to {names}"
    cure = "`lockstep doctor` says what a private network needs; LOCKSTEP_NETWORK=loopback runs it "
    what = f"{FRAMEWORKS[spec.framework]} in several processes"
    raise Unavailable(what, why, f"{cure}all the same.")


def _network(spec: RunSpec, machine: Machine) -> tuple[Network, dict[str, Any], Reason]:
    """The kind of network; who imposes the rate, the delay and the loss of its links; and why."""
    can = machine.private_network
    if machine.nodes:
        why = "Each has its own memory, so between nodes all goes over TCP. Links are as they "
        why += "are, and so measured: they are imposed between hosts of one machine only. "
        nodes = count(len(machine.nodes), "node")
        return "nodes", {}, Reason("network", nodes, f"{why}{sentence(can.why)}.")
    kind: Network = "private"
    seen = "Nobody outside can reach or see the ports of its tasks."
    if not can.ok:
        kind = "loopback"
        others = "other users of this machine can reach the ports of its tasks"
        seen = sentence(f"{can.why}: {others}. {can.cure}")
    hosts, links = len(spec.all_hosts), [spec.link_of(host) for host in spec.all_hosts]
    if hosts == 1:
        why = f"{seen} All tasks are on one host, so nothing goes over a wire."
        return kind, {}, Reason("network", kind, why)
    parts = network_parts(can)
    links_are = f" Links: {planned}." if (planned := planned_links(spec)) else ""
    wanted = {"rate": any(link.mbit for link in links), "delay": any(link.delay for link in links)}
    for what, asked in wanted.items():
        if asked and not parts[what].ok:
            only = "binds our own exchange only, not what a framework sends"
            links_are += f" Their {what} {only}: {parts[what].why}."
    if not (loss := parts["loss"]).ok and any(link.loss for link in links):
        raise Unavailable("a link that loses packets", loss.why, loss.cure)
    imposers = {what: "kernel" if parts[what].ok else "exchange" for what in wanted}
    imposers |= {"loss": "kernel"} if loss.ok else {}
    if parts["hosts"].ok:
        kind, where, each = "hosts", f"{hosts} hosts", "Each task has an address of its own."
    else:
        where, each = kind, f"The {hosts} hosts are one, as {parts['hosts'].why}."
    return kind, imposers, Reason("network", where, f"{seen} {each}{links_are}")


def _cores(spec: RunSpec, machine: Machine, gpus: int) -> str:
    """Say how the workers share the cores, in a sentence."""
    cores, workers = machine.cores, spec.workers
    would = "device time is emulated"
    if not spec.device_ms:
        would = "device_ms would emulate a device for each"
    how = f"they take turns, so expect no speed-up from compute; {would}"
    if gpus:
        how = "they only have to feed the GPUs"
    elif spec.replicas > 1:
        how = f"its {spec.replicas} replicas share them"
    elif workers == 1:
        how = "all of this machine is its own"
    elif cores >= workers:
        how = f"each has {count(cores // workers, 'core')} to itself: they compute at the same time"
    return f"{count(cores, 'core')} for {count(workers, 'worker')}: {how}."
