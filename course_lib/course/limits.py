"""A bound on the computing time of a learner's function, so that an endless loop ends with a
message.
"""

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

_AGAIN = 1.0  # seconds of computing after which a bound that was swallowed is raised once more


class TookTooLong(BaseException):
    """Raised in the middle of a block that has used up its `seconds` of computing.

    A BaseException, so that no `except Exception` of a learner stops it.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        super().__init__(f"computed for more than {seconds:g} seconds")


@contextmanager
def bounded(seconds: float) -> Iterator[None]:
    """Raise `TookTooLong` when the block has used `seconds` of processor time.

    Processor time is used, so that a busy machine makes no answer wrong. Blocks may be nested: the
    bound of the outer block holds inside the inner one as well. Only the main thread, where cells
    run, receives signals; in any other thread there is no bound.
    """

    def stop(*_: object) -> NoReturn:
        raise TookTooLong(seconds)

    left, interval = signal.getitimer(signal.ITIMER_PROF)
    if threading.current_thread() is not threading.main_thread() or 0 < left <= seconds:
        yield  # without a bound, or with that of an outer block, which ends first
        return
    begun = time.process_time()
    handler = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, seconds, _AGAIN)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, handler)
        if left:
            rest = left - (time.process_time() - begun)
            signal.setitimer(signal.ITIMER_PROF, max(rest, 1e-6), interval)
