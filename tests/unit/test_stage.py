"""The stage without a browser: its scene is the schedule and its times, a broken schedule stops
where it breaks, and pages need nobody.
"""

import base64
import json
import re
import threading
import xml.etree.ElementTree as ET
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import typer
from typer.testing import CliRunner

from course_lib.collectives import (
    ALGORITHMS,
    Schedule,
    Transfer,
    build,
    simulate,
    verify,
)
from course_lib.commands.allreduce import stage as command
from course_lib.errors import SpecError
from course_lib.record.trace import Trace
from course_lib.spec import run_spec
from course_lib.widgets.stage import STARTING, STOPPED, AllReduceStage
from course_lib.widgets.stage.scene import MIDDLE, Played

SVG = "{http://www.w3.org/2000/svg}"


def arrays(panel: dict[str, Any], clock: str = "simulated") -> dict[str, np.ndarray]:
    """The columns of a panel, as the page reads them."""

    def flags(name: str, count: int) -> np.ndarray:
        return np.unpackbits(np.frombuffer(panel[name], np.uint8), bitorder="little", count=count)

    times = np.frombuffer(panel["clocks"][clock]["times"], np.uint16).reshape(2, -1) * (
        panel["clocks"][clock]["seconds"] / 65535
    )
    cells = panel["ranks"] * panel["chunks"]
    chunk = np.frombuffer(panel["chunk"], np.uint16 if panel["chunks"] > 256 else np.uint8)
    bits = {
        "reduce": flags("reduce", len(chunk)),
        "own": flags("own", cells),
        "wants": flags("wants", cells),
    }
    return (
        {name: np.frombuffer(panel[name], np.uint8) for name in ("src", "dst")}
        | bits
        | {"chunk": chunk, "times": times}
    )


def carried(
    bytes: int, algorithms: Sequence[Any], workers: int, hosts: int, link: Any = None, **_: Any
) -> list[Any]:
    """A stand-in for a real run: a trace in which every message takes three times as long as in the
    model.
    """
    done = []
    for algorithm in algorithms:
        schedule = build(algorithm, workers, hosts)
        trace = simulate(schedule, bytes, itemsize=4, trace=True).trace
        slower = Trace(e._replace(start=3 * e.start + 5, end=3 * e.end + 5) for e in trace)  # type: ignore[union-attr]
        done.append(
            SimpleNamespace(
                link=link,
                schedule=schedule,
                trace=slower,
                bytes=bytes,
                seconds=1e-3,
                reality="measured",
            )
        )
    return done


def lists(
    rounds: Callable[[int], list[list[Transfer]]], name: str = "mine"
) -> Callable[[int], Schedule]:
    return lambda workers: Schedule(name, workers, workers, rounds(workers))


def reduce_half(p: int) -> list[list[Transfer]]:
    return [
        [Transfer(r, (r + 1) % p, (r - 1 - i) % p, "reduce") for r in range(p)]
        for i in range(p - 1)
    ]


def fine(workers: int) -> Schedule:
    """All to rank 0 and back, in more chunks than a byte can number."""
    rest, chunks = range(1, workers), range(300)
    there = [[Transfer(r, 0, c, "reduce") for c in chunks] for r in rest]
    return Schedule(
        "fine", workers, 300, [*there, [Transfer(0, r, c, "copy") for r in rest for c in chunks]]
    )


@pytest.mark.parametrize("name", [*ALGORITHMS, fine])
def test_a_scene_has_every_transfer_of_the_schedule_with_the_simulators_moments(
    name: str | Callable[[int], Schedule],
) -> None:
    (panel,) = AllReduceStage(name, workers=6, hosts=2, bytes=960).scene["panels"]
    schedule = build(name, 6, 2)
    listed = [(t.src, t.dst, t.chunk, t.op == "reduce") for r in schedule.rounds for t in r]
    columns = arrays(panel)
    assert (
        list(zip(*(columns[c].tolist() for c in ("src", "dst", "chunk", "reduce")), strict=True))
        == listed
    )
    assert np.diff(panel["offsets"]).tolist() == [len(r) for r in schedule.rounds]
    assert panel["clocks"]["simulated"]["seconds"] == pytest.approx(
        simulate(schedule, 960, itemsize=4).seconds
    )
    assert sum(panel["sizes"]) == 960
    state = verify(schedule).state(0)
    own = columns["own"].reshape(schedule.ranks, -1)
    assert [[int(has) << rank for has in row] for rank, row in enumerate(own)] == state.once


def test_moving_a_slider_simulates_anew_and_hosts_never_exceed_workers() -> None:
    stage = AllReduceStage()
    before = stage.scene["panels"][0]["clocks"]["simulated"]["seconds"]
    stage.settings = {**stage.settings, "between": stage.settings["between"] / 10}
    assert stage.scene["panels"][0]["clocks"]["simulated"]["seconds"] > 5 * before
    stage.settings = {**stage.settings, "hosts": 8}
    stage.settings = {**stage.settings, "workers": 3}
    assert stage.scene["settings"]["hosts"] == 3
    assert repr(stage) == "AllReduceStage(ring, hierarchical: 3 workers, 3 hosts, 4194304 bytes)"


def test_a_run_for_real_is_played_with_its_own_moments_from_zero() -> None:
    stage = AllReduceStage(run=carried, workers=4)
    stage.carry_out()
    assert stage.runner is not None
    stage.runner.join(30)
    clock = stage.scene["panels"][1]["clocks"]["measured"]
    assert (clock["reality"], stage.clock, stage.playing, stage.busy) == (
        "measured",
        "measured",
        True,
        False,
    )
    times = arrays(stage.scene["panels"][1], "measured")["times"]
    quickest = 0.001  # of the calls that `carried` has made; the one in its trace took longer
    assert (clock["seconds"], times.min(), times.max()) == (quickest, 0, pytest.approx(quickest))
    assert [line.split()[-1] for line in stage.table().splitlines()[2:]] == [
        "simulated",
        "measured",
    ] * 2


def test_a_run_that_fails_or_comes_too_late_says_so_and_leaves_the_scene() -> None:
    def refuse(*_: Any, **__: Any) -> list[Any]:
        raise SpecError("bytes", 1, "too few")

    stage = AllReduceStage(run=refuse)
    stage.carry_out()
    stage.runner.join(30)  # type: ignore[union-attr]
    assert (
        stage.status == "It did not run: bytes=1: too few"
        and stage.clock == "rounds"
        and not stage.busy
    )

    moved = threading.Event()
    late = AllReduceStage(run=lambda *given, **also: (moved.wait(30), carried(*given, **also))[1])
    late.carry_out()
    late.settings = {**late.settings, "workers": 4}
    moved.set()
    late.runner.join(30)  # type: ignore[union-attr]
    assert "other settings" in late.status and "measured" not in late.scene["panels"][0]["clocks"]


def test_a_run_can_be_cancelled_while_it_starts_and_while_it_goes_on() -> None:
    begun, stopped = threading.Event(), threading.Event()
    real = SimpleNamespace(tasks={"worker:0": "running"}, stop=stopped.set)

    def carry(*_: Any, watch: Any, **__: Any) -> list[Any]:
        assert begun.wait(30)
        watch(real, "ring")
        assert stopped.wait(30)
        raise SpecError("run", "ring", "it was stopped")

    for early in (True, False):
        begun.clear(), stopped.clear()
        stage = AllReduceStage(run=carry)
        stage.carry_out()
        assert stage.busy and stage.status == STARTING
        (begun.set if not early else stage.cancel)()
        (begun.set if early else stage.cancel)()
        while not stopped.is_set():  # it may not have been told of the run yet
            stage.cancel()
        stage.runner.join(30)  # type: ignore[union-attr]
        assert (stage.status, stage.busy, stage.clock) == (STOPPED, False, "rounds")


def test_results_of_allreduce_can_be_shown_and_fix_the_settings() -> None:
    done = carried(4096, ["ring", "tree"], 4, 2)
    stage = AllReduceStage(*done)
    before = stage.scene
    stage.settings = {**stage.settings, "workers": 8}
    assert stage.scene is before and stage.scene["fixed"] and stage.clock == "measured"
    with pytest.raises(SpecError, match="same workers"):
        AllReduceStage(*done, *carried(4096, ["ring"], 8, 2))
    with pytest.raises(SpecError, match="it has no message"):
        AllReduceStage(
            SimpleNamespace(
                link=None,
                schedule=build("direct", 4),
                trace=done[0].trace,
                bytes=4096,
                seconds=1.0,
                reality="measured",
            )
        )


# what is wrong -> schedule for p workers, round in which it stops for 4, the transfer to blame
BROKEN = {
    "a copy wipes out": (
        lists(
            lambda p: (
                reduce_half(p)
                + [
                    [Transfer(r, (r + 1) % p, (r - i + 1) % p, "copy") for r in range(p)]
                    for i in range(p - 1)
                ]
            )
        ),
        3,
        (3, 0, 0, "copy"),
    ),
    "added twice": (
        lists(lambda p: [[Transfer(0, 1, 0, "reduce")], [Transfer(0, 1, 0, "reduce")]]),
        1,
        (0, 1, 0, "reduce"),
    ),
    "a copy over what is sent": (
        lists(lambda p: [[Transfer(0, 1, 0, "copy"), Transfer(1, 2, 0, "reduce")]]),
        0,
        (0, 1, 0, "copy"),
    ),
    "no such rank": (
        lists(lambda p: [[Transfer(r, r + 1, 0, "reduce") for r in range(p)]]),
        0,
        None,
    ),
}


@pytest.mark.parametrize("what", BROKEN)
def test_a_broken_schedule_stops_at_the_transfer_that_breaks_it_with_the_words_of_verify(
    what: str,
) -> None:
    make, number, blamed = BROKEN[what]
    stage = AllReduceStage(make, workers=4, hosts=1)
    (panel,) = stage.scene["panels"]
    stop = panel["stop"]
    assert stop["text"] in [p.text for p in verify(make(4)).problems]
    assert (stop["round"], stop["at"]["rounds"]) == (number, number + MIDDLE)
    assert len(panel["offsets"]) - 1 == number + 1 and panel["length"] == len(make(4).rounds)
    if blamed is None:
        assert stop["transfer"] is None and stop["cell"] is not None
    else:
        assert Played(make(4)).transfers[stop["transfer"]] == (number, Transfer(*blamed))
        start, end = arrays(panel)["times"]
        assert start[stop["transfer"]] < stop["at"]["simulated"] < end[stop["transfer"]]
    assert stop["text"] in stage.table()


def test_a_schedule_that_lacks_a_transfer_plays_to_its_end_and_says_why() -> None:
    (panel,) = AllReduceStage(lists(reduce_half), workers=4, hosts=1).scene["panels"]
    assert panel["stop"]["at"] == {} and len(panel["offsets"]) - 1 == 3
    assert "lacks the gradients of" in panel["stop"]["text"]


def test_a_function_that_raises_is_shown_with_its_words_beside_one_that_works() -> None:
    def mine(workers: int) -> Schedule:
        return Schedule("mine", workers, workers, [[Transfer(0, 1, workers // 0, "reduce")]])

    stage = AllReduceStage("ring", mine)
    assert [("error" in panel, panel["label"]) for panel in stage.scene["panels"]] == [
        (False, "ring"),
        (True, "mine"),
    ]
    assert "mine raises ZeroDivisionError" in stage.scene["panels"][1]["error"]
    assert "mine raises ZeroDivisionError" in stage.table()


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"workers": 33}, "from 1 to 32"),
        ({"workers": 2.5}, "a whole number"),
        ({"workers": 4, "hosts": 5}, "from 1 to 4"),
        ({"bytes": "many"}, "a number of bytes"),
    ],
)
def test_settings_that_cannot_be_are_refused(given: dict[str, Any], words: str) -> None:
    with pytest.raises(SpecError, match=words):
        AllReduceStage(**given)


def test_a_schedule_that_is_too_large_to_look_at_is_refused_in_words() -> None:
    def long(workers: int) -> Schedule:
        return Schedule(
            "long", workers, workers, [r for _ in range(400) for r in reduce_half(workers)]
        )

    assert "20000 at most" in AllReduceStage(long, workers=8).scene["panels"][0]["error"]


def test_a_stage_costs_less_than_100_kb_to_create() -> None:
    def size(value: Any) -> int:
        if isinstance(value, bytes):
            return len(value)
        if isinstance(value, dict):
            return sum(len(key) + 4 + size(part) for key, part in value.items())
        return (
            sum(map(size, value))
            if isinstance(value, (list, tuple))
            else len(json.dumps(value)) + 1
        )

    for workers, hosts in ((8, 2), (32, 4)):
        assert size(AllReduceStage(workers=workers, hosts=hosts).get_state()) < 100_000


def test_a_page_holds_all_it_needs_and_names_no_other_place(tmp_path: Path) -> None:
    text = AllReduceStage(workers=4).to_html(tmp_path / "stage.html").read_text()
    assert (
        "<title>AllReduceStage(ring, hierarchical: 4 workers" in text
        and not re.search(r"(src|href)=.(?!data:)", text)
        and "<!--" not in text.split("<body>")[1]
    )
    assert [url for url in re.findall(r"https?://[^\s\"'<]+", text) if "w3.org" not in url] == []
    state = json.loads(re.search(r'id="state">(.*?)</script>', text, re.DOTALL)[1])  # type: ignore[index]
    assert state["standalone"] and state["settings"]["workers"] == 4
    panel = state["scene"]["panels"][0]
    assert (
        base64.b64decode(panel["src"]["$bytes"])
        == AllReduceStage(workers=4).scene["panels"][0]["src"]
    )


def test_a_script_travels_without_its_indentation_comments_and_empty_lines() -> None:
    lines = AllReduceStage._esm.splitlines()
    assert "class Algorithm {" in lines and "constructor(data) {" in lines
    assert [line for line in lines if line.startswith(("//", " ")) or not line] == []


def test_a_page_escapes_what_could_end_its_scripts(tmp_path: Path) -> None:
    def named(workers: int) -> Schedule:
        return build("ring", workers)

    named.__name__ = "</script><b>"
    text = AllReduceStage(named).to_html(tmp_path / "stage.html").read_text()
    assert "</script><b>" not in text and "<title>AllReduceStage(&lt;/script&gt;" in text


def test_a_still_picture_shows_the_state_after_so_many_rounds(tmp_path: Path) -> None:
    path = AllReduceStage("ring", workers=4, hosts=2).still(tmp_path / "still.svg", round=2)
    root = ET.parse(path).getroot()
    titles = [e.text or "" for e in root.iter(f"{SVG}title")]
    assert [str(t) for t in build("ring", 4).rounds[2]] == titles[1:]
    state = verify(build("ring", 4, 2)).state(2)
    ranks = [e for e in root.iter(f"{SVG}g") if "stroke-dasharray" in e.attrib][1::2]
    for rank, layers in enumerate(ranks):
        wide = [sum(map(float, re.findall(r"h([\d.]+)", e.get("d", "")))) for e in layers]
        has = [len(state.ranks(rank, chunk)) for chunk in range(4)]
        one = sum(wide) / sum(has)  # each contribution in a chunk is a layer as wide as the chunk
        assert wide == [pytest.approx(one * round(each / one)) for each in wide] and one > 10
    with pytest.raises(ValueError, match="mine: mine raises"):
        AllReduceStage(_raising).still(tmp_path / "none.svg")


def _raising(workers: int) -> Schedule:
    raise RuntimeError("no idea")


_raising.__name__ = "mine"


def test_the_command_writes_a_page_or_a_picture_and_refuses_other_files(tmp_path: Path) -> None:
    app = typer.Typer()
    app.command()(command)
    run = CliRunner().invoke
    made = run(
        app, ["ring", "tree", "--workers", "4", "--link", "100", "--out", str(tmp_path / "s.html")]
    )
    assert made.exit_code == 0 and "100 Mbit/s between hosts" in (tmp_path / "s.html").read_text()
    assert run(app, ["--out", str(tmp_path / "s.svg"), "--round", "1"]).exit_code == 0
    assert run(app, ["ring_all_gather", "--out", str(tmp_path / "half.svg")]).exit_code == 0
    assert "ring_all_gather" in (tmp_path / "half.svg").read_text()
    for wrong, words in (
        (["rong"], "did you mean 'ring'"),
        (["--out", "s.pdf"], ".html or .svg"),
        (["--out", str(tmp_path / "no" / "s.svg")], "cannot be written"),
    ):
        assert words in str(run(app, wrong).exception)


def test_the_model_of_links_is_the_one_given() -> None:
    fast, slow = (AllReduceStage("ring", link=run_spec.Link(mbit=mbit)) for mbit in (8000, 80))
    assert (
        slow.scene["panels"][0]["clocks"]["simulated"]["seconds"]
        > 20 * fast.scene["panels"][0]["clocks"]["simulated"]["seconds"]
    )
    assert slow.scene["words"]["simulated"]["between"] == "80 Mbit/s"


def test_a_link_with_only_a_delay_is_simulated_and_carried_out_with_it() -> None:
    ordered = []

    def carry(*given: Any, link: run_spec.Link, **_: Any) -> list[Any]:
        ordered.append(link)
        return carried(*given, link=link)

    late = AllReduceStage("ring", workers=2, link=run_spec.Link(delay_ms=5), run=carry)
    at_once = AllReduceStage("ring", workers=2, link=run_spec.Link(mbit=1000))
    seconds, known = (
        s.scene["panels"][0]["clocks"]["simulated"]["seconds"] for s in (late, at_once)
    )
    assert seconds == pytest.approx(known + 2 * 0.005)  # each of two rounds has to wait for it
    late.settings = {**late.settings, "between": 1.25e6}
    late.carry_out()
    late.runner.join(30)  # type: ignore[union-attr]
    assert ordered == [run_spec.Link(mbit=10, delay_ms=5)]
    assert "10 Mbit/s" in late.table()


@pytest.mark.parametrize(
    ("link", "held"),
    [
        (run_spec.Link(mbit=200), "held to 200 Mbit/s."),
        (run_spec.Link(mbit=200, delay_ms=5), "held to 200 Mbit/s and 5 ms."),
        (run_spec.Link(delay_ms=5), "held to 5 ms."),
        (run_spec.Link(), "on this machine."),
        (None, "on this machine."),
    ],
)
def test_what_was_carried_out_says_what_its_links_were_held_to(
    link: run_spec.Link | None, held: str
) -> None:
    stage = AllReduceStage(*carried(960, ["ring"], 4, 2, link))
    assert stage.scene["words"]["measured"]["about"].endswith(held)
    assert "Gbit/s" not in stage.scene["words"]["measured"]["between"]
