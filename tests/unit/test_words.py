"""The words of the library: docstrings that begin with a verb or a noun, and names that say what
they stand for.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

LIB = Path(__file__).parents[2] / "course_lib"
ROOMS = (
    "__main__.py",
    "activity.py",
    "cards.py",
    "cluster",
    "collectives",
    "commands",
    "course",
    "cures.py",
    "engines",
    "errors.py",
    "exchange",
    "hardware",
    "launch.py",
    "network",
    "notebook",
    "racing",
    "record",
    "reduction",
    "spec",
    "strategies",
    "text.py",
    "widgets",
)
"""The rooms and files that keep the rule so far; a room is added when it does."""
DEFINITIONS = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
CLAUSES = {"How", "What", "Where", "Whether"}
VAGUE = {"again", "birth", "found", "held", "look", "quiet", "said", "told"}
FILES = [path for room in ROOMS for path in sorted((LIB / room).rglob("*.py")) or [LIB / room]]


def names(tree: ast.Module) -> Iterator[tuple[str, int]]:
    """Names with their lines: of functions, classes, parameters, and at the top of the module."""
    for node in ast.walk(tree):
        if isinstance(node, DEFINITIONS):
            yield node.name, node.lineno
        elif isinstance(node, ast.arg):
            yield node.arg, node.lineno
    for statement in tree.body:
        if not isinstance(statement, DEFINITIONS):
            for node in ast.walk(statement):
                if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
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
