"""MachineCard: what this machine has, and how real each strategy can be on it, with the reason and
the cure.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence

from course_lib import text
from course_lib.spec.run_spec import FRAMEWORKS
from course_lib.widgets.kit import Markup, badge, element, join
from course_lib.widgets.kit.given import are_rows, takes
from course_lib.widgets.kit.glossary import explained, glossary
from course_lib.widgets.kit.page import Card
from course_lib.widgets.kit.palette import REALITY

Fact = tuple[str, str, str]
"""What there is (or was decided), how much of it (or the choice), and what that means (or why)."""


class MachineCard(Card):
    """A card of a machine.

    - `machine`: rows (what there is, how much of it, what that means), as from
      `hardware.machine_rows`.
    - `strategies`: rows of the catalogue, of which the card reads `strategy`, `framework`,
      `reality`, `why` and `cure`.
    - `plan`: rows (what was decided for a run, the choice, why).
    """

    title = "This machine"

    @takes(
        "rows of text: machine_card() makes such a card", lambda *given: all(map(are_rows, given))
    )
    def __init__(
        self,
        machine: Sequence[Fact],
        strategies: Sequence[Mapping[str, str]] = (),
        plan: Sequence[Fact] = (),
    ) -> None:
        self.machine, self.strategies, self.plan = list(machine), list(strategies), list(plan)

    def groups(self) -> list[tuple[str, str, str, list[str]]]:
        """Strategies grouped by how real they are here and why: (reality, why, cure, strategies).
        Those that can be measured come first.
        """
        found: dict[tuple[str, str, str], dict[str, list[str]]] = {}
        for row in self.strategies:
            names = found.setdefault((row["reality"], row["why"], row["cure"]), defaultdict(list))
            names[row["strategy"]].append(FRAMEWORKS[row["framework"]])
        named = [
            (*reason, [f"{name} ({', '.join(where)})" for name, where in names.items()])
            for reason, names in found.items()
        ]
        return sorted(named, key=lambda group: list(REALITY).index(group[0]))

    def body(self) -> str:
        parts = [element("h3", self.title), _facts(self.machine)]
        if self.plan:
            parts += [element("h3", "The plan of this run"), _facts(self.plan)]
        if self.strategies:
            heads = ("here", "strategies", "why, and what to do")
            head = element("thead", element("tr", [element("th", name) for name in heads]))
            rows = element("tbody", [_standing(*group) for group in self.groups()])
            parts.append(element("h3", "What that means for each strategy"))
            parts.append(element("table", head, rows, class_="standing"))
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


def _facts(rows: Sequence[Fact]) -> Markup:
    lines = []
    for what, much, means in rows:
        cells = element("td", explained(much)), element("td", explained(means), class_="quiet")
        lines.append(element("tr", element("th", what, scope="row"), cells))
    return element("table", element("tbody", lines), class_="facts")


def _standing(reality: str, why: str, cure: str, names: list[str]) -> Markup:
    """A row for a group of strategies."""
    listed = [(", " if i else "", element("span", n, class_="name")) for i, n in enumerate(names)]
    todo = element("span", explained(cure), class_="cure") if cure else None
    reason = explained(f"{why[:1].upper()}{why[1:]}.")
    cells = [badge(reality), listed, [reason, todo]]
    return element("tr", [element("td", cell) for cell in cells])
