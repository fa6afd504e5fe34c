"""The notebooks that an instructor makes from the solutions: the exercises, and the course under
nbgrader, with points from judges that never run a learner's code. The markers in a solution are
nbgrader's, and so is what takes its answers out; see notebooks/reference/grading.md.

nbgrader reads the configuration that `set_up` writes.
"""

import re
from contextlib import suppress
from pathlib import Path
from typing import Any

import nbformat
from nbformat.v4 import new_output
from nbgrader import preprocessors
from nbgrader.converters import Autograde
from nbgrader.utils import is_grade

from course_lib.course.answers import sets
from course_lib.course.grading import exercise_of, grade, opened
from course_lib.errors import SpecError
from course_lib.record.rundir import usable

STUB = 'raise NotImplementedError("your turn")'  # in place of an answer; checks call it "to do"
STEPS = (
    preprocessors.ClearSolutions(code_stub={"python": STUB}, enforce_metadata=False),
    preprocessors.ClearHiddenTests(enforce_metadata=False),
    preprocessors.ClearOutput(),
    preprocessors.LockCells(),
)
"""The steps from a cell of a solution to that of its exercise."""
KIND = {"cell_type": "code", "schema_version": 3, "task": False}
CONFIG = """from course_lib.course.instructors import configure

configure(get_config())
"""
_MARKER = re.compile("### (BEGIN|END) (SOLUTION|HIDDEN TESTS)")
_LINE = re.compile(f" *{_MARKER.pattern}\\n?")
_CHECK = re.compile(r"""\bcheck\(["'](\w+)["']""")


# --- exercises from solutions ---


def generate(solutions: Path, exercises: Path) -> list[Path]:
    """Write the exercise of each notebook in `solutions`, and return the paths written. The
    solutions get their metadata for nbgrader, and those that name a module their answers as one.

    Raises SpecError if there is no notebook, or its markers do not match.
    """
    paths = _notebooks(solutions)
    with usable("out", exercises):
        for path in paths:
            path.write_text(solution_text(path), encoding="utf-8")
            (exercises / path.name).write_text(exercise_text(path), encoding="utf-8")
            if module := module_of(path):
                path.with_name(module).write_text(module_text(path), encoding="utf-8")
    return [exercises / path.name for path in paths]


def _notebooks(solutions: Path) -> list[Path]:
    """The notebooks in a folder. Raises SpecError if there is none."""
    with suppress(OSError):  # of a name that is too long
        if paths := sorted(solutions.glob("*.ipynb")):
            return paths
    raise SpecError("solutions", str(solutions), "a directory with notebooks")


def solution_text(solution: Path) -> str:
    """A solution with nbgrader's metadata: a cell with an answer is a solution, and one with hidden
    tests is locked and has the points of the task that it checks.
    """
    with opened(solution) as notebook:
        points = {task.name: task.points for task in sets().get(exercise_of(notebook), ())}
        for cell in notebook.cells if points else ():
            cell.metadata.pop("nbgrader", None)
            hidden = "### BEGIN HIDDEN TESTS" in cell.source
            answer = "### BEGIN SOLUTION" in cell.source
            if cell.cell_type == "code" and (hidden or answer):
                graded = {"points": points[checked(cell.source)]} if hidden else {}
                facts = {"grade": hidden, "grade_id": cell.id, "locked": hidden, "solution": answer}
                cell.metadata["nbgrader"] = KIND | facts | graded
        return nbformat.writes(notebook) + "\n"


def checked(source: str) -> str:
    """The task that a cell checks. Raises SpecError if it checks none."""
    call = _CHECK.search(source)
    if not call:
        raise SpecError("cell", source, 'hidden tests follow a check: verdict = check("ring", ...)')
    return call[1]


def exercise_text(solution: Path) -> str:
    """The exercise made from a solution, as the text of its notebook file. Cells keep their ids; a
    cell with nothing but hidden tests is left out. Raises SpecError, which names the cell, if
    markers do not match.
    """
    with opened(solution) as notebook:
        cells: list[nbformat.NotebookNode] = []
        for cell in notebook.cells:
            source = cell.source
            markers = _MARKER.findall(source)
            if markers != [(side, what) for _, what in markers[::2] for side in ("BEGIN", "END")]:
                problem = f"each BEGIN is followed by its END ({solution.name}, cell {cell.id})"
                raise SpecError("marker", markers, problem)
            for step in STEPS:
                step.preprocess_cell(cell, {"language": "python"}, len(cells))
            cell.source = cell.source.strip("\n")
            cells += [cell] if cell.source or not source else []
        notebook.cells = cells
        return nbformat.writes(notebook) + "\n"


def module_of(solution: Path) -> str:
    """The name of the module that a solution's answers make, "" if it names none."""
    with opened(solution) as notebook:
        module = notebook.metadata.get("lockstep", {}).get("module", "")
        return module and f"{module}.py"


def module_text(solution: Path) -> str:
    """The answers of a solution as a module, with what it imports of other libraries than ours."""
    with opened(solution) as notebook:
        sources = [cell.source for cell in notebook.cells if cell.cell_type == "code"]
    imports = [line for line in sources[0].splitlines() if "course_lib" not in line]
    answers = [_LINE.sub("", source) for source in sources if "### BEGIN SOLUTION" in source]
    answers = [re.sub("\n{4,}", "\n\n\n", answer).strip() for answer in answers]
    head = f'"""The answers of {solution.name}, made by `make exercises`."""'
    return "\n\n\n".join(["\n".join([head, "", *imports]).rstrip(), *answers]) + "\n"


# --- nbgrader ---


def set_up(solutions: Path, course: Path) -> list[Path]:
    """Make a course directory for nbgrader: an assignment for each notebook in `solutions`, and the
    configuration, unless there is one. Returns the notebooks written. Raises SpecError.
    """
    made = []
    for path in _notebooks(solutions):
        made.append(course / "source" / path.stem / path.name)
        with usable("nbgrader", course):
            made[-1].parent.mkdir(parents=True, exist_ok=True)
            made[-1].write_text(solution_text(path), encoding="utf-8")
            if not (course / "nbgrader_config.py").exists():
                (course / "nbgrader_config.py").write_text(CONFIG, encoding="utf-8")
    return made


def configure(config: Any) -> None:
    """Let nbgrader release what `lockstep exercises` makes, and grade as `lockstep check` does."""
    config.ClearSolutions.code_stub = {"python": STUB}
    steps = Autograde.class_traits()["autograde_preprocessors"].default()
    config.Autograde.autograde_preprocessors = [
        Judge if step is preprocessors.Execute else step for step in steps
    ]


class Judge(preprocessors.NbGraderPreprocessor):
    """In place of nbgrader's `Execute`: the answers are called in a process of their own, and each
    graded cell shows the verdict that our judges came to; one that is not passed is an error.
    """

    def preprocess(self, notebook: Any, resources: Any) -> tuple[Any, Any]:
        folder = Path(resources["metadata"]["path"])
        verdicts = {v.task: v for v in grade(folder / f"{resources['metadata']['name']}.ipynb")}
        for cell in filter(is_grade, notebook.cells):
            verdict = verdicts[checked(cell.source)]
            text = repr(verdict)
            cell.outputs = [
                new_output("stream", name="stdout", text=f"{text}\n")
                if verdict
                else new_output("error", ename="NotYet", evalue=verdict.text, traceback=[text])
            ]
        return notebook, resources
