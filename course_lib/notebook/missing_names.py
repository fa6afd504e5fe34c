"""Which cell defines a name that is missing, as that cell has not run since the kernel started."""

import ast
import json
import os
import sys
from pathlib import Path
from typing import Any


def offer() -> None:
    """Have the running IPython say so below a NameError; without one, nothing."""
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    if shell is not None and _say not in shell.events.callbacks["post_run_cell"]:
        shell.events.register("post_run_cell", _say)


def _say(result: Any) -> None:
    error = result.error_in_exec
    if (
        isinstance(error, NameError)
        and error.name
        and (line := defined_in(error.name, result.info.raw_cell))
    ):
        told = f"{error.name} is defined in the cell with\n\n    {line}\n\nRun that cell first: "
        print(f"{told}it has not run since the kernel started.", file=sys.stderr)


def defined_in(name: str, cell: str) -> str:
    """The line of this notebook, as it was last saved, that defines a name for this cell: the last
    above it, or else the first; "" if none is found.
    """
    try:
        book = json.loads(Path(os.environ["JPY_SESSION_NAME"]).read_text(encoding="utf-8"))
        sources = ["".join(c["source"]) for c in book["cells"] if c["cell_type"] == "code"]
    except (KeyError, TypeError, OSError, ValueError):  # in no notebook, or one not yet saved
        return ""
    here = sources.index(cell) if cell in sources else 0
    for source in [*reversed(sources[:here]), *sources[here:]]:
        try:
            body = ast.parse(source).body
        except SyntaxError:  # as of a cell with a magic
            continue
        for each in body:
            if name in _defined(each):
                return source.splitlines()[each.lineno - 1]
    return ""


def _defined(statement: ast.stmt) -> set[str]:
    """The names that a statement of a cell gives a value."""
    if isinstance(statement, ast.FunctionDef | ast.ClassDef):
        return {statement.name}
    if isinstance(statement, ast.Import | ast.ImportFrom):
        return {alias.asname or alias.name for alias in statement.names}
    stored = (n for n in ast.walk(statement) if isinstance(n, ast.Name))
    return {node.id for node in stored if isinstance(node.ctx, ast.Store)}
