"""MachineCard and StrategyTable: what this machine has, and the catalogue of strategies with how
real each can be here. They need neither a kernel nor a script.
"""

import itertools
from collections.abc import Mapping, Sequence

from course_lib import text
from course_lib.spec.run_spec import FRAMEWORKS
from course_lib.widgets.kit import REALITY, Inside, Markup, badge, element, table, unfold
from course_lib.widgets.kit.page import Card, glossary

Fact = tuple[str, str, str]
"""A thing, its amount, and what that means."""
Row = Mapping[str, str]
"""A strategy in a framework, as `catalog.rows` gives it."""

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
# In CSS: the card, where something is chosen in a menu, and the columns and rows that are not.
CHOSEN = ".ls.ls-card:has(option[value={}]:checked)"
UNASKED = [f".ls.ls-card:not(:has(option[value={fact}]:checked)) .f-{fact}" for fact in QUESTIONS]
ELSEWHERE = [f"{CHOSEN.format(here)} tbody tr:not([data-here~={here}])" for here in REALITY]


class MachineCard(Card):
    """A card of a machine: rows (what there is, how much of it, what that means), as from
    `hardware.machine_rows`.
    """

    title = "This machine"

    def __init__(self, machine: Sequence[Fact]) -> None:
        self.machine = list(machine)

    def body(self) -> str:
        facts = []
        for what, much, means in self.machine:
            cells = element("td", much), element("td", means, class_="quiet")
            facts.append(element("tr", element("th", what, scope="row"), cells))
        listed = table(None, facts, class_="facts")
        return element("h3", self.title) + listed + glossary(itertools.chain(*self.machine))

    def table(self) -> str:
        return text.table([(what, f"{much}: {means}") for what, much, means in self.machine])


class StrategyTable(Card):
    """The catalogue as a table. It shows one fact of every strategy, chosen in a menu, and all
    facts of those that are unfolded.

    `rows`: those of `catalog.rows`, one for each strategy and framework: `strategy`, `framework`,
    `reality`, `why`, `cure`, `source` and the facts.
    """

    title = "Strategies"
    style = "\n".join(f"{those} {{ display: none; }}" for those in (*UNASKED, *ELSEWHERE))

    def __init__(self, rows: Sequence[Row]) -> None:
        self.rows = list(rows)
        self.by_name: dict[str, dict[str, Row]] = {}
        for row in self.rows:
            self.by_name.setdefault(row["strategy"], {})[row["framework"]] = row

    def body(self) -> str:
        here = {row["reality"] for row in self.rows}
        present = {reality: reality for reality in REALITY if reality in here}
        title = element("span", self.title, class_="ls-title")
        choices = _select("compare", QUESTIONS), _select("here", {"any": "all", **present})
        bar = element("div", title, element("span", class_="ls-gap"), choices, class_="ls-head")
        columns = {asked: f"f-{fact}" for fact, asked in QUESTIONS.items()}
        columns = {"strategy": "", **columns, **dict.fromkeys(FRAMEWORKS.values(), "")}
        heads = [element("th", asked, scope="col", class_=name) for asked, name in columns.items()]
        rows = [self._row(name) for name in self.by_name]
        listed = table(element("tr", heads), rows, class_="strategies")
        symbols = "n: number of workers. S: bytes of all gradients, as many as of all parameters."
        units = element("p", symbols, class_="quiet f-wire")
        texts = [row[fact] for row in self.rows for fact in ("why", "cure", *QUESTIONS)]
        return bar + listed + units + glossary(texts, present)

    def _row(self, name: str) -> list[Markup]:
        """Two rows for a strategy: the chosen fact and how real it is here; and, if it is unfolded,
        all facts and the reasons.
        """
        rows = self.by_name[name]
        any_row = next(iter(rows.values()))
        cells = [element("td", any_row[fact], class_=f"f-{fact}") for fact in QUESTIONS]
        more: dict[str, Inside] = {asked: any_row[fact] for fact, asked in QUESTIONS.items()}
        for key, framework in FRAMEWORKS.items():
            if row := rows.get(key):
                cells.append(element("td", badge(row["reality"], f"{row['why']}. {row['cure']}")))
                cure = element("span", row["cure"], class_="cure") if row["cure"] else None
                more[f"here, {framework}"] = badge(row["reality"]), " ", row["why"], cure
            else:
                cells.append(element("td", "—", class_="quiet", title="not in this course"))
        more["source"] = any_row["source"]
        listed = [(element("dt", asked), element("dd", answer)) for asked, answer in more.items()]
        label = element("th", unfold(name), scope="row")
        unfolded = element("td", element("dl", listed), colspan=4)
        here = " ".join(row["reality"] for row in rows.values())
        shown = element("tr", label, cells, data_here=here)
        return [shown, element("tr", unfolded, class_="more", data_here=here)]

    def table(self) -> str:
        lines = []
        for name, rows in self.by_name.items():
            any_row = next(iter(rows.values()))
            facts = [(f"  {question}", any_row[fact]) for fact, question in QUESTIONS.items()]
            for key, row in rows.items():
                here = f"{row['reality']}: {row['why']}. {row['cure']}"
                facts.append((f"  here, {FRAMEWORKS[key]}", here))
            lines += [name, text.table(facts)]
        return "\n".join(lines)


def _select(label: str, options: Mapping[str, str]) -> Markup:
    listed = [element("option", words, value=value) for value, words in options.items()]
    attributes = {"aria_label": label, "data_lm_suppress_shortcuts": "true"}
    return element("label", f"{label} ", element("select", listed, **attributes))
