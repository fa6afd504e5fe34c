"""What a board says in a real JupyterLab while a cluster stands still: who waits for whom, in the
headline and in lanes that go on, until it goes on.
"""

import re
from pathlib import Path

from playwright.sync_api import Browser, Page, expect

from tests.browser.lab import opened

CELL = """
from course_lib import start
from course_lib.widgets import TrainingBoard
run = start("multi_worker_mirrored", framework="torch", workers=4, steps=100000, device_ms=20)
TrainingBoard(run)
"""
NEVER_RETURNS = """
import time
from course_lib import start
from course_lib.widgets import TrainingBoard
def train(task):
    for step in range(1000):
        with task.phase("train_step", step):
            time.sleep(0.02 if step < 20 else 1e6)
TrainingBoard(start(train, workers=2))
"""
TALL = {"width": 1280, "height": 1000}


def headline(page: Page, says: str) -> None:
    expect(page.locator(".lk-headline h2")).to_have_text(re.compile(says))


def test_a_paused_worker_is_named_lanes_turn_grey_and_the_throughput_falls_to_0(
    browser: Browser, tmp_path: Path
) -> None:
    with opened(browser, tmp_path, CELL, viewport=TALL) as lab:
        lab.run()
        page = lab.page
        headline(page, "is running: step")
        page.get_by_role("button", name="Pause").click()
        waits = r"worker:0, worker:1 and worker:2 wait in steps? [\d and]+ for worker:3"
        headline(page, rf"standing still for [\d.]+ s: {waits}, which is paused")
        expect(page.locator(".lk-note")).to_have_text(re.compile("^Step"))
        expect(page.locator(".lk-note")).not_to_contain_text("examples/s")
        # each lane goes on and says what it is: grey for those that wait
        for task, what in {"worker:0": "wait", "worker:3": "paused"}.items():
            page.wait_for_function(
                """([task, what]) => {
                  const paths = document.querySelectorAll(`.lk-row[data-task="${task}"] svg path`);
                  const drawn = [...paths].filter(p => p.getAttribute('fill').endsWith(what + ')'));
                  const ends = drawn.map(p => p.getBBox().x + p.getBBox().width);
                  const widest = drawn.flatMap(p =>
                    [...p.getAttribute('d').matchAll(/h([\\d.]+)v/g)].map(m => Number(m[1])));
                  return Math.max(...ends) > 595 && Math.max(...widest) > 300;
                }""",
                arg=[task, what],
            )
        expect(page.locator('.lk-row[data-task="worker:0"]')).to_contain_text("waits")
        expect(page.locator('.lk-row[data-task="worker:3"]')).to_contain_text("paused")
        expect(page.locator('.lk-row[data-task="worker:3"] i')).to_have_text("pause")
        page.wait_for_function(
            """() => {
              const line = document.querySelectorAll('.lk-chart')[2].querySelector('path.line');
              const box = line.getBBox(), end = line.getPointAtLength(line.getTotalLength());
              return box.height > 50 && Math.abs(end.y - box.y - box.height) < 1;
            }"""
        )
        page.get_by_role("button", name="Resume").click()
        headline(page, "is running: step")
        page.get_by_role("button", name="Stop").click()
        headline(page, "is stopped: step")
        assert lab.complaints() == []


def test_a_function_that_never_returns_is_said_to_be_in_its_phase(
    browser: Browser, tmp_path: Path
) -> None:
    with opened(browser, tmp_path, NEVER_RETURNS, viewport=TALL) as lab:
        lab.run()
        says = r"worker:0 and worker:1 have been in train_step of step 20 for \d+ s"
        headline(lab.page, says)
        expect(lab.page.locator('.lk-row[data-task="worker:1"]')).to_contain_text(
            re.compile(r"own [\d.]+ s")
        )
        assert lab.complaints() == []
