"""In a ring each worker sends 2(n-1)/n of the array, and no all-reduce can do with less.

Source: Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations",
Journal of Parallel and Distributed Computing 69(2), 2009: the lower bound, and that a ring meets
it.

Bytes are those of the messages in the trace of a training, for the worker that sends most.
"""

from course_lib import start

PUBLISHED, UNIT, TIMES = "1.5 for 4 workers", "arrays sent by the busiest worker", 1


def measure(seed, algorithm="ring"):
    fields = {"workers": 4, "steps": 3, "seed": seed, "all_reduce": algorithm}
    run = start("multi_worker_mirrored", framework="torch", **fields).wait(60)
    sent = run.trace.messages.groupby("source")["bytes"].sum() / 3  # in a step
    return sent.max() / (4 * run.result["parameters"])


def holds(arrays):
    return 1.45 < arrays < 1.6


def broken(seed):
    """All send to one worker, which sends the sum to each of them."""
    return measure(seed, "reduce_to_one")
