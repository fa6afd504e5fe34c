"""The stage: frames a second in JupyterLab while the kernel is busy, against a page that draws nothing, and the bytes that it costs to create.

Ours and the peer are measured in turn in the same page, beside the same busy kernel.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from course_lib.errors import Unavailable
from course_lib.widgets.stage.all_reduce_stage import AllReduceStage
from tests.benchmarks.harness import Aim, Options, Rows, compare
from tests.browser.lab import CHROMIUM, FLAGS, jupyter, notebook

STAGE = "document.querySelector('.ls-stage').stage"
CELL = """
from course_lib.widgets.stage.all_reduce_stage import AllReduceStage
stage = AllReduceStage(workers={workers}, hosts=2)
stage.clock, stage.speed = "simulated", 0.25
stage
"""
BUSY = "while True: pass"
EMPTY = """async (ms) => {
    let count = 0;
    for (const end = performance.now() + ms; performance.now() < end; count++) await new Promise(requestAnimationFrame);
    return count;
}"""
PLAYED = f"""async (ms) => {{
    const stage = {STAGE};
    stage.seek(0);
    stage.play();
    const before = stage.frames;
    await new Promise((over) => setTimeout(over, ms));
    stage.pause();
    return stage.frames - before;
}}"""


def rows(options: Options) -> Rows:
    """Frames with 8 and with 32 ranks, and bytes."""
    milliseconds = 1000 if options.quick else 3000
    for workers in (8, 32):
        with busy_page(workers) as page:
            name = f"stage: frames with {workers} ranks, kernel busy"

            def frames(script: str, page: Any = page) -> float:
                return page.evaluate(script, milliseconds) / (milliseconds / 1000)

            peer = "a page that draws nothing", partial(frames, EMPTY)
            yield compare(name, "frames/s", partial(frames, PLAYED), peer, Aim("at least", 0.95), options)
    for workers in (8, 32):
        name = f"stage: bytes to create one of {workers} ranks"
        yield compare(name, "kB", partial(created, workers), ("100 kB", lambda: 100.0), Aim("at most", 1), options)


@contextmanager
def busy_page(workers: int) -> Iterator[Any]:
    """JupyterLab with a stage, and a kernel that will not answer. Raises Unavailable without a browser."""
    if CHROMIUM is None:
        raise Unavailable("a browser", "no Chromium was found", "apt install chromium")
    from playwright.sync_api import sync_playwright

    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        notebook(Path(folder) / "stage.ipynb", CELL.format(workers=workers), BUSY)
        with jupyter(Path(folder)) as address:
            browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
            page = browser.new_page(viewport={"width": 1280, "height": 720})
            page.set_default_timeout(60_000)
            page.goto(f"{address}/lab/tree/stage.ipynb")
            page.get_by_text("Python 3 (ipykernel) | Idle").wait_for()
            page.locator(".jp-Notebook .jp-Cell").first.click()
            page.keyboard.press("Shift+Enter")
            page.locator(".stage-canvas canvas").first.wait_for()
            page.keyboard.press("Shift+Enter")
            page.get_by_text("Python 3 (ipykernel) | Busy").wait_for()
            page.evaluate(f"{STAGE}.root.scrollIntoView()")
            yield page
            browser.close()


def created(workers: int) -> float:
    """Kilobytes of the state that a new widget sends: its script and styles too."""
    return size(AllReduceStage(workers=workers, hosts=2).get_state()) / 1000


def size(value: Any) -> int:
    """Bytes of a value on its way to a browser, about: JSON, and beside it what is binary."""
    if isinstance(value, bytes):
        return len(value)
    if isinstance(value, dict):
        return sum(len(key) + 4 + size(part) for key, part in value.items())
    return sum(map(size, value)) if isinstance(value, (list, tuple)) else len(json.dumps(value)) + 1
