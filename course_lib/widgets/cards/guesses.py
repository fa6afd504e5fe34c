"""Locked guesses on disk, in a hidden file beside the notebook. They outlive a second run of their
cell, and the kernel.
"""

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

from IPython import get_ipython

NAME = ".lockstep-guesses.json"
NOTEBOOK = ("__vsc_ipynb_file__", "__session__")  # where VS Code and Jupyter tell a kernel its path


def place() -> Path | None:
    """The file with the guesses of all notebooks of a folder. None if no notebook is open, as in a
    program or a test run: guesses are then not kept.
    """
    shell: Any = get_ipython()
    names = shell.user_ns if shell else {}
    paths = [Path(names[name]).parent for name in NOTEBOOK if names.get(name)]
    return paths[0] / NAME if paths else None


def kept(question: str) -> Any:
    """The guess that was kept for a question, None if there is none.

    Raises OSError or ValueError if the file cannot be read.
    """
    return _read(path).get(question) if (path := place()) else None


def keep(question: str, guess: Any) -> None:
    """Keep the guess for a question; None forgets it. Raises OSError if it cannot be written.

    A damaged file is replaced.
    """
    if not (path := place()):
        return
    guesses: dict[str, Any] = {}
    with suppress(ValueError):
        guesses = _read(path)
    guesses[question] = guess
    text = json.dumps({q: g for q, g in guesses.items() if g is not None}, indent=1)
    path.write_text(text + "\n", encoding="utf-8")


def _read(path: Path) -> dict[str, Any]:
    """Guess by question. Raises OSError or ValueError."""
    try:
        guesses = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    if not isinstance(guesses, dict):
        raise ValueError(f"{path.name} has no questions in it")
    return guesses
