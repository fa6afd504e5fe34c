"""A learner's own copy of the course. What was delivered last is kept in it, in `.delivered`, so
that a later version is told apart from what the learner wrote, which is never overwritten.
"""

from pathlib import Path

import nbformat

from course_lib.errors import SpecError
from course_lib.record.files import leave
from course_lib.record.rundir import usable

KINDS = {".ipynb", ".md", ".svg", ".png"}
FOLDERS = {"notebooks": {*KINDS, ".py"}, "exercises": KINDS}  # its programs are the judges
DELIVERED = ".delivered"


def deliver(course: Path, copy: Path) -> list[str]:
    """Bring the notebooks of `course`, and what lies beside them, into the folder `copy`; return
    what to tell the learner of files that both have changed since the last time.

    In a notebook that both have changed, cells that the learner wrote or changed stay as they are;
    all others become those of the course. Of any other file the learner's stays. Raises SpecError
    if the folder is the course itself or cannot be written.
    """
    if copy.resolve().is_relative_to(course.resolve()):
        raise SpecError("copy_to", str(copy), "a folder outside of the course's own")
    notes = []
    with usable("copy_to", copy):
        for source in sorted(path for name in FOLDERS for path in (course / name).rglob("*")):
            name = source.relative_to(course)
            kinds = FOLDERS[name.parts[0]]
            if source.suffix in kinds and not any(part.startswith(".") for part in name.parts):
                notes += _deliver(source, copy / name, copy / DELIVERED / name)
    return notes


def _deliver(source: Path, mine: Path, delivered: Path) -> list[str]:
    """Bring one file, and return what to tell the learner of it."""
    new, notes = source.read_bytes(), []
    before = delivered.read_bytes() if delivered.is_file() else None
    for path in (mine, delivered):
        path.parent.mkdir(parents=True, exist_ok=True)
    if not mine.exists():
        leave(mine, new)
    elif new != before:
        own = mine.read_bytes()
        try:
            changed = _merged(new if before is None else before, own, new)
        except Exception:  # no notebook, or one that is damaged: nbformat has no error of its own
            changed = new if own == before else own
        if changed == own:
            notes = [f"{mine}: yours is kept; the course's: {delivered}"]
        elif changed != new:
            kept = mine.with_suffix(".before.ipynb")
            leave(kept, own)
            notes = [f"{mine}: brought up to date around your cells; as it was: {kept.name}"]
        leave(mine, changed)
    leave(delivered, new)
    return notes


def _merged(before: bytes, mine: bytes, new: bytes) -> bytes:
    """The new notebook with the cells that the learner changed or added since the one before; each
    of those that the new one has not comes after the cell that it followed. Outputs do not count.
    """
    old, own, notebook = (
        nbformat.reads(each.decode(), as_version=4) for each in (before, mine, new)
    )
    source = {cell.id: cell.source for cell in old.cells}
    at, changed = -1, False
    for cell in own.cells:
        place = {each.id: i for i, each in enumerate(notebook.cells)}
        at = place.get(cell.id, at)
        if cell.source != source.get(cell.id):
            changed = True
            if cell.id in place:
                notebook.cells[at] = cell
            else:
                at += 1
                notebook.cells.insert(at, cell)
    return nbformat.writes(notebook).encode() if changed else new
