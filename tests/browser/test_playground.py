"""The page of the stage that needs no kernel: it opens from disk, asks for nothing, and its
simulator agrees with the library's.
"""

import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from playwright.sync_api import Browser, Page, expect

from course_lib.collectives import build, cost, simulate
from course_lib.collectives.algorithms import ALGORITHMS, FOILS
from course_lib.record.events import Message
from course_lib.widgets.stage.scene import ITEMSIZE, Setting, stage
from tests.browser.lab import Tab

BOOK = Path(__file__).parents[2] / "notebooks/book"
STAGE = "document.querySelector('.ls-stage').stage"
SIMULATED = """([name, settings]) => {
  const { clocks, finish, sizes } = panel(name, settings);
  const { times, seconds, bus } = clocks.simulated;
  return { times: [...new Uint16Array(times.buffer)], seconds, bus, finish: [...finish], sizes };
}"""
SHOWN = f"{STAGE}.algorithms.map((a) => [a.label, a.workers, a.racks.length])"
# workers, hosts, bytes, bytes a second between hosts and inside them
SETTINGS = [(2, 1, 1024, 1e9, 2e9), (5, 3, 4 << 20, 25e6, 2e9), (8, 2, 4 << 20, 125e6, 2e9)]
SETTINGS += [(7, 4, 2048, 5e10, 1e9), (16, 4, 64 << 20, 1.25e6, 1.25e6), (13, 1, 4096, 1e9, 1e8)]


@pytest.fixture(scope="module")
def tab(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tab]:
    sys.path.insert(0, str(BOOK))
    try:
        from playground import page  # type: ignore[import-not-found]
    finally:
        sys.path.remove(str(BOOK))
    path = tmp_path_factory.mktemp("book") / "playground.html"
    path.write_text(page(), encoding="utf-8")
    assert path.stat().st_size < 1_500_000
    tab = Tab(browser, viewport={"width": 900, "height": 760})
    tab.open(path)
    yield tab
    assert [url for url in tab.asked if not url.startswith(("data:", "blob:"))] == [path.as_uri()]
    tab.close()


@pytest.fixture
def opened(tab: Tab) -> Page:
    tab.page.reload()
    tab.page.get_by_role("checkbox").first.wait_for()
    tab.asked.remove(tab.page.url)
    return tab.page


@pytest.mark.parametrize("name", [*ALGORITHMS, *FOILS])
def test_its_simulator_agrees_with_the_librarys(tab: Tab, name: str) -> None:
    tab.page.wait_for_function("'panel' in window")
    for workers, hosts, nbytes, between, inside in SETTINGS:
        setting = Setting(workers, hosts, nbytes, inside, between, delay=0.002, alpha=50e-6)
        there = tab.page.evaluate(SIMULATED, [name, vars(setting)])
        clock = stage(name, setting).clocks["simulated"]
        times = np.frombuffer(clock["times"], np.uint16).astype(int)
        assert np.abs(np.array(there["times"]) - times).max() <= 1, setting
        for figure in ("seconds", "bus"):
            assert there[figure] == pytest.approx(clock[figure], rel=1e-6), (setting, figure)
        schedule = build(name, workers, hosts)
        model = simulate(schedule, nbytes, setting.topology, itemsize=ITEMSIZE, trace=True)
        assert there["finish"] == pytest.approx(model.finish.tolist(), rel=1e-6)
        assert model.trace and len(times) == 2 * len(model.trace.all(Message))


def test_it_plays_and_a_slider_or_another_choice_changes_the_scene(opened: Page) -> None:
    assert opened.evaluate(SHOWN) == [["ring", 8, 2], ["hierarchical", 8, 2]]
    before = opened.locator(".stage-panel dl").first.inner_text()
    opened.get_by_role("button", name="Play").click()
    opened.wait_for_function(f"{STAGE}.at > 0.5")
    opened.get_by_role("button", name="Pause").click()
    assert opened.locator(".stage-panel dl").first.inner_text() != before

    workers = opened.get_by_role("slider", name="workers")
    workers.press("End")
    opened.wait_for_function(f"{STAGE}.algorithms[0].workers === 16")
    expect(workers).to_have_attribute("aria-valuetext", "16 workers")
    opened.get_by_role("slider", name="hosts", exact=True).press("End")
    opened.wait_for_function(f"{STAGE}.algorithms[0].racks.length === 4")
    expect(opened.locator(".stage-note")).to_contain_text("16 workers on 4 hosts, 4 MiB each")

    box = {name: opened.get_by_role("checkbox", name=name, exact=True) for name in ALGORITHMS}
    box["double_tree"].check()
    expect(box["tree"]).to_be_disabled()
    box["ring"].uncheck()
    box["hierarchical"].uncheck()
    expect(box["double_tree"]).to_be_disabled()
    assert opened.evaluate(SHOWN) == [["double_tree", 16, 4]]
    most = opened.evaluate(f"{STAGE}.algorithms[0].most")
    schedule = build("double_tree", 16, 4)
    assert most == cost(schedule, 4 << 20, itemsize=ITEMSIZE).busiest_link[1]
