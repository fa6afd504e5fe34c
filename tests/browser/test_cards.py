"""Timeline, StrategyTable, MachineCard and Predict in a real browser: from disk without a kernel,
and in JupyterLab.
"""

import re
from pathlib import Path
from typing import Any

import pytest
from nbconvert import HTMLExporter
from playwright.sync_api import Browser, Page, expect

from course_lib import hardware
from course_lib.collectives import build, simulate
from course_lib.record.events import Lifecycle
from course_lib.record.trace import Trace
from course_lib.strategies import catalog
from course_lib.widgets import Timeline
from course_lib.widgets.cards import MachineCard, StrategyTable
from tests.browser.lab import Tab, opened
from tests.made_up import EVENTS, training

CELLS = (
    """
from course_lib.collectives import build, simulate
from course_lib.widgets import Timeline
timeline = Timeline(simulate(build("ring", 4), 4096, trace=True))
timeline""",
    """
from course_lib import hardware
from course_lib.strategies import catalog
from course_lib.widgets.cards import StrategyTable
StrategyTable(catalog.rows(hardware.probe()))""",
    """
from course_lib.widgets import Predict
card = Predict("How long?", numbers=(0, 100, "ms"))
card""",
    "print('guessed', card.guess); print(card.reveal(30.0))",
)


LANES = ".ls-timeline[data-to] .lanes"


def view(page: Page) -> tuple[float, float]:
    """The span of seconds that a timeline shows."""
    return tuple(
        page.evaluate(
            "(({from, to}) => [+from, +to])(document.querySelector('.ls-timeline').dataset)"
        )
    )


def focused(tab: Tab, given: Any, folder: Path) -> Page:
    """The page of a timeline, whose lanes have the focus."""
    page = tab.open(Timeline(given).to_html(folder / "t.html"))
    page.locator(LANES).focus()
    return page


def test_keys_go_from_phase_to_phase_and_a_wait_says_for_whom(
    browser: Browser, tmp_path: Path
) -> None:
    tab = Tab(browser, reduced_motion="reduce")
    page = focused(tab, Trace([*EVENTS, Lifecycle("worker:1", "killed", "", 6.5)]), tmp_path)
    page.keyboard.press("Home")
    expect(page.locator("[aria-live]")).to_have_text("worker:0 · step 0. compute: 1 s")
    page.keyboard.press("ArrowRight")
    said = (
        "worker:0 · step 0. wait: 2 s. It waited for worker:1, the last to come, which was still "
        "in compute of step 0."
    )
    expect(page.locator("[aria-live]")).to_have_text(said)
    expect(page.locator(".tip")).to_contain_text("It waited for worker:1")
    page.keyboard.press("End")
    expect(page.locator("[aria-live]")).to_have_text("worker:0 · step 0. apply: 1 s")
    page.keyboard.press("ArrowDown")
    expect(page.locator("[aria-live]")).to_contain_text("worker:1 · step 0")
    page.get_by_text("The same as text").click()
    expect(page.locator("pre")).to_contain_text("worker:0 waited for worker:1")
    tab.close()


def test_zoom_and_pan_by_keys_wheel_and_drag_stay_within_the_run(
    browser: Browser, tmp_path: Path
) -> None:
    tab = Tab(browser, reduced_motion="reduce")
    page = focused(tab, Trace(training(workers=4, steps=100)), tmp_path)
    begin, end = view(page)
    assert end - begin == pytest.approx(0.3)  # ten steps of 100
    page.keyboard.press("+")
    expect(page.locator(f".ls-timeline[data-to='{end}']")).to_have_count(0)
    closer = view(page)
    assert begin < closer[0] < closer[1] < end
    page.keyboard.press("w")
    page.wait_for_function("+document.querySelector('.ls-timeline').dataset.to > 3")
    whole = view(page)
    assert whole[0] <= 0 and whole[1] >= 3.0
    box = page.locator(".lanes").bounding_box()
    assert box
    page.mouse.move(box["x"] + 600, box["y"] + 40)
    page.mouse.wheel(0, -400)
    page.wait_for_function("+document.querySelector('.ls-timeline').dataset.to < 3")
    before = view(page)
    page.mouse.down()
    page.mouse.move(box["x"] + 900, box["y"] + 40, steps=4)
    page.mouse.up()
    page.wait_for_function(f"+document.querySelector('.ls-timeline').dataset.from < {before[0]}")
    page.mouse.move(box["x"] + 300, box["y"] + 40)
    page.keyboard.down("Shift")
    page.mouse.down()
    page.mouse.move(box["x"] + 400, box["y"] + 40, steps=4)
    page.mouse.up()
    page.keyboard.up("Shift")
    wide = before[1] - before[0]
    page.wait_for_function(
        f"(({{from, to}}) => to - from < {wide / 5})"
        "(document.querySelector('.ls-timeline').dataset)"
    )
    tab.close()


def test_a_hundred_thousand_phases_are_shown_as_shares_and_as_bars_when_near(
    browser: Browser, tmp_path: Path
) -> None:
    tab = Tab(browser, reduced_motion="reduce")
    page = focused(tab, Trace(training(workers=8, steps=3000)), tmp_path)
    expect(page.locator(".ls-timeline")).to_have_attribute("data-shares", "false")
    page.get_by_role("button", name="whole run").click()
    expect(page.locator(".ls-timeline")).to_have_attribute("data-shares", "true")
    expect(page.get_by_text("Zoomed out: each column shows the shares")).to_be_visible()
    box = page.locator(".lanes").bounding_box()
    assert box
    page.mouse.move(box["x"] + 600, box["y"] + 20)
    expect(page.locator(".tip")).to_contain_text("compute")
    expect(page.locator(".tip")).to_contain_text("Zoom in to see each phase.")
    tab.close()


def test_messages_of_a_simulation_are_told_by_pointer_and_keys(
    browser: Browser, tmp_path: Path
) -> None:
    tab = Tab(browser, color_scheme="dark", reduced_motion="reduce")
    page = focused(tab, simulate(build("ring", 4), 4 * 2**20, trace=True), tmp_path)
    expect(page.get_by_text("simulated").first).to_be_visible()
    page.keyboard.press("Home")
    expect(page.locator("[aria-live]")).to_contain_text("1 MiB in")
    expect(page.locator("[aria-live]")).to_contain_text("round 0")
    box = page.locator(".lanes canvas").bounding_box()
    assert box
    found = set()
    for x in range(120, 700, 7):  # down between the first two lanes arrows are crossed
        page.mouse.move(box["x"] + x, box["y"] + 52)
        if page.locator(".tip").is_visible():
            found.add(page.locator(".tip b").inner_text())
    assert "worker:0 to worker:1" in found and found <= {
        f"worker:{r} to worker:{(r + 1) % 4}" for r in range(4)
    }
    assert (
        page.evaluate("getComputedStyle(document.querySelector('.ls')).color")
        == "rgb(228, 231, 234)"
    )
    tab.close()


def test_the_strategy_table_compares_filters_and_unfolds_by_keyboard(
    browser: Browser, tmp_path: Path
) -> None:
    tab = Tab(browser, reduced_motion="reduce")
    here = hardware.probe()
    page = tab.open(StrategyTable(catalog.rows(here)).to_html(tmp_path / "s.html"))
    expect(page.get_by_role("columnheader", name="what is it?")).to_be_visible()
    expect(page.get_by_role("cell", name="nobody", exact=True)).to_have_count(0)
    page.get_by_label("compare").select_option("waits")
    expect(page.get_by_role("columnheader", name="who waits for whom?")).to_be_visible()
    expect(page.get_by_role("columnheader", name="what is it?")).to_have_count(0)
    expect(page.get_by_role("cell", name="nobody", exact=True).first).to_be_visible()
    expect(page.get_by_role("rowheader")).to_have_count(len(catalog.STRATEGIES))
    page.get_by_label("here", exact=True).select_option("measured")
    measured = {row["strategy"] for row in catalog.rows(here) if row["reality"] == "measured"}
    expect(page.get_by_role("rowheader")).to_have_count(len(measured))
    page.locator("summary").get_by_text("mirrored", exact=True).focus()
    page.keyboard.press("Enter")
    expect(
        page.get_by_text("every device, to its own copy, with the same average").last
    ).to_be_visible()
    tab.close()


def test_the_machine_card_is_readable_in_the_dark_and_unfolds_its_words(
    browser: Browser, tmp_path: Path
) -> None:
    tab = Tab(browser, color_scheme="dark", reduced_motion="reduce")
    here = hardware.probe()
    page = tab.open(MachineCard(hardware.machine_rows(here)).to_html(tmp_path / "m.html"))
    paper = page.evaluate("getComputedStyle(document.body).backgroundColor")
    ink = page.evaluate("getComputedStyle(document.querySelector('.ls-card')).color")
    assert (paper, ink) == ("rgb(21, 24, 28)", "rgb(228, 231, 234)")
    sizes = page.evaluate(
        "[...document.querySelectorAll('.ls-card *')]"
        ".map(e => parseFloat(getComputedStyle(e).fontSize))"
    )
    assert min(sizes) >= 14
    page.get_by_text("Words used here").click()
    expect(page.locator("dd").first).to_be_visible()
    tab.close()


GUESSES = (
    """
from course_lib.widgets import Predict
card = Predict("Which is faster?", choices=["the ring", "the tree"])
card""",
    "# The answer to card: it unfolds when your guess is locked\n"
    "print('guessed', card.guess); reason = {'the ring': 'It has smaller messages.'}\n"
    "card.reveal('the tree', 'It has fewer rounds.', reason)",
    """
from ipywidgets import VBox
others = [Predict(f"How long, {name}?", numbers=(0, 100, "ms")) for name in ("first", "second")]
for other in others:
    other.reveal(30.0)
VBox(others)""",
)


@pytest.mark.nightly
def test_a_locked_guess_stays_through_a_second_run_and_a_new_kernel_until_it_is_forgotten(
    browser: Browser, tmp_path: Path
) -> None:
    with opened(browser, tmp_path, *GUESSES, viewport={"width": 1280, "height": 1400}) as lab:
        page = lab.page
        lock = page.get_by_role("button", name="Lock my guess")
        locked = page.get_by_role("button", name="Locked")
        lab.run()
        lab.choose(1)  # the cell that answers is folded, as in lessons
        page.evaluate("jupyterapp.commands.execute('notebook:hide-cell-code')")
        expect(page.get_by_text("card.reveal")).to_be_hidden()
        page.get_by_label("the ring").check()
        lock.click()
        expect(page.get_by_text("It is locked")).to_be_visible()
        expect(page.get_by_text("card.reveal")).to_be_visible()

        # The next cell has the focus, so Shift+Enter goes on and does not ask anew.
        expect(page.locator(".jp-Notebook .jp-Cell").nth(1)).to_have_class(re.compile("mod-active"))
        lab.run()
        expect(page.get_by_text("guessed the ring")).to_be_visible()
        answer = "Result: the tree. It has fewer rounds. It has smaller messages."
        expect(page.get_by_text(answer).first).to_be_visible()
        expect(page.get_by_text("✓ the tree")).to_be_visible()

        # Run again: still locked. A new kernel: still locked.
        lab.choose(0)
        lab.run()
        expect(page.get_by_text("You locked this guess earlier.")).to_be_visible()
        assert page.get_by_label("the ring").is_checked() and locked.is_disabled()
        page.keyboard.press("Escape")
        page.keyboard.press("0")
        page.keyboard.press("0")
        page.get_by_role("button", name="Confirm Kernel Restart").click()
        lab.kernel("Idle")
        lab.choose(0)
        lab.run()
        expect(page.get_by_text("You locked this guess earlier.")).to_be_visible()
        assert page.get_by_label("the ring").is_checked() and locked.is_disabled()

        # Until it is forgotten; nothing has moved then.
        place = locked.bounding_box()
        page.get_by_role("button", name="Forget my guess").click()
        expect(lock).to_be_enabled()
        assert page.get_by_label("the ring").is_enabled() and lock.bounding_box() == place
        lab.choose(0)
        lab.run()
        expect(lock).to_be_enabled()
        assert page.get_by_text("You locked this guess earlier.").count() == 0

        # Both cards of a cell have their bars.
        lab.choose(2)
        lab.run()
        expect(page.locator("svg[aria-label='guess and result'] rect[stroke]")).to_have_count(2)
        assert lab.complaints() == []


PRESSED = """
from course_lib.widgets import Guesses, Predict
zero = Predict("How many?", numbers={"rings": (0, 9, ""), "of the trees": (0, 100, "ms")})
zero"""
REVEALED = "zero.reveal({'rings': 0.25, 'of the trees': 3}); zero.lock(); Guesses()"


def test_sliders_count_where_they_are_pressed_and_begin_at_one_place(
    browser: Browser, tmp_path: Path
) -> None:
    with opened(browser, tmp_path, PRESSED, "print(zero.guess)", REVEALED) as lab:
        page = lab.page
        lab.run()
        lock = page.get_by_role("button", name="Lock my guess")
        lock.wait_for()
        left = page.locator(".noUi-base").evaluate_all(
            "all => all.map(one => Math.round(one.getBoundingClientRect().left))"
        )
        assert len(left) == 2 and len({*left}) == 1
        page.locator(".noUi-handle").nth(1).click()
        lock.click()
        expect(page.get_by_text("Move rings first")).to_be_visible()
        page.locator(".widget-readout").first.click()
        page.keyboard.press("Control+a")
        page.keyboard.insert_text("0.25")
        page.keyboard.press("Tab")
        lock.click()
        expect(page.get_by_text("It is locked")).to_be_visible()
        lab.choose(1)
        lab.run(2)
        expect(page.get_by_text("{'rings': 0.25, 'of the trees': 0.0}")).to_be_visible()
        row = page.get_by_role("row", name="How many?")
        expect(row).to_contain_text("rings 0.25, of the trees 3 ms")
        expect(row.get_by_role("cell").last).to_have_text("near")
        assert lab.complaints() == []


VERDICTS = """
from IPython.display import display
from course_lib.collectives import Schedule, Transfer
from course_lib.course import check

def star(workers):
    up = [Transfer(r, 0, 0, "reduce") for r in range(1, workers)]
    return Schedule("star", workers, 1, [up, [t._replace(src=0, dst=t.src) for t in up]])

def around(workers):
    hops = [(r, (r + 1) % workers, t) for t in range(2 * (workers - 1)) for r in range(workers)]
    rounds = [[] for _ in range(2 * (workers - 1))]
    for r, to, t in hops:
        op = "reduce" if t < workers - 1 else "copy"
        rounds[t].append(Transfer(r, to, (r - t) % workers, op))
    return Schedule("around", workers, workers, rounds)

display(check("reduce_to_one", star), check("ring", around))"""


def test_a_verdict_is_a_card_whose_hints_unfold_by_key_and_that_needs_no_kernel(
    browser: Browser, tmp_path: Path
) -> None:
    def looks_right(page: Page) -> None:
        expect(page.get_by_text("Round 1 adds where it should copy: rank 0")).to_be_visible()
        expect(page.get_by_text("Proved for P = 1 to 9 workers")).to_be_visible()
        expect(page.locator("svg.passed")).to_be_visible()
        wide = "i => i.complete && i.naturalWidth > 200"
        assert page.locator(".ls-verdict img").evaluate_all(f"all => all.map({wide})") == [True] * 2

    with opened(browser, tmp_path, VERDICTS, viewport={"width": 1280, "height": 1400}) as lab:
        page = lab.page
        lab.run()
        looks_right(page)
        cells = page.locator(".jp-Notebook .jp-Cell").count()
        hint = page.get_by_text("Two rounds are enough. In the first the sum")
        expect(hint).to_be_hidden()
        page.get_by_text("Hint 1 of 3").focus()
        page.keyboard.press("b")  # the notebook's own: a new cell
        page.keyboard.press("Enter")
        expect(hint).to_be_visible()
        assert page.locator(".jp-Notebook .jp-Cell").count() == cells
        lab.choose(0)
        page.keyboard.press("Control+s")
        while "ls-verdict" not in (tmp_path / "notebook.ipynb").read_text():
            page.wait_for_timeout(100)
        assert lab.complaints() == []
        written, _ = HTMLExporter().from_filename(str(tmp_path / "notebook.ipynb"))
    (tmp_path / "saved.html").write_text(written)
    for scheme in ("light", "dark"):
        tab = browser.new_page(color_scheme=scheme)
        tab.route(re.compile("^http"), lambda route: route.abort())  # nbconvert's own scripts
        tab.goto((tmp_path / "saved.html").as_uri())
        looks_right(tab)
        tab.close()


def test_in_jupyterlab_keys_and_buttons_act_on_the_widgets_and_on_nothing_else(
    browser: Browser, tmp_path: Path
) -> None:
    # JupyterLab takes cells out of the page that cannot be seen
    tall = {"width": 1280, "height": 2400}
    with opened(browser, tmp_path, *CELLS, viewport=tall) as lab:
        page = lab.page
        lab.run(3)
        page.get_by_text("Lock my guess").wait_for()
        cells = page.locator(".jp-Notebook .jp-Cell").count()

        # The notebook's own keys (b: a new cell, y and m: what a cell is) do nothing while a widget
        # has the focus.
        page.locator(LANES).focus()
        for key in ("ArrowRight", "b", "m", "+", "ArrowDown"):
            page.keyboard.press(key)
        expect(page.locator(".ls-timeline [aria-live]")).to_contain_text("worker:")
        for focus in (
            page.get_by_role("button", name="whole run"),
            page.locator(".ls-card summary").first,
            page.get_by_label("compare"),
        ):
            focus.focus()
            page.keyboard.press("b")
        page.wait_for_timeout(300)  # a cell that should not come would have come
        assert page.locator(".jp-Notebook .jp-Cell").count() == cells
        assert page.locator(".jp-Notebook .jp-MarkdownCell").count() == 0
        page.get_by_role("button", name="save for Perfetto").click()
        expect(page.get_by_text("Open it at ui.perfetto.dev yourself")).to_be_visible()
        assert (tmp_path / "ring-4-ranks.perfetto.json").exists()

        page.get_by_label("compare").select_option("update")
        expect(page.get_by_role("columnheader", name="who applies the update?")).to_be_visible()

        # A slider that was not moved is no guess; one moved by keys is, and stays.
        lock = page.get_by_role("button", name="Lock my guess")
        lock.click()
        expect(page.get_by_text("Move the slider first")).to_be_visible()
        handle, number = page.locator(".noUi-handle").first, page.locator(".widget-readout").first
        number.click()
        page.keyboard.press("Control+a")
        page.keyboard.insert_text("500")
        lock.click()  # what is typed counts without Enter
        expect(page.get_by_text("The slider goes from 0 to 100 ms.")).to_be_visible()
        expect(number).to_have_text("100")
        expect(handle).to_have_attribute("aria-valuetext", "100")
        expect(handle).to_have_attribute("aria-label", "ms")
        handle.focus()
        page.keyboard.press("Home")
        expect(page.get_by_text("The slider goes from")).to_be_hidden()
        for _ in range(3):
            page.keyboard.press("ArrowRight")
        lock.press("Enter")
        expect(page.get_by_text("It is locked")).to_be_visible()
        lab.choose(3)
        lab.run()
        labels = page.locator(".ls-predict .widget-slider .widget-label")
        cut = "labels => labels.filter((one) => one.scrollWidth > one.clientWidth).length"
        assert labels.count() and labels.evaluate_all(cut) == 0
        expect(number).to_have_text("3")
        expect(page.get_by_text("guessed 3")).to_be_visible()
        shade = "one => getComputedStyle(one).backgroundColor"
        assert handle.evaluate(shade) == "rgb(122, 122, 122)", (
            "it is locked, and not white on white"
        )
        expect(page.locator("svg[aria-label='guess and result'] rect[stroke]")).to_have_count(2)
        assert lab.complaints() == []


def test_arrow_keys_go_from_choice_to_choice_and_leave_the_cell_alone(
    browser: Browser, tmp_path: Path
) -> None:
    cell = 'Predict("Which?", choices=["the ring", "the tree"])'
    cell = f"from course_lib.widgets import Predict\n{cell}"
    with opened(browser, tmp_path, cell, "1") as lab:
        page = lab.page
        lab.run()
        ring, tree = (page.get_by_label(name) for name in ("the ring", "the tree"))
        ring.focus()
        page.keyboard.press("Space")
        expect(ring).to_be_checked()
        page.keyboard.press("ArrowDown")
        expect(tree).to_be_checked()
        expect(tree).to_be_focused()
        page.keyboard.press("ArrowUp")
        expect(ring).to_be_focused()
        assert page.locator(".jp-Notebook .jp-Cell").count() == 2
