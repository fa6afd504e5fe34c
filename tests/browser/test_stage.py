"""The stage in a real browser: what it shows after each round is what `verify` says, as a page from
disk and in JupyterLab.
"""

import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, expect

from course_lib.collectives import Schedule, Transfer, build, verify
from course_lib.widgets.stage import STOPPED, AllReduceStage
from tests.browser.lab import Tab, opened

STAGE = "document.querySelector('.ls-stage').stage"
LAB = """
from functools import partial
from course_lib.reduction.allreduce import compare
from course_lib.widgets.stage import AllReduceStage
stage = AllReduceStage(workers=3, hosts=1, bytes="64KiB",
                       run=lambda *given, **also: compare(*given, repeats=1, **also))
stage
"""


def unsound(workers: int) -> Schedule:
    """A ring whose second half starts from the wrong chunk: rank 0's own gradient is lost in round
    3.
    """
    p = workers
    add = [
        [Transfer(r, (r + 1) % p, (r - 1 - i) % p, "reduce") for r in range(p)]
        for i in range(p - 1)
    ]
    return Schedule(
        "unsound",
        p,
        p,
        [
            *add,
            *(
                [Transfer(r, (r + 1) % p, (r - i + 1) % p, "copy") for r in range(p)]
                for i in range(p - 1)
            ),
        ],
    )


class Shown:
    """The stage in an open tab."""

    def __init__(self, tab: Tab) -> None:
        self.tab, self.page = tab, tab.page

    def open(self, stage: AllReduceStage, folder: Path) -> "Shown":
        self.tab.open(stage.to_html(folder / "stage.html"))
        self.page.locator(".stage-canvas canvas").first.wait_for()
        self.page.locator(".ls-stage").focus()
        return self

    def get(self, what: str) -> Any:
        return self.page.evaluate(f"{STAGE}.{what}")

    def key(self, *keys: str) -> None:
        for key in keys:
            self.page.keyboard.press(key)


@pytest.fixture
def shown(browser: Browser) -> Iterator[Shown]:
    tab = Tab(browser)
    yield Shown(tab)
    tab.close()


def expected(schedule: Schedule, rounds: int) -> tuple[list[list[int]], list[list[int]]]:
    state = verify(schedule).state(rounds)
    return state.once, state.twice


def check(shown: Shown, schedules: list[Schedule], rounds: int) -> None:
    for state, schedule in zip(shown.get("state()"), schedules, strict=True):
        assert (state["once"], state["twice"]) == expected(schedule, rounds), (
            f"{schedule.name} after round {rounds}"
        )


@pytest.mark.parametrize(
    ("names", "workers", "hosts"),
    [(("ring", "hierarchical"), 8, 2), (("double_tree", "parameter_server"), 5, 3)],
)
def test_stepping_shows_the_state_of_verify_after_every_round_and_asks_nobody(
    shown: Shown, tmp_path: Path, names: tuple[str, ...], workers: int, hosts: int
) -> None:
    shown.open(AllReduceStage(*names, workers=workers, hosts=hosts), tmp_path)
    schedules = [build(name, workers, hosts) for name in names]
    longest = max(len(s.rounds) for s in schedules)
    for rounds in range(longest + 1):
        check(shown, schedules, rounds)
        shown.key("ArrowRight")
    assert shown.page.evaluate(f"getComputedStyle({STAGE}.root).outlineStyle") == "solid", (
        "who uses the keyboard sees where the focus is"
    )
    for rounds in range(longest - 1, -1, -1):
        shown.key("ArrowLeft")
        check(shown, schedules, rounds)


BOXES = """() => [...document.querySelectorAll('.ls-stage')].flatMap((root) => root.stage.views)
    .flatMap(({ canvas, picture }) => picture.boxes.filter((box) =>
        box.x + box.width > canvas.getBoundingClientRect().width).map((box) => box.host))"""
# the share of the upper canvas' pixels that are drawn, and the darkest of them, of 255
INKED = """() => [...document.querySelectorAll('.stage-canvas canvas:last-child')].map((canvas) => {
    const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
    const inks = data.filter((_, i) => i % 4 === 3 && data[i]);
    return [inks.length / (data.length / 4), inks.reduce((a, b) => Math.max(a, b), 0)];
})"""


@pytest.mark.parametrize("width", [1280, 1203, 1001])
def test_of_many_workers_all_hosts_are_whole_and_arrows_are_no_smudges(
    browser: Browser, tmp_path: Path, width: int
) -> None:
    tab = Tab(browser, viewport={"width": width, "height": 800})
    shown = Shown(tab).open(AllReduceStage(workers=32, hosts=8), tmp_path)
    assert shown.page.evaluate(BOXES) == []
    shown.key("ArrowRight", "ArrowRight")
    for share, darkest in shown.page.evaluate(INKED):
        assert 0 < share < 0.05 and darkest < 230
    tab.close()


def test_at_the_start_of_any_clock_the_first_arrows_are_seen(shown: Shown, tmp_path: Path) -> None:
    shown.open(AllReduceStage(workers=8, hosts=2), tmp_path)
    rounds = shown.page.evaluate(INKED)
    shown.page.get_by_role("radio", name="simulated time").click()
    shown.page.locator(".ls-stage").focus()
    shown.key("Home")
    assert shown.page.evaluate(INKED) == rounds and rounds[0][0] > 0


def test_three_stand_side_by_side_with_the_buttons_in_sight_and_a_link_fills_while_it_carries(
    browser: Browser, tmp_path: Path
) -> None:
    tab = Tab(browser, viewport={"width": 848, "height": 720})
    stage = AllReduceStage("reduce_to_one", "tree", "ring", workers=4, hosts=4, bytes="1MiB")
    shown = Shown(tab).open(stage, tmp_path)
    panels = [panel.bounding_box() for panel in tab.page.locator(".stage-panel").all()]
    assert len({panel and panel["y"] for panel in panels}) == 1
    row = tab.page.locator(".stage-row").bounding_box()
    assert row and row["y"] + row["height"] <= 720
    assert tab.page.evaluate(BOXES) == []
    seen = []
    for moment in (0, 0.2, 0.5, 1):
        tab.page.evaluate(f"{STAGE}.seek({moment})")
        seen.append(shown.get("views[0].algorithm.busiest"))
    assert 0 == seen[0] < seen[1] < seen[2] < seen[3] == 3 << 20
    tab.close()


def test_in_rounds_the_time_is_that_of_the_rounds_shown_and_grows_to_the_whole(
    shown: Shown, tmp_path: Path
) -> None:
    def times() -> list[float]:
        """What stands above, in milliseconds."""
        words = shown.page.locator(".stage-panel dl div:nth-child(2) dd").all_inner_texts()
        units = {"s": 1e3, "ms": 1.0, "µs": 1e-3}
        return [float(number) * units[unit] for number, unit in map(str.split, words)]

    stage = AllReduceStage(workers=4)
    shown.open(stage, tmp_path)
    seen = [times()]
    for _ in range(6):  # the rounds of a ring of four
        shown.key("ArrowRight")
        seen.append(times())
    assert seen[0] == [0, 0]
    for before, after in pairwise(seen):
        assert before[0] < after[0] and before[1] <= after[1]
    whole = [panel["clocks"]["simulated"]["seconds"] * 1e3 for panel in stage.scene["panels"]]
    assert seen[-1] == pytest.approx(whole, rel=0.01)
    shown.page.get_by_role("radio", name="simulated time").click()
    ends = shown.page.locator(".stage-end").all_inner_texts()
    assert [end.split(maxsplit=2)[2] for end in ends] == ["in all", "in all"]


def test_playing_pausing_and_scrubbing_on_the_simulated_clock(shown: Shown, tmp_path: Path) -> None:
    shown.open(AllReduceStage(workers=4), tmp_path)
    schedules = [build(name, 4, 2) for name in ("ring", "hierarchical")]
    shown.page.get_by_role("radio", name="simulated time").click()
    shown.page.locator(".ls-stage").focus()
    shown.key(" ")
    shown.page.wait_for_function(f"{STAGE}.at > 0.1 * {STAGE}.total")
    shown.key(" ")
    at = shown.get("at")
    shown.page.wait_for_timeout(150)
    assert shown.get("at") == at and not shown.get("playing")
    shown.key("End")
    check(shown, schedules, 99)
    shown.page.get_by_role("slider", name="moment").fill("0")
    check(shown, schedules, 0)
    shown.page.get_by_role("slider", name="moment").fill("1000")
    check(shown, schedules, 99)


def test_a_broken_algorithm_stops_at_its_round_and_says_why_while_the_other_goes_on(
    shown: Shown, tmp_path: Path
) -> None:
    shown.open(AllReduceStage("ring", unsound, workers=4, hosts=1), tmp_path)
    shown.key("End")
    right, wrong = shown.get("state()")
    assert right["once"] == expected(build("ring", 4), 99)[0]
    assert (wrong["rounds"], wrong["once"]) == (3, expected(unsound(4), 3)[0])
    assert shown.page.get_by_role("alert").inner_text() == verify(unsound(4)).problems[0].text
    shown.key("Home")
    assert shown.page.get_by_role("alert").count() == 0


def test_a_chunk_and_a_transfer_tell_about_themselves_under_the_pointer(
    shown: Shown, tmp_path: Path
) -> None:
    shown.open(AllReduceStage("ring", workers=4, hosts=1, bytes="4KiB"), tmp_path)
    shown.key("ArrowRight")
    box = shown.page.locator(".stage-canvas").bounding_box()
    place = shown.get("views[0].picture.at(1, 3)")
    assert box
    shown.page.mouse.move(box["x"] + place["x"] + 6, box["y"] + place["y"] + 6)
    assert shown.page.get_by_role("tooltip").inner_text().split("\n") == [
        "rank 1, chunk 3: 1 KiB",
        "holds the gradients of ranks 0, 1",
        "last from rank 0 in round 0, added",
    ]
    shown.page.evaluate(f"{STAGE}.seek(1.06)")
    place = shown.get("views[0].picture.at(1, 3)")
    cell = shown.get("views[0].picture.cell")
    shown.page.mouse.move(
        box["x"] + place["x"] + cell["width"] / 2, box["y"] + place["y"] + cell["height"] / 2 + 2
    )
    assert (
        shown.page.get_by_role("tooltip")
        .inner_text()
        .startswith("rank 1 → rank 2: chunk 3, 1 KiB\nbrings the gradients of ranks 0, 1\nadded")
    )


def sentences(shown: Shown) -> list[str]:
    return shown.page.locator(".stage-round").all_inner_texts()


def test_each_round_is_said_in_a_sentence_and_nothing_jumps_while_it_plays(
    shown: Shown, tmp_path: Path
) -> None:
    shown.open(AllReduceStage(workers=8, hosts=2), tmp_path)
    row = shown.page.locator(".stage-row")
    place, seen = row.bounding_box(), [sentences(shown)]
    for _ in range(14):  # the rounds of a ring of eight
        shown.key("ArrowRight")
        seen.append(sentences(shown))
        assert row.bounding_box() == place
    ring, hierarchical = zip(*seen, strict=True)
    around = "every rank sends one chunk to the next rank, which"
    assert ring[3] == f"Round 3: {around} adds it; rank 3 sends chunk 7 to rank 4."
    assert ring[7] == f"Round 7: {around} keeps it; rank 3 sends chunk 3 to rank 4."
    assert ring[14] == "After all 14 rounds: 64 of 64 chunks complete."
    inside, across = "a rank of the same host", "a rank of another host"
    assert [inside in one or across in one for one in hierarchical[:8]] == [True] * 8
    assert across in hierarchical[3] and across in hierarchical[4]
    shown.key("ArrowLeft")
    live = shown.page.locator(".stage-live").inner_text()
    assert live == f"ring: {ring[13]} hierarchical: {hierarchical[8]}"


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("reduce_to_one", "every other rank sends chunk 0 to rank 0, which adds it."),
        ("parameter_server", "every rank sends chunk 0 to server 0, which adds it."),
        ("direct", "every rank sends one chunk to every other rank, which adds it; rank 1"),
        ("tree", "2 ranks each send chunk 0 to a rank of the same host, which adds it; rank 1"),
    ],
)
def test_a_sentence_names_ranks_and_servers(
    shown: Shown, tmp_path: Path, name: str, words: str
) -> None:
    shown.open(AllReduceStage(name, workers=4, hosts=2), tmp_path)
    assert sentences(shown)[0].startswith(f"Round 0: {words}")


def test_a_chunk_is_followed_until_escape_or_a_second_click(shown: Shown, tmp_path: Path) -> None:
    shown.open(AllReduceStage("ring", "tree", workers=4, hosts=1), tmp_path)
    chosen = shown.page.get_by_label("follow a chunk")
    before = shown.page.evaluate(INKED)
    place, cell = (shown.get(f"views[0].picture.{it}") for it in ("at(1, 2)", "cell"))
    middle = {"x": place["x"] + cell["width"] / 2, "y": place["y"] + cell["height"] / 2}
    shown.page.locator(".stage-canvas").first.click(position=middle)
    expect(chosen).to_have_value("2")
    for rounds, way in enumerate(
        ["from rank 3 to rank 0, which adds", "from rank 0 to rank 1, which adds"]
    ):
        assert sentences(shown)[0] == f"Round {rounds}: chunk 2 goes {way} it."
        shown.page.locator(".ls-stage").press("ArrowRight")
    assert "every" not in sentences(shown)[0] and "ranks each send" not in sentences(shown)[0]
    assert "chunk 0 to" in sentences(shown)[1], "a tree has no chunk 2"
    shown.page.locator(".stage-canvas").first.click(position=middle)
    expect(chosen).to_have_value("")

    chosen.select_option("chunk 0")
    shown.key("Home")
    shown.page.locator(".ls-stage").press("Home")
    assert (
        sentences(shown)[1]
        == "Round 0: chunk 0 goes from rank 1 to rank 0, from rank 3 to rank 2, which add it."
    )
    assert shown.page.evaluate(INKED) != before
    shown.key("Escape")
    expect(chosen).to_have_value("")
    assert shown.page.evaluate(INKED) == before


def with_sliders(runnable: bool = False) -> AllReduceStage:
    """A stage whose page has sliders, as in a notebook."""
    stage = AllReduceStage("ring", "hierarchical", workers=8, hosts=2)
    stage.most, stage.runnable = {"workers": 32, "hosts": 8}, runnable
    return stage


def test_on_a_projector_settings_that_cannot_be_changed_make_room(
    shown: Shown, tmp_path: Path
) -> None:
    stage = with_sliders()
    stage.scene = {**stage.scene, "fixed": "Carried out as they are."}
    shown.open(stage, tmp_path)
    workers = shown.page.get_by_role("slider", name="workers")
    expect(workers).to_be_visible()
    shown.page.get_by_role("button", name="Projector").click()
    expect(workers).to_be_hidden()


def test_all_controls_are_reached_and_left_by_keyboard_and_say_what_they_are(
    shown: Shown, tmp_path: Path
) -> None:
    shown.open(with_sliders(runnable=True), tmp_path)
    seen = []
    for _ in range(20):
        shown.key("Tab")
        name = "e => e.closest('.ls-stage') && (e.getAttribute('aria-label') ?? e.textContent)"
        seen.append(shown.page.locator(":focus").evaluate(name))
        if seen[-1] is None:
            break
    play = ["To the start (Home)", "A round back (←)", "Play (space)", "A round on (→)"]
    row = ["rounds", "simulated time", "speed", "follow a chunk", "Projector"]
    sliders = ["workers", "hosts", "message", "between hosts", "inside a host"]
    assert seen == ["moment", *play, *row, *sliders, "Run it for real", None]
    values = {
        name: shown.page.get_by_role("slider", name=name, exact=True).get_attribute(
            "aria-valuetext"
        )
        for name in sliders
    }
    assert list(values.values()) == ["8 workers", "2 hosts", "4 MiB", "1 Gbit/s", "16 Gbit/s"]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_serious(browser: Browser, tmp_path: Path, scheme: Any) -> None:
    tab = Tab(browser, color_scheme=scheme)
    shown = Shown(tab).open(with_sliders(), tmp_path)
    for act in ("follow(2)", "step(1)"):
        shown.get(act)
        found = Axe().run(tab.page, ".ls-stage").response["violations"]
        assert [one["id"] for one in found if one["impact"] in ("serious", "critical")] == []
    tab.close()


def test_who_wants_less_motion_sees_steps(browser: Browser, tmp_path: Path) -> None:
    tab = Tab(browser, reduced_motion="reduce")
    Shown(tab).open(AllReduceStage("recursive_doubling", workers=4, hosts=1), tmp_path)
    seen = tab.page.evaluate(
        f"""async () => {{
            const seen = new Set();
            {STAGE}.play();
            while ({STAGE}.playing) {{
              seen.add({STAGE}.at);
              await new Promise(requestAnimationFrame);
            }}
            return [...seen, {STAGE}.at];
        }}"""
    )
    assert sorted(set(seen)) == [0, 1, 2]
    tab.close()


def test_the_picture_follows_the_theme_of_the_page(shown: Shown, tmp_path: Path) -> None:
    def light(color: str) -> float:
        return sum(int(color[at : at + 2], 16) for at in (1, 3, 5)) / 3

    shown.open(AllReduceStage(workers=2, hosts=1), tmp_path)
    for scheme, dark in (("light", False), ("dark", True), ("light", False)):
        shown.page.emulate_media(color_scheme=scheme)
        shown.page.wait_for_function(
            f"{STAGE}.views[0].picture.theme.rack === "
            f"getComputedStyle({STAGE}.root).getPropertyValue('--stage-rack').trim()"
        )
        theme = shown.get("views[0].picture.theme")
        assert (light(theme["rack"]) < 128 < light(theme["ink"])) is dark


# the middles of what stands in the row of buttons, how far it reaches beyond the stage, and what
# in it is wider than its place
ROW = """(root) => {
  const parts = [...root.querySelectorAll(".stage-row button, .stage-row select")];
  const boxes = parts.map((part) => part.getBoundingClientRect());
  const right = Math.max(...boxes.map((box) => box.right)) - root.getBoundingClientRect().right;
  const cut = parts.filter((part) => part.scrollWidth > part.clientWidth);
  return [boxes.map((box) => box.top + box.height / 2), right, cut.map((part) => part.textContent)];
}"""
CROWD = """
from course_lib.reduction.allreduce import stage
shown = stage("ring", workers=12, hosts=1, bytes="4MiB")
shown"""
LEFT = """
from course_lib.cluster.run import Run
shown.runner.join(60)
print("still going:", Run.going(), shown.busy, "measured" in shown.scene["panels"][0]["clocks"])"""


def test_a_run_of_many_workers_tells_what_goes_on_and_can_be_stopped(
    browser: Browser, tmp_path: Path
) -> None:
    with opened(browser, tmp_path, CROWD, LEFT) as lab:
        page = lab.page
        lab.run()
        said, button = page.locator(".stage-note"), page.locator(".stage-run")
        button.wait_for()
        where = f"e => e.getBoundingClientRect().y - {STAGE}.root.getBoundingClientRect().y"
        place = button.evaluate(where)
        for clock, pace in (("simulated time", " are shown in 14 s."), ("rounds", "")):
            page.get_by_role("radio", name=clock).click()
            expect(said).to_have_text(re.compile(f"{pace}$"))
            assert button.evaluate(where) == place, "nothing moves"
        page.get_by_role("slider", name="workers").press("ArrowRight")
        button.click()
        expect(said).to_contain_text(re.compile(r"13 processes carry out ring: \d+\.\d s"))
        button.filter(has_text="Stop").click()
        expect(said).to_have_text(STOPPED)
        expect(button).to_have_text("Run it for real")
        assert button.evaluate(where) == place
        lab.choose(1)
        lab.run()
        expect(page.get_by_text("still going: [] False False")).to_be_visible()
        assert lab.complaints() == []


def test_in_jupyterlab_keys_sliders_and_a_run_for_real(browser: Browser, tmp_path: Path) -> None:
    with opened(browser, tmp_path, LAB, "stage.at = 2; stage.scene['settings']['workers']") as lab:
        page, shown = lab.page, Shown(lab)
        lab.run()
        page.locator(".stage-canvas canvas").first.wait_for()

        # On a page of this size its buttons stand in one line, and none is cut off.
        root = page.locator(".ls-stage")
        assert 800 < root.bounding_box()["width"] < 850
        for each in ("light", "dark"):
            middles, right, cut = root.evaluate(ROW)
            assert max(middles) - min(middles) <= 2 and right <= 0 and cut == [], each
            if each == "light":
                lab.theme("Dark")

        # Keys go to the stage and not to the notebook.
        page.locator(".stage-canvas").first.click()
        shown.key("ArrowRight")
        check(shown, [build("ring", 3), build("hierarchical", 3)], 1)

        # A slider simulates anew.
        page.get_by_role("slider", name="workers").fill("3")
        page.wait_for_function(f"{STAGE}.scene.settings.workers === 5")
        page.locator(".ls-stage").focus()
        shown.key("Home")
        check(shown, [build("ring", 5), build("hierarchical", 5)], 0)
        page.get_by_role("slider", name="workers").fill("1")
        page.wait_for_function(f"{STAGE}.scene.settings.workers === 3")

        # The button starts real processes, and what they did is played.
        page.get_by_role("button", name="Run it for real").click()
        page.wait_for_function(f"{STAGE}.clock === 'measured' && {STAGE}.playing", timeout=120_000)
        page.locator(".ls-stage").focus()
        shown.key("End")
        check(shown, [build("ring", 3), build("hierarchical", 3)], 99)
        page.get_by_text("measured", exact=True).first.wait_for()

        # A cell can move it too.
        page.get_by_role("radio", name="rounds").click()
        lab.choose(1)
        lab.run()
        page.wait_for_function(f"{STAGE}.at === 2")
        check(shown, [build("ring", 3), build("hierarchical", 3)], 2)
        assert lab.complaints() == []
