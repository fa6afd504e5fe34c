"""Marks: what was done to the tasks and hosts of a run, and when. Charts and lanes show them."""

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from course_lib.record.events import Lifecycle

WORDS = {  # of the states that are marked
    "killed": "kill",
    "failed": "fail",
    "paused": "pause",
    "resumed": "resume",
    "slowed": "slow",
    "jittered": "jitter",
    "linked": "link",
    "cut": "cut",
    "healed": "heal",
    "raised": "raise",
    "left": "exit",
    "exhausted": "oom",
    "restarting": "restart",
    "lost": "lost",
}
APART = 0.1  # seconds within which the same done to several is one mark


class Mark(NamedTuple):
    """What was done and to whom: `at` in seconds of the trace, `kind` a state of `Lifecycle`,
    `word` its name on a picture, `who` the tasks and hosts.
    """

    at: float
    kind: str
    word: str
    who: tuple[str, ...]


def marks(life: Mapping[str, Sequence[Lifecycle]], who: Collection[str] = ()) -> list[Mark]:
    """The marks of all tasks and hosts, or of those in `who`, in order of time. `life`: their
    events, by task or host.
    """
    found: list[Mark] = []
    every = (e for whom, its in life.items() if not who or whom in who for e in its)
    for e in sorted((e for e in every if e.state in WORDS), key=lambda e: e.at):
        new = Mark(e.at, e.state, _word(e), (e.task,))
        for n, mark in enumerate(found):
            if mark.word == new.word and new.at - mark.at < APART:
                found[n] = mark._replace(who=tuple(dict.fromkeys((*mark.who, e.task))))
                break
        else:
            found.append(new)
    return found


def _word(e: Lifecycle) -> str:
    if e.state == "slowed":
        return f"slow \u00d7{e.factor:g}" if e.factor > 1 else "full speed"
    return WORDS[e.state]
