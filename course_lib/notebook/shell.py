"""Help from the running IPython: completion between quotes in `start`, `race`, `allreduce` and
their like, of names of strategies and algorithms and of the values that a field of `RunSpec` allows
(names of fields it finds in their signatures); below a NameError the cell that defines the name, as
that cell has not run since the kernel started; and tracebacks in which the lines of a learner's own
code are whole, and calls inside this package or a library are one line.
"""

import itertools
import json
import linecache
import os
import re
import sys
import sysconfig
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from traceback import FrameSummary
from types import TracebackType
from typing import Any

from course_lib.text import count

Names = Callable[[str, str], Iterable[str]]
"""The names that a call takes for a field, or, where the field is "", in its place."""
CALL = re.compile(r"\b(start|race|RunSpec|allreduce|compare|stage|AllReduceStage)\(")
QUOTES = re.compile(r"""(?:(\w+)["']?\s*[=:]|[(,[])\s*["'](\w*)$""")
"""Quotes that are open at the end, after a field or in the place of a name."""


def running() -> Any:
    """The running IPython, None without one."""
    return sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None


def in_script() -> bool:
    """Return True if nobody can type: a program runs."""
    return running() is None and not hasattr(sys, "ps1")


# --- completion ---


def complete(names: Names) -> None:
    """Have the running IPython complete these names; without one, do nothing."""
    shell = running()
    matchers = shell.Completer.custom_matchers if shell else []
    ours = any(getattr(each, "matcher_identifier", "") == "lockstep" for each in matchers)
    if shell and not ours:
        from IPython.core.completer import SimpleCompletion, context_matcher

        @context_matcher(identifier="lockstep")
        def lockstep(context: Any) -> Any:
            lines = context.full_text.split("\n")[: context.cursor_line]
            fitting = values("\n".join([*lines, context.text_until_cursor]), names)
            offered = [SimpleCompletion(text=value, type="value") for value in fitting]
            return {"completions": offered, "suppress": bool(fitting)}

        matchers.append(lockstep)


def values(code: str, names: Names) -> list[str]:
    """The values that fit at the end of this code: where quotes are open in a call of ours."""
    *_, call, inside = ["", *CALL.split(code)]
    depths = itertools.accumulate((c == "(") - (c == ")") for c in inside)
    begun = QUOTES.search(code)
    if not begun or not call or min(depths, default=0) < 0:  # below 0: the call is closed
        return []
    return [name for name in names(call, begun[1] or "") if name.startswith(begun[2])]


# --- missing names ---


def explain_missing_names() -> None:
    """Have the running IPython name the cell below a NameError; without one, do nothing."""
    shell = running()
    if shell is not None and _explain not in shell.events.callbacks["post_run_cell"]:
        shell.events.register("post_run_cell", _explain)


def _explain(result: Any) -> None:
    error = result.error_in_exec
    name = error.name if isinstance(error, NameError) else ""
    if name and (line := defined_in(name, result.info.raw_cell)):
        where = f"{name} is defined in the cell with\n\n    {line}\n\n"
        cure = "Run that cell first: it has not run since the kernel started."
        print(where + cure, file=sys.stderr)


def defined_in(name: str, cell: str) -> str:
    """The line of this notebook, as it was last saved, that defines a name for this cell: the last
    above it, or else the first; "" if there is none.
    """
    try:
        book = json.loads(Path(os.environ["JPY_SESSION_NAME"]).read_text(encoding="utf-8"))
        sources = ["".join(c["source"]) for c in book["cells"] if c["cell_type"] == "code"]
    except (KeyError, TypeError, OSError, ValueError):  # in no notebook, or one not yet saved
        return ""
    here = sources.index(cell) if cell in sources else 0
    left = rf"(\w[\w, ]*, *)?{name}\b[^=(.\[]*=[^=]"
    defines = rf"(def|class) {name}\b|(import|from) .*\b{name}\b|{left}"
    above_first = [*reversed(sources[:here]), *sources[here:]]
    lines = (line for source in above_first for line in source.splitlines())
    return next((line for line in lines if re.match(defines, line)), "")


# --- tracebacks ---

OURS = Path(__file__).parents[1]
LIBRARIES, PYTHON = (Path(sysconfig.get_path(name)) for name in ("purelib", "stdlib"))
Cells = Mapping[str, Sequence[str]]
"""The name of a code object's file -> what to call it, and its text."""


def cells() -> dict[str, tuple[str, str]]:
    """The cells of this notebook that have run: their text is in no file that a task could read."""
    sources = {}
    for name, entry in list(linecache.cache.items()) if running() else ():
        label = running().compile.format_code_name(name)
        if label and len(entry) == 4 and entry[1] is None:
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
    anybody = not all(owner(f.filename) for f in frames)
    for who, group in itertools.groupby(frames, lambda f: owner(f.filename)):
        *_, last = inside = list(group)
        if who and anybody:
            place = f"{'/'.join(Path(last.filename).parts[-2:])}:{last.lineno}"
            lines.append(f"  ... {count(len(inside), 'call')} inside {who} ({place})\n")
            continue
        for f in inside:
            label, _ = cells.get(f.filename, (f.filename, ""))
            ends = {name: getattr(f, name) for name in ("end_lineno", "colno", "end_colno")}
            lines += traceback.format_list([FrameSummary(label, f.lineno, f.name, **ends)])
    return lines


def owner(filename: str) -> str:
    """The package that a file belongs to, `Python` for its own; "" for a learner's file or cell."""
    path = Path(filename)
    if path.is_relative_to(OURS):
        return OURS.name
    if path.is_relative_to(LIBRARIES):
        return path.relative_to(LIBRARIES).parts[0]
    return "Python" if path.is_relative_to(PYTHON) or filename.startswith("<frozen") else ""


class Folded:
    """An error that a notebook shows with the learner's own lines only; %tb shows all."""

    def _render_traceback_(self) -> list[str]:
        """The lines that IPython shows."""
        error: Any = self
        whole, show = error.__traceback__, running().InteractiveTB.structured_traceback
        repeated = getattr(error, "_shown", None) == id(whole)
        error._shown = id(whole)
        if repeated:
            return list(show(type(error), error, whole))
        return list(show(type(error), error, _own(whole), tb_offset=0))


def _own(tb: TracebackType | None) -> TracebackType | None:
    """A traceback with the frames of a learner's own code alone."""
    if tb is None:
        return None
    rest = _own(tb.tb_next)
    if owner(tb.tb_frame.f_code.co_filename):
        return rest
    return TracebackType(rest, tb.tb_frame, tb.tb_lasti, tb.tb_lineno)
