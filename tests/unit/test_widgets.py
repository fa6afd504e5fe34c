"""Widgets without a browser: what they say, and that they say it from a trace."""

import base64
import re
import subprocess
import sys
import time
import xml.etree.ElementTree as ET
from typing import Any

import pytest
from nbconvert import HTMLExporter
from nbformat.v4 import new_code_cell, new_notebook, new_output

from course_lib.errors import SpecError
from course_lib.record import measures
from course_lib.record.digest import Digest
from course_lib.record.events import Phase
from course_lib.record.trace import Trace
from course_lib.spec.run_spec import RunSpec
from course_lib.widgets import AllReduceStage, Predict, TrainingBoard
from course_lib.widgets.board.plots import NAMES
from course_lib.widgets.kit import svg, widget
from course_lib.widgets.timeline import lanes_svg
from tests.made_up import EVENTS


class FinishedRun:
    """A run as a board sees it, with no cluster behind it."""

    def __init__(self, state: str = "finished") -> None:
        self.spec, self.state, self.trace, self.result = (
            RunSpec(workers=2, steps=1),
            state,
            Trace(EVENTS),
            {},
        )
        self.orders: list[Any] = []
        self.digest = Digest(self.spec, self.trace).update(over=True)

    def pulse(self) -> None:
        """Nothing is known but its trace."""

    def slow(self, task: str, factor: float) -> None:
        self.orders.append((task, factor))

    def stop(self) -> None:
        self.orders.append("stop")


def test_a_board_draws_every_phase_of_the_trace_and_ends_by_itself() -> None:
    board = TrainingBoard(FinishedRun())
    board._thread.join(10)
    assert not board._thread.is_alive()
    assert {what for what in NAMES if f"{what})" in board.lanes.value} == {
        "compute",
        "wait",
        "reduce",
        "apply",
    }
    assert "<b>multi_worker_mirrored</b> is finished" in board.head.value
    assert "measured" in board.head.value
    ((seconds, losses),) = board.charts.panels[0]["lines"]
    assert len(seconds) == len(losses) == 4 and board.controls.buttons["stop"].disabled
    assert [row.layout.display for row in board.controls.children] == [None, "none"]
    assert repr(board) == "TrainingBoard(multi_worker_mirrored, tensorflow, 2 workers)"
    board.close()


def test_the_slider_slows_the_task_that_is_chosen_and_no_other() -> None:
    run = FinishedRun("running")
    board = TrainingBoard(run)
    board.controls.factor.value = 3.0
    # the slider moves to where that one is, which is no order
    board.controls.task.value = "worker:0"
    assert board.controls.factor.value == 1.0
    board.controls.factor.value = 2.0
    board.controls.buttons["stop"].click()
    deadline = time.monotonic() + 10
    while len(run.orders) < 3 and time.monotonic() < deadline:
        time.sleep(0.01)
    assert sorted(map(str, run.orders)) == ["('worker:0', 2.0)", "('worker:1', 3.0)", "stop"]
    board.close()


def test_the_table_has_a_row_for_each_task() -> None:
    rows = measures.table(Trace(EVENTS)).splitlines()
    assert rows[0].split() == list(measures.SHOWN)
    assert (
        " ".join(rows[1].split())
        == "worker:0 0.00 s 0% 1.00 s 20% 2.00 s 40% 1.00 s 20% 1.00 s 20%"
    )


def test_a_parameter_server_that_had_nothing_to_do_did_not_apply_all_the_time() -> None:
    spans = [(0.0, 0.1), (9.9, 10.0)]
    trace = Trace([Phase("ps:0", n, "apply", *span) for n, span in enumerate(spans)])
    assert measures.table(trace).splitlines()[1].split()[-3:] == ["0.20", "s", "2%"]


def test_a_guess_is_locked_and_revealed() -> None:
    card = Predict("Which?", choices=["a", "b"])
    card.lock()
    assert card.guess is None  # nothing chosen yet
    card.input.value = "a"
    card.lock()
    card.input.value = "b"
    assert card.guess == "a"
    assert card.reveal("b") == "Your guess: a. Result: b."


def test_a_number_is_shown_beside_the_result() -> None:
    card = Predict("How long?", numbers=(0, 100, "ms"))
    card.input.value = 20
    card.lock()
    assert re.findall(r"\d+ ms", card.reveal(42.0)) == ["20 ms", "42 ms"]


def test_without_a_guess_the_result_is_shown_all_the_same() -> None:
    assert (
        Predict("Which?", choices=["a", "b"]).reveal("b", "So it is.")
        == "You made no guess. Result: b. So it is."
    )


def test_a_card_without_answers_is_refused() -> None:
    with pytest.raises(ValueError, match="choices or numbers"):
        Predict("Which?")


def test_the_still_picture_has_a_bar_for_each_phase() -> None:
    root = ET.fromstring(lanes_svg(Trace(EVENTS), "a < b", first=0, steps=1))
    paths = [
        e for e in root.iter("{http://www.w3.org/2000/svg}path") if "#ls-" in e.get("fill", "")
    ]
    assert sum(e.get("d", "").count("M") for e in paths) == 7


def test_boards_of_two_notebooks_that_are_open_on_one_page_name_their_patterns_apart() -> None:
    code = "from course_lib.widgets.kit import svg; print(svg.unique_prefix())"
    kernels = [subprocess.check_output([sys.executable, "-c", code]) for _ in range(2)]
    assert kernels[0] != kernels[1] and svg.unique_prefix() != svg.unique_prefix()


def test_a_picture_of_steps_that_are_not_there_is_refused() -> None:
    with pytest.raises(ValueError, match="steps 5 to 6"):
        lanes_svg(Trace([Phase("worker:0", 0, "compute", 0, 1)]), "", first=5, steps=2)


def test_what_a_lesson_has_not_explained_is_not_on_the_board() -> None:
    all_of_it = TrainingBoard(FinishedRun())
    less = TrainingBoard(FinishedRun(), hide=["staleness", "links", "delays"])
    for board in (all_of_it, less):
        board._thread.join(10)
    assert "lk-stale" in all_of_it.facts.value and "lk-stale" not in less.facts.value
    hidden = [less.controls.links, less.controls.delays]
    assert [control.layout.display for control in hidden] == ["none"] * 2
    with pytest.raises(SpecError, match="staleness"):
        TrainingBoard(FinishedRun(), hide=["stalenes"])
    stage = AllReduceStage("ring", hide=["bus bandwidth"])
    assert stage.scene["hidden"] == ["bus bandwidth"]
    for shown in (all_of_it, less, stage):
        shown.close()


def test_a_picture_in_a_notebook_has_no_tips_and_every_form() -> None:
    with_tip = svg.rect(1, 1, 2, 2, svg.title("rank 0"))
    data = widget.bundle(svg.picture(20, 10, "all", with_tip), 'a "name"')
    assert data["text/plain"] == 'a "name"' and 'alt="a &quot;name&quot;"' in data["text/html"]
    (rect,) = ET.fromstring(data["image/svg+xml"])
    assert rect.get("width") == "2" and not len(rect)
    encoded = data["text/html"].partition("base64,")[2].partition('"')[0]
    assert base64.b64decode(encoded).decode() == data["image/svg+xml"]


@pytest.mark.parametrize(
    ("refused", "shown"),
    [
        ([], 'class="ls-saved" src="data:image/svg+xml;base64,'),
        (["text/html"], 'src="data:image/svg+xml;base64,'),
        (["text/html", "image/svg+xml"], "<pre>a picture</pre>"),
    ],
)
def test_a_page_made_of_a_notebook_shows_the_best_form_that_it_takes(
    refused: list[str], shown: str
) -> None:
    forms = widget.bundle(svg.picture(9, 9, "it"), "a picture")
    kept = {form: value for form, value in forms.items() if form not in refused}
    cell = new_code_cell(outputs=[new_output("display_data", kept)])
    page, _ = HTMLExporter().from_notebook_node(new_notebook(cells=[cell]))
    assert shown in page.partition("<body")[2]


def test_a_picture_that_is_too_large_gives_way_to_the_same_as_text() -> None:
    ranks = AllReduceStage("ring", "direct", "hierarchical", "tree", workers=32, hosts=1)
    with pytest.raises(ValueError, match="more than 100000"):
        widget.bundle(ranks.picture(20), "")
    assert "32 workers on 1 host" in ranks._bundle()["text/html"]
    ranks.close()


def test_a_stage_leaves_the_picture_of_where_it_stands() -> None:
    stage = AllReduceStage("ring", workers=4, hosts=1)
    for at, said in ((0.0, "after 3 of 6"), (5.0, "after 5 of 6")):
        stage.at = at
        assert said in stage.picture()
    stage.close()
