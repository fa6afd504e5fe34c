"""The live board of a run in a real JupyterLab: it draws, its slider slows a real worker, Stop
stops, no part of it moves, and neither a new page nor a kernel restart takes anything away.
"""

import contextlib
import csv
import re
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, ViewportSize, expect

from course_lib.record.events import Lifecycle, Phase
from course_lib.record.trace import Trace
from course_lib.widgets.kit import svg
from tests.browser.lab import CELLS, FRONT, Lab, opened
from tests.conftest import HOME, processes_of
from tests.helpers import until

CELL = """
from course_lib import start
from course_lib.widgets import TrainingBoard
run = start("multi_worker_mirrored", framework="torch", workers=4, steps=100000, device_ms=20)
board = TrainingBoard(run)
board
"""
# the titles and labels of a board that are wider than their place
CUT = """board => [...board.querySelectorAll(".lk-chart-head b, .lk-axis span")].filter(
    part => part.scrollWidth > part.clientWidth
        || part.getBoundingClientRect().right > board.getBoundingClientRect().right
).map(part => part.textContent)"""
TALL = {"width": 1280, "height": 1000}


@contextlib.contextmanager
def board_in_lab(browser: Browser, folder: Path, cell: str) -> Iterator[Lab]:
    """JupyterLab with a notebook open whose one cell shows a board, run."""
    with opened(browser, folder, cell, viewport=TALL) as lab:
        lab.run()
        lab.page.locator(".jp-OutputArea .lk-chart").first.wait_for()
        yield lab


@pytest.fixture
def lab(browser: Browser, tmp_path: Path) -> Iterator[Lab]:
    with board_in_lab(browser, tmp_path, CELL) as lab:
        yield lab


def newest_runs(count: int = 1) -> list[Path]:
    """Directories of the runs that began last, the first to begin first."""
    return sorted((Path(HOME) / "runs").iterdir(), key=lambda path: path.stat().st_mtime)[-count:]


def pids_of(trace: Trace) -> set[int]:
    return {e.pid for e in trace.all(Lifecycle, state="starting")}


def press(page: Page, key: str, times: int) -> None:
    """Move the slider that slows by keyboard."""
    page.locator(".noUi-handle").first.focus()
    for _ in range(times):
        page.keyboard.press(key)


def test_a_board_draws_slows_and_stops_a_real_cluster(lab: Lab) -> None:
    page = lab.page
    # It draws the lanes of all workers and says that device time is emulated.
    expect(page.get_by_role("status").filter(has_text="is running: step")).to_be_visible()
    expect(page.locator(".ls-badge")).to_contain_text("emulated")
    expect(page.locator(".ls-badge")).to_have_attribute(
        "title", "Real processes and real bytes, but a step sleeps 20 ms in place of a device."
    )
    page.wait_for_function(
        "[...document.querySelectorAll('.lk-row')]"
        ".filter(row => row.querySelectorAll('path').length > 2).length == 4"
    )
    page.wait_for_function("document.querySelectorAll('.lk-chart path.line').length == 3")

    expect(page.get_by_label("task", exact=True)).to_be_visible()

    # No words are cut off, on a page of this size either.
    board = page.locator(".lk-board")
    assert 800 < board.bounding_box()["width"] < 850
    assert board.evaluate(CUT) == []

    # Its slider, moved by keyboard, slows the worker that is chosen, and the lane shows it.
    press(page, "ArrowRight", 12)
    (run,) = newest_runs()
    trace = Trace.of_run(run)
    until(lambda: trace.refresh().all(Lifecycle, "worker:3", state="slowed"), "worker:3 is slowed")
    expect(page.locator('.lk-row[data-task="worker:3"]')).to_contain_text("\u00d74")
    slowed_at = trace.all(Lifecycle, "worker:3", state="slowed")[-1].at
    until(lambda: trace.refresh().seconds > slowed_at + 1, "a second of slow steps")
    slow = [p.end - p.start for p in trace.all(Phase, "worker:3", what="compute")][-1]
    fast = [p.end - p.start for p in trace.all(Phase, "worker:0", what="compute")][-1]
    assert slow > 2 * fast

    # A choice of delays lets its steps vary, and it is shown for the task that is chosen.
    page.get_by_label("delays").select_option("exponential:20ms")
    until(
        lambda: trace.refresh().all(Lifecycle, "worker:3", state="jittered"),
        "worker:3 has delays",
    )
    assert trace.all(Lifecycle, "worker:3", state="jittered")[-1].jitter == "exponential:20ms"
    task = page.get_by_label("task", exact=True)
    task.focus()
    for _ in range(3):
        page.keyboard.press("ArrowUp")
    expect(task).to_be_focused()
    expect(task).to_have_value("worker:0")
    expect(page.get_by_label("delays")).to_have_value("none")
    page.get_by_label("task", exact=True).select_option("worker:3")
    expect(page.get_by_label("delays")).to_have_value("exponential:20ms")

    # Stop ends the run, with all its tasks, while it is at full speed.
    press(page, "ArrowLeft", 12)
    until(
        lambda: trace.refresh().all(Lifecycle, "worker:3", state="slowed")[-1].factor == 1,
        "it is at full speed",
    )
    page.get_by_role("button", name="Stop").click()
    expect(page.get_by_role("status").filter(has_text="is stopped")).to_be_visible()
    assert not any(map(psutil.pid_exists, pids_of(trace)))
    expect(page.get_by_role("button", name="Stop")).to_be_hidden()
    expect(page.get_by_role("button", name="Restart", exact=False).last).to_be_enabled()

    # The charts keep to the room that there is, now that nothing is drawn any more: the list of
    # files closes.
    chart = page.locator(".lk-chart > svg").first
    before = chart.bounding_box()["width"]
    page.keyboard.press("Control+b")
    page.wait_for_function(
        """before => {
          const chart = document.querySelector(".lk-chart > svg");
          const drawn = chart.querySelector(".field").getBoundingClientRect();
          const room = chart.getBoundingClientRect();
          return room.width > before + 30 && Math.abs(room.right - 10 - drawn.right) < 1;
        }""",
        arg=before,
    )
    assert lab.complaints() == []


def test_a_kernel_restart_leaves_a_readable_page_and_no_process(lab: Lab) -> None:
    page = lab.page
    expect(page.get_by_role("status").filter(has_text="is running: step")).to_be_visible()
    before = [p for p in processes_of(HOME) if "course_lib.cluster" in " ".join(p.cmdline())]
    assert len(before) >= 5
    page.get_by_role("menuitem", name="Kernel").click()
    page.get_by_text("Restart Kernel…", exact=True).click()
    page.get_by_role("button", name="Confirm Kernel Restart").click()
    until(
        # ended ones may wait to be reaped: by the old kernel until it ends, then by process 1
        lambda: not set(before).intersection(processes_of(HOME)),
        "all processes of the cluster are gone",
        seconds=15,
    )
    # The board is still there to read, and says that it is not live any more.
    page.locator(".lk-board.jupyter-widgets-disconnected").wait_for()
    said, own = page.evaluate(
        """["::before", null].map((part) => {
            const style = getComputedStyle(document.querySelector(".lk-board h2"), part);
            return `${style.content} ${style.fontSize}`;
        })"""
    )
    assert "kernel was restarted" in said and "17px" in said and "Run the cell again" in said
    # no control is left to press, and no sign of a broken chain stands on the widgets
    assert page.locator(".lk-controls button:visible, .lk-controls select:visible").count() == 0
    assert page.evaluate(
        """[...document.querySelectorAll(".lk-board, .lk-board .jupyter-widgets-disconnected")]
            .every((part) => getComputedStyle(part, "::before").display === "none")"""
    )
    assert own.endswith(" 0px")  # "is running" is not seen any more
    expect(page.locator(".lk-chart path.line").first).to_be_visible()
    assert page.locator(".lk-row path").count() > 4


RACE = """
from course_lib import race
from course_lib.widgets import RaceBoard
both = race("multi_worker_mirrored", "parameter_server", framework="torch", workers=2,
            steps=100000, device_ms=20)
board = RaceBoard(both)
board
"""
# what was done to one only makes the longest verdict
UNFAIR = """
one = both.runs["parameter_server"]
for what in (one.slow, one.jitter):
    what("worker:1", *{"slow": [3], "jitter": ["lognormal:0.5"]}[what.__name__])
one.pause("worker:0")
one.resume("worker:0")
both.stop()
"""
NOT_FAIR = re.compile("NOT FAIR")
# px of a note that lie outside of the place that the board has for it
HIDDEN = """note => {
  const place = note.closest(".widget-html").getBoundingClientRect();
  const box = note.getBoundingClientRect();
  return Math.max(0, Math.round(box.bottom - place.bottom), note.scrollWidth - note.clientWidth);
}"""
# of two boards, or two views of one, of three charts with two lines each
ALL_LINES = (
    f"[...document.querySelectorAll('{FRONT} .lk-chart path.line')]"
    ".filter(line => line.getAttribute('d').length > 30).length == 12"
)
TAB = "#jp-main-dock-panel .lm-TabBar-tab"


@pytest.mark.nightly
def test_charts_are_as_before_in_a_second_view_after_a_reload_and_in_a_tab_opened_again(
    browser: Browser, tmp_path: Path
) -> None:
    with opened(browser, tmp_path, RACE, "board", UNFAIR, viewport=TALL) as lab:
        page = lab.page
        lab.run(2)
        page.wait_for_function(ALL_LINES)
        assert lab.complaints() == []
        lab.save()
        page.on("dialog", lambda dialog: dialog.accept())  # leave the page all the same
        for state in ("live", "finished"):
            for _ in range(2):
                page.reload()
                page.wait_for_function(ALL_LINES)
            tab = page.locator(TAB).filter(has_text="notebook.ipynb")
            tab.locator(".lm-TabBar-tabCloseIcon").click()
            expect(page.locator(".lk-chart")).to_have_count(0)
            page.locator(".jp-DirListing-item").filter(has_text="notebook.ipynb").dblclick()
            page.wait_for_function(ALL_LINES)
            if state == "live":
                lab.choose(2)
                lab.run()
                expect(page.locator('.lk-side[data-state="stopped"]')).to_have_count(4)
                expect(page.locator(".lk-facts .lk-unfair")).to_have_count(2)
                for note in page.locator(".lk-facts .lk-unfair").all():
                    expect(note).to_contain_text(NOT_FAIR)
                    assert note.evaluate(HIDDEN) == 0, "all of a long verdict can be read"
                lab.save()
        assert lab.logged() == []


# words of marks that are not within their own place and the chart, or lie on another's
AMISS = """() => [...document.querySelectorAll(".lk-chart > svg")].flatMap((chart) => {
  const boxes = (name) => [...chart.querySelectorAll(name)].map((e) => e.getBoundingClientRect());
  const [field, backs, words] = [".field", ".back", ".word"].map(boxes);
  const within = (a, b) => a.left > b.left - 1 && a.right < b.right + 1;
  const apart = (a, b) => a.right < b.left + 1 || b.right < a.left + 1
    || a.bottom < b.top + 1 || b.bottom < a.top + 1;
  return [...chart.querySelectorAll(".word")].filter((_, i) =>
    !within(words[i], backs[i]) || !within(backs[i], field[0])
      || !backs.every((back, j) => j === i || apart(back, backs[i]))).map((e) => e.textContent);
})"""
DONE = """
from course_lib import start
from course_lib.widgets import TrainingBoard
run = start("multi_worker_mirrored", framework="torch", workers=2, steps=60, device_ms=10,
            faults=["slow worker:1=4 at step 30 for 200ms", "pause worker:1 at step 33 for 50ms"])
board = TrainingBoard(run.wait())
board
"""


def test_a_chart_tells_its_values_and_marks_zooms_and_is_saved(
    browser: Browser, tmp_path: Path
) -> None:
    with opened(browser, tmp_path, DONE, "print(board.charts.logarithmic)", viewport=TALL) as lab:
        page = lab.page
        lab.run()
        chart, tip = page.locator(".lk-chart > svg").first, page.locator(".lk-tip").first
        expect(chart.locator(".word").first).to_have_text("slow \u00d74")
        box = chart.bounding_box()

        # Marks have their words where there is room above the lines, whole, and none lies on
        # another; of the others, the last row says how many.
        words = chart.locator(".word").all_text_contents()
        counts = [re.fullmatch(r"(.+?)(?: \+(\d+))?", word) for word in words]
        assert {match[1] for match in counts} <= {"full speed", "pause", "resume", "slow \u00d74"}
        assert sum(1 + int(match[2] or 0) for match in counts) == 4
        assert len({word.bounding_box()["y"] for word in chart.locator(".word").all()}) <= 2
        assert page.evaluate(AMISS) == []

        # The pointer tells the loss, and at a mark what was done to whom and when.
        mark = chart.locator(".stem").first.bounding_box()
        page.mouse.move(mark["x"] + 1, box["y"] + 100)
        expect(tip).to_contain_text("multi_worker_mirrored: ")
        expect(tip.locator(".lk-done")).to_contain_text("slow \u00d74: worker:1, at ")
        page.mouse.move(box["x"] + 60, box["y"] - 60)
        expect(tip).to_be_hidden()

        # A drag zooms in on a part, a double click shows all again.
        def shown() -> list[str]:
            return chart.locator("text.soft[text-anchor=middle]").all_text_contents()

        before, whole = shown(), page.get_by_role("button", name="Show all of the chart").first
        expect(whole).to_be_hidden()
        page.mouse.move(box["x"] + 100, box["y"] + 60)
        page.mouse.down()
        page.mouse.move(box["x"] + 160, box["y"] + 62, steps=3)
        page.mouse.up()
        expect(whole).to_be_visible()
        assert shown() != before
        page.mouse.dblclick(box["x"] + 130, box["y"] + 60)
        expect(whole).to_be_hidden()
        assert shown() == before

        # The same by keyboard; none of the keys reaches the notebook.
        cells = page.locator(".jp-Notebook .jp-Cell").count()
        page.keyboard.press("End")
        page.keyboard.press("ArrowLeft")
        expect(tip).to_contain_text("loss, mean of 10 batches")
        page.keyboard.press("+")
        expect(whole).to_be_visible()
        page.keyboard.press("0")
        expect(whole).to_be_hidden()
        heights = chart.locator("text.soft[text-anchor=end]")
        linear = heights.all_text_contents()
        page.keyboard.press("l")
        expect(
            page.get_by_role("button", name="Loss on a logarithmic axis").first
        ).to_have_attribute("aria-pressed", "true")
        assert linear[0] == "0" and "0" not in heights.all_text_contents()
        assert page.locator(".jp-Notebook .jp-Cell").count() == cells

        # The axis is that of the board's charts, wherever they are shown.
        lab.choose(1)
        lab.run()
        expect(page.locator(".jp-OutputArea-output").get_by_text("True")).to_be_visible()

        # The line of a single run needs no key, but a file has to say whose it is.
        expect(page.locator(".lk-key")).to_have_count(0)
        file = saved(page, "loss over seconds.svg").decode()
        words = [text.text for text in ET.fromstring(file).iter("{http://www.w3.org/2000/svg}text")]
        assert {"loss over seconds", "multi_worker_mirrored", "slow \u00d74"} <= set(words)
        assert "var(" not in file
        for theme in ("Light", "Dark"):
            lab.theme(theme)
            assert serious(page, ".lk-room") == []
        assert lab.complaints() == []


def saved(page: Page, name: str) -> bytes:
    """The file of the first chart in a form, which its menu offers."""
    page.get_by_role("button", name="Save this chart").first.click()
    with page.expect_download() as saving:
        form = name.rpartition(".")[2].upper()
        page.get_by_role("button", name=form, exact=True).click()
    assert saving.value.suggested_filename == name
    return Path(saving.value.path()).read_bytes()


def serious(page: Page, part: str) -> list[str]:
    """What axe-core finds serious in a part of the page."""
    found = Axe().run(page, part).response["violations"]
    return [str(each) for each in found if each["impact"] in ("serious", "critical")]


CHARTS = """
import numpy as np
from course_lib.widgets.board.plots import Charts, Panel
x = np.arange(1.0, 20)
def panels(scale):
    return [Panel(f"loss over {over}", over, "loss, mean of 10 batches", [(x, scale / x), (x, x)],
                  log=True).plain() for over in ("seconds", "examples")]
charts = Charts(["sync, alone", "async"], panels(1.0))
charts
"""
# of each chart: the colours of its lines
COLORS = """() => [...document.querySelectorAll(".lk-chart > svg")].map((chart) =>
  [...chart.querySelectorAll("path.line")].map((line) => line.getAttribute("stroke")))"""


def test_the_key_of_charts_hides_a_line_in_all_of_them_and_files_have_what_is_shown(
    browser: Browser, tmp_path: Path
) -> None:
    with opened(browser, tmp_path, CHARTS, "charts.panels = panels(2.0)") as lab:
        page = lab.page
        lab.run()
        sync, other = (page.get_by_role("button", name=name) for name in ("sync, alone", "async"))
        chart = page.locator(".lk-chart > svg").first
        expect(other).to_have_attribute("aria-pressed", "true")
        both = [svg.entrant(0)[0], svg.entrant(1)[0]]
        page.wait_for_function(f"({COLORS})().flat().length === 4")
        assert page.evaluate(COLORS) == [both, both]

        # By keyboard, from the key to the first chart, its menu and back; Lab takes none of it.
        sync.focus()
        page.keyboard.press("Enter")
        expect(sync).to_have_attribute("aria-pressed", "false")
        expect(chart).to_have_attribute("aria-label", re.compile("^loss over seconds: async: "))
        for _ in range(3):
            page.keyboard.press("Tab")
        opener = page.get_by_role("button", name="Save this chart").first
        expect(opener).to_be_focused()
        page.keyboard.press("Enter")
        page.keyboard.press("Tab")
        expect(page.get_by_role("button", name="SVG", exact=True)).to_be_focused()
        page.keyboard.press("Escape")
        expect(opener).to_be_focused()
        expect(opener).to_have_attribute("aria-expanded", "false")
        page.keyboard.press("Tab")
        expect(chart).to_be_focused()
        page.keyboard.press("End")
        tip = page.locator(".lk-tip").first
        expect(tip).to_contain_text("async: ")
        expect(tip).not_to_contain_text("sync, alone")
        page.keyboard.press("Tab")
        expect(chart).not_to_be_focused()
        expect(tip).to_be_hidden()

        # New data leave it hidden, and files are of what is shown.
        assert (
            saved(page, "loss over seconds.csv")
            .decode()
            .startswith("entrant,seconds,loss\nasync,1,1\nasync,2,2\n")
        )
        lab.choose(1)
        lab.run()
        expect(page.locator(CELLS).nth(1).locator(".jp-InputPrompt")).to_have_text("[2]:")
        assert page.evaluate(COLORS) == [both[1:], both[1:]]
        sync.click()
        page.wait_for_function(f"({COLORS})().flat().length === 4")
        rows = list(csv.reader(saved(page, "loss over seconds.csv").decode().splitlines()))
        assert rows[1] == ["sync, alone", "1", "2"] and len(rows) == 1 + 2 * 19

        # The axis fits what is shown.
        top = chart.locator("text[text-anchor=end]").last
        expect(top).to_have_text("20")
        other.click()
        expect(top).to_have_text("2")
        other.click()
        expect(top).to_have_text("20")

        # A picture is twice as large as on the page, and has the key.
        drawn = ET.fromstring(saved(page, "loss over seconds.svg"))
        words = [text.text for text in drawn.iter("{http://www.w3.org/2000/svg}text")]
        assert words[-2:] == ["sync, alone", "async"]
        picture = saved(page, "loss over seconds.png")
        size = [int.from_bytes(picture[at : at + 4], "big") for at in (16, 20)]
        assert size == [int(2 * float(drawn.attrib[side])) for side in ("width", "height")]

        for theme in ("Light", "Dark"):
            lab.theme(theme)
            opener.click()
            assert serious(page, ".lk-room") == []
            page.keyboard.press("Escape")
        assert lab.complaints() == []


# Notes each place in which a part of the board is seen, in every frame, from the cell's top.
PLACES = """() => {
  const parts = ".lk-controls button, .lk-controls select, .lk-controls .noUi-target, .lk-chart, " +
    ".lk-row, .lk-axis, .lk-legend";
  window.__places = {};
  const look = () => {
    requestAnimationFrame(look);
    const board = document.querySelector(".lk-board");
    if (!board) return;
    const { top: y, left: x } = board.closest(".jp-Cell").getBoundingClientRect();
    board.querySelectorAll(parts).forEach((part, n) => {
      const { left, top, width, height } = part.getBoundingClientRect();
      if (width) (window.__places[`${n} ${part.className} ${part.textContent.slice(0, 9)}`] ??= {})
        [[left - x, top - y, width, height].map((each) => each.toFixed(1)).join(" ")] = 1;
    });
  };
  look();
}"""
# long enough for whatever still comes
FRAMES = """async () => {
  for (let n = 0; n < 30; n++) await new Promise(requestAnimationFrame);
}"""
MOVED = """() => Object.entries(window.__places)
  .map(([part, places]) => [part, ...Object.keys(places)]).filter((seen) => seen.length > 2)"""


@pytest.mark.sample(2)
@pytest.mark.parametrize("size", [{"width": 1280, "height": 720}, {"width": 1600, "height": 1000}])
def test_no_part_of_a_board_moves_when_data_a_pause_a_failure_or_the_end_come(
    browser: Browser, tmp_path: Path, size: ViewportSize
) -> None:
    cell = RACE.replace("workers=2", "workers=3")
    with opened(browser, tmp_path, cell, viewport=size) as lab:
        page = lab.page
        page.evaluate(PLACES)
        lab.run()
        page.wait_for_function(ALL_LINES.replace("12", "6"))
        page.get_by_role("button", name="Pause").click()
        expect(page.locator('.lk-row[data-fate="paused"]')).to_have_count(2)
        expect(page.locator(".lk-headline .lk-note")).to_contain_text("standing still for")
        page.get_by_role("button", name="Resume").click()
        expect(page.locator('.lk-row[data-fate="paused"]')).to_have_count(0)
        page.get_by_label("run", exact=True).select_option("multi_worker_mirrored")
        page.get_by_role("button", name="Kill").click()
        expect(page.locator(".lk-note")).to_contain_text("it was killed on the board")
        page.get_by_role("button", name="Stop").click()
        expect(page.locator(".lk-side").nth(1)).to_have_attribute("data-state", "stopped")
        expect(page.locator(".lk-side").nth(1)).to_contain_text("(mean of 10 batches)")
        page.evaluate(FRAMES)
        assert page.evaluate(AMISS) == []
        assert len(page.evaluate("Object.keys(window.__places)")) > 15
        moved = page.evaluate(MOVED)
        assert moved == []
        assert lab.complaints() == []


NAMED = f"""
import sys
sys.path.insert(0, {str(Path(__file__).parents[2])!r})
from course_lib import start
from course_lib.widgets import TrainingBoard
from tests.own_loops import torch_gan
run = start(torch_gan, framework="torch", workers=2, device_ms=50)
board = TrainingBoard(run)
board
"""


def test_each_loss_of_a_gan_gets_a_chart_with_its_name_while_the_run_goes_on(
    browser: Browser, tmp_path: Path
) -> None:
    with board_in_lab(browser, tmp_path, NAMED) as lab:
        titles = lab.page.locator(f"{FRONT} .lk-chart-head b")
        named = ["generator loss", "critic loss", "examples a second"]
        expect(titles).to_have_text(named)
        expect(lab.page.locator(f"{FRONT} .lk-headline h2")).to_contain_text("critic loss")
        assert lab.page.locator(f"{FRONT} .lk-board").evaluate(CUT) == []
        assert lab.complaints() == []


FIRST = re.search(
    r"```python\n(.*?)```", (Path(__file__).parents[2] / "README.md").read_text(), re.S
)


def test_the_first_cell_of_the_readme_shows_all_that_matters_on_one_screen(
    browser: Browser, tmp_path: Path
) -> None:
    assert FIRST
    with opened(browser, tmp_path, FIRST[1]) as lab:  # 1280 by 720, with the list of files
        page = lab.page
        lab.run()
        expect(page.get_by_role("status").filter(has_text="is running: step")).to_be_visible()
        room = page.locator(f"{FRONT} .jp-WindowedPanel-outer").bounding_box()
        ends = page.evaluate(
            """[...document.querySelectorAll(".lk-headline, .lk-row, .lk-controls")].map((part) =>
                [part.getBoundingClientRect().top, part.getBoundingClientRect().bottom])"""
        )
        assert len(ends) == 6 and room
        assert min(ends)[0] >= room["y"]
        assert max(bottom for _, bottom in ends) <= room["y"] + room["height"]
        places = page.evaluate(
            """["h2", ".lk-headline > span", ".lk-row", ".lk-controls", ".lk-chart"].map(
                (name) => document.querySelector(`.lk-board ${name}`).getBoundingClientRect().top
            )"""
        )
        headline, badge, lanes, controls, charts = places
        assert abs(headline - badge) < 12 and lanes < controls < charts
        # one row: all that can be pressed stands side by side
        rows = page.evaluate(
            """[...document.querySelectorAll(".lk-controls button")]
                .filter((button) => button.offsetWidth).map((button) =>
                    Math.round((button.getBoundingClientRect().top +
                        button.getBoundingClientRect().bottom) / 2))"""
        )
        assert max(rows) - min(rows) < 8
        # no serious fault for those who do not see it, or have no mouse, and its sliders say what
        # they are
        assert serious(page, ".lk-board") == []
        slider = page.get_by_role("slider", name="times slower", exact=True)
        expect(slider).to_have_attribute("aria-valuetext", "1")
        press(page, "ArrowRight", 3)
        expect(slider).to_have_attribute("aria-valuetext", "1.75")
        with page.expect_download() as saving:
            page.get_by_role("button", name="Save", exact=True).click()
        assert saving.value.suggested_filename == "multi_worker_mirrored.html"
        assert "lk-film" in Path(saving.value.path()).read_text()
        page.get_by_role("button", name="Stop").click()
        expect(page.get_by_role("status").filter(has_text="is stopped")).to_be_visible()
        assert lab.complaints() == []
