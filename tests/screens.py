"""Words that learners read, beside what they were when somebody last looked: `unit/screens/`. After
a change that is meant, `make screens` writes them anew; look at the difference.
"""

import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from course_lib.errors import SpecError

SCREENS = Path(__file__).parent / "unit" / "screens"
MARK = "=== "  # before the key of a block


def as_last_read(screen: str, text: str) -> None:
    """Check that a screen is as its file says."""
    file = SCREENS / f"{screen}.txt"
    if os.environ.get("LOCKSTEP_SCREENS") == "write":
        file.parent.mkdir(exist_ok=True)
        file.write_text(text, encoding="utf-8")
    assert text == (file.read_text(encoding="utf-8") if file.exists() else "")


def says(screen: str, key: object, text: object) -> None:
    """Check that a text is as the block `key` of a screen says; a screen has the texts of one file
    of tests.
    """
    file, name = SCREENS / f"{screen}.txt", " ".join(f"{key}".split())[:90]
    lines = "\n".join(line.rstrip() for line in f"{text}".strip().splitlines())
    every = blocks(screen)
    if os.environ.get("LOCKSTEP_SCREENS") == "write":
        every[name] = lines
        each = (f"{MARK}{name}\n{block}\n" for name, block in every.items())
        file.write_text("\n".join(each), encoding="utf-8")
    assert lines == every.get(name, "")


def blocks(screen: str) -> dict[str, str]:
    """The blocks of a screen, by their keys."""
    file = SCREENS / f"{screen}.txt"
    text = file.read_text(encoding="utf-8") if file.exists() else ""
    parts = re.split(rf"^{MARK}(.*)\n", text, flags=re.M)[1:]
    return {key: block.strip("\n") for key, block in zip(parts[::2], parts[1::2], strict=True)}


def refusals(*calls: Callable[[], object], of: type[Exception] = SpecError) -> str:
    """The refusals of calls, each in its line: field, value and what is allowed."""
    lines: list[str] = []
    for call in calls:
        with pytest.raises(of) as caught:
            call()
        lines += f"{caught.value}".splitlines()
        assert lines[-1] == f"{caught.value}", "a refusal is one line"
    return "\n".join(lines)


def masked(text: object) -> str:
    """A text without the numbers and folders that differ each time."""
    return re.sub(r"\d+(\.\d+)?(e[-+]\d+)?", "#", re.sub(r'File "[^"]*/', 'File "', f"{text}"))
