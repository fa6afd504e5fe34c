"""Activities of tasks, and the one sentence that errors, boards and commands say of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextvars import ContextVar
from typing import NamedTuple

ORDERED: ContextVar[str] = ContextVar("ORDERED", default="by run.{}()")
"""How an order came to be given in this thread, for the record of the run; {}: which order."""


class Activity(NamedTuple):
    """An activity of a task, in words that follow its name: `what`, a verb first; in which `step`
    (-1: in none), for whom it waits, and the `cure`, if something holds it up.
    """

    what: str
    step: int = -1
    awaits: tuple[str, ...] = ()
    cure: str = ""

    def __repr__(self) -> str:
        return self.phrase([self.step])

    def phrase(self, steps: Iterable[int], cures: bool = True) -> str:
        """The words for several tasks that are in these steps; with the cure, or without."""
        known = [str(step) for step in sorted(set(steps)) if step >= 0]
        where = f" in step{'s' if len(known) > 1 else ''} {_listed(known)}" if known else ""
        whom = f" for {names(self.awaits)}" if self.awaits else ""
        return f"{self.what}{where}{whom}{f' ({self.cure})' if cures and self.cure else ''}"


_PLURAL = {"waits": "wait", "is": "are", "has": "have", "was": "were", "calls": "call"}
SEVERAL = 4  # neighbours whose names are not listed: "worker:0 to worker:3"


def sentence(does: Mapping[str, Activity], cures: bool = False) -> str:
    """Say what tasks do, once for all that do the same: "worker:0 and worker:1 wait in step 22 for
    worker:3, which is paused". `cures`: with what ends that.
    """
    alike: dict[Activity, list[str]] = {}
    for task, doing in does.items():
        alike.setdefault(doing._replace(step=-1), []).append(task)  # one may be a step ahead
    waits = [doing for doing in alike if doing.awaits]
    waiting = [d for d, tasks in alike.items() if waits and {*tasks} == {*waits[0].awaits}]
    which = ""
    if len(waits) == len(waiting) == 1:  # then whoever is waited for comes last
        alike = {waits[0]: alike.pop(waits[0]), **alike}
        which = f", which {_verb(waiting[0].phrase([], cures), len(alike.pop(waiting[0])))}"
    clauses = []
    for doing, tasks in alike.items():
        does_so = _verb(doing.phrase([does[task].step for task in tasks], cures), len(tasks))
        clauses.append(f"{names(tasks)} {does_so}{which if doing in waits else ''}")
    return "; ".join(clauses)


def _verb(phrase: str, count: int) -> str:
    """A phrase, its verb first, as `count` tasks do it."""
    verb, space, rest = phrase.partition(" ")
    if count > 1:
        verb, rest = _PLURAL.get(verb, verb), rest.replace(" its ", " their ")
    return f"{verb}{space}{rest}"


def names(tasks: Sequence[str]) -> str:
    """Names of tasks: "worker:0 to worker:6 and chief:0"."""
    rows: list[list[str]] = []
    for task in tasks:
        job, _, index = task.rpartition(":")
        if rows and index.isdigit() and rows[-1][-1] == f"{job}:{int(index) - 1}":
            rows[-1].append(task)
        else:
            rows.append([task])
    short = ([f"{row[0]} to {row[-1]}"] if len(row) >= SEVERAL else row for row in rows)
    return _listed([name for row in short for name in row])


def _listed(words: Sequence[str]) -> str:
    """ "a, b and c"."""
    return " and ".join(filter(None, [", ".join(words[:-1]), *words[-1:]]))
