"""The stage: frames a second in JupyterLab while the kernel is busy, against a page that draws
nothing, and the bytes that it costs to create.

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

from playwright.sync_api import Page

from course_lib.errors import Unavailable
from course_lib.widgets.stage import AllReduceStage
from tests.benchmarks.harness import Aim, Options, Rows, compare
from tests.browser.lab import CHROMIUM, chromium, opened

WORKERS = (8, 32)
CELL = f"""
from course_lib.widgets.stage import AllReduceStage
for workers in {WORKERS}:
    stage = AllReduceStage(workers=workers, hosts=2)
    stage.clock = "simulated"
    display(stage)
"""
BUSY = "while True: pass"
EMPTY = """async ([_, ms]) => {
    let count = 0;
    for (const end = performance.now() + ms; performance.now() < end; count++)
      await new Promise(requestAnimationFrame);
    return count;
}"""
# From where many layers are to be drawn.
PLAYED = """async ([which, ms]) => {
    const { stage } = document.querySelectorAll(".ls-stage")[which];
    stage.root.scrollIntoView();
    stage.seek(0.4 * stage.total);
    stage.play();
    const before = stage.frames;
    await new Promise((over) => setTimeout(over, ms));
    stage.pause();
    return stage.frames - before;
}"""


def rows(options: Options) -> Rows:
    """Frames with 8 and with 32 ranks, and bytes."""
    milliseconds = 500 if options.quick else 1500
    with busy_page() as page:

        def frames(script: str, which: int) -> float:
            return page.evaluate(script, [which, milliseconds]) / (milliseconds / 1000)

        for which, workers in enumerate(WORKERS):
            name = f"stage: frames with {workers} ranks, kernel busy"
            peer = "a page that draws nothing", partial(frames, EMPTY, which)
            yield compare(
                name,
                "frames/s",
                partial(frames, PLAYED, which),
                peer,
                Aim("at least", 0.95),
                options,
            )
    for workers in WORKERS:
        name = f"stage: bytes to create one of {workers} ranks"
        yield compare(
            name,
            "kB",
            partial(created, workers),
            ("100 kB", lambda: 100.0),
            Aim("at most", 1),
            options,
        )


@contextmanager
def busy_page() -> Iterator[Page]:
    """JupyterLab with a stage of each size, and a kernel that will not answer.

    Raises Unavailable without a browser.
    """
    if CHROMIUM is None:
        raise Unavailable("a browser", "no Chromium was found", "apt install chromium")
    with (
        tempfile.TemporaryDirectory() as folder,
        chromium() as browser,
        opened(browser, Path(folder), CELL, BUSY) as lab,
    ):
        lab.run(2)
        lab.page.locator(".stage-canvas canvas").last.wait_for()
        lab.kernel("Busy")
        yield lab.page


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
