"""The supervisor: one process per run, the parent of its tasks. It starts them, carries out orders,
takes their exit status, and leaves none of them behind.

It has one thread and waits for everything at once: orders from the kernel process, messages from
tasks, the end of children. When the kernel process is gone, the socket to it is closed, and the
supervisor kills all processes of this run before it exits.
"""

import contextlib
import ctypes
import os
import select
import selectors
import signal
import socket
import sys
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, NoReturn

import psutil

from course_lib.cluster import pipes, process
from course_lib.cluster.agenda import Agenda
from course_lib.cluster.pipes import Channel, pair
from course_lib.cluster.task import clock
from course_lib.cluster.wiring import Wiring
from course_lib.errors import LockstepError, Unavailable
from course_lib.faults import Fault
from course_lib.fields import Link
from course_lib.network.layout import host_name
from course_lib.record.events import STATES, Lifecycle, to_line
from course_lib.record.rundir import RunDir

StartTask = Callable[[RunDir, str, socket.socket, int, list[int]], int]
"""Start the process of a task and return its pid: (run directory, task, its socket, reading end of
its lifeline, descriptors it must not keep).
"""

# Outcome of a run -> after how many seconds the tasks that are left are told to leave, and how many
# more they have until they are killed. After a failure the others get a second to notice it, so
# that their logs say what they saw.
ENDING = {"finished": (0.0, 3.0), "stopped": (0.0, 0.4), "failed": (1.0, 0.4)}
INJECTED = {"raise": "raised", "exit": "left", "oom": "exhausted"}  # order -> state
_PR_SET_CHILD_SUBREAPER = 36


def begin(held: int | None, kernel: str) -> NoReturn:
    """Start as a fresh interpreter, where no zygote forks us."""
    # from here on the end of the socket tells us, and we clean up before we go
    pipes.release(held)
    main(socket.socket(fileno=int(kernel)), spawn)


def main(kernel: socket.socket, start_task: StartTask) -> NoReturn:
    """Wait for the one order to start, then look after the run until its last process is gone.

    Never returns.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # orphans of our tasks become our children, and are killed with the rest
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    channel = Channel(kernel)
    orders = channel.receive()
    if orders:
        first, *more = orders
        Supervisor(channel, RunDir(first["start"]), start_task).supervise(more)
    os._exit(0)


class Roster:
    """Keeps the state of each task, and decides from these when the run is over and how it ended.

    A task goes `starting -> running -> done | failed`, and then its process is gone. A process that
    goes before its task is done has failed. `services` are the jobs that serve the others and never
    finish by themselves. `outcome` is None while the run goes on, then `finished`, `failed` or
    `stopped`.
    """

    def __init__(self, tasks: Iterable[str], services: Iterable[str] = ("ps",)) -> None:
        self.states = dict.fromkeys(tasks, "starting")
        self.alive = set(self.states)
        self.services = tuple(services)
        self.outcome: str | None = None

    def said(self, task: str, state: str) -> None:
        """A task reports `running`, `done` or `failed`."""
        self.states[task] = state
        self._conclude()

    def stop(self) -> None:
        """The run is to end now, whatever its tasks are doing."""
        self.outcome = self.outcome or "stopped"

    def gone(self, task: str, status: int, asked: str = "") -> str | None:
        """The process of a task ended with `status` (negative: the signal that killed it). Returns
        the failure in words, or None.

        `asked`: how a learner had it killed, such as "by kill()"; "" if nobody had.
        """
        self.alive.discard(task)
        if (
            self.outcome == "stopped"
            or self.states[task] in ("done", "failed")
            or (self.outcome and status == -signal.SIGKILL and not asked)
        ):
            return None
        if self.outcome == "finished" and task.startswith(self.services):
            return None
        why = f"it was killed {asked}" if asked else death(status)
        self.said(task, "failed")
        return why

    @property
    def over(self) -> bool:
        """No process is left."""
        return not self.alive

    def _conclude(self) -> None:
        working = {
            task: state for task, state in self.states.items() if not task.startswith(self.services)
        } or self.states
        if "failed" in self.states.values():
            self.outcome = self.outcome or "failed"
        elif all(state == "done" for state in working.values()):
            self.outcome = self.outcome or "finished"


def death(status: int) -> str:
    """An exit status in words."""
    if status < 0:
        name = signal.Signals(-status).name
        cure = " (the system may have run out of memory)" if name == "SIGKILL" else ""
        return f"its process was killed by {name}{cure}"
    return f"its process ended with exit code {status} before its function returned"


class Supervisor:
    """One run: its roster, the processes behind it, and the channels to them."""

    def __init__(self, kernel: Channel, files: RunDir, start_task: StartTask) -> None:
        self.kernel, self.files, self.start_task = kernel, files, start_task
        self.roster = Roster(files.spec.tasks, files.facts.services)
        self.pids: dict[str, int] = {}
        self.channels: dict[str, Channel] = {}
        self.killed: dict[str, dict[str, str]] = {}  # those that somebody had killed, and how
        self.agenda = Agenda(files.spec)
        self.paused: set[str] = set()
        self.selector = selectors.DefaultSelector()
        self.lifecycle = files.lifecycle.open("ab", buffering=0)
        # once the run has an outcome: when the tasks that are left are told to leave, and killed
        self.ending: list[tuple[float, str]] | None = None

    def supervise(self, orders: list[dict[str, Any]]) -> None:
        """Start all tasks, obey the `orders` that have come already, and stay until the last task
        is gone.
        """
        woken, waker = os.pipe()
        os.set_blocking(waker, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)  # only to be woken
        signal.set_wakeup_fd(waker)
        self.selector.register(woken, selectors.EVENT_READ, lambda: os.read(woken, 4096))
        self.selector.register(self.kernel, selectors.EVENT_READ, self._hear_kernel)
        last: dict[str, Any] = {}
        try:
            self.wiring = Wiring(self.files, self._note)
            self._start_tasks()
            for order in orders:
                self._obey(**order)
            self._decide()
            while not self.roster.over:
                moments = [at for at, _ in self.ending or ()]
                moments += [self.wiring.due] if self.wiring.due else []
                moments += self.agenda.moments
                patience = max(0.0, min(moments) - clock()) if moments else None
                for key, _ in self.selector.select(patience):
                    key.data()
                self.wiring.look()
                self._bury()
                due = self.agenda.at_time(clock())
                self._happen([] if self.roster.outcome else due)
                self._decide()
            last = {"over": self.roster.outcome}
        except Unavailable as refused:
            last = {"unavailable": [refused.what, refused.why, refused.cure]}
        except EOFError:
            pass  # the kernel process is gone: nobody is left to tell
        finally:
            self._kill_everything()
            self.files.clear()
        self.kernel.send(**last)

    def _start_tasks(self) -> None:
        holder, self._lifeline = os.pipe()
        for name in self.roster.states:
            ours, theirs = pair()
            channels = (self.kernel, ours, *self.channels.values())
            private = [self._lifeline, *(c.fileno() for c in channels), *self.wiring.descriptors]
            with self.wiring.inside(name):
                self.pids[name] = self.start_task(self.files, name, theirs, holder, private)
            theirs.close()
            self.channels[name] = ours
            self.selector.register(ours, selectors.EVENT_READ, partial(self._hear_task, name))
            self._note(name, "starting", pid=self.pids[name])
        os.close(holder)

    def _hear_kernel(self) -> None:
        orders = self.kernel.receive()
        if orders is None:
            raise EOFError
        for order in orders:
            self._obey(**order)

    def _obey(self, **order: Any) -> None:
        """Carry out an order and answer it."""
        if order["do"] == "inject":
            problems = self._happen([Fault.of(order["fault"])], "by inject({!r})")
        else:
            problems = [self._attempt(**order)]
        self.kernel.send(answer=next(filter(None, problems), None))

    def _happen(self, faults: Iterable[Fault], by: str = "as planned ({})") -> list[str | None]:
        """Carry out faults, each of which may be several orders."""
        return [
            self._attempt(**order, by=by.format(str(fault)))
            for fault in faults
            for order in self.agenda.orders(fault, clock())
        ]

    def _attempt(self, **order: Any) -> str | None:
        """Carry out an order. One that fails costs the order, not the run: the reason."""
        try:
            self._carry_out(**order)
        except Exception as error:  # the network's library has many kinds of errors
            known = isinstance(error, LockstepError)
            problem = str(error) if known else f"{type(error).__name__}: {error}"
            about = order.get("task") or host_name(order.get("host", 0))
            why = f"{order['do']}(): {problem}"
            self._note(about, "refused", why, fault=order.get("fault", ""))
            return problem
        return None

    def _carry_out(
        self,
        do: str,
        task: str = "",
        factor: float = 1.0,
        jitter: str = "",
        host: int = 0,
        link: dict[str, Any] | None = None,
        fault: str = "",
        by: str = "",
    ) -> None:
        if task and task not in self.roster.alive:
            raise LockstepError("its process has ended")
        told = {"why": by or f"by {do}()", "fault": fault}
        match do:
            case "stop":
                self.roster.stop()
            case "link":
                self.wiring.link(host, Link(**link or {}), **told)
            case "partition":
                self.wiring.partition(host, **told)
            case "heal":
                self.wiring.heal(host, **told)
            case "kill":
                self.killed[task] = told
                os.kill(self.pids[task], signal.SIGKILL)
            case "pause" | "resume":
                os.kill(self.pids[task], signal.SIGSTOP if do == "pause" else signal.SIGCONT)
                self._note_paused(task, do == "pause", **told)
            case "slow":
                self._tell(task, slow=factor)
                self._note(task, "slowed", factor=factor, **told)
            case "jitter":
                self._tell(task, jitter=jitter)
                self._note(task, "jittered", jitter=jitter, **told)
            case "raise" | "exit" | "oom":
                self._note(task, INJECTED[do], **told)
                self._tell(task, inject=do, why=told["why"])

    def _hear_task(self, name: str) -> None:
        """Read a task's messages; at their end, close its channel."""
        messages = self.channels[name].receive()
        if messages is None:
            self.selector.unregister(self.channels[name])
            self.channels.pop(name).close()
        for message in messages or ():
            if "step" in message:
                self._happen(self.agenda.at_step(name, message["step"]))
                self._tell(name, go=True)
                continue
            self.roster.said(name, message["state"])
            self._note(name, message["state"])
        if "starting" not in self.roster.states.values():
            self.agenda.all_run(clock())

    def _tell(self, task: str, **message: object) -> None:
        if task in self.channels:
            self.channels[task].send(**message)

    def _note_paused(self, task: str, paused: bool, why: str, fault: str = "") -> None:
        """Record that a task is paused, or is no longer, if that is news."""
        if paused != (task in self.paused):
            self.paused ^= {task}
            self._note(task, "paused" if paused else "resumed", why, fault=fault)

    def _bury(self) -> None:
        """Take the exit status of every process that has ended; read its last messages first.

        Those that somebody else has stopped or continued (`kill -STOP`) are noted as well.
        """
        names = {pid: name for name, pid in self.pids.items()}
        while (change := _next_change()) is not None:
            name, status = names.get(change[0]), change[1]
            if name is None:
                continue  # an orphan of one of our tasks
            if os.WIFSTOPPED(status) or os.WIFCONTINUED(status):
                self._note_paused(name, os.WIFSTOPPED(status), "by a signal from outside")
                continue
            # not until the end: something that it started may still hold the channel
            while name in self.channels and select.select([self.channels[name]], [], [], 0)[0]:
                self._hear_task(name)
            code = os.waitstatus_to_exitcode(status)
            told = self.killed.get(name, {"why": "", "fault": ""})
            if why := self.roster.gone(name, code, asked=told["why"]):
                state = "killed" if told["why"] else "failed"
                self._note(name, state, why, fault=told["fault"])

    def _decide(self) -> None:
        """Once the run has an outcome: tell the tasks that are left to leave, and after a while
        make them.
        """
        if self.roster.outcome and self.ending is None:
            grace, patience = ENDING[self.roster.outcome]
            leave = clock() + grace
            self.ending = [(leave, "leave"), (leave + patience, "kill")]
            self.wiring.look(last=True)  # what is sent from here on only ends the run
        if self.ending and clock() >= self.ending[0][0]:
            _, word = self.ending.pop(0)
            for task in self.roster.alive:
                if word == "leave":
                    self._tell(task, leave=True)
                else:
                    os.kill(self.pids[task], signal.SIGKILL)

    def _note(self, who: str, state: str, why: str = "", **facts: Any) -> None:
        """Record what became of a task, or was done to a task or host. The kernel process is told
        of a task's new state only: a task that is paused or slowed keeps its state.
        """
        self.lifecycle.write(to_line(Lifecycle(who, state, why, clock(), **facts)))
        if state in STATES:
            self.kernel.send(task=who, state=state)

    def _kill_everything(self) -> None:
        """Kill all descendants; look again, since one may have been born meanwhile."""
        for _ in range(20):
            children = [
                p
                for p in psutil.Process().children(recursive=True)
                if p.status() != psutil.STATUS_ZOMBIE
            ]
            if not children:
                return
            for child in children:
                with contextlib.suppress(psutil.NoSuchProcess):
                    child.kill()
            psutil.wait_procs(children, timeout=0.1)


def _next_change() -> tuple[int, int] | None:
    """Pid and wait status of a child that has ended, stopped or gone on; None if there is none."""
    try:
        pid, status = os.waitpid(-1, os.WNOHANG | os.WUNTRACED | os.WCONTINUED)
    except ChildProcessError:
        return None
    return (pid, status) if pid else None


def fork(files: RunDir, name: str, sock: socket.socket, holder: int, private: list[int]) -> int:
    """Start a task as a copy of this process, which has the framework loaded already."""
    pid = os.fork()
    if pid:
        return pid
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for fd in private:
            os.close(fd)
        pipes.hold(holder)
        process.main(files, name, sock)
    finally:
        os._exit(70)


def spawn(files: RunDir, name: str, sock: socket.socket, holder: int, private: list[int]) -> int:
    """Start a task as a fresh interpreter, which imports the framework anew: slow, and the same
    everywhere.
    """
    for fd in (sock.fileno(), holder):
        os.set_inheritable(fd, True)
    arguments = [holder, files.path, name, sock.fileno()]
    module = ["-m", "course_lib.cluster.pipes", "process"]
    command = [sys.executable, *module, *map(str, arguments)]
    return os.posix_spawn(sys.executable, command, os.environ)
