"""The time of a step of TensorFlow's strategies on digits, against a plain script with the same
tf.distribute strategy.

multi_worker_mirrored has its rows in `steps`. What is asynchronous has no steps that all workers
end together, and no two runs of it are the same training: there the time of a step is a stretch's
over its steps, and both must only learn.
"""

from __future__ import annotations

import functools
import itertools
import statistics
from collections.abc import Callable, Sequence

from tests.benchmarks import clusters, timed
from tests.benchmarks.harness import Aim, Options, Rows, compare
from tests.benchmarks.peers.stretch import STRETCH
from tests.benchmarks.steps import SameTraining

ONE_PROCESS = (
    timed.Cluster("one_device", 1, 1),
    timed.Cluster("mirrored", 1, 2),
    timed.Cluster("central_storage", 1, 2),
)
SERVERS = timed.Cluster("parameter_server", 2, 1, 1)
WITHIN = Aim("at most", 1.05)
LEARNED = 1.2  # a loss below this: that of an untrained model is 2.3 or more


def rows(options: Options) -> Rows:
    """A row for each strategy that tf.distribute has too.

    The trace is on, as it is for learners.
    """
    clusters.warm("tensorflow")
    steps = timed.WARM_UP + (100 if options.quick else 300)
    for cluster in ONE_PROCESS:
        name = (
            f"step of {cluster.strategy}, {cluster.replicas} replicas, tensorflow"
            if cluster.replicas > 1
            else "step of one_device, tensorflow"
        )
        same = SameTraining()
        ours = same.median(functools.partial(timed.ours, "tensorflow", steps, cluster))
        plain = same.median(functools.partial(timed.plain, "tensorflow", steps, cluster))
        yield compare(name, "ms", ours, ("plain_tensorflow.py", plain), WITHIN, options)
    ours = stretches(functools.partial(timed.ours, "tensorflow", steps, SERVERS), STRETCH)
    plain = stretches(functools.partial(timed.plain, "tensorflow", steps, SERVERS), 1)
    yield compare(
        "step of parameter_server, 2 workers, tensorflow",
        "ms",
        ours,
        ("plain_parameter_server.py", plain),
        WITHIN,
        options,
    )


def stretches(train: Callable[[], timed.Training], every: int) -> Callable[[], float]:
    """Milliseconds of a step in the middle one of all stretches after the warm-up; a stretch is
    over with every so many moments.
    """

    def measure() -> float:
        training = train()
        if not training.final_loss < LEARNED:
            raise ValueError(
                f"it has not learned: it ended with a loss of {training.final_loss:.4f}"
            )
        return median_ms(training.moments[every - 1 :: every])

    return measure


def median_ms(moments: Sequence[float]) -> float:
    """From the moments after each stretch."""
    return (
        statistics.median(
            b - a for a, b in itertools.pairwise(moments[timed.WARM_UP // STRETCH - 1 :])
        )
        * 1000
        / STRETCH
    )
