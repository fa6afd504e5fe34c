"""What a learner sees in a notebook. Widgets read a trace and know nothing of how it came about."""

from typing import TYPE_CHECKING

from course_lib import lazy

if TYPE_CHECKING:
    from course_lib.widgets.board.race_board import RaceBoard
    from course_lib.widgets.board.training_board import TrainingBoard
    from course_lib.widgets.cards.machine_card import MachineCard
    from course_lib.widgets.cards.predict import Predict
    from course_lib.widgets.cards.strategy_table import StrategyTable
    from course_lib.widgets.saved import SavedRun
    from course_lib.widgets.stage.all_reduce_stage import AllReduceStage
    from course_lib.widgets.timeline.timeline import Timeline

__all__ = [
    "AllReduceStage",
    "MachineCard",
    "Predict",
    "RaceBoard",
    "SavedRun",
    "StrategyTable",
    "Timeline",
    "TrainingBoard",
]

__getattr__, __dir__ = lazy.names(
    __name__,
    {
        "AllReduceStage": "course_lib.widgets.stage.all_reduce_stage:AllReduceStage",
        "MachineCard": "course_lib.widgets.cards.machine_card:MachineCard",
        "Predict": "course_lib.widgets.cards.predict:Predict",
        "RaceBoard": "course_lib.widgets.board.race_board:RaceBoard",
        "SavedRun": "course_lib.widgets.saved:SavedRun",
        "StrategyTable": "course_lib.widgets.cards.strategy_table:StrategyTable",
        "Timeline": "course_lib.widgets.timeline.timeline:Timeline",
        "TrainingBoard": "course_lib.widgets.board.training_board:TrainingBoard",
    },
)
