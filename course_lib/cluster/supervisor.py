"""The supervisor: it decides what becomes of a run, and writes that down. It obeys orders, hears
what tasks say, and how their processes end. What is to be done to processes, `Node`s do for it.

It has one thread and waits for everything at once: orders from the kernel process, and what its
nodes tell. On this machine it is a process of its own, one for each run, and the parent of its
tasks. When the kernel process is gone, the socket to it is closed, and the supervisor ends all
processes of this run before it exits.
"""

import os
import pkgutil
import selectors
import signal
import socket
import traceback
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NoReturn

from course_lib.cluster import keeper
from course_lib.cluster.node import Node, Report, wait
from course_lib.cluster.pipes import Channel
from course_lib.cluster.process import StartTask, spawn
from course_lib.cluster.roster import Agenda, Roster
from course_lib.errors import LockstepError, Unavailable
from course_lib.network.layout import by_job, host_name
from course_lib.record.beats import Beats
from course_lib.record.events import STATES, Lifecycle, clock, to_line
from course_lib.record.files import no_room
from course_lib.record.rundir import RunDir
from course_lib.spec.faults import Fault
from course_lib.spec.fields import Link

# Outcome of a run, or None before a restart -> after how many seconds tasks that are to end are
# told to leave, and how many more they have until they are killed. After a failure the others get a
# second to notice it, so that their logs say what they saw.
ENDING = {"finished": (0.0, 3.0), "stopped": (0.0, 0.4), "failed": (1.0, 0.4), None: (0.1, 0.2)}
MOVING = 0.2  # seconds after which other nodes are asked for again
RETURNS = 1.0  # seconds for a learner's own parameter server, when all others are done
REPORTED = ("running", "done", "failed")  # by a task, whose code may send anything
INJECTED = {"raise": "raised", "exit": "left", "oom": "exhausted"}  # order -> state

Connect = Callable[[selectors.BaseSelector, Report, Sequence[str]], Mapping[str, Node]]
"""Make nodes for these tasks, and return that of each: first for all of a run, later for those
whose node is lost, and then none as long as there is no other. They wake a supervisor by what they
register with the selector, and report what happens.
"""


def begin(lifeline: int | None, kernel: str) -> NoReturn:
    """Start as a fresh interpreter, where no zygote forks us."""
    main(socket.socket(fileno=int(kernel)), spawn, lifeline)


def main(kernel: socket.socket, start_task: StartTask, lifeline: int | None) -> NoReturn:
    """Wait for the order to start, then look after the run until its last process is gone; or for
    that to be a node for a supervisor elsewhere.

    `lifeline` ties us to the kernel process until then; later the end of the socket tells us, and
    we clean up before we go. Never returns.
    """
    channel = Channel(kernel)
    if orders := channel.receive():
        first, *more = orders
        files = RunDir(first["start"])
        if engine := first.get("engine"):
            serve = pkgutil.resolve_name(f"course_lib.engines.{engine}.remote:serve")
            serve(channel, files, first["tasks"], start_task, lifeline)
        try:
            keeper.keep(channel, files, lifeline)

            def connect(selector: Any, report: Report, tasks: Sequence[str]) -> dict[str, Node]:
                here = Node(files, tasks, start_task, selector, report, channel)
                return dict.fromkeys(tasks, here)

            Supervisor(channel, files, connect).supervise(more)
        except (OSError, Unavailable) as error:
            refused = no_room(files.path, error) if isinstance(error, OSError) else error
            channel.post(unavailable=refused.parts)
        except Exception:  # the kernel reads it in the log: "the supervisor process is gone"
            traceback.print_exc()
            os._exit(1)
    channel.settle()
    os._exit(0)


class Supervisor:
    """One run: its roster, and the nodes that hold its processes."""

    def __init__(self, kernel: Channel, files: RunDir, connect: Connect) -> None:
        self.kernel, self.files = kernel, files
        spec, facts = files.spec, files.facts
        rules = facts.services, facts.recovers, spec.max_restarts
        self.roster = Roster(spec.tasks, *rules, self._connected)
        self.beats = Beats(files.beats, spec.tasks)
        # task -> how it was made slow or late, so that it is so again after a restart
        self.pace: defaultdict[str, dict[str, Any]] = defaultdict(dict)
        self.killed: dict[str, dict[str, str]] = {}  # those that somebody had killed, and how
        self.agenda = Agenda(spec)
        self.paused: set[str] = set()
        self.lifecycle = files.lifecycle.open("ab", buffering=0)
        # task that is to end -> when it is told to leave, and when it is killed
        self.ending: dict[str, list[tuple[float, str]]] = {}
        self.connect, self.selector = connect, selectors.DefaultSelector()
        self.nodes: dict[str, Node] = {}  # task -> the one that it is on
        self.moving = 0.0  # when to ask again for another

    def supervise(self, orders: list[dict[str, Any]]) -> None:
        """Start all tasks, obey the `orders` that have come already, and stay until the last task
        is gone.
        """
        self.selector.register(self.kernel, selectors.EVENT_READ, self._hear_kernel)
        try:
            self._settle(self.files.spec.tasks)
            self._start(self.roster.states)
            for order in orders:
                self._obey(order)
            self._act()
            while not self.roster.over:
                until = [due[0][0] for task in self.roster.ending if (due := self.ending.get(task))]
                until += [self.moving] * bool(self.roster.ready)
                until += [node.due for node in self._nodes()]
                wait(self.selector, min(until + self.agenda.moments), clock())
                for node in self._nodes():
                    node.poll()
                faults = self.agenda.at_time(clock())
                self._happen([] if self.roster.outcome else faults)
                self._act()
        except EOFError:
            return  # the kernel process is gone: nobody is left to tell
        finally:
            for node in self._nodes():
                node.close()
            self.files.clear(orphaned=self.kernel.gone)
        self.kernel.post(over=self.roster.outcome)

    def _nodes(self) -> list[Node]:
        return list(dict.fromkeys(self.nodes.values()))

    def _settle(self, tasks: Sequence[str]) -> bool:
        """Get nodes for tasks that have none, or have lost theirs, if there are any. All learn
        where each task is.
        """
        lost = dict.fromkeys(self.nodes[task] for task in tasks if task in self.nodes)
        if not (nodes := self.connect(self.selector, self.hear, tasks)):
            return False
        for node in lost:
            node.close()
        self.nodes |= nodes
        addresses = {task: self.nodes[task].addresses[task] for task in self.roster.states}
        for node in self._nodes():
            node.meet(by_job(addresses))
        return True

    def _start(self, names: Iterable[str]) -> None:
        """Start tasks, for the first time or again; none once the kernel process is gone."""
        for name in names:
            if self.kernel.gone:
                raise EOFError
            self.roster.started(name)
            self._note_paused(name, False, "as it is started again")
            self.nodes[name].start(name, self.roster.attempt)
            self.ending.pop(name, None)
            self.killed.pop(name, None)
            self.nodes[name].tell(name, **self.pace[name])

    def _hear_kernel(self) -> None:
        orders = self.kernel.receive()
        if orders is None:
            raise EOFError
        for order in orders:
            self._obey(order)

    def _obey(self, order: dict[str, Any]) -> None:
        """Carry out an order and answer it."""
        inject = order["do"] == "inject" and [Fault.of(order["fault"])]
        problems = self._happen(inject, "by run.inject({!r})") if inject else [self._attempt(order)]
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
        cause = {"why": order["by"], "fault": order.get("fault", "")}
        try:
            self._carry_out(order, cause)
        except Exception as error:  # the network's library has many kinds of errors
            known = isinstance(error, LockstepError)
            problem = str(error) if known else f"{type(error).__name__}: {error}"
            about = order.get("task") or host_name(order.get("host", 0))
            self.note(about, "refused", f"{order['do']}(): {problem}", fault=cause["fault"])
            return problem
        return None

    def _carry_out(self, order: dict[str, Any], cause: dict[str, str]) -> None:
        """Carry out an order; `cause`: why, and for which fault, for the record."""
        do, task, host = order["do"], order.get("task", ""), order.get("host", -1)
        if do == "stop":
            self.roster.stop()
            return
        if task and task not in self.roster.alive:
            raise LockstepError("its process has ended")
        spec = self.files.spec
        node = self.nodes[task or next(t for t, its in spec.places.items() if its == host)]
        match do:
            case "link":
                node.link(host, Link(**order["link"]), **cause)
            case "partition" | "heal":
                node.join(host, do == "heal", **cause)
            case "kill":
                self.killed[task] = cause
                node.signal(task, signal.SIGKILL)
            case "pause" | "resume":
                node.signal(task, signal.SIGSTOP if do == "pause" else signal.SIGCONT)
                self._note_paused(task, do == "pause", **cause)
            case "slow" | "jitter":
                pace = {"factor": order["factor"]} if do == "slow" else {"jitter": order["jitter"]}
                self.pace[task] |= pace
                node.tell(task, **self.pace[task])
                self.note(task, "slowed" if do == "slow" else "jittered", **pace, **cause)
            case _:
                self.note(task, INJECTED[do], **cause)
                node.tell(task, inject=do, why=cause["why"])

    def hear(self, event: str, *about: Any, **facts: Any) -> None:
        """Take what a node tells, see `Report`."""
        match event, *about:
            case "note", who, state:
                self.note(who, state, **facts)
            case "counted", traffic:
                with self.files.traffic.open("ab") as file:
                    file.write(b"".join(map(to_line, traffic)))
            case "began", task, pid:
                self.note(task, "starting", pid=pid)
            case "halted", task, halted:
                self._note_paused(task, halted, "by a signal from outside")
            case "heard", task, message:
                self._hear_task(task, message)
            case "ended", task, status, *why:
                cause = self.killed.get(task, {"why": "", "fault": ""})
                lost = self.nodes[task].lost
                if words := self.roster.exited(task, status, asked=cause["why"], homeless=lost):
                    state = "killed" if cause["why"] else "failed"
                    self.note(task, state, *(why or [words]), fault=cause["fault"])

    def _hear_task(self, task: str, message: dict[str, Any]) -> None:
        if isinstance(full := message.get("no_room"), list):
            raise OSError(*full)
        if isinstance(message.get("step"), int):
            self._happen(self.agenda.at_step(task, message["step"]))
            self.nodes[task].tell(task, go=True)
        elif (state := message.get("state")) in REPORTED and self.roster.report(task, state):
            self.note(task, state)
        if "starting" not in self.roster.states.values():
            self.agenda.all_run(clock())

    def note(self, who: str, state: str, why: str = "", **facts: Any) -> None:
        """Record what became of a task, or was done to a task or host. The kernel process is told
        of a task's new state only: a task that is paused or slowed keeps its state.
        """
        facts["attempt"] = self.roster.attempts.get(who, 0)
        self.lifecycle.write(to_line(Lifecycle(who, state, why, clock(), **facts)))
        if state in STATES:
            self.kernel.post(task=who, state=state)

    def _connected(self) -> bool:
        """Return whether the chief, if there is one, has reached all others: it has sent a step."""
        state = self.roster.states.get("chief:0")
        # until it runs again, the beat is that of its last attempt
        return not state or (state == "running" and self.beats.now("chief:0").step >= 0)

    def _note_paused(self, task: str, paused: bool, why: str, fault: str = "") -> None:
        """Record that a task is paused, or is no longer, if that is news."""
        if paused != (task in self.paused):
            self.paused ^= {task}
            self.note(task, "paused" if paused else "resumed", why, fault=fault)

    def _act(self) -> None:
        """Do what follows from the state of all tasks: tell those that are to end to leave, and
        after a while make them; start again those that are ready for it.
        """
        for task, state in self.roster.news:
            self.note(task, state)
        self.roster.news.clear()
        if self.roster.outcome:
            for node in self._nodes():
                node.poll(last=True)
        spec, (grace, patience) = self.files.spec, ENDING[self.roster.outcome]
        now, leave = clock(), clock() + grace
        for task in self.roster.ending:
            due = self.ending.setdefault(task, [(leave, "leave"), (leave + patience, "kill")])
            if due and now >= due[0][0]:
                self.roster.dismiss(task)
                if due.pop(0)[1] == "leave":
                    own = spec.own and self.roster.outcome == "finished"
                    self.nodes[task].tell(task, leave=RETURNS if own else 0.0)
                else:
                    self.nodes[task].signal(task, signal.SIGKILL)
        if (ready := self.roster.ready) and now >= self.moving:
            if lost := [task for task in ready if self.nodes[task].lost]:
                self.moving = now + MOVING
                if not self._settle(lost):
                    return
            if not self.roster.alive:  # nor may anything else be left of the last attempt
                for node in self._nodes():
                    node.clean()
            self._start(ready)
