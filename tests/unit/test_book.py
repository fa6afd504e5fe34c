"""The book: what is in it, and how its pages are made of the course's files."""

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat
import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def pages() -> Iterator[Any]:
    folder = str(ROOT / "notebooks" / "book")
    sys.path.insert(0, folder)
    yield importlib.import_module("pages")
    sys.path.remove(folder)


def test_every_notebook_and_reference_page_is_in_the_table_of_contents(pages: Any) -> None:
    listed = [page for names in pages.contents().values() for page in names]
    assert len(listed) == len({*listed}), "a page is listed twice"
    files = [*(ROOT / "notebooks").glob("*.ipynb"), *(ROOT / "exercises").glob("*.ipynb")]
    files += (ROOT / "notebooks" / "reference").glob("*.md")
    assert {str(path.relative_to(ROOT).with_suffix("")) for path in files} <= {*listed}


def test_every_notebook_beside_the_exercises_is_run(pages: Any) -> None:
    assert {*(ROOT / "notebooks").rglob("[!.]*.ipynb")} <= {*pages.RUN}


def test_what_is_listed_is_a_page(pages: Any) -> None:
    made = {str(Path(name).with_suffix("")) for name in pages.sources({})}
    assert {page for names in pages.contents().values() for page in names} <= made


def test_checks_are_not_shown_and_exercises_say_where_they_are_done(pages: Any) -> None:
    made = pages.sources({})
    for name, text in made.items():
        if name.endswith(".ipynb"):
            cells = nbformat.reads(text, as_version=4).cells
            exercise = name.startswith("exercises/")
            assert exercise or not any("check" in c.metadata.get("tags", ()) for c in cells)
            assert exercise == any("installed course" in c.source for c in cells)
            lesson = name.startswith("notebooks/") and "/" not in name.removeprefix("notebooks/")
            noted = any("Nothing runs on this page" in c.source for c in cells)
            assert noted == (lesson and "gallery" not in name)


def test_the_first_page_says_where_to_get_the_course(
    pages: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("BOOK_REPOSITORY", raising=False)
    assert "the one with the `Makefile`" in pages.sources({})["index.md"]
    monkeypatch.setenv("BOOK_REPOSITORY", "https://example.org/somebody/course")
    first = pages.sources({})["index.md"]
    assert "git clone https://example.org/somebody/course\n    cd course" in first
    assert "make lab" in first and "`make book`" not in first


@pytest.mark.parametrize(
    ("link", "page"),
    [
        ("[a](strategies/diloco.py)", "[a](strategies/diloco.md)"),
        ("[a](strategies)", "[a](strategies/index.md)"),
        ("[a](04_all_reduce.ipynb)", "[a](04_all_reduce.ipynb)"),
        ("[a](reference/boards.md#races)", "[a](reference/boards.md#races)"),
        ("[a](../solutions)", "a"),
        ("[a](https://arxiv.org/x.py)", "[a](https://arxiv.org/x.py)"),
        ("![a](pictures/straggler.svg)", "![a](pictures/straggler.svg)"),
        ("```\n[a](../solutions)\n```\n", "```\n[a](../solutions)\n```\n"),
    ],
)
def test_a_link_leads_to_a_page_or_is_its_text(pages: Any, link: str, page: str) -> None:
    assert pages.linked(link, ROOT / "notebooks" / "00_start_here.ipynb") == page


def test_a_run_is_kept_until_the_code_changes(pages: Any) -> None:
    runs = importlib.import_module("runs")
    code, text = nbformat.v4.new_code_cell, nbformat.v4.new_markdown_cell
    one, words, other = (
        nbformat.v4.new_notebook(cells=cells)
        for cells in ([code("1")], [text("new"), code("1")], [code("2")])
    )
    assert runs._key(one) == runs._key(words) != runs._key(other)


def test_a_lesson_that_fails_twice_says_why_and_leaves_nothing(
    pages: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = importlib.import_module("runs")
    monkeypatch.setattr(runs, "ROOT", tmp_path)
    monkeypatch.setattr(runs, "_library", lambda: "")
    path, kept = tmp_path / "notebooks" / "wrong.ipynb", tmp_path / "kept"
    path.parent.mkdir()
    code = "open('tries', 'a').write('x')\nraise ValueError('no such worker')"
    nbformat.write(nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(code)]), path)
    with pytest.raises(SystemExit, match=r"wrong\.ipynb: [^~]*no such worker"):
        runs.run_all([path], kept)
    assert (path.parent / "tries").read_text() == "xx"
    assert not list(kept.iterdir())
