"""Where the time of `make test` goes: `python -m tests.times lint unit notebooks notebooks` makes
these targets one after another and says how many seconds each took, the tests by their folders.

As a plugin (`pytest -p tests.times`) it says that of one run of pytest, with its slowest files.
"""

import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest


@pytest.hookimpl(trylast=True)
def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Seconds by folder, and the ten slowest files."""
    folders, files = Counter[str](), Counter[str]()
    for reports in terminalreporter.stats.values():
        for report in reports:
            if isinstance(report, pytest.TestReport):
                path = report.location[0]
                files[path] += report.duration
                folders["/".join(path.split("/")[:-1][:2])] += report.duration
    at_a_time = getattr(config.option, "numprocesses", None) or 1
    said = ", ".join(f"{folder} {seconds:.0f} s" for folder, seconds in folders.most_common())
    terminalreporter.section(f"where the time goes, {at_a_time} at a time")
    terminalreporter.line(said)
    for path, seconds in files.most_common(10):
        terminalreporter.line(f"{seconds:7.1f} s  {path}")
    if kept := os.environ.get("LOCKSTEP_TIMES"):
        Path(kept).write_text(f"{said}; {at_a_time} at a time")


def main(targets: list[str]) -> int:
    """Make the targets, up to the first that fails; its exit status."""
    lines, failed, begun = [], 0, time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        kept = Path(folder, "times")
        for target in targets:
            kept.unlink(missing_ok=True)
            since = time.monotonic()
            failed = subprocess.call(
                ["make", "--no-print-directory", target],
                env={**os.environ, "LOCKSTEP_TIMES": str(kept)},
            )
            parts = f" ({kept.read_text()})" if kept.exists() else ""
            lines.append(f"{target} {time.monotonic() - since:.0f} s{parts}")
            if failed:
                lines[-1] += ", failed"
                break
    print("\n".join([f"\nwhere {time.monotonic() - begun:.0f} s went:", *lines]))
    return failed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
