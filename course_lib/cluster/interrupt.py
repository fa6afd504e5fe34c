"""What an interrupt says. It ends a wait, and not what was waited for: that goes on in processes of
its own.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator


@contextlib.contextmanager
def saying(what: str, stop_all: str, held: bool) -> Iterator[None]:
    """Let an interrupt of the block say what becomes of the `what` ("run"), which a `with` block
    stops if it is `held` by one.

    `stop_all`: how to stop it without a name for it, as nobody has one after `start(...).wait()`.
    """
    try:
        yield
    except KeyboardInterrupt:
        if held:
            raise KeyboardInterrupt(f"The with block ends, and stops the {what}.") from None
        ends = f"{what}.stop() ends it; if it has no name: from course_lib import Run; {stop_all}"
        raise KeyboardInterrupt(
            f"The {what} goes on, as long as this Python process does. {ends}"
        ) from None
