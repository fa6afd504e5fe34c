"""A bound on staleness takes away most of the waiting where delays are short.

Source: Ho et al., "More Effective Distributed ML via a Stale Synchronous Parallel Parameter
Server", NeurIPS 2013: workers that may be a few steps apart wait much less than in lockstep.

The delays are emulated, and the same in both runs.
"""

from course_lib import start

PUBLISHED, UNIT, TIMES = "less waiting, most of it with a small bound", "times as fast", 1


def seconds(seed, bound):
    fields = {"workers": 4, "steps": 50, "device_ms": 30, "jitter": "one_in:3:60ms"}
    fields |= {"staleness_bound": bound, "seed": seed, "learning_rate": 0.05}
    run = start("stale_synchronous", framework="torch", **fields).wait(60)
    phases = run.trace.phases
    return phases["end"].max() - phases["start"].min()


def measure(seed, bound=3):
    return seconds(seed, 0) / seconds(seed, bound)


def holds(times):
    return times > 1.2


def broken(seed):
    """A bound of 0 lets nobody go ahead."""
    return measure(seed, bound=0)
