"""Files of a run are written: for this user only, whole or not at all, and with one line
that names the disk if it refuses. And how they are read: a file may be cut off or damaged, written
by another version or by a learner's code, or be no file at all; `Damaged` names what cannot be
read. No reader waits for a FIFO, or takes more than `LARGEST` at a time.
"""

import contextlib
import errno
import os
import shutil
import stat
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import BinaryIO, TypeVar

from pydantic import ValidationError

from course_lib.errors import Damaged, Unavailable, shortage

LARGEST = 64 << 20  # bytes
T = TypeVar("T")
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)  # said when there is no room for a file


def private(path: str | Path, flags: int) -> int:
    """The `opener` of all files of a run: a new one is for this user only, and no link that
    somebody else has laid there is followed.
    """
    return os.open(path, flags | os.O_NOFOLLOW, 0o600)


@contextlib.contextmanager
def whole(path: Path) -> Iterator[BinaryIO]:
    """A file to write to in the block; it appears under its name at the end, or not at all. Two
    processes may write the same one: the last to end is kept.
    """
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with open(draft, "wb", opener=private) as file:
            yield file
        draft.rename(path)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise


def leave(path: Path, data: bytes) -> None:
    """Write a file, whole or not at all."""
    with whole(path) as file:
        file.write(data)


def no_room(
    folder: Path, error: OSError, kept: str = "What was written before is kept there"
) -> Unavailable:
    """The error of a run whose record cannot be written: how full the disk is that refuses, or what
    else there is no more of.
    """
    if error.errno not in FULL:
        return shortage(error)
    disk = next(place for place in (folder, *folder.parents) if place.exists())
    total, _, free = (size >> 20 for size in shutil.disk_usage(disk))
    why = f"{error.strerror} ({folder}: {free:,} of {total:,} MiB free)"
    cure = "free some space, or set LOCKSTEP_HOME to a directory on another disk."
    return Unavailable("the record of the run", why, f"{kept}; {cure}")


@contextlib.contextmanager
def filling(folder: Path) -> Iterator[None]:
    """The block fills the new folder of a run. Raises `Unavailable` if the disk refuses, and leaves
    no folder then.
    """
    try:
        yield
    except OSError as error:
        refused = no_room(folder, error, "No process was started")
        shutil.rmtree(folder, ignore_errors=True)
        raise refused from None


# --- reading ---


@contextlib.contextmanager
def opened(path: Path) -> Iterator[BinaryIO]:
    """A file, opened for the block. Whatever goes wrong in that becomes `Damaged`."""

    def at_once(path: str, flags: int) -> int:
        return os.open(path, flags | os.O_NONBLOCK)  # else opening a FIFO waits for a writer

    try:
        with open(path, "rb", opener=at_once) as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise Damaged(path, "it is no regular file")
            yield file
    except Damaged:
        raise
    except Exception as error:  # numpy and zipfile have many for a file that is cut off
        raise Damaged(path, one_line(error)) from None


def one_line(error: Exception) -> str:
    """An error in one line; of pydantic's many complaints, the first."""
    if isinstance(error, ValidationError):
        first = error.errors(include_url=False)[0]
        return ": ".join(map(str, (*first["loc"], first["msg"])))
    words = error.strerror if isinstance(error, OSError) else str(error).partition("\n")[0]
    return words or type(error).__name__


def read(path: Path, parse: Callable[[bytes], T], start: int = 0) -> T:
    """The parsed content of a file from the byte `start` on."""
    with opened(path) as file:
        file.seek(start)
        return parse(file.read(LARGEST))


def read_lines(path: Path, start: int = 0) -> bytes:
    """The next complete lines of a file; a last one that is cut off is left out."""
    return read(path, lambda data: data[: data.rfind(b"\n") + 1], start)


MOST_LOG = 16 << 20  # bytes of a log; one that is longer is cut
KEPT_LOG = 1 << 20  # bytes that stay of its beginning, and of its end
PERIOD = 0.25  # seconds between two checks


class Logs:
    """The output of the tasks of a run, held to a size: one that never stops would fill the disk. A
    log that has grown too long keeps its beginning and its end, and a line tells what was cut.
    """

    def __init__(self, paths: Iterable[Path]) -> None:
        self._cut = dict.fromkeys(paths, 0)  # bytes so far
        self.due = 0.0  # when to check the next time

    def check(self) -> None:
        """Cut the logs that are too long, if it is time to. It costs a microsecond for each log."""
        if time.monotonic() < self.due:
            return
        self.due = time.monotonic() + PERIOD
        for path in self._cut:
            with contextlib.suppress(FileNotFoundError):  # its task has not begun
                if path.stat().st_size > MOST_LOG:
                    self._shorten(path)

    def _shorten(self, path: Path) -> None:
        """The task goes on appending meanwhile: what it prints just now may be lost."""
        with open(path, "rb+", buffering=0, opener=private) as file:
            self._cut[path] += file.seek(-KEPT_LOG, os.SEEK_END) - KEPT_LOG
            end = file.read()
            file.seek(KEPT_LOG)
            gap = f"{self._cut[path]:,} bytes were cut: a log keeps its first and last MiB"
            file.write(f"\n[... {gap} ...]\n".encode() + end)
            file.truncate()
