"""MachineCard: what this machine has, and what that means for each strategy, with the reason and
the cure.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from html import escape

from course_lib.widgets.badge import REALITY, badge
from course_lib.widgets.cards.card import Card
from course_lib.widgets.cards.words import explained, glossary

Row = tuple[str, str, str]
FRAMEWORKS = {"tensorflow": "TensorFlow", "torch": "PyTorch"}


class MachineCard(Card):
    """A card of a machine.

    - `machine`: rows of what there is, how much of it, and what that means, as
      `hardware.machine_rows` gives them.
    - `strategies`: rows of the catalogue, of which it takes `strategy`, `framework`, `reality`,
      `why` and `cure`.
    - `plan`: rows of what was decided for a run, the choice, and why.
    """

    title = "This machine"

    def __init__(
        self,
        machine: Sequence[Row],
        strategies: Sequence[Mapping[str, str]] = (),
        plan: Sequence[Row] = (),
    ) -> None:
        self.machine, self.strategies, self.plan = list(machine), list(strategies), list(plan)

    def groups(self) -> list[tuple[str, str, str, list[str]]]:
        """Strategies that stand here for the same reason: reality, why, cure, and their names.

        What can be measured comes first.
        """
        found: dict[tuple[str, str, str], dict[str, list[str]]] = defaultdict(
            lambda: defaultdict(list)
        )
        for row in self.strategies:
            found[row["reality"], row["why"], row["cure"]][row["strategy"]].append(
                FRAMEWORKS.get(row["framework"], row["framework"])
            )
        order = list(REALITY)
        named = [
            (*reason, [f"{name} ({', '.join(where)})" for name, where in names.items()])
            for reason, names in found.items()
        ]
        return sorted(named, key=lambda group: order.index(group[0]))

    def body(self) -> str:
        parts = [f"<h3>{self.title}</h3>", _table(self.machine)]
        if self.plan:
            parts += ["<h3>The plan of this run</h3>", _table(self.plan)]
        if self.strategies:
            rows = "".join(map(_standing, self.groups()))
            head = "<thead><tr><th>here</th><th>strategies</th><th>why, and what to do</th></tr></thead>"
            parts += [
                "<h3>What that means for each strategy</h3>",
                f'<table class="standing">{head}<tbody>{rows}</tbody></table>',
            ]
        texts = [text for row in (*self.machine, *self.plan) for text in row]
        texts += [text for _, why, cure, _ in self.groups() for text in (why, cure)]
        return "".join(parts) + glossary(texts, {row["reality"] for row in self.strategies})

    def style(self) -> str:
        return "\n".join(
            [
                ".ls.ls-card .facts td:nth-child(2) { min-width: 210px; }",
                ".ls.ls-card .standing td:nth-child(2) { width: 40%; }",
                ".ls.ls-card .name { white-space: nowrap; }",
            ]
        )

    def table(self) -> str:
        lines = [f"{what:16} {much}: {means}" for what, much, means in (*self.machine, *self.plan)]
        lines += [
            f"{reality:16} {', '.join(names)}: {why}. {cure}".rstrip()
            for reality, why, cure, names in self.groups()
        ]
        return "\n".join(lines)

    def __repr__(self) -> str:
        return f"MachineCard({len(self.machine)} facts, {len(self.strategies)} strategies)"


def _table(rows: Sequence[Row]) -> str:
    cells = "".join(
        f'<tr><th scope="row">{escape(a)}</th><td>{explained(b)}</td><td class="quiet">{explained(c)}</td></tr>'
        for a, b, c in rows
    )
    return f'<table class="facts"><tbody>{cells}</tbody></table>'


def _standing(group: tuple[str, str, str, list[str]]) -> str:
    """A row of strategies that stand here for the same reason."""
    reality, why, cure, names = group
    listed = ", ".join(f'<span class="name">{escape(name)}</span>' for name in names)
    todo = f'<span class="cure">{explained(cure)}</span>' if cure else ""
    return f"<tr><td>{badge(reality)}</td><td>{listed}</td><td>{explained(_sentence(why))}{todo}</td></tr>"


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}."
