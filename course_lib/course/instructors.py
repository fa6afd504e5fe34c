"""The course under nbgrader: its directory, and points from judges that never run a learner's code.
nbgrader reads the configuration that `set_up` writes; see notebooks/reference/grading.md.
"""

from pathlib import Path
from typing import Any

from nbformat.v4 import new_output
from nbgrader.converters import Autograde
from nbgrader.preprocessors import Execute, NbGraderPreprocessor
from nbgrader.utils import is_grade

from course_lib.course.generate import STUB, checks, solution_text
from course_lib.course.grading import grade
from course_lib.errors import SpecError

CONFIG = """from course_lib.course.instructors import configure

configure(get_config())
"""


def set_up(solutions: Path, course: Path) -> list[Path]:
    """Make a course directory for nbgrader: an assignment for each notebook in `solutions`, and the
    configuration, unless there is one. Returns the notebooks written. Raises SpecError.
    """
    made = []
    try:
        for path in sorted(solutions.glob("*.ipynb")):
            made.append(course / "source" / path.stem / path.name)
            made[-1].parent.mkdir(parents=True, exist_ok=True)
            made[-1].write_text(solution_text(path), encoding="utf-8")
        if not (course / "nbgrader_config.py").exists():
            (course / "nbgrader_config.py").write_text(CONFIG, encoding="utf-8")
    except OSError as error:
        why = f"cannot be made ({error.strerror}): name a directory"
        raise SpecError("nbgrader", str(course), why) from None
    return made


def configure(config: Any) -> None:
    """Let nbgrader release what `lockstep exercises` makes, and grade as `lockstep check` does."""
    config.ClearSolutions.code_stub = {"python": STUB}
    steps = Autograde.class_traits()["autograde_preprocessors"].default()
    config.Autograde.autograde_preprocessors = [
        Judge if step is Execute else step for step in steps
    ]


class Judge(NbGraderPreprocessor):
    """In place of nbgrader's `Execute`: the answers are called in a process of their own, and each
    graded cell shows the verdict that our judges came to; one that is not passed is an error.
    """

    def preprocess(self, notebook: Any, resources: Any) -> tuple[Any, Any]:
        folder = Path(resources["metadata"]["path"])
        verdicts = {v.task: v for v in grade(folder / f"{resources['metadata']['name']}.ipynb")}
        for cell in filter(is_grade, notebook.cells):
            verdict = verdicts[checks(cell.source)]
            said = repr(verdict)
            cell.outputs = [
                new_output("stream", name="stdout", text=f"{said}\n")
                if verdict
                else new_output("error", ename="NotYet", evalue=verdict.text, traceback=[said])
            ]
        return notebook, resources
