"""Widgets: all that a learner sees in a notebook. They read a record and know no clusters."""

from typing import TYPE_CHECKING, Any

from course_lib.notebook import lazy

if TYPE_CHECKING:  # these are public names, for `lazy` as well
    from course_lib.record.saved import SavedRun as SavedRun
    from course_lib.widgets.board import RaceBoard as RaceBoard
    from course_lib.widgets.board import TrainingBoard as TrainingBoard
    from course_lib.widgets.stage import AllReduceStage as AllReduceStage
    from course_lib.widgets.timeline import Timeline as Timeline

_place, _names = lazy.names(__name__)


def _cards() -> dict[str, Any]:
    """The public classes in the files of `cards/`, by name."""
    return {
        name: thing
        for module in lazy.modules("course_lib.widgets.cards")
        for name, thing in vars(module).items()
        if isinstance(thing, type) and thing.__module__ == module.__name__ and name[0] != "_"
    }


def __getattr__(name: str) -> Any:
    # A notebook asks a module for many names that no widget has, such as `_ipython_display_`.
    if name[:1].isupper() and name not in _names() and name in (cards := _cards()):
        return cards[name]
    return _place(name)


def __dir__() -> list[str]:
    return sorted([*_names(), *_cards()])
