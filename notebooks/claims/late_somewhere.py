"""With many workers nearly every step has a late one.

Source: Dean and Barroso, "The Tail at Scale", Communications of the ACM 56(2), 2013. If each of 100
servers is slow once in 100 requests, 63 % of the requests that need all of them are slow.

Here eight workers are late once in eight steps, so 1 - (7/8)^8 = 66 % of the steps should be long.
The delays are emulated; a laptop cannot show where delays come from in a data centre.
"""

from course_lib import start

PUBLISHED, UNIT, TIMES = "63 %, as 1 - (1 - 1/n)^n", "% of the steps are long", 100
DEVICE, LATE = 5, 40  # ms


def measure(seed, workers=8):
    fields = {"workers": workers, "steps": 80, "seed": seed, "device_ms": DEVICE}
    run = start("multi_worker_mirrored", framework="torch", jitter=f"one_in:8:{LATE}ms", **fields)
    computing = run.wait(60).trace.phases.query("kind == 'compute'")
    longest = computing.groupby("step")["duration"].max()
    return (longest > (DEVICE + 0.8 * LATE) / 1000).mean()


def holds(share):
    return 0.48 < share < 0.84


def broken(seed):
    """One worker waits for nobody."""
    return measure(seed, workers=1)
