"""`python -m tests.benchmarks [names...] [--quick] [--repeat N]`: measure, print a table, and keep
the record in `bench-results/`.

Exit codes: 0 all was measured, whether or not an aim was reached, 1 something could not be measured
or left a process behind, 2 bad input.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from course_lib.cluster import nursery
from tests.benchmarks import report
from tests.benchmarks.harness import ENOUGH, Options, Row
from tests.benchmarks.registry import SUBJECTS
from tests.conftest import HOME, gone_within

CONSOLE = Console(width=None if sys.stdout.isatty() else 150)


def arguments(given: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.benchmarks", description="Measure, each figure beside its peer."
    )
    parser.add_argument(
        "names", nargs="*", metavar="name", help="what to measure; everything, if nothing is named"
    )
    parser.add_argument("--list", action="store_true", help="list the names and end")
    parser.add_argument(
        "--quick",
        action="store_true",
        help="only see that it works: the smallest sizes, two repeats",
    )
    parser.add_argument(
        "--repeat", type=int, metavar="N", help=f"repeats of each pair, {ENOUGH} if not given"
    )
    parser.add_argument(
        "--out", type=Path, default=Path("bench-results"), help="folder of the record"
    )
    asked = parser.parse_args(given)
    if unknown := [name for name in asked.names if name not in SUBJECTS]:
        parser.error(f"no benchmark is called {unknown[0]!r}; there are {', '.join(SUBJECTS)}")
    if asked.repeat is not None and asked.repeat < 1:
        parser.error("--repeat wants a whole number above 0")
    return asked


def main(asked: argparse.Namespace) -> int:
    if asked.list:
        for name, subject in SUBJECTS.items():
            print(f"{name:10} {(sys.modules[subject.__module__].__doc__ or '').splitlines()[0]}")
        return 0
    # TensorFlow leaves files there when it is not let end by itself, as most processes here
    os.environ["TMPDIR"] = HOME
    repeats = asked.repeat or (2 if asked.quick else ENOUGH)
    failures = measure(
        asked.names or list(SUBJECTS), Options(repeats, asked.quick, say), asked.quick, asked.out
    )
    return 1 if failures else 0


def measure(names: Sequence[str], options: Options, quick: bool, out: Path) -> dict[str, str]:
    """Measure all subjects in turn; returns those that failed, with the reason."""
    rows: list[Row] = []
    failures: dict[str, str] = {}
    facts = report.facts(quick)
    path = out / time.strftime("%Y-%m-%dT%H-%M-%S.json")
    for name in names:
        try:
            for row in SUBJECTS[name](options):
                rows.append(row)
                report.save(rows, failures, facts, path)
        except Exception as error:  # one subject that fails must not cost the others
            failures[name] = f"{type(error).__name__}: {error}"
            CONSOLE.print(traceback.format_exc(), style="red", markup=False, highlight=False)
    report.save(rows, failures, facts, path)
    CONSOLE.print(report.table(rows))
    CONSOLE.print(f"The record: {path}", highlight=False)
    return failures


def say(text: str) -> None:
    CONSOLE.print(text, style="dim", markup=False, highlight=False)


def clean() -> int:
    """End what was started and remove its files; returns how many processes would not go."""
    nursery.close()
    left = gone_within(HOME, 5.0)
    for line in left:
        CONSOLE.print(f"[red]left behind:[/red] {line}")
    shutil.rmtree(HOME, ignore_errors=True)
    return len(left)


if __name__ == "__main__":
    # so that peers are ended then too
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    code = left = 1
    try:
        code = main(arguments())
    finally:  # bad input and interrupts too
        left = clean()
    sys.exit(code or min(left, 1))
