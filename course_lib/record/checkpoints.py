"""Checkpoints: what a run can go on from when its tasks are gone. In its directory, `checkpoints/`:

    step-000040/worker-0/            a part: whatever files the framework writes
    step-000040/worker-0/manifest.json
    step-000040.1/worker-0/ ...      of the same step, by tasks that had been started again once

It holds what the next step depends on: the parameters, also those that are not trained; buffers,
such as the statistics of batch normalisation, of each replica; the optimizer's state; the loss
scale; how many steps, updates and examples there were. Nothing else is needed, because the order of
the examples and the random numbers of a step follow from the run's seed and the number of the step.
So a run that goes on from a checkpoint ends with the same bits as one that was never disturbed.

A crash may come at any byte. Therefore a task first writes all its files, then the manifest: with
the size and the SHA-256 of each of them, under another name, which it changes once all is on the
disk. A part without a manifest does not exist. A manifest names all parts of its checkpoint. As
long as one is missing, or a file is not as its manifest says, the checkpoint cannot be used, and
the one before it is. The last two that are complete are kept.

Where all tasks hold the same, or write their shards together, the part of one task is all. Where
each task writes on its own, each leaves a part, and no task waits for another.

Read a checkpoint only if you trust whoever wrote it: PyTorch's has a pickled index.
"""

import hashlib
import math
import os
import re
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from course_lib.errors import Damaged
from course_lib.record.files import opened, read
from course_lib.record.rundir import RunDir, folder_name

KEPT = 2
MANIFEST = "manifest.json"


class Manifest(BaseModel, frozen=True):
    """The description of a part of a checkpoint.

    `numbers`: how many `samples` and `updates` there were, the loss scale, and whatever else the
    strategy counts. `facts`: of the run, and of its model and data; who goes on from here must have
    the same. `parts`: the folders of all parts. `files`: name -> size in bytes, and SHA-256. `at`:
    Unix time.
    """

    step: int
    numbers: dict[str, int | float]
    facts: dict[str, Any]
    parts: tuple[str, ...]
    files: dict[str, tuple[int, str]]
    at: float


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint in the directory `path`, after so many `steps`; its `parts` by folder; and the
    `problem` that it cannot be used for, "" if there is none.
    """

    path: Path
    steps: int
    parts: Mapping[str, Manifest]
    problem: str

    @property
    def bytes(self) -> int:
        return sum(size for part in self.parts.values() for size, _ in part.files.values())

    @property
    def at(self) -> float:
        """When it was complete, in Unix time; 0 if nothing of it is."""
        return max((part.at for part in self.parts.values()), default=0.0)

    def part(self, task: str) -> tuple[Path, Manifest]:
        """The part of a task, in its folder; that of the first one if it has none of its own."""
        name = folder_name(task) if folder_name(task) in self.parts else min(self.parts)
        return self.path / name, self.parts[name]

    def __repr__(self) -> str:
        when = time.strftime("%H:%M:%S", time.localtime(self.at)) if self.at else "never"
        state = self.problem or "complete"
        return f"step {self.steps}: {state}, {self.bytes:,} bytes, written at {when}"


def part_of(files: RunDir, task: str, steps: int, attempt: int = 0) -> Path:
    """The folder into which a task writes its part of the checkpoint after so many `steps`."""
    number = f"{steps:06}.{attempt}" if attempt else f"{steps:06}"
    path = files.checkpoints / f"step-{number}" / folder_name(task)
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    return path


def seal(
    part: Path,
    step: int,
    numbers: Mapping[str, float],
    facts: Mapping[str, Any],
    tasks: Sequence[str],
) -> None:
    """Leave the manifest of a part whose files are all written: from now on the part exists.

    `numbers`: one that is NaN or infinite is not kept. `tasks`: those whose parts make up the
    checkpoint. Checkpoints that are not needed any more are removed.
    """
    written = sorted(path for path in part.rglob("*") if path.is_file())
    manifest = Manifest(
        step=step,
        numbers={name: value for name, value in numbers.items() if math.isfinite(value)},
        facts=dict(facts),
        parts=tuple(map(folder_name, tasks)),
        files={str(path.relative_to(part)): _to_disk(path) for path in written},
        at=time.time(),
    )
    draft = part.with_suffix(".draft")
    draft.write_text(manifest.model_dump_json(indent=1))
    _to_disk(draft)
    draft.rename(part / MANIFEST)
    _make_room(part.parent.parent)


def _to_disk(path: Path) -> tuple[int, str]:
    """The stamp of a file, once the disk has it."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
        return _stamp(file)


def _stamp(file: Any) -> tuple[int, str]:
    digest = hashlib.file_digest(file, "sha256").hexdigest()
    return file.tell(), digest


def of_run(files: RunDir) -> list[Checkpoint]:
    """All checkpoints of a run, oldest first, also those that cannot be used."""
    return [_read(path) for path in _paths(files.checkpoints)]


def latest(files: RunDir) -> Checkpoint | None:
    """The last checkpoint of a run that can be used."""
    newest_first = map(_read, reversed(_paths(files.checkpoints)))
    return next((each for each in newest_first if not each.problem), None)


def _paths(folder: Path) -> list[Path]:
    return sorted((p for p in folder.glob("step-*") if p.is_dir() and _numbers(p)), key=_numbers)


def _numbers(path: Path) -> list[int]:
    """The step of a checkpoint, and the attempt if its tasks had been started again."""
    return [int(number) for number in re.findall(r"\d+", path.name)]


def _read(path: Path, compare: bool = True) -> Checkpoint:
    """The checkpoint in a directory; to `compare` all its files with their stamps takes long."""
    parts: dict[str, Manifest] = {}
    try:
        for file in sorted(path.glob(f"*/{MANIFEST}")):
            parts[file.parent.name] = read(file, Manifest.model_validate_json)
        missing = {name for part in parts.values() for name in part.parts} - parts.keys()
        who = ", ".join(sorted(missing)) or "it"
        problem = f"it was not finished: {who} has no {MANIFEST}" if missing or not parts else ""
        stamps = [
            (path / n / file, s) for n, part in parts.items() for file, s in part.files.items()
        ]
        for written, stamp in stamps if compare else ():
            with opened(written) as content:
                if _stamp(content) != stamp:
                    raise Damaged(written, "it is not as it was written")
    except Damaged as error:
        problem = f"{Path(error.path).relative_to(path)} is damaged: {error.why}"
    return Checkpoint(path, _numbers(path)[0], parts, problem)


def _make_room(folder: Path) -> None:
    """Remove what is older than the last complete checkpoints of a run."""
    paths = _paths(folder)
    kept = [path for path in paths if not _read(path, compare=False).problem][-KEPT:]
    for path in paths[: paths.index(kept[0])] if len(kept) == KEPT else ():
        for manifest in path.glob(f"*/{MANIFEST}"):
            manifest.unlink(missing_ok=True)  # first, so that it never looks damaged
        shutil.rmtree(path, ignore_errors=True)
