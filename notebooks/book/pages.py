"""The sources of the book, as Sphinx reads them: lessons with what they showed, exercises, and
pages made of other files. Each page lies where its file lies in the repository, so that links hold.
"""

from __future__ import annotations

import ast
import json
import os
import re
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import nbformat
from docutils.nodes import make_id
from frames import frame
from runs import HERE, ROOT, Kept, codes, read

from course_lib.widgets.kit.page import TERMS

LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s]+)\)")
NOTEBOOK = re.compile(r'href="([^":]+)\.ipynb(#[^"]*)?"')
UNTAGGED = "\\u003c"  # "<" in JSON, which ends no script
FIGURE = "application/vnd.plotly.v1+json"
LESSONS = sorted((ROOT / "notebooks").glob("*.ipynb"))
COSTS = ROOT / "notebooks/strategies/costs.ipynb"
GALLERY = HERE / "gallery.md"
RUN = [*LESSONS, COSTS, GALLERY]
EXERCISES = sorted((ROOT / "exercises").glob("*.ipynb"))
FOLDERS = {  # of Python files, each of which is a page
    "notebooks/strategies": "Pages of strategies",
    "notebooks/claims": "Published claims, as runs",
}
NOTE = """```{{note}}
An exercise is done in the installed course: `make lab`, then open `exercises/{}`. Its checks run
what you write in real processes and say in words what is wrong.
```"""


HERE_READ = """```{{note}}
Nothing runs on this page: it shows what a run of this lesson gave, and boards play what they have
recorded. To slow, pause and kill processes yourself, [install the course](../index.md#install-it)
and open `notebooks/{}`.
```"""


def sources(kept: dict[Path, Kept]) -> dict[str, str]:
    """Path in the folder of sources -> text, of all pages."""
    made = {f"{path.relative_to(ROOT)}": _notebook(path, kept.get(path)) for path in RUN[:-1]}
    made |= {f"{path.relative_to(ROOT)}": _exercise(path) for path in EXERCISES}
    texts = [ROOT / "notebooks/INSTRUCTORS.md"]
    texts += [*(ROOT / "notebooks/reference").glob("*.md"), ROOT / "CONTRIBUTING.md"]
    for path in texts:
        made[f"{path.relative_to(ROOT)}"] = linked(path.read_text(encoding="utf-8"), path)
    listed = (ROOT / "exercises/README.md").read_text(encoding="utf-8")
    shown = listed.partition("\nThe answers are in ")[0]  # which are no pages
    made["exercises/README.md"] = linked(shown, ROOT / "exercises/README.md")
    for folder, title in FOLDERS.items():
        files = sorted((ROOT / folder).glob("*.py"))
        made |= {f"{folder}/{path.stem}.md": _source(path) for path in files}
        made[f"{folder}/index.md"] = _index(title, files)
    made["notebooks/gallery.ipynb"] = _notebook(GALLERY, kept.get(GALLERY))
    made["stage.md"] = _with_stage((HERE / "stage.md").read_text(encoding="utf-8"))
    made["glossary.md"] = _glossary()
    made["index.md"] = _front()
    return made


def contents() -> dict[str, list[str]]:
    """The table of contents: heading -> pages, without suffix."""
    numbered = [f"notebooks/{path.stem}" for path in LESSONS]
    exercises = [f"exercises/{path.stem}" for path in EXERCISES]
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    pages = re.findall(r"\((notebooks/reference/\w+)\.md\)", _section(readme, "Look it up"))
    indexes = [f"{folder}/index" for folder in FOLDERS]
    return {
        "At first": ["stage", "notebooks/gallery"],
        "Lessons": numbered,
        "Exercises": ["exercises/README", *exercises],
        "Look it up": [*dict.fromkeys(pages), *indexes, "glossary"],
        "To teach, to add": ["notebooks/INSTRUCTORS", "CONTRIBUTING"],
    }


# --- pages of notebooks ---


def _notebook(path: Path, kept: Kept | None) -> str:
    book = read(path)
    place = ROOT / "notebooks" / path.name if path == GALLERY else path
    for cell, outputs in zip(codes(book), kept.outputs if kept else [], strict=bool(kept)):
        cell.outputs = [nbformat.from_dict(_shown(output, place)) for output in outputs]
    book.cells = [cell for cell in book.cells if not _left_out(cell)]
    for cell in book.cells:
        if cell.cell_type == "markdown":
            cell.source = linked(cell.source, place)
        elif cell.metadata.get("jupyter", {}).get("source_hidden"):
            cell.metadata["tags"] = [*cell.metadata.get("tags", ()), "hide-input"]
    if path in LESSONS:
        _noted(book, HERE_READ.format(path.name))
    return _written(book)


def _noted(book: Any, words: str) -> None:
    """Put a note below the title of a notebook."""
    first = next(i for i, cell in enumerate(book.cells) if cell.cell_type == "markdown")
    book.cells.insert(first + 1, nbformat.v4.new_markdown_cell(words, id="note"))


def _left_out(cell: Any) -> bool:
    """Checks, and the card of guesses, which are not made in the kernel here."""
    return "check" in cell.metadata.get("tags", ()) or cell.source.startswith("Guesses()")


def _exercise(path: Path) -> str:
    book = read(path)
    for cell in book.cells:
        if cell.cell_type == "markdown":
            cell.source = linked(cell.source, path)
    _noted(book, NOTE.format(path.name))
    return _written(book)


def _written(book: Any) -> str:
    python = {"name": "python3", "display_name": "Python 3", "language": "python"}
    book.metadata = {"kernelspec": python, "language_info": {"name": "python"}}
    return str(nbformat.writes(book, version=4))


def _shown(output: dict[str, Any], place: Path) -> dict[str, Any]:
    """An output as the book shows it: figures and frames as HTML, links to pages."""
    data = output.get("data", {})
    data.pop("application/vnd.jupyter.widget-view+json", None)
    up = "../" * len(place.relative_to(ROOT).parts[1:])
    if FIGURE in data:
        figure = json.dumps({part: data[FIGURE][part] for part in ("data", "layout")})
        script = f'<script type="application/json">{figure.replace("<", UNTAGGED)}</script>'
        height = data[FIGURE]["layout"].get("height", 420)
        data = {"text/html": f'<div class="figure" style="height: {height}px">{script}</div>'}
    elif "text/html" in data:
        html = "".join(data["text/html"]).replace('src="widgets/', f'src="{up}widgets/')
        data = {"text/html": NOTEBOOK.sub(_page, html)}
    return output | {"data": data} if data else output


# --- links ---


def _page(link: re.Match[str]) -> str:
    """The link to a notebook, or to a heading in it as JupyterLab calls it, as one to its page."""
    anchor = "#" + make_id(unquote(link[2][1:])) if link[2] else ""
    return f'href="{link[1]}.html{anchor}"'


def linked(text: str, path: Path) -> str:
    """Markdown with links to the book's pages; a link to a file that is no page is its text."""

    def link(match: re.Match[str]) -> str:
        image, words, target = match.groups()
        file, _, anchor = target.partition("#")
        if image or not file or re.match(r"\w+:", target):
            return match[0]
        at = (path.parent / file).resolve()
        where = f"{at.relative_to(ROOT)}" if at.is_relative_to(ROOT) else ""
        if where in FOLDERS:
            file = f"{file.rstrip('/')}/index.md"
        elif at.suffix == ".py" and f"{at.parent.relative_to(ROOT)}" in FOLDERS:
            file = f"{file.removesuffix('.py')}.md"
        elif at.suffix not in (".md", ".ipynb") or where.startswith("solutions"):
            return words
        return f"[{words}]({file}{'#' * bool(anchor)}{anchor})"

    parts = re.split(r"(^```.*?^```\n?)", text, flags=re.DOTALL | re.MULTILINE)
    return "".join(part if part.startswith("```") else LINK.sub(link, part) for part in parts)


# --- other pages ---


def _source(path: Path) -> str:
    text = path.read_text(encoding="utf-8")
    tree = ast.parse(text)
    doc = ast.get_docstring(tree) or ""
    code = "".join(text.splitlines(keepends=True)[tree.body[0].end_lineno if doc else 0 :])
    words = doc.replace("$", r"\$").replace("<", "&lt;")
    return f"# {path.stem}\n\n{words}\n\n```{{code-block}} python\n{code.strip()}\n```\n"


def _index(title: str, files: list[Path]) -> str:
    lines = [f"# {title}", ""]
    for path in files:
        doc = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
        first = re.split(r"[.:](?:\s|$)", " ".join(doc.split("\n\n")[0].split()))[0]
        lines.append(f"- [{path.stem}]({path.stem}.md): {first}.")
    extra = ["costs"] if files[0].parent == COSTS.parent else []
    names = [*extra, *(path.stem for path in files)]
    return "\n".join([*lines, "", _tree("", names)])


def _glossary() -> str:
    terms = [f"{term}\n  {TERMS[term]}\n" for term in sorted(TERMS, key=str.lower)]
    return "\n".join(["# Words used here\n", "```{glossary}", *terms, "```\n"])


def _tree(caption: str, pages: list[str]) -> str:
    options = f":caption: {caption}\n" if caption else ""
    return "```{toctree}\n:hidden:\n" + options + "\n" + "\n".join(pages) + "\n```\n"


def _section(text: str, heading: str) -> str:
    """What stands below a heading of a page."""
    return re.split(r"^## ", text.split(f"\n## {heading}\n")[1], flags=re.MULTILINE)[0].strip("\n")


def _front() -> str:
    """The first page, with sections of README."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    text = _with_stage((HERE / "index.md").read_text(encoding="utf-8"))
    for heading in re.findall(r"<!-- README: (.*?) -->", text):
        part = _section(readme, heading).partition(" `make book`")[0]  # who reads it has it
        part = linked(part, ROOT / "README.md")
        text = text.replace(f"<!-- README: {heading} -->", part)
    address = os.environ.get("BOOK_REPOSITORY", "")
    place = "In the folder of the course, the one with the `Makefile`:"
    if address:
        place = f"    git clone {address}\n    cd {address.rpartition('/')[2]}\n\nThen:"
    text = text.replace("<!-- repository -->", place)
    trees = [_tree(caption, pages) for caption, pages in contents().items()]
    return "\n".join([text, *trees])


def _with_stage(text: str) -> str:
    page = frame("playground.html", "All-reduce algorithms, round by round", 640)
    return text.replace("<!-- stage -->", page)


def playground() -> str:
    """The page of the stage, which simulates in the browser."""
    from playground import page

    return str(page())
