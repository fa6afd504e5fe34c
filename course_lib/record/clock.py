"""The clock of all events: `clock()`, in seconds, one for every process of a run.

It is the machine's monotonic clock, which stands still while the machine sleeps, so no time-out of
ours runs out meanwhile. A task on another machine keeps to that of the machine where the run was
started: its own, and the `offset` between them, which is estimated while the run goes on.
"""

from __future__ import annotations

import os
import time

_skew, _drift = map(float, os.environ.get("LOCKSTEP_SKEW", "0,0").split(","))
"""To try it on one machine: seconds by which this process's clock is wrong, and gains a second."""
GENTLY = 0.1  # seconds in which a new offset takes over, so that no clock goes back
_kept: tuple[float, float, float] | None = None  # the last offset, the present one, since when


def own() -> float:
    """This machine's own clock."""
    now = time.monotonic()
    return now + _skew + _drift * now if _skew or _drift else now


def clock() -> float:
    now = own()
    return now + _offset(now, *_kept) if _kept else now


def keep_to(offset: float) -> None:
    """From now on, keep to a clock that is `offset` seconds ahead of this machine's."""
    global _kept
    now = own()
    _kept = (_offset(now, *_kept) if _kept else offset), offset, now


def _offset(now: float, last: float, present: float, since: float) -> float:
    return last + (present - last) * min(1.0, (now - since) / GENTLY)
