"""Jitter: delays that differ from step to step, as those of real machines do.

A factor (`slow`) makes every step of a task longer, always by as much. Real machines have hiccups:
another program, a collection of garbage, a lost packet. Jitter draws a delay for each task and
step:

    lognormal:0.5       the emulated device time times exp(0.5 z), z normal: its median stays
    exponential:20ms    20 ms more in the mean, often less, sometimes much more
    one_in:100:200ms    200 ms more in one step of a hundred, which one is left to chance

What is drawn depends on the run's seed, the task and the step, and on nothing else. So a run that
is repeated has the same delays, whatever the machine does, and so do all strategies in a race. A
worker that computes several pieces of one step, as a fast one under `parameter_server` does, has
the same delay in each.
"""

from __future__ import annotations

import functools
import math
import re
from typing import NamedTuple

import numpy as np

from course_lib.errors import SpecError

FORMS = (
    "lognormal:SIGMA (up to 2), exponential:MEAN or one_in:STEPS:DELAY (times up to 10s), "
    "such as lognormal:0.5, exponential:20ms or one_in:100:200ms"
)
_NUMBER = r"(\d*\.?\d+)"
_TIME = rf"{_NUMBER}(ms|s)"
_STREAM = 4  # keeps these random numbers apart from others that are made from the same seed
_BLOCK = 256  # steps


class Jitter(NamedTuple):
    """How the steps of a task are delayed: the device time times exp(`sigma` z), and in addition
    `mean` seconds times an exponential random number, and `delay` seconds with a `chance`.
    """

    sigma: float = 0.0
    mean: float = 0.0
    chance: float = 0.0
    delay: float = 0.0

    @staticmethod
    @functools.lru_cache
    def of(text: str) -> Jitter:
        """The jitter that is written so; "" is none. Raises `SpecError` for any other text."""
        jitter = Jitter()
        if m := re.fullmatch(rf"lognormal:{_NUMBER}", text):
            jitter = Jitter(sigma=float(m[1]))
        elif m := re.fullmatch(rf"exponential:{_TIME}", text):
            jitter = Jitter(mean=seconds(m[1], m[2]))
        elif m := re.fullmatch(rf"one_in:0*([1-9]\d*):{_TIME}", text):
            jitter = Jitter(chance=1 / int(m[1]), delay=seconds(m[2], m[3]))
        most = jitter.sigma <= 2 and jitter.mean <= 10 and jitter.delay <= 10
        if text and not (most and (jitter.sigma or jitter.mean or jitter.delay)):
            raise SpecError("jitter", text, FORMS)
        return jitter

    def of_step(self, seed: int, task: str, step: int) -> tuple[float, float]:
        """What a step of a task gets: a factor for its device time, and seconds in addition."""
        if not any(self):
            return 1.0, 0.0
        normal, exponential, uniform = draws(seed, task, step)
        late = self.mean * exponential + self.delay * (uniform < self.chance)
        return math.exp(self.sigma * normal), late


STEADY = Jitter()


def check_jitter(text: object) -> str:
    """Return the text if it is a jitter, else raise `SpecError`."""
    if not (isinstance(text, str) and any(Jitter.of(text))):
        raise SpecError("jitter", text, FORMS)
    return text


def draws(seed: int, task: str, step: int) -> tuple[float, float, float]:
    """The random numbers of a task's step: a standard normal one, a standard exponential one, and
    one between 0 and 1. Each form of jitter uses another of them.
    """
    normal, exponential, uniform = _block(seed, task, step // _BLOCK)[step % _BLOCK].tolist()
    return normal, exponential, uniform


@functools.lru_cache(maxsize=512)
def _block(seed: int, task: str, number: int) -> np.ndarray:
    """The random numbers of many steps, shape (steps, 3): one by one they would take longer."""
    rng = np.random.default_rng([_STREAM, seed, number, *task.encode()])
    drawn = rng.standard_normal(_BLOCK), rng.standard_exponential(_BLOCK), rng.random(_BLOCK)
    return np.stack(drawn, axis=1)


def seconds(number: str, unit: str) -> float:
    """A time that is written as a number of `ms` or `s`."""
    return float(number) / (1000 if unit == "ms" else 1)
