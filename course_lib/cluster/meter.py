"""The meter: what each task and each host has put on the wire, read from the kernel's counters some
times a second.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from course_lib.cluster.task import clock
from course_lib.record.events import Traffic, to_line

PERIOD = 0.1  # seconds


class Meter:
    """Writes down what `traffic` gives at a moment, for those counters that have changed. `due`:
    when to `look` again; None once it has ended.
    """

    def __init__(self, traffic: Callable[[float], list[Traffic]], path: Path) -> None:
        self._traffic = traffic
        self._file = path.open("ab", buffering=0)
        self._last: dict[str, Traffic] = {}
        self.due: float | None = clock()

    def look(self) -> None:
        """Read the counters, if it is time."""
        if self.due and clock() >= self.due:
            self._read()
            self.due = clock() + PERIOD

    def end(self) -> None:
        """Read the counters for the last time: what comes now is farewell."""
        self._read()
        self.due = None

    def _read(self) -> None:
        changed = [
            now
            for now in self._traffic(clock())
            if now[:5] != self._last.get(now.task, now)[:5] or now.task not in self._last
        ]
        self._last |= {now.task: now for now in changed}
        self._file.write(b"".join(map(to_line, changed)))
