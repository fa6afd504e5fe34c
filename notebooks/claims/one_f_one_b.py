"""1F1B keeps the activations of p microbatches where GPipe keeps those of all m.

Source: Narayanan et al., "Efficient Large-Scale Language Model Training on GPU Clusters Using
Megatron-LM", SC 2021 (arXiv:2104.04473), section 2.2.1.

Here p = 4 and m = 8, so GPipe should keep twice as much on the first stage. On later stages 1F1B
keeps fewer than p, so where one of them has the largest activations it is more.
"""

from strategies.pipelines import gpipe, one_f_one_b

from course_lib import start

PUBLISHED, UNIT, TIMES = "m / p = 2", "times the activations", 1


def activations(schedule, seed):
    fields = {"workers": 4, "accumulate": 8, "steps": 2, "workload": "digits_deep"}
    run = start(schedule, framework="torch", seed=seed, **fields).wait(60)
    return run.trace.metrics.query("name == 'activations'")["value"].max()


def measure(seed, schedule=one_f_one_b):
    return activations(gpipe, seed) / activations(schedule, seed)


def holds(times):
    return 1.6 < times < 2.8


def broken(seed):
    """GPipe beside itself."""
    return measure(seed, gpipe)
