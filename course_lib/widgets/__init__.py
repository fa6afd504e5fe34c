"""What a learner sees in a notebook. Widgets read a trace and know nothing of how it came about."""

from typing import TYPE_CHECKING

from course_lib import lazy

if TYPE_CHECKING:
    from course_lib.widgets.predict import Predict
    from course_lib.widgets.training_board import TrainingBoard

__all__ = ["Predict", "TrainingBoard"]

__getattr__, __dir__ = lazy.names(
    __name__,
    {
        "Predict": "course_lib.widgets.predict:Predict",
        "TrainingBoard": "course_lib.widgets.training_board:TrainingBoard",
    },
)
