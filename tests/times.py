"""Where the time of `make test` goes: `python -m tests.times lint unit ray` makes these targets one
after another and says how many seconds each took, the tests by their folders.

If the tests of at most FEW files fail, these files run once more, alone: what fails then has
failed, and what passes then is named at the end as not steady.

As a plugin (`pytest -p tests.times`) it says that of one run of pytest, with its slowest files.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

FEW = 3
# the variable of the Makefile that says which files a target takes
FILES = {"unit": "PYTEST_ARGS", "ray": "RAY_ARGS", "notebooks": "NOTEBOOKS_ARGS"}


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_said] = ""


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
    config.stash[_said] = f"{said}; {at_a_time} at a time"


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> Generator[None, object, object]:
    """Keep it for `make test`, and which tests failed, if that is all that went wrong."""
    try:
        return (yield)
    finally:
        reporter = session.config.pluginmanager.get_plugin("terminalreporter")
        if (kept := os.environ.get("LOCKSTEP_TIMES")) and reporter:
            failed = []
            if session.exitstatus == pytest.ExitCode.TESTS_FAILED:
                stats = reporter.stats
                failed = [one.nodeid for one in stats.get("failed", []) + stats.get("error", [])]
            Path(kept).write_text(json.dumps([session.config.stash[_said], failed]))


_said = pytest.StashKey[str]()


def made(target: str, *variables: str) -> tuple[bool, str, list[str]]:
    """Make a target: whether it went through, a line about it, and the tests that failed."""
    since = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        kept = Path(folder, "times")
        failed = subprocess.call(
            ["make", "--no-print-directory", target, *variables],
            env={**os.environ, "LOCKSTEP_TIMES": str(kept)},
        )
        said, tests = json.loads(kept.read_text()) if kept.exists() else ("", [])
    line = f"{target} {time.monotonic() - since:.0f} s" + (f" ({said})" if said else "")
    return not failed, line + ", failed" * bool(failed), tests


def main(targets: list[str]) -> int:
    """Make the targets, up to the first that fails; its exit status."""
    lines, passed, begun = [], True, time.monotonic()
    for target in targets:
        passed, line, tests = made(target)
        lines.append(line)
        files = dict.fromkeys(test.partition("::")[0] for test in tests)
        if not passed and 1 <= len(files) <= FEW:
            passed, line, _ = made(target, f"{FILES[target]}={' '.join(files)}")
            lines.append(f"  once more, alone: {line}")
            lines += [f"  not steady: {test}" for test in tests if passed]
        if not passed:
            break
    print("\n".join([f"\nwhere {time.monotonic() - begun:.0f} s went:", *lines]))
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
