"""How a run was planned and started, `run.json`, and why a task failed, `error.json`, as values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from pydantic import BaseModel

Network = Literal["hosts", "private", "loopback", "nodes"]
"""The network of a run. `hosts`: each task has an address of its own, on one of several hosts.
`private`: all tasks share a loopback interface that no other process has. `loopback`: they share
that of the machine. `nodes`: tasks are on the machines of a cluster."""

Imposer = Literal["kernel", "exchange"]
"""Who imposes a link's rate or delay: the kernel, on all messages, or our own exchange, on those
that go through it.
"""


@dataclass(frozen=True)
class Reason:
    """One decision of a plan: `what` was decided, the `choice`, and `why`, in one sentence for a
    learner.
    """

    what: str
    choice: str
    why: str


class Plan(BaseModel, frozen=True):
    """Where and how the tasks of a run start: what `hardware.plan` decides.

    `devices`: task -> `cpu` or `gpu:0`; `device`: `gpu` if any has one. `cores`: of the machine, or
    of a race's share of it; `threads`: of each task. `start_method`: fork or spawn. `backend`: the
    framework's own collectives (nccl, ring, gloo or none). `rate`, `delay`, `loss`: who imposes
    those of the links between hosts; None where there are none, or nobody can. `resumed_from`:
    steps that were done in the run that this one resumes.
    """

    start_method: str = "spawn"
    device: str = "cpu"
    devices: dict[str, str] = {}
    cores: int = 1
    threads: int = 1
    backend: str = "none"
    reality: str = ""
    network: Network = "loopback"
    rate: Imposer | None = None
    delay: Imposer | None = None
    loss: Imposer | None = None
    resumed_from: int = 0
    reasons: tuple[Reason, ...] = ()

    def __repr__(self) -> str:
        return "\n".join(f"{r.what}: {r.choice}. {r.why}" for r in self.reasons)

    __str__ = __repr__


class RunFacts(Plan, frozen=True):
    """`run.json`: how a run was planned, and where and when it was started: `origin` on the
    machine's monotonic clock, `started` in Unix time.
    """

    origin: float
    started: float = 0.0
    version: str = ""  # of this library; runs of early ones do not say it
    services: tuple[str, ...] = ("ps",)  # jobs that serve the others and never finish
    recovers: str = ""  # which tasks are started again after a failure, see `cluster.roster`
    temporary: bool = False  # the directory is of no use without the process that started the run
    sys_path: list[str] = []
    cwd: str = ""
    # on a node of a cluster: its address, and by how much its clock is behind that of the driver
    address: str = ""
    offset: float = 0.0


class TaskError(BaseModel):
    """`error.json`: why a task failed, in which attempt and step, and when (on the machine's
    clock). `echo`: it only tells that another task was lost.
    """

    task: str
    attempt: int = 0
    step: int | None = None
    reason: str
    traceback: str = ""
    at: float
    echo: bool = False
