"""What survives the notebook kernel: SIGKILL at random moments of start-up, training, saves,
restarts and races, and a look for whatever is left one second later.
"""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import tempfile
from collections import Counter
from dataclasses import replace
from pathlib import Path

from course_lib.cluster import frameworks
from tests.benchmarks import clusters
from tests.benchmarks.harness import Aim, Options, Rows, compare
from tests.conftest import processes_of
from tests.processes.kernel_kill import killed, survivors

KILLS, QUICK = 200, 5
AT_ONCE = 20  # kills in a repeat, at most


def rows(options: Options) -> Rows:
    """As many kills as it takes to meet the rare bad moment, whatever number of repeats was asked
    for.
    """
    kills = QUICK if options.quick else KILLS
    each = min(kills, AT_ONCE)
    seeds, moments = itertools.count(), Counter[str]()
    row = compare(
        f"left of {each} of {kills} kills of the kernel",
        "",
        lambda: ours(each, next(seeds), moments, options),
        ("torchrun, one kill of it", lambda: orphans(options)),
        Aim("none"),
        replace(options, repeats=kills // each),
    )
    fell = ", ".join(f"{count} in {moment}" for moment, count in moments.most_common())
    yield replace(row, name=f"{row.name} ({fell})")


def ours(kills: int, seed: int, moments: Counter[str], options: Options) -> float:
    """How much is left of them; `moments` counts what they fell into."""
    with tempfile.TemporaryDirectory(prefix="lockstep-bench-") as home:
        fell, left = survivors(kills, Path(home), seed)
        moments.update(fell)
        for line in left:
            options.say(f"left with seed {seed}: {line}")
        return len(left)


def orphans(options: Options) -> float:
    """The same of torchrun, once its two workers exchange gradients."""
    with tempfile.TemporaryDirectory(prefix="lockstep-bench-") as folder:
        run = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
        temporary = Path(folder, "tmp")
        temporary.mkdir()
        # its home is the mark by which processes are found
        marks = {"LOCKSTEP_HOME": folder, "TMPDIR": str(temporary)}
        environment = {**os.environ, **frameworks.ENVIRONMENT, **marks}
        parent = subprocess.Popen(
            [*run, str(clusters.PEERS / "endless.py"), "torch", folder],
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            clusters.arrived(Path(folder), 2, check=lambda: clusters.still_there(parent))
            left = killed(parent, Path(folder))[1]
        finally:
            for process in processes_of(folder):
                process.kill()
            parent.wait()
        kinds = Counter(
            line.partition(":")[0] if " is left" in line else "process" for line in left
        )
        options.say(f"left of torchrun: {dict(kinds)}")
        return len(left)
