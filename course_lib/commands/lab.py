"""`lockstep lab`."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import NoReturn

import typer

from course_lib.errors import Unavailable

# JupyterLab would ask whether it may fetch news, and look for a newer version of itself: the course
# stays on this machine.
QUIET = (
    "--LabApp.news_url=None",
    "--LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate",
)


def lab(context: typer.Context) -> NoReturn:
    """Open the course in JupyterLab; further arguments go to `jupyter lab`."""
    notebooks = Path(__file__).parents[2] / "notebooks"
    if not notebooks.is_dir():
        raise Unavailable(
            "the course",
            "the notebooks are not beside this package",
            "Clone the repository and use `make lab` there.",
        )
    os.execv(
        sys.executable,
        [
            sys.executable,
            "-m",
            "jupyterlab",
            f"--notebook-dir={notebooks.parent}",
            *QUIET,
            *context.args,
        ],
    )
