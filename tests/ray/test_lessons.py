"""Lessons on a Ray cluster: from the top, with one word changed."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

NOTEBOOKS = Path(__file__).parents[2] / "notebooks"
NBVAL = ["--nbval-lax", "--nbval-current-env", "--nbval-cell-timeout=120"]


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "lesson",
    [
        "05_ring_vs_hierarchical",
        pytest.param("03_synchronous_training", marks=pytest.mark.nightly),
        pytest.param("09_sync_vs_async", marks=pytest.mark.nightly),
    ],
)
def test_a_lesson_runs_on_a_cluster_with_one_word_changed(
    cluster: str, tmp_path: Path, lesson: str
) -> None:
    book = json.loads((NOTEBOOKS / f"{lesson}.ipynb").read_text())
    first = next(cell for cell in book["cells"] if cell["cell_type"] == "code")
    assert sum(line.startswith('ENGINE = "local"') for line in first["source"]) == 1
    first["source"] = [line.replace('= "local"', '= "ray"') for line in first["source"]]
    copy = tmp_path / f"{lesson}.ipynb"
    copy.write_text(json.dumps(book))
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *NBVAL, str(copy)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
