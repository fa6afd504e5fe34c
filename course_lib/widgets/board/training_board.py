"""TrainingBoard: a run as it happens.

Its loss, its throughput, a lane for each task, and controls that act on the running cluster.
"""

from __future__ import annotations

from course_lib.widgets.board.board import Board
from course_lib.widgets.board.side import Watched


class TrainingBoard(Board):
    """A live board of one run, or the board of a saved one. It returns at once and follows the run
    until it is over.

    run = start("multi_worker_mirrored", workers=4)
    TrainingBoard(run)
    """

    def __init__(self, run: Watched) -> None:
        self.run = run
        super().__init__({run.spec.strategy: run}, stop=lambda: self.view.sides[0].order("stop"))

    def __repr__(self) -> str:
        return f"TrainingBoard({self.run.spec.strategy}, {self.run.spec.framework}, {self.run.spec.workers} workers)"
