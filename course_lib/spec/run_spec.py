"""RunSpec: everything that decides a run, frozen, JSON in and out. It parses types and ranges; what
fields mean together is judged by `strategies/gate.py`.
"""

from __future__ import annotations

import inspect
import math
import typing
from collections.abc import Callable, Collection
from typing import Any, TypeVar

import numpy as np
from pydantic import SerializerFunctionWrapHandler, model_serializer

from course_lib.errors import SpecError
from course_lib.spec.faults import Fault
from course_lib.spec.fields import ALL, Jitter, Link, check_jitter
from course_lib.spec.settings import Settings

JOBS = ("chief", "worker", "ps")
FRAMEWORKS = {"tensorflow": "TensorFlow", "torch": "PyTorch"}  # as they write their names
REAL_LINKS = (
    "links are imposed on hosts of this machine only, with engine='local': those between the nodes "
    "of a cluster are as they are, and so measured; leave it out"
)
ONE_HOST = "a link is between hosts, and there is one: set hosts to 2 or more"


def batch_of(*parts: int) -> int:
    """A batch of 128 examples or a little less that divides by each of `parts`."""
    unit = math.lcm(*parts)
    return max(unit, 128 // unit * unit)


class RunSpec(Settings):
    """One run of one strategy.

    A field's title says what it is, its description what is allowed; the options of the command
    line are made from both. Batches are global: `global_batch` examples a step over all workers
    together, of which each worker takes an equal share. Times are in milliseconds where a name ends
    in `_ms`, else in seconds. Raises `SpecError`, which names the field, the value and what is
    allowed.

    A field counts as set if it was given, even with its default (`model_fields_set`). What was not
    set is as the strategy usually has it. JSON holds the fields that are set: in the record of a
    run, all that the run used.

    The workers are spread over `hosts` in equal blocks of neighbours; with several hosts, each
    parameter server and the chief get one of their own besides. `placement` puts single tasks
    elsewhere. Every host has the `link` of "*", or one of its own.
    """

    def __init__(self, /, **fields: Any) -> None:
        super().__init__(**fields)  # for type checkers: a field takes more types than it keeps

    @model_serializer(mode="wrap")
    def _to_json(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return {n: value for n, value in handler(self).items() if n in self.model_fields_set}

    def complete(self, unused: Collection[str] = ()) -> RunSpec:
        """The same run with all fields set but the `unused`, so that its JSON holds them."""
        values = {**dict(self), "global_batch": self.batch}
        spec = self.model_copy(update={n: v for n, v in values.items() if n not in unused})
        return spec.placed(spec.placement) if spec.placement else spec

    def placed(self, placement: dict[str, int]) -> RunSpec:
        """The same run with tasks on these hosts. Its `placement` then names all tasks, so that it
        means the same when it is read again.
        """
        places = self.model_copy(update={"placement": placement}).places
        hosts = {host for task, host in places.items() if task.startswith("worker:")}
        return self.model_copy(update={"placement": places, "hosts": len(hosts)})

    @property
    def places(self) -> dict[str, int]:
        """The host of each task, counted from 0."""
        hosts = min(self.hosts, self.workers)
        blocks = np.array_split(range(self.workers), hosts)
        places = {f"worker:{i}": host for host, block in enumerate(blocks) for i in block}
        others = [task for task in self.tasks if task not in places]
        places |= {task: hosts + i if hosts > 1 else 0 for i, task in enumerate(others)}
        return {task: self.placement.get(task, places[task]) for task in self.tasks}

    @property
    def all_hosts(self) -> tuple[int, ...]:
        """The hosts that have tasks, in order: those of workers, and those of parameter servers and
        the chief.
        """
        return tuple(sorted(set(self.places.values())))

    def link_of(self, host: int) -> Link:
        """The link of a host."""
        return self.link.get(host) or self.link.get(ALL) or Link()

    @property
    def tasks(self) -> tuple[str, ...]:
        """Names of the tasks in TensorFlow's way, `job:index`, chief first."""
        counts = {"chief": int(self.chief), "worker": self.workers, "ps": self.ps}
        return tuple(f"{job}:{i}" for job in JOBS for i in range(counts[job]))

    @property
    def batch(self) -> int:
        """Examples in a step over all workers: about 128 if the spec does not say."""
        return self.global_batch or batch_of(self.shares * self.accumulate)

    @property
    def on_nodes(self) -> bool:
        """True if its hosts are nodes of a cluster, and not of this machine: they share no memory
        and no files, and their links are as they are.
        """
        return self.engine != "local"

    @property
    def shares(self) -> int:
        """Replicas over all workers: each computes an equal share of the batch."""
        return self.workers * self.replicas

    @property
    def per_worker_batch(self) -> int:
        """Examples that one worker computes in a step."""
        return self.batch // self.workers

    @property
    def own(self) -> bool:
        """True if its tasks run functions of a learner's own: `strategy` is then the name of the
        workers' function with `()` behind it.
        """
        return self.strategy.endswith("()")

    @property
    def own_loop(self) -> bool:
        """True if these may have batches of their own, as nobody told them the size."""
        return self.own and "global_batch" not in self.model_fields_set

    def check_host(self, host: int | str, field: str = "host") -> int:
        """The number of a host, given as 1 or "host:1", if this run has it; else raises `SpecError`
        naming those that it has.
        """
        used = self.all_hosts
        named = {f"host:{number}": number for number in used}
        host = named.get(str(host), host)
        if host not in used or not isinstance(host, int):
            name = "hosts" if len(used) > 1 else "host"
            raise SpecError(field, host, f"this run has the {name} {', '.join(map(str, used))}")
        return host

    def check_linked(self, field: str, value: object) -> None:
        """Raise `SpecError` if no link can be imposed, or cut."""
        if self.on_nodes:
            raise SpecError(field, value, REAL_LINKS)
        if len(self.all_hosts) == 1:
            raise SpecError(field, value, ONE_HOST)

    def check_task(self, task: str, field: str = "task") -> str:
        """Return `task` if this run has it, else raise `SpecError` naming the tasks that it has."""
        if task in self.tasks:
            return task
        jobs = {job: sum(t.startswith(job + ":") for t in self.tasks) for job in JOBS}
        have = (f"{job}:0" + f" to {job}:{n - 1}" * (n > 1) for job, n in jobs.items() if n)
        raise SpecError(field, task, f"this run has {', '.join(have)}")

    def check_slow(self, task: str, field: str = "slow") -> str:
        """Return `task` if it can be made slower, else raise `SpecError`: in a strategy only
        workers compute.
        """
        self.check_task(task, field)
        if not self.own and not task.startswith("worker:"):
            text = "only workers can be slowed, such as worker:0: a chief and a ps do not compute"
            raise SpecError(field, task, text)
        return task

    def check_jitter(self, task: str, jitter: str | None) -> str:
        """Return the jitter, "" for none, if the task can have it, else raise `SpecError`."""
        self.check_slow(task, "jitter")
        if jitter is None:
            return ""
        if Jitter.of(check_jitter(jitter)).sigma and not self.device_ms:
            text = "lognormal multiplies emulated device time, and this run has none: set device_ms"
            raise SpecError("jitter", jitter, text)
        return jitter

    def check_fault(self, fault: Fault) -> Fault:
        """Return the fault if it can happen in this run, else raise `SpecError`."""
        try:
            if fault.host is not None:
                self.check_host(fault.host)
            elif fault.do in ("slow", "jitter"):
                self.check_jitter(fault.who, fault.jitter or None)
            else:
                self.check_task(fault.who)
        except SpecError as error:
            raise SpecError("faults", fault.text, error.allowed) from None
        if fault.do in ("cut", "link"):
            self.check_linked("faults", fault.text)
        if not self.own_loop and (fault.step or 0) >= self.steps:
            allowed = f"the steps of this run are 0 to {self.steps - 1}"
            raise SpecError("faults", fault.text, allowed)
        return fault

    def begins_in(self, task: str, fault: Fault) -> bool:
        """Return whether the step of a fault is that of this task."""
        if self.chief:
            return task in (fault.who, "chief:0")
        anybody = not fault.who.startswith("worker:")
        return task == fault.who or (anybody and task.startswith("worker:"))

    def jitter_of(self, task: str) -> str:
        """The jitter that a task starts with; "" for none."""
        if isinstance(self.jitter, dict):
            return self.jitter.get(task, "")
        computes = self.own or task.startswith("worker:")
        return self.jitter or "" if computes else ""


# --- the fields in the signature and documentation of functions that take `**fields` ---

GROUPS = {
    "strategy": "Tasks and how they exchange",
    "hosts": "Hosts and links",
    "workload": "What is learned",
    "global_batch": "Training",
    "device_ms": "Emulated time",
    "faults": "Faults",
    "sampler": "Order of the examples",
    "run_dir": "Record",
}
"""The first field of each group of neighbours in `RunSpec` -> what the group is about."""

NOT_GIVEN = ("strategy", "chief")  # the first argument; a fact of the strategy

Function = TypeVar("Function", bound=Callable[..., Any])


def lists_fields(function: Function) -> Function:
    """Put the fields in place of `**fields` in a function's signature, and a list of them at the
    end of its documentation.
    """
    about: list[str] = []
    own = inspect.signature(function)
    parameters = [each for each in own.parameters.values() if each.kind != each.VAR_KEYWORD]
    kinds = typing.get_type_hints(RunSpec)
    for name, field in RunSpec.model_fields.items():
        about += [f"\n{GROUPS[name]}:"] if name in GROUPS else []
        if name in NOT_GIVEN:
            continue
        how = {"default": field.default, "annotation": kinds[name]}
        parameters.append(inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, **how))
        about.append(f"    {name}: {field.title} ({field.description})")
    function.__signature__ = own.replace(parameters=parameters)  # type: ignore[attr-defined]  # what `help` reads
    function.__doc__ = f"{inspect.getdoc(function)}\n" + "\n".join(about)
    return function
