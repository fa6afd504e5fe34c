"""The trace: written, merged, followed while it grows, saved, loaded, exported."""

import json
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from course_lib.cluster.task import Task
from course_lib.record import events, export, measures
from course_lib.record.digest import Digest
from course_lib.record.events import (
    Event,
    Metric,
    Phase,
    Read,
    Recorder,
    Update,
    from_line,
    to_line,
)
from course_lib.record.rundir import RunDir
from course_lib.record.trace import Trace
from course_lib.spec.run_spec import RunSpec
from tests.made_up import EVENTS

READ = Read("worker:0", 3, 1, [5, 1436, 0], 2.0)


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    (tmp_path / "tasks" / "worker-0").mkdir(parents=True)
    (tmp_path / "run.json").write_text(json.dumps({"origin": 100.0}))
    return tmp_path


@pytest.mark.parametrize("event", [*EVENTS, READ], ids=lambda e: type(e).__name__)
def test_an_event_survives_its_line(event: Event) -> None:
    assert from_line(to_line(event)) == event


def test_a_line_of_no_known_kind_is_refused() -> None:
    with pytest.raises(ValueError, match="gossip"):
        from_line(b'["gossip", "worker:0"]')


def test_times_are_shown_from_the_start_of_the_run() -> None:
    line = to_line(Phase("worker:0", 0, "read", 101.0, 102.5))
    assert from_line(line, origin=100.0) == Phase("worker:0", 0, "read", 1.0, 2.5)


def test_save_and_load_give_the_same_trace(tmp_path: Path) -> None:
    Trace(EVENTS).save(tmp_path / "trace.jsonl")
    assert list(Trace.load(tmp_path / "trace.jsonl")) == list(Trace(EVENTS))


def test_a_live_trace_sees_an_event_within_200_ms(run_dir: Path) -> None:
    recorder = Recorder(run_dir / "tasks" / "worker-0" / "events.jsonl")
    trace = Trace.of_run(run_dir)
    recorder.add(Phase("worker:0", 0, "read", 100.0, 101.0))
    deadline = time.monotonic() + 2
    while not len(trace.refresh()) and time.monotonic() < deadline:
        time.sleep(0.01)
    recorder.close()
    assert trace.all(Phase) == [Phase("worker:0", 0, "read", 0.0, 1.0)]


def test_a_line_still_being_written_waits_for_its_end(run_dir: Path) -> None:
    path = run_dir / "tasks" / "worker-0" / "events.jsonl"
    whole = to_line(Phase("worker:0", 0, "read", 100.0, 101.0))
    path.write_bytes(whole + whole[:10])
    trace = Trace.of_run(run_dir)
    assert len(trace) == 1
    path.write_bytes(whole + whole)
    assert len(trace.refresh()) == 2


def test_a_recorder_loses_nothing_written_from_several_threads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(events, "PERIOD", 0.001)
    recorder = Recorder(tmp_path / "events.jsonl")
    work = [
        threading.Thread(target=lambda: [recorder.add(EVENTS[1]) for _ in range(5000)])
        for _ in range(4)
    ]
    for thread in work:
        thread.start()
    for thread in work:
        thread.join()
    recorder.close()
    assert len(Trace.load(tmp_path / "events.jsonl")) == 20_000


def test_coverage_says_which_examples_of_an_epoch_were_read_twice_or_never() -> None:
    reads = [
        Read("worker:0", 0, 0, [0, 1], 1.0),
        Read("worker:1", 0, 0, [1, 3], 1.0),
        Read("worker:0", 1, 0, [3], 2.0),
        Read("worker:0", 1, 1, [2], 2.0),
    ]
    found = measures.coverage(Trace(reads), examples=4)
    twice = {1: ["worker:0", "worker:1"], 3: ["worker:1", "worker:0"]}
    assert found == {0: (3, twice, [2]), 1: (1, {}, [0, 1, 3])}
    assert measures.coverage(Trace(EVENTS), examples=4) == {}


def test_with_tracing_off_nothing_is_written(tmp_path: Path) -> None:
    recorder = Recorder(None)
    recorder.add(EVENTS[0])
    recorder.close()
    assert not list(tmp_path.iterdir())


def test_staleness_counts_the_updates_between_read_and_write() -> None:
    assert Update("worker:0", 3, "all", "cpu", read=3, written=4, at=0.0).staleness == 0
    assert Update("worker:0", 3, "all", "cpu", read=3, written=7, at=0.0).staleness == 3


def test_a_worker_that_arrives_first_waits_for_the_last() -> None:
    lanes = Trace(EVENTS).with_waits()
    assert Phase("worker:0", 0, "wait", 2.0, 4.0) in lanes
    assert Phase("worker:0", 0, "reduce", 4.0, 5.0) in lanes
    assert Phase("worker:1", 0, "reduce", 4.0, 5.0) in lanes


def test_who_an_update_does_not_name_is_not_waited_for() -> None:
    """Backup workers: the gradients of workers 0 and 1 make the update, worker 2 comes too late.

    Asynchronous: each makes its own.
    """
    phases = [
        Phase(f"worker:{k}", 0, "reduce", came, end)
        for k, came, end in ((0, 1.0, 3.1), (1, 3.0, 3.1), (2, 3.05, 3.2))
    ]
    backup = Update("ps:0", 0, "shard 0", "cpu", 0, 1, 3.05, 2, "worker:0 worker:1")
    alone = [Update("ps:0", 0, "shard 0", "cpu", 0, k + 1, 3.1, 1, f"worker:{k}") for k in range(3)]
    assert [p for p in Trace([*phases, backup]).with_waits() if p.what == "wait"] == [
        Phase("worker:0", 0, "wait", 1.0, 3.0)
    ]
    assert Trace([*phases, *alone]).with_waits() == phases
    # another server, which has another pair
    of_two = Update("ps:1", 0, "shard 1", "cpu", 0, 1, 3.15, 2, "worker:0 worker:2")
    assert [p.end for p in Trace([*phases, backup, of_two]).with_waits() if p.what == "wait"] == [
        3.05
    ]


def staleness(*events: Event) -> dict[str, Any]:
    updates = measures.Updates()
    updates.add(Trace(events).all(Update))
    return updates.as_dict()


def test_staleness_is_told_of_each_worker_whose_gradients_an_update_names() -> None:
    def update(read: int, written: int, workers: str) -> Update:
        return Update("ps:0", 0, "shard 0", "cpu", read, written, 1.0, 1, workers)

    named = [
        update(0, 1, "worker:0"),
        update(0, 2, "worker:10"),
        update(1, 4, "worker:2"),
        update(3, 5, "worker:2"),
    ]
    found = staleness(*named)
    assert found == {
        "mean": 1.0,
        "max": 2,
        "updates": {"0": 1, "1": 2, "2": 1},
        "by_worker": {"worker:0": 0, "worker:2": 1.5, "worker:10": 1},
    }
    assert list(found["by_worker"]) == ["worker:0", "worker:2", "worker:10"]
    assert staleness(*EVENTS)["by_worker"] == {}


def test_an_update_written_before_it_named_its_workers_is_read_as_one_that_names_none() -> None:
    assert from_line(b'["update", "ps:0", 0, "shard 0", "cpu", 0, 1, 6.0, 1]') == Update(
        "ps:0", 0, "shard 0", "cpu", 0, 1, 6.0
    )


def test_idle_share_is_the_share_of_waiting() -> None:
    assert measures.idle_share(Trace(EVENTS)) == {"worker:0": 2.0 / 5.0, "worker:1": 0.0}


def test_throughput_leaves_out_the_first_step() -> None:
    steps: list[Event] = []
    for n, (begin, end) in enumerate([(0.0, 10.0), (10.0, 11.0), (11.0, 12.0)]):
        steps += [
            Phase("worker:0", n, "compute", begin, end),
            Metric("worker:0", "loss", 1.0, n, 64 * (n + 1), end),
        ]
    digest = Digest(RunSpec(workers=1, global_batch=64), Trace(steps)).update(over=True)
    assert digest.losses.rate() == 64.0


def test_the_chrome_export_names_threads_and_keeps_times(tmp_path: Path) -> None:
    export.save_chrome(Trace(EVENTS), tmp_path / "trace.json")
    entries = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    assert {e["args"]["name"] for e in entries if e["name"] == "thread_name"} == {
        "worker:0",
        "worker:1",
    }
    (compute,) = [e for e in entries if e.get("name") == "compute" and e["tid"] == 1]
    assert (compute["ph"], compute["ts"], compute["dur"]) == ("X", 1e6, 3e6)
    assert all(e["ph"] in "MXCi" and "pid" in e for e in entries)


def test_numbers_of_numpy_and_tensors_are_plain_in_the_trace(tmp_path: Path) -> None:
    import torch

    recorder = Recorder(tmp_path / "events.jsonl")
    for step in (np.int64(3), np.uint8(4), torch.tensor(5), np.float32(6)):
        recorder.add(Phase("worker:0", step, "compute", np.float32(1), torch.tensor(2.0)))  # type: ignore[arg-type]
        recorder.add(Read("worker:0", step, step, list(np.arange(3)), 1.0))  # type: ignore[arg-type]
    recorder.close()
    trace = Trace.load(tmp_path / "events.jsonl")
    steps = [p.step for p in trace.all(Phase)]
    assert steps == [3, 4, 5, 6] and {type(step) for step in steps} == {int}
    assert [read.examples for read in trace.all(Read)] == [[0, 1, 2]] * 4


def test_a_step_is_recorded_as_it_was_although_its_tensor_counts_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(events, "PERIOD", 60)
    recorder = Recorder(tmp_path / "events.jsonl")
    task = Task("worker:0", RunSpec(workers=2), {}, RunDir(tmp_path), recorder)
    step = np.array(0)
    for _ in range(3):
        with task.phase("compute", step):  # type: ignore[arg-type]
            pass
        task.metric("loss", np.float32(1.0), step, step)  # type: ignore[arg-type]
        step += 1
    recorder.close()
    trace = Trace.load(tmp_path / "events.jsonl")
    assert [p.step for p in trace.all(Phase)] == [m.step for m in trace.all(Metric)] == [0, 1, 2]
    assert type(task.step) is int


def test_a_task_that_is_started_again_loses_no_event_to_a_line_that_was_cut_off(
    run_dir: Path,
) -> None:
    path = run_dir / "tasks" / "worker-0" / "events.jsonl"
    phases = [Phase("worker:0", step, "compute", 100.0 + step, 101.0 + step) for step in range(3)]
    path.write_bytes(to_line(phases[0]) + to_line(phases[1])[:9])
    again = Recorder(path)
    again.add(phases[1])
    again.close()
    Recorder(path).close()
    last = Recorder(path)
    last.add(phases[2])
    last.close()
    with pytest.warns(UserWarning, match="1 lines"):
        trace = Trace.of_run(run_dir)
    assert [p.step for p in trace.all(Phase)] == [0, 1, 2]
