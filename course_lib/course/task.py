"""A task of an exercise, and the verdict on an answer to it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

State = Literal["passed", "not yet", "to do"]
ENDLESS = "Does a loop in it never end?"


@dataclass(frozen=True, repr=False)
class Verdict:
    """What a check found out about the answer to `task`; true if it passed.

    `text` says what was shown, or what is wrong. `hint` names the mistake if it was recognised.
    """

    task: str
    state: State
    text: str
    hint: str = ""

    def __bool__(self) -> bool:
        return self.state == "passed"

    def __repr__(self) -> str:
        return "\n".join(
            [f"{self.task}: {self.state}.", self.text, *(["", self.hint] if self.hint else [])]
        )


@dataclass(frozen=True)
class Task:
    """One thing that a learner writes.

    `answer` is the name of the learner's function in the notebook. Each of the three `hints` says
    more than the one before. `judge(name, answer)` returns the verdict; it may raise `Unusable`,
    and what the learner's function raises for a stub, an endless loop or a full memory: `check`
    puts these into words.
    """

    name: str
    answer: str
    hints: tuple[str, str, str]
    judge: Callable[[str, Any], Verdict]


class Unusable(Exception):
    """Raised by a judge for an answer that cannot be judged; `text` tells the learner why."""

    def __init__(self, text: str) -> None:
        self.text = text
        super().__init__(text)
