"""Where one worker is slow, workers that do not wait for it get more done.

Source: Dean et al., "Large Scale Distributed Deep Networks", NeurIPS 2012, section 4.1:
asynchronous replicas with parameter servers tolerate slow and failed machines.

Here four workers, one of them four times slower. By the rates (3 + 1/4) / (4/4) the asynchronous
cluster should do 3.25 times as many batches; the two also differ in what an update is (lesson 09).
"""

from course_lib import start

PUBLISHED, UNIT, TIMES = "more, and 3.25 by the rates", "times as many examples a second", 1


def examples_a_second(strategy, seed, factor):
    fields = {"workers": 4, "steps": 40, "device_ms": 20, "slow": {"worker:3": factor}}
    run = start(strategy, framework="torch", seed=seed, **fields).wait(60)
    return run.result["examples_per_second"]


def measure(seed, factor=4):
    rates = [
        examples_a_second(strategy, seed, factor)
        for strategy in ("parameter_server", "sync_parameter_server")
    ]
    return rates[0] / rates[1]


def holds(times):
    return times > 1.6


def broken(seed):
    """Nobody is slow."""
    return measure(seed, factor=1)
