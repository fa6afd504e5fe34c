"""The moving picture in README.md: `python -m tests.browser.recording`.

A real run on a live board in a real JupyterLab, whose last worker is slowed, let go, paused and
resumed, once in the light and once in the dark theme.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from playwright.sync_api import Browser, Locator, Page

from tests.browser.lab import CHROMIUM, NONE, chromium, opened
from tests.browser.moving import Frame, moving

WARM = "from course_lib import warm; warm()"
CELL = """from course_lib import start
from course_lib.widgets import TrainingBoard
run = start("multi_worker_mirrored", workers=4, steps=1000, device_ms=20)
TrainingBoard(run, hide=["staleness", "memory", "delays"])"""
WINDOW = {"width": 1012, "height": 1400}  # the board is then as wide as a page of code hosts, 830
EDGE = 4  # pixels around the board
EVERY = 0.4  # seconds between frames
STORY = {  # seconds -> what is done
    1.8: lambda page: slow(page, 4),
    4.8: lambda page: slow(page, 1),
    6.4: lambda page: page.get_by_role("button", name="Pause").click(),
    9.0: lambda page: page.get_by_role("button", name="Resume").click(),
}
END = 10.4
LAST = 1.6  # seconds that the last frame stays


def slow(page: Page, factor: float) -> None:
    """Put the slider that slows the chosen worker to a factor, from 1 to 10."""
    track = page.locator(".noUi-base").first
    size = track.bounding_box()
    assert size
    track.click(position={"x": size["width"] * (factor - 1) / 9, "y": size["height"] / 2})


def shots(page: Page, board: Locator) -> Iterator[tuple[float, bytes]]:
    """Screenshots of a board while the story is played, and when each was taken."""
    around = board.bounding_box()
    assert around
    clip = {
        "x": around["x"] - EDGE,
        "y": around["y"] - EDGE,
        "width": around["width"] + 2 * EDGE,
        "height": around["height"] + 2 * EDGE,
    }
    left, began, due = dict(STORY), time.monotonic(), 0.0
    while (now := time.monotonic() - began) < END:
        for at in [at for at in left if at <= now]:
            left.pop(at)(page)
        yield time.monotonic() - began, page.screenshot(clip=clip, animations="allow")
        due = max(due + EVERY, now)
        page.wait_for_timeout(1000 * max(0.0, due - (time.monotonic() - began)))


def settled(board: Locator) -> None:
    """Wait until the notebook scrolls no more and all of the board is in view."""
    before = None
    while (now := board.bounding_box()) != before or not now or now["y"] < 0:
        before = now
        board.scroll_into_view_if_needed()
        board.page.wait_for_timeout(300)


def record(browser: Browser, dark: bool) -> tuple[bytes, list[Frame]]:
    """The moving picture of a run that is made now, and its frames."""
    with (
        tempfile.TemporaryDirectory(prefix="lockstep-recording-") as folder,
        opened(browser, Path(folder), WARM, CELL, viewport=WINDOW) as lab,
    ):
        page = lab.page
        page.keyboard.press("Control+b")  # without the list of files
        if dark:
            lab.theme("Dark")
        lab.choose(0)
        lab.run(2)
        going = page.locator(".lk-headline").filter(has_text="is running: step")
        going.wait_for(timeout=120_000)
        board = page.locator(".lk-board")
        settled(board)
        taken = list(shots(page, board))
        page.get_by_role("button", name="Stop").click()
        lab.kernel("Idle")
        times = [at for at, _ in taken[1:]] + [taken[-1][0] + LAST]
        frames = [
            Frame(png, round(1000 * (until - at)))
            for (at, png), until in zip(taken, times, strict=True)
        ]
        return moving(browser, frames), frames


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--to", type=Path, default=Path("notebooks/pictures"), metavar="FOLDER")
    parser.add_argument("--frames", type=Path, metavar="FOLDER", help="keep each frame there, too")
    options = parser.parse_args()
    if CHROMIUM is None:
        parser.error(NONE)
    with chromium() as browser:
        for theme in ("light", "dark"):
            made, frames = record(browser, dark=theme == "dark")
            path = options.to / f"board-{theme}.webp"
            path.write_bytes(made)
            print(f"{path}: {len(frames)} frames, {len(made):,} bytes", flush=True)
            if options.frames:
                options.frames.mkdir(parents=True, exist_ok=True)
                for number, frame in enumerate(frames):
                    name = f"{theme}-{number:03}-{frame.milliseconds}ms.png"
                    (options.frames / name).write_bytes(frame.png)


if __name__ == "__main__":
    main()
