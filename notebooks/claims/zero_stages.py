"""ZeRO stage 2 keeps 2 + 14/n bytes a parameter in place of 16.

Source: Rajbhandari et al., "ZeRO", SC 2020 (arXiv:1910.02054), figure 1 and sections 3 and 5: 120
GB without, 16.6 GB in stage 2, for 7.5 billion parameters on 64 devices.

Here four workers and a transformer of some 30,000 parameters, with AdamW in bfloat16, as the census
of a run counts it. A laptop cannot show the 7.5 billion.
"""

from strategies.zero_2 import zero_2

from course_lib import start

PUBLISHED, UNIT, TIMES = "5.5 by the formula, for n = 4", "bytes a parameter", 1


def measure(seed, strategy=zero_2, **fields):
    fields |= {"workload": "tiny_gpt", "optimizer": "adamw", "precision": "bfloat16", "steps": 2}
    run = start(strategy, framework="torch", seed=seed, global_batch=8, **fields).wait(60)
    kept = run.result["memory"]["worker:0"]
    state = kept["parameters"] + kept["gradients"] + kept["optimizer_state"]
    return state / run.result["parameters"]


def holds(bytes_):
    return 5.3 < bytes_ < 5.7


def broken(seed):
    """One device divides nothing."""
    return measure(seed, "one_device")
