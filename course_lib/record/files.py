"""How the files of a run are written: for this user only, whole or not at all, and with one line
that names the disk if it refuses.
"""

import contextlib
import errno
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from course_lib.errors import Unavailable, shortage

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)  # said when there is no room for a file


def private(path: str | Path, flags: int) -> int:
    """The `opener` of all files of a run: a new one is for this user only, and no link that
    somebody else has laid there is followed.
    """
    return os.open(path, flags | os.O_NOFOLLOW, 0o600)


@contextlib.contextmanager
def whole(path: Path) -> Iterator[BinaryIO]:
    """A file to write to in the block; it appears under its name at the end, or not at all."""
    draft = path.with_suffix(".draft")
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
    """The error of a run whose record cannot be written: which disk refuses, and how full it is; or
    what else there is no more of.
    """
    if error.errno not in FULL:
        return shortage(error)
    disk = next(place for place in (folder, *folder.parents) if place.is_mount())
    total, _, free = (size >> 20 for size in shutil.disk_usage(disk))
    why = f"{error.strerror} ({folder}, on the disk at {disk}: {free:,} of {total:,} MiB free)"
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
