"""Widgets: all that a learner sees in a notebook. They read a record and know no clusters."""

from typing import TYPE_CHECKING

from course_lib.notebook import lazy

if TYPE_CHECKING:  # these are public names, for `lazy` as well
    from course_lib.record.saved import SavedRun as SavedRun
    from course_lib.widgets.board import RaceBoard as RaceBoard
    from course_lib.widgets.board import TrainingBoard as TrainingBoard
    from course_lib.widgets.cards.predict import Guesses as Guesses
    from course_lib.widgets.cards.predict import Predict as Predict
    from course_lib.widgets.stage import AllReduceStage as AllReduceStage
    from course_lib.widgets.timeline import Timeline as Timeline

__getattr__, __dir__ = lazy.names(__name__)
