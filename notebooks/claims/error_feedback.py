"""Of a gradient 1 % is enough, if what is not sent is added to the next one.

Source: Stich, Cordonnier and Jaggi, "Sparsified SGD with Memory", NeurIPS 2018 (arXiv:1809.07599):
with memory, top-k converges at the rate of SGD; without, it does not in their experiments.

Here a model of 12,000 parameters. The value is the loss after 64 steps, as a share of that of one
device in its first step.
"""

from strategies.top_k import top_k, top_k_forgetful

from course_lib import start

PUBLISHED, UNIT, TIMES = "as SGD with memory, worse without", "% of the first loss", 100


def measure(seed, strategy=top_k):
    fields = {"workload": "wide", "sizes": {"parameters": 12_000}, "learning_rate": 0.8}
    run = start(strategy, framework="torch", workers=4, steps=64, seed=seed, **fields).wait(60)
    losses = run.trace.metrics.query("name == 'loss'").groupby("step")["value"].mean()
    return losses.iloc[-6:].mean() / losses.iloc[0]


def holds(share):
    return share < 0.17


def broken(seed):
    """What is not sent is thrown away."""
    return measure(seed, top_k_forgetful)
