"""Runs on each node of a Ray cluster: an actor that keeps a warm zygote, and so has the processes
of a run there in a tenth of a second. It dies with its driver, and everything with it.

The actor only passes on: orders to the node's process of a run (`remote.serve`), what that tells,
and the record.
"""

import contextlib
import os
import platform
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import ray

from course_lib.cluster import nursery
from course_lib.cluster.pipes import Channel, ready
from course_lib.engines.ray.parcels import Parcel, Parcels
from course_lib.hardware.limits import version
from course_lib.record.beats import Beats
from course_lib.record.events import own
from course_lib.record.rundir import RunDir

PLACE = "lockstep-node-"  # and this actor's pid: a folder with the record of a run
FORGOTTEN = 15.0  # seconds without a question from the driver after which a run is ended
PERIOD = 0.25  # seconds in which new parts of the record are brought: as often as boards draw


def versions() -> dict[str, str]:
    """Return the versions that must be the same on all nodes."""
    packages = ("lockstep-course", "tensorflow", "torch", "numpy")
    installed = {"Python": platform.python_version(), **{name: version(name) for name in packages}}
    return {name: its for name, its in installed.items() if its}


# several times, as dying tasks may still write; in the background, so that we are not its parent
SWEEP = """
exec 3<&0
{ cat <&3; for i in 1 2 3 4; do rm -rf "$0"*; sleep 1; done; } > /dev/null 2>&1 &
"""


def _sweep_after(folders: Path) -> int:
    """Have all `folders`, whose paths begin so, removed when this process is gone: with an actor
    Ray kills all below it, so none of these can. A descriptor to hold until then.
    """
    ended, writer = os.pipe()
    with os.fdopen(ended) as stdin:
        subprocess.run(["sh", "-c", SWEEP, folders], stdin=stdin, start_new_session=True)
    return writer


class Place:
    """One run on this node."""

    def __init__(self, files: RunDir, channel: Channel, tasks: list[str]) -> None:
        self.files, self.channel = files, channel
        self.parcels = Parcels(files, tasks)
        self.beats = Beats(files.beats, files.spec.tasks)
        self.tasks = tasks
        self.asked = own()  # when the driver asked last


class RayNode:
    """The actor. Its methods run in threads. It ends with the program at `driver`, an address."""

    def __init__(self, driver: tuple[str, int]) -> None:
        self._runs: dict[str, Place] = {}
        # Ray hides the GPUs from who has reserved none; a task's device says which it has
        os.environ.pop("CUDA_VISIBLE_DEVICES", None)
        self._folders = Path(tempfile.gettempdir(), f"{PLACE}{os.getpid()}-")
        self._writer = _sweep_after(self._folders)
        threading.Thread(target=self._watch, daemon=True).start()
        threading.Thread(target=self._end_with, args=(driver,), daemon=True).start()

    def _end_with(self, driver: tuple[str, int]) -> None:
        """End, and all below, when the driver is gone: its system says so at once, as Ray does not
        while the raylet of this node stands still.
        """
        with contextlib.suppress(OSError), socket.create_connection(driver) as line:
            with contextlib.suppress(OSError):
                line.recv(1)  # nothing is ever sent
            os._exit(0)

    def _watch(self) -> None:
        """End what no driver asks after any more, as Ray does not if its own process stands."""
        while True:
            time.sleep(1)
            for run, place in list(self._runs.items()):
                if own() - place.asked > FORGOTTEN:
                    self.close(run)

    def versions(self) -> dict[str, str]:
        return versions()

    @ray.method(concurrency_group="clock")
    def clock(self) -> float:
        return own()

    def open(
        self,
        run: str,
        record: list[Parcel],
        changed: dict[str, Any],
        tasks: list[str],
        timeout: float,
        home: str,
    ) -> tuple[dict[str, str], bool]:
        """Get ready for a run: its `record` so far, with facts `changed` for this node. The address
        of each of these tasks, and whether the driver's record, in `home`, can be seen here: then
        checkpoints, which several tasks write together, go there.
        """
        path = Path(tempfile.mkdtemp(prefix=self._folders.name, dir=self._folders.parent))
        files = RunDir(path)
        Parcels(files).keep(record)
        # the learner's folders that came along, and what is installed here
        sys_path = [*(str(path / folder) for folder in changed["sys_path"]), *sys.path]
        facts = files.facts.model_copy(update={**changed, "sys_path": sys_path})
        (path / "run.json").write_text(facts.model_dump_json())
        files = RunDir(path)
        files.lifecycle.touch(mode=0o600)
        files.line.mkdir(mode=0o700)
        theirs = RunDir(home)
        shared = theirs.holds_run and theirs.facts.origin == files.facts.origin
        if shared:
            theirs.checkpoints.mkdir(mode=0o700, exist_ok=True)
            files.checkpoints.symlink_to(theirs.checkpoints)
        for task in tasks:
            files.temporary(task).mkdir(parents=True)
        try:
            channel = nursery.supervisor(files.spec.framework, facts.start_method, timeout)
            channel.post(start=str(path), engine="ray", tasks=tasks)
            if not ready(channel, timeout):
                raise TimeoutError(f"no process within {timeout:g} s")
            first, *_ = channel.receive() or [{}]
            if "addresses" not in first:
                raise RuntimeError(nursery.last_words(files.spec.framework))
        except BaseException:
            shutil.rmtree(path, ignore_errors=True)
            raise
        self._runs[run] = Place(files, channel, tasks)
        return dict(first["addresses"]), shared

    @ray.method(concurrency_group="orders")
    def order(self, run: str, lines: bytes, record: list[Parcel]) -> None:
        """Pass orders on, and what other nodes have left to be found."""
        if place := self._runs.get(run):
            place.parcels.keep(record)
            with contextlib.suppress(OSError):
                place.channel.sock.sendall(lines)

    @ray.method(concurrency_group="hear")
    def hear(self, run: str) -> tuple[bytes | None, list[Parcel], dict[str, bytes]]:
        """Return messages of the node's process, new parts of the record, and the beats: at once if
        there is news, else after a while. None: it is gone, and this was the last of it. Nobody but
        the run's link asks, and it asks again when it has the answer.
        """
        if not (place := self._runs.get(run)):
            return None, [], {}
        place.asked = own()
        messages: bytes | None = b""
        if ready(place.channel, PERIOD):
            try:
                messages = place.channel.sock.recv(1 << 20) or None
            except ConnectionError:
                messages = None
        beats = {task: place.beats.slot(task) for task in place.tasks}
        parcels = place.parcels.new()
        if messages is None:
            self.close(run)
        return messages, parcels, beats

    def close(self, run: str) -> None:
        """Forget a run; its processes end with the channel."""
        if place := self._runs.pop(run, None):
            place.channel.close()
            place.beats.close()
            shutil.rmtree(place.files.path, ignore_errors=True)
