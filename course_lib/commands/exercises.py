"""`lockstep exercises`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from course_lib.course.sets import ROOT


def exercises(
    solutions: Annotated[Path, typer.Option(help="The directory of the solutions.")] = ROOT
    / "solutions",
    out: Annotated[Path, typer.Option(help="The directory of the exercises to write.")] = ROOT
    / "exercises",
) -> None:
    """Make the exercises from the solutions, with the answers taken out."""
    # nbformat takes seconds to import: only where it is needed
    from course_lib.course.generate import generate

    for path in generate(solutions, out):
        print(path)
