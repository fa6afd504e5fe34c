"""How the files of a run are read. A file may be cut off or damaged, written by another version or
by a learner's code, or be no file at all: `Damaged` names what cannot be read. No reader waits for
a FIFO, or takes more than `LARGEST` at a time.
"""

import contextlib
import json
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

from pydantic import BaseModel, ValidationError

from course_lib.errors import Damaged

LARGEST = 64 << 20  # bytes
M = TypeVar("M", bound=BaseModel)


@contextlib.contextmanager
def opened(path: Path) -> Iterator[BinaryIO]:
    """A file, opened for the block. Whatever goes wrong in that becomes `Damaged`."""
    try:
        with open(path, "rb", opener=_at_once) as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise Damaged(path, "it is no regular file")
            yield file
    except Damaged:
        raise
    except Exception as error:  # numpy and zipfile have many for a file that is cut off
        raise Damaged(path, _line(error)) from None


def _at_once(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)  # else opening a FIFO waits for a writer


def _line(error: Exception) -> str:
    """An error in one line; of pydantic's many complaints, the first."""
    if isinstance(error, ValidationError):
        first = error.errors(include_url=False)[0]
        return ": ".join(map(str, (*first["loc"], first["msg"])))
    words = error.strerror if isinstance(error, OSError) else str(error).partition("\n")[0]
    return words or type(error).__name__


def lines(path: Path, start: int = 0) -> bytes:
    """The next complete lines of a file; a last one that is cut off is left out."""
    with opened(path) as file:
        file.seek(start)
        found = file.read(LARGEST)
    return found[: found.rfind(b"\n") + 1]


def tail(path: Path, size: int) -> bytes:
    """The last bytes of a file, `size` at most."""
    with opened(path) as file:
        file.seek(-min(size, file.seek(0, os.SEEK_END)), os.SEEK_END)
        return file.read(size)


def parsed(path: Path) -> Any:
    """What a file of JSON holds."""
    with opened(path) as file:
        return json.loads(file.read(LARGEST))


def model(path: Path, kind: type[M]) -> M:
    """The model that a file of JSON holds."""
    with opened(path) as file:
        return kind.model_validate_json(file.read(LARGEST))
