"""A task's process: how its supervisor starts it, by a fork or as a fresh interpreter; and what it
does: it sets itself up, runs its role function, and leaves the value or the error in the run
directory.
"""

import faulthandler
import inspect
import os
import pkgutil
import re
import signal
import socket
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

from course_lib.cluster import frameworks, pipes
from course_lib.cluster.control import Control, leave
from course_lib.cluster.pipes import Channel
from course_lib.cluster.roster import Attempt
from course_lib.cluster.task import Task
from course_lib.cures import GONE
from course_lib.errors import LIMITS, RankLost, shortage
from course_lib.notebook import tracebacks
from course_lib.record.beats import Beats
from course_lib.record.events import Recorder, clock, keep_to
from course_lib.record.files import private
from course_lib.record.rundir import RunDir, TaskError
from course_lib.spec.jitter import Jitter
from course_lib.text import shortened
from course_lib.workloads import Workload

_TRACEBACK_CHARS = 6000
# kinds of errors by which TensorFlow and torch's store say that a peer is gone
_ECHOES = ("UnavailableError", "AbortedError", "CancelledError", "DistNetworkError")


Arguments = tuple[RunDir, str, Attempt, socket.socket]
"""Those of `main`: run directory, name, attempt, and the socket to the supervisor."""
StartTask = Callable[[Arguments, int, list[int]], int]
"""Start the process of a task and return its pid. It also gets the reading end of its lifeline, and
descriptors that it must not keep.
"""


def fork(arguments: Arguments, holder: int, private: list[int]) -> int:
    """Start a task as a copy of this process, which has the framework loaded already."""
    if pid := os.fork():
        return pid
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for fd in private:
            os.close(fd)
        pipes.hold(holder)
        main(*arguments)
    finally:
        os._exit(70)


def spawn(arguments: Arguments, holder: int, private: list[int]) -> int:
    """Start a task as a fresh interpreter, which imports the framework anew: slow, and the same
    everywhere.
    """
    files, name, attempt, sock = arguments
    for fd in (sock.fileno(), holder):
        os.set_inheritable(fd, True)
    command = pipes.interpreter(
        "cluster.process", holder, files.path, name, *attempt, sock.fileno()
    )
    return os.posix_spawn(sys.executable, command, os.environ)


def begin(
    _lifeline: object, run_dir: str, name: str, number: str, together: str, sock: str
) -> NoReturn:
    """Start as a fresh interpreter."""
    attempt, files = Attempt(int(number), int(together)), RunDir(run_dir)
    if files.facts.offset:
        keep_to(files.facts.offset)
    main(files, name, attempt, socket.socket(fileno=int(sock)))


def main(files: RunDir, name: str, attempt: Attempt, sock: socket.socket) -> NoReturn:
    """Be the task `name` of a run.

    `sock` leads to the supervisor, which also holds our lifeline. Never returns.
    """
    files = RunDir(files.path, attempt.together) if attempt.together else files
    _redirect_output(files.logs(name))
    # TensorFlow leaves its generated code there
    tempfile.tempdir = os.environ["TMPDIR"] = str(files.temporary(name))
    channel = Channel(sock)
    task = None

    def refused(error: OSError) -> None:
        channel.send(no_room=error.args)

    try:
        task, program = _set_up(files, name, attempt, refused)
        control = Control(task, channel)
        channel.send(state="running")
        value = program(task) if inspect.signature(program).parameters else program()
        control.end()
        files.leave_value(name, value)
        task.recorder.flush()
    # SystemExit too: a task that leaves early is a failure its learner should see
    except BaseException as error:
        try:
            _leave_error(files, name, attempt.number, task.step if task else None, error)
            if task:
                task.recorder.flush()
        except OSError as full:
            refused(full)
        channel.send(state="failed")
        leave(1)
    channel.send(state="done")
    control.done()
    # peers may still need us for their last collective: the supervisor says when to leave, or the
    # lifeline ends us
    while True:
        signal.pause()


def _set_up(
    files: RunDir, name: str, attempt: Attempt, refused: Callable[[OSError], None]
) -> tuple[Task, Callable[..., Any]]:
    """The task and its role function, from what the run directory says. `refused` is told if the
    disk takes no more events.
    """
    spec, facts = files.spec, files.facts
    task = Task(
        name,
        spec,
        files.addresses,
        files,
        Recorder(files.events(name) if spec.trace else None, refused),
        threads=facts.threads,
        device=facts.devices[name],
        backend=facts.backend,
        slow_factor=spec.slow.get(name, 1.0),
        jitter=Jitter.of(spec.jitter_of(name)),
        schedule=files.schedule(),
        beat=Beats(files.beats, files.spec.tasks).writer(name),
        attempt=attempt.number,
    )
    sys.path[:] = facts.sys_path
    if Path(facts.cwd).is_dir():
        os.chdir(facts.cwd)
    if files.workload.exists():
        Workload.found(files.workload)
    frameworks.prepare(task)
    program = files.programs()[task.job]
    return task, pkgutil.resolve_name(program) if isinstance(program, str) else program


def _leave_error(
    files: RunDir, name: str, attempt: int, step: int | None, error: BaseException
) -> None:
    """Leave the error, with its time, so that the first one can be told from those that it caused.
    Its traceback begins in the role function, and calls inside ours or a library's are folded.
    """
    at = clock()
    if isinstance(error, SystemExit):
        code = "" if error.code is None else error.code
        reason = f"it called sys.exit({code}); return from the function instead"
    else:
        reason = f"{type(error).__name__}: {error}".strip(": ")
        if isinstance(error, OSError) and error.errno in LIMITS:
            reason += f". {shortage(error).cure}"
    text = tracebacks.in_words(error, __file__, files.cells())
    files.leave_error(
        TaskError(
            task=name,
            attempt=attempt,
            step=step,
            reason=shortened(reason, 1200),
            traceback=shortened(text, _TRACEBACK_CHARS),
            at=at,
            echo=_echoes(error),
        )
    )


def _echoes(error: BaseException) -> bool:
    """Return whether an error only reports the loss of another task, as far as its kind or its
    framework's words tell.
    """
    known = isinstance(error, (RankLost, ConnectionError, EOFError))
    return known or type(error).__name__ in _ECHOES or bool(re.search(GONE, str(error)))


def _redirect_output(logs: Sequence[Path]) -> None:
    """Give the process its own log files (stdout, stderr), also for what C++ code writes."""
    for fd, path in enumerate(logs, 1):
        log = private(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(log, fd)
        os.close(log)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    sys.stdout, sys.stderr = (
        os.fdopen(fd, "w", buffering=1, closefd=False, errors="replace") for fd in (1, 2)
    )
    faulthandler.enable(sys.stderr)
