"""How the files of a run are written, and what happens when the disk refuses."""

from __future__ import annotations

import contextlib
import errno
import os
import pickle
import resource
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from course_lib.errors import Unavailable
from course_lib.record import events
from course_lib.record import files as record_files
from course_lib.record.events import Lifecycle, Metric, Phase, Recorder, to_line
from course_lib.record.files import Logs, filling, leave, no_room, private
from course_lib.record.rundir import RunDir, RunFacts
from course_lib.record.saved import SavedRun
from course_lib.record.trace import Trace
from course_lib.spec.run_spec import RunSpec
from course_lib.widgets import Timeline
from course_lib.widgets.board import pictures
from course_lib.widgets.board.view import View

SPEC = RunSpec(strategy="work()", framework="python", workers=1)


@contextlib.contextmanager
def no_longer_than(size: int) -> Iterator[None]:
    """Files cannot be longer in the block, as if the disk were full."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_file_that_does_not_fit_leaves_the_one_before_and_no_half(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    leave(path, b"first")
    with no_longer_than(10), pytest.raises(OSError, match="File too large"):
        leave(path, b"second" * 100)
    assert [p.name for p in tmp_path.iterdir()] == ["result.json"]
    assert path.read_bytes() == b"first"


def test_no_file_of_a_run_is_opened_through_a_link(tmp_path: Path) -> None:
    target, link = tmp_path / "of another", tmp_path / "stdout.log"
    target.touch()
    link.symlink_to(target)
    with pytest.raises(OSError, match="symbolic links"), open(link, "ab", opener=private):
        pass
    with pytest.raises(OSError, match="symbolic links"):
        Recorder(link)


def test_a_full_disk_is_told_in_one_line_with_its_place_and_what_is_kept(tmp_path: Path) -> None:
    said = str(no_room(tmp_path, OSError(errno.ENOSPC, "No space left on device")))
    assert said.startswith(
        f"the record of the run is unavailable here: No space left on device ({tmp_path}"
    )
    assert "MiB free" in said and "\n" not in said
    assert "What was written before is kept there; free some space, or set LOCKSTEP_HOME" in said


def test_a_run_that_cannot_be_described_is_refused_and_leaves_no_directory(tmp_path: Path) -> None:
    path = tmp_path / "run"
    path.mkdir()
    with (
        no_longer_than(10),
        pytest.raises(Unavailable, match="No process was started"),
        filling(path),
    ):
        RunDir(path).describe(SPEC, RunFacts(origin=0.0), {}, {})
    assert not path.exists()


def test_a_recorder_says_once_that_the_disk_is_full_and_what_was_written_can_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(events, "PERIOD", 0.001)
    (tmp_path / "tasks" / "worker-0").mkdir(parents=True)
    (tmp_path / "run.json").write_text('{"origin": 0.0}')
    told, refused = threading.Event(), list[OSError]()

    def refuse(error: OSError) -> None:
        refused.append(error)
        told.set()

    path = tmp_path / "tasks" / "worker-0" / "events.jsonl"
    with no_longer_than(1000):
        recorder = Recorder(path, refuse)
        for step in range(100):
            recorder.add(Phase("worker:0", step, "compute", step, step + 1.0))
        assert told.wait(10)
    assert [error.errno for error in refused] == [errno.EFBIG]
    phases = Trace.of_run(tmp_path).all(Phase)  # the last one is cut off
    assert [p.step for p in phases] == list(range(len(phases))) and phases


def test_an_event_that_cannot_be_written_costs_that_event_and_is_told_once(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    recorder = Recorder(path)
    for value in (1.0, "high", object(), 2.0):
        recorder.add(Metric("worker:0", "height", value, 0, 0, 1.0))  # type: ignore[arg-type]
    recorder.close()
    trace = Trace.load(path)
    assert [metric.value for metric in trace.all(Metric)] == [1.0, 2.0]
    (told,) = trace.all(Lifecycle)
    assert told.state == "refused" and "(Metric), which cannot be written: value" in told.why


# --- logs ---


def test_a_log_that_grows_too_long_keeps_its_beginning_and_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(record_files, "MOST_LOG", 5000)
    monkeypatch.setattr(record_files, "KEPT_LOG", 1000)
    files = RunDir(tmp_path)
    files.describe(SPEC, RunFacts(origin=0.0), {}, {})
    path = files.logs("worker:0")[0]
    held = Logs(files.logs("worker:0"))
    with path.open("ab", buffering=0) as task:
        for turn in range(3):
            task.write(b"".join(b"turn %d, line %03d\n" % (turn, i) for i in range(400)))
            held.due = 0.0
            held.check()
            assert path.stat().st_size < 2100
        task.write(b"and on\n")
    text = path.read_text()
    assert text.startswith("turn 0, line 000\n") and text.endswith("turn 2, line 399\nand on\n")
    assert "line 399\n" in files.log_tail("worker:0", 2) + "\n"
    (said,) = (line for line in text.splitlines() if line.startswith("[..."))
    cut = int(said.split()[1].replace(",", ""))
    assert abs(cut - (3 * 400 * 17 - 2000)) < 200


def test_a_log_of_usual_length_stays_as_it_is(tmp_path: Path) -> None:
    files = RunDir(tmp_path)
    files.describe(SPEC, RunFacts(origin=0.0), {}, {})
    files.logs("worker:0")[1].write_text("a warning\n")
    Logs(files.logs("worker:0")).check()
    assert files.log_tail("worker:0") == "a warning"


# --- whose files are read ---


class Trap:
    """Whoever unpickles it leaves a file."""

    def __init__(self, sprung: Path) -> None:
        self.sprung = sprung

    def __reduce__(self) -> tuple[object, ...]:
        return os.open, (str(self.sprung), os.O_CREAT)


def test_a_saved_run_is_looked_at_without_its_pickles(tmp_path: Path) -> None:
    files, sprung = RunDir(tmp_path / "theirs"), tmp_path / "sprung"
    files.path.mkdir()
    files.describe(SPEC, RunFacts(origin=0.0), {}, {})
    files.leave_result({"loss": 1.0})
    files.lifecycle.write_bytes(to_line(Lifecycle("worker:0", "done", "", 1.0)))
    phases = [Phase("worker:0", n, "compute", float(n), n + 1.0) for n in range(3)]
    files.events("worker:0").write_bytes(b"".join(map(to_line, phases)))
    for name in ("programs.pickle", "schedule.pickle", "tasks/worker-0/value.pickle"):
        (files.path / name).write_bytes(pickle.dumps(Trap(sprung)))
    np.save(files.weights("worker:0").with_suffix(""), np.array([Trap(sprung)]), allow_pickle=True)
    files.weights("worker:0").with_suffix(".npy").rename(files.weights("worker:0"))
    saved = SavedRun(files.path)
    assert saved.result == {"loss": 1.0} and saved.trace.tasks == ["worker:0"]
    Timeline(files.path).table()
    view = View({"theirs": saved})
    view.update()
    pictures.document(view)
    with pytest.raises(Exception, match=r"pickle|npz"):
        files.trained_weights()
    assert not sprung.exists()
    with pytest.raises(TypeError):
        files.programs()
    assert sprung.exists()  # the trap works
