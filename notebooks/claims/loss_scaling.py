"""In float16 small gradients become zero, and a scaled loss brings them back.

Source: Micikevicius et al., "Mixed Precision Training", ICLR 2018 (arXiv:1710.03740), sections 3.2
and 4: a detector of objects diverges without a scale, and reaches its accuracy with one.

Here a loss that a factor makes small, as one of several losses may be. The value is the share of
gradients that are zero. A laptop cannot show the speed of float16, for which it is used.
"""

import numpy as np

from course_lib import Workload, start

PUBLISHED, UNIT, TIMES = (
    "training works with a scale, and fails without",
    "% of gradients are 0",
    100,
)


def model():
    from torch import nn

    return nn.Sequential(nn.Linear(20, 32), nn.Tanh(), nn.Linear(32, 4))


def small(outputs, targets):
    from torch.nn.functional import cross_entropy

    return 1e-5 * cross_entropy(outputs, targets)


def measure(seed, **fields):
    x = np.random.default_rng(seed).normal(size=(2000, 20)).astype("float32")
    data = {"train": (x, x[:, :4].argmax(axis=1)), "test": (x[:200], x[:200, :4].argmax(axis=1))}
    work = Workload("small_loss", **data, torch=model, loss=small)
    fields |= {"precision": "float16", "optimizer": "adamw", "steps": 20, "seed": seed}
    run = start("mirrored", framework="torch", workers=2, workload=work, **fields).wait(60)
    return run.result["zeros"]["worker:0"]


def holds(share):
    return share < 0.2


def broken(seed):
    """A scale of 1 changes nothing."""
    return measure(seed, loss_scale=1)
