"""`lockstep check` and `lockstep exercises`."""

import json
from pathlib import Path
from typing import Annotated

import typer

from course_lib.commands.shared import Json, show
from course_lib.course.answers import ROOT


def check(
    notebook: Annotated[
        Path, typer.Argument(help="An exercise, such as exercises/04_allreduce_from_scratch.ipynb.")
    ],
    as_json: Json = False,
) -> int:
    """Check the answers in an exercise.

    The exit code is 0 if all passed, 1 if not, 2 if it is no exercise.
    """
    # nbformat takes seconds to import: only where it is needed
    from course_lib.course.grading import grade

    verdicts = grade(notebook)
    passed = sum(map(bool, verdicts))
    if as_json:
        fields = ("task", "state", "text", "hint")
        tasks = [{field: getattr(verdict, field) for field in fields} for verdict in verdicts]
        print(json.dumps({"notebook": str(notebook), "passed": passed, "tasks": tasks}))
    else:
        rows = [[v.task, v.state, "\n".join(filter(None, [v.text, v.hint]))] for v in verdicts]
        show(["task", "", "what was found"], rows, lines=True)  # the texts have lines
        print(f"{passed} of {len(verdicts)} passed")
    return 0 if passed == len(verdicts) else 1


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
