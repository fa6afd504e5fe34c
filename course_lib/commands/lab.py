"""`lockstep lab`."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import NoReturn

import typer

from course_lib.errors import Unavailable


def lab(context: typer.Context) -> NoReturn:
    """Open the course in JupyterLab; further arguments go to `jupyter lab`."""
    notebooks = Path(__file__).parents[2] / "notebooks"
    if not notebooks.is_dir():
        raise Unavailable("the course", "the notebooks are not beside this package", "Clone the repository and use `make lab` there.")
    os.execv(sys.executable, [sys.executable, "-m", "jupyterlab", f"--notebook-dir={notebooks.parent}", *context.args])
