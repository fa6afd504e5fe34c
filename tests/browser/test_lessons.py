"""Lessons in a real JupyterLab, as a learner goes through them: by hand, with a reload in the
middle, after a kernel restart by Run All, and in a tab that is opened again.

`NIGHTLY=1` goes through every notebook in all these ways, cell by cell and with pauses.
Otherwise one lesson is read, as far as its first widget that moves, and after a reload.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat
import psutil
import pytest
from playwright.sync_api import Browser, expect

from tests.browser.lab import Lab, jupyter
from tests.conftest import HOME, processes_of
from tests.helpers import until

ROOT = Path(__file__).parents[2]
# by the names that their copies get: an exercise may be called as its lesson is
BOOKS = {path.name: path for path in sorted(ROOT.glob("notebooks/*.ipynb"))}
BOOKS |= {f"exercise_{path.name}": path for path in sorted(ROOT.glob("solutions/*.ipynb"))}
SCRIPT = (Path(__file__).parent / "lessons.js").read_text()
MOVES = re.compile(r"^(board = )?(TrainingBoard|RaceBoard|AllReduceStage|stage)\(", re.MULTILINE)
MEANT = "Its loss is no mean over examples"  # the warning that lesson 02 is about
SHORT, TWICE = "09_sync_vs_async.ipynb", "03_synchronous_training.ipynb"
LONG = bool(os.environ.get("NIGHTLY"))
SIZE = {"width": 1280, "height": 1000}


class Reader(Lab):
    """A lesson in JupyterLab, and somebody who reads it."""

    def __init__(self, browser: Browser, address: str, book: str) -> None:
        self.server, self.book = address, book
        self.browser = browser
        # a workspace of its own shows this notebook alone
        page = f"{address}/lab/workspaces/{book.removesuffix('.ipynb')}/tree/{book}"
        super().__init__(browser, page, viewport=SIZE)
        self.watch()

    def watch(self) -> None:
        """Look for what moves, until the page is left."""
        self.page.evaluate(SCRIPT)

    def by_hand(self, last: int) -> None:
        """Run cell after cell, from the chosen one, and answer what is asked."""
        while (cell := self.ask("active()")) <= last:
            self.page.keyboard.press("Shift+Enter")
            self.idle()
            self.answer(cell)
            self.page.wait_for_timeout(1000 if LONG else 0)
            self.page.wait_for_function(f"lesson.active() == {cell + 1}")

    def answer(self, cell: int) -> None:
        """Lock the guesses that the cell asks for; then the next cell has the focus again."""
        card = self.page.locator(".jp-Notebook .jp-Cell").nth(cell).locator(".jp-OutputArea")
        buttons = card.get_by_role("button", name="Lock my guess").all()
        if not buttons:
            return
        for choices in card.locator(".widget-radio-box").all():
            choices.locator("input[type=radio]").last.click()
        for handle in card.locator(".noUi-handle").all():
            handle.focus()
            self.page.keyboard.press("ArrowRight")
        for button in reversed(buttons):  # one that is locked is not found any more
            button.click()
        expect(card.get_by_role("button", name="Locked")).to_have_count(len(buttons))

    def idle(self, seconds: float = 150) -> None:
        """Wait until no cell runs or waits."""
        until(lambda: not self.ask("busy()"), "all cells have run", seconds, every=0.1)

    def menu(self, *names: str) -> None:
        for name in names:
            self.page.locator(".lm-MenuBar-itemLabel, .lm-Menu-itemLabel").get_by_text(
                name, exact=True
            ).click()

    def run_all(self) -> None:
        self.menu("Run", "Run All Cells")
        self.page.wait_for_function("lesson.busy() > 0")
        self.idle(240)

    def restart(self) -> None:
        self.menu("Kernel", "Restart Kernel…")
        self.page.get_by_role("button", name="Confirm Kernel Restart").click()
        self.kernel("Idle")

    def again(self, closed: bool) -> None:
        """Save; then reload the page, or close the tab and open the lesson in a new one."""
        self.fine()
        self.page.keyboard.press("Control+s")
        self.page.wait_for_function("!jupyterapp.shell.currentWidget.context.model.dirty")
        if closed:
            self.page.close()
            fresh = Reader(self.browser, self.server, self.book)
            self.page, self.errors, self.asked = fresh.page, fresh.errors, fresh.asked
        else:
            self.page.reload()
            self.kernel("Idle")
            self.watch()

    def ask(self, what: str) -> Any:
        return self.page.evaluate(f"lesson.{what}")

    def pictures(self, before: dict[str, Any] | None = None) -> dict[str, Any]:
        """What each widget shows, when none is blank; what was over `before` looks as it did."""
        shown: dict[str, Any] = {}

        def drawn() -> bool:
            shown.clear()
            shown.update(self.ask("pictures()"))
            there = shown.keys() == before.keys() if before is not None else bool(shown)
            return there and not any(facts["blank"] for facts in shown.values())

        try:
            until(drawn, "all is drawn", seconds=30, every=0.3)
        except AssertionError:
            blank = {widget: facts["blank"] for widget, facts in shown.items()}
            raise AssertionError(f"not drawn: {blank}, expected {[*(before or [])]}") from None
        for widget, facts in (before or {}).items():
            if not facts["live"]:
                assert shown[widget] == facts, widget
        return shown

    def fine(self) -> None:
        """No message of ours anywhere, nothing red, and nothing has moved."""
        self.page.wait_for_function("lesson.seen() > 0")
        assert self.complaints() == []
        assert [each for each in self.ask("wrong()") if MEANT not in each] == []
        assert self.ask("moved()") == {}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Copies of all lessons, as guesses are kept beside them."""
    folder = tmp_path_factory.mktemp("course")
    for name, path in BOOKS.items():
        shutil.copy(path, folder / name)
    shutil.copytree(ROOT / "notebooks/strategies", folder / "strategies")
    return folder


@pytest.fixture(scope="module")
def address(folder: Path) -> Iterator[str]:
    with jupyter(folder) as address:
        yield address


@contextlib.contextmanager
def reading(browser: Browser, address: str, book: str) -> Iterator[Reader]:
    """A lesson that is open. In the end its kernel is shut down, and nothing that it started is
    left.
    """
    reader = Reader(browser, address, book)
    try:
        yield reader
    finally:
        reader.menu("Kernel", "Shut Down Kernel")
        reader.page.close()
        until(lambda: not ours(), "all processes of the lesson are gone")


def ours() -> list[list[str]]:
    """Command lines of the processes of lessons; the server and its kernels are not among them."""
    found = []
    for process in processes_of(HOME):
        with contextlib.suppress(psutil.NoSuchProcess):  # gone since it was found
            found.append(process.cmdline())
    return [line for line in found if "course_lib" in " ".join(line)]


def cells(book: str) -> list[Any]:
    return nbformat.read(BOOKS[book], 4).cells


def middle(book: str) -> int:
    """The number of the first cell that shows something that moves, or else of the last cell."""
    sources = [c.source if c.cell_type == "code" else "" for c in cells(book)]
    moving = (number for number, source in enumerate(sources) if MOVES.search(source))
    return next(moving, len(sources) - 1)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("book", BOOKS if LONG else [SHORT])
def test_a_lesson_shows_what_it_showed_whatever_is_done_to_the_page(
    browser: Browser, address: str, book: str
) -> None:
    with reading(browser, address, book) as reader:
        reader.by_hand(middle(book))
        shown = reader.pictures()
        asked = any("predict" in name for name in shown)  # and answered, before the board
        reader.again(closed=False)
        reader.pictures(shown)
        reader.fine()
        if not LONG:
            return
        reader.choose(middle(book) + 1)
        reader.by_hand(len(cells(book)) - 1)
        shown = reader.pictures()
        reader.again(closed=True)
        reader.pictures(shown)
        reader.fine()
        reader.restart()
        reader.run_all()
        shown = reader.pictures()
        guessed = [facts["text"] for name, facts in shown.items() if "predict" in name]
        if asked:
            assert "You made no guess" not in guessed[0], "it was locked before the restart"
        reader.again(closed=True)
        reader.pictures(shown)
        reader.fine()


@pytest.mark.timeout(300)
def test_cells_run_twice_and_a_wait_that_is_stopped_leave_a_fine_page(
    browser: Browser, folder: Path, address: str
) -> None:
    board = middle(TWICE)
    shutil.copy(folder / TWICE, folder / "twice.ipynb")
    with reading(browser, address, "twice.ipynb") as reader:
        reader.by_hand(board)
        live = reader.page.get_by_role("status").filter(has_text="is running: step")
        for _ in range(2):  # the cell again, while its board lives
            reader.pictures()  # what is replaced before it is drawn, JupyterLab misses
            reader.choose(board)
            reader.page.keyboard.press("Shift+Enter")
            reader.idle()
            expect(live).to_have_count(1)

        # A wait that is interrupted ends its cell, and the run goes on.
        reader.page.keyboard.press("Escape")
        reader.page.keyboard.press("a")
        reader.page.keyboard.press("Enter")
        reader.page.keyboard.insert_text("run.wait()")
        reader.page.keyboard.press("Shift+Enter")
        reader.page.wait_for_function("lesson.busy() == 1")
        reader.page.wait_for_timeout(3000)
        reader.menu("Kernel", "Interrupt Kernel")
        reader.idle(10)
        (said,) = reader.ask("wrong()")
        assert "run goes on" in said
        expect(live).to_be_visible()
        # what JupyterLab says of an output that a busy machine replaces before it is drawn
        missed = "Error: widget model not found"
        assert [said for said in reader.complaints() if not said.startswith(missed)] == []
        assert reader.ask("moved()") == {}
