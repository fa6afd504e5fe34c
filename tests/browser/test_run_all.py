"""Lessons whose cells are all run at once: what a cell stops has been seen before."""

import re
from pathlib import Path

import nbformat
import pytest
from playwright.sync_api import Browser, expect

from course_lib.record.saved import SavedRun
from tests.browser.lab import CELLS, opened
from tests.browser.test_board import newest_runs

NOTEBOOKS = Path(__file__).parents[2] / "notebooks"
CASES = [
    ("03_synchronous_training", "TrainingBoard(run", "run.stop()", 30),
    ("09_sync_vs_async", "RaceBoard(both)", "and what *Restart* may have begun", 10),
]


@pytest.mark.sample(2)
@pytest.mark.parametrize(("lesson", "shows", "stops", "steps"), CASES)
def test_a_run_that_the_next_cell_stops_is_seen_at_work_before(
    browser: Browser, tmp_path: Path, lesson: str, shows: str, stops: str, steps: int
) -> None:
    book = nbformat.read(NOTEBOOKS / f"{lesson}.ipynb", as_version=4)
    code = [cell.source for cell in book.cells if cell.cell_type == "code"]
    show = next(n for n, source in enumerate(code) if shows in source)
    stop = next(n for n, source in enumerate(code) if stops in source)
    assert stop == show + 1
    with opened(browser, tmp_path, code[0], code[show], code[stop]) as lab:
        lab.page.get_by_role("menuitem", name="Run", exact=True).click()
        lab.page.locator(".lm-Menu-itemLabel").get_by_text("Run All Cells", exact=True).click()
        board = lab.page.locator(".lk-board")
        seen = re.compile(r"step (\d+)|reached|ahead|level")
        expect(board).to_contain_text(seen)  # while it goes on
        expect(board).not_to_contain_text("Stopped")
        last = lab.page.locator(CELLS).nth(2).locator(".jp-InputPrompt")
        expect(last).to_have_text(re.compile(r"\[\d+\]"))  # it is done
        expect(board).to_contain_text(re.compile("stopped", re.IGNORECASE))
        runs = [SavedRun(path) for path in newest_runs(1 if "Training" in shows else 2)]
        assert all(run.state == "stopped" and run.result["steps_done"] >= steps for run in runs)
        assert lab.complaints() == []
