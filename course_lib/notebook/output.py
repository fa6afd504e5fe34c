"""Output that would not help a learner is left out: TensorFlow's remarks while it is imported, and
whatever an answer prints for ever while it is checked.
"""

import contextlib
import io
import os
import re
import sys
import tempfile
from collections.abc import Iterator
from importlib.machinery import ModuleSpec, PathFinder
from typing import Any, TextIO

LEVEL = "TF_CPP_MIN_LOG_LEVEL"
REMARK = re.compile(
    rb"WARNING: All log messages before absl|To enable the following instructions"
    rb"|[IW]\d{4} |\d{4}-\d\d-\d\d [\d:.]+: [IW] |.*Unable to register cu"
)
"""How a line begins that says what this machine has not got, such as CUDA."""
MOST = 10_000  # characters that an answer may print


class QuietTensorFlow:
    """Finds TensorFlow for Python's import, and holds its remarks back: some of them come before
    it reads the level that is asked for. Whoever has set the level gets what they asked for.
    """

    @staticmethod
    def find_spec(name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if name != "tensorflow" or LEVEL in os.environ:
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec and spec.loader:
            loader: Any = spec.loader
            loader.exec_module = without_remarks()(loader.exec_module)
        return spec


@contextlib.contextmanager
def without_remarks() -> Iterator[None]:
    """Print what compiled code writes to stderr in this block at its end, without remarks."""
    os.environ.setdefault(LEVEL, "3")
    sys.stderr.flush()
    with tempfile.TemporaryFile() as kept:
        stderr = os.dup(2)
        os.dup2(kept.fileno(), 2)
        try:
            yield
        finally:
            sys.stderr.flush()
            os.dup2(stderr, 2)
            os.close(stderr)
            kept.seek(0)
            for line in kept:
                if not REMARK.match(line):
                    os.write(2, line)


class _Few(io.TextIOBase):
    """Passes on the first characters that are written, and counts all."""

    def __init__(self, out: TextIO) -> None:
        self.out, self.count = out, 0

    def write(self, text: str) -> int:
        self.out.write(text[: max(0, MOST - self.count)])
        self.count += len(text)
        return len(text)


@contextlib.contextmanager
def few_words(name: str) -> Iterator[None]:
    """Cut what the function of that `name` prints in this block after `MOST` characters, and tell
    of it: a notebook would keep all.
    """
    few = _Few(sys.stdout), _Few(sys.stderr)
    try:
        with contextlib.redirect_stdout(few[0]), contextlib.redirect_stderr(few[1]):
            yield
    finally:
        for each in few:
            if each.count > MOST:
                what = f"{name} printed {each.count:,} characters in this check"
                each.out.write(f"\n[... {what}; the first {MOST:,} are shown.]\n")
