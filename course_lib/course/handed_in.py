"""A learner's functions as a judge gets them: called within a bound on computing time, under a
watch for ready-made answers. And the examinee: the process that runs a learner's notebook and calls
the functions in it, for the judge in `grading.py`. The learner's code can change all that is in
that process, so the judge takes what comes from it for the learner's answers, and for nothing else.
"""

import os
import pickle
import resource
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import psutil

from course_lib.cluster.pipes import Channel
from course_lib.cluster.run import Run
from course_lib.collectives import Schedule
from course_lib.errors import SpecError, line_of
from course_lib.record.saved import SavedRun

BLINDS = ("sys.setprofile", "threading.setprofile")  # would end the watch
LARGEST = 4096  # chunks or ranks of a schedule that a judge accepts
CELL_PATIENCE = 10.0  # seconds of computing for one cell
THREADS = 1000  # that a learner's code may have, in all its processes
_IMPORTS = 10  # times that a bound begins anew, since an import is no loop of the learner's
_REPEATED = 1.0  # seconds of computing after which a bound that was swallowed is raised once more


class Answer:
    """A function or a class that a learner wrote, for a judge to call.

    `used` are the ready-made functions that were called meanwhile, with their modules.
    """

    def __init__(self, function: Any, ready_made: Iterable[str] = ()) -> None:
        self.function, self.ready_made = function, tuple(ready_made)
        self.__name__ = str(getattr(function, "__name__", "the function"))
        self.used: list[str] = []

    def __call__(self, *given: Any, **named: Any) -> Any:
        return self.carry_out(None, given, named)

    def within(self, function: Callable[..., Any], *given: Any, **named: Any) -> Any:
        """Call `function(answer, *given, **named)` where the learner's code runs, with what the
        learner wrote itself: for a function of the checks that hands it on to other processes. The
        result comes back as `plain` data.
        """
        return self.carry_out(function, given, named)

    def carry_out(self, within: Any, given: Any, named: Any) -> Any:
        """Make one of these calls in this process."""
        with watched(self.ready_made, self.used):
            if within:
                return rebuilt(plain(within(self.function, *given, **named)))
            return self.function(*given, **named)


# --- a watch for ready-made answers ---


@contextmanager
def watched(ready_made: Iterable[str], used: list[str]) -> Iterator[None]:
    """Add to `used` which functions of `ready_made` are called in the block, as "module.name", by
    this thread or one that it starts.

    `ready_made` are full names of functions, classes or modules; what is defined in them counts.
    """
    names = tuple(ready_made)
    if not names:
        yield
        return
    names += BLINDS
    known: dict[object, tuple[object, str]] = {}  # code beside its name, so that no id comes again
    over = False

    def observe(frame: FrameType, event: str, arg: Any) -> None:
        if over or event not in ("call", "c_call"):  # over: in a thread that goes on
            return
        # a method of C is known by its name: kept itself, it would keep its object, say a tensor
        code = frame.f_code if event == "call" else None
        key: object = id(code) if code else f"{arg.__module__}.{arg.__name__}"
        if key not in known:
            name = f"{frame.f_globals.get('__name__')}.{code.co_qualname}" if code else str(key)
            known[key] = code, name if any(belongs(name, to) for to in names) else ""
        name = known[key][1]
        if name and name not in used and not _imports(frame):
            used.append(name)

    before = sys.getprofile()
    threading.setprofile(observe)
    sys.setprofile(observe)
    try:
        yield
    finally:
        over = True
        sys.setprofile(before)
        threading.setprofile(before)


def belongs(name: str, to: str) -> bool:
    """Tell if a full name is that of this function, class or module, or of something in it."""
    return f"{name}.".startswith(f"{to}.")


def _imports(frame: FrameType | None) -> bool:
    """Tell if a call belongs to an import: modules call much of their own while they load."""
    while frame and frame.f_globals.get("__name__") != "importlib._bootstrap":
        frame = frame.f_back
    return frame is not None


# --- a bound on computing time, so that an endless loop ends with a message ---


class TookTooLong(BaseException):
    """Raised in the middle of a block that has used up its `seconds` of computing.

    A BaseException, so that no `except Exception` of a learner stops it.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        super().__init__(f"computed for more than {seconds:g} seconds")


@contextmanager
def bounded(seconds: float) -> Iterator[None]:
    """Raise `TookTooLong` when the block has used `seconds` of processor time.

    Processor time is used, so that a busy machine makes no answer wrong. Blocks may be nested: the
    bound of the outer block holds inside the inner one as well. An import may take longer; the
    bound begins anew then. Only the main thread, where cells run, receives signals; in any other
    thread there is no bound.
    """
    renewals = iter(range(_IMPORTS))

    def stop(_: int, frame: FrameType | None) -> None:
        if not _imports(frame) or next(renewals, None) is None:
            raise TookTooLong(seconds)
        signal.setitimer(signal.ITIMER_PROF, seconds, _REPEATED)

    left = computing_left()
    if threading.current_thread() is not threading.main_thread() or 0 < left <= seconds:
        yield  # without a bound, or with that of an outer block, which ends first
        return
    begun = time.process_time()
    handler = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, seconds, _REPEATED)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, handler)
        charge(time.process_time() - begun, left)


def computing_left() -> float:
    """The seconds of computing that the innermost bound leaves; 0 without a bound."""
    return signal.getitimer(signal.ITIMER_PROF)[0]


def charge(seconds: float, left: float) -> None:
    """Set the bound, if there is one, to what was `left`, less seconds that were used elsewhere."""
    if left:
        signal.setitimer(signal.ITIMER_PROF, max(left - seconds, 1e-6), _REPEATED)


# --- plain data, which crosses to the judge as JSON: nothing of the learner's runs there, as it
# could if it were unpickled ---

# errors that judges tell from others; all others are only told by their names
_KINDS = {kind.__name__: kind for kind in (NotImplementedError, MemoryError, TypeError)}


def plain(value: Any) -> list[Any]:
    """A value as JSON: its kind and its content. A run is the directory of its record. Of other
    objects only the name of their type is kept.
    """
    match value:
        case None | bool() | int() | float() | str():
            return ["value", value]
        case np.generic():
            return plain(value.item())
        case np.ndarray() if value.dtype.kind in "biuf":
            return ["array", value.dtype.str, value.tolist()]
        case list() | tuple():
            return ["list", [plain(each) for each in value]]
        case dict() if all(isinstance(key, str) for key in value):
            return ["dict", {key: plain(each) for key, each in value.items()}]
        case Schedule():
            rounds = [[list(transfer) for transfer in each] for each in value.rounds]
            goal = value.kind, value.owners, value.servers, value.hosts
            return ["schedule", value.name, value.workers, value.chunks, rounds, *goal]
        case Run() | SavedRun():
            return ["run", str(value.run_dir if isinstance(value, Run) else value.path)]
        case SpecError():
            return ["spec error", value.field, plain(value.value), value.allowed]
        case TookTooLong():
            return ["too long", round(value.seconds, 1)]
    return ["other", type(value).__name__]


def rebuilt(data: Any) -> Any:
    """The value of plain data. Raises an error of some kind for data that `plain` has not made."""
    match data:
        case ["value", None | bool() | int() | float() | str() as value]:
            return value
        case ["array", str(dtype), values] if np.dtype(dtype).kind in "biuf":
            return np.array(values, dtype)
        case ["list", values]:
            return [rebuilt(each) for each in values]
        case ["dict", dict() as values]:
            return {str(key): rebuilt(each) for key, each in values.items()}
        case ["schedule", _, workers, chunks, _, _, _, servers, _]:
            if max(workers, chunks, servers) > LARGEST:
                raise ValueError(f"more than {LARGEST} chunks or ranks")
            return Schedule(*data[1:])
        case ["run", str(path)]:
            return SavedRun(path)
        case ["spec error", str(field), value, str(allowed)]:
            return SpecError(field, rebuilt(value), allowed)
        case ["too long", int() | float() as seconds]:
            return TookTooLong(seconds)
        case ["error", str(name), str(words)]:
            return type(name, (_KINDS.get(name, Exception),), {})(words)
        case ["other", str(name)]:
            return type(name, (), {})()
    raise ValueError("no plain data")


# --- the examinee ---


def examine(folder: Path, door: Path) -> None:
    """Do what the judge asks for through the socket at `door`, in the `folder` of the notebook:
    first run its cells, then call functions that they have defined.
    """
    os.chdir(folder)
    sys.path.insert(0, str(folder))
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # only the errors in its log are needed
    users = psutil.process_iter(["username", "num_threads"])
    mine = [p.info for p in users if p.info["username"] == psutil.Process().username()]
    most = sum(info["num_threads"] or 0 for info in mine) + THREADS
    with suppress(ValueError):  # there is a lower limit; nobody is held back who is root
        resource.setrlimit(resource.RLIMIT_NPROC, (most, most))
    with socket.socket(socket.AF_UNIX) as sock:
        sock.connect(str(door))
        judge, names = Channel(sock), dict[str, Any]()
        while (orders := judge.receive()) is not None:
            for order in orders:
                if "cells" in order:
                    names, troubles = run_cells(order["cells"])
                    answers = {n: _kind(names[n]) for n in order["names"] if n in names}
                    reply: dict[str, Any] = {"answers": answers, "troubles": troubles, "seconds": 0}
                else:
                    reply = _call(names[order["call"]], order["order"], order["seconds"])
                judge.send(number=order["number"], **reply)


def run_cells(cells: Sequence[tuple[int, str]]) -> tuple[dict[str, Any], list[str]]:
    """Run cells as Jupyter does, magics included; return the names that they define, and what went
    wrong in which cell.
    """
    # IPython takes half a second to import: only where cells run
    from IPython.core.interactiveshell import InteractiveShell
    from traitlets.config import Config

    shell = InteractiveShell.instance(config=Config(HistoryManager={"enabled": False}))
    # errors are reported with the answers that are missing because of them
    shell.showtraceback = shell.showsyntaxerror = lambda *_, **__: None
    troubles = []
    for number, source in cells:
        error: BaseException | None
        try:
            with bounded(CELL_PATIENCE):
                result = shell.run_cell(source)
            error = result.error_before_exec or result.error_in_exec
        except TookTooLong as late:
            error = late
        if error is not None:
            troubles.append(f"code cell {number} raises {type(error).__name__}: {error}")
    return shell.user_ns, troubles


def _kind(answer: Any) -> tuple[str, str]:
    """The facts of an answer that a judge may know without calling it, see `Reply`."""
    name = str(getattr(answer, "__name__", "the function")) if callable(answer) else ""
    return name, type(answer).__name__


def _call(function: Any, order: str, seconds: float) -> dict[str, Any]:
    """Call a function within `seconds` of computing, and return the fields of `Reply`. The judge's
    `order` says with what it is called, or by which function of the checks.
    """
    begun, answer = time.process_time(), Answer(function)
    reply: dict[str, Any] = {"raised": True}
    try:
        for run in Run.going():  # that an earlier call has left
            run.stop()
        within, given, named, answer.ready_made = pickle.loads(bytes.fromhex(order))
        with bounded(seconds):
            reply = {"value": plain(answer.carry_out(within, given, named))}
    except (TookTooLong, SpecError) as error:
        reply["value"] = plain(error)
    except BaseException as error:
        reply["value"] = ["error", type(error).__name__, f"{error}{line_of(error, function)}"]
    return reply | {"used": answer.used, "seconds": time.process_time() - begun}
