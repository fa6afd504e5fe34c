"""A learning rate that is too large for stale gradients does no harm if it is divided by staleness.

Source: Zhang et al., "Staleness-aware Async-SGD for Distributed Deep Learning", IJCAI 2016
(arXiv:1511.05950): rates divided by staleness reach the accuracy of synchronous SGD.

Here eight workers and digits; how stale gradients are depends on the machine, and is measured.
"""

from strategies.rate_by_staleness import by_staleness

from course_lib import start

PUBLISHED, UNIT, TIMES = "the accuracy of synchronous SGD", "% test accuracy", 100


def measure(seed, strategy=by_staleness):
    fields = {"workers": 8, "steps": 80, "device_ms": 10, "learning_rate": 0.6}
    run = start(strategy, framework="torch", seed=seed, **fields).wait(90)
    return run.result["test_accuracy"]


def holds(accuracy):
    return accuracy > 0.5


def broken(seed):
    """The whole rate for each gradient."""
    return measure(seed, "parameter_server")
