"""The examinee: the process that runs a learner's notebook and calls the functions in it, for the
judge in `grading.py`. The learner's code can change all that is here, so the judge takes what comes
from this process for the learner's answers, and for nothing else.
"""

import os
import pickle
import resource
import socket
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil

from course_lib.cluster.pipes import Channel
from course_lib.cluster.run import Run
from course_lib.course.answers import sets
from course_lib.course.handed_in import Answer, TookTooLong, bounded, plain
from course_lib.errors import SpecError, line_of

CELL_PATIENCE = 10.0  # seconds of computing for one cell
THREADS = 1000  # that a learner's code may have, in all its processes


def examine(folder: Path, door: Path) -> None:
    """Do what the judge asks for through the socket at `door`, in the `folder` of the notebook:
    first run its cells, then call functions that they have defined.
    """
    os.chdir(folder)
    sys.path.insert(0, str(folder))
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # only the errors in its log are needed
    sets()  # arguments may be functions of the checks
    _limit_threads()
    with socket.socket(socket.AF_UNIX) as sock:
        sock.connect(str(door))
        judge, names = Channel(sock), dict[str, Any]()
        while (orders := judge.receive()) is not None:
            for order in orders:
                if "cells" in order:
                    names, troubles = run_cells(order["cells"])
                    answers = {
                        name: _names(names[name]) for name in order["names"] if name in names
                    }
                    reply: dict[str, Any] = {"answers": answers, "troubles": troubles}
                else:
                    reply = _call(names[order["call"]], order["order"], order["seconds"])
                judge.send(number=order["number"], **reply)


def _limit_threads() -> None:
    """Have the system refuse more threads and processes. It counts all that the user has, and holds
    nobody back who is root.
    """
    facts = (p.info for p in psutil.process_iter(["uids", "num_threads"]))
    mine = [f["num_threads"] or 0 for f in facts if f["uids"] and f["uids"].real == os.getuid()]
    most, (_, hard) = sum(mine) + THREADS, resource.getrlimit(resource.RLIMIT_NPROC)
    if hard == resource.RLIM_INFINITY or most < hard:
        resource.setrlimit(resource.RLIMIT_NPROC, (most, most))


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
        if isinstance(error, TookTooLong):
            troubles.append(f"code cell {number} {error}: does a loop in it never end?")
        elif error is not None:
            troubles.append(f"code cell {number} raises {type(error).__name__}: {error}")
    return shell.user_ns, troubles


def _names(answer: Any) -> tuple[str, str]:
    """The facts of an answer that a judge may know without calling it, see `Defined`."""
    name = str(getattr(answer, "__name__", "the function")) if callable(answer) else ""
    return name, type(answer).__name__


def _call(function: Any, order: str, seconds: float) -> dict[str, Any]:
    """Call a function within `seconds` of computing, and return the fields of `Called`. The judge's
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
    except TookTooLong:
        reply["late"] = True
    except SpecError as error:
        reply["value"] = plain(error)
    except BaseException as error:
        reply["value"] = ["error", type(error).__name__, f"{error}{line_of(error, function)}"]
    return reply | {"used": answer.used, "seconds": time.process_time() - begun}
