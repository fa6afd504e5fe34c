"""RaceBoard: runs side by side as they happen, on one clock; who is ahead, what each worker does,
and in the end a verdict.
"""

from __future__ import annotations

from course_lib.widgets.board.board import Board
from course_lib.widgets.board.view import Raced


class RaceBoard(Board):
    """A live board of a race. It returns at once and follows the race until all are over.

    both = race("multi_worker_mirrored", "parameter_server", framework="torch", slow={"worker:3":
    4}, device_ms=30) RaceBoard(both)
    """

    def __init__(self, race: Raced) -> None:
        self.race = race
        super().__init__(race.runs, stop=race.stop, race=race)

    def __repr__(self) -> str:
        return f"RaceBoard({', '.join(self.race.runs)})"
