"""Run: what a notebook holds of a run. `start` makes it and returns at once; a thread of it listens
to the supervisor.
"""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable
from typing import Any

from course_lib import workloads
from course_lib.activity import Activity
from course_lib.cluster import shown
from course_lib.cluster.orders import Orders, words
from course_lib.cluster.pipes import ready
from course_lib.cluster.prepared import Prepared
from course_lib.cluster.roster import death
from course_lib.errors import LockstepError, Stalled, StartTimeout, SupervisorLost, Unavailable
from course_lib.record import checkpoints, rundir
from course_lib.record.digest import Digest
from course_lib.record.events import ACTIVE, Phase, clock, task_key
from course_lib.record.export import Result
from course_lib.record.files import filling, no_room
from course_lib.record.progress import Line, interrupt_explained, of_run
from course_lib.record.reality import Reality, reality
from course_lib.record.rundir import RunDir
from course_lib.record.saved import first_failure
from course_lib.record.standstill import Monitor, Pulse, Standstill
from course_lib.record.trace import Trace
from course_lib.text import count

WAIT = 600.0  # seconds that wait() waits when it is not told: every wait has a bound
START = 120.0  # seconds that all tasks may take to start, the import of their framework included
_STARTING = Activity("is still starting")
_going: list[Run] = []


class Run(Orders):
    """A run that goes on in processes of its own.

    `state` is `starting`, `running`, `finished`, `failed` or `stopped`; `tasks` maps each task to
    its state, which is `stopped` as well if the run's end was its own; `trace` is readable at any
    time, `result` once the run is over. As a context manager it is stopped at the end of the block.
    `refused`: see `Orders`.

    `origin`: when the learner called `start` or `race`, on the machine's clock. `files`: its
    directory, if that is there already.
    """

    def __init__(self, prepared: Prepared, origin: float, files: RunDir | None = None) -> None:
        super().__init__(prepared.spec, prepared.plan)
        self.files = files = files or rundir.create(prepared.spec)
        self.run_dir = files.path
        self._own = workloads.OWN.get(prepared.spec.workload)
        with filling(self.run_dir):
            prepared.describe(files, origin)
        self.tasks: dict[str, str] = dict.fromkeys(self.spec.tasks, "starting")
        self._trace, self._digest = Trace(files=files), Digest(self.spec)
        self._monitor = Monitor(files, self._digest, self._trace, self.tasks)
        self._summarize, self._origin = prepared.summarize, origin
        self._engine = prepared.engine
        self._error: LockstepError | None = None
        self._result = Result()
        self._arrived = threading.Event()
        self._held = False  # by a `with` block, which stops it
        _going.append(self)
        name = f"lockstep-{files.path.name}"
        try:
            threading.Thread(target=self._listen, name=name, daemon=True).start()
        except RuntimeError as error:  # no more threads
            self._end("failed")
            raise no_room(self.run_dir, OSError(errno.EAGAIN, str(error))) from None

    # --- what a learner does with it ---

    def wait(self, timeout: float = WAIT) -> Run:
        """Wait until the run is over and return it.

        Raises what ended it, if that was a failure: `TaskFailed`, `StartTimeout`. Raises `Stalled`
        after `timeout` seconds, or as soon as the run stands still for good, and names who is
        waited for; the run is left as it is then, as it is when the cell is interrupted:
        `KeyboardInterrupt` says how to end it.
        """
        return self._await(self._over, timeout)

    def wait_running(self, timeout: float = WAIT) -> Run:
        """Wait until every task runs its function. Raises as `wait` does."""
        return self._await(self._arrived, timeout)

    def wait_step(self, step: int, timeout: float = 60.0) -> Run:
        """Wait until every worker has done this step and return the run, or until it is over.

        Raises as `wait` does. So a cell that slows, kills or stops the run lets you see it at work
        before, also if all cells run one after the other.
        """

        def done() -> bool:
            latest: dict[str, int] = {}
            for phase in self.trace.all(Phase):
                latest[phase.task] = max(phase.step, latest.get(phase.task, -1))
            workers = (task for task in self.tasks if task.startswith("worker:"))
            return all(latest.get(task, -1) > step for task in workers)

        return self._await(self._over, timeout, done)

    def stop(self, timeout: float = 10.0) -> Run:
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

    @staticmethod
    def going() -> list[Run]:
        """All runs of this process that are not over, oldest first, including those of races and
        those without a variable.
        """
        return list(_going)

    def waiting_for(self, handle: str = "run") -> dict[str, Activity]:
        """Task -> what it does or waits for, as its trace tells, of the tasks that are not over.

        `handle`: what cures are to call the run.
        """
        starting = dict.fromkeys(self._tasks("starting"), _STARTING)
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
        return self._trace.refresh()

    @property
    def digest(self) -> Digest:
        """Its figures so far; the same object each time, brought up to now."""
        over = self.state not in ACTIVE
        return self._digest.update(self.trace, over)

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
        self._raise_error()
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
        return checkpoints.found(self.files)

    def log(self, task: str, lines: int = 40) -> str:
        """The end of what a task printed: stdout, then stderr."""
        return self.files.log_tail(self.spec.check_task(task), lines)

    def __enter__(self) -> Run:
        self._held = True
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def __repr__(self) -> str:
        tasks = count(len(self.tasks), "task")
        return f"Run({self.spec.strategy}, {self.spec.framework}, {tasks}, {self.state})"

    def _repr_mimebundle_(self, **_: object) -> dict[str, str]:
        """Return the run as a notebook shows it."""
        return shown.bundle(self)

    def _raise_error(self) -> None:
        if self._error:
            raise self._error.with_traceback(None)

    def _tasks(self, *states: str) -> list[str]:
        """The tasks in one of these states."""
        return [task for task, state in self.tasks.items() if state in states]

    def _await(
        self, event: threading.Event, timeout: float, soon: Callable[[], bool] = lambda: False
    ) -> Run:
        """Wait for an event, or for `soon` to be true, and return the run; warn of refused orders
        meanwhile, and say how far it is. Raises as `wait` does.
        """
        deadline = clock() + timeout
        explained = interrupt_explained("run", "Run.going()[-1].stop()", self._held)
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
        self._raise_error()
        return self

    # --- the thread that listens ---

    def _listen(self) -> None:
        outcome = "failed"
        error: LockstepError | None = None
        try:
            outcome = self._follow()
            if outcome != "failed" and not self._over.is_set():
                self._sum_up(outcome)
        except LockstepError as problem:
            error = problem
        except OSError as problem:
            error = no_room(self.run_dir, problem)
        except Exception as problem:
            what = f"{type(problem).__name__}: {problem}"
            error = LockstepError(f"the run broke in the notebook's own process: {what}")
        finally:
            self._end("failed" if error else outcome, error)

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
            _going.remove(self)
            self._engine.release()
            self._monitor.close()
            late = [words(order) for order in self._unanswered if order["do"] != "stop"]
            self.refused += [f"{order} came too late: the run is {outcome}" for order in late]
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
                raise StartTimeout([t for t in self.tasks if t not in missing], missing, patience)
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
