"""What a widget was given, if that is nothing that it can show: one sentence, with an example."""

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any, Concatenate, ParamSpec, TypeVar

from course_lib.errors import SpecError

P = ParamSpec("P")
Self = TypeVar("Self")
Init = Callable[Concatenate[Self, P], None]


def takes(what: str, good: Callable[..., bool]) -> Callable[[Init[Self, P]], Init[Self, P]]:
    """Have an `__init__` raise a `SpecError` that says `what` it takes, unless its arguments fit
    its signature and are `good`.
    """

    def of(init: Init[Self, P]) -> Init[Self, P]:
        signature = inspect.signature(init)

        @functools.wraps(init)
        def checked(self: Self, *args: P.args, **options: P.kwargs) -> None:
            shown = [repr(value) for value in args]
            shown += [f"{name}={value!r}" for name, value in options.items()]
            cut = ", ".join(each if len(each) <= 60 else f"{each[:60]}..." for each in shown)
            call = f"{type(self).__name__}({cut})".replace("\n", " ")
            try:
                bound = signature.bind(self, *args, **options)
            except TypeError as error:
                why = "" if "missing" in str(error) else f"{error}; "
                raise SpecError.of_call(call, f"{why}it takes {what}") from None
            bound.apply_defaults()
            _, *values = bound.arguments.values()
            if not good(*values):
                raise SpecError.of_call(call, f"it takes {what}")
            init(self, *args, **options)

        return checked

    return of


def hidden(names: Sequence[str], known: Sequence[str]) -> tuple[str, ...]:
    """What a lesson hides, as it has not explained it yet. Raises SpecError for an unknown name."""
    if not isinstance(names, list | tuple) or not all(isinstance(name, str) for name in names):
        raise SpecError("hide", names, f"a list of names: {', '.join(known)}")
    for name in names:
        if name not in known:
            raise SpecError.unknown("hide", name, known)
    return tuple(names)


def is_run(it: Any) -> bool:
    """Whether it is a run, live or saved."""
    there = all(hasattr(it, name) for name in ("spec", "state", "trace"))
    return there and not isinstance(it, type)


def are_rows(*tables: Any) -> bool:
    """True for lists of rows, each a sequence or a mapping."""
    return all(
        isinstance(rows, list | tuple) and all(isinstance(row, list | tuple | dict) for row in rows)
        for rows in tables
    )
