"""Past runs: the table of them, filters, overlays, `lockstep runs`, and what TensorBoard gets. All
runs here are made up.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from course_lib import SavedRun, runs
from course_lib.__main__ import main
from course_lib.cluster.run import Run
from course_lib.errors import SpecError
from course_lib.record.digest import Digest
from course_lib.record.events import Event, Lifecycle, Metric, to_line
from course_lib.record.past import PastRun
from course_lib.record.rundir import RunDir, RunFacts
from course_lib.spec.run_spec import RunSpec
from course_lib.widgets import RaceBoard, Timeline, TrainingBoard
from course_lib.widgets.cards.runs import PastRuns
from tests.helpers import until
from tests.made_up import SPEC, lockstep

STARTED = 1_700_000_000.0
MADE = {
    # name -> fields of its spec, and what its tasks went through
    "a-finished": ({}, ["done"]),
    "b-own-name": ({"framework": "torch", "slow": {"worker:1": 3}}, ["done"]),
    "c-killed": ({"framework": "torch", "workload": "wide"}, ["killed"]),
    "d-restarted": ({}, ["killed", "restarting", "starting", "running", "done"]),
    "e-stopped": ({"strategy": "parameter_server", "ps": 1}, []),
}


def made(path: Path, number: int, fields: dict[str, Any], states: list[str]) -> RunDir:
    """The record of a run of two workers, over or with a result as its states say."""
    path.mkdir(parents=True)
    files, spec = RunDir(path), RunSpec(**{**SPEC.model_dump(exclude_unset=True), **fields})
    facts = RunFacts(origin=0.0, started=STARTED + number)
    files.describe(spec.complete(), facts, {}, {"worker": "builtins:print"})
    files.clear()
    life: list[Event] = [
        Lifecycle(task, state, "by hand" * (state == "killed"), at / 10, attempt=int(at > 2))
        for task in spec.tasks
        for at, state in enumerate(["starting", "running", *states], 1)
    ]
    files.lifecycle.write_bytes(b"".join(map(to_line, life)))
    trace = lockstep(6)
    for task in ("worker:0", "worker:1"):
        files.events(task).write_bytes(b"".join(to_line(e) for e in trace if e.task == task))
    if states[-1:] == ["done"]:
        result = {"steps_done": 6, "final_loss": 0.125, "seconds": {"total": trace.seconds}}
        files.leave_result(result)
    return files


@pytest.fixture
def home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    monkeypatch.setenv("LOCKSTEP_HOME", str(tmp_path))
    for number, (name, (fields, states)) in enumerate(MADE.items()):
        made(tmp_path / "runs" / name, number, fields, states)
    yield tmp_path / "runs"


def row(name: str) -> PastRun:
    return next(each for each in runs().rows if each.directory == name)


def names(table: PastRuns) -> str:
    return "".join(each.directory[0] for each in table.rows)


# --- the table ---


def test_the_newest_run_comes_first_whatever_its_directory_is_called(home: Path) -> None:
    assert names(runs()) == "edcba" and len(runs()) == 5
    made(home / "0-last", 99, {}, ["done"])
    assert names(runs()) == "0edcba"


def test_a_row_tells_how_a_run_ended_and_what_happened_to_it(home: Path) -> None:
    told = {each.directory[0]: (each.state, each.events) for each in runs().rows}
    assert told == {
        "a": ("finished", ""),
        "b": ("finished", "slow \u00d73 worker:1"),
        "c": ("failed", "worker:0 failed in step 5: by hand"),
        "d": ("finished", "kill worker:0, worker:1; restart worker:0, worker:1"),
        "e": ("stopped", ""),
    }


def test_figures_are_those_of_the_result_and_without_one_those_of_the_trace(home: Path) -> None:
    trace = lockstep(6)
    digest = Digest(SPEC, trace).update(over=True)
    assert row("a-finished")[6:9] == (6, 0.125, trace.seconds)
    assert row("c-killed").steps_done == row("e-stopped").steps_done == digest.steps_done == 6
    assert row("c-killed").final_loss == digest.losses.last
    assert row("c-killed").seconds == trace.seconds


def test_a_run_that_goes_on_is_in_the_table(home: Path) -> None:
    files = RunDir(home / "e-stopped")
    files.temporary("worker:0").mkdir()
    with patch("psutil.pid_exists", return_value=True):
        assert row("e-stopped").state == "running"
        with pytest.raises(SpecError, match="two runs or more that are over"):
            runs().overlay("e-stopped", "a-finished")


@pytest.mark.parametrize("file", ["spec.json", "run.json", "result.json"])
@pytest.mark.parametrize("content", [b"", b"{", b"\xff\x00", b"[]"])
def test_damage_is_shown_and_hides_no_other_run(home: Path, file: str, content: bytes) -> None:
    (home / "a-finished" / file).write_bytes(content)
    shown = row("a-finished")
    if (file, content) == ("result.json", b"[]"):  # what functions of one's own may return
        assert (shown.state, shown.steps_done) == ("finished", 6)
        return
    assert shown.state == "damaged" and shown.events.startswith(file)
    assert names(runs(state="damaged")) == "a" and len(runs()) == 5
    assert "damaged" in repr(runs()) and "damaged" in runs()._repr_html_()


@pytest.mark.parametrize(
    ("where", "left"),
    [
        ("final_loss < 0.2", "dba"),
        ("final_loss > 0.2 and steps_done == 6", "ec"),
        ("events.str.contains('kill')", "d"),
        ("seconds < 0", ""),
        ("started < '2001-01-01'", ""),
        ("workers == 2 and strategy != 'parameter_server'", "dcba"),
    ],
)
def test_an_expression_chooses_runs_by_loss_time_and_events(
    home: Path, where: str, left: str
) -> None:
    assert names(runs(where=where)) == left
    assert names(runs(where=where, last=1)) == left[:1]


@pytest.mark.parametrize(
    "where", ["loss < 1", "final_loss <", "final_loss", "1", "a b", "events > 1"]
)
def test_a_wrong_expression_is_refused_with_an_example_and_the_columns(
    home: Path, where: str
) -> None:
    with pytest.raises(SpecError, match=r"final_loss < 0.5.*steps_done") as refused:
        runs(where=where)
    assert refused.value.field == "where" and "\n" not in str(refused.value)


@pytest.mark.parametrize("started", ["NaN", "1e300", "-5", "0"])
def test_a_run_without_a_time_has_that_of_its_directory(home: Path, started: str) -> None:
    facts = home / "a-finished" / "run.json"
    facts.write_text(facts.read_text().replace(str(STARTED), started))
    assert row("a-finished").started > STARTED + 1000
    assert names(runs())[0] == "a" and len(runs().to_frame()) == 5


def test_a_folder_without_a_run_is_damaged_and_a_file_is_none(home: Path) -> None:
    (home / "empty").mkdir()
    (home / "notes.txt").touch()
    assert row("empty").state == "damaged" and "notes.txt" not in repr(runs())
    with pytest.raises(SpecError, match="the directory of a run"):
        runs()["empty"]


def test_runs_with_a_result_are_not_read_whole(home: Path) -> None:
    with patch("course_lib.record.past.SavedRun", side_effect=AssertionError):
        table = runs
        for name in ("c-killed", "e-stopped"):
            shutil.rmtree(home / name)
        assert names(table()) == "dba"


# --- filters ---


@pytest.mark.parametrize(
    "wanted, chosen",
    [
        ({"framework": "torch"}, "cb"),
        ({"strategy": "parameter_server"}, "e"),
        ({"workload": "digits", "last": 2}, "ed"),
        ({"state": "finished", "framework": "tensorflow"}, "da"),
        ({"state": "running"}, ""),
        ({"last": 99}, "edcba"),
    ],
)
def test_filters_choose_rows(home: Path, wanted: dict[str, Any], chosen: str) -> None:
    assert names(runs(**wanted)) == chosen


@pytest.mark.parametrize(
    "wanted, words",
    [
        ({"strategy": "parameter_servr"}, "did you mean 'parameter_server'"),
        ({"workload": "mnist"}, "allowed: digits, wide"),
        ({"framework": "jax"}, "allowed: tensorflow, torch, python"),
        ({"state": "broken"}, "starting, running, finished, failed, stopped, damaged"),
    ],
)
def test_what_no_run_can_have_is_refused_with_what_is_allowed(
    home: Path, wanted: dict[str, Any], words: str
) -> None:
    with pytest.raises(SpecError, match=words):
        runs(**wanted)


def test_an_empty_home_is_an_empty_table(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("LOCKSTEP_HOME", str(tmp_path))
    assert len(runs(strategy="mirrored")) == 0
    assert str(tmp_path) in repr(runs()) and str(tmp_path) in runs()._repr_html_()


# --- one run, and two ---


def test_a_row_or_a_directory_is_a_saved_run(home: Path) -> None:
    table = runs()
    assert isinstance(table[0], SavedRun) and table[0].path.name == "e-stopped"
    assert table["a-finished"].path == table[-1].path == [*table][4].path
    with pytest.raises(SpecError, match=r"does not exist; .*/runs has .*e-stopped"):
        table["z"]
    with pytest.raises(IndexError):
        table[5]


def test_an_overlay_is_shown_as_a_race_that_nobody_wins(home: Path) -> None:
    board = RaceBoard(runs().overlay("a-finished", "d-restarted", "b-own-name"))
    try:
        until(lambda: board.view.over and board.view.fairness, "the board to show that all is over")
        labels = [side.label for side in board.view.sides]
        assert labels == [f"multi_worker_mirrored{end}" for end in ("", " (2)", " (3)")]
        assert board.view.standing.winner is None
        text = board.table()
        assert "No winner" in text and "is ahead" not in text
        assert "This is no race" in text and "They differ in framework, slow." in text
    finally:
        board.close()


def test_an_overlay_takes_two_runs_or_more_each_once(home: Path) -> None:
    for which in ([], [0], [1, 1]):
        with pytest.raises(SpecError, match="two runs or more"):
            runs().overlay(*which)


def test_a_past_run_opens_as_board_and_as_timeline(home: Path) -> None:
    board = TrainingBoard(runs()["a-finished"])
    try:
        assert "is finished: step 6 of 10" in board.table()
    finally:
        board.close()
    assert "worker:1" in Timeline(runs()["a-finished"]).table()


# --- card, frame and command ---


def test_the_card_has_every_row_and_no_script(home: Path) -> None:
    spec = home / "a-finished" / "spec.json"
    spec.write_text(spec.read_text().replace('"digits"', '"</td><script>x"'))
    card = runs()
    body = ET.fromstring(f"<div>{card.body()}</div>")
    rows = ["".join(tr.itertext()) for tr in body.findall(".//tbody/tr")]
    assert len(rows) == 5 and all(
        each.directory in t for each, t in zip(card.rows, rows, strict=True)
    )
    assert "<script" not in card._repr_html_() and "</td><script>x" in rows[-1]


def test_the_frame_has_the_columns_of_the_rows(home: Path) -> None:
    frame = runs().to_frame()
    assert [*frame] == [*PastRun._fields] and len(frame) == 5
    assert frame["started"].iloc[-1].to_pydatetime().timestamp() == STARTED
    assert frame.query("framework == 'torch'")["final_loss"].notna().all()


def test_the_command_prints_the_table_and_its_json(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def printed(*options: str) -> str:
        with pytest.raises(SystemExit) as ended:
            main(["runs", *options])
        out, err = capsys.readouterr()
        return out if ended.value.code == 0 else err

    for name in MADE:
        assert name in printed()
    rows = json.loads(printed("--framework", "torch", "--last", "1", "--json"))
    assert [(each["directory"], each["state"]) for each in rows] == [("c-killed", "failed")]
    assert "did you mean 'failed'" in printed("--state", "faild")
    assert "No run of this kind is kept in" in printed("--state", "running")


# --- TensorBoard ---

READ = """
import json, sys
import tensorflow as tf
from tensorflow.core.util.event_pb2 import Event
events = [Event.FromString(r.numpy()) for r in tf.data.TFRecordDataset(sys.argv[1:])]
values = [(e, v) for e in events for v in e.summary.value]
print(json.dumps({
    "version": events[0].file_version,
    "texts": {v.tag: [v.metadata.plugin_data.plugin_name, v.tensor.string_val[0].decode()]
              for _, v in values if v.HasField("tensor")},
    "scalars": [[v.tag, e.wall_time, e.step, v.simple_value]
                for e, v in values if v.HasField("simple_value")],
}))
"""


def test_tensorflow_reads_back_what_tensorboard_gets(home: Path, tmp_path: Path) -> None:
    """TensorFlow checks the sums, and knows the messages, as TensorBoard does."""
    run = runs()["a-finished"]
    large = Metric("worker:0", "my/metric é", -1e300, 2**40, 7, 30.0)
    with run.events("worker:0").open("ab") as file:
        file.write(to_line(large))
    place = run.to_tensorboard(tmp_path / "logs")
    assert place == tmp_path / "logs" / "a-finished"
    assert run.to_tensorboard(str(tmp_path / "logs")) == place
    (file_,) = place.iterdir()
    assert "tfevents" in file_.name
    done = subprocess.run(
        [sys.executable, "-c", READ, file_], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    back = json.loads(done.stdout)
    assert back["version"] == "brain.Event:2"
    kind, text = back["texts"]["spec"]
    assert kind == "text" and json.loads(text) == json.loads(run.spec.model_dump_json())
    scalars: dict[str, list[list[float]]] = {}
    for tag, at, step, value in back["scalars"]:
        scalars.setdefault(tag, []).append([at - STARTED, step, value])
    assert scalars["my/metric é/worker:0"] == [[30.0, 2**40, -float("inf")]]
    for task in ("worker:0", "worker:1"):
        metrics = run.trace.all(Metric, task, name="loss")
        expected = [[m.at, m.step, m.value] for m in metrics]
        assert [pytest.approx(each, abs=1e-5) for each in expected] == scalars[f"loss/{task}"]
        # a step of the made-up run takes 0.46 s
        steps = [step for _, step, _ in scalars[f"step seconds/{task}"]]
        assert steps == [1, 2, 3, 4, 5]
        assert all(s == pytest.approx(0.46) for *_, s in scalars[f"step seconds/{task}"])
        rates = scalars[f"examples per second/{task}"]
        assert all(rate == pytest.approx(64 / 0.46) for *_, rate in rates) and len(rates) == 5


def test_live_and_saved_runs_write_the_same_way_and_no_framework_is_loaded() -> None:
    assert Run.to_tensorboard is SavedRun.to_tensorboard
    code = "import sys, course_lib.record.tensorboard as t; t._record(1.0, 1, b''); print(*("
    code += "{'tensorflow', 'torch', 'tensorboard'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout.split() == [] and done.returncode == 0


def test_a_folder_that_cannot_be_written_is_refused(home: Path) -> None:
    with pytest.raises(SpecError, match="cannot be written"):
        runs()["a-finished"].to_tensorboard("/proc/nowhere")
