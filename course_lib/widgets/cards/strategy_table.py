"""StrategyTable: the catalogue of strategies, to compare and to filter. It needs neither a kernel
nor a script.
"""

from collections.abc import Mapping, Sequence

from course_lib import text
from course_lib.spec.run_spec import FRAMEWORKS
from course_lib.widgets.kit import Inside, Markup, badge, element, join
from course_lib.widgets.kit.given import are_rows, takes
from course_lib.widgets.kit.glossary import explained, glossary
from course_lib.widgets.kit.page import Card
from course_lib.widgets.kit.palette import REALITY

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
    """The catalogue as a table. It shows one fact of every strategy, chosen in a menu, and all
    facts of those that are unfolded.

    `rows`: those of `catalog.rows`, one for each strategy and framework: `strategy`, `framework`,
    `reality`, `why`, `cure`, `source` and the facts.
    """

    title = "Strategies"

    @takes("rows of the catalogue: strategy_table() makes such a card", are_rows)
    def __init__(self, rows: Sequence[Mapping[str, str]]) -> None:
        self.rows = list(rows)
        self.by_name: dict[str, dict[str, Mapping[str, str]]] = {}
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
        heads = [(None, "strategy"), *((f"f-{fact}", asked) for fact, asked in QUESTIONS.items())]
        heads += [(f"c-{key}", name) for key, name in FRAMEWORKS.items()]
        cells = [element("th", words, scope="col", class_=name) for name, words in heads]
        head = element("thead", element("tr", cells))
        rows = element("tbody", [self._row(name) for name in self.by_name])
        table = element("table", head, rows, class_="strategies")
        symbols = "n: number of workers. S: bytes of all gradients, as many as of all parameters."
        units = element("p", symbols, class_="quiet f-wire")
        texts = [row[fact] for row in self.rows for fact in ("why", "cure", *QUESTIONS)]
        return bar + table + units + glossary(texts, present)

    def _row(self, name: str) -> list[Markup]:
        """Two rows for a strategy: the chosen fact and how real it is here; and, if it is unfolded,
        all facts and the reasons.
        """
        found = self.by_name[name]
        any_row = next(iter(found.values()))
        facts = {fact: explained(any_row[fact]) for fact in QUESTIONS}
        cells = [element("td", said, class_=f"f-{fact}") for fact, said in facts.items()]
        cells += [element("td", _here(found.get(key)), class_=f"c-{key}") for key in FRAMEWORKS]
        more = [_fact(QUESTIONS[fact], said) for fact, said in facts.items()]
        for framework, row in found.items():
            cure = element("span", explained(row["cure"]), class_="cure") if row["cure"] else None
            said = (badge(row["reality"]), " ", explained(row["why"]), cure)
            more.append(_fact(f"here, {FRAMEWORKS[framework]}", said))
        more.append(_fact("source", any_row["source"]))
        marks = {f"data-{framework}": row["reality"] for framework, row in found.items()}
        label = element("th", element("details", element("summary", name)), scope="row")
        unfolded = element("td", element("dl", more), colspan=4)
        shown = element("tr", label, cells, **marks)
        return [shown, element("tr", unfolded, class_="more", **marks)]

    def style(self) -> str:
        """Rules that hide the columns and rows that are not chosen in the menus above the table."""
        card = ".ls.ls-card:has(option[value={}]:checked)"
        hidden = [f".ls.ls-card:not(:has(option[value={f}]:checked)) .f-{f}" for f in QUESTIONS]
        for key in FRAMEWORKS:
            chosen = card.format(key)
            hidden.append(f"{chosen} :is(tr[data-torch], tr[data-tensorflow]):not([data-{key}])")
            hidden += [f"{chosen} .c-{other}" for other in FRAMEWORKS if other != key]
            hidden += [
                f"{chosen}:has(option[value={r}]:checked) tbody tr:not([data-{key}={r}])"
                for r in REALITY
            ]
        for r in REALITY:
            neither = "".join(f":not([data-{key}={r}])" for key in FRAMEWORKS)
            hidden.append(f"{card.format(r)} tbody tr{neither}")
        return "\n".join(f"{those} {{ display: none; }}" for those in hidden)

    def table(self) -> str:
        lines = []
        for name, found in self.by_name.items():
            any_row = next(iter(found.values()))
            rows = [("  " + question, any_row[fact]) for fact, question in QUESTIONS.items()]
            for key, row in found.items():
                here = f"{row['reality']}: {row['why']}. {row['cure']}"
                rows.append((f"  here, {FRAMEWORKS[key]}", here))
            lines += [name, text.table(rows)]
        return "\n".join(lines)

    def __repr__(self) -> str:
        return f"StrategyTable({len(self.by_name)} strategies, {len(self.rows)} with a framework)"


def _fact(question: str, said: Inside) -> Markup:
    return join((element("dt", question), element("dd", said)))


def _select(label: str, options: Mapping[str, str]) -> Markup:
    listed = [element("option", words, value=value) for value, words in options.items()]
    return element("label", f"{label} ", element("select", listed, aria_label=label))


def _here(row: Mapping[str, str] | None) -> Markup:
    if row is None:
        return element("span", "—", class_="quiet", title="not in this course")
    return badge(row["reality"], f"{row['why']}. {row['cure']}".rstrip())
