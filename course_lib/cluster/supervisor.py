"""The supervisor: one process per run, the parent of its tasks. It starts them, carries out orders,
takes their exit status, and leaves none of them behind.

It has one thread and waits for everything at once: orders from the kernel process, messages from
tasks, the end of children. When the kernel process is gone, the socket to it is closed, and the
supervisor kills all processes of this run before it exits.
"""

import contextlib
import os
import selectors
import signal
import socket
import traceback
from collections import defaultdict
from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any, NoReturn

from course_lib.cluster import keeper, pipes
from course_lib.cluster.agenda import Agenda
from course_lib.cluster.pipes import Channel, pair
from course_lib.cluster.process import StartTask, spawn
from course_lib.cluster.roster import Roster
from course_lib.cluster.task import clock
from course_lib.cluster.wiring import Wiring
from course_lib.errors import LockstepError, Unavailable
from course_lib.faults import Fault
from course_lib.fields import Link
from course_lib.network.layout import host_name
from course_lib.record.beats import Beats
from course_lib.record.events import STATES, Lifecycle, to_line
from course_lib.record.files import no_room
from course_lib.record.logs import Logs
from course_lib.record.rundir import RunDir

# Outcome of a run, or None before a restart -> after how many seconds tasks that are to end are
# told to leave, and how many more they have until they are killed. After a failure the others get a
# second to notice it, so that their logs say what they saw.
ENDING = {"finished": (0.0, 3.0), "stopped": (0.0, 0.4), "failed": (1.0, 0.4), None: (0.1, 0.2)}
RETURNS = 1.0  # seconds for a learner's own parameter server, when all others are done
SAID = ("running", "done", "failed")  # by a task, whose code may say anything
PACE = {"slow": ("slowed", "factor"), "jitter": ("jittered", "jitter")}  # order -> state, its value
INJECTED = {"raise": "raised", "exit": "left", "oom": "exhausted"}  # order -> state


def begin(held: int | None, kernel: str) -> NoReturn:
    """Start as a fresh interpreter, where no zygote forks us."""
    main(socket.socket(fileno=int(kernel)), spawn, held)


def main(kernel: socket.socket, start_task: StartTask, held: int | None) -> NoReturn:
    """Wait for the one order to start, then look after the run until its last process is gone.

    `held` ties us to the kernel process until then; later the end of the socket tells us, and we
    clean up before we go. Never returns.
    """
    channel = Channel(kernel)
    if orders := channel.receive():
        first, *more = orders
        files = RunDir(first["start"])
        try:
            keeper.keep(channel, files, held)
            Supervisor(channel, files, start_task).supervise(more)
        except (OSError, Unavailable) as error:
            refused = no_room(files.path, error) if isinstance(error, OSError) else error
            channel.post(unavailable=refused.parts)
        except Exception:  # the kernel reads it in the log: "the supervisor process is gone"
            traceback.print_exc()
            os._exit(1)
    channel.settle()
    os._exit(0)


class Supervisor:
    """One run: its roster, the processes behind it, and the channels to them."""

    def __init__(self, kernel: Channel, files: RunDir, start_task: StartTask) -> None:
        self.kernel, self.files, self.start_task = kernel, files, start_task
        spec, facts = files.spec, files.facts
        rules = facts.services, facts.recovers, spec.max_restarts, spec.elastic
        self.roster = Roster(spec.tasks, *rules, self._connected)
        self.beats = Beats(files.beats, spec.tasks)
        self.pids: dict[str, int] = {}
        self.channels: dict[str, Channel] = {}
        # task -> how it was made slow or late, so that it is so again after a restart
        self.pace: defaultdict[str, dict[str, Any]] = defaultdict(dict)
        self.killed: dict[str, dict[str, str]] = {}  # those that somebody had killed, and how
        self.agenda = Agenda(spec)
        self.paused: set[str] = set()
        self.selector = selectors.DefaultSelector()
        self.lifecycle = files.lifecycle.open("ab", buffering=0)
        self.logs = Logs(files)
        # task that is to end -> when it is told to leave, and when it is killed
        self.ending: dict[str, list[tuple[float, str]]] = {}

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
        self._holder, self._lifeline = os.pipe()
        try:
            self.wiring = Wiring(self.files, self._note)
            self._start(self.roster.states)
            for order in orders:
                self._obey(order)
            self._act()
            while not self.roster.over:
                for key, events in self.selector.select(self._patience()):
                    if events & selectors.EVENT_WRITE:
                        key.fileobj.flush()  # type: ignore[union-attr]  # only channels are written
                    if events & selectors.EVENT_READ:
                        key.data()
                self.wiring.look()
                self.logs.look()
                self._bury()
                due = self.agenda.at_time(clock())
                self._happen([] if self.roster.outcome else due)
                self._act()
        except EOFError:
            return  # the kernel process is gone: nobody is left to tell
        finally:
            keeper.end_descendants()
            self.files.clear(orphaned=self.kernel.gone)
        self.kernel.post(over=self.roster.outcome)

    def _patience(self) -> float:
        """Seconds until there is something to do without being woken. Sets by what we are woken:
        also by room in the channels that have something unsent.
        """
        for channel in (self.kernel, *self.channels.values()):
            key = self.selector.get_key(channel)
            wanted = selectors.EVENT_READ | selectors.EVENT_WRITE * channel.unsent
            if key.events != wanted:
                self.selector.modify(channel, wanted, key.data)
        ends = [due[0][0] for task in self.roster.ending if (due := self.ending.get(task))]
        moments = [self.logs.due, self.wiring.due, *ends, *self.agenda.moments]
        return max(0.0, min(moments) - clock())

    def _start(self, names: Iterable[str]) -> None:
        """Start tasks, for the first time or again; none once the kernel process is gone."""
        for name in names:
            if self.kernel.gone:
                raise EOFError
            self._close(name)
            ours, theirs = pair()
            channels = (self.kernel, ours, *self.channels.values())
            private = [self._lifeline, *(c.fileno() for c in channels), *self.wiring.descriptors]
            with self.wiring.inside(name), theirs:
                birth = self.files, name, self.roster.attempt, theirs
                self.pids[name] = self.start_task(birth, self._holder, private)
            self.roster.started(name)
            self.channels[name] = ours
            self.selector.register(ours, selectors.EVENT_READ, partial(self._hear_task, name))
            self._note_paused(name, False, "as it is started again")
            self._note(name, "starting", pid=self.pids[name])
            self.ending.pop(name, None)
            self.killed.pop(name, None)
            ours.tell(**self.pace[name])

    def _hear_kernel(self) -> None:
        orders = self.kernel.receive()
        if orders is None:
            raise EOFError
        for order in orders:
            self._obey(order)

    def _obey(self, order: dict[str, Any]) -> None:
        """Carry out an order and answer it."""
        if order["do"] == "inject":
            problems = self._happen([Fault.of(order["fault"])], "by run.inject({!r})")
        else:
            problems = [self._attempt(order)]
        self.kernel.post(answer=next(filter(None, problems), None))

    def _happen(self, faults: Iterable[Fault], by: str = "as planned ({})") -> list[str | None]:
        """Carry out faults, each of which may be several orders."""
        return [
            self._attempt({**order, "by": by.format(str(fault))})
            for fault in faults
            for order in self.agenda.orders(fault, clock())
        ]

    def _attempt(self, order: dict[str, Any]) -> str | None:
        """Carry out an order. One that fails costs the order, not the run: the reason."""
        do, fault = order["do"], order.get("fault", "")
        try:
            self._carry_out(order, {"why": order["by"], "fault": fault})
        except Exception as error:  # the network's library has many kinds of errors
            known = isinstance(error, LockstepError)
            problem = str(error) if known else f"{type(error).__name__}: {error}"
            about = order.get("task") or host_name(order.get("host", 0))
            self._note(about, "refused", f"{do}(): {problem}", fault=fault)
            return problem
        return None

    def _carry_out(self, order: dict[str, Any], told: dict[str, str]) -> None:
        """`told`: why, and for which fault, for the record."""
        if (task := order.get("task", "")) and task not in self.roster.alive:
            raise LockstepError("its process has ended")
        match order:
            case {"do": "stop"}:
                self.roster.stop()
            case {"do": "link", "host": host, "link": link}:
                self.wiring.link(host, Link(**link), **told)
            case {"do": "partition" | "heal" as do, "host": host}:
                self.wiring.join(host, do == "heal", **told)
            case {"do": "kill"}:
                self.killed[task] = told
                os.kill(self.pids[task], signal.SIGKILL)
            case {"do": "pause" | "resume" as do}:
                os.kill(self.pids[task], signal.SIGSTOP if do == "pause" else signal.SIGCONT)
                self._note_paused(task, do == "pause", **told)
            case {"do": "slow" | "jitter" as do}:
                state, what = PACE[do]
                self.pace[task][what] = order[what]
                self._tell(task, **self.pace[task])
                self._note(task, state, **{what: order[what]}, **told)
            case {"do": "raise" | "exit" | "oom" as do}:
                self._note(task, INJECTED[do], **told)
                self._tell(task, inject=do, why=told["why"])

    def _hear_task(self, name: str) -> None:
        """Read a task's messages; at their end, close its channel."""
        messages = self.channels[name].receive()
        if messages is None:
            self._close(name)
        for message in messages or ():
            if isinstance(full := message.get("no_room"), list):
                raise OSError(*full)
            if isinstance(message.get("step"), int):
                self._happen(self.agenda.at_step(name, message["step"]))
                self._tell(name, go=True)
            elif (state := message.get("state")) in SAID and self.roster.said(name, state):
                self._note(name, state)
        if "starting" not in self.roster.states.values():
            self.agenda.all_run(clock())

    def _connected(self) -> bool:
        """Whether the chief, if there is one, has reached all others: it has handed out a step."""
        state = self.roster.states.get("chief:0")
        # until it runs again, the beat is that of its last attempt
        return not state or (state == "running" and self.beats.now("chief:0").step >= 0)

    def _close(self, name: str) -> None:
        """Close a task's channel, if it has one."""
        if channel := self.channels.pop(name, None):
            self.selector.unregister(channel)
            channel.close()

    def _tell(self, task: str, **state: object) -> None:
        if task in self.channels:
            self.channels[task].tell(**state)

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
        for pid, status in _changes():
            if not (name := names.get(pid)):
                continue  # an orphan of one of our tasks
            if os.WIFSTOPPED(status) or os.WIFCONTINUED(status):
                self._note_paused(name, os.WIFSTOPPED(status), "by a signal from outside")
                continue
            # not until the end: something that it started may still hold the channel
            while name in self.channels and pipes.ready(self.channels[name], 0):
                self._hear_task(name)
            code = os.waitstatus_to_exitcode(status)
            told = self.killed.get(name, {"why": "", "fault": ""})
            if why := self.roster.gone(name, code, asked=told["why"]):
                state = "killed" if told["why"] else "failed"
                self._note(name, state, why, fault=told["fault"])

    def _act(self) -> None:
        """Do what follows from the state of all tasks: tell those that are to end to leave, and
        after a while make them; start again those that are ready for it.
        """
        for task, state in self.roster.news:
            self._note(task, state)
        self.roster.news.clear()
        if self.roster.outcome:
            self.wiring.look(last=True)  # what is sent from here on only ends the run
        spec, (grace, patience) = self.files.spec, ENDING[self.roster.outcome]
        now, leave = clock(), clock() + grace
        for task in self.roster.ending:
            due = self.ending.setdefault(task, [(leave, "leave"), (leave + patience, "kill")])
            if due and now >= due[0][0]:
                self.roster.dismiss(task)
                if due.pop(0)[1] == "leave":
                    own = spec.strategy == "custom" and self.roster.outcome == "finished"
                    self._tell(task, leave=RETURNS if own else 0.0)
                else:
                    os.kill(self.pids[task], signal.SIGKILL)
        if ready := self.roster.ready:
            if not self.roster.alive:  # nor may anything else be left of the last attempt
                keeper.end_descendants()
                self.files.forget_meetings()
            self._start(ready)

    def _note(self, who: str, state: str, why: str = "", **facts: Any) -> None:
        """Record what became of a task, or was done to a task or host. The kernel process is told
        of a task's new state only: a task that is paused or slowed keeps its state.
        """
        facts["attempt"] = self.roster.attempts.get(who, 0)
        self.lifecycle.write(to_line(Lifecycle(who, state, why, clock(), **facts)))
        if state in STATES:
            self.kernel.post(task=who, state=state)


def _changes() -> Iterator[tuple[int, int]]:
    """Pid and wait status of each child that has ended, stopped or gone on."""
    with contextlib.suppress(ChildProcessError):
        while (change := os.waitpid(-1, os.WNOHANG | os.WUNTRACED | os.WCONTINUED))[0]:
            yield change
