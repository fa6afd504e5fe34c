"""Pictures that are left in a notebook: by a program that runs its cells, and by JupyterLab, where
they are seen as soon as no kernel lives.
"""

import base64
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient
from nbconvert import HTMLExporter
from playwright.sync_api import Browser, expect

from course_lib.widgets.kit import page
from course_lib.widgets.kit.widget import MOST
from tests.browser.lab import Lab, Tab, jupyter, notebook
from tests.helpers import until

RUN = """
from course_lib import start
from course_lib.widgets import AllReduceStage, Predict, Timeline, TrainingBoard
run = start("multi_worker_mirrored", framework="torch", workers=2, steps=150, device_ms=10)
TrainingBoard(run)
"""
GUESS = """
guess = Predict("Which is faster?", choices=["ring", "tree"])
guess
"""
REVEAL = """
run.wait()
guess.input.value = "ring"
guess.lock()
guess.reveal("ring", "It is.");
"""
CELLS = RUN, GUESS, "AllReduceStage()", REVEAL, "Timeline(run)"
VIEW = "application/vnd.jupyter.widget-view+json"
TALL = {"width": 1280, "height": 2600}
# Whether a picture was seen, in any frame from now on.
WATCH = """
() => {
  window.seen = false;
  const look = () => {
    seen ||= [...document.querySelectorAll(".ls-saved")].some((one) => one.checkVisibility());
    requestAnimationFrame(look);
  };
  look();
}
"""
# The colour of a pixel near a corner of a PNG.
PIXEL = """
async (png) => {
  const image = new Image();
  image.src = `data:image/png;base64,${png}`;
  await image.decode();
  const canvas = new OffscreenCanvas(image.width, image.height).getContext("2d");
  canvas.drawImage(image, 0, 0);
  return canvas.getImageData(image.width - 8, 8, 1, 1).data[0];
}
"""


def bundles(path: Path) -> list[dict[str, Any]]:
    """What the cells of a notebook have as outputs, in order."""
    cells = nbformat.read(path, 4).cells
    return [o.data for cell in cells for o in cell.outputs if "data" in o]


def pictures(path: Path) -> list[str]:
    """The pictures in a notebook as SVG. Each of them is small, and is there as HTML, too."""
    found = [data for data in bundles(path) if "text/html" in data]
    for data in found:
        assert 'class="ls-saved"' in data["text/html"]
        assert len(data["text/html"]) + len(data["image/svg+xml"]) <= MOST
    return [data["image/svg+xml"] for data in found]


def executed(path: Path) -> Path:
    """A notebook whose cells a program has run, as `jupyter execute` does."""
    book = nbformat.read(path, 4)
    NotebookClient(book, timeout=120, resources={"metadata": {"path": path.parent}}).execute()
    nbformat.write(book, path)
    return path


def check_last_states(board: str, guess: str, stage: str, timeline: str) -> None:
    assert "is finished: step 150 of 150" in board and "worker:1" in board
    assert "(your guess)" in guess and "Result: ring. It is." in guess
    assert "hierarchical" in stage and "torch · 2 workers" in timeline


def test_a_program_leaves_the_last_picture_of_each_widget_and_nothing_else(tmp_path: Path) -> None:
    path = executed(notebook(tmp_path / "book.ipynb", *CELLS))
    check_last_states(*pictures(path))
    assert "widgets" not in nbformat.read(path, 4).metadata
    assert not [data for data in bundles(path) if VIEW in data]
    assert path.stat().st_size < 2 * MOST


def test_a_page_made_of_a_notebook_shows_pictures_light_and_dark(
    browser: Browser, tmp_path: Path
) -> None:
    start, guess = CELLS[0].splitlines()[2], CELLS[1]
    path = executed(notebook(tmp_path / "book.ipynb", f"{start}{guess}"))
    tab = Tab(browser)
    found = {}
    themes = ("light", "dark", "vscode-light", "vscode-dark")
    for theme in themes:
        if theme in themes[:2]:
            html, _ = HTMLExporter(theme=theme).from_filename(str(path))
        else:  # what VS Code's viewer makes of it
            html = f'<body class="{theme}">{bundles(path)[0]["text/html"]}</body>'
        tab.open(page.save(tmp_path / f"{theme}.html", html))
        picture = tab.page.locator("img.ls-saved")
        assert picture.evaluate("async (image) => (await image.decode(), image.naturalWidth)") > 300
        shot = base64.b64encode(picture.screenshot()).decode()
        found[theme] = tab.page.evaluate(PIXEL, shot)
    assert found["dark"] < 60 and found["light"] > 200
    assert found["vscode-dark"] < 60 and found["vscode-light"] > 200
    tab.page.close()


@pytest.mark.nightly
def test_jupyterlab_saves_the_last_pictures_and_shows_them_when_no_kernel_lives(
    browser: Browser, tmp_path: Path
) -> None:
    path = notebook(tmp_path / "book.ipynb", *CELLS)
    with jupyter(tmp_path) as address:
        lab = Lab(browser, f"{address}/lab/tree/{path.name}", viewport=TALL)
        lab.page.evaluate(WATCH)
        lab.run(len(CELLS))
        lab.page.locator(".ls-timeline").wait_for()
        expect(lab.page.get_by_role("status").filter(has_text="is finished")).to_be_visible()

        def saved() -> bool:
            lab.page.keyboard.press("Control+s")
            lab.page.wait_for_timeout(500)  # it is being written
            shown = [data["image/svg+xml"] for data in bundles(path) if "text/html" in data]
            return len(shown) == 4 and "150 of 150" in shown[0] and "It is." in shown[1]

        until(saved, "the last pictures are in the file", seconds=30)
        check_last_states(*pictures(path))
        assert lab.page.evaluate("seen") is False  # beside its widget no picture is shown
        assert lab.complaints() == []

        lab.page.get_by_role("menuitem", name="Kernel").click()
        lab.page.get_by_text("Shut Down Kernel", exact=True).click()
        lab.page.get_by_text("No Kernel").first.wait_for()
        check_shown(lab)
        lab.page.close()

        # A notebook that came from elsewhere, which JupyterLab does not trust.
        book = nbformat.read(path, 4)
        book.cells[0].source += "\n# by somebody else"
        nbformat.write(book, tmp_path / "theirs.ipynb")
        tab = Tab(browser, viewport=TALL)
        tab.page.goto(f"{address}/lab/tree/theirs.ipynb")
        check_shown(tab)
        tab.page.close()


def check_shown(tab: Tab) -> None:
    """After a reload the pictures are seen, and no widget."""
    tab.page.reload()
    # a reload opens other notebooks again as well, in tabs that lie behind
    shown = tab.page.locator(".jp-NotebookPanel:not(.lm-mod-hidden) img.ls-saved")
    for number in range(4):
        expect(shown.nth(number)).to_be_visible()
    assert not tab.page.locator(".lk-board, .ls-stage, .ls-timeline").count()
    expect(tab.page.get_by_text("Error displaying widget").first).to_be_hidden()
