"""Gives orders to a run that goes on: kill, pause, slow, link and others."""

import threading
import warnings
from collections import deque
from typing import Any

from course_lib.activity import ORDERED
from course_lib.cluster.pipes import Channel
from course_lib.errors import LockstepError, SpecError, Unavailable
from course_lib.hardware import Plan
from course_lib.spec.faults import Fault
from course_lib.spec.fields import Link, check_factor
from course_lib.spec.run_spec import RunSpec


class Orders:
    """The orders of a `Run` to its supervisor. Each is checked here, and returns at once.

    `refused` lists those that could not be carried out, with the reason; the next order, and
    `wait`, warn of them. `state` is that of the run.
    """

    def __init__(self, spec: RunSpec, plan: Plan) -> None:
        self.spec, self.plan = spec, plan
        for fault in spec.faults:
            self._check_possible(fault.do, fault.host, fault.link)
        self.state = "starting"
        self.refused: list[str] = []
        self._warned = 0  # of how many of these
        self._unanswered: deque[dict[str, Any]] = deque()  # oldest first: they are answered in turn
        self._channel: Channel | None = None  # to the supervisor, once it is there
        self._sending, self._over = threading.RLock(), threading.Event()

    def kill(self, task: str) -> None:
        """Kill a task's process with SIGKILL, as a crash or a pulled plug would."""
        self._order("kill", task=self.spec.check_task(task))

    def pause(self, task: str) -> None:
        """Freeze a task (SIGSTOP) until `resume`: a machine that hangs."""
        self._order("pause", task=self.spec.check_task(task))

    def resume(self, task: str) -> None:
        """Let a paused task go on (SIGCONT)."""
        self._order("resume", task=self.spec.check_task(task))

    def slow(self, task: str, factor: float) -> None:
        """Make a task take `factor` times as long over its steps from now on; 1 is full speed."""
        self._order("slow", task=self.spec.check_slow(task), factor=check_factor(factor))

    def jitter(self, task: str, jitter: str | None) -> None:
        """Delay the steps of a task from the next one on: `run.jitter("worker:1",
        "exponential:20ms")`; see `course_lib/spec/fields.py`. None ends it.
        """
        self._order("jitter", task=task, jitter=self.spec.check_jitter(task, jitter))

    def link(self, host: int | str, link: Link) -> None:
        """Give a host another link from now on: `run.link(1, Link(mbit=50))`.

        Raises `SpecError` where nothing goes over a link, `Unavailable` where none can lose packets
        and this one is to.
        """
        host = self.spec.check_host(host)
        self.spec.check_linked("link", str(link))
        self._check_possible("link", host, link)
        self._order("link", host=host, link=link.model_dump())

    def partition(self, host: int | str) -> None:
        """Cut a host (1 or "host:1") off from all others, until `heal`.

        Raises `Unavailable` where hosts are not real.
        """
        self._order("partition", host=self._real_host("partition", host))

    def heal(self, host: int | str) -> None:
        """Join a host to the others again.

        What waits for it may need some time to notice, as TCP tries again ever less often.
        """
        self._order("heal", host=self._real_host("heal", host))

    def inject(self, fault: str) -> None:
        """Have a fault happen now: `run.inject("raise worker:1")`. It is written as in
        `RunSpec.faults`, without a moment; see `course_lib/spec/faults.py`.
        """
        now = self.spec.check_fault(Fault.of(fault))
        self._check_possible(now.do, now.host, now.link)
        if now.step is not None or now.seconds is not None:
            raise SpecError("inject", fault, "it happens now: leave out when")
        self._order("inject", fault=str(now))

    def _order(self, do: str, **fields: Any) -> None:
        """Give an order; it is sent at once, or when there is a supervisor."""
        self._warn()
        order = {"do": do, "by": ORDERED.get().format(do), **fields}
        with self._sending:
            if self._over.is_set():
                if do == "stop":
                    return
                late = f"{words(order)} comes too late: the run is {self.state}"
                cure = "Run the cell that starts it once more, then this one"
                raise LockstepError(f"{late}. {cure}")
            self._unanswered.append(order)
            if self._channel:
                self._channel.post(**order)

    def _answered(self, problem: str | None) -> None:
        """The supervisor has carried out the oldest order, or says why it could not."""
        order = self._unanswered.popleft()
        if problem:
            self.refused.append(f"{words(order)} was not carried out: {problem}")

    def _warn(self) -> None:
        """Warn of the orders that have been refused since the last call."""
        fresh = self.refused[self._warned :]
        self._warned += len(fresh)
        for text in fresh:
            warnings.warn(text, stacklevel=4)

    def _real_host(self, do: str, host: int | str) -> int:
        host = self.spec.check_host(host)
        self.spec.check_linked(do, host)
        self._check_possible("cut", host)
        return host

    def _check_possible(self, do: str, host: int | None, link: Link | None = None) -> None:
        """Raise `Unavailable` if the network of this run can do it to no host or link."""
        if do == "cut" and self.plan.network != "hosts":
            cure = next(reason.why for reason in self.plan.reasons if reason.what == "network")
            why = f"the network of this run is {self.plan.network}"
            raise Unavailable(f"cutting off host {host}", why, cure)
        if link and link.loss and not self.plan.loss:
            why = "nothing drops packets on the network of this run"
            cure = "`lockstep doctor` says what this machine lacks."
            raise Unavailable("a link that loses packets", why, cure)


def words(order: dict[str, Any]) -> str:
    """An order as it was called: "kill('worker:1')"."""
    about = (repr(order[name]) for name in ("task", "host", "fault") if name in order)
    return f"{order['do']}({', '.join(about)})"
