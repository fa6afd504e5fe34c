"""The directory of a run: what it leaves, and where. Other files ask this one for paths; what lies
inside `meetings/` belongs to the exchange and the strategies, what lies inside `line/` to races.

    spec.json  machine.json  run.json   what was asked for, on which machine, and how it was planned
    programs.pickle  schedule.pickle    what the tasks do
    addresses.json                      where they reach each other
    lifecycle.jsonl  traffic.jsonl      what the supervisor saw
    clocks.jsonl                        on a cluster: how the clocks of its nodes differ
    result.json                         what came out
    tasks/worker-0/events.jsonl         what a task did
    tasks/worker-0/stdout.log           what it printed; stderr.log likewise
    tasks/worker-0/value.pickle         what its function returned; or, if it failed, error.json
    tasks/worker-0/weights.npz          the trained weights: arrays by name, as `numpy.load` reads
    checkpoints/step-000040/            what a run can go on from, see `checkpoints.py`
    line/                               in a race: who has come to the starting line

While the run goes on there are also `beats`, which say what each task is in, `meetings/`, where its
tasks find each other, and a folder for temporary files in that of each task. All files but weights
and checkpoints are small, and all but the pickles can be read without this library.
"""

import contextlib
import json
import math
import os
import pickle
import re
import shutil
import stat
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import cloudpickle
import numpy as np
import psutil
from pydantic import BaseModel

from course_lib.errors import Damaged, LockstepError, SpecError
from course_lib.notebook import shell
from course_lib.record import pickles
from course_lib.record.events import Lifecycle, from_lines
from course_lib.record.files import leave, opened, read, read_lines, whole
from course_lib.spec.run_spec import RunSpec
from course_lib.text import kind_of

Network = Literal["hosts", "private", "loopback", "nodes"]
"""The network of a run. `hosts`: each task has an address of its own, on one of several hosts.
`private`: all tasks share a loopback interface that no other process has. `loopback`: they share
that of the machine. `nodes`: tasks are on the machines of a cluster."""

Imposer = Literal["kernel", "exchange"]
"""Who imposes a link's rate or delay: the kernel, on all messages, or our own exchange, on those
that go through it.
"""


@dataclass(frozen=True)
class Reason:
    """One decision of a plan: `what` was decided, the `choice`, and `why`, in one sentence for a
    learner.
    """

    what: str
    choice: str
    why: str


class Plan(BaseModel, frozen=True):
    """The places and the way in which the tasks of a run start: what `hardware.plan` decides.

    `devices`: task -> `cpu` or `gpu:0`; `device`: `gpu` if any has one. `cores`: of the machine, or
    of a race's share of it; `threads`: of each task. `start_method`: fork or spawn. `backend`: the
    framework's own collectives (nccl, ring, gloo or none). `rate`, `delay`, `loss`: who imposes
    those of the links between hosts; None where there are none, or nobody can. `resumed_from`:
    steps that were done in the run that this one resumes.
    """

    start_method: str = "spawn"
    device: str = "cpu"
    devices: dict[str, str] = {}
    cores: int = 1
    threads: int = 1
    backend: str = "none"
    reality: str = ""
    network: Network = "loopback"
    rate: Imposer | None = None
    delay: Imposer | None = None
    loss: Imposer | None = None
    resumed_from: int = 0
    reasons: tuple[Reason, ...] = ()

    def __repr__(self) -> str:
        return "\n".join(f"{r.what}: {r.choice}. {r.why}" for r in self.reasons)

    __str__ = __repr__


class RunFacts(Plan, frozen=True):
    """`run.json`: how a run was planned, and where and when it was started: `origin` on the
    machine's monotonic clock, `started` in Unix time, by the process `kernel`.
    """

    origin: float
    started: float = 0.0
    kernel: int = 0
    version: str = ""  # of this library; runs of early ones do not say it
    services: tuple[str, ...] = ("ps",)  # jobs that serve the others and never finish
    recovers: str = ""  # which tasks are started again after a failure, see `cluster.roster`
    temporary: bool = False  # the directory is of no use without the process that started the run
    sys_path: list[str] = []
    cwd: str = ""
    # on a node of a cluster: its address, and by how much its clock is behind that of the driver
    address: str = ""
    offset: float = 0.0


class TaskError(BaseModel):
    """`error.json`: why a task failed, in which attempt and step, and when (on the machine's
    clock). `echo`: it only tells that another task was lost.
    """

    task: str
    attempt: int = 0
    step: int | None = None
    reason: str
    traceback: str = ""
    at: float
    echo: bool = False


DESCRIBED = (
    *("spec.json", "run.json", "machine.json"),
    *("programs.pickle", "schedule.pickle", "cells.json"),
)
LOG_END = 1 << 16  # bytes of a log in which its last lines are looked for
YOUNG = 3600.0  # seconds: a run of this age without a process may be about to start


class RunDir:
    """The directory of a run, for its writers and readers. `home.create` makes it, empty;
    `describe` fills it.

    `meetings`: where the tasks find each other; another one after each restart of all, of which
    `gathered` is the number. `wires`: the links that our own exchange imposes where the kernel
    cannot, see `network.layout`. `line`: where the tasks of an entrant of a race wait for the
    others, see `racing.fairness`. `workload`: a learner's own, while the run goes on.
    """

    def __init__(self, path: Path | str, gathered: int = 0) -> None:
        self.path = Path(path).absolute()  # the process may go to another directory
        self.lifecycle = self.path / "lifecycle.jsonl"
        self.traffic = self.path / "traffic.jsonl"
        self.clocks = self.path / "clocks.jsonl"
        self.meetings = self.path / "meetings" / str(gathered)
        self.wires = self.meetings.with_name("wires")
        self.line = self.path / "line"
        self.beats = self.path / "beats"
        self.result_file = self.path / "result.json"
        self.workload = self.path / "workload"
        self.checkpoints = self.path / "checkpoints"

    # --- before the tasks start ---

    def describe(
        self,
        spec: RunSpec,
        facts: RunFacts,
        machine: Mapping[str, Any],
        programs: Mapping[str, str | Callable[..., Any]],
        schedule: object = None,
    ) -> None:
        """Write all that the tasks need to know. `programs`: job -> `module:function`, or a
        function of the learner's own; `schedule`: the all-reduce, or None for the framework's own.
        """
        own = self.workload.exists() or any(map(callable, programs.values()))
        contents = (
            spec.model_dump_json(indent=1).encode(),
            facts.model_dump_json(indent=1).encode(),
            json.dumps(dict(machine), indent=1).encode(),
            pickles.dumps(dict(programs)),
            pickle.dumps(schedule),
            json.dumps(shell.cells() if own else {}).encode(),
        )
        for name, content in zip(DESCRIBED, contents, strict=True):
            leave(self.path / name, content)
        for task in spec.tasks:
            self.temporary(task).mkdir(parents=True)

    def described(self) -> list[Path]:
        """The files that `describe` has written, and a learner's own workload."""
        return [self.path / name for name in (*DESCRIBED, "workload")]

    @cached_property
    def spec(self) -> RunSpec:
        return read(self.path / "spec.json", RunSpec.model_validate_json)

    @cached_property
    def facts(self) -> RunFacts:
        return read(self.path / "run.json", RunFacts.model_validate_json)

    @property
    def holds_run(self) -> bool:
        with contextlib.suppress(OSError):  # such as a name that is too long
            return (self.path / "spec.json").exists()
        return False

    def programs(self) -> dict[str, str | Callable[..., Any]]:
        """Read what `describe` was given."""
        return dict(pickles.loads((self.path / "programs.pickle").read_bytes()))

    def schedule(self) -> Any:
        """Read what `describe` was given."""
        return pickle.loads((self.path / "schedule.pickle").read_bytes())

    def cells(self) -> shell.Cells:
        """The notebook's cells when the run began, for tracebacks."""
        return dict(json.loads((self.path / "cells.json").read_text()))

    @property
    def addresses(self) -> dict[str, list[str]]:
        """Job -> `host:port` of its tasks, in order; the supervisor sets it."""
        return dict(json.loads((self.path / "addresses.json").read_text()))

    @addresses.setter
    def addresses(self, addresses: dict[str, list[str]]) -> None:
        leave(self.path / "addresses.json", json.dumps(addresses).encode())

    # --- where things are ---

    def events(self, task: str) -> Path:
        return self._task(task) / "events.jsonl"

    def event_files(self) -> list[Path]:
        """All files with events that are there."""
        return [*sorted(self.path.glob("*.jsonl")), *sorted(self.path.glob("tasks/*/events.jsonl"))]

    def logs(self, task: str) -> list[Path]:
        """The output of a task: stdout, then stderr."""
        return [self._task(task) / name for name in ("stdout.log", "stderr.log")]

    def weights(self, task: str) -> Path:
        return self._task(task) / "weights.npz"

    def temporary(self, task: str) -> Path:
        """The folder for temporary files of a task; it is removed when the run is over."""
        return self._task(task) / "tmp"

    def passing(self) -> list[Path]:
        """The folders that are there only while the run goes on."""
        folders = (*self.path.glob("tasks/*/tmp"), self.meetings.parent, self.workload)
        return [path for path in folders if path.exists()]

    def _task(self, task: str) -> Path:
        return self.path / "tasks" / folder_name(task)

    # --- what a run leaves ---

    def log_tail(self, task: str, lines: int = 15) -> str:
        """The last lines of what a task printed, those of stderr last."""
        logs = [path for path in self.logs(task) if path.is_file()]
        ends = [read(path, bytes, max(0, path.stat().st_size - LOG_END)) for path in logs]
        text = b"".join(ends).decode(errors="replace")
        return "\n".join(line[:300] for line in text.splitlines()[-lines:])

    def leave_error(self, error: TaskError) -> None:
        leave(self._task(error.task) / "error.json", error.model_dump_json().encode())

    def errors(self) -> list[TaskError]:
        """The errors that failed tasks have left; where one cannot be read, that is the reason."""
        errors = []
        for path in self.path.glob("tasks/*/error.json"):
            try:
                errors.append(read(path, TaskError.model_validate_json))
            except Damaged as damaged:
                task = path.parent.name.replace("-", ":")
                errors.append(TaskError(task=task, reason=str(damaged), at=math.inf))
        return errors

    def leave_value(self, task: str, value: object) -> None:
        """Keep what a task's function returned. Raises TypeError if that cannot be pickled."""
        try:
            content = cloudpickle.dumps(value)
        except Exception as error:
            raise TypeError(
                f"its function returned {kind_of(value)}, which cannot be sent back "
                f"({error}); return numbers, strings, lists or arrays"
            ) from None
        leave(self._task(task) / "value.pickle", content)

    def values(self, tasks: Iterable[str]) -> dict[str, Any]:
        """Task -> what its function returned, for those of the tasks that are done."""
        paths = {task: self._task(task) / "value.pickle" for task in tasks}
        return {task: pickle.loads(p.read_bytes()) for task, p in paths.items() if p.exists()}

    def leave_weights(self, task: str, arrays: dict[str, Any]) -> None:
        """Keep trained weights: those of the whole model, which `worker:0` leaves, or the chief if
        it trains; in a pipeline each stage leaves its own.
        """
        with whole(self.weights(task)) as file:
            np.savez(file, **arrays)

    def trained_weights(self) -> dict[str, np.ndarray]:
        """All weights that the tasks have left. Raises `LockstepError` if there are none."""
        arrays: dict[str, np.ndarray] = {}
        for path in sorted(self.path.glob("tasks/*/weights.npz")):
            with opened(path) as file, np.load(file) as weights:
                arrays |= weights
        if not arrays:
            why = "it has not finished, or is a function of your own"
            raise LockstepError(f"the run in {self.path} left no trained weights: {why}")
        return arrays

    def leave_result(self, result: Any) -> None:
        """Keep the result if it can be written as JSON; that of a learner's own functions may not
        be.
        """
        with contextlib.suppress(TypeError):
            leave(self.result_file, json.dumps(result).encode())

    def clear(self, orphaned: bool = False) -> None:
        """Remove what is needed only while the run goes on. `orphaned`: the process that started it
        is gone; of a `temporary` run nothing is left then.
        """
        if orphaned and self.facts.temporary:
            shutil.rmtree(self.path, ignore_errors=True)
            return
        for path in self.passing():
            shutil.rmtree(path, ignore_errors=True)
        self.beats.unlink(missing_ok=True)
        (self.path / "cells.json").unlink(missing_ok=True)

    def goes_on(self) -> bool:
        """Tell whether the run still has tasks. The supervisor removes their temporary folders when
        the last task is gone. If the supervisor was killed, the folders stay, so their processes
        are looked for.
        """
        if not any(self.path.glob("tasks/*/tmp")):
            return False
        events, _ = from_lines(read_lines(self.lifecycle) if self.lifecycle.exists() else b"")
        pids = [e.pid for e in events if isinstance(e, Lifecycle) and e.state == "starting"]
        changed = self.path.stat().st_mtime  # when the last file appeared in it, or went
        young = time.time() - changed < YOUNG
        return any(map(psutil.pid_exists, pids or [self.facts.kernel])) and (young or bool(pids))


def folder_name(task: str) -> str:
    """A task's name as the name of a file or folder: `worker-0` for `worker:0`."""
    return task.replace(":", "-")


# --- where runs are kept, and how old ones make room for new ones ---

KEEP = 50  # runs kept in the default place; older ones make room
_OURS = re.compile(r"\d{8}-\d{6}-\w+-\w+")  # the names that we give: time, strategy, and at random


def create(spec: RunSpec) -> RunDir:
    """Make an empty directory for a run, for this user only: the one that the spec names, or a new
    one among the `runs()`.

    Raises `SpecError` if that cannot be written, is not empty, or belongs to somebody else.
    """
    if spec.run_dir is None:
        with usable("LOCKSTEP_HOME", _named()):
            _make_room(runs(), _OURS, KEEP)
            prefix = f"{time.strftime('%Y%m%d-%H%M%S')}-{spec.strategy.strip('()<>')}-"
            return RunDir(tempfile.mkdtemp(prefix=prefix, dir=runs()))
    with usable("run_dir", spec.run_dir):
        path = spec.run_dir.expanduser().resolve()
        path.mkdir(parents=True, exist_ok=True, mode=0o700)
        if any(path.iterdir()):
            allowed = "is not empty; name a directory that is empty or does not exist"
            raise SpecError("run_dir", str(spec.run_dir), allowed)
        path.chmod(0o700)  # it may have been there
        return RunDir(path)


@contextlib.contextmanager
def temporary(prefix: str) -> Iterator[RunDir]:
    """A directory, empty and for this user only, of a run that nobody wants to see later; it is
    removed at the end of the block.

    If this process is killed in the block, the supervisor of the run removes it. Whatever is left
    of others that were killed goes now, as old runs do.
    """
    with contextlib.suppress(OSError):
        _make_room(Path(tempfile.gettempdir()), re.compile(re.escape(prefix) + r"\w+"), 0)
    # a learner's code may have changed what lies in it
    with tempfile.TemporaryDirectory(prefix=prefix, ignore_cleanup_errors=True) as place:
        yield RunDir(place)


def _named() -> str:
    cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return os.environ.get("LOCKSTEP_HOME") or f"{cache}/lockstep"


def home() -> Path:
    """LOCKSTEP_HOME, else `lockstep` in the user's cache directory."""
    return Path(_named()).expanduser().absolute()


def runs() -> Path:
    """The folder in which runs are kept. What is not there is made so that only this user can read
    it.

    Raises PermissionError if another user could lay something in the way of what runs write.
    """
    for folder in (home(), home() / "runs"):
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        if (owner := folder.stat().st_uid) not in (0, os.getuid()):
            raise PermissionError(0, f"{folder} belongs to another user, with the number {owner}")
    return folder


@contextlib.contextmanager
def usable(field: str, path: Path | str) -> Iterator[None]:
    """Raise `SpecError` for `field` if the block cannot write to `path`."""
    try:
        yield
    except SpecError:
        raise
    except (OSError, ValueError, RuntimeError) as error:  # a name with a null, ~nobody
        problem = getattr(error, "strerror", error)
        why = f"cannot be written ({problem}); name a directory that can"
        raise SpecError(field, str(path), why) from None


def _make_room(folder: Path, ours: re.Pattern[str], keep: int) -> None:
    """Remove runs from a folder, all but the last `keep` by name: those of ours that are over and
    not young. Whatever else is there stays.
    """
    # the names that we give begin with the time, so the oldest come first
    named = sorted(path for path in folder.iterdir() if ours.fullmatch(path.name))
    for path in named[: max(0, len(named) - keep)]:
        with contextlib.suppress(OSError, ValueError, LockstepError):  # what cannot be read stays
            status = path.lstat()  # there may be thousands, of which most are young
            old = stat.S_ISDIR(status.st_mode) and time.time() - status.st_mtime > YOUNG
            described = ((path / name).is_file() for name in ("spec.json", "run.json"))
            if old and all(described) and not RunDir(path).goes_on():
                shutil.rmtree(path, ignore_errors=True)
