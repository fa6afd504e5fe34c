"""The book, built by the same program with two of its notebooks run, and opened from its files."""

import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from playwright.sync_api import Browser, FrameLocator, Locator, Page, expect

from tests.browser.lab import Tab

ROOT = Path(__file__).parents[2]
RUN = ["mixed_precision", "gallery"]
PAGES = [
    "index",
    "stage",
    "notebooks/gallery",
    "glossary",
    "notebooks/mixed_precision",
    "notebooks/04_all_reduce",
    "notebooks/reference/boards",
    "notebooks/strategies/top_k",
    "exercises/04_allreduce_from_scratch",
    "CONTRIBUTING",
]
pytestmark = pytest.mark.timeout(500)  # two notebooks run, and Sphinx

# texts in an element whose contrast with what lies behind them is below that of WCAG 2.1, AA
CONTRAST = """(root) => {
  const numbers = (color) => color.match(/[\\d.]+/g).map(Number);
  const light = (color) => {
    const parts = numbers(color).slice(0, 3).map((x) => x / 255);
    const linear = parts.map((x) => (x <= 0.04045 ? x / 12.92 : ((x + 0.055) / 1.055) ** 2.4));
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2];
  };
  const behind = (one) => {
    const color = getComputedStyle(one).backgroundColor;
    return (numbers(color)[3] ?? 1) > 0.5 ? color : behind(one.parentElement);
  };
  const passed = "svg, script, style, option, :disabled, [aria-hidden]";
  const faint = [root, ...root.querySelectorAll("*")]
    .filter((one) => [...one.childNodes].some((node) => node.nodeType === 3 && node.data.trim()))
    .filter((one) => one.checkVisibility() && !one.closest(passed))
    .map((one) => [light(getComputedStyle(one).color), light(behind(one)), one.outerHTML])
    .filter(([a, b]) => (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05) < 4.5);
  return faint.map(([a, b, html]) => html.slice(0, 200));
}"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("book")
    program = [sys.executable, str(ROOT / "notebooks/book/build.py"), "--to", str(folder)]
    made = subprocess.run([*program, "--only", *RUN], capture_output=True, text=True, timeout=450)
    assert made.returncode == 0, made.stdout + made.stderr
    return folder / "site"


@pytest.fixture
def tab(browser: Browser) -> Iterator[Tab]:
    tab = Tab(browser)
    yield tab
    tab.close()


def frame(page: Page, name: str) -> FrameLocator:
    """The page of the first widget whose title begins so, and its frame in view."""
    place = page.locator(f"iframe[title^='{name}']").first
    place.scroll_into_view_if_needed()
    return place.content_frame


class Links(HTMLParser):
    """The addresses in a page, and the names in it that an address may end with."""

    def __init__(self, page: Path) -> None:
        super().__init__()
        self.addresses, self.names = list[str](), {""}
        self.feed(page.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        values = {name: value for name, value in attributes if value}
        self.names |= {values[name] for name in ("id", "name") if name in values}
        self.addresses += [values[name] for name in ("href", "src") if name in values]


def test_no_link_is_dead(site: Path) -> None:
    pages = {page: Links(page) for page in site.rglob("*.html")}
    dead = defaultdict(set)
    for page, links in pages.items():
        for address in links.addresses:
            parts = urlsplit(address)
            if parts.scheme in ("http", "https", "mailto", "data"):
                continue
            target = (page.parent / unquote(parts.path)).resolve() if parts.path else page
            known = pages[target].names if target in pages else {parts.fragment}
            if not target.is_file() or unquote(parts.fragment) not in known:
                dead[page.relative_to(site)].add(address)
    assert len(pages) > 60 and not dead


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_pages_have_no_errors_and_ask_no_other_host(
    site: Path, browser: Browser, scheme: str
) -> None:
    tab = Tab(browser, color_scheme=scheme)
    for name in PAGES:
        page = tab.open(site / f"{name}.html")
        expect(page.locator("h1").first).to_be_visible()
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), name
        for place in page.locator("iframe").all():
            place.scroll_into_view_if_needed()
            expect(place.content_frame.locator("#widget > *, .ls").first).to_be_visible()
    tab.close()


def test_the_search_finds_stragglers(site: Path, tab: Tab) -> None:
    page = tab.open(site / "index.html")
    page.get_by_placeholder("Search").first.fill("straggler")
    page.keyboard.press("Enter")
    results = page.locator("#search-results li a")
    # they come one after the other
    expect(page.locator("#search-results a[href*='09_sync_vs_async']").first).to_be_visible()
    results.first.click()
    expect(page.locator("article")).to_contain_text("straggler")


@pytest.mark.parametrize("name", ["index", "stage"])
def test_the_stage_plays(site: Path, tab: Tab, name: str) -> None:
    stage = frame(tab.open(site / f"{name}.html"), "All-reduce")
    expect(stage.locator("body")).to_contain_text(re.compile(r"0 of \d+"))
    stage.get_by_label("Play (space)").click()
    expect(stage.locator("body")).to_contain_text(re.compile(r"[2-9] of \d+"))


def test_a_timeline_is_read_step_by_step(site: Path, tab: Tab) -> None:
    timeline = frame(tab.open(site / "notebooks/gallery.html"), "Timeline")
    spoken = timeline.locator("[aria-live=polite]").last
    timeline.locator(".lanes").focus()
    tab.page.keyboard.press("ArrowRight")
    expect(spoken).not_to_be_empty()
    before = spoken.inner_text()
    for _ in range(4):
        tab.page.keyboard.press("ArrowRight")
    expect(spoken).not_to_have_text(before)


def test_a_guess_is_made_on_the_page_and_shown_beside_the_result(site: Path, tab: Tab) -> None:
    card = frame(tab.open(site / "notebooks/gallery.html"), "Predict")
    card.get_by_text("Lock my guess").click()
    expect(card.get_by_text("Choose first.")).to_be_visible()
    card.get_by_label("a quarter longer").check()
    card.get_by_text("Lock my guess").click()
    expect(card.get_by_role("status")).to_contain_text("A step took")
    expect(card.get_by_label("nearly twice as long")).to_be_disabled()


def test_a_guess_is_known_to_the_same_card_below(site: Path, tab: Tab) -> None:
    page = tab.open(site / "notebooks/mixed_precision.html")
    places = page.locator("iframe[title^='Predict']")
    first, second = (places.nth(k).content_frame for k in (0, 1))
    places.first.scroll_into_view_if_needed()
    first.get_by_role("slider").press("ArrowRight")
    first.get_by_text("Lock my guess").click()
    places.nth(1).scroll_into_view_if_needed()
    expect(second.get_by_text("Locked")).to_be_disabled()
    expect(second.locator(".verdict")).to_contain_text("result")
    expect(first.get_by_text("the result stands below")).to_be_visible()
    expect(first.locator(".verdict")).to_be_empty()


def test_a_figure_is_drawn_without_a_network(site: Path, tab: Tab) -> None:
    page = tab.open(site / "notebooks/mixed_precision.html")
    figure = page.locator(".figure").first
    figure.scroll_into_view_if_needed()
    expect(figure.locator("svg.main-svg").first).to_be_visible()


def test_frames_are_as_high_as_their_pages(site: Path, tab: Tab) -> None:
    page = tab.open(site / "notebooks/gallery.html")
    for place in page.locator("iframe").all():
        place.scroll_into_view_if_needed()
        expect(place).to_have_attribute("data-theme", "light")
        inner = place.content_frame.locator("html")
        assert inner.evaluate("root => root.scrollHeight - innerHeight") <= 1


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_switch_makes_pages_and_frames_light_or_dark_and_readable(
    site: Path, browser: Browser, theme: str
) -> None:
    tab = Tab(browser, color_scheme="dark" if theme == "light" else "light")
    page = tab.open(site / "notebooks/gallery.html")
    for _ in range(3):
        if page.locator("body").get_attribute("data-theme") != theme:
            page.locator(".theme-toggle:visible").click()
    expect(page.locator("body")).to_have_attribute("data-theme", theme)
    readable(page.locator("article"))
    for place in page.locator("iframe").all():
        place.scroll_into_view_if_needed()
        expect(place).to_have_attribute("data-theme", theme)
        body = place.content_frame.locator("body")
        expect(body).to_have_class(theme)
        readable(body)
        paper = body.evaluate("body => getComputedStyle(body).backgroundColor")
        assert (sum(map(int, re.findall(r"\d+", paper)[:3])) < 300) == (theme == "dark")
    tab.close()


def readable(place: Locator) -> None:
    assert place.evaluate(CONTRAST) == []
