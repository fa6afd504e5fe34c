"""Where runs are kept, and how old ones make room for new ones."""

import contextlib
import os
import re
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from course_lib.errors import LockstepError, SpecError
from course_lib.record.rundir import YOUNG, RunDir
from course_lib.spec.run_spec import RunSpec

KEEP = 50  # runs kept in the default place; older ones make room
_OURS = re.compile(r"\d{8}-\d{6}-\w+-\w+")  # the names that we give: time, strategy, and at random
_GOING = ".going"  # what is added to the name of one that is being removed


def create(spec: RunSpec) -> RunDir:
    """Make an empty directory for a run, for this user only: the one that the spec names, or a new
    one among the `runs()`.

    Raises `SpecError` if that cannot be written, is not empty, or belongs to somebody else.
    """
    if spec.run_dir is None:
        with usable("LOCKSTEP_HOME", _named()):
            _make_room(runs(), _OURS, KEEP)
            prefix = f"{time.strftime('%Y%m%d-%H%M%S')}-{spec.strategy}-"
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
    """Where runs are kept. What is not there is made so that only this user can read it.

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
    named = sorted(p for p in folder.iterdir() if ours.fullmatch(p.name.removesuffix(_GOING)))
    for path in named[: max(0, len(named) - keep)]:
        with contextlib.suppress(OSError, ValueError, LockstepError):  # what cannot be read stays
            if path.suffix != _GOING:
                if not _can_go(path):
                    continue
                # of several processes one can do this; for the others the run is no longer there
                path = path.rename(path.with_name(path.name + _GOING))
            shutil.rmtree(path, ignore_errors=True)


def _can_go(path: Path) -> bool:
    """Whether it is a run of ours that is over. There may be thousands, of which most are young."""
    found = path.lstat()
    if not stat.S_ISDIR(found.st_mode) or time.time() - found.st_mtime < YOUNG:
        return False
    ours = (path / "spec.json").is_file() and (path / "run.json").is_file()
    return ours and not RunDir(path).goes_on()
