"""The life of a task's process: set itself up, run its role function, leave its result or its error
in the run directory.
"""

from __future__ import annotations

import faulthandler
import importlib
import inspect
import json
import os
import pickle
import signal
import socket
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import cloudpickle

from course_lib.cluster import frameworks
from course_lib.cluster.channel import Channel
from course_lib.cluster.task import Task, clock
from course_lib.record.events import Recorder
from course_lib.spec import NATIVE, RunSpec

_TRACEBACK_CHARS = 6000


def task_dir(run_dir: Path, name: str) -> Path:
    """Where a task leaves its events, logs, value or error."""
    return run_dir / "tasks" / name.replace(":", "-")


def temporary_dir(run_dir: Path, name: str) -> Path:
    """Where a task puts temporary files: the supervisor removes them with it."""
    return task_dir(run_dir, name) / "tmp"


def begin(_held: int | None, run_dir: str, name: str, control: str) -> NoReturn:
    """Start as a fresh interpreter."""
    main(Path(run_dir), name, socket.socket(fileno=int(control)))


def main(run_dir: Path, name: str, control: socket.socket) -> NoReturn:
    """Be the task `name` of the run in `run_dir`.

    `control` leads to the supervisor, which also holds our lifeline. Never returns.
    """
    # an interrupted cell stops waiting; the tasks go on
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    here = task_dir(run_dir, name)
    _redirect_output(here)
    # TensorFlow leaves its generated code there
    tempfile.tempdir = os.environ["TMPDIR"] = str(temporary_dir(run_dir, name))
    channel = Channel(control)
    done = False
    try:
        task, program = _set_up(run_dir, name)
        threading.Thread(
            target=_obey, args=(channel, task), name="lockstep-control", daemon=True
        ).start()
        channel.send(state="running")
        done = _run(task, program, here)
        task.recorder.flush()
    except BaseException as error:
        _leave_error(here, name, None, error, clock())
    channel.send(state="done" if done else "failed")
    # peers may still need us for their last collective: the supervisor says when to leave, or the
    # lifeline ends us
    if done:
        threading.Event().wait()
    _exit(1)


def _set_up(run_dir: Path, name: str) -> tuple[Task, Callable[..., Any]]:
    """The task and its role function, from what the run directory says."""
    run = json.loads((run_dir / "run.json").read_text())
    spec = RunSpec.model_validate_json((run_dir / "spec.json").read_text())
    addresses = json.loads((run_dir / "addresses.json").read_text())
    recorder = Recorder(task_dir(run_dir, name) / "events.jsonl" if spec.trace else None)
    task = Task(
        name,
        spec,
        addresses,
        run_dir,
        recorder,
        backend=run["backend"],
        slow_factor=spec.slow.get(name, 1.0),
        **run["tasks"][name],
    )
    if spec.all_reduce != NATIVE:
        task.schedule = pickle.loads((run_dir / "schedule.pickle").read_bytes())
    sys.path[:] = run["sys_path"]
    if Path(run["cwd"]).is_dir():
        os.chdir(run["cwd"])
    frameworks.prepare(task)
    return task, _program(run_dir, run["programs"], task.job)


def _program(run_dir: Path, programs: dict[str, str] | None, job: str) -> Callable[..., Any]:
    """The role function of a job: named as `module:function`, or pickled by value when a learner
    wrote it.
    """
    if programs is None:
        function: Callable[..., Any] = cloudpickle.loads(
            (run_dir / "programs.pickle").read_bytes()
        )[job]
        return function
    module, _, function_name = programs[job].partition(":")
    found: Callable[..., Any] = getattr(importlib.import_module(module), function_name)
    return found


def _run(task: Task, program: Callable[..., Any], here: Path) -> bool:
    """Call the role function and store what it returns, or its error; True if all went well."""
    try:
        value = program(task) if inspect.signature(program).parameters else program()
    # SystemExit too: a task that leaves early is a failure its learner should see
    except BaseException as error:
        _leave_error(here, task.name, task.step, error, clock())
        return False
    try:
        # it appears whole or not at all: a parameter server may be told to leave while it writes
        draft = here / "value.draft"
        draft.write_bytes(cloudpickle.dumps(value))
        draft.rename(here / "value.pickle")
    except Exception as error:
        text = f"its function returned a {type(value).__name__}, which cannot be sent back ({error}); return numbers, strings, lists or arrays"
        _leave_error(here, task.name, task.step, TypeError(text), clock())
        return False
    return True


def _leave_error(here: Path, name: str, step: int | None, error: BaseException, at: float) -> None:
    """Write `error.json`, with the time of the failure, so that the first one can be told from
    those that it caused.
    """
    if isinstance(error, SystemExit):
        reason = f"it called sys.exit({error.code if error.code is not None else ''}); return from the function instead"
    else:
        reason = f"{type(error).__name__}: {error}".strip(": ")
    frames = [
        f for f in traceback.extract_tb(error.__traceback__) if Path(f.filename) != Path(__file__)
    ]
    text = (
        "".join(traceback.format_list(frames)) + "".join(traceback.format_exception_only(error))
        if frames
        else ""
    )
    if len(text) > _TRACEBACK_CHARS:
        text = f"{text[: _TRACEBACK_CHARS // 3]}\n  [... cut ...]\n{text[-_TRACEBACK_CHARS * 2 // 3 :]}"
    record = {"task": name, "step": step, "reason": reason[:2000], "traceback": text, "at": at}
    (here / "error.json").write_text(json.dumps(record))


def _obey(channel: Channel, task: Task) -> None:
    """Do what the supervisor says, on a thread of its own, so that a busy or endless role function
    can be slowed and stopped.
    """
    while (messages := channel.receive()) is not None:
        for message in messages:
            if "slow" in message:
                task.slow_factor = message["slow"]
            if "leave" in message:
                task.recorder.flush()
                _exit(0)
    os._exit(1)


def _redirect_output(here: Path) -> None:
    """Give the process its own log files, also for what C++ code writes."""
    for fd, name in ((1, "stdout.log"), (2, "stderr.log")):
        log = os.open(here / name, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(log, fd)
        os.close(log)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    sys.stdout, sys.stderr = (
        os.fdopen(fd, "w", buffering=1, closefd=False, errors="replace") for fd in (1, 2)
    )
    faulthandler.enable(sys.stderr)


def _exit(code: int) -> NoReturn:
    """Leave at once: the frameworks' own teardown may wait for peers that are gone."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
