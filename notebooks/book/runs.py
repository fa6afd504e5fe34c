"""Lessons run from top to bottom for the book. What a run has shown is kept until the lesson's code
or the library changes.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import nbformat
from myst_nb.core.read import read_myst_markdown_notebook
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
SECONDS = 180  # for one cell; a lesson takes at most 60
COLORS = re.compile(r"\x1b\[[\d;]*m")  # of a traceback
FAILURES = CellExecutionError, CellTimeoutError, DeadKernelError
SAVE = "import frames; frames.save({!r})"


@dataclass(frozen=True)
class Kept:
    """What a notebook has shown: the outputs of each code cell, and the pages of its widgets."""

    outputs: list[list[dict[str, Any]]]
    widgets: Path


def read(path: Path) -> Any:
    """A notebook, from its file or from Markdown with code cells."""
    if path.suffix == ".md":
        return read_myst_markdown_notebook(path.read_text(encoding="utf-8"))
    return nbformat.read(path, as_version=4)


def codes(book: Any) -> list[Any]:
    return [cell for cell in book.cells if cell.cell_type == "code"]


def run_all(paths: list[Path], folder: Path, jobs: int = 2) -> dict[Path, Kept]:
    """Run what has changed since the last time, `jobs` notebooks at once, and keep what they show
    in `folder`. One that fails runs once more with nothing beside it, as a comparison of times may
    fail on a busy machine. Raises SystemExit with the errors of those that fail twice.
    """
    with ThreadPoolExecutor(jobs) as pool:
        done = dict(zip(paths, pool.map(lambda path: _kept(path, folder), paths), strict=True))
    done |= {path: _kept(path, folder) for path, one in done.items() if isinstance(one, str)}
    if failed := [f"{path.name}: {why}" for path, why in done.items() if isinstance(why, str)]:
        raise SystemExit("\n\n".join(failed))
    return {path: kept for path, kept in done.items() if isinstance(kept, Kept)}


def slug(path: Path) -> str:
    return "-".join(path.relative_to(ROOT).with_suffix("").parts[1:])


def _kept(path: Path, folder: Path) -> Kept | str:
    """What a notebook has shown, now or before; or the error of the cell that failed."""
    book = read(path)
    name, place = slug(path), folder / f"{slug(path)}.{_key(book)}"
    if not (place / "outputs.json").exists():
        for older in folder.glob(f"{name}.*"):
            shutil.rmtree(older)
        began = time.monotonic()
        try:
            _run(book, path, place)
        except FAILURES as failure:
            shutil.rmtree(place)
            print(f"{name} has failed, {time.monotonic() - began:.0f} s", flush=True)
            return COLORS.sub("", str(failure))
        print(f"{name} has run, {time.monotonic() - began:.0f} s", flush=True)
    outputs = json.loads((place / "outputs.json").read_text(encoding="utf-8"))
    return Kept(outputs, place / "widgets")


def _run(book: Any, path: Path, place: Path) -> None:
    (place / "widgets").mkdir(parents=True)
    code = codes(book)
    book.cells = [*code, nbformat.v4.new_code_cell(SAVE.format(str(place / "widgets")))]
    env = os.environ | {
        "PYTHONPATH": os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")]),
        "BOOK_WIDGETS": f"widgets/{slug(path)}",
        "PLOTLY_RENDERER": "plotly_mimetype",
    }
    client = NotebookClient(
        book,
        timeout=SECONDS,
        kernel_name="python3",
        resources={"metadata": {"path": str(path.parent)}},
        extra_arguments=["--InteractiveShellApp.extensions=frames", "--log-level=ERROR"],
    )
    client.execute(env=env)
    outputs = json.dumps([cell.outputs for cell in code])
    (place / "outputs.json").write_text(outputs, encoding="utf-8")


def _key(book: Any) -> str:
    """Another key, another run: of the cells' code, the library, and how widgets are shown."""
    texts = [cell.source for cell in codes(book)]
    return hashlib.sha256(json.dumps([texts, _library()]).encode()).hexdigest()[:12]


@cache
def _library() -> str:
    files = [ROOT / "pyproject.toml", *HERE.glob("*.py"), *HERE.glob("predictions.*")]
    for folder in ("course_lib", "notebooks/strategies", "exercises/checks"):
        files += [p for p in (ROOT / folder).rglob("*.*") if "__pycache__" not in p.parts]
    known = hashlib.sha256()
    for path in sorted({path for path in files if path.is_file()}):
        if path.name not in ("build.py", "conf.py", "pages.py", "playground.py"):
            known.update(path.name.encode() + path.read_bytes())
    return known.hexdigest()
