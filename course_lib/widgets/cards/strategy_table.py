"""StrategyTable: the catalogue of strategies, to compare and to filter.

It works without a kernel and without a script.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

from course_lib.widgets.badge import REALITY, badge
from course_lib.widgets.cards.card import Card
from course_lib.widgets.cards.machine_card import FRAMEWORKS
from course_lib.widgets.cards.words import explained, glossary

# Fact -> the question that it answers.
QUESTIONS = {
    "summary": "what is it?",
    "variables": "where do the variables live?",
    "gradients": "who computes the gradients?",
    "update": "who applies the update?",
    "waits": "who waits for whom?",
    "wire": "what goes over the wire in a step?",
    "use": "what is it for?",
    "limits": "what are its limits?",
}


class StrategyTable(Card):
    """The catalogue as a table: one fact of all strategies side by side, whichever is chosen, and
    all facts of those that are unfolded.

    `rows`: those of `catalog.rows`, one for each strategy and framework: `strategy`, `framework`,
    `reality`, `why`, `cure`, and the facts.
    """

    title = "Strategies"

    def __init__(self, rows: Sequence[Mapping[str, str]]) -> None:
        self.rows = list(rows)
        self.by_name: dict[str, dict[str, Mapping[str, str]]] = {}
        for row in self.rows:
            self.by_name.setdefault(row["strategy"], {})[row["framework"]] = row

    def body(self) -> str:
        present = [
            reality for reality in REALITY if any(row["reality"] == reality for row in self.rows)
        ]
        choices = [
            _select("compare", QUESTIONS),
            _select("framework", {"both": "both", **FRAMEWORKS}),
            _select("here", {"any": "all", **{reality: reality for reality in present}}),
        ]
        asked = "".join(
            f'<th scope="col" class="f-{fact}">{question}</th>'
            for fact, question in QUESTIONS.items()
        )
        columns = "".join(
            f'<th scope="col" class="c-{key}">{name}</th>' for key, name in FRAMEWORKS.items()
        )
        head = f'<div class="ls-head"><span class="ls-title">{self.title}</span><span class="ls-gap"></span>{"".join(choices)}</div>'
        table = f'<thead><tr><th scope="col">strategy</th>{asked}{columns}</tr></thead><tbody>{"".join(map(self._row, self.by_name))}</tbody>'
        texts = [
            text
            for row in self.rows
            for text in (row["why"], row["cure"], *(row[fact] for fact in QUESTIONS))
        ]
        units = '<p class="quiet f-wire">n: how many workers. S: the bytes of all gradients, as many as of all parameters.</p>'
        return f'{head}<table class="strategies">{table}</table>{units}{glossary(texts, present)}'

    def _row(self, name: str) -> str:
        """A strategy: the fact that is asked for and how real it is here; below, unfolded, all
        facts and the reasons.
        """
        found = self.by_name[name]
        any_row = next(iter(found.values()))
        marks = " ".join(f'data-{framework}="{row["reality"]}"' for framework, row in found.items())
        facts = "".join(
            f'<td class="f-{fact}">{explained(any_row[fact])}</td>' for fact in QUESTIONS
        )
        here = "".join(f'<td class="c-{key}">{_here(found.get(key))}</td>' for key in FRAMEWORKS)
        label = f'<th scope="row"><details><summary>{escape(name)}</summary></details></th>'
        more = "".join(
            f"<dt>{question}</dt><dd>{explained(any_row[fact])}</dd>"
            for fact, question in QUESTIONS.items()
        )
        for framework, row in found.items():
            cure = f'<span class="cure">{explained(row["cure"])}</span>' if row["cure"] else ""
            more += f"<dt>here, {FRAMEWORKS[framework]}</dt><dd>{badge(row['reality'])} {explained(row['why'])}{cure}</dd>"
        more += f"<dt>source</dt><dd>{escape(any_row['source'])}</dd>"
        return f'<tr {marks}>{label}{facts}{here}</tr><tr class="more" {marks}><td colspan="4"><dl>{more}</dl></td></tr>'

    def style(self) -> str:
        """Which column and which rows are shown follows from what is chosen."""
        here = ".ls.ls-card:has(option[value={}]:checked)"
        rules = [
            f".ls.ls-card:not(:has(option[value={fact}]:checked)) .f-{fact} {{ display: none; }}"
            for fact in QUESTIONS
        ]
        for key in FRAMEWORKS:
            chosen = here.format(key)
            rules.append(
                f"{chosen} :is(tr[data-torch], tr[data-tensorflow]):not([data-{key}]) {{ display: none; }}"
            )
            rules += [
                f"{chosen} .c-{other} {{ display: none; }}" for other in FRAMEWORKS if other != key
            ]
            rules += [
                f"{chosen}:has(option[value={r}]:checked) tbody tr:not([data-{key}={r}]) {{ display: none; }}"
                for r in REALITY
            ]
        neither = "".join(f":not([data-{key}={{0}}])" for key in FRAMEWORKS)
        rules += [
            f"{here.format(reality)} tbody tr{neither.format(reality)} {{ display: none; }}"
            for reality in REALITY
        ]
        rules += [
            ".ls.ls-card tr.more:not(tr:has(details[open]) + tr) { display: none; }",
            ".ls.ls-card tbody tr.more { border-top: 0; } .ls.ls-card tr.more td { padding: 0 0 10px 18px; }",
            ".ls.ls-card .strategies td:not([colspan]):not([class^=f]) { white-space: nowrap; }",
        ]
        return "\n".join(rules)

    def table(self) -> str:
        lines = []
        for name, found in self.by_name.items():
            row = next(iter(found.values()))
            lines += [
                name,
                *(f"  {question:30} {row[fact]}" for fact, question in QUESTIONS.items()),
            ]
            lines += [
                f"  here, {FRAMEWORKS[f]:24} {' '.join(filter(None, (r['reality'] + ':', r['why'] + '.', r['cure'])))}"
                for f, r in found.items()
            ]
        return "\n".join(lines)

    def __repr__(self) -> str:
        return f"StrategyTable({len(self.by_name)} strategies, {len(self.rows)} with a framework)"


def _select(label: str, options: Mapping[str, str]) -> str:
    listed = "".join(
        f'<option value="{value}">{escape(text)}</option>' for value, text in options.items()
    )
    return f'<label>{label} <select aria-label="{label}">{listed}</select></label>'


def _here(row: Mapping[str, str] | None) -> str:
    return (
        badge(row["reality"], " ".join(filter(None, (row["why"] + ".", row["cure"]))))
        if row
        else '<span class="quiet" title="not in this course">—</span>'
    )
