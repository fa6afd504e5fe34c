"""A task's process: how its supervisor starts it, by a fork or as a fresh interpreter; and what it
does: it sets itself up, runs its role function, and leaves the value or the error in the run
directory.

While the function runs, the supervisor controls it: another pace, a fault (an exception, an early
exit, memory that runs out), the end. It has a fault in the record before it sends the order for it.
An order comes in on a thread of its own, so that a busy or endless function can be slowed and
stopped. A signal brings an exception to the main thread, which also wakes up where that waits for
something; only while it is inside of C++ does the exception have to wait.
"""

import contextlib
import faulthandler
import inspect
import json
import os
import pkgutil
import re
import resource
import signal
import socket
import sys
import tempfile
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

import psutil

from course_lib.cluster import frameworks, pipes
from course_lib.cluster.pipes import Channel
from course_lib.cluster.roster import Attempt
from course_lib.cluster.task import Task
from course_lib.cures import GONE
from course_lib.errors import LIMITS, Injected, RankLost, shortage
from course_lib.notebook import shell
from course_lib.record.beats import Beats
from course_lib.record.events import Recorder, clock, keep_to
from course_lib.record.files import private
from course_lib.record.rundir import RunDir, TaskError
from course_lib.spec.fields import Jitter
from course_lib.text import shortened
from course_lib.workloads import Workload

_TRACEBACK_CHARS = 6000
PATIENCE = 10.0  # seconds for which a task waits until a fault that is due has happened
MORE = 256  # MB of memory beyond what it has, which is the limit of a task that is to run out
BLOCK = 16  # MB
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


def spawn(task: Arguments, holder: int, private: list[int]) -> int:
    """Start a task as a fresh interpreter, which imports the framework anew: slow, and the same
    everywhere.
    """
    files, name, attempt, sock = task
    for fd in (sock.fileno(), holder):
        os.set_inheritable(fd, True)
    arguments = files.path, name, json.dumps(attempt), sock.fileno()
    command = pipes.interpreter("cluster.process", holder, *arguments)
    return os.posix_spawn(sys.executable, command, os.environ)


def begin(_lifeline: object, run_dir: str, name: str, attempt: str, sock: str) -> NoReturn:
    """Start as a fresh interpreter."""
    files = RunDir(run_dir)
    if files.facts.offset:
        keep_to(files.facts.offset)
    main(files, name, Attempt(*json.loads(attempt)), socket.socket(fileno=int(sock)))


def main(files: RunDir, name: str, attempt: Attempt, sock: socket.socket) -> NoReturn:
    """Be the task `name` of a run.

    `sock` leads to the supervisor, which also holds our lifeline. Never returns.
    """
    files = RunDir(files.path, attempt.together) if attempt.together else files
    _redirect_output(files.logs(name))
    with contextlib.suppress(OSError):  # the name of the process in `ps -e` and `pkill`, on Linux
        Path("/proc/self/comm").write_text(name[:15], encoding="ascii")
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
    control.done.set()
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
    recorder = Recorder(files.events(name) if spec.trace else None, refused)
    task = Task(name, spec, files.addresses, files, recorder, attempt=attempt.number)
    task.threads, task.device, task.backend = facts.threads, facts.devices[name], facts.backend
    task.slow_factor, task.jitter = spec.slow.get(name, 1.0), Jitter.of(spec.jitter_of(name))
    task.schedule, task.beat = files.schedule(), Beats(files.beats, files.spec.tasks).writer(name)
    sys.path[:] = facts.sys_path
    if Path(facts.cwd).is_dir():
        os.chdir(facts.cwd)
    if files.workload.exists():
        Workload.load(files.workload)
    frameworks.prepare(task)
    program = files.programs()[task.job]
    return task, pkgutil.resolve_name(program) if isinstance(program, str) else program


def _leave_error(
    files: RunDir, name: str, attempt: int, step: int | None, error: BaseException
) -> None:
    """Leave the error, with its time, so that the first one can be told from those that it caused.
    Its traceback begins in the role function, and calls inside ours or a library's are folded.
    """
    at, reason = clock(), f"{type(error).__name__}: {error}".strip(": ")
    if isinstance(error, SystemExit):
        code = "" if error.code is None else error.code
        reason = f"it called sys.exit({code}); return from the function instead"
    elif isinstance(error, OSError) and error.errno in LIMITS:
        reason += f". {shortage(error).cure}"
    reason = shortened(reason, 1200)
    text = shortened(shell.in_words(error, __file__, files.cells()), _TRACEBACK_CHARS)
    # it only reports the loss of another task, as far as its kind or its framework's words tell
    echo = isinstance(error, (RankLost, ConnectionError, EOFError))
    echo = echo or type(error).__name__ in _ECHOES or bool(re.search(GONE, str(error)))
    where: dict[str, Any] = {"task": name, "attempt": attempt, "step": step, "at": at}
    files.leave_error(TaskError(**where, reason=reason, traceback=text, echo=echo))


def _redirect_output(logs: Sequence[Path]) -> None:
    """Give the process its own log files (stdout, stderr), also for what C++ code writes."""
    for fd, path in enumerate(logs, 1):
        log = private(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(log, fd)
        os.close(log)
    sys.stdout, sys.stderr = (
        os.fdopen(fd, "w", buffering=1, closefd=False, errors="replace") for fd in (1, 2)
    )
    faulthandler.enable(sys.stderr)


class Control:
    """The supervisor's control of a task, until `end`; `done`: the value of its function has been
    kept, and it may leave.
    """

    def __init__(self, task: Task, channel: Channel) -> None:
        self._task, self._channel = task, channel
        self._happened, self.done = threading.Event(), threading.Event()
        self._due = ("", "")  # what, why
        task.at_fault = self._await
        signal.signal(signal.SIGUSR1, lambda *_: self._raise())
        threading.Thread(target=self._obey, daemon=True).start()

    def end(self) -> None:
        """The task's function has returned: nothing can happen in it any more."""
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)

    def _obey(self) -> None:
        while (messages := self._channel.receive()) is not None:
            for message in messages:
                if "factor" in message:
                    self._task.slow_factor = message["factor"]
                if "clock" in message:
                    keep_to(message["clock"])
                if "jitter" in message:
                    self._task.jitter = Jitter.of(message["jitter"])
                if "leave" in message or message.get("inject") == "exit":
                    self.done.wait(message.get("leave", 0.0))
                    self._task.recorder.flush()
                    leave(0)
                if "inject" in message:
                    self._due = message["inject"], message["why"]
                    signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)
                if "go" in message:
                    self._happened.set()
        os._exit(1)

    def _await(self, step: int) -> None:
        """A step begins at which a fault is due: wait until that has happened."""
        self._happened.clear()
        self._channel.send(step=step)
        self._happened.wait(PATIENCE)

    def _raise(self) -> NoReturn:
        what, why = self._due
        if what == "oom":
            run_out_of_memory(why)
        raise Injected(f"it was raised {why}")


def leave(code: int) -> NoReturn:
    """End this process at once: the frameworks' own teardown may wait for peers that are gone."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def run_out_of_memory(why: str) -> NoReturn:
    """Allocate memory until a limit of this process is reached, and raise MemoryError."""
    blocks, process = list[bytearray](), psutil.Process()
    usual = resource.getrlimit(resource.RLIMIT_AS)
    with contextlib.suppress(ValueError, OSError):  # macOS has no such limit
        most = process.memory_info().vms + MORE * 2**20
        resource.setrlimit(resource.RLIMIT_AS, (most, usual[1]))
    with contextlib.suppress(MemoryError):
        while len(blocks) * BLOCK < MORE:
            blocks.append(bytearray(BLOCK * 2**20))
    got = len(blocks) * BLOCK
    blocks.clear()
    resource.setrlimit(resource.RLIMIT_AS, usual)
    has = process.memory_info().rss / 2**20
    raise MemoryError(f"with {has:.0f} MB it got {got} MB more and then none, {why}")
