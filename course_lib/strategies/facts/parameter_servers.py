"""Strategies whose variables live on parameter servers. They differ in when a server applies a
gradient, and in who waits for whom.
"""

import math
from collections.abc import Callable
from functools import partial

from course_lib.hardware import Machine
from course_lib.spec.run_spec import RunSpec
from course_lib.strategies.strategy import (
    Measured,
    Memory,
    Refusals,
    Strategy,
    no_all_reduce,
    on_workers,
    share_of,
)
from course_lib.workloads.layers import Sketch


def _memory(
    counted: Callable[[RunSpec], int], spec: RunSpec, model: Sketch, examples: int
) -> Memory:
    """A ps holds its part of the parameters and of the optimizer's state, and as many gradients as
    are `counted` for an update. A worker holds a copy of all parameters, and the gradients and
    activations of its share. In PyTorch messages are copies: on a ps of its parameters, on a worker
    of all parameters and gradients. In TensorFlow messages cannot be seen.
    """
    worker, ps = share_of(spec, model), share_of(spec, model, spec.ps)
    worker |= {"optimizer_state": 0, "activations": model.kept(examples)}
    ps["gradients"] *= counted(spec)
    if spec.framework == "torch":
        worker["buffers"] = worker["parameters"] + worker["gradients"]
        ps["buffers"] = ps["parameters"]
    return on_workers(spec, worker) | {f"ps:{k}": dict(ps) for k in range(spec.ps)}


def _check_half(spec: RunSpec, machine: Machine) -> Refusals:
    """Refuse float16 where a worker cannot look at its gradient before it pushes it."""
    if spec.framework == "tensorflow" and spec.precision == "float16":
        yield "precision", "TensorFlow's workers push what overflows: take bfloat16, or torch"


_STRATEGY = partial(
    Strategy,
    variables="on the parameter servers, cut into equal parts; workers pull copies",
    wire="each worker pulls S and pushes S bytes; all parameter servers together 2nS in a step",
    jobs={"torch": ("worker", "ps")},
    measured={
        "tensorflow": Measured("real processes; gRPC between TensorFlow's servers"),
        "torch": Measured("real processes; sockets between workers and parameter servers"),
    },
    all_reduce=no_all_reduce("Gradients go to the parameter servers; parameters come back."),
    memory=partial(_memory, lambda spec: 1),
    check=_check_half,
)
_BOTH = {"tensorflow": ("chief", "worker", "ps"), "torch": ("worker", "ps")}
_REVISITED = "Chen et al., Revisiting Distributed Synchronous SGD, 2016 (arXiv:1604.00981)"


def _check_parts(spec: RunSpec, machine: Machine) -> Refusals:
    """Refuse a part of the data for each worker: nobody owns a share."""
    if spec.sampler == "per_worker":
        yield "sampler", "whoever is free takes the next share: leave it out"
    yield from _check_half(spec, machine)


PARAMETER_SERVER = _STRATEGY(
    name="parameter_server",
    summary="Parameter servers apply the gradients of workers as they come (asynchronous SGD).",
    gradients="each worker, from a share of a batch: whoever is free takes the next one",
    update="the parameter server, with each gradient as it comes",
    waits="nobody",
    use="models too large for a machine's memory, such as big embeddings; workers of unequal speed",
    limits="gradients are stale, by n-1 updates on average, a slow worker's by far more; the"
    " servers' network carries all",
    source="Dean et al., Large Scale Distributed Deep Networks, NIPS 2012; Li et al., Scaling "
    "Distributed Machine Learning with the Parameter Server, OSDI 2014",
    check=_check_parts,
    jobs=_BOTH,
    recovers="alone",
    default_workers=3,
    asynchronous=True,
)


SYNC_PARAMETER_SERVER = _STRATEGY(
    name="sync_parameter_server",
    summary="Parameter servers wait for a gradient from every worker, and apply their mean.",
    gradients="each worker, from its share of the batch",
    update="the parameter server, with the mean of all workers' gradients",
    waits="every worker for all others, in each step",
    use="as an all-reduce would, where variables are to live on machines of their own",
    limits="the slowest worker sets the pace; the parameter servers' network carries everything",
    source=_REVISITED,
    jobs=_BOTH,
    default_workers=3,
    memory=partial(_memory, lambda spec: spec.workers),
)

STALE_SYNCHRONOUS = _STRATEGY(
    name="stale_synchronous",
    summary="Gradients are applied as they come, but no worker gets too far ahead of the slowest.",
    gradients="each worker, from its share of the batch",
    update="the parameter server, with each gradient as it comes",
    waits="a worker that is more than staleness_bound steps ahead of the slowest, for that one",
    use="clusters whose workers have hiccups at different times",
    limits="an always slow worker sets the pace; staleness up to (n-1)(2 staleness_bound + 1)",
    source="Ho et al., More Effective Distributed ML via a Stale Synchronous Parallel Parameter "
    "Server, NIPS 2013",
    recovers="alone",
    asynchronous=True,
    takes=("staleness_bound",),
)


def _check_backups(spec: RunSpec, machine: Machine) -> Refusals:
    """At least one gradient must count, and the batch must divide over those that do."""
    counted = spec.workers - spec.backups
    if counted < 1:
        yield "backups", f"at most {spec.workers - 1} of {spec.workers} workers"
    elif spec.batch % counted:
        why = f"must divide evenly over the {counted} workers whose gradients count"
        yield "global_batch", why


BACKUP_WORKERS = _STRATEGY(
    name="backup_workers",
    summary="The first (workers - backups) gradients of a step are its update; others are dropped.",
    gradients="each worker, from a share of the batch; (workers - backups) shares are all of it",
    update="the parameter server, with the mean of a step's first (workers - backups) gradients",
    waits="every worker for the first (workers - backups) in each step, and not for the others",
    use="synchronous training on many machines, of which some are slow at any time",
    limits="what the backups compute is thrown away; the parameter servers' network carries all",
    source=_REVISITED,
    check=_check_backups,
    recovers="alone",
    pieces=lambda spec: math.lcm(
        spec.workers, max(1, spec.workers - spec.backups) * spec.accumulate
    ),
    memory=partial(_memory, lambda spec: spec.workers - spec.backups),
    takes=("backups",),
)
