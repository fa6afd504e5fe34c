"""The board of a race in a real JupyterLab: its controls act on real clusters, its lanes show it,
and its page works from disk.
"""

import re
from pathlib import Path

import psutil
from playwright.sync_api import Browser, expect

from course_lib.record.events import Lifecycle
from course_lib.record.trace import Trace
from tests.browser.lab import Tab
from tests.browser.test_board import board_in_lab, newest_runs, pids_of, press
from tests.helpers import until

CELL = """
from course_lib import race
from course_lib.widgets.board import RaceBoard
both = race("multi_worker_mirrored", "parameter_server", framework="torch", workers=3,
            steps=100000, device_ms=40)
board = RaceBoard(both)
board
"""
SAVE = "board._thread.join(10); print(board.to_html('board.html'), len(board.table().splitlines()))"


def lane(side: int, task: str) -> str:
    return f'.lk-side:nth-of-type({side}) .lk-row[data-task="{task}"]'


def test_a_race_is_slowed_paused_and_killed_from_its_board(
    browser: Browser, tmp_path: Path
) -> None:
    with board_in_lab(browser, tmp_path, CELL) as lab:
        page = lab.page
        # Both sides are drawn, with who is ahead.
        expect(page.get_by_text("They race for loss")).to_be_visible()
        page.wait_for_function(
            "[...document.querySelectorAll('.lk-row')]"
            ".filter(row => row.querySelectorAll('path').length > 1).length >= 6"
        )
        traces = [Trace.of_run(path) for path in newest_runs(2)]

        # "all" slows the worker in both.
        press(page, "ArrowRight", 8)
        for side, trace in enumerate(traces, start=1):
            until(
                lambda trace=trace: trace.refresh().all(Lifecycle, "worker:2", state="slowed"),
                "worker:2 is slowed",
            )
            expect(page.locator(lane(side, "worker:2"))).to_contain_text("\u00d73")

        # A pause shows; resuming ends it.
        page.get_by_role("button", name="Pause").click()
        for side in (1, 2):
            expect(page.locator(lane(side, "worker:2"))).to_have_attribute("data-fate", "paused")
        page.get_by_role("button", name="Resume").click()
        expect(page.locator('.lk-row[data-fate="paused"]')).to_have_count(0)

        # A kill in one of the two: its lane says so, the failure is one line, the other goes on.
        page.get_by_label("run", exact=True).select_option("multi_worker_mirrored")
        page.get_by_role("button", name="Kill").click()
        expect(page.locator(lane(1, "worker:2"))).to_have_attribute("data-fate", "killed")
        expect(
            page.get_by_role("status").filter(
                has_text="multi_worker_mirrored failed; parameter_server goes on"
            )
        ).to_be_visible()
        expect(page.locator(".lk-note")).to_contain_text("it was killed on the board")
        expect(page.locator(".lk-side").nth(1)).to_have_attribute("data-state", "running")

        # Stop ends what is left of it.
        page.get_by_role("button", name="Stop").click()
        expect(page.locator(".lk-side").nth(1)).to_have_attribute("data-state", "stopped")
        assert not any(
            psutil.pid_exists(pid) for trace in traces for pid in pids_of(trace.refresh())
        )

        # The page that it leaves asks nobody and says the same.
        cell = page.locator(".jp-Notebook .jp-Cell").last
        cell.click()
        page.keyboard.type(SAVE)
        page.keyboard.press("Shift+Enter")
        until((tmp_path / "board.html").exists, "board.html is written")
        assert lab.complaints() == []
    tab = Tab(browser)
    saved = tab.open(tmp_path / "board.html")
    expect(saved.locator(".lk-headline h2")).to_contain_text("multi_worker_mirrored failed")
    expect(saved.locator(lane(1, "worker:2"))).to_have_attribute("data-fate", "killed")
    # its slider moves all lanes through the whole run, and the band on the charts with them
    parts = saved.locator(".lk-long").first, saved.locator("figure > i").first
    before = [part.bounding_box() for part in parts]
    slider = saved.get_by_role("slider", name="moment of the run")
    slider.press("End")
    for part, place in zip(parts, before, strict=True):
        after = part.bounding_box()
        assert place and after and abs(place["x"] - after["x"]) > 100
    expect(slider).to_have_attribute("aria-valuetext", re.compile(r"from [\d.]+ s"))
    slider.press("Home")
    saved.get_by_role("button", name="Play").click()
    expect(saved.get_by_role("button", name="Pause")).to_be_visible()
    expect(slider).not_to_have_value("0")
    assert len(tab.asked) == 1
    tab.close()


PAGE = """
import sys
from course_lib import race
from course_lib.widgets.board import RaceBoard
sys.path.insert(0, FOLDER)
from local_sgd import local_sgd
from mesh import three_d
fields = {"framework": "torch", "device_ms": 40, "steps": 30, "hosts": 2, "accumulate": 2}
both = race("multi_worker_mirrored", local_sgd, three_d, **fields, workers=4, workload="tiny_gpt")
board = RaceBoard(both)
board
"""


def test_pages_of_the_course_race_on_a_board_as_our_own_strategies_do(
    browser: Browser, tmp_path: Path
) -> None:
    folder = Path(__file__).parents[2] / "notebooks" / "strategies"
    with board_in_lab(browser, tmp_path, PAGE.replace("FOLDER", repr(str(folder)))) as lab:
        page = lab.page
        expect(page.locator(".lk-headline h2")).to_contain_text("loss", timeout=60_000)
        expect(page.locator(".lk-side")).to_have_count(3)
        for side, name in enumerate(("multi_worker_mirrored", "local_sgd()", "three_d()"), start=1):
            header = page.locator(f".lk-side:nth-of-type({side}) header b")
            expect(header).to_have_text(name)
        held = "stage 0, piece 0: worker:0"
        expect(page.locator(".lk-facts section:nth-of-type(3)")).to_contain_text(held)
        expect(page.locator(".lk-headline h2")).to_contain_text("Time to loss", timeout=60_000)
        expect(page.locator(".lk-side[data-state=finished]")).to_have_count(3, timeout=60_000)
