"""`grade`: check all answers in a learner's notebook. The process that judges them, this one, never
runs the learner's code. The examinee does (`handed_in.py`), in a run of its own: it calls the
learner's functions as the judge asks, and their results come here as plain data, through a socket.
With all that it starts, it is held to bounds.
"""

import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import cloudpickle
import nbformat
import psutil
from pydantic import BaseModel, Field, ValidationError

from course_lib.cluster.pipes import Channel
from course_lib.cluster.run import START, Run
from course_lib.course import handed_in
from course_lib.course.answers import ENDLESS, ExerciseTask, Unusable, Verdict, judged, sets
from course_lib.course.handed_in import computing_left, rebuilt
from course_lib.errors import LockstepError, SpecError, Stalled, TaskFailed, trying
from course_lib.hardware import probe
from course_lib.hardware.limits import gigabytes
from course_lib.launch import prepare
from course_lib.record import rundir
from course_lib.record.events import ACTIVE, Lifecycle, clock
from course_lib.spec.run_spec import RunSpec
from course_lib.strategies.gate import Request

EXAMINEE = "worker:0"
PERIOD = 0.1  # seconds after which the use of processor and memory is read again
ONLY_SHOWS = "look"  # tag of cells that define no answer: they show or run them, and are left out
Cell = tuple[int, str]  # its number among the code cells of the notebook, from 1 on, and its source


@dataclass(frozen=True)
class Bounds:
    """The bounds on all cells together, and then on each check: `computing` in seconds of the
    processor, `patience` in seconds of the clock, `memory` in bytes, and a number of `processes`,
    all of the examinee and whatever it has started.

    `bounded` sets tighter bounds inside that process, but a learner's code can block or swallow
    those.
    """

    computing: float = 60.0
    patience: float = 300.0  # for what waits and does not compute
    memory: int = 2 << 30
    processes: int = 100


USUAL = Bounds()


def grade(path: Path, bounds: Bounds = USUAL) -> list[Verdict]:
    """A verdict for each task of the exercise at `path`, in their order.

    A check in which the examinee exceeds its bounds, or ends, fails; the rest are made with a new
    one. Raises SpecError if the notebook is no exercise, and whatever starting a run raises.
    """
    tasks, cells = read(path)
    verdicts: list[Verdict] = []
    while left := tasks[len(verdicts) :]:
        defined = None
        with examinee(path.resolve().parent, bounds) as by:
            try:
                by.begin("Running the cells of the notebook")
                defined = by.ask(cells=cells, names=[task.answer for task in left])
                for task in left:
                    by.begin(f"Checking {task.name}")
                    verdicts.append(_verdict(task, by, defined))
            except Ended as problem:
                costs = tasks[len(verdicts) :][: 1 if defined else None]
                verdicts += [Verdict(task.name, "not yet", str(problem)) for task in costs]
    return verdicts


def _verdict(task: ExerciseTask, by: "Examinee", defined: "Reply") -> Verdict:
    """The verdict on the answer to a task, if the notebook has one."""
    if task.answer not in defined.answers:
        why = f" On the way there {'; '.join(defined.troubles)}." if defined.troubles else ""
        return Verdict(task.name, "not yet", f"The notebook defines no {task.answer}.{why}")
    function, kind = defined.answers[task.answer]
    answer: Any = StandIn(task, function, by)
    if not function:
        answer = None if kind == "NoneType" else rebuilt(["other", kind])
    try:
        with handed_in.bounded(by.bounds.computing):
            return judged(task, answer)
    except Exception as error:  # one answer must not prevent the checks of the others
        text = f"It could not be checked: {type(error).__name__}: {error}"
        return Verdict(task.name, "not yet", text)


# --- the examinee, as the judge sees it ---


class Ended(BaseException):
    """Raised if the examinee has ended, or must be, before it had said all. A BaseException, so
    that no judge takes it for an error of the learner's function.
    """


class Reply(BaseModel):
    """A reply of the examinee. To the cells: the `answers` that they have defined, of each the name
    that it has as a function, "" if it is none, and that of its type; and the `troubles`, what went
    wrong in which cell. To a call: its `value` as plain data, which the function returned or
    `raised`; the `seconds` that it computed, and which ready-made functions it `used`.
    """

    seconds: float = Field(ge=0, allow_inf_nan=False)
    answers: dict[str, tuple[str, str]] = {}
    troubles: list[str] = []
    used: list[str] = []
    value: Any = None
    raised: bool = False


@dataclass
class Examinee:
    """The process in which the learner's code runs: the run that it is the task of, the supervisor
    of that, which is the parent of all, and the channel to it.
    """

    run: Run
    supervisor: psutil.Process
    channel: Channel
    bounds: Bounds
    orders: int = 0

    def __post_init__(self) -> None:
        self.channel.sock.settimeout(PERIOD)
        self.begin("Starting")

    def begin(self, doing: str) -> None:
        """Let the bounds begin anew; `doing` says for what."""
        self.doing, self.before = doing, self.usage()

    def ask(self, **order: Any) -> Reply:
        """Have something done, and return the examinee's reply. Raises Ended, with the reason, if
        it exceeds its bounds, is gone, or says something else.
        """
        self.orders += 1
        self.channel.send(number=self.orders, **order)
        while True:
            try:
                replies = self.channel.receive()
            except TimeoutError:
                replies = [] if self.run.state in ACTIVE else None
            if replies is None:
                raise Ended(f"{self.doing} ended its process. {self._last_words()}".rstrip())
            for reply in replies:
                if reply.get("number") == self.orders:  # else to an order that was given up
                    try:
                        return Reply.model_validate(reply)
                    except ValidationError:
                        raise Ended(f"{self.doing} gave back what cannot be read.") from None
            self._hold_to_bounds()

    def processes(self) -> list[psutil.Process]:
        """The supervisor and all its descendants; none once it is gone."""
        with suppress(psutil.Error):
            return [self.supervisor, *self.supervisor.children(recursive=True)]
        return []

    def usage(self) -> Bounds:
        """The bounds that all processes of the examinee have reached so far. Memory that several
        share is divided among them.
        """
        computed, memory, processes = 0.0, 0, self.processes()
        for process in processes:
            with suppress(psutil.Error):
                computed += sum(process.cpu_times()[:4])  # with those of children that have ended
                taken = process.memory_full_info()
                memory += getattr(taken, "pss", taken.uss)
        return Bounds(computed, time.monotonic(), memory, len(processes))

    def _hold_to_bounds(self) -> None:
        """Raise Ended if the examinee has too much of anything."""
        bounds, before, now = self.bounds, self.before, self.usage()
        computed, waited = now.computing - before.computing, now.patience - before.patience
        size = gigabytes(bounds.memory)
        for used, most, exceeds in (
            (computed, bounds.computing, "computed for more than {:g} seconds"),
            (waited, bounds.patience, "was not done after {:g} seconds"),
            (now.memory, bounds.memory, f"took more than {size} of memory"),
            (now.processes, bounds.processes, "started more than {} processes"),
        ):
            if used > most:
                raise Ended(f"{self.doing} {exceeds.format(most)}, and was stopped. {ENDLESS}")

    def _last_words(self) -> str:
        """The reason why an examinee is gone: what it raised, else the last line of its log."""
        try:
            self.run.wait(2.0)
        except TaskFailed as failure:
            return failure.reason if failure.remote_traceback else self.run.log(EXAMINEE, 1)
        except LockstepError:
            pass
        return ""


class StandIn(handed_in.Answer):
    """The answer to `task` for the judge: each call is made by the examinee. The time that it takes
    there is taken from the time that the judge may compute.
    """

    def __init__(self, task: ExerciseTask, name: str, by: Examinee) -> None:
        super().__init__(None, task.ready_made)
        self.__name__, self.task, self.by = name, task, by

    def carry_out(self, within: Any, given: Any, named: Any) -> Any:
        name, seconds = self.task.answer, computing_left() or self.by.bounds.computing
        order = cloudpickle.dumps((within, given, named, self.ready_made)).hex()
        called = self.by.ask(call=name, order=order, seconds=seconds)
        self.used += called.used
        handed_in.charge(called.seconds, computing_left())
        try:
            value = rebuilt(called.value)
        except Exception as error:
            raise Unusable(f"{name} gave back what cannot be judged: {error}") from None
        if called.raised:
            raise value
        return value


@contextmanager
def examinee(folder: Path, bounds: Bounds) -> Iterator[Examinee]:
    """A new examinee for the block; it runs cells in `folder`. At the end it is gone, and all that
    it has started. Raises whatever starting a run raises.
    """
    spec = RunSpec(strategy="answers()", workers=1, framework="python", trace=False).complete()
    with rundir.temporary("lockstep-check-") as files, socket.socket(socket.AF_UNIX) as door:
        address = files.path / "door"
        door.bind(str(address))
        door.listen(1)
        program = partial(handed_in.examine, folder, address)
        ready = prepare(Request(spec, programs={"worker": program}), probe())
        # without a summary, a run unpickles what its tasks have left
        ready = replace(ready, summarize=lambda run: None, temporary=True)
        run, by = Run(ready, clock(), files), None
        try:
            run.wait_running()
            # read before any code of the learner's runs, which could write another pid there
            (begun,) = run.trace.all(Lifecycle, EXAMINEE, state="starting")
            door.settimeout(START)
            supervisor = psutil.Process(psutil.Process(begun.pid).ppid())
            by = Examinee(run, supervisor, Channel(door.accept()[0]), bounds)
            yield by
        finally:
            try:
                run.stop(timeout=5.0)
            except Stalled:  # the supervisor has been stopped
                for process in by.processes() if by else ():
                    with suppress(psutil.Error):
                        process.kill()
                run.stop(timeout=5.0)


# --- the notebook ---


@contextmanager
def opened(path: Path) -> Iterator[nbformat.NotebookNode]:
    """A notebook, for the block that reads it. Raises SpecError for a file that is none, or
    that has other things in it than notebooks have.
    """
    # nbformat has no error of its own for what is no notebook
    with trying("cannot be read as a notebook", partial(SpecError, "notebook", str(path))):
        yield nbformat.read(path, as_version=4)


def exercise_of(notebook: nbformat.NotebookNode) -> str:
    """The name of the exercise set that a notebook belongs to, "" if to none. Its metadata says so,
    which its solution gave it: the file may have been renamed.
    """
    return str(notebook.metadata.get("lockstep", {}).get("exercise", ""))


def exercises_in(folder: Path) -> list[Path]:
    """The exercises of this course in a folder and those below it, hidden ones left out. Raises
    SpecError if there is none.
    """
    paths = []
    for path in sorted(folder.rglob("*.ipynb")):
        if not any(part.startswith(".") for part in path.relative_to(folder).parts):
            with suppress(SpecError):
                read(path)
                paths.append(path)
    if not paths:
        raise SpecError("notebook", str(folder), "no exercise of this course is in it")
    return paths


def read(path: Path) -> tuple[Sequence[ExerciseTask], Sequence[Cell]]:
    """The tasks of the exercise in a notebook, and the code cells that may define the answers.
    Raises SpecError if there is none, or it is no exercise of this course.
    """
    with opened(path) as notebook:
        exercise = exercise_of(notebook)
        code = enumerate((cell for cell in notebook.cells if cell.cell_type == "code"), 1)
        wanted = ((n, cell) for n, cell in code if ONLY_SHOWS not in cell.metadata.get("tags", ()))
        cells = [(n, str(cell.source)) for n, cell in wanted]
    if exercise not in sets():
        problem = f"is no exercise of this course; there are {', '.join(sets())}"
        raise SpecError("notebook", str(path), problem)
    return sets()[exercise], cells
