"""What a learner sees in a notebook. Widgets read a trace and know nothing of how it came about."""

from typing import TYPE_CHECKING

from course_lib import lazy

if TYPE_CHECKING:
    from course_lib.widgets.all_reduce_stage import AllReduceStage
    from course_lib.widgets.machine_card import MachineCard
    from course_lib.widgets.predict import Predict
    from course_lib.widgets.race_board import RaceBoard
    from course_lib.widgets.saved import SavedRun
    from course_lib.widgets.strategy_table import StrategyTable
    from course_lib.widgets.timeline import Timeline
    from course_lib.widgets.training_board import TrainingBoard

__all__ = ["AllReduceStage", "MachineCard", "Predict", "RaceBoard", "SavedRun", "StrategyTable", "Timeline", "TrainingBoard"]

__getattr__, __dir__ = lazy.names(
    __name__,
    {
        "AllReduceStage": "course_lib.widgets.all_reduce_stage:AllReduceStage",
        "MachineCard": "course_lib.widgets.machine_card:MachineCard",
        "Predict": "course_lib.widgets.predict:Predict",
        "RaceBoard": "course_lib.widgets.race_board:RaceBoard",
        "SavedRun": "course_lib.widgets.saved:SavedRun",
        "StrategyTable": "course_lib.widgets.strategy_table:StrategyTable",
        "Timeline": "course_lib.widgets.timeline:Timeline",
        "TrainingBoard": "course_lib.widgets.training_board:TrainingBoard",
    },
)
