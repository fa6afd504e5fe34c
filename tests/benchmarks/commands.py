"""How long `lockstep run` takes for every row of the catalogue that this machine can run: a new
process, 50 steps of two workers on digits.
"""

from __future__ import annotations

import subprocess
import sys
import time

from course_lib import hardware
from course_lib.strategies import catalog
from tests.benchmarks import clusters
from tests.benchmarks.harness import Aim, Options, Rows, compare

LIMIT = 15.0  # seconds


def rows(options: Options) -> Rows:
    """A row for each; the first command of all is not counted, since it reads the frameworks from
    the disk.
    """
    found = [
        (r["strategy"], r["framework"])
        for r in catalog.rows(hardware.probe())
        if r["reality"] != "unavailable"
    ]
    for framework in ("tensorflow", "torch"):
        seconds("one_device", framework)
    for name, framework in found[:2] if options.quick else found:
        shown = f"lockstep run {name} --framework {framework}"
        yield compare(
            shown,
            "s",
            lambda n=name, f=framework: seconds(n, f),
            ("the limit", lambda: LIMIT),
            Aim("at most", 1.0),
            options,
        )


def seconds(name: str, framework: str) -> float:
    """From the start of the command to its end. Raises `CalledProcessError` if it fails."""
    workers = [] if name == "one_device" else ["--workers", "2"]
    command = [
        sys.executable,
        "-m",
        "course_lib",
        "run",
        name,
        "--framework",
        framework,
        *workers,
        "--steps",
        "50",
        "--workload",
        "digits",
    ]
    began = time.monotonic()
    subprocess.run([*command, "--json"], check=True, capture_output=True, timeout=clusters.LONGEST)
    return time.monotonic() - began
