"""Progress of a wait: one line, kept up to date, once two seconds are over. In a notebook it is an
output of the cell, on a terminal the last line of stderr; elsewhere there is none. An interrupted
wait says how to end what goes on.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Iterator
from operator import attrgetter
from shutil import get_terminal_size
from typing import Any

from course_lib.errors import Interrupted
from course_lib.notebook.shell import in_script, running
from course_lib.record.events import ACTIVE

AFTER = 2.0  # seconds
EVERY = 0.5
_outer: list[Line] = []


@contextlib.contextmanager
def interrupt_explained(what: str, stop_all: str, in_block: bool) -> Iterator[None]:
    """Reword a KeyboardInterrupt raised in this block. It says that only the wait has ended and the
    `what` ("run" or "race") goes on; or, if a `with` block holds it, that the block now stops it.

    `stop_all`: code that stops it whatever the variable is called, for those who can type it.
    """
    try:
        yield
    except KeyboardInterrupt:
        ends = f"This ends it: from course_lib import Run; {stop_all}"
        words = f"The {what} goes on, as long as this Python process does."
        words += "" if in_script() else f" {ends}"
        if in_block:
            words = f"The with block ends, and stops the {what}."
        raise Interrupted(words) from None


class Line:
    """A line while a `with` block lasts. The block calls it often; `says` is asked for its text.

    The outermost line speaks for waits inside it. Only a main thread has one: an output from
    another would come to no cell.
    """

    def __init__(self, says: Callable[[], str]) -> None:
        self._says, self._due, self._shown = says, time.monotonic() + AFTER, ""
        self._put: Callable[[str, bool], None] | None = None

    def __enter__(self) -> Line:
        if threading.current_thread() is threading.main_thread():
            _outer.append(self)
            self._put = _place() if _outer[0] is self else None
        return self

    def __call__(self) -> None:
        if threading.current_thread() is threading.main_thread():
            _outer[0]._refresh()

    def _refresh(self) -> None:
        if self._put and time.monotonic() >= self._due:
            self._due = time.monotonic() + EVERY
            if (text := self._says()) != self._shown:
                self._shown = text
                self._put(text, False)

    def __exit__(self, *_: object) -> None:
        if self in _outer:
            _outer.remove(self)
        if self._put and self._shown:
            self._put(self._says(), True)


def of_run(
    run: Any, name: str = "", seconds: Callable[[Any], float] = attrgetter("seconds")
) -> Callable[[], str]:
    """The text of a line about a live run: see `how_far`. While it goes on, with the time for which
    it was waited for; then with its own `seconds`, by its digest those until its last event.
    """
    name = (name or run.spec.strategy).replace("<lambda>()", "your function").removesuffix("()")
    began = time.monotonic()

    def says() -> str:
        if run.state in ACTIVE:
            return how_far(run, name, f" after {time.monotonic() - began:.0f} s")
        return how_far(run, name, f" after {seconds(run.digest):.1f} s")

    return says


def how_far(run: Any, name: str, took: str = "") -> str:
    """Say the state of a live run, how far it is, and for whom it stands still."""
    state, still, digest = run.state, run.standstill(), run.digest
    known = not run.spec.own or "steps" in run.spec.model_fields_set
    of = f" of {run.spec.steps:,}" if known else ""
    steps = f": step {digest.steps_done:,}{of}" if digest.steps_done else ""
    loss = f", loss {digest.losses.last:.3g}" if digest.losses.last is not None else ""
    verb, waits = "has" if state == "failed" else "is", f" ({still.words})" if still else ""
    return f"{name} {verb} {state}{took}{steps}{loss}{waits}"


def _place() -> Callable[[str, bool], None] | None:
    """Return the function that shows a line, given its text and whether it is the last one."""
    if hasattr(running(), "kernel"):
        return _in_notebook()
    return _on_terminal if sys.stderr.isatty() else None


def _in_notebook() -> Callable[[str, bool], None]:
    from IPython.display import DisplayHandle

    handle, shown = DisplayHandle(), list[str]()

    def put(text: str, last: bool) -> None:
        show = handle.update if shown else handle.display
        show({"text/plain": text}, raw=True)
        shown.append(text)

    return put


def _on_terminal(text: str, last: bool) -> None:
    shown = "" if last else text[: get_terminal_size().columns - 1]
    print(f"\r\x1b[K{shown}", end="", file=sys.stderr, flush=True)
