"""In a pipeline of p stages and m microbatches a worker waits for (p-1)/(m+p-1) of a step.

Source: Huang et al., "GPipe", NeurIPS 2019 (arXiv:1811.06965), section 2.3: the bubble, which is
negligible if m is at least four times p.

Here four stages and eight microbatches, each stage on emulated device time. Of four steps the one
with the least waiting counts, as other programs only add to it.
"""

from strategies.pipelines import gpipe

from course_lib import start

PUBLISHED, UNIT, TIMES = "27 % by the formula, for p = 4 and m = 8", "% of a step is waiting", 100


def measure(seed, microbatches=8):
    fields = {"workers": 4, "accumulate": microbatches, "device_ms": 2000, "steps": 4}
    run = start(gpipe, framework="torch", workload="digits_deep", seed=seed, **fields).wait(60)
    computing = run.trace.phases.query("kind == 'compute' and step > 0").groupby("step")
    span = computing["end"].max() - computing["start"].min()
    return (1 - computing["duration"].sum() / (4 * span)).min()


def holds(share):
    return 0.2 < share < 0.4


def broken(seed):
    """One microbatch: only one stage works at a time."""
    return measure(seed, microbatches=1)
