"""Tracebacks as a learner needs them: the lines of their own code whole, and calls inside this
package or a library folded into one line.
"""

import linecache
import sysconfig
import traceback
from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path
from traceback import FrameSummary
from types import TracebackType
from typing import Any

from course_lib.notebook.shell import running
from course_lib.text import count

OURS = Path(__file__).parents[1]
LIBRARIES = [Path(sysconfig.get_path(name)) for name in ("purelib", "platlib")]
PYTHON = Path(sysconfig.get_path("stdlib"))
Cells = Mapping[str, Sequence[str]]
"""The name of a code object's file -> what to call it, and its text."""


def cells() -> dict[str, tuple[str, str]]:
    """The cells of this notebook that have run: their text is in no file that a task could read."""
    shell = running()
    if shell is None:
        return {}
    sources = {}
    for name, entry in list(linecache.cache.items()):
        if len(entry) == 4 and entry[1] is None and (label := shell.compile.format_code_name(name)):
            sources[name] = (" ".join(label), "".join(entry[2]))
    return sources


def in_words(error: BaseException, leave_out: str, cells: Cells) -> str:
    """The traceback of an error in a task, without the frames of the file `leave_out`; "" if there
    is nothing else.
    """
    for name, (label, source) in cells.items():
        entry = len(source), None, source.splitlines(keepends=True), name
        linecache.cache[name] = linecache.cache[label] = entry
    frames = [f for f in traceback.extract_tb(error.__traceback__) if f.filename != leave_out]
    if not frames:
        return ""
    return "".join([*_folded(frames, cells), *traceback.format_exception_only(error)])


def _folded(frames: Sequence[FrameSummary], cells: Cells) -> list[str]:
    lines = []
    grouped = [(who, list(group)) for who, group in groupby(frames, lambda f: owner(f.filename))]
    anybody = any(who == "" for who, _ in grouped)
    for who, group in grouped:
        if who and anybody:
            place = f"{'/'.join(Path(group[-1].filename).parts[-2:])}:{group[-1].lineno}"
            lines.append(f"  ... {count(len(group), 'call')} inside {who} ({place})\n")
            continue
        for f in group:
            label, _ = cells.get(f.filename, (f.filename, ""))
            ends = {name: getattr(f, name) for name in ("end_lineno", "colno", "end_colno")}
            lines += traceback.format_list([FrameSummary(label, f.lineno, f.name, **ends)])
    return lines


def owner(filename: str) -> str:
    """The package that a file belongs to, `Python` for its own; "" for a learner's file or cell."""
    path = Path(filename)
    if path.is_relative_to(OURS):
        return OURS.name
    for place in LIBRARIES:
        if path.is_relative_to(place):
            return path.relative_to(place).parts[0]
    return "Python" if path.is_relative_to(PYTHON) or filename.startswith("<frozen") else ""


class Folded:
    """An error that a notebook shows with the learner's own lines only; %tb shows all."""

    def _render_traceback_(self) -> list[str]:
        """The lines that IPython shows."""
        error: Any = self
        shell, whole = running(), error.__traceback__
        repeated = getattr(error, "_shown", None) == id(whole)
        error._shown = id(whole)
        kept = whole if repeated else _own(whole)
        return list(shell.InteractiveTB.structured_traceback(type(error), error, kept))


def _own(whole: TracebackType | None) -> TracebackType | None:
    """A traceback without calls inside this package, and inside libraries that it calls."""
    frames = []
    inside, tb = False, whole
    while tb:
        who = owner(tb.tb_frame.f_code.co_filename)
        inside = (inside or who == OURS.name) and who != ""
        frames += [] if inside else [tb]
        tb = tb.tb_next
    kept: TracebackType | None = None
    for each in reversed(frames):
        kept = TracebackType(kept, each.tb_frame, each.tb_lasti, each.tb_lineno)
    return kept
