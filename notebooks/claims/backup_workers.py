"""Not to wait for the last worker pays where delays are rare and long.

Source: Chen et al., "Revisiting Distributed Synchronous SGD", 2016 (arXiv:1604.00981): with a few
backup workers synchronous training reaches the same accuracy sooner.

Here four workers, of which three are waited for; each then computes a third of the batch in place
of a quarter. The paper had 100 workers and more, and delays of a real cluster.
"""

from course_lib import start

PUBLISHED, UNIT, TIMES = "sooner, by the cluster's delays", "times as fast", 1
RARE = "one_in:20:600ms"


def seconds(strategy, seed, jitter, **fields):
    fields |= {"workers": 4, "steps": 40, "global_batch": 120, "jitter": jitter}
    run = start(strategy, framework="torch", seed=seed, **fields).wait(60)
    phases = run.trace.phases
    return phases["end"].max() - phases["start"].min()


def measure(seed, jitter=RARE):
    everybody = seconds("multi_worker_mirrored", seed, jitter, device_ms=30)
    return everybody / seconds("backup_workers", seed, jitter, backups=1, device_ms=40)


def holds(times):
    return times > 1.3


def broken(seed):
    """Nobody is late, and the larger shares take longer."""
    return measure(seed, None)
