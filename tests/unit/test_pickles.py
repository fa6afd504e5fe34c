"""How a learner's functions travel: with their globals as they are, and the lines of their file."""

import importlib
import sys
import sysconfig
import threading
from pathlib import Path
from typing import Any

import pytest

from course_lib.record import pickles

TEXT = """
WIDTH, LOCK = 8, None


def width():
    return WIDTH


def locked():
    return LOCK is not None
"""


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A module of a learner's own."""
    (tmp_path / "own_module.py").write_text(TEXT)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield importlib.import_module("own_module")
    sys.modules.pop("own_module")


def elsewhere(data: bytes) -> Any:
    """As in a process that has not imported the module yet."""
    sys.modules.pop("own_module")
    return pickles.loads(data)


def test_a_function_of_a_module_has_the_values_that_were_set_there(own: Any) -> None:
    own.WIDTH = 64
    there = elsewhere(pickles.dumps(own.width))
    assert there() == 64
    assert sys.modules["own_module"].width() == 8  # which was imported as well


def test_with_a_value_that_cannot_be_pickled_it_is_found_by_its_name(own: Any) -> None:
    own.WIDTH, own.LOCK = 64, threading.Lock()
    assert elsewhere(pickles.dumps(own.width))() == 64  # which does not use the lock
    own = importlib.import_module("own_module")
    own.LOCK = threading.Lock()
    assert not elsewhere(pickles.dumps(own.locked))()


def test_code_keeps_the_name_of_its_file(own: Any) -> None:
    code = elsewhere(pickles.dumps(own.width)).__code__
    assert Path(code.co_filename).name == "own_module.py" and code.co_firstlineno == 5


def test_installed_packages_and_ours_are_no_modules_of_a_learners() -> None:
    places = Path(pytest.__file__).parent, sysconfig.get_path("stdlib"), pickles.__file__
    assert [pickles.is_own(Path(place)) for place in places] == [False, False, False]
    assert not pickles.is_own(Path(pickles.__file__).parent)
    assert pickles.is_own(Path(__file__).parent)
