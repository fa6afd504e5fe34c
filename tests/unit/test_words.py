"""The words of the library: docstrings that begin with a verb or a noun, and names that say what
they stand for.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

LIB = Path(__file__).parents[2] / "course_lib"
DEFINITIONS = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
CLAUSES = {"How", "What", "Where", "Whether"}
VAGUE = {"again", "birth", "found", "held", "look", "quiet", "said", "told"}
FILES = sorted(LIB.rglob("*.py"))


def names(tree: ast.Module) -> Iterator[tuple[str, int]]:
    """Names with their lines: of functions, classes, parameters, fields and variables."""
    for node in ast.walk(tree):
        if isinstance(node, DEFINITIONS):
            yield node.name, node.lineno
        elif isinstance(node, ast.arg):
            yield node.arg, node.lineno
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id, node.lineno


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(LIB)))
def test_a_docstring_begins_with_a_verb_or_a_noun(path: Path) -> None:
    nodes = ast.walk(ast.parse(path.read_text()))
    documented = (node for node in nodes if isinstance(node, ast.Module | DEFINITIONS))
    begins = [(ast.get_docstring(node) or "").partition("\n")[0] for node in documented]
    assert not [line for line in begins if line.split(" ")[0] in CLAUSES]


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(LIB)))
def test_a_name_says_what_it_stands_for(path: Path) -> None:
    vague = [
        f"{name} in line {line}"
        for name, line in names(ast.parse(path.read_text()))
        if name.lower().strip("_") in VAGUE
    ]
    assert not vague
