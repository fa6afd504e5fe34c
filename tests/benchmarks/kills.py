"""What survives the notebook kernel: SIGKILL at random moments of start-up, training, saves,
restarts and races, and a look for whatever is left one second later.
"""

from __future__ import annotations

import itertools
import math
import statistics
import sys
import tempfile
from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path

from tests.benchmarks import clusters
from tests.benchmarks.harness import Aim, Options, Rows, compare
from tests.processes.kernel_kill import SOON, alone, at_random, fell, kill, killed, shared_memory

KILLS, QUICK = 200, 5
AT_ONCE = 20  # kills in a repeat, at most
MISSED = 3  # kernels that may fail to come to their moment, or end by themselves
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]


@dataclass
class Found:
    """What the kills found so far: how many fell into which moment, after how many seconds nothing
    was left of each, what was left for longer than a second but went, and what stayed.
    """

    moments: Counter[str] = field(default_factory=Counter)
    seconds: list[float] = field(default_factory=list)
    slow: int = 0
    leaks: int = 0
    missed: int = 0

    def __str__(self) -> str:
        kinds = ", ".join(f"{count} in {moment}" for moment, count in self.moments.most_common())
        gone = f"median {statistics.median(self.seconds):.2f} s, at most {max(self.seconds):.2f} s"
        left = f"{self.slow} slow, {self.leaks} leaks, {self.missed} kernels failed"
        return f"{kinds}; until nothing is left: {gone}; {left}"


def rows(options: Options) -> Rows:
    """As many kills as it takes to meet the rare bad moment, whatever number of repeats was asked
    for.
    """
    kills = QUICK if options.quick else KILLS
    each = min(kills, AT_ONCE)
    seeds, found = itertools.count(), Found()
    row = compare(
        f"left {SOON:g} s after {each} of {kills} kills of the kernel",
        "",
        lambda: ours(each, next(seeds), found, options),
        ("torchrun, one kill of it", lambda: orphans(options)),
        Aim("none"),
        replace(options, repeats=kills // each),
    )
    yield replace(row, name=f"{row.name} ({found})")


def ours(kills: int, seed: int, found: Found, options: Options) -> float:
    """How much is left of them."""
    count = 0
    for n, (framework, moment, seconds) in enumerate(at_random(kills, seed)):
        about = f"seed {seed}, kill {n}, {framework}, {moment}, {seconds:.2f} s"
        with tempfile.TemporaryDirectory(prefix="lockstep-bench-") as home:
            try:
                done = kill(framework, Path(home), moment, seconds)
            except AssertionError as problem:
                found.missed += 1
                options.say(f"{about}: {problem}")
                if found.missed > MISSED:
                    raise
                continue
            found.moments[fell(Path(home))] += 1
        found.seconds.append(done.seconds)
        for what, stayed in done.left.items():
            leak = math.isinf(stayed)
            found.leaks, found.slow = found.leaks + leak, found.slow + (not leak)
            how_long = "a leak" if leak else f"slow, seen for {stayed:.2f} s"
            options.say(f"{about}: {what} was left ({how_long})")
        count += len(done.left)
    options.say(str(found))
    return count


def orphans(options: Options) -> float:
    """The same of torchrun, once its two workers exchange gradients."""
    with tempfile.TemporaryDirectory(prefix="lockstep-bench-") as folder:
        home, before = Path(folder), shared_memory()
        (home / "tmp").mkdir()
        # its home is the mark by which processes are found
        marks = {"LOCKSTEP_HOME": folder, "TMPDIR": str(home / "tmp")}
        command = [*TORCHRUN, str(clusters.PEERS / "endless.py"), "torch", folder]
        with alone(home), clusters.process(command, marks) as parent:
            clusters.arrived(home, 2, check=lambda: clusters.still_there(parent))
            left = killed(parent, home, before, patience=SOON).left
    kinds = Counter(what.partition(" ")[0].partition(":")[0] for what in left)
    options.say(f"left of torchrun: {dict(kinds)}")
    return len(left)
