"""What survives the notebook kernel: SIGKILL at random moments of its first seconds, and a look for
processes one second later.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

from tests.benchmarks import clusters
from tests.benchmarks.harness import Aim, Options, Rows, compare
from tests.conftest import gone_within
from tests.processes.kernel_kill import survivors

KILLS, QUICK = 200, 10
AT_ONCE = 2  # kills in a repeat: one with each framework


def rows(options: Options) -> Rows:
    """As many kills as it takes to meet the rare bad moment, whatever number of repeats was asked
    for.
    """
    kills = QUICK if options.quick else KILLS
    seeds = itertools.count()
    name = f"processes that survive {AT_ONCE} of {kills} kills of the kernel"
    repeats = replace(options, repeats=kills // AT_ONCE)
    yield compare(
        name,
        "",
        lambda: ours(next(seeds), options),
        ("multiprocessing, one kill", orphans),
        Aim("none"),
        repeats,
    )


def ours(seed: int, options: Options) -> float:
    with tempfile.TemporaryDirectory(prefix="lockstep-bench-") as home:
        left = survivors(AT_ONCE, Path(home), seed=seed)
        for line in left:
            options.say(f"survived with seed {seed}: {line}")
        return len(left)


def orphans() -> float:
    """The same of a process whose two workers were started by multiprocessing, as daemons, once
    they work.
    """
    with tempfile.TemporaryDirectory(prefix="lockstep-bench-") as folder:
        command = [sys.executable, str(clusters.PEERS / "with_multiprocessing.py"), folder]
        environment = {**os.environ, "LOCKSTEP_HOME": folder}  # the mark by which they are found
        parent = subprocess.Popen(
            command, env=environment, stderr=subprocess.DEVNULL, start_new_session=True
        )
        try:
            clusters.arrived(Path(folder), 2, check=lambda: clusters.still_there(parent))
            parent.kill()
            parent.wait()
            return len(gone_within(folder, 1.0))
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(parent.pid, signal.SIGKILL)
