"""Engines: the library does without the folder of another one."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from course_lib import engines
from course_lib.errors import Unavailable

ROOT = Path(__file__).parents[2]
PROGRAM = """
import importlib, pkgutil
import course_lib
from course_lib import start
from course_lib.errors import Unavailable
for module in pkgutil.walk_packages(course_lib.__path__, "course_lib."):
    rooms = "strategies.tensorflow", "strategies.torch", "workloads.models"
    pages = module.name.startswith(tuple(f"course_lib.{room}" for room in rooms))
    # those load a framework; the other is what a notebook's kernel does first
    if not pages and module.name != "course_lib.commands.kernel":
        importlib.import_module(module.name)
print(start(lambda task: task.rank, framework="python", workers=2).wait().values)
try:
    start("multi_worker_mirrored", engine="ray")
except Unavailable as error:
    print(error)
"""


def test_no_other_file_imports_an_engine_but_by_its_name() -> None:
    others = [p for p in (ROOT / "course_lib").rglob("*.py") if "ray" not in p.parts]
    importing = re.compile(r"^(from|import) course_lib\.engines\.ray", re.M)
    assert [path for path in others if importing.search(path.read_text())] == []


def test_all_but_runs_on_ray_works_with_its_folder_deleted(tmp_path: Path) -> None:
    copy = tmp_path / "course_lib"
    shutil.copytree(ROOT / "course_lib", copy, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.rmtree(copy / "engines" / "ray")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path), "TF_CPP_MIN_LOG_LEVEL": "3"}
    command = [sys.executable, "-c", PROGRAM]
    done = subprocess.run(
        command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    values, refused = done.stdout.strip().split("\n", 1)
    assert values == "{'worker:0': 0, 'worker:1': 1}"
    assert "course_lib/engines/ray is not there" in refused


def test_an_engine_whose_library_is_missing_says_how_to_get_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    find = engines.importlib.util.find_spec
    monkeypatch.setattr(
        engines.importlib.util, "find_spec", lambda name: None if name == "ray" else find(name)
    )
    with pytest.raises(Unavailable, match=r"ray .*pip install.*\[ray\]"):
        engines.load("ray.raylets")
