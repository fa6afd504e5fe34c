"""Runs read from directories that are cut off, damaged, or no directories of runs: what can be read
is read, and of all else the file is named.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, get_type_hints

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from course_lib.errors import Damaged, LockstepError, SpecError, TaskFailed
from course_lib.record import measures
from course_lib.record.events import (
    KINDS,
    Lifecycle,
    Metric,
    Phase,
    Seconds,
    Traffic,
    Update,
    Whole,
    from_line,
    to_line,
)
from course_lib.record.measures import Updates
from course_lib.record.rundir import RunDir, RunFacts
from course_lib.record.saved import SavedRun, saved_runs
from course_lib.record.trace import Trace
from course_lib.spec.run_spec import RunSpec
from course_lib.widgets.board.view import View
from course_lib.widgets.timeline import Timeline
from tests.helpers import JSON, fuzzed
from tests.made_up import SPEC, lockstep

FILES = (
    *("spec.json", "run.json", "result.json", "lifecycle.jsonl", "traffic.jsonl"),
    *("tasks/worker-0/events.jsonl", "tasks/worker-1/events.jsonl", "tasks/worker-1/error.json"),
    *("tasks/worker-0/stderr.log", "tasks/worker-0/weights.npz", "tasks/worker-0", "tasks"),
)
ERROR = {"task": "worker:1", "step": 3, "reason": "it broke", "traceback": "", "at": 4.0}
WHOLE = ("starting", "running", "done")


def made(path: Path, *states: str) -> Path:
    """The directory of a run of two workers, with all files that a reader looks at. Its tasks went
    through these states, or through those of a run that failed.
    """
    for task in ("worker-0", "worker-1"):
        (path / "tasks" / task).mkdir(parents=True)
        (path / "tasks" / task / "stderr.log").write_text("a line\n" * 20)
    (path / "spec.json").write_text(SPEC.complete().model_dump_json())
    (path / "run.json").write_text(json.dumps({"origin": 0.5, "devices": {"worker:0": "cpu"}}))
    if states:
        (path / "result.json").write_text(json.dumps({"final_loss": 1.0}))
    else:
        (path / "tasks" / "worker-1" / "error.json").write_text(json.dumps(ERROR))
    life = [
        Lifecycle(f"worker:{i}", state, "", 1.0)
        for i in (0, 1)
        for state in states or ("starting", "running", "failed")
    ]
    (path / "lifecycle.jsonl").write_bytes(b"".join(map(to_line, life)))
    counted = [Traffic(f"worker:{i}", 10 * n, n, n, n, n / 2) for i in (0, 1) for n in range(9)]
    (path / "traffic.jsonl").write_bytes(b"".join(map(to_line, counted)))
    for task in ("worker:0", "worker:1"):
        lines = [to_line(e) for e in lockstep(6) if e.task == task]
        (path / "tasks" / task.replace(":", "-") / "events.jsonl").write_bytes(b"".join(lines))
    np.savez(path / "tasks" / "worker-0" / "weights.npz", w=np.ones(3))
    return path


def look_at_all(path: Path) -> None:
    """Read all of a run that anything of ours reads. Raises what is no error of ours."""

    def one_run() -> None:
        (run,) = saved_runs(path).values()
        view = View({"it": run})
        looks: list[Callable[[], Any]] = [
            lambda: (run.state, run.reality, run.log_tail("worker:0")),
            lambda: run.result,
            lambda: run.trained_weights(),
            lambda: (view.update(), view.headline(), view.detail(), view.table(), view.panels()),
            lambda: view.lanes(view.sides[0], 80),
            lambda: Timeline(path).table(),
            lambda: (measures.wire_bytes_per_step(run.trace), measures.seconds_to(run.trace)),
            lambda: (run.trace.phases, run.trace.updates, run.trace.lifecycle),
            lambda: Updates().add(run.trace.all(Update)),
        ]
        for look in looks:
            with suppress(LockstepError):
                look()

    with suppress(LockstepError):
        one_run()


@pytest.mark.parametrize("file", ["spec.json", "run.json", "lifecycle.jsonl"])
@pytest.mark.parametrize("instead", ["a FIFO", "a directory", "a device"])
def test_what_is_no_file_is_refused_by_name_and_never_waited_for(
    tmp_path: Path, file: str, instead: str
) -> None:
    path = made(tmp_path / "run", *WHOLE) / file
    replaced(path, instead)
    with pytest.raises(SpecError, match=f"{file} cannot be read") as caught:
        saved_runs(tmp_path / "run")
    assert "\n" not in str(caught.value)


def replaced(path: Path, instead: str) -> None:
    """Put something else in the place of a file or directory."""
    shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    match instead:
        case "a FIFO":
            os.mkfifo(path)
        case "a directory":
            path.mkdir()
        case "a link to itself":
            path.symlink_to(path.name)
        case "a device":
            path.symlink_to("/dev/zero")


@pytest.mark.parametrize("text", ["", "{", '{"final_loss": 1', "\0" * 10, "[" * 100_000])
def test_a_result_that_is_cut_off_is_refused_by_name(tmp_path: Path, text: str) -> None:
    run = SavedRun(made(tmp_path / "run", *WHOLE))
    (run.path / "result.json").write_text(text)
    with pytest.raises(Damaged, match=r"result\.json cannot") as caught:
        _ = run.result
    assert caught.value.path == str(run.path / "result.json") and caught.value.why
    assert "\n" not in str(caught.value)


def test_an_error_that_is_cut_off_is_the_reason_of_the_failure(tmp_path: Path) -> None:
    run = SavedRun(made(tmp_path / "run"))
    with pytest.raises(TaskFailed, match="failed in step 3"):
        _ = run.result
    path = run.path / "tasks" / "worker-1" / "error.json"
    path.write_text(path.read_text()[:30])
    with pytest.raises(TaskFailed, match=r"worker:1 failed: .*error\.json"):
        _ = run.result


def test_a_trace_that_is_cut_off_is_read_up_to_there(tmp_path: Path) -> None:
    path = made(tmp_path / "run", *WHOLE) / "tasks" / "worker-0" / "events.jsonl"
    lines = path.read_bytes().splitlines(True)
    path.write_bytes(b"".join(lines[:7]) + lines[7][:-5])
    run = SavedRun(tmp_path / "run")
    ours = [
        e for e in run.trace if e.task == "worker:0" and not isinstance(e, (Lifecycle, Traffic))
    ]
    assert len(ours) == 7
    with path.open("ab") as file:  # the rest comes later, as in a run that goes on
        file.write(lines[7][-5:] + lines[8])
    ours = [
        e for e in run.trace if e.task == "worker:0" and not isinstance(e, (Lifecycle, Traffic))
    ]
    assert len(ours) == 9


def test_lines_that_hold_no_event_are_left_out_and_told_once(tmp_path: Path) -> None:
    path = made(tmp_path / "run", *WHOLE) / "tasks" / "worker-0" / "events.jsonl"
    lines = path.read_bytes().splitlines(True)
    path.write_bytes(b"".join([lines[0], b"\xff\0\n", b'["phase"]\n', *lines[1:]]))
    with pytest.warns(UserWarning, match=r"events\.jsonl: 2 lines") as told:
        run = SavedRun(tmp_path / "run")
        assert len(run.trace.all(Phase, "worker:0")) == 18
    assert len(told) == 1


@pytest.mark.parametrize(
    "line",
    [
        *("7", "[]", "{}", '["phase"]', '["phase","worker:0",1,"compute",0.0]', "[" * 5000),
        '["phase","worker:0","one","compute",0.0,1.0]',
        '["phase",null,1,"compute",0.0,1.0]',
        '["phase","worker:0",1,"compute",0.0,NaN]',
        '["phase","worker:0",1e400,"compute",0.0,1.0]',
        f'["phase","worker:0",{2**60},"compute",0.0,1.0]',
        '["update","worker:0",1,"all","cpu",0,1,"now"]',
        '["read","worker:0",1,0,[1,"2"],0.5]',
        '["other","worker:0"]',
        '[["phase"],"worker:0"]',
    ],
)
def test_a_line_that_holds_no_event_is_a_value_error(line: str) -> None:
    with pytest.raises(ValueError):
        from_line(line.encode())


def test_every_kind_of_event_is_read_as_it_was_written() -> None:
    values = {str: "x", Whole: 3, float: 2.5, Seconds: 2.5, float | None: None, list[Whole]: [1, 2]}
    for kind in KINDS.values():
        event: Any = kind(*(values[what] for what in kind.__annotations__.values()))
        assert from_line(to_line(event)) == event


def test_a_file_without_events_is_no_trace(tmp_path: Path) -> None:
    (tmp_path / "trace").write_text("nothing of ours\n")
    with pytest.warns(UserWarning), pytest.raises(Damaged, match="it holds no events"):
        Trace.load(tmp_path / "trace")


def test_weights_that_are_cut_off_are_refused_by_name(tmp_path: Path) -> None:
    run = SavedRun(made(tmp_path / "run", *WHOLE))
    path = run.path / "tasks" / "worker-0" / "weights.npz"
    path.write_bytes(path.read_bytes()[:-30])
    with pytest.raises(Damaged, match=r"weights\.npz cannot"):
        run.trained_weights()


EVENT = st.tuples(st.sampled_from(sorted(KINDS)), st.lists(JSON, max_size=9)).map(
    lambda event: [event[0], *event[1]]
)
DAMAGE = st.one_of(
    st.tuples(st.just("cut"), st.floats(0, 1)),
    st.tuples(st.just("junk"), st.floats(0, 1), st.binary(max_size=20)),
    st.tuples(
        st.just("instead"),
        st.sampled_from(["nothing", "a FIFO", "a directory", "a link to itself", "a device"]),
    ),
    st.tuples(st.just("json"), JSON),
    st.tuples(st.just("field"), st.integers(0, 30), JSON),
    st.tuples(st.just("events"), st.lists(EVENT, max_size=4)),
    *[st.tuples(st.just("values"), st.integers(0, 60), st.integers(0, 8), JSON)] * 2,
)


def damaged(path: Path, how: str, *what: Any) -> None:
    """Damage a file in one way."""
    if how == "instead":
        return replaced(path, what[0])
    if not path.is_file():
        return None
    data = path.read_bytes()
    lines = data.splitlines(True)
    match how, *what:
        case "cut", where:
            data = data[: int(where * len(data))]
        case "junk", where, junk:
            at = int(where * len(data))
            data = data[:at] + junk + data[at + len(junk) :]
        case "json", value:
            data = json.dumps(value).encode() + b"\n"
        case "events", events:
            data = b"".join([*lines, *(json.dumps(e).encode() + b"\n" for e in events)])
        case "field", number, value if path.suffix == ".json":
            fields = json.loads(data)
            fields[list(fields)[number % len(fields)]] = value
            data = json.dumps(fields).encode()
        case "values", number, place, value if path.suffix == ".jsonl":
            event = json.loads(lines[number % len(lines)])
            event[place % len(event)] = value
            lines[number % len(lines)] = json.dumps(event).encode() + b"\n"
            data = b"".join(lines)
    path.write_bytes(data)


@pytest.mark.filterwarnings("ignore:.*hold no event")
@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # of numpy, for numbers of any size
@fuzzed(150)
@given(
    st.sampled_from([WHOLE, WHOLE[:2], ()]),
    st.lists(
        st.tuples(st.sampled_from([*FILES, *FILES[3:8], *FILES[5:7]]), DAMAGE),
        min_size=1,
        max_size=5,
    ),
)
def test_whatever_became_of_a_run_it_is_read_without_a_traceback(
    states: tuple[str, ...], damages: list[tuple[str, tuple[Any, ...]]]
) -> None:
    with tempfile.TemporaryDirectory() as place:
        path = made(Path(place, "run"), *states)
        for file, how in damages:
            # another damage may have left nothing to damage in this way
            with suppress(OSError, ValueError, TypeError, LookupError, ZeroDivisionError):
                damaged(path / file, *how)
        look_at_all(path)


def test_a_run_of_another_version_is_refused(
    tmp_path: Path,
) -> None:
    files = RunDir(tmp_path)
    files.describe(RunSpec(workers=1), RunFacts(origin=0.0, version="9.9"), {}, {})
    files.events("worker:0").write_bytes(to_line(Phase("worker:0", 0, "compute", 0.0, 1.0)))
    assert SavedRun(tmp_path).spec.workers == 1  # all that is known of it can be read
    asked = json.loads((tmp_path / "spec.json").read_text())
    (tmp_path / "spec.json").write_text(json.dumps(asked | {"flux": 3}))
    with pytest.raises(SpecError, match="flux"):
        SavedRun(tmp_path)


WORDS = st.sampled_from(
    [
        *("worker:0", "worker:1", "worker:7", "worker:-1", "ps:0", "chief:0", "host:0", "nobody"),
        *("", "compute", "reduce", "apply", "wait", "hidden", "own", "loss", "accuracy", "dropped"),
        *("parameters", "overflow", "starting", "running", "done", "failed", "killed", "paused"),
        *("resumed", "slowed", "jittered", "linked", "cut", "healed", "restarting", "lost"),
        *("worker:0 worker:1", "exponential:20ms", "all"),
    ]
)
WHOLES = st.integers(0, 6) | st.sampled_from([-1, -7, 128, 2**31, 2**32, 2**53 - 1, -(2**52)])
TIMES = st.floats(0, 9) | st.sampled_from([-1.0, 0.0, 7.2, 1e9, 1e300, -1e300, 1e-300])
FIELDS: dict[Any, st.SearchStrategy[Any]] = {
    str: WORDS,
    int: WHOLES,
    float: TIMES,
    float | None: st.none() | TIMES,
    list[int]: st.lists(WHOLES, max_size=3),
}
EVENTS = st.sampled_from(list(KINDS.values())).flatmap(
    lambda kind: st.builds(kind, *(FIELDS[what] for what in get_type_hints(kind).values()))
)
NUMBERS = st.sampled_from([math.nan, math.inf, -math.inf, 0.0, -1.0, 2.3, 1e300])


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@fuzzed(150)
@given(
    st.sampled_from([WHOLE, WHOLE[:2], ()]),
    st.lists(EVENTS, min_size=1, max_size=12),
    st.lists(st.builds(Metric, WORDS, WORDS, NUMBERS, WHOLES, WHOLES, TIMES), max_size=3),
)
def test_whatever_events_a_run_holds_it_is_shown(
    states: tuple[str, ...], events: list[Any], metrics: list[Metric]
) -> None:
    with tempfile.TemporaryDirectory() as place:
        path = made(Path(place, "run"), *states)
        with (path / "tasks" / "worker-0" / "events.jsonl").open("ab") as file:
            file.writelines(map(to_line, [*events, *metrics]))
        look_at_all(path)
