"""The timeline without a browser: what it is given, what it sends to the page, and what it says as
text.
"""

import json
import xml.etree.ElementTree as ET
import zlib
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from course_lib.collectives import build, simulate
from course_lib.errors import SpecError
from course_lib.record.events import (
    PHASES,
    Event,
    Lifecycle,
    Phase,
    Traffic,
    to_line,
)
from course_lib.record.reality import MEASURED, SIMULATED, over
from course_lib.record.trace import Trace
from course_lib.record.waits import waits
from course_lib.reduction.allreduce import allreduce
from course_lib.spec.fields import Link
from course_lib.spec.run_spec import RunSpec
from course_lib.widgets import Timeline
from course_lib.widgets.kit import svg as shapes
from course_lib.widgets.timeline import lanes_svg, packed
from tests.made_up import EVENTS, training


def unpacked(described: dict[str, Any], data: bytes) -> dict[str, np.ndarray]:
    """The columns of a scene, as the page unpacks them, with times in seconds."""
    raw, at, columns = zlib.decompress(data), 0, {}
    for name, kind, length in described["layout"]:
        dtype = np.dtype(kind)
        columns[name] = np.frombuffer(raw, dtype, length, at)
        at += length * dtype.itemsize
    assert at == len(raw)
    for start, length in (("start", "length"), ("mStart", "mLength")):
        columns[start] = (
            described["origin"] + np.cumsum(columns[start], dtype=np.uint32) * described["unit"]
        )
        columns[length] = columns[length] * described["unit"]
    columns["stepEnds"] = described["origin"] + columns["stepEnds"] * described["unit"]
    return columns


def saved_run(folder: Path, **fields: Any) -> Path:
    """A run directory as a finished run leaves it."""
    (folder / "tasks" / "worker-0").mkdir(parents=True)
    (folder / "run.json").write_text(json.dumps({"origin": 0.0}))
    (folder / "spec.json").write_text(
        RunSpec(framework="torch", workers=2, **fields).model_dump_json()
    )
    (folder / "tasks" / "worker-0" / "events.jsonl").write_bytes(b"".join(map(to_line, EVENTS)))
    return folder


# --- what is sent ---


def test_every_phase_and_message_arrives_at_its_time() -> None:
    described, data = packed(Trace(EVENTS))
    columns = unpacked(described, data)
    lanes = np.repeat(described["lanes"], np.diff(described["first"]))
    got = sorted(
        zip(
            lanes,
            (PHASES[w] for w in columns["what"]),
            columns["start"].round(5),
            columns["length"].round(5),
            strict=True,
        )
    )
    assert got == sorted(
        (p.task, p.what, p.start, p.end - p.start) for p in Trace(EVENTS).with_waits()
    )
    message = [columns[name].tolist() for name in ("src", "dst", "bytes", "round", "chunk")]
    assert message == [[0], [1], [1024], [0], [1]]
    assert columns["mStart"].round(5) == 4.0 and columns["mLength"].round(5) == 0.5


def test_times_stay_exact_to_a_microsecond_in_an_hour_and_a_millionth_of_a_simulation() -> None:
    for seconds in (3600.0, 2e-5):
        phases: list[Event] = [
            Phase("worker:0", 0, "compute", 0.0, seconds / 3),
            Phase("worker:0", 0, "apply", seconds / 3, seconds),
        ]
        columns = unpacked(*packed(Trace(phases)))
        assert columns["start"][1] == pytest.approx(seconds / 3, abs=min(1e-6, seconds / 1e6))


def test_a_widget_of_an_ordinary_run_costs_less_than_100_kb_to_create() -> None:
    timeline = Timeline(Trace(training(workers=4, steps=300)))
    state = timeline.get_state()
    data = state.pop("data")
    assert (
        len(data)
        + len(json.dumps({k: v for k, v in state.items() if isinstance(v, (str, dict, list))}))
        < 100_000
    )


def test_a_hundred_thousand_phases_are_sent_whole_in_less_than_ten_bytes_each() -> None:
    trace = Trace(training(workers=8, steps=3000))
    described, data = packed(trace)
    assert described["first"][-1] == len(trace.with_waits()) > 90_000
    assert len(data) < 10 * described["first"][-1] and described["leftOut"] == 0


def test_of_too_many_events_the_last_are_kept_and_it_says_how_many_are_missing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("course_lib.widgets.timeline.MOST_EVENTS", 5)
    described, _ = packed(Trace(EVENTS))
    assert described["first"][-1] == 5 and described["leftOut"] == 2


def test_an_empty_trace_is_an_empty_timeline() -> None:
    timeline = Timeline(Trace())
    assert timeline.scene["lanes"] == [] and timeline.table() == ""


# --- what each wait was for ---


def test_a_wait_in_a_reduction_names_the_last_to_come_and_what_it_did() -> None:
    trace = Trace(training(workers=3, steps=6))
    found = waits(trace.with_waits())
    assert len(found) == 2 * 6
    for wait in found:
        last = f"worker:{wait.phase.step % 3}"
        assert wait.last and wait.phase.task != last
        assert wait.released and (wait.released.task, wait.released.what, wait.released.step) == (
            last,
            "compute",
            wait.phase.step,
        )
        assert wait.released.end == wait.phase.end


def test_a_wait_for_a_parameter_server_names_the_worker_whose_gradient_it_applied() -> None:
    phases = [
        Phase("worker:0", 5, "wait", 1.0, 2.05),
        Phase("worker:1", 2, "compute", 0.5, 1.8),
        Phase("worker:1", 2, "reduce", 1.8, 2.1),
        Phase("worker:2", 4, "compute", 1.5, 2.04),
        Phase("ps:0", 2, "apply", 1.9, 2.0),
    ]
    (wait,) = waits(phases)
    assert wait.released == phases[1] and not wait.last


def test_a_wait_between_stages_names_the_neighbour_whose_computing_ended_last() -> None:
    phases = [
        Phase("worker:0", 0, "compute", 0.0, 1.0),
        Phase("worker:1", 0, "wait", 0.1, 1.1),
        Phase("worker:1", 0, "compute", 1.1, 2.0),
    ]
    (wait,) = waits(phases)
    assert wait.released == phases[0] and not wait.last


def test_a_wait_in_which_nobody_finished_anything_has_no_cause() -> None:
    (wait,) = waits(
        [Phase("worker:0", 0, "compute", 0.0, 1.0), Phase("worker:1", 0, "wait", 0.1, 0.9)]
    )
    assert wait.released is None


# --- steps, faults, updates ---


def test_lines_divide_steps_only_where_all_tasks_end_one_before_the_next() -> None:
    columns = unpacked(*packed(Trace(training(workers=2, steps=3, step=1.0))))
    assert columns["steps"].tolist() == [0, 1, 2] and columns["stepEnds"].round(4).tolist() == [
        1.0,
        2.0,
        3.0,
    ]
    ahead: list[Event] = [Phase("worker:0", n, "apply", n, n + 0.5) for n in range(4)]
    behind: list[Event] = [Phase("worker:1", n, "apply", 3 * n, 3 * n + 0.5) for n in range(4)]
    assert not len(unpacked(*packed(Trace([*ahead, *behind])))["steps"])


def test_faults_last_until_what_ends_them() -> None:
    events = [
        *EVENTS,
        Lifecycle("worker:0", "slowed", "by run.slow()", 1.0, factor=4),
        Lifecycle("worker:0", "slowed", "by run.slow()", 2.0, factor=1),
        Lifecycle("worker:1", "paused", "by run.pause()", 2.5),
        Lifecycle("worker:1", "resumed", "by run.resume()", 3.0),
        Lifecycle("worker:0", "jittered", "by run.jitter()", 3.0, jitter="exponential:5ms"),
        Lifecycle("worker:0", "jittered", "by run.jitter()", 3.2),
        Lifecycle("host:1", "cut", "by run.partition()", 3.5),
        Lifecycle("worker:1", "killed", "it was killed by run.kill()", 6.0),
    ]
    described, _ = packed(Trace(events), [Lifecycle("worker:1", "slowed", "", 0.0, factor=2.0)])
    lanes = described["lanes"]
    found = [
        (lanes[f["lane"]], f["state"], f["at"], f["until"])
        for f in described["faults"]
        if f["state"] not in ("resumed", "full speed", "steady")
    ]
    assert found == [
        ("worker:1", "slowed", 0.0, 6.5),
        ("worker:0", "slowed", 1.0, 2.0),
        ("worker:1", "paused", 2.5, 3.0),
        ("worker:0", "jittered", 3.0, 3.2),
        ("host:1", "cut", 3.5, 6.5),
        ("worker:1", "killed", 6.0, 6.5),
    ]


def test_it_opens_where_the_first_fault_is_and_shows_short_runs_whole() -> None:
    long = training(workers=2, steps=200)
    described, _ = packed(Trace([*long, Lifecycle("worker:0", "paused", "", 1.5)]))
    begin, end = described["opening"]
    assert begin < 1.5 < end and end - begin == pytest.approx(10 * 0.03)
    assert packed(Trace(EVENTS))[0]["opening"] is None


# --- where it comes from, and what it says ---


def test_a_run_directory_says_what_ran_and_how_real_it_was(tmp_path: Path) -> None:
    emulated = Timeline(saved_run(tmp_path / "a", slow={"worker:1": 3}))
    assert (
        repr(emulated) == "Timeline(multi_worker_mirrored · torch · 2 workers, 2 tasks, emulated)"
    )
    assert "worker:1 is slowed to 3 times its time" in emulated.scene["badge"] and [
        f["state"] for f in emulated.scene["faults"]
    ] == ["slowed"]
    measured = saved_run(tmp_path / "b")
    for given in (measured, Trace.of_run(measured)):
        assert Timeline(given).reality == MEASURED
    with (measured / "lifecycle.jsonl").open("wb") as more:
        more.write(to_line(Lifecycle("worker:1", "slowed", "by run.slow()", 2.0, factor=4)))
    assert Timeline(measured).reality.word == "emulated"


def test_an_all_reduce_says_how_real_it_was_and_why() -> None:
    modelled = allreduce(4096, workers=4, simulated=True)
    timeline = Timeline(modelled)
    assert (timeline.title, timeline.reality) == ("ring, 4 workers", SIMULATED)
    alone = replace(modelled, reality="measured")
    assert Timeline(alone).reality == MEASURED
    held = replace(modelled, reality="emulated", link=Link(mbit=100))
    timeline = Timeline(held)
    assert timeline.reality == over(Link(mbit=100)) and "100 Mbit/s" in timeline.reality.why
    assert timeline.reality.why in timeline.scene["badge"]


def test_a_simulation_says_so_and_a_bare_trace_that_it_does_not_know(tmp_path: Path) -> None:
    ring = simulate(build("ring", 4), 4096, trace=True)
    assert repr(Timeline(ring)) == "Timeline(ring, 4 ranks, 4 tasks, simulated)"
    Trace(EVENTS).save(tmp_path / "trace.jsonl")
    assert "not stated" in Timeline(tmp_path / "trace.jsonl").scene["badge"]


@pytest.mark.parametrize(
    "given",
    [Path("/nowhere/run"), 3, simulate(build("ring", 4), 64)],
    ids=["path", "number", "untraced simulation"],
)
def test_what_has_no_trace_is_refused(given: Any) -> None:
    with pytest.raises(SpecError, match="trace="):
        Timeline(given)


class Growing:
    """A run that goes on."""

    state = "running"

    def __init__(self) -> None:
        self.trace = Trace(EVENTS[:3])


def test_a_live_run_is_read_on_when_asked_for() -> None:
    run = Growing()
    timeline = Timeline(run)
    before = timeline.scene["first"][-1]
    run.state, run.trace = "finished", Trace(EVENTS)
    assert timeline.live and not timeline.refresh().live
    assert timeline.scene["first"][-1] > before


def test_the_table_says_for_whom_each_task_waited_what_was_sent_and_what_befell_it() -> None:
    text = Timeline(Trace([*EVENTS, Lifecycle("worker:1", "killed", "", 7.0)])).table()
    text = " ".join(text.split())  # columns are as wide as what is in them
    assert "worker:0 waited for worker:1 1 times 2.00 s" in text
    assert "worker:0 to worker:1 1 times 1024 bytes" in text
    assert "7.00 s worker:1 killed" in text


def test_export_writes_what_perfetto_opens_with_hosts_and_wires(tmp_path: Path) -> None:
    trace = Trace(
        [
            *EVENTS,
            Lifecycle("host:1", "cut", "by run.partition()", 1.0),
            Traffic("host:1", 10, 20, 1, 2, 2.0),
        ]
    )
    events = json.loads(Timeline(trace).export(tmp_path / "t.json").read_text())["traceEvents"]
    assert sum(e["ph"] == "X" and e["cat"] == "phase" for e in events) == 6
    assert {e["args"]["name"] for e in events if e["name"] == "thread_name"} == {
        "worker:0",
        "worker:1",
        "host:1",
    }
    assert [e["args"] for e in events if e["name"] == "bytes of host:1"] == [
        {"sent": 10, "received": 20}
    ]


def test_the_button_for_perfetto_says_where_the_file_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    timeline = Timeline(simulate(build("ring", 4), 64, trace=True))
    timeline._asked(None, {"do": "export"}, [])
    assert (
        str(tmp_path / "ring-4-ranks.perfetto.json") in timeline.notice
        and (tmp_path / "ring-4-ranks.perfetto.json").exists()
    )


def test_the_page_asks_nobody_for_anything_and_has_the_table(tmp_path: Path) -> None:
    page = Timeline(Trace(EVENTS)).to_html(tmp_path / "t.html").read_text()
    assert "worker:0 waited for worker:1" in page
    assert "http" not in page.replace("http://www.w3.org", "")


# --- still pictures ---


def test_a_still_picture_of_phases_marks_what_befell_a_task(tmp_path: Path) -> None:
    timeline = Timeline(Trace([*EVENTS, Lifecycle("worker:1", "killed", "by run.kill()", 5.5)]))
    picture = timeline.still(tmp_path / "t.svg").read_text()
    assert ">kill<" in picture and "url(#ls-wait)" in picture and ">waits 40%<" in picture


def test_words_that_have_no_room_on_the_right_stand_on_the_left() -> None:
    marks = [Lifecycle("worker:0", "slowed", "", at, factor=4.0) for at in (1.5, 6.4)]
    root = ET.fromstring(lanes_svg(Trace([*EVENTS, *marks]), ""))
    words = [e for e in root.iter("{http://www.w3.org/2000/svg}text") if e.text == "slow \u00d74"]
    assert [e.get("text-anchor") for e in words] == [None, "end"]


def test_a_picture_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="no phases in steps 5 to 6"):
        lanes_svg(Trace(EVENTS), "", first=5, steps=2)


# --- phases that a learner named ---

OWN_PHASES: list[Event] = [
    Phase("worker:0", -1, "warm up", 0.0, 1.0),
    Phase("worker:0", 0, "compute", 1.0, 2.0),
    Phase("worker:0", 0, "tokenize", 2.0, 4.0),
]


def test_phases_with_names_of_ones_own_are_drawn_and_named(tmp_path: Path) -> None:
    described, data = packed(Trace(OWN_PHASES))
    columns = unpacked(described, data)
    names = [described["phases"][what][0] for what in columns["what"]]
    assert names == ["warm up", "compute", "tokenize"]
    own = {row[1] for row in described["phases"] if row[0] in ("warm up", "tokenize")}
    assert own == {shapes.PHASE["own"].color}
    picture = Timeline(Trace(OWN_PHASES)).still(tmp_path / "own.svg", first=-1).read_text()
    assert picture.count("url(#ls-own)") == 2  # in its lane and in the legend
    assert "own: " in picture  # in the legend
    table = Timeline(Trace(OWN_PHASES)).table()
    assert "own" in table.splitlines()[0] and "3.00 s" in table


def test_a_thousand_names_of_phases_are_drawn_as_well() -> None:
    phases = [Phase("worker:0", n, f"step {n}", float(n), n + 1.0) for n in range(1000)]
    described, data = packed(Trace(phases))
    what = unpacked(described, data)["what"]
    named = Counter(described["phases"][kind][0] for kind in what)
    assert len(what) == 1000 and named["own"] == 800
