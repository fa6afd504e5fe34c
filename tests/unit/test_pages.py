"""What README and the other pages say can be done: links lead somewhere, code names what there is,
commands are understood.
"""

import ast
import importlib
import re
import shlex
from pathlib import Path

import pytest
import typer.main

from course_lib.__main__ import app
from course_lib.spec.run_spec import RunSpec
from tests.browser.moving import chunks

ROOT = Path(__file__).parents[2]
REFERENCE = sorted((ROOT / "notebooks" / "reference").glob("*.md"))
PAGES = [
    *sorted(ROOT.glob("*.md")),
    *sorted((ROOT / "notebooks").glob("*.md")),
    ROOT / "exercises" / "README.md",
    ROOT / "solutions" / "README.md",
    *REFERENCE,
]
COMMANDS = typer.main.get_command(app)
# What they take beside the fields of a run.
OTHER_FIELDS = {"race": {"target_loss", "target_accuracy"}, "start": set[str]()}

every_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))


def prose(page: Path) -> str:
    """The text of a page without its code."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    return re.sub(r"`[^`\n]*`", "code", text)


def anchors(page: Path) -> set[str]:
    """What its headings are called in links."""
    titles = re.findall(r"^#+ +(.+)$", page.read_text(), flags=re.MULTILINE)
    plain = [re.sub(r"[^\w\- ]", "", title.lower()) for title in titles]
    return {title.strip().replace(" ", "-") for title in plain}


def python(page: Path) -> list[ast.Module]:
    """Its pieces of Python. Raises SyntaxError for what is none."""
    code = re.findall(r"^```python\n(.*?)^```", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    return [ast.parse(piece, str(page)) for piece in code]


@every_page
def test_its_links_lead_somewhere(page: Path) -> None:
    links = re.findall(r"\]\(([^)\s]+)\)|(?:src|srcset|href)=\"([^\"]+)\"", prose(page))
    for link in filter(None, (a or b for a, b in links)):
        if link.startswith(("https://", "http://")):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), f"{page.name} links to {link}"
        if anchor:
            assert anchor in anchors(target), f"{page.name} links to {link}"


@every_page
def test_its_code_names_what_there_is(page: Path) -> None:
    for node in (node for tree in python(page) for node in ast.walk(tree)):
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith("course_lib"):
            module = importlib.import_module(str(node.module))
            for alias in node.names:
                assert hasattr(module, alias.name), alias.name
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            name = node.func.id
            given = {keyword.arg for keyword in node.keywords if keyword.arg}
            if name in OTHER_FIELDS:
                assert given <= {*RunSpec.model_fields, *OTHER_FIELDS[name]}


@every_page
def test_its_commands_are_understood(page: Path) -> None:
    for line in re.findall(r"^ {4}(?:\S*/)?lockstep (.+)$", page.read_text(), flags=re.MULTILINE):
        name, *arguments = shlex.split(line, comments=True)
        assert name in COMMANDS.commands, line
        COMMANDS.commands[name].make_context(name, arguments)


def test_the_readme_is_short_and_names_every_page() -> None:
    text = (ROOT / "README.md").read_text()
    assert len(text.splitlines()) < 98
    assert len(REFERENCE) > 8
    for page in REFERENCE:
        assert f"({page.relative_to(ROOT)})" in text
    for lesson in (ROOT / "notebooks").glob("*.ipynb"):
        assert f"({lesson.relative_to(ROOT)})" in text


def test_the_smaller_download_is_the_pinned_pytorch() -> None:
    pins = (ROOT / "pyproject.toml").read_text()
    (torch,) = re.findall(r"torch==[\d.]+", (REFERENCE[0].parent / "set_up.md").read_text())
    assert f'"{torch}"' in pins


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_moving_picture_is_small_and_moves(theme: str) -> None:
    picture = (ROOT / "notebooks" / "pictures" / f"board-{theme}.webp").read_bytes()
    assert len(picture) < 1_000_000
    parts = list(chunks(picture))
    assert dict(parts)[b"VP8X"][4:7] == (840 - 1).to_bytes(3, "little")  # as wide as a README
    lasts = [int.from_bytes(body[12:15], "little") for name, body in parts if name == b"ANMF"]
    assert len(lasts) > 20 and 8_000 < sum(lasts) < 20_000
