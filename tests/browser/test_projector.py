"""The projector switch in JupyterLab at 1280x720: all is larger, and the stage with its sliders and
a board are whole on the screen.
"""

import contextlib
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Locator, expect

from tests.browser.lab import SIZE, opened
from tests.helpers import until

STAGE = """
from course_lib import stage
stage("ring", "hierarchical", workers=8, hosts=2)
"""
BOARD = """
from course_lib import start
from course_lib.widgets import Predict, TrainingBoard
run = start("multi_worker_mirrored", framework="torch", workers=4, steps=40, device_ms=10)
TrainingBoard(run.wait(), hide=["staleness", "memory"])
"""
GUESS = 'Predict("Which is faster?", choices=["ring", "tree"])'
SCROLLS = """
(widget) => [widget, ...widget.querySelectorAll("*")]
  .filter((one) => /auto|scroll/.test(getComputedStyle(one).overflowY))
  .filter((one) => one.scrollHeight > one.clientHeight + 1)
  .map((one) => one.className)
"""
WIDGETS = "ls-stage", "lk-board", "ls-predict"
ROOM = "document.querySelector('.jp-WindowedPanel-outer').clientHeight"


def check_fits(widget: Locator) -> None:
    """It is on the screen from its head to its foot, and nothing in it scrolls; canvases take their
    size a few frames later.
    """

    def unfit() -> list[Any]:
        widget.evaluate("(widget) => widget.scrollIntoView({ block: 'start' })")
        box, room = widget.bounding_box(), widget.page.evaluate(ROOM)
        assert box
        fits = box["height"] <= room and 0 <= box["x"] <= SIZE["width"] - box["width"]
        return [*([] if fits else [box, room]), *widget.evaluate(SCROLLS)]

    with contextlib.suppress(TimeoutError):
        until(lambda: not unfit(), "it fits")
    assert unfit() == []


# on the screen, whatever the zoom: the top of each heading, and the size of a chunk in each panel
PANELS = """(root) => root.stage.views.map(({ canvas, picture: { cell } }) => {
  const zoom = canvas.getBoundingClientRect().width / canvas.clientWidth;
  const heading = canvas.parentElement.querySelector("h3").getBoundingClientRect().top;
  return [heading, cell.width * zoom, cell.height * zoom];
})"""


def test_on_a_projector_the_stages_picture_is_no_smaller_and_its_headings_are_in_line(
    browser: Browser, tmp_path: Path
) -> None:
    with opened(browser, tmp_path, STAGE) as lab:
        lab.run()
        stage, canvas = lab.page.locator(".ls-stage"), lab.page.locator(".stage-canvas").first
        switch = stage.get_by_role("button", name="Projector")

        def cells() -> list[float]:
            return [size for _, *sizes in stage.evaluate(PANELS) for size in sizes]

        def check_enlarged() -> None:
            before = cells()
            switch.click()
            check_fits(stage)
            assert all(large >= small - 0.01 for small, large in zip(before, cells(), strict=True))
            left, right = stage.evaluate(PANELS)
            assert left[0] == right[0]
            switch.click()
            until(lambda: cells() == before, "it is as before")

        canvas.wait_for()
        check_enlarged()
        narrow = canvas.evaluate("(canvas) => canvas.clientWidth")
        lab.page.locator(".jp-Toolbar").first.click()
        lab.page.keyboard.press("Control+b")  # without the list of files
        until(lambda: canvas.evaluate("(c) => c.clientWidth") > narrow, "it is wider")
        check_enlarged()
        assert lab.complaints() == []


@pytest.mark.nightly
def test_on_a_projector_all_is_larger_and_stage_and_board_are_whole(
    browser: Browser, tmp_path: Path
) -> None:
    with opened(browser, tmp_path, STAGE, BOARD, GUESS) as lab:
        page = lab.page
        page.keyboard.press("Control+b")  # without the list of files
        lab.run(3)
        stage, board, guess = (page.locator(f".{name}") for name in WIDGETS)
        expect(guess).to_be_visible()
        names = [stage.locator("h3").first, board.locator("h2"), guess.get_by_text("ring").first]
        before = [name.bounding_box() for name in names]
        switch = stage.get_by_role("button", name="Projector")
        expect(switch).to_have_attribute("aria-pressed", "false")
        switch.click()

        expect(board.get_by_role("button", name="Projector")).to_have_attribute(
            "aria-pressed", "true"
        )
        for name, small in zip(names, before, strict=True):
            large = name.bounding_box()
            assert large and small and large["height"] > 1.15 * small["height"]
        check_fits(stage)
        check_fits(board)

        # What is under the pointer is what it points at.
        at = stage.evaluate("(root) => root.stage.views[0].picture.center(2, 3)")
        canvas = stage.locator(".stage-canvas").first
        zoom = canvas.evaluate("(canvas) => canvas.currentCSSZoom")
        canvas.hover(position={"x": at["x"] * zoom, "y": at["y"] * zoom})
        expect(page.get_by_role("tooltip")).to_contain_text("rank 2, chunk 3")

        # It is kept by the browser, and another press ends it.
        lab.choose(0)
        lab.save()
        page.on("dialog", lambda dialog: dialog.accept())  # leave the page all the same
        page.reload()
        expect(page.locator("html[data-ls-projector]")).to_be_attached()
        switch.click()
        expect(page.locator("html[data-ls-projector]")).not_to_be_attached()
        assert lab.complaints() == []
