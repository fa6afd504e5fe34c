"""PastRuns: the runs that are kept, as a card. It needs no script."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from course_lib import text
from course_lib.errors import SpecError
from course_lib.record import rundir
from course_lib.record.past import Overlay, PastRun, frame, past_runs
from course_lib.record.saved import SavedRun
from course_lib.widgets.kit import Markup, element, table
from course_lib.widgets.kit.page import Card, asset

if TYPE_CHECKING:
    from pandas import DataFrame

HEADERS = [name.replace("_", " ") for name in PastRun._fields]
OPEN = "table = runs(); TrainingBoard(table[0]), Timeline(table[0]), RaceBoard(table.overlay(0, 1))"


def runs(
    strategy: str = "",
    workload: str = "",
    framework: str = "",
    state: str = "",
    last: int = 100,
    where: str = "",
) -> PastRuns:
    """The `last` runs that are kept, the newest first, those that go on included: all, or those of
    a strategy, workload, framework or state, or of which a pandas expression over the columns is
    true. Raises `SpecError` for a value that no run has, and for a wrong expression.

        runs()[0]                           # the newest, as a SavedRun
        TrainingBoard(runs(state="failed")[0])
        runs(where="final_loss < 0.5 and events.str.contains('kill')")
        RaceBoard(runs().overlay(0, 3))     # the curves of both on one clock
    """
    wanted = {"strategy": strategy, "workload": workload, "framework": framework, "state": state}
    return PastRuns(past_runs(last, where, **wanted))


class PastRuns(Card):
    """The table of runs. `table[0]` and `table["name-of-a-directory"]` are `SavedRun`s,
    `overlay(0, 3)` lays runs on one clock, `to_frame()` is the table in pandas.
    """

    title = "Past runs"
    style = asset("cards/runs.css")

    def __init__(self, rows: list[PastRun]) -> None:
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, which: int | str) -> SavedRun:
        """The run in a row or a directory. Raises `SpecError` if it is damaged or there is none,
        `IndexError` for a row that is not there.
        """
        name = which if isinstance(which, str) else self.rows[which].directory
        return SavedRun(rundir.runs() / name)

    def overlay(self, *which: int | str) -> Overlay:
        """Lay runs on one clock, as `RaceBoard` shows them: `overlay(0, 3)`."""
        if rows := [each for each in which if isinstance(each, int) and each >= len(self)]:
            raise SpecError("overlay", rows[0], f"a row of the table, from 0 to {len(self) - 1}")
        return Overlay(*(self[each] for each in which))

    def to_frame(self) -> DataFrame:
        """A row for each run; `started` is local time."""
        return frame(self.rows)

    def table(self) -> str:
        none = f"No run of this kind is kept in {rundir.runs()}."
        return text.table(self._lines()) if self.rows else none

    def body(self) -> str:
        title = element("h3", self.title)
        if not self.rows:
            return title + element("p", self.table())
        head, *lines = self._lines()
        rows = [_row("td", *line) for line in lines]
        how = {"class_": "runs", "tabindex": 0, "role": "region", "aria_label": self.title}
        hint = element("p", "To open them: ", element("code", OPEN), class_="quiet")
        return title + element("div", table(_row("th", *head), rows), **how) + hint

    def _lines(self) -> list[list[str]]:
        return [["", *HEADERS], *([str(i), *cells(row)] for i, row in enumerate(self.rows))]


def _row(tag: str, number: str, name: str, started: str, strategy: str, *others: str) -> Markup:
    named = strategy, element("small", name)
    inside = number, started.replace(" ", "\n"), named, *others
    return element("tr", [element(tag, each) for each in inside])


def cells(row: PastRun) -> list[str]:
    """Return the row as texts, in the order of `HEADERS`."""
    when = time.strftime("%Y-%m-%d %H:%M", time.localtime(row.started))
    return [row.directory, when, *map(_cell, row[2:])]


def _cell(value: str | float | None) -> str:
    if isinstance(value, float):
        return f"{value:.3g}" if abs(value) < 1000 else f"{value:,.0f}"
    return f"{value:,}" if isinstance(value, int) else value or "-"
