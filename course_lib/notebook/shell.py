"""Help from the running IPython: between quotes in `start`, `race`, `allreduce` and their like it
completes names of strategies and algorithms and the values that a field of `RunSpec` allows (names
of fields it finds in their signatures); below a NameError it names the cell that defines the name,
as that cell has not run since the kernel started.
"""

import ast
import itertools
import json
import os
import re
import symtable
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

Names = Callable[[str, str], Iterable[str]]
"""The names that a call takes for a field, or, where the field is "", in its place."""
CALL = re.compile(r"\b(start|race|RunSpec|allreduce|compare|stage|AllReduceStage)\(")
QUOTES = re.compile(r"""(?:(\w+)["']?\s*[=:]|[(,[])\s*["'](\w*)$""")
"""Quotes that are open at the end, after a field or in the place of a name."""


def running() -> Any:
    """The running IPython, None without one."""
    return sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None


# --- completion ---


def complete(names: Names) -> None:
    """Have the running IPython complete these names; without one, do nothing."""
    shell = running()
    matchers = shell.Completer.custom_matchers if shell else []
    ours = any(getattr(each, "matcher_identifier", "") == "lockstep" for each in matchers)
    if shell is None or ours:
        return
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
    for source in [*reversed(sources[:here]), *sources[here:]]:
        with suppress(SyntaxError):  # as of a cell with a magic
            for each in ast.parse(source).body:
                symbols = symtable.symtable(ast.unparse(each), "cell", "exec").get_symbols()
                defined = (s.get_name() for s in symbols if s.is_assigned() or s.is_imported())
                if name in defined:
                    return source.splitlines()[each.lineno - 1]
    return ""
