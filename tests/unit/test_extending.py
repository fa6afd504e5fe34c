"""What is added in one file is found without a line anywhere else.

The toys are added to a copy of the library, which the processes of a run import as well.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import typer

import course_lib
import course_lib.widgets
from course_lib.__main__ import app
from course_lib.spec.run_spec import RunSpec
from course_lib.strategies import catalog

FACTS = """
from course_lib.strategies.strategy import Strategy, no_all_reduce

TOY = Strategy(
    name="toy",
    summary="Nothing is learned.", variables="nowhere", gradients="nobody", update="nobody",
    waits="nobody at all", wire="nothing", use="tests", limits="it learns nothing", source="ours",
    jobs={"torch": ("worker",)},
    default_workers=2,
    all_reduce=no_all_reduce("There is nothing to reduce."),
    takes=("backups",),
)
"""
PAGE = '''
"""Nothing is learned: the loss falls by itself."""


def worker(task):
    loss = 1.0
    for step in range(task.spec.steps):
        with task.phase("compute", step):
            loss /= 2
        task.metric("loss", loss, step, task.spec.per_worker_batch)
    return {"parameters": 0, "final_loss": loss, "test_accuracy": 1.0}
'''


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A copy of the library, to which a test may add files."""
    library = Path(course_lib.__file__).parent
    ignored = shutil.ignore_patterns("__pycache__")
    return Path(shutil.copytree(library, tmp_path / "course_lib", ignore=ignored))


def python(copy: Path, *arguments: str) -> str:
    """What a Python process prints that imports the copy."""
    environment = {**os.environ, "PYTHONPATH": str(copy.parent), "COLUMNS": "200"}
    command = [sys.executable, *arguments]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=170, env=environment, cwd=copy.parent
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_toy_strategy_is_found_in_the_catalogue_the_command_line_and_the_widgets(
    copy: Path,
) -> None:
    (copy / "strategies" / "facts" / "toy.py").write_text(FACTS)
    (copy / "strategies" / "torch" / "toy.py").write_text(PAGE)

    (row,) = json.loads(python(copy, "-m", "course_lib", "strategies", "toy", "--json"))
    assert (row["framework"], row["reality"], row["waits"]) == (
        "torch",
        "measured",
        "nobody at all",
    )
    listed = python(copy, "-m", "course_lib", "strategies")
    assert "toy" in listed and "nobody at all" in listed

    command = ["run", "toy", "--steps", "3", "--backups", "1", "--json"]
    result = json.loads(python(copy, "-m", "course_lib", *command))
    assert (result["strategy"], result["workers"], result["final_loss"]) == ("toy", 2, 0.125)
    assert result["all_reduce"] == "none"

    shown = python(copy, "-c", "import course_lib; print(course_lib.strategy_table().table())")
    assert "toy" in shown and "nobody at all" in shown
    assert "toy" not in catalog.STRATEGIES  # only in the copy


WORKLOAD = """
import dataclasses

from course_lib.workloads.digits import digits
from course_lib.workloads import Workload


def toy() -> Workload:
    return dataclasses.replace(digits(), name="toy")
"""


def test_a_toy_workload_is_found_by_the_library_and_the_command_line(copy: Path) -> None:
    (copy / "workloads" / "toy.py").write_text(WORKLOAD)
    command = ["run", "one_device", "--workload", "toy", "--steps", "3", "--json"]
    result = json.loads(python(copy, "-m", "course_lib", *command))
    assert (result["workload"], result["parameters"]) == ("toy", 4810)


ALGORITHM = """
from course_lib.collectives.cost import ClosedForm, Terms
from course_lib.collectives.schedule import Schedule, Transfer


def toy(workers):
    turn = range(1, workers)
    rounds = [[Transfer(r, 0, 0, "reduce")] for r in turn]
    rounds += [[Transfer(0, r, 0, "copy")] for r in turn]
    return Schedule("toy", workers, 1, rounds)


def toy_half(workers):
    return Schedule("toy_half", workers, 1, list(toy(workers).rounds)[: workers - 1], kind="reduce")


COLLECTIVES = (toy_half,)


def closed_form(P, S):
    n = 2 * (P - 1)
    return ClosedForm(n, n / 2 * S, Terms(n, n * S, reduced=n / 2 * S, delays=n))
"""
LOOK = """
import course_lib
from course_lib.collectives import ALGORITHMS, COLLECTIVES, build, closed_form, cost

assert ALGORITHMS["toy"](3).name == "toy" and "toy_half" in COLLECTIVES
assert closed_form("toy", 4, 64).terms == cost(build("toy", 4), 64).terms
print(course_lib.stage("toy", workers=3, hosts=1, bytes="1KiB").table())
"""


def test_a_toy_algorithm_is_found_among_all_on_the_command_line_and_on_the_stage(
    copy: Path,
) -> None:
    (copy / "collectives" / "algorithms" / "toy.py").write_text(ALGORITHM)

    command = ["allreduce", "--all", "--simulate", "--bytes", "1KiB", "--json"]
    results = {
        row["algorithm"]: row for row in json.loads(python(copy, "-m", "course_lib", *command))
    }
    assert (results["toy"]["rounds"], results["toy"]["exact"]) == (6, True)
    assert "ring" in results

    shown = python(copy, "-c", LOOK)
    assert "toy" in shown and "simulated" in shown


@pytest.mark.parametrize("name", ["run", "race"])
def test_every_field_of_a_run_is_an_option_with_its_title_and_what_is_allowed(name: str) -> None:
    command = typer.main.get_command(app).commands[name]  # type: ignore[attr-defined]
    options = {parameter.name: parameter for parameter in command.params}
    fields = RunSpec.model_fields.keys() - {"strategy", "chief"}  # an argument; a fact of it
    assert fields <= options.keys()
    for field in fields - {"workload", "all_reduce"}:  # their help lists what there is
        info = RunSpec.model_fields[field]
        assert str(info.title).lower() in options[field].help.lower()
        assert info.description == "true or false" or info.description in options[field].help
    assert "digits" in options["workload"].help and "ring" in options["all_reduce"].help


@pytest.mark.parametrize("missing", ["toy(workers)", "closed_form(P, S)"])
def test_an_algorithm_s_file_that_lacks_a_function_is_told_which(copy: Path, missing: str) -> None:
    name = missing.partition("(")[0]
    file = copy / "collectives" / "algorithms" / "toy.py"
    file.write_text(ALGORITHM.replace(f"def {name}(", "def other("))
    look = "from course_lib.collectives import ALGORITHMS"
    said = python(copy, "-c", f"try: {look}\nexcept Exception as e: print(e)")
    assert f"must define {missing}" in said and str(file) in said
