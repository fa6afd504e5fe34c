"""Local SGD exchanges once in H steps, and learns about as much.

Source: Douillard et al., "DiLoCo", 2023 (arXiv:2311.08105): 500 times less communication with H =
500, at the perplexity of the synchronous baseline. Stich, "Local SGD Converges Fast and
Communicates Little", ICLR 2019, proves it for convex functions.

Here H = 8 and digits. The value is the number of steps for each exchange; it is 0 if the loss has
not fallen by half. A laptop cannot show this for a large language model.
"""

from strategies.local_sgd import local_sgd

from course_lib import start

PUBLISHED, UNIT, TIMES = "500 with H = 500; here H = 8", "steps for each exchange", 1


def trained(strategy, seed):
    return start(strategy, framework="torch", workers=4, steps=64, seed=seed).wait(60)


def measure(seed, strategy=local_sgd):
    run = trained(strategy, seed)
    losses = run.trace.metrics.query("name == 'loss'").groupby("step")["value"].mean()
    way = (losses.iloc[0] - losses.iloc[-8:].mean()) / losses.iloc[0]
    exchanges = len(run.trace.phases.query("kind == 'reduce' and task == 'worker:0'"))
    return 64 / exchanges if way > 0.5 else 0.0


def holds(steps):
    return steps == 8


def broken(seed):
    """An exchange in every step."""
    return measure(seed, "multi_worker_mirrored")
