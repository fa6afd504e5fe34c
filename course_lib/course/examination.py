"""What the judge holds of the examinee: it asks for calls, reads what they gave back, and ends what
exceeds its bounds.
"""

import pickle
import signal
import socket
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import psutil
from pydantic import BaseModel, Field, ValidationError

from course_lib.cluster.pipes import Channel
from course_lib.cluster.prepared import Prepared
from course_lib.cluster.run import Run
from course_lib.course.answers import ENDLESS, TookTooLong, Unusable
from course_lib.course.examinee import examine
from course_lib.course.handed_in import Answer
from course_lib.course.plain import rebuilt
from course_lib.errors import LockstepError, Stalled, TaskFailed
from course_lib.hardware import plan, probe
from course_lib.hardware.limits import gigabytes
from course_lib.record import home
from course_lib.record.clock import clock
from course_lib.record.events import ACTIVE, Lifecycle
from course_lib.spec.run_spec import RunSpec

EXAMINEE = "worker:0"
PERIOD = 0.1  # seconds between two looks at what the examinee uses


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


class Ended(BaseException):
    """The examinee has ended, or must be, before it had said all. A BaseException, so that no judge
    takes it for an error of the learner's function.
    """


class Found(BaseModel):
    """What cells have defined: of each answer the name that it has as a function, "" if it is none,
    and that of its type; and what went wrong in which cell.
    """

    answers: dict[str, tuple[str, str]]
    troubles: list[str]


class Said(BaseModel):
    """What a function `returned` or `raised`, as plain data, or that it was `late`, the `seconds`
    that it computed, and which ready-made functions it `used`.
    """

    seconds: float = Field(ge=0, allow_inf_nan=False)
    used: list[str] = []
    returned: Any = None
    raised: Any = None
    late: bool = False


R = TypeVar("R", bound=BaseModel)


class Examinee:
    """The process in which the learner's code runs: the run that it is the task of, the supervisor
    of that, which is the parent of all, and the channel to it.
    """

    def __init__(
        self, run: Run, supervisor: psutil.Process, channel: Channel, bounds: Bounds
    ) -> None:
        self.run, self.supervisor, self.channel, self.bounds = run, supervisor, channel, bounds
        self._orders = 0
        channel.sock.settimeout(PERIOD)
        self.begin("Starting")

    def begin(self, doing: str) -> None:
        """From here on the bounds hold anew; `doing` says for what."""
        self.doing, self.begun = doing, time.monotonic()
        self.computed = self.usage()[0]

    def ask(self, kind: type[R], **order: Any) -> R:
        """Have something done, and return what the examinee says. Raises Ended, with the reason, if
        it exceeds its bounds, is gone, or says something else.
        """
        self._orders += 1
        self.channel.send(number=self._orders, **order)
        while True:
            try:
                heard = self.channel.receive()
            except TimeoutError:
                heard = [] if self.run.state in ACTIVE else None
            if heard is None:
                raise Ended(f"{self.doing} ended its process. {self._last_words()}".rstrip())
            for said in heard:
                if said.get("number") == self._orders:  # else of an order that was given up
                    try:
                        return kind.model_validate(said)
                    except ValidationError:
                        raise Ended(f"{self.doing} gave back what cannot be read.") from None
            if why := self._too_much():
                raise Ended(f"{self.doing} {why}")

    def stand_in(self, name: str, found: Found, ready_made: Iterable[str]) -> Any:
        """What the judge is given in place of the answer `name`: an `Answer` that has that one
        called by the examinee, or an object of a type with the same name.
        """
        function, kind = found.answers[name]
        if not function:
            return None if kind == "NoneType" else rebuilt(["other", kind])

        def carry(used: list[str], within: Any, given: Any, named: Any) -> Any:
            # what the function computes is taken from what the judge may compute
            left, again = signal.getitimer(signal.ITIMER_PROF)
            seconds = left or self.bounds.computing
            order = pickle.dumps((within, given, named, [*ready_made])).hex()
            said = self.ask(Said, call=name, order=order, seconds=seconds)
            used += said.used
            if left:
                left = signal.getitimer(signal.ITIMER_PROF)[0] - said.seconds
                signal.setitimer(signal.ITIMER_PROF, max(left, 1e-6), again)
            if said.late:
                raise TookTooLong(round(seconds, 1))
            try:
                returned = rebuilt(said.raised or said.returned)
            except Exception as error:
                raise Unusable(f"{name} gave back what cannot be judged: {error}") from None
            if said.raised:
                raise returned
            return returned

        return Answer(function, carry, None)

    def usage(self) -> tuple[float, int, int]:
        """Processor seconds, bytes of memory and number of the processes of the examinee and all
        that it has started. Pages that several share are divided among them.
        """
        computed, memory, processes = 0.0, 0, self.processes()
        for process in processes:
            with suppress(psutil.Error):
                computed += sum(process.cpu_times()[:4])  # with those of children that have ended
                held = process.memory_full_info()
                memory += getattr(held, "pss", held.uss)
        return computed, memory, len(processes)

    def processes(self) -> list[psutil.Process]:
        """The supervisor and all its descendants; none once it is gone."""
        with suppress(psutil.Error):
            return [self.supervisor, *self.supervisor.children(recursive=True)]
        return []

    def _too_much(self) -> str:
        """What the examinee has too much of, in words; "" if nothing."""
        bounds, (computed, memory, processes) = self.bounds, self.usage()
        computed, waits = computed - self.computed, time.monotonic() - self.begun
        size = gigabytes(bounds.memory)
        for used, most, what, why in (
            (computed, bounds.computing, "computed for more than {:g} seconds", ENDLESS),
            (waits, bounds.patience, "was not done after {:g} seconds", "What does it wait for?"),
            (memory, bounds.memory, f"took more than {size} of memory", ENDLESS),
            (processes, bounds.processes, "started more than {} processes", ENDLESS),
        ):
            if used > most:
                return f"{what.format(most)}, and was stopped. {why}"
        return ""

    def _last_words(self) -> str:
        """Why an examinee that is gone failed: what it raised, else the last line of its log."""
        with suppress(LockstepError):
            try:
                self.run.wait(2.0)
            except TaskFailed as failure:
                return failure.reason if failure.remote_traceback else self.run.log(EXAMINEE, 1)
        return ""


@contextmanager
def examinee(folder: Path, bounds: Bounds) -> Iterator[Examinee]:
    """A new examinee for the block; it runs cells in `folder`. At the end it is gone, and all that
    it has started. Raises whatever starting a run raises.
    """
    fields: dict[str, Any] = {"framework": "python", "trace": False}
    spec, machine = RunSpec(strategy="custom", workers=1, **fields).complete(), probe()
    with home.temporary("lockstep-check-") as files, socket.socket(socket.AF_UNIX) as door:
        address = files.path / "door"
        door.bind(str(address))
        door.listen(1)
        # without a summary, a run unpickles what its tasks have left
        ready = Prepared(
            spec,
            machine,
            plan(spec, machine),
            {"worker": partial(examine, folder, address)},
            summarize=lambda run: None,
            temporary=True,
        )
        run, by = Run(ready, clock(), files), None
        try:
            run.wait_running()
            # read before any code of the learner's runs, which could write another pid there
            (begun,) = run.trace.all(Lifecycle, EXAMINEE, state="starting")
            door.settimeout(spec.start_timeout)
            supervisor = psutil.Process(psutil.Process(begun.pid).ppid())
            by = Examinee(run, supervisor, Channel(door.accept()[0]), bounds)
            yield by
        finally:
            try:
                run.stop(5.0)
            except Stalled:  # the supervisor has been stopped
                for process in by.processes() if by else ():
                    with suppress(psutil.Error):
                        process.kill()
                run.stop(5.0)
