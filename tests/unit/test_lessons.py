"""Lessons as a learner reads them: few imports, and checks apart from the program."""

import ast
import contextlib
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
LESSONS = sorted((ROOT / "notebooks").glob("*.ipynb"))
SOLUTIONS = sorted((ROOT / "solutions").glob("[0-9]*.ipynb"))
PUBLIC = ("course_lib", "course_lib.widgets")


def code_cells(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields source and metadata of each code cell."""
    for cell in json.loads(path.read_text())["cells"]:
        if cell["cell_type"] == "code":
            yield "".join(cell["source"]), cell["metadata"]


def name(path: Path) -> str:
    return f"{path.parent.name}/{path.stem}"


@pytest.mark.parametrize("path", [*LESSONS, *SOLUTIONS], ids=name)
def test_assertions_stand_in_cells_of_their_own_which_are_collapsed(path: Path) -> None:
    for source, metadata in code_cells(path):
        if "BEGIN HIDDEN TESTS" in source:
            continue
        has_assertion = any(isinstance(node, ast.Assert) for node in ast.walk(ast.parse(source)))
        is_check = "check" in metadata.get("tags", ())
        assert has_assertion == is_check, source
        if is_check:
            assert metadata["jupyter"]["source_hidden"], source
            assert "reveal" not in source, "what a learner sees is no check"


@pytest.mark.parametrize("path", LESSONS, ids=name)
def test_a_lesson_imports_the_library_in_two_lines(path: Path) -> None:
    sources = (source for source, _ in code_cells(path))
    nodes = [node for source in sources for node in ast.walk(ast.parse(source))]
    modules = [str(node.module) for node in nodes if isinstance(node, ast.ImportFrom)]
    ours = [module for module in modules if module.startswith("course_lib")]
    assert {*ours} <= {*PUBLIC}
    assert len(ours) == len({*ours}), "one line from each"


# --- guesses ---


def calls(tree: ast.AST, function: str) -> list[ast.Call]:
    """The calls of a function, or of a method, of that name."""
    nodes = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    names = [getattr(node.func, "attr", getattr(node.func, "id", "")) for node in nodes]
    return [node for node, name in zip(nodes, names, strict=True) if name == function]


def cards(path: Path) -> dict[str, set[str]]:
    """The Predict cards of a lesson by the names of their variables, each with its choices; a card
    of numbers has none.
    """
    tree = ast.parse("\n".join(source for source, _ in code_cells(path)))
    known: dict[str, Any] = {}
    asked: dict[str, set[str]] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            name = node.targets[0].id
            with contextlib.suppress(ValueError):
                known.setdefault(name, ast.literal_eval(node.value))
            if calls(node.value, "Predict"):
                listed = [each.value for each in calls(node.value, "Predict")[0].keywords]
                named = [each.arg for each in calls(node.value, "Predict")[0].keywords]
                choices = dict(zip(named, listed, strict=True)).get("choices")
                asked[name] = set(evaluated(choices, known)) if choices else set()
    return asked


def evaluated(node: ast.expr, known: dict[str, Any]) -> Any:
    return eval(ast.unparse(node), dict(known))


@pytest.mark.parametrize("path", LESSONS, ids=name)
def test_each_guess_is_answered_in_a_cell_of_its_own_that_is_folded(path: Path) -> None:
    answered = []
    for source, metadata in code_cells(path):
        if "reveal" in metadata.get("tags", ()) or ".reveal(" in source:
            assert metadata["tags"] == ["reveal"] and metadata["jupyter"]["source_hidden"], source
            named = re.match(
                r"# The answer to (\w+): it unfolds when your guess is locked\n", source
            )
            assert named, source
            answered.append(named[1])
            revealing = calls(ast.parse(source), "reveal")
            assert {ast.unparse(call.func) for call in revealing} == {f"{named[1]}.reveal"}
            assert source.endswith(f"\n{named[1]}"), "the card is shown"
            measures = [
                each for each in ("start", "race", "compare", "wait") if f"{each}(" in source
            ]
            assert not measures, "what a learner should read is not folded"
    assert sorted(answered) == sorted(cards(path)) and answered


@pytest.mark.parametrize("path", LESSONS, ids=name)
def test_each_answer_has_a_cause_and_a_sentence_for_each_choice_that_may_not_be_it(
    path: Path,
) -> None:
    choices = cards(path)
    tree = ast.parse("\n".join(source for source, _ in code_cells(path)))
    for call in calls(tree, "reveal"):
        result, note, *more = call.args
        assert len(ast.unparse(note)) > 40, ast.unparse(call)
        name = ast.unparse(call.func).partition(".")[0]
        if ast.unparse(result) == "None" or not choices[name]:
            continue
        given: Any = more[0]
        if isinstance(given, ast.DictComp):
            keys = evaluated(ast.ListComp(given.key, given.generators), {})
        else:
            keys = [ast.literal_eval(key) for key in given.keys]
            for value in given.values:
                assert ast.unparse(value).count(". ") == 0, "one sentence"
        known = {result.value} if isinstance(result, ast.Constant) else set()
        assert choices[name] - known <= {*keys} <= choices[name], name


# --- the end ---

END = re.compile(
    r"## Where to go on\n\n"
    r"- \*\*Previous:\*\* (?P<previous>.+)\n"
    r"- \*\*Next:\*\* (?P<next>.+)\n"
    r"- \*\*Exercise:\*\* \[.+?\]\(\.\./exercises/(?P<exercise>\w+)\.ipynb\).+\n"
    r"- \*\*Contents:\*\* (?P<contents>.+) "
    r"There `progress\(\)` shows what you have solved, and where to go on\."
)
EXERCISES = {path.stem[:2]: path.stem for path in ROOT.glob("exercises/*.ipynb")}


@pytest.mark.parametrize("path", LESSONS, ids=name)
def test_lessons_end_alike_with_the_guesses_and_where_to_go_on(path: Path) -> None:
    guesses, end = json.loads(path.read_text())["cells"][-2:]
    assert "".join(guesses["source"]).startswith("Guesses()"), "the card of guesses"
    found = END.fullmatch("".join(end["source"]))
    assert found, "".join(end["source"])
    assert sum("Where to go on" in text for text in text_of(path)) == 1
    numbered = [each for each in LESSONS if each.name[0].isdigit()]
    if path in numbered:
        place = numbered.index(path)
        before = f"]({numbered[place - 1].name})" if place else "this is the first lesson"
        last = path == numbered[-1]
        after = "this is the last lesson" if last else f"]({numbered[place + 1].name})"
        assert before in found["previous"] and after in found["next"]
        assert found["exercise"] == EXERCISES.get(path.stem[:2], found["exercise"])
    assert "](00_start_here.ipynb)" in found["contents"] or path == numbered[0]


def text_of(path: Path) -> list[str]:
    cells = json.loads(path.read_text())["cells"]
    return ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown"]
