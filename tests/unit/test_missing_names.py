"""A NameError in a notebook names the cell that defines the name, if there is one."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat
import pytest
from IPython.core.interactiveshell import InteractiveShell
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

from course_lib.notebook import shell as ipython

CELLS = [
    "%matplotlib inline",
    "import numpy as np",
    "def ring(p):\n    inner = p",
    "a, b = 1, 2",
    "print(b)",
    "b = 3",
]


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    cells = [new_markdown_cell("ring = 3"), *map(new_code_cell, CELLS)]
    nbformat.write(new_notebook(cells=cells), tmp_path / "book.ipynb")
    monkeypatch.setenv("JPY_SESSION_NAME", str(tmp_path / "book.ipynb"))
    shell = InteractiveShell.instance()
    ipython.explain_missing_names()
    ipython.explain_missing_names()  # says it once all the same
    yield shell
    InteractiveShell.clear_instance()


@pytest.mark.parametrize(
    ("name", "line"), [("ring", "def ring(p):"), ("np", CELLS[1]), ("b", CELLS[3]), ("a", CELLS[3])]
)
def test_the_cell_that_defines_a_missing_name_is_named(
    shell: Any, capsys: pytest.CaptureFixture[str], name: str, line: str
) -> None:
    shell.run_cell(f"print({name})")
    said = capsys.readouterr().err
    assert said.count("Run that cell first") == 1 and f"\n    {line}\n" in said


@pytest.mark.parametrize("code", ["print(inner)", "print(nowhere)", "1 / 0", "x = 1"])
def test_of_all_else_nothing_is_said(
    shell: Any, capsys: pytest.CaptureFixture[str], code: str
) -> None:
    shell.run_cell(code)
    assert "Run that cell" not in capsys.readouterr().err


def test_without_a_saved_notebook_nothing_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JPY_SESSION_NAME", "not/there.ipynb")
    assert ipython.defined_in("ring", "ring(3)") == ""
    monkeypatch.delenv("JPY_SESSION_NAME")
    assert ipython.defined_in("ring", "ring(3)") == ""
