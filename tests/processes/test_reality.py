"""One word for how real a run was, everywhere: while something is imposed on it, and after."""

from pathlib import Path

import pytest

from course_lib import start
from course_lib.cluster.run import Run
from course_lib.commands.watch import picture, watch
from course_lib.record.events import Lifecycle
from course_lib.record.saved import SavedRun
from course_lib.record.trace import Trace
from course_lib.spec.fields import Link
from course_lib.widgets import Timeline, TrainingBoard
from tests.helpers import until


def slow_and_back(run: Run) -> None:
    run.slow("worker:1", 3)
    until(lambda: run.trace.all(Lifecycle, state="slowed"), "the first order")
    run.slow("worker:1", 1)
    until(lambda: len(run.trace.all(Lifecycle, state="slowed")) == 2, "the second order")


def link_and_back(run: Run) -> None:
    run.link(0, Link(mbit=400))
    until(lambda: run.trace.all(Lifecycle, state="linked"), "the first order")
    run.link(0, Link())
    until(lambda: len(run.trace.all(Lifecycle, state="linked")) == 2, "the second order")


@pytest.mark.sample(3)
@pytest.mark.parametrize("order", [None, slow_and_back, link_and_back])
def test_one_word_everywhere_and_what_was_imposed_for_a_while_stays_in_it(
    order: object, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fields = {"framework": "torch", "workers": 2, "hosts": 2, "steps": 2000 if order else 20}
    with start("multi_worker_mirrored", **fields) as run:
        board = TrainingBoard(run)
        run.wait_running(60)
        assert (run.plan.reality, run.reality.word) == ("measured", "measured")
        if callable(order):
            order(run)
            assert (run.state, run.reality.word) == ("running", "emulated")
        run.wait(120)
    word, why = run.reality
    assert word == ("emulated" if order else "measured")
    assert (" s until " in why) == bool(order)
    board._thread.join(30)
    watch(run.run_dir)
    page = board.to_html(tmp_path / "board.html").read_text()
    picture(run.run_dir, tmp_path / "run.svg", None, 6, "")
    table = " ".join(capsys.readouterr().out.split())
    assert run.result["reality"] == word and SavedRun(run.run_dir).result["reality"] == word
    assert SavedRun(run.run_dir).reality == (word, why)
    assert f"torch, finished, {word}" in table
    for shown in (board.head.value, page):
        assert f"</b> {word}</span>" in shown and why in shown
    assert f"{word}: {why}" in board.table()
    assert f" · {word}" in (tmp_path / "run.svg").read_text()
    for given in (run, run.run_dir, Trace.of_run(run.run_dir)):
        assert Timeline(given).reality == (word, why)
    board.close()
