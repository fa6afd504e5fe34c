"""A learner's function as a judge gets it, and which ready-made answers are called in it."""

import inspect
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import CodeType, FrameType
from typing import Any

from course_lib.course.plain import plain, rebuilt

BLINDS = ("sys.setprofile", "threading.setprofile")  # would end the watch
_Carry = Callable[[list[str], Callable[..., Any] | None, tuple[Any, ...], dict[str, Any]], Any]


class Answer:
    """What a learner wrote, a function or a class, as a judge gets it: to be called.

    `used` are the ready-made functions that were called meanwhile, with their modules. `carry`
    calls the learner's: in this process, or in that of `lockstep check` where the notebook runs.
    """

    def __init__(self, name: str, carry: _Carry, signature: inspect.Signature | None) -> None:
        self.__name__, self._carry, self.__signature__ = name, carry, signature
        self.used: list[str] = []

    @classmethod
    def here(cls, function: Callable[..., Any], ready_made: Iterable[str]) -> "Answer":
        """The answer of a learner whose code runs in this process."""

        def carry(used: list[str], within: Any, given: Any, named: Any) -> Any:
            with watched(ready_made, used):
                if within:
                    return rebuilt(plain(within(function, *given, **named)))
                return function(*given, **named)

        try:
            signature = inspect.signature(function)
        except (TypeError, ValueError):  # of what is written in C
            signature = None
        return cls(getattr(function, "__name__", "the function"), carry, signature)

    def __call__(self, *given: Any, **named: Any) -> Any:
        return self._carry(self.used, None, given, named)

    def within(self, function: Callable[..., Any], *given: Any, **named: Any) -> Any:
        """`function(answer, *given, **named)`, called where the learner's code runs, with what the
        learner wrote itself: for a function of the checks that hands it on to other processes. What
        it returns comes back as `plain` data.
        """
        return self._carry(self.used, function, given, named)


@contextmanager
def watched(ready_made: Iterable[str], used: list[str] | None = None) -> Iterator[list[str]]:
    """Add to `used` which functions of `ready_made` are called in the block, as "module.name", by
    this thread or one that it starts.

    `ready_made` are full names of functions, classes or modules; what is defined in them counts.
    """
    names, used = tuple(ready_made), [] if used is None else used
    if not names:
        yield used
        return
    known: dict[int, tuple[object, str]] = {}  # kept beside its name, so that no id comes again
    over = False

    def look(frame: FrameType, event: str, arg: Any) -> None:
        if over or event not in ("call", "c_call"):  # over: in a thread that goes on
            return
        called: Any = frame.f_code if event == "call" else arg
        if id(called) not in known:
            name = _name(called, frame)
            known[id(called)] = called, name if _is_one(name, (*names, *BLINDS)) else ""
        name = known[id(called)][1]
        if name and name not in used and not imports(frame):
            used.append(name)

    before = sys.getprofile()
    threading.setprofile(look)
    sys.setprofile(look)
    try:
        yield used
    finally:
        over = True
        sys.setprofile(before)
        threading.setprofile(before)


def _name(called: Any, frame: FrameType) -> str:
    """The full name of what is called: a code object, or a function written in C."""
    if isinstance(called, CodeType):
        return f"{frame.f_globals.get('__name__')}.{called.co_qualname}"
    return f"{called.__module__}.{called.__name__}"


def imports(frame: FrameType | None) -> bool:
    """Whether a call belongs to an import: modules call much of their own while they load."""
    while frame and frame.f_globals.get("__name__") != "importlib._bootstrap":
        frame = frame.f_back
    return frame is not None


def _is_one(name: str, names: Iterable[str]) -> bool:
    return any(f"{name}.".startswith(f"{each}.") for each in names)
