"""What tasks print, held to a size: a task that never stops printing would fill the disk. A log
that has grown too long keeps its beginning and its end, and a line between them says what was cut.
"""

import os
import time
from collections import Counter
from pathlib import Path

from course_lib.record.files import private
from course_lib.record.rundir import RunDir

MOST = 16 << 20  # bytes of a log; one that is longer is cut
KEPT = 1 << 20  # bytes that stay of its beginning, and of its end
PERIOD = 0.25  # seconds between two looks


class Logs:
    """The logs of all tasks of a run, for its supervisor."""

    def __init__(self, files: RunDir) -> None:
        self._paths = [path for task in files.spec.tasks for path in files.logs(task)]
        self._cut: Counter[Path] = Counter()  # bytes so far
        self.due = 0.0  # when to look again

    def look(self) -> None:
        """Cut the logs that are too long, if it is time to. It costs a microsecond for each log."""
        if time.monotonic() < self.due:
            return
        self.due = time.monotonic() + PERIOD
        for path in self._paths:
            try:
                if path.stat().st_size > MOST:
                    self._shorten(path)
            except FileNotFoundError:  # its task has not begun
                continue

    def _shorten(self, path: Path) -> None:
        """The task goes on appending meanwhile: what it prints just now may be lost."""
        with open(path, "rb+", buffering=0, opener=private) as file:
            self._cut[path] += file.seek(0, os.SEEK_END) - 2 * KEPT
            file.seek(-KEPT, os.SEEK_END)
            end = file.read()
            said = f"{self._cut[path]:,} bytes were cut: a log keeps its first and last MiB"
            file.seek(KEPT)
            file.write(f"\n[... {said} ...]\n".encode() + end)
            file.truncate()
