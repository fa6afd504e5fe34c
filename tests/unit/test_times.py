"""`make test` tries the tests of a few files once more, and says which of them are not steady."""

import sys
from pathlib import Path

import pytest

from tests.times import FEW, main

ROOT = Path(__file__).parents[2]
MAKEFILE = f"""
PYTEST_ARGS ?= .
unit:
	@cd {{folder}} && PYTHONPATH={ROOT} {sys.executable} -m pytest -q -p tests.times \
		-p no:cacheprovider -p no:xdist --rootdir={{folder}} $(PYTEST_ARGS)
"""
# fails at the first try, or always
FAILS = """
from pathlib import Path

def test_once():
    tried = Path(__file__ + ".tried")
    assert tried.exists(), tried.touch()
"""
ALWAYS = "def test_always():\n    assert False\n"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project of its own, in which `make unit` runs its tests."""
    (tmp_path / "Makefile").write_text(MAKEFILE.format(folder=tmp_path))
    (tmp_path / "test_good.py").write_text("def test_good():\n    pass\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_what_passes_alone_is_named_as_not_steady(
    folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (folder / "test_bad.py").write_text(FAILS)
    assert main(["unit"]) == 0
    said = capfd.readouterr().out
    assert "not steady: test_bad.py::test_once" in said and "once more, alone: unit" in said


def test_what_fails_again_has_failed(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (folder / "test_bad.py").write_text(FAILS + ALWAYS)
    assert main(["unit", "never made"]) == 1
    said = capfd.readouterr().out
    assert "not steady" not in said and "once more, alone: unit" in said
    assert "never made" not in said


def test_many_failures_are_not_tried_again(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    for number in range(FEW + 1):
        (folder / f"test_bad_{number}.py").write_text(FAILS)
    assert main(["unit"]) == 1
    assert "once more" not in capfd.readouterr().out


def test_files_that_cannot_be_read_are_not_tried_again(
    folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (folder / "test_bad.py").write_text("import nothing_of_that_name\n")
    assert main(["unit"]) == 1
    assert "once more" not in capfd.readouterr().out
