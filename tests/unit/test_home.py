"""Where runs are kept: what is cleared away and what is not, and whose it must be."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from course_lib.errors import SpecError
from course_lib.record import rundir
from course_lib.record.events import Lifecycle, to_line
from course_lib.record.rundir import KEEP, RunDir, RunFacts, create
from course_lib.spec.run_spec import RunSpec

SPEC = RunSpec(strategy="work()", framework="python", workers=1)


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """A home of its own, with one run more than are kept, all of them two hours old."""
    monkeypatch.setenv("LOCKSTEP_HOME", str(tmp_path))
    for number in range(KEEP + 1):
        old_run(tmp_path / "runs", number)
    yield tmp_path / "runs"


def old_run(runs: Path, number: int) -> Path:
    path = runs / f"20200101-{number:06}-custom-x"
    path.mkdir(parents=True)
    for name in ("spec.json", "run.json"):
        (path / name).touch()
    return two_hours_old(path)


def two_hours_old(path: Path) -> Path:
    os.utime(path, (time.time() - 7200,) * 2)
    return path


def began(path: Path, pid: int) -> None:
    """Make an old directory that of a run whose worker is the process `pid`."""
    files = RunDir(path)
    files.describe(SPEC, RunFacts(origin=0.0), {}, {"worker": "builtins:print"})
    files.lifecycle.write_bytes(to_line(Lifecycle("worker:0", "starting", "", 1.0, pid=pid)))
    two_hours_old(path)


# --- what makes room ---


def test_the_oldest_run_makes_room_for_a_new_one(runs: Path) -> None:
    oldest = min(runs.iterdir())
    new = create(SPEC).path
    assert not oldest.exists() and new.exists() and len(list(runs.iterdir())) == KEEP + 1


def test_a_run_that_goes_on_is_not_cleared_away_however_old_it_is(runs: Path) -> None:
    oldest = min(runs.iterdir())
    began(oldest, os.getpid())
    create(SPEC)
    assert oldest.exists()


def test_one_whose_processes_are_gone_is(runs: Path) -> None:
    oldest = min(runs.iterdir())
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    began(oldest, process.pid)
    create(SPEC)
    assert not oldest.exists()


def test_what_is_not_a_run_of_ours_is_never_cleared_away(runs: Path, tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.mkdir()
    for name in ("spec.json", "run.json"):
        (precious / name).touch()
    theirs = [runs / "20190101-000000-thesis-data", runs / "0-notes", runs / "20190102"]
    for path in theirs:
        path.mkdir()
        (path / "chapter.txt").touch()
        two_hours_old(path)
    link = runs / "20190103-000000-custom-link"
    link.symlink_to(precious)
    for _ in range(3):
        create(SPEC)
    assert all((path / "chapter.txt").exists() for path in theirs)
    assert link.is_symlink() and len(list(precious.iterdir())) == 2


def test_what_killed_processes_left_of_temporary_runs_is_removed_by_the_next_once_it_is_old(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    for name, pid in (("trial-a", ended.pid), ("trial-b", os.getpid()), ("other-c", ended.pid)):
        (tmp_path / name).mkdir()
        began(tmp_path / name, pid)
    (tmp_path / "trial-d").mkdir()  # young
    with rundir.temporary("trial-") as files:
        assert stat.S_IMODE(files.path.stat().st_mode) == 0o700
        (files.path / "file").touch()
        assert files.path.parent == tmp_path
    assert {path.name for path in tmp_path.iterdir()} == {"trial-b", "other-c", "trial-d"}


CLEARS = """
import sys
from course_lib.record.rundir import create
from course_lib.spec.run_spec import RunSpec
sys.stdin.readline()
for _ in range(5):
    create(RunSpec(strategy="work()", framework="python", workers=1))
"""


def test_several_processes_clear_the_same_runs_and_all_get_their_own(runs: Path) -> None:
    for number in range(1000, 1300):
        old_run(runs, number)
    kernels = [
        subprocess.Popen([sys.executable, "-c", CLEARS], stdin=subprocess.PIPE) for _ in range(3)
    ]
    for kernel in kernels:
        assert kernel.stdin
        kernel.stdin.write(b"go\n")
        kernel.stdin.close()
    assert [kernel.wait(60) for kernel in kernels] == [0, 0, 0]
    left = list(runs.iterdir())
    assert sum(time.time() - path.stat().st_mtime < 60 for path in left) == 15
    assert len(left) <= KEEP + 15


# --- whose it is ---


def test_a_home_beside_this_directory_stays_when_the_process_goes_to_another(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LOCKSTEP_HOME", "here")
    files = create(SPEC)
    monkeypatch.chdir("/")
    assert files.path.is_dir() and files.path.is_relative_to(tmp_path / "here")


def test_a_home_that_cannot_be_written_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCKSTEP_HOME", "/proc/nowhere")
    with pytest.raises(SpecError, match=r"^LOCKSTEP_HOME='/proc/nowhere': "):
        create(SPEC)


def test_a_home_that_belongs_to_another_user_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("LOCKSTEP_HOME", str(tmp_path))
    owner = tmp_path.stat().st_uid
    if owner == 0:  # root's is trusted
        os.chown(tmp_path, 12345, -1)
    else:
        monkeypatch.setattr(rundir.os, "getuid", lambda: owner + 1)
    with pytest.raises(SpecError, match="belongs to another user"):
        create(SPEC)


def test_a_run_is_for_its_user_only_also_in_a_directory_that_was_open(tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    mine.mkdir(mode=0o755)
    files = create(SPEC.model_copy(update={"run_dir": mine}))
    files.describe(SPEC, RunFacts(origin=0.0), {}, {"worker": "builtins:print"})
    files.leave_value("worker:0", 1)
    files.leave_result({})
    assert stat.S_IMODE(mine.stat().st_mode) == 0o700
    modes = {stat.S_IMODE(p.stat().st_mode) for p in mine.rglob("*") if p.is_file()}
    assert modes == {0o600}
