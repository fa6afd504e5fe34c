"""The record on its way between machines: each node writes its own part, and what is new in it is
brought to the driver while the run goes on. What tasks leave for each other to find, in `meetings/`
and `line/`, goes the other way too, and so does what became of all tasks.

A learner's own modules travel as well, since tasks import them as they do here: each run takes them
along as they are now, so that one that was changed is changed there too.
"""

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from course_lib.errors import Unavailable
from course_lib.record.files import leave, private
from course_lib.record.pickles import is_own
from course_lib.record.rundir import RunDir, folder_name
from course_lib.text import amount

GROWING = (".jsonl", ".log")  # files that are only added to: the new part is brought
MOST = 8 << 20  # bytes of one file that are brought at a time
MOST_CODE = 32 << 20  # bytes of a learner's own modules
NOTICES = ("meetings", "line")


class Parcel(NamedTuple):
    """The `content` of a file of the record, from byte `at` on; None: the whole of it."""

    path: str
    at: int | None
    content: bytes


class Parcels:
    """Finds new parts in the record of these tasks, and what they leave for each other; with no
    tasks, only the latter.
    """

    def __init__(self, files: RunDir, tasks: Iterable[str] = ()) -> None:
        self._root = files.path
        folders = [f"tasks/{folder_name(task)}" for task in tasks]
        self._places = [*(folders or ["lifecycle.jsonl"]), *NOTICES]
        self._sent: dict[str, int] = {}  # of files that grow: bytes
        self._before: dict[str, int] = {}  # bytes that were there when the first part came
        self._seen: dict[str, tuple[int, int, int]] = {}  # of others: which they are

    def new(self) -> list[Parcel]:
        """Return what has not been brought yet."""
        parcels = list[Parcel]()
        for place in self._places:
            at = self._root / place
            for path in [at] if at.is_file() else sorted(at.rglob("*")):
                inner = path.relative_to(self._root)
                if "tmp" in inner.parts[2:3] or path.name.startswith("."):
                    continue
                with contextlib.suppress(FileNotFoundError):  # gone meanwhile
                    parcels += self._parcels_of(path, str(inner))
        return parcels

    def keep(self, parcels: Iterable[Parcel]) -> None:
        """Lay parcels from elsewhere into the record, after what another node has left there; they
        are not brought back.
        """
        for path, at, content in parcels:
            file = self._root / path
            file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            if at is None:
                leave(file, content)
                self._seen[path] = _which(file)
                continue
            with open(file, "ab", opener=private) as log:
                at += self._before.setdefault(path, log.tell())
                log.truncate(at)  # a parcel may come again
                log.write(content)

    def _parcels_of(self, path: Path, inner: str) -> list[Parcel]:
        if not path.is_file() or path.is_symlink():
            return []
        if path.suffix in GROWING:
            at, size = self._sent.get(inner, 0), path.stat().st_size
            if size <= at:
                return []
            with path.open("rb") as file:
                file.seek(at)
                content = file.read(MOST)
            if path.suffix == ".jsonl":  # whole lines only
                content = content[: content.rfind(b"\n") + 1]
            self._sent[inner] = at + len(content)
            return [Parcel(inner, at, content)] if content else []
        which = _which(path)
        if self._seen.get(inner) == which:
            return []
        self._seen[inner] = which
        return [Parcel(inner, None, path.read_bytes())]


def _which(path: Path) -> tuple[int, int, int]:
    status = path.stat()
    return status.st_ino, status.st_mtime_ns, status.st_size


def own_code(sys_path: Sequence[str], cwd: str) -> tuple[list[str], list[Parcel]]:
    """The folders of a learner's own among `sys_path`, as they are called in the record, and the
    modules and packages in them. Raises `Unavailable` if they are too large.
    """
    paths = dict.fromkeys(Path(cwd, entry).resolve() for entry in sys_path)
    folders, parcels, size = list[str](), list[Parcel](), 0
    for path in filter(is_own, paths):
        name = f"code/{len(folders)}"
        folders.append(name)
        for file in _modules(path):
            content = file.read_bytes()
            parcels.append(Parcel(f"{name}/{file.relative_to(path)}", None, content))
            if (size := size + len(content)) > MOST_CODE:
                why = f"the Python files in {path} are more than {amount(MOST_CODE)}"
                cure = "Start the notebook in a folder with only those that the run needs."
                raise Unavailable("a learner's own modules on a Ray cluster", why, cure)
    return folders, parcels


def _modules(folder: Path) -> Iterator[Path]:
    """Modules in a folder, and those of packages in it."""
    yield from sorted(folder.glob("*.py"))
    for inner in sorted(folder.glob("*/__init__.py")):
        yield from _modules(inner.parent)
