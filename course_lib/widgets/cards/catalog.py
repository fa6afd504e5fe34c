"""MachineCard and StrategyTable: what this machine has, and the catalogue of strategies with how
real each can be here. They need neither a kernel nor a script.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence

from course_lib import text
from course_lib.spec.run_spec import FRAMEWORKS
from course_lib.widgets.kit import Inside, Markup, badge, element, join
from course_lib.widgets.kit.glossary import explained, glossary
from course_lib.widgets.kit.page import Card
from course_lib.widgets.kit.palette import REALITY
from course_lib.widgets.kit.widget import are_rows, takes

Fact = tuple[str, str, str]
"""A thing (or a decision), its amount (or the choice), and what that means (or the reason)."""
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


class MachineCard(Card):
    """A card of a machine.

    - `machine`: rows (what there is, how much of it, what that means), as from
      `hardware.machine_rows`.
    - `strategies`: rows of the catalogue, of which the card reads `strategy`, `framework`,
      `reality`, `why` and `cure`.
    - `plan`: rows (what was decided for a run, the choice, why).
    """

    title = "This machine"

    @takes("rows of text: machine_card() makes such a card", are_rows)
    def __init__(
        self, machine: Sequence[Fact], strategies: Sequence[Row] = (), plan: Sequence[Fact] = ()
    ) -> None:
        self.machine, self.strategies, self.plan = list(machine), list(strategies), list(plan)

    def groups(self) -> list[tuple[str, str, str, list[str]]]:
        """Strategies grouped by how real they are here and why: (reality, why, cure, strategies).
        Those that can be measured come first.
        """
        alike: dict[tuple[str, str, str], dict[str, list[str]]] = {}
        for row in self.strategies:
            names = alike.setdefault((row["reality"], row["why"], row["cure"]), defaultdict(list))
            names[row["strategy"]].append(FRAMEWORKS[row["framework"]])
        named = [
            (*reason, [f"{name} ({', '.join(where)})" for name, where in names.items()])
            for reason, names in alike.items()
        ]
        return sorted(named, key=lambda group: list(REALITY).index(group[0]))

    def body(self) -> str:
        parts = [element("h3", self.title), _facts(self.machine)]
        if self.plan:
            parts += [element("h3", "The plan of this run"), _facts(self.plan)]
        if self.strategies:
            heads = [element("th", name) for name in ("here", "strategies", "why, and what to do")]
            rows = []
            for reality, why, cure, names in self.groups():
                listed = [element("span", name, class_="name") for name in names]
                spaced = [(", " if i else "", name) for i, name in enumerate(listed)]
                cells = badge(reality), spaced, _reason(f"{why[:1].upper()}{why[1:]}.", cure)
                rows.append(element("tr", [element("td", cell) for cell in cells]))
            parts.append(element("h3", "What that means for each strategy"))
            parts.append(_table(heads, rows, "standing"))
        texts = [cell for row in (*self.machine, *self.plan) for cell in row]
        texts += [words for _, why, cure, _ in self.groups() for words in (why, cure)]
        return join(parts) + glossary(texts, {row["reality"] for row in self.strategies})

    def table(self) -> str:
        rows = [(what, f"{much}: {means}") for what, much, means in (*self.machine, *self.plan)]
        for reality, why, cure, names in self.groups():
            rows.append((reality, f"{', '.join(names)}: {why}. {cure}"))
        return text.table(rows)

    def __repr__(self) -> str:
        return f"MachineCard({len(self.machine)} facts, {len(self.strategies)} strategies)"


class StrategyTable(Card):
    """The catalogue as a table. It shows one fact of every strategy, chosen in a menu, and all
    facts of those that are unfolded.

    `rows`: those of `catalog.rows`, one for each strategy and framework: `strategy`, `framework`,
    `reality`, `why`, `cure`, `source` and the facts.
    """

    title = "Strategies"

    @takes("rows of the catalogue: strategy_table() makes such a card", are_rows)
    def __init__(self, rows: Sequence[Row]) -> None:
        self.rows = list(rows)
        self.by_name: dict[str, dict[str, Row]] = {}
        for row in self.rows:
            self.by_name.setdefault(row["strategy"], {})[row["framework"]] = row

    def body(self) -> str:
        here = {row["reality"] for row in self.rows}
        present = [reality for reality in REALITY if reality in here]
        title = element("span", self.title, class_="ls-title")
        choices = [
            _select("compare", QUESTIONS),
            _select("framework", {"both": "both", **FRAMEWORKS}),
            _select("here", {"any": "all", **dict(zip(present, present, strict=True))}),
        ]
        bar = element("div", title, element("span", class_="ls-gap"), choices, class_="ls-head")
        columns = {f"f-{fact}": asked for fact, asked in QUESTIONS.items()}
        columns |= {f"c-{key}": name for key, name in FRAMEWORKS.items()}
        heads = [element("th", asked, scope="col", class_=name) for name, asked in columns.items()]
        heads = [element("th", "strategy", scope="col"), *heads]
        table = _table(heads, [self._row(name) for name in self.by_name], "strategies")
        symbols = "n: number of workers. S: bytes of all gradients, as many as of all parameters."
        units = element("p", symbols, class_="quiet f-wire")
        texts = [row[fact] for row in self.rows for fact in ("why", "cure", *QUESTIONS)]
        return bar + table + units + glossary(texts, present)

    def _row(self, name: str) -> list[Markup]:
        """Two rows for a strategy: the chosen fact and how real it is here; and, if it is unfolded,
        all facts and the reasons.
        """
        rows = self.by_name[name]
        any_row = next(iter(rows.values()))
        facts = {fact: explained(any_row[fact]) for fact in QUESTIONS}
        cells = [element("td", answer, class_=f"f-{fact}") for fact, answer in facts.items()]
        cells += [element("td", _here(rows.get(key)), class_=f"c-{key}") for key in FRAMEWORKS]
        more: dict[str, Inside] = {QUESTIONS[fact]: answer for fact, answer in facts.items()}
        for framework, row in rows.items():
            reason = badge(row["reality"]), " ", _reason(row["why"], row["cure"])
            more[f"here, {FRAMEWORKS[framework]}"] = reason
        more["source"] = any_row["source"]
        listed = [(element("dt", asked), element("dd", answer)) for asked, answer in more.items()]
        marks = {f"data-{framework}": row["reality"] for framework, row in rows.items()}
        marks["data-both"] = " ".join(marks.values())
        label = element("th", element("details", element("summary", name)), scope="row")
        unfolded = element("td", element("dl", listed), colspan=4)
        shown = element("tr", label, cells, **marks)
        return [shown, element("tr", unfolded, class_="more", **marks)]

    def style(self) -> str:
        """Rules that hide the columns and rows that are not chosen in the menus above the table."""
        card = ".ls.ls-card:has(option[value={}]:checked)"
        hidden = [f".ls.ls-card:not(:has(option[value={f}]:checked)) .f-{f}" for f in QUESTIONS]
        for key in ("both", *FRAMEWORKS):
            chosen = card.format(key)
            rows = [f"{chosen} tbody tr:not([data-{key}])"]
            rows += [
                f"{chosen}:has(option[value={r}]:checked) tbody tr:not([data-{key}~={r}])"
                for r in REALITY
            ]
            columns = [f"{chosen} .c-{other}" for other in FRAMEWORKS if key not in ("both", other)]
            hidden += rows + columns
        return "\n".join(f"{those} {{ display: none; }}" for those in hidden)

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

    def __repr__(self) -> str:
        return f"StrategyTable({len(self.by_name)} strategies, {len(self.rows)} with a framework)"


def _facts(facts: Sequence[Fact]) -> Markup:
    rows = []
    for what, much, means in facts:
        cells = element("td", explained(much)), element("td", explained(means), class_="quiet")
        rows.append(element("tr", element("th", what, scope="row"), cells))
    return _table([], rows, "facts")


def _table(heads: Sequence[Markup], rows: Inside, name: str) -> Markup:
    head = element("thead", element("tr", heads)) if heads else None
    return element("table", head, element("tbody", rows), class_=name)


def _reason(why: str, cure: str) -> list[Markup]:
    """Show a reason with its cure."""
    parts = [explained(why)]
    return [*parts, element("span", explained(cure), class_="cure")] if cure else parts


def _select(label: str, options: Mapping[str, str]) -> Markup:
    listed = [element("option", words, value=value) for value, words in options.items()]
    return element("label", f"{label} ", element("select", listed, aria_label=label))


def _here(row: Row | None) -> Markup:
    if row is None:
        return element("span", "—", class_="quiet", title="not in this course")
    return badge(row["reality"], f"{row['why']}. {row['cure']}".rstrip())
