"""`lockstep check` and `lockstep exercises`."""

import csv
import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from course_lib.commands.screen import progress, say, show
from course_lib.commands.shared import Json
from course_lib.course.answers import ROOT, Verdict
from course_lib.errors import SpecError, Unavailable

SHOWN = ("task", "state", "text", "hint")


def check(
    notebook: Annotated[
        Path,
        typer.Argument(
            help="An exercise, such as exercises/04_allreduce_from_scratch.ipynb, or a directory "
            "with those of a class."
        ),
    ],
    as_json: Json = False,
    as_csv: Annotated[
        bool, typer.Option("--csv", help="Print one line of CSV for each task of each notebook.")
    ] = False,
) -> int:
    """Check the answers in an exercise, or in all of a directory.

    The exit code is 0 if all passed, 1 if not, 2 if it is no exercise.
    """
    # nbformat takes seconds to import: only where it is needed
    from course_lib.course.grading import exercises_in, grade

    paths = exercises_in(notebook) if notebook.is_dir() else [notebook]
    results: list[dict[str, Any]] = []
    with progress() as shown:
        bar = shown.add_task("checking", total=len(paths), said="")
        for path in paths:
            shown.update(bar, said=path.name)
            try:
                verdicts = grade(path)
            except SpecError as problem:  # of one learner's file: the others are checked
                if path == notebook:
                    raise
                verdicts = [Verdict("", "not yet", str(problem))]
            tasks = [{name: getattr(verdict, name) for name in SHOWN} for verdict in verdicts]
            passed = sum(map(bool, verdicts))
            results.append({"notebook": str(path), "passed": passed, "tasks": tasks})
            shown.advance(bar)
    if as_csv:
        lines = csv.DictWriter(sys.stdout, ("notebook", *SHOWN), lineterminator="\n")
        lines.writeheader()
        lines.writerows({"notebook": r["notebook"]} | task for r in results for task in r["tasks"])
    elif as_json:
        print(json.dumps(results if notebook.is_dir() else results[0]))
    else:
        for result in results:
            tasks = result["tasks"]
            rows = [[t["task"], t["state"], f"{t['text']}\n{t['hint']}".strip()] for t in tasks]
            show(["task", "", "what was found"], rows, lines=True)
            outcome = f"{result['passed']} of {len(tasks)} passed"
            say(f"{result['notebook']}: {outcome}" if notebook.is_dir() else outcome)
    return 0 if all(r["passed"] == len(r["tasks"]) for r in results) else 1


def exercises(
    solutions: Annotated[Path, typer.Option(help="The directory of the solutions.")] = ROOT
    / "solutions",
    out: Annotated[Path, typer.Option(help="The directory of the exercises to write.")] = ROOT
    / "exercises",
    nbgrader: Annotated[
        Path | None,
        typer.Option(help="Instead: make or update a course directory for nbgrader here."),
    ] = None,
) -> None:
    """Make the exercises from the solutions, with the answers taken out."""
    try:
        from course_lib.course.instructors import generate, set_up
    except ModuleNotFoundError:
        cure = "Install it with: pip install nbgrader"
        raise Unavailable("making exercises", "nbgrader is not installed", cure) from None
    for path in set_up(solutions, nbgrader) if nbgrader else generate(solutions, out):
        print(path)
