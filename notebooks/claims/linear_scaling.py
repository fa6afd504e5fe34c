"""With a batch k times as large a learning rate k times as large learns the same from an epoch.

Source: Goyal et al., "Accurate, Large Minibatch SGD", 2017 (arXiv:1706.02677), section 2.1: the
linear scaling rule, for batches of 256 to 8,192 images of ImageNet.

Here digits, and batches of 32 and 256 for the same number of examples. Where the rule ends (8,192
in the paper) depends on the model; lesson 02 shows it for this one. There is no warm-up here, and
the means are over the last 64 steps of 32, so some of the difference is noise.
"""

from course_lib import start

PUBLISHED, UNIT, TIMES = "the same curve, up to a limit", "of the loss of the small batch", 1


def loss(seed, times, rate):
    fields = {"global_batch": 32 * times, "steps": 320 // times, "learning_rate": rate}
    run = start("one_device", framework="torch", seed=seed, warmup_steps=0, **fields).wait(60)
    losses = run.trace.metrics.query("name == 'loss'")["value"]
    return losses.tail(64 // times).mean()


def measure(seed, rate=0.8):
    return loss(seed, 8, rate) / loss(seed, 1, 0.1)


def holds(ratio):
    return ratio < 2.2


def broken(seed):
    """The large batch keeps the rate of the small one."""
    return measure(seed, rate=0.1)
