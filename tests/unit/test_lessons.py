"""Lessons as a learner reads them: few imports, and checks apart from the program."""

import ast
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
LESSONS = sorted((ROOT / "notebooks").glob("*.ipynb"))
SOLUTIONS = sorted((ROOT / "solutions").glob("[0-9]*.ipynb"))
PUBLIC = ("course_lib", "course_lib.widgets")


def code_cells(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields source and metadata of each code cell."""
    for cell in json.loads(path.read_text())["cells"]:
        if cell["cell_type"] == "code":
            yield "".join(cell["source"]), cell["metadata"]


def name(path: Path) -> str:
    return f"{path.parent.name}/{path.stem}"


@pytest.mark.parametrize("path", [*LESSONS, *SOLUTIONS], ids=name)
def test_assertions_stand_in_cells_of_their_own_which_are_collapsed(path: Path) -> None:
    for source, metadata in code_cells(path):
        if "BEGIN HIDDEN TESTS" in source:
            continue
        has_assertion = any(isinstance(node, ast.Assert) for node in ast.walk(ast.parse(source)))
        is_check = "check" in metadata.get("tags", ())
        assert has_assertion == is_check, source
        if is_check:
            assert metadata["jupyter"]["source_hidden"], source
            assert "reveal" not in source, "what a learner sees is no check"


@pytest.mark.parametrize("path", LESSONS, ids=name)
def test_a_lesson_imports_the_library_in_two_lines(path: Path) -> None:
    sources = (source for source, _ in code_cells(path))
    nodes = [node for source in sources for node in ast.walk(ast.parse(source))]
    modules = [str(node.module) for node in nodes if isinstance(node, ast.ImportFrom)]
    ours = [module for module in modules if module.startswith("course_lib")]
    assert {*ours} <= {*PUBLIC}
    assert len(ours) == len({*ours}), "one line from each"
