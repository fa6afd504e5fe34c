"""A bound on the computing time of a learner's own function: a loop that never ends, ends in words."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn


class TookTooLong(BaseException):
    """Raised in the middle of whatever runs; no `except Exception` of a learner's stops it."""


@contextmanager
def bounded(seconds: float) -> Iterator[None]:
    """Raise `TookTooLong` when the block has used `seconds` of processor time.

    Processor time and not the clock's: a busy machine makes nobody's answer wrong. Signals reach
    only the main thread, where cells run; in another thread there is no bound.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGPROF, _stop)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def _stop(*_: object) -> NoReturn:
    raise TookTooLong
