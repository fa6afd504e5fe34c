"""What a check finds out about an answer, and a text that a notebook shows as it is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

State = Literal["passed", "not yet", "to do"]
TO_DO = "Nothing is here yet: write the function, then check it again."


class Text(str):
    """A string that a notebook shows without quotes, line by line."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


@dataclass(frozen=True, repr=False)
class Verdict:
    """True where the answer to `task` passed. `text` says what was shown, or what is wrong; `hint`
    names the mistake where it was recognised.
    """

    task: str
    state: State
    text: str
    hint: str = ""

    def __bool__(self) -> bool:
        return self.state == "passed"

    def __repr__(self) -> str:
        return f"{self.task}: {self.state}.\n{self.text}" + (
            f"\n\n{self.hint}" if self.hint else ""
        )
