"""A learner's own modules on their way to other machines, where tasks import them as they do here:
each run takes them along as they are now, so that one that was changed is changed there too.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

from course_lib.errors import Unavailable
from course_lib.record.parcels import Parcel
from course_lib.record.pickles import is_own
from course_lib.text import amount

MOST = 32 << 20  # bytes


def carried(sys_path: Sequence[str], cwd: str) -> tuple[list[str], list[Parcel]]:
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
            if (size := size + len(content)) > MOST:
                why = f"the Python files in {path} are more than {amount(MOST)}"
                cure = "Start the notebook in a folder with only those that the run needs."
                raise Unavailable("a learner's own modules on a Ray cluster", why, cure)
    return folders, parcels


def _modules(folder: Path) -> Iterator[Path]:
    """Modules in a folder, and those of packages in it."""
    yield from sorted(folder.glob("*.py"))
    for inner in sorted(folder.glob("*/__init__.py")):
        yield from _modules(inner.parent)
