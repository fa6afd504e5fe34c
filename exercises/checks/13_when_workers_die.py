"""The checks of exercise 13: who holds a run up, a checkpoint that outlives a crash, a training
that is resumed bit for bit, and how often to save.
"""

from __future__ import annotations

import math
import secrets
from typing import Any

import numpy as np

from course_lib.course.answers import ExerciseTask, Unusable, Verdict
from course_lib.course.handed_in import Answer
from course_lib.text import kind_of

from . import atomic_save, culprit, resumed
from .calls import NOTHING, asked

# --- interval: how often to save ---

HINTS = (
    (
        "If one machine fails once in 1,000 days on average, how often does something fail in a"
        " cluster of 1,000? That mean time is M. Then lesson 13 has the formula."
    ),
    (
        "Saving takes the share save_seconds / interval of the time, a failure loses half an"
        " interval in each M. The sum is smallest where both parts are equal."
    ),
    "mean = machine_seconds / machines; return (2 * save_seconds * mean) ** 0.5",
)
MOST = 1.05  # times the time lost with the best interval
FAILURES = 20_000
HOUR = 3600.0


def lost(interval: float, save: float, gaps: Any) -> float:
    """The share of the time that a machine loses which fails after these gaps, in seconds: to
    saving, and to work since the last checkpoint.
    """
    useful = np.floor(gaps / (interval + save)) * interval
    return float(1 - useful.sum() / gaps.sum())


def judge(task: str, answer: Answer) -> Verdict:
    cases = [
        (25.0, 11_000 * 16_384.0, 16_384),
        (5.0, 40 * HOUR, 1),
        (20.0 + secrets.randbelow(40), (3e7 + secrets.randbelow(10**7)), 900),
        (2.0 + secrets.randbelow(6), (4e6 + secrets.randbelow(10**6)), 64),
    ]
    for save, machine, machines in cases:
        given = asked(answer, called, save, machine, machines)
        if given is None:
            raise Unusable(NOTHING)
        if isinstance(given, bool) or not isinstance(given, int | float):
            raise Unusable(f"It returns {kind_of(given)}. Return a number of seconds.")
        words = f"A save takes {save:g} s, and each of {machines:,} machines fails once in"
        words = f"{words} {machine / HOUR:,.0f} h: it returns {given:,.1f} s."
        if not math.isfinite(given) or given <= 0:
            return Verdict(task, "not yet", words, "An interval is a positive number of seconds.")
        if name := mistake(given, save, machine, machines):
            return Verdict(task, "not yet", words, name)
        gaps = np.random.default_rng().exponential(machine / machines, FAILURES)
        young = math.sqrt(2 * save * machine / machines)
        trials = {x: lost(x, save, gaps) for x in young * np.geomspace(0.5, 2, 41)}
        best = min(trials, key=trials.__getitem__)
        if lost(given, save, gaps) > MOST * trials[best]:
            text = (
                f"{words} With {FAILURES:,} random failures {lost(given, save, gaps):.1%} of the"
                f" time is lost; saving every {best:,.0f} s loses {trials[best]:.1%}."
            )
            rare = given > best
            cure = f"It saves too {'rarely' if rare else 'often'}."
            return Verdict(
                task, "not yet", text, f"{cure} Compare it with the formula of lesson 13."
            )
    text = (
        f"Four clusters with {FAILURES:,} random failures each: by trial no interval loses clearly"
        " less time."
    )
    return Verdict(task, "passed", text)


def called(learners: Any, save: float, machine: float, machines: int) -> Any:
    return learners(save, machine, machines)


def mistake(given: float, save: float, machine: float, machines: int) -> str:
    """The name of the mistake by which this interval comes out."""
    mean = machine / machines
    right = math.sqrt(2 * save * mean)
    known = {
        "The mean time between failures is that of one machine. Any of the machines may fail, so"
        " divide it by their number.": math.sqrt(2 * save * machine),
        "machine_seconds is multiplied by the number of machines. With more machines something"
        " fails more often: divide.": math.sqrt(2 * save * machine * machines),
        "The root is divided by the number of machines. It is M that is divided, under the"
        " root.": math.sqrt(2 * save * machine) / machines,
        "The 2 is missing: a failure loses half an interval on average, not a whole"
        " one.": math.sqrt(save * mean),
        "The 2 is outside the root, where it counts twice as much.": 2 * math.sqrt(save * mean),
        "The 2 divides: set the derivative of save / t + t / (2 M) to zero once more.": math.sqrt(
            save * mean / 2
        ),
        "The square root is missing: it is the square of the interval.": 2 * save * mean,
        "The time between failures is divided by the time of a save, which gives a number without"
        " a unit. Multiply the two.": math.sqrt(2 * mean / save),
        "The time of a save is divided by the time between failures, which gives a number without"
        " a unit. Multiply the two.": math.sqrt(2 * save / mean),
        "Only M is under the root. 2 and the time of a save belong there as well.": 2
        * save
        * math.sqrt(mean),
        "The time of a save is not in it. The longer a save takes, the more rarely it"
        " pays.": math.sqrt(2 * mean),
        "It is half the time between failures, whatever a save costs. The cheaper a save is, the"
        " more often it pays.": mean / 2,
        "It is the time between failures: about every second failure would find no new"
        " checkpoint.": mean,
        "These are minutes. Return seconds.": right / 60,
        "These are hours. Return seconds.": right / 3600,
        "It is the number of saves between two failures, not the time between two saves.": mean
        / right,
    }
    if math.isclose(given, right, rel_tol=1e-6):
        return ""
    return next((name for name, x in known.items() if math.isclose(given, x, rel_tol=1e-4)), "")


TASKS = (
    ExerciseTask(
        "culprit",
        "culprit",
        culprit.HINTS,
        culprit.judge,
        section="13_when_workers_die#Reading a hang",
    ),
    ExerciseTask(
        "save",
        "save",
        atomic_save.HINTS,
        atomic_save.judge,
        section="13_when_workers_die#What a checkpoint is worth",
    ),
    ExerciseTask(
        "resume",
        "Checkpoint",
        resumed.HINTS,
        resumed.judge,
        section="13_when_workers_die#What a checkpoint is worth",
    ),
    ExerciseTask("interval", "interval", HINTS, judge, section="13_when_workers_die#How often?"),
)
