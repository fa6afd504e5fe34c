"""The project holds together: versions, import directions, light imports."""

import ast
import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
LIB = ROOT / "course_lib"

# A room may import the rooms named before it, in its own line or above; widgets are held to less,
# see below.
ORDER = [
    {"activity", "cures", "text"},
    {"notebook"},
    {"errors"},
    {"spec"},
    {"record"},
    {"workloads", "collectives", "network", "hardware"},
    {"exchange"},
    {"cluster", "engines"},
    {"strategies"},
    {"launch", "widgets", "torch", "tensorflow"},
    {"reduction", "racing", "course", "cards"},
    {"commands"},
    {"__init__", "__main__"},
]
LEVEL = {room: i for i, rooms in enumerate(ORDER) for room in rooms}
WIDGETS_MAY = {
    "activity",
    "notebook",
    "text",
    "spec",
    "record",
    "errors",
    "collectives",
    "widgets",
}


def imports_of(path: Path) -> set[str]:
    """The rooms of course_lib that a file imports, at any depth of its code."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if (
            isinstance(node, ast.ImportFrom)
            and node.module
            and node.module.startswith("course_lib")
        ):
            parts = node.module.split(".")
            found |= (
                {parts[1]}
                if len(parts) > 1
                else {alias.name for alias in node.names if alias.name in LEVEL}
            )
        elif isinstance(node, ast.Import):
            found |= {a.name.split(".")[1] for a in node.names if a.name.startswith("course_lib.")}
    return found


@pytest.mark.parametrize("path", sorted(LIB.rglob("*.py")), ids=lambda p: str(p.relative_to(LIB)))
def test_imports_run_one_way(path: Path) -> None:
    room = path.relative_to(LIB).parts[0].removesuffix(".py")
    for other in imports_of(path):
        assert LEVEL[other] <= LEVEL[room], f"{room} must not import {other}"
    if room == "widgets":
        assert imports_of(path) <= WIDGETS_MAY


def files_imported(module: str, modules: Mapping[str, Path]) -> set[str]:
    """The files of course_lib that a file imports, at any depth of its code."""
    imported = set[str]()
    for node in ast.walk(ast.parse(modules[module].read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
            imported |= {name if name in modules else node.module for name in names}
        elif isinstance(node, ast.Import):
            imported |= {alias.name for alias in node.names}
    return imported & modules.keys() - {module}


def test_no_files_import_each_other_in_a_circle() -> None:
    paths = {path.relative_to(ROOT).with_suffix(""): path for path in LIB.rglob("*.py")}
    modules = {".".join(name.parts).removesuffix(".__init__"): at for name, at in paths.items()}
    left = {module: files_imported(module, modules) for module in modules}
    while free := [module for module, imported in left.items() if not imported & left.keys()]:
        for module in free:
            del left[module]
    assert not left, f"circles among {', '.join(sorted(left))}"


def test_only_the_spec_and_the_choice_of_an_engine_ask_which_one_runs() -> None:
    asking = {
        str(path.relative_to(LIB))
        for path in LIB.rglob("*.py")
        if re.search(r"\bengine (==|!=|in|not in|is) ", path.read_text())
    }
    assert asking <= {"spec/run_spec.py", "engines/__init__.py"}


def test_importing_the_package_loads_no_framework() -> None:
    code = (
        "import sys, course_lib; course_lib.start, course_lib.machine; print(sorted({'tensorflow',"
        " 'torch', 'keras'} & set(sys.modules)))"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"


def test_environment_yml_names_the_versions_of_pyproject() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    conda = yaml.safe_load((ROOT / "environment.yml").read_text())["dependencies"]
    pip = next(entry["pip"] for entry in conda if isinstance(entry, dict))
    assert pip == project["dependencies"] + project["optional-dependencies"]["test"]
    assert f"python{project['requires-python']}" in conda


def test_every_dependency_has_its_reason_in_contributing() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    text = (ROOT / "CONTRIBUTING.md").read_text()
    extras = project["optional-dependencies"].values()
    for line in [*project["dependencies"], *(line for extra in extras for line in extra)]:
        name = line.split("=")[0].split(">")[0]
        assert f"| {name} |" in text, f"{name} has no line in CONTRIBUTING.md"


def test_the_container_names_what_there_is() -> None:
    folder = ROOT / ".devcontainer"
    container = json.loads((folder / "devcontainer.json").read_text())
    context = (folder / container["build"]["context"]).resolve()
    docker = (folder / container["build"]["dockerfile"]).read_text()
    assert context == ROOT
    copied = [line.split()[2:-1] for line in docker.splitlines() if line.startswith("COPY ")]
    assert copied and all((context / source).exists() for line in copied for source in line)
    user = container["remoteUser"]
    assert f"\nUSER {user}\n" in docker and re.search(rf"\buseradd .*\b{user} ", docker)
    assert f"EXPOSE {container['forwardPorts'][0]}\n" in docker
    command = json.loads(re.findall(r"^CMD (.*)$", docker, re.M)[-1])
    commands = command, container["postAttachCommand"].split()
    for lockstep, name, *options in commands:
        known = subprocess.run(
            [sys.executable, "-m", "course_lib", name, "--help"], capture_output=True, text=True
        )
        assert lockstep == "lockstep" and known.returncode == 0, known.stderr
        assert set(options) <= {"--no-browser", "--ip=0.0.0.0"}  # which JupyterLab knows


def test_every_promise_of_the_page_on_security_names_a_test_that_exists() -> None:
    text = (ROOT / "notebooks/reference/security.md").read_text()
    files = list((ROOT / "tests").rglob("test_*.py"))
    code = "".join(path.read_text() for path in files)
    named = re.findall(r"\b(test_\w+)(\.py)?", text)
    assert len(named) > 12
    for name, py in named:
        assert name + py in {path.name for path in files} if py else f"def {name}(" in code, name
    rows = [line for line in text.splitlines() if line.startswith("| ") and "| test |" not in line]
    assert all("`test_" in row or "/test_" in row for row in rows)
