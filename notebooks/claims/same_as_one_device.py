"""Synchronous data parallelism computes what one device computes with the whole batch.

Source: Goyal et al., "Accurate, Large Minibatch SGD", 2017 (arXiv:1706.02677), section 3: with the
loss divided by the whole batch, workers change nothing but the order of sums.

The value is the difference of the losses after 30 steps, as a share of the loss.
"""

from strategies.local_sgd import local_sgd

from course_lib import start

PUBLISHED, UNIT, TIMES = "0, but for the order of sums", "% difference of the losses", 100


def losses(strategy, seed):
    run = start(strategy, framework="torch", steps=30, seed=seed).wait(60)
    by_step = run.trace.metrics.query("name == 'loss'").groupby("step")["value"].mean()
    return by_step.iloc[-4:].mean()


def measure(seed, strategy="multi_worker_mirrored"):
    alone = losses("one_device", seed)
    return abs(losses(strategy, seed) - alone) / alone


def holds(share):
    return share < 1e-4


def broken(seed):
    """Replicas that go their own way for eight steps at a time."""
    return measure(seed, local_sgd)
