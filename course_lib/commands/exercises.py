"""`lockstep check`, `lockstep exercises` and `lockstep lab`: the notebooks of the course."""

import os
import sys
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from course_lib.commands.terminal import Json, dump, progress, say, show
from course_lib.course.answers import ROOT
from course_lib.errors import Unavailable

Notebook = Annotated[
    Path,
    typer.Argument(
        help="An exercise, such as exercises/04_allreduce_from_scratch.ipynb, or a directory with "
        "those of a class."
    ),
]
Csv = Annotated[bool, typer.Option("--csv", help="Print a line of CSV for each task.")]
Solutions = Annotated[Path, typer.Option(help="The directory of the solutions.")]
Out = Annotated[Path, typer.Option(help="The directory of the exercises to write.")]
Nbgrader = Annotated[
    Path | None, typer.Option(help="Instead: make or update a course directory for nbgrader here.")
]
Copy = Annotated[
    Path | None,
    typer.Option(
        help="Work on a copy of the course in this directory. A later version of the course is "
        "brought into it, and what you have written there stays."
    ),
]


def check(notebook: Notebook, as_json: Json = False, as_csv: Csv = False) -> int:
    """Check the answers in an exercise, or in all of a directory.

    The exit code is 0 if all passed, 1 if not, 2 if it is no exercise.
    """
    # nbformat and pandas take long to import: only where they are needed
    import pandas as pd

    from course_lib.course.grading import exercises_in, grade

    paths = exercises_in(notebook) if notebook.is_dir() else [notebook]
    with progress() as shown:
        graded = {path: grade(path) for path in shown.track(paths, description="checking")}
    rows = [
        {"notebook": str(path), "task": v.task, "state": v.state, "text": v.text, "hint": v.hint}
        for path, verdicts in graded.items()
        for v in verdicts
    ]
    if as_csv:
        print(pd.DataFrame(rows).to_csv(index=False), end="")
    elif as_json:
        dump(rows)
    else:
        for path, verdicts in graded.items():
            cells = [[v.task, v.state, f"{v.text}\n{v.hint}".strip()] for v in verdicts]
            show(["task", "", "what was found"], cells, lines=True)
            say(f"{path}: {sum(map(bool, verdicts))} of {len(cells)} passed")
    return 0 if all(all(verdicts) for verdicts in graded.values()) else 1


def exercises(
    solutions: Solutions = ROOT / "solutions",
    out: Out = ROOT / "exercises",
    nbgrader: Nbgrader = None,
) -> None:
    """Make the exercises from the solutions, with the answers taken out."""
    try:
        from course_lib.course.instructors import generate, set_up
    except ModuleNotFoundError:
        cure = "Install it with: pip install nbgrader"
        raise Unavailable("making exercises", "nbgrader is not installed", cure) from None
    for path in set_up(solutions, nbgrader) if nbgrader else generate(solutions, out):
        print(path)


# JupyterLab would ask whether it may fetch news, over the page, and look for a newer version of
# itself: the course stays on this machine. A question is a setting, of which `labconfig/` here has
# another default; a learner's own setting still counts.
NO_UPDATES = "--LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate"
PLACES = ("--notebook-dir", "--ServerApp.root_dir", "--ServerApp.notebook_dir", "--LabApp.default")
FIRST = "/lab/tree/notebooks/00_start_here.ipynb"  # in front of what was open before


def lab(context: typer.Context, copy_to: Copy = None) -> NoReturn:
    """Open the course in JupyterLab; further arguments go to `jupyter lab`."""
    if not (ROOT / "notebooks").is_dir():
        why = "the notebooks are not beside this package"
        raise Unavailable("the course", why, "Clone the repository and use `make lab` there.")
    if copy_to is not None:
        # nbformat takes seconds to import: only where it is needed
        from course_lib.course.copies import deliver

        say(*deliver(ROOT, copy_to), f"Your copy of the course: {copy_to.resolve()}")
    command = [sys.executable, "-m", "jupyterlab", "--LabApp.news_url=None", NO_UPDATES]
    if not any(argument.startswith(PLACES) for argument in context.args):
        root = (copy_to or ROOT).resolve()
        command += [f"--ServerApp.root_dir={root}", f"--LabApp.default_url={FIRST}"]
    if os.geteuid() == 0:  # as in a container; JupyterLab wants it said
        command.append("--allow-root")
    here, given = Path(__file__).parent, os.environ
    settings = filter(None, (str(here), given.get("JUPYTER_CONFIG_PATH")))
    environment = {
        "LOCKSTEP_PYTHONSTARTUP": given.get("PYTHONSTARTUP", ""),  # kept in a lab within a lab
        **given,
        "PYTHONSTARTUP": str(here / "kernel.py"),
        "JUPYTER_CONFIG_PATH": os.pathsep.join(settings),
    }
    os.execve(sys.executable, [*command, *context.args], environment)
