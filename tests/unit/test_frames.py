"""A trace as frames: a row for each event, live and saved alike, and as files."""

from pathlib import Path

import pandas as pd
import pytest

from course_lib.errors import SpecError
from course_lib.record import export
from course_lib.record.events import Lifecycle, Message, Metric, Phase, Update
from course_lib.record.export import Result
from course_lib.record.trace import Trace

EVENTS = [
    Lifecycle("worker:0", "starting", "", 0.0, pid=11),
    Lifecycle("worker:1", "starting", "", 0.1, pid=12),
    Phase("worker:0", 0, "compute", 0.0, 1.0),
    Phase("worker:1", 0, "compute", 0.0, 3.0),
    Phase("worker:0", 0, "reduce", 1.0, 3.5),
    Phase("worker:1", 0, "reduce", 3.0, 3.5),
    Update("worker:0", 0, "all", "cpu", 0, 1, 3.6, workers="worker:0 worker:1"),
    Update("worker:1", 0, "all", "cpu", 0, 3, 3.6, workers="worker:0 worker:1"),
    Metric("worker:0", "loss", 2.5, 0, 32, 3.6),
    Message("worker:0", "worker:0", "worker:1", 400, 0, 1, 3.1, 3.3),
    Lifecycle("worker:1", "killed", "", 4.0),
    Lifecycle("worker:1", "starting", "", 5.0, pid=13, attempt=1),
    Phase("worker:1", 1, "compute", 5.0, 6.0),
]


@pytest.fixture
def trace() -> Trace:
    return Trace(EVENTS)


def test_phases_have_durations_and_waits_of_their_own(trace: Trace) -> None:
    phases = trace.phases
    assert list(phases) == ["task", "step", "attempt", "kind", "start", "end", "duration"]
    totals = phases.groupby(["task", "kind"])["duration"].sum()
    assert totals["worker:0", "wait"] == pytest.approx(2.0), "it waits for worker:1"
    assert totals["worker:0", "reduce"] == pytest.approx(0.5)
    assert totals["worker:1", "compute"] == pytest.approx(4.0)


def test_an_event_belongs_to_the_attempt_in_which_its_task_was(trace: Trace) -> None:
    computed = trace.phases.query("kind == 'compute' and task == 'worker:1'")
    assert list(computed["attempt"]) == [0, 1]
    assert list(trace.lifecycle.query("attempt == 1")["pid"]) == [13]


def test_updates_say_how_stale_they_are_and_messages_how_long_they_take(trace: Trace) -> None:
    assert list(trace.updates["staleness"]) == [0, 2]
    assert trace.messages.loc[0, ["source", "destination", "bytes"]].tolist() == [
        "worker:0",
        "worker:1",
        400,
    ]
    assert trace.messages.loc[0, "duration"] == pytest.approx(0.2)
    assert trace.metrics.set_index("name")["value"].to_dict() == {"loss": 2.5}


@pytest.mark.parametrize("name", export.FRAMES)
def test_a_trace_without_such_events_has_an_empty_frame_with_the_same_columns(
    name: str, trace: Trace
) -> None:
    empty = getattr(Trace(), name)
    assert len(empty) == 0
    assert list(empty) == list(getattr(trace, name))


def test_a_frame_takes_in_what_was_recorded_since(trace: Trace) -> None:
    before = len(trace.metrics)
    trace._add([Metric("worker:0", "loss", 2.0, 1, 64, 6.0)])
    assert len(trace.metrics) == before + 1


@pytest.mark.parametrize("form", export.FORMATS)
def test_the_frames_that_have_rows_are_written_as_files(
    form: str, trace: Trace, tmp_path: Path
) -> None:
    files = export.save_frames(trace, tmp_path / "out", form)
    written = ["phases", "messages", "updates", "metrics", "lifecycle"]
    assert [path.name for path in files] == [f"{name}.{form}" for name in written]
    read = pd.read_parquet if form == "parquet" else pd.read_csv
    back = read(files[0])
    assert back["duration"].sum() == pytest.approx(trace.phases["duration"].sum())


def test_another_format_is_refused_with_those_that_there_are(tmp_path: Path) -> None:
    with pytest.raises(SpecError) as refused:
        export.save_frames(Trace(EVENTS), tmp_path, "xlsx")
    assert refused.value.field == "format"
    assert "csv" in str(refused.value)


def test_results_of_several_runs_make_one_table() -> None:
    results = [Result(strategy=name, staleness={"mean": k}) for k, name in enumerate("ab")]
    table = pd.concat([result.to_frame() for result in results])
    assert list(table["staleness.mean"]) == [0, 1]
    assert list(table["strategy"]) == ["a", "b"]
