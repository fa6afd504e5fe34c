"""Run: what a notebook holds of a run, and what is decided before it starts (`Prepared`). `start`
makes it and returns at once; a thread of it listens to the supervisor.
"""

import atexit
import errno
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from html import escape
from pathlib import Path
from typing import Any, ClassVar, Self

from course_lib import engines, workloads
from course_lib.activity import Activity
from course_lib.cluster.orders import Orders, words
from course_lib.cluster.pipes import ready
from course_lib.cluster.roster import death
from course_lib.collectives.schedule import Schedule
from course_lib.errors import LockstepError, Stalled, StartTimeout, SupervisorLost, Unavailable
from course_lib.hardware import Machine, Plan
from course_lib.hardware.limits import version
from course_lib.notebook.shell import in_script
from course_lib.record import checkpoints, rundir
from course_lib.record.digest import Digest
from course_lib.record.events import ACTIVE, Phase, clock, task_key
from course_lib.record.export import Result
from course_lib.record.files import filling, no_room
from course_lib.record.progress import Line, how_far, interrupt_explained, of_run
from course_lib.record.reality import Reality, reality
from course_lib.record.rundir import RunDir, RunFacts
from course_lib.record.saved import first_failure
from course_lib.record.standstill import Monitor, Pulse, Standstill
from course_lib.record.tensorboard import save_tensorboard
from course_lib.record.trace import Trace
from course_lib.spec.run_spec import RunSpec
from course_lib.text import count, table

WAIT = 600.0  # seconds that wait() waits when it is not told: every wait has a bound
START = 120.0  # seconds that all tasks may take to start, the import of their framework included
LEFT = "style='text-align:left'"


@dataclass(frozen=True)
class Prepared:
    """A run that can start. `programs`: by job, `module:function` or a function of the learner's
    own; `schedule`: its all-reduce, if that is not the framework's own; `summarize` makes the
    result of a run that is over; without it, that is what each task returned. `recovers`: see
    `Strategy`; `temporary`: see `RunFacts`.
    """

    spec: RunSpec
    machine: Machine
    plan: Plan
    programs: Mapping[str, Any]
    schedule: Schedule | None = None
    summarize: Callable[[Any], Any] | None = None
    recovers: str = ""
    temporary: bool = False
    engine: engines.Engine = engines.LOCAL

    def describe(self, files: RunDir, origin: float) -> None:
        """Write all that the tasks need to know into the run's directory. `origin`: see `Run`."""
        facts: dict[str, Any] = {"origin": origin, "started": time.time()}
        facts |= {"recovers": self.recovers, "temporary": self.temporary}
        facts |= {"version": version("lockstep-course"), "kernel": os.getpid()}
        facts |= {"sys_path": sys.path, "cwd": str(Path.cwd()), **dict(self.plan)}
        # under a chief, which hands out the work, workers serve as well
        facts |= {"services": ("ps", "worker") if self.spec.chief else ("ps",)}
        if own := workloads.OWN.get(self.spec.workload):
            own.leave(files.workload)
        machine = asdict(self.machine)
        files.describe(self.spec, RunFacts(**facts), machine, self.programs, self.schedule)


class Run(Orders):
    """A run that goes on in processes of its own.

    `state` is `starting`, `running`, `finished`, `failed` or `stopped`; `tasks` maps each task to
    its state, which is `stopped` as well if the run's end was its own; `trace` is readable at any
    time, `result` once the run is over. As a context manager it is stopped at the end of the block.
    `refused`: see `Orders`.

    `origin`: when the learner called `start` or `race`, on the machine's clock. `files`: its
    directory, if that is there already.
    """

    _going: ClassVar[list["Run"]] = []

    restart: Callable[[], "Run"] | None = None
    """Starts the same once more, and returns the new run; None for one of a race's."""

    def __init__(self, prepared: Prepared, origin: float, files: RunDir | None = None) -> None:
        super().__init__(prepared.spec, prepared.plan)
        self.files = files = files or rundir.create(prepared.spec)
        self.run_dir = files.path
        self._own = workloads.OWN.get(prepared.spec.workload)
        with filling(self.run_dir):
            prepared.describe(files, origin)
        self.tasks: dict[str, str] = dict.fromkeys(self.spec.tasks, "starting")
        self._digest = Digest(self.spec, Trace(files=files))
        self._monitor = Monitor(files, self._digest, self.tasks)
        self._summarize, self._engine, self._origin = prepared.summarize, prepared.engine, origin
        self._error: LockstepError | None = None
        self._result = Result()
        self._arrived = threading.Event()
        self._in_block = False  # a `with` block, which stops it
        self._going.append(self)
        name = f"lockstep-{files.path.name}"
        try:
            threading.Thread(target=self._listen, name=name, daemon=True).start()
        except RuntimeError as error:  # no more threads
            self._end("failed")
            raise no_room(self.run_dir, OSError(errno.EAGAIN, str(error))) from None

    # --- what a learner does with it ---

    def wait(self, timeout: float = WAIT) -> Self:
        """Wait until the run is over and return it.

        Raises what ended it, if that was a failure: `TaskFailed`, `StartTimeout`. Raises `Stalled`
        after `timeout` seconds, or as soon as the run stands still for good, and names who is
        waited for; the run is left as it is then, as it is when the cell is interrupted:
        `KeyboardInterrupt` says how to end it.
        """
        return self._await(self._over, timeout)

    def wait_running(self, timeout: float = WAIT) -> Self:
        """Wait until every task runs its function. Raises as `wait` does."""
        return self._await(self._arrived, timeout)

    def wait_step(self, step: int, timeout: float = 60.0) -> Self:
        """Wait until every worker has done this step and return the run, or until it is over.

        Raises as `wait` does. So a cell that slows, kills or stops the run lets you see it at work
        before, also if all cells run one after the other.
        """

        def done() -> bool:
            latest = {phase.task: phase.step for phase in self.trace.all(Phase)}
            workers = (task for task in self.tasks if task.startswith("worker:"))
            return all(latest.get(task, -1) > step for task in workers)

        return self._await(self._over, timeout, done)

    def stop(self, *, timeout: float = 10.0) -> Self:
        """End the run now, and return when its last process is gone.

        Does nothing to a run that is over. Raises `Stalled` after `timeout` seconds.
        """
        with self._sending:
            self._order("stop")
            if not self._channel:  # there is no supervisor yet
                try:
                    self._sum_up("stopped")
                finally:
                    self._end("stopped")
        if not self._over.wait(timeout):
            left = dict.fromkeys(self._tasks(*ACTIVE), Activity("has not ended"))
            raise Stalled(left, timeout, stopping=True)
        return self

    @classmethod
    def going(cls) -> list["Run"]:
        """All runs of this process that are not over, oldest first, including those of races and
        those without a variable.
        """
        return list(cls._going)

    def waiting_for(self, handle: str = "run") -> dict[str, Activity]:
        """Task -> what it does or waits for, as its trace tells, of the tasks that are not over.

        `handle`: what cures are to call the run.
        """
        starting = dict.fromkeys(self._tasks("starting"), Activity("is still starting"))
        return starting | self._monitor.snapshot(handle=handle).describe()

    def standstill(self) -> Standstill | None:
        """Return why no task has moved for half a second or longer; None while one may."""
        return self._monitor.standstill()

    def pulse(self) -> Pulse | None:
        """Return what the run does at this moment; None if it is over."""
        return self._monitor.pulse() if self.state in ACTIVE else None

    @property
    def trace(self) -> Trace:
        """Return the events so far: the same `Trace` each time, read up to now."""
        return self._digest.trace.refresh()

    @property
    def digest(self) -> Digest:
        """Its figures so far; the same object each time, brought up to now."""
        return self._digest.update(self.state not in ACTIVE)

    @property
    def reality(self) -> Reality:
        """Return how real the run has been so far: a word, and why."""
        return reality(self.spec, self.digest.life)

    @property
    def values(self) -> dict[str, Any]:
        """Return what each task's function returned, for the tasks that are done."""
        return self.files.values(sorted(self.tasks, key=task_key))

    @property
    def result(self) -> Any:
        """Return the result of a run that has finished, or was stopped: the summary of a strategy,
        or `values` for functions of your own. Raises if there is none.
        """
        if self._error:
            raise self._error.with_traceback(None)
        if self.state not in ("finished", "stopped"):
            cure = "" if self._over.is_set() else ". Call wait() first"
            raise LockstepError(f"the run has no result: it is {self.state}{cure}")
        return self._result

    def model(self) -> Any:
        """The trained model of a finished run, see `Workload.trained`. This process imports the
        run's framework.
        """
        return (self._own or workloads.load(self.spec)).trained(self.run_dir)

    def checkpoints(self) -> list[checkpoints.Checkpoint]:
        """The checkpoints that it has left so far, oldest first, and why any cannot be used."""
        return checkpoints.of_run(self.files)

    to_tensorboard = save_tensorboard

    def log(self, task: str, lines: int = 40) -> str:
        """The end of what a task printed: stdout, then stderr."""
        return self.files.log_tail(self.spec.check_task(task), lines)

    def __enter__(self) -> Self:
        self._in_block = True
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def __repr__(self) -> str:
        tasks = count(len(self.tasks), "task")
        return f"Run({self.spec.strategy}, {self.spec.framework}, {tasks}, {self.state})"

    def _repr_mimebundle_(self, **_: object) -> dict[str, str]:
        """Return the run as a notebook shows it: its state, what can be done with it, and where its
        record lies.
        """
        nodes = [r.choice for r in self.plan.reasons if r.what == "nodes"]
        on = f" on {nodes[0]} of a Ray cluster" if nodes else ""
        tasks = count(len(self.tasks), "task")
        what = f"Run ({self.spec.strategy}, {self.spec.framework}, {tasks}{on})"
        why = f": {str(self._error).splitlines()[0].rstrip('.')}" if self._error else ""
        state, record = f"{how_far(self, 'The run')}{why}.", f"Its record: {self.run_dir}"
        actions = self._actions()
        lines = (f"  {line}" for line in table(actions).splitlines())
        cells = "".join(
            f"<tr><td {LEFT}><code>{escape(code)}</code></td><td {LEFT}>{escape(does)}</td></tr>"
            for code, does in actions
        )
        page = f"<div><b>{escape(what)}</b>. {escape(state)}<table>{cells}</table>"
        page += f"<small>{escape(record)}</small></div>"
        return {"text/plain": "\n".join([what, state, *lines, record]), "text/html": page}

    def _actions(self) -> list[tuple[str, str]]:
        """List what can be done with it now: the code, and what it does."""
        last = next(task for task in reversed(self.spec.tasks) if task.startswith("worker:"))
        log = (f'run.log("{last}")', "the end of what a task printed")
        if self.state in ACTIVE:
            also = "also jitter, pause, resume, kill and inject"
            return [
                ("run.wait()", "wait for its end"),
                ("run.stop()", "end it now"),
                (f'run.slow("{last}", 4)', f"make a task 4 times slower; {also}"),
                ("TrainingBoard(run)", "watch it, and do all this by hand"),
                log,
            ]
        actions = [("Timeline(run)", "who did what, when, and who waited for whom"), log]
        if self.state != "failed":
            actions.insert(0, ("run.result", "what came out of it"))
        if self.state == "finished" and "final_loss" in self.result:
            actions.append(("run.model()", "the trained model"))
        return actions

    def _tasks(self, *states: str) -> list[str]:
        """The tasks in one of these states."""
        return [task for task, state in self.tasks.items() if state in states]

    def _await(
        self, event: threading.Event, timeout: float, soon: Callable[[], bool] = lambda: False
    ) -> Self:
        """Wait for an event, or for `soon` to be true, and return the run; warn of refused orders
        meanwhile, and say how far it is. Raises as `wait` does.
        """
        deadline = clock() + timeout
        explained = interrupt_explained("run", "Run.going()[-1].stop()", self._in_block)
        with explained, Line(of_run(self)) as tell:
            # short waits, so that an interrupt is noticed
            while not (event.wait(max(0.0, min(0.2, deadline - clock()))) or soon()):
                self._warn()
                tell()
                still = self.standstill()
                if still and still.certain:
                    raise Stalled(still.does, still.seconds, standing=True, cure=still.cure)
                if clock() >= deadline:
                    raise Stalled(still.does if still else self.waiting_for(), timeout)
        self._warn()
        if self._error:
            raise self._error.with_traceback(None)
        return self

    # --- the thread that listens ---

    def _listen(self) -> None:
        try:
            outcome = self._follow()
            if not self._over.is_set():
                self._sum_up(outcome)
            self._end(outcome)
        except LockstepError as error:
            self._end("failed", error)
        except OSError as error:
            self._end("failed", no_room(self.run_dir, error))
        except BaseException as error:
            what = f"{type(error).__name__}: {error}"
            self._end("failed", LockstepError(f"the run broke in this process: {what}"))

    def _sum_up(self, outcome: str) -> None:
        """Keep the result of a run that has finished or was stopped."""
        self.state = outcome
        self._result = Result(self._summarize(self) if self._summarize else self.values)
        self.files.leave_result(self._result)

    def _end(self, outcome: str, error: LockstepError | None = None) -> None:
        """The run is over, unless it was before."""
        with self._sending:
            if self._over.is_set():
                return
            if self._channel:
                self._channel.close()
            else:
                self.files.clear()  # no supervisor does
            self._going.remove(self)
            self._engine.release()
            self._monitor.close()
            late = (words(order) for order in self._unanswered if order["do"] != "stop")
            self.refused += (f"{order} came too late: the run is {outcome}" for order in late)
            ended = "killed" if isinstance(error, SupervisorLost) else "stopped"
            self.tasks |= dict.fromkeys(self._tasks(*ACTIVE), ended)
            self._error, self.state = error, outcome
            self._arrived.set()
            self._over.set()

    def _follow(self) -> str:
        """Start the run, read the supervisor's messages until it is over, and return the outcome.

        Raises what went wrong.
        """
        framework, patience = self.spec.framework, START
        channel = self._engine.supervisor(framework, self.plan.start_method, patience)
        with self._sending:
            if self._over.is_set():
                channel.close()  # the supervisor goes, as it has no order to start
                return self.state
            self._channel = channel
            channel.post(start=str(self.run_dir))
            for order in self._unanswered:
                channel.post(**order)
        deadline = self._origin + patience
        while True:
            missing = self._tasks("starting", "restarting")
            if not ready(channel, deadline - clock() if missing else None):
                arrived = tuple(task for task in self.tasks if task not in missing)
                raise StartTimeout(arrived, tuple(missing), patience)
            if (messages := channel.receive()) is None:
                raise SupervisorLost("it left no word of why", self._engine.last_words(framework))
            for message in messages:
                match message:
                    case {"over": "failed"}:
                        raise self._monitor.named(first_failure(self.files, self.digest))
                    case {"over": str(outcome)}:
                        return outcome
                    case {"unavailable": [what, why, cure]}:
                        raise Unavailable(what, why, cure)
                    case {"lost": int(status)}:
                        raise SupervisorLost(death(status), self._engine.last_words(framework))
                    case {"answer": problem}:
                        self._answered(problem)
                    case {"task": task, "state": state}:
                        self.tasks[task] = state
                        if state == "restarting":
                            deadline = clock() + patience
            with self._sending:
                channel.flush()  # orders for which there was no room
            if not self._arrived.is_set() and "starting" not in self.tasks.values():
                self.state = "running"
                self._arrived.set()


@atexit.register
def _name_what_ends() -> None:
    """Tell on stderr which runs the end of a script stops: it may have been to wait for them."""
    for run in Run.going() if in_script() else ():
        words = f"{how_far(run, run.spec.strategy)}, and ends now, as this program does"
        print(f"lockstep: {words}; run.wait() waits for the end of a run.", file=sys.stderr)
