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


def test_each_lesson_leads_to_the_next_one_and_to_what_is_solved() -> None:
    numbered = [path for path in LESSONS if path.name[0].isdigit()]
    for path, following in zip(numbered, [*numbered[1:], numbered[0]], strict=True):
        text = "\n".join(text_of(path))
        assert f"]({following.name})" in text, path.name
        assert "shows what you have solved" in text, path.name


def text_of(path: Path) -> list[str]:
    cells = json.loads(path.read_text())["cells"]
    return ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown"]
