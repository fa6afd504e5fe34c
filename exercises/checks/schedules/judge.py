"""The judge of an all-reduce: it is proved, held to its budget, and carried out between real
processes.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import Any

from course_lib.collectives import Schedule, verify
from course_lib.course.answers import ENDLESS, Unusable, Verdict
from course_lib.course.handed_in import TookTooLong, bounded
from course_lib.reduction.measure import job, measure

from . import mistakes
from .attempt import LONGEST_TRY, SIZES, Attempt, attempt
from .mistakes import Recogniser

REAL = (3, 5)  # workers of the runs with real processes: no powers of two
# numbers that each worker has: none, fewer than there are chunks, and some that do not divide
# evenly
LENGTHS = (0, 1, 7, 101)
# From so many workers on, a ring, a tree and everyone-to-everyone differ enough in cost to say what
# is wrong: these sizes are looked at first.
TELLING = 5
UNSEEN = range(10, 41)  # one of these sizes, another at each check
MOST_SHOWN = 24  # transfers of a wrong schedule that are shown

Budget = Callable[[Schedule], str]
"""Returns what a right schedule has too much of, in words, or ""."""


def judge(
    task: str, answer: Any, budget: Budget, spent: str, known: tuple[Recogniser, ...] = ()
) -> Verdict:
    """Judge a function from a number of workers to a `Schedule`.

    `spent` says what a schedule within `budget` costs. `known` are the mistakes of this task, which
    are looked for before those of any all-reduce. Raises as `attempt` and `measure` do.
    """
    tried = attempt(answer)
    if tried.failure:
        mistake = mistakes.name(tried, (*known, *mistakes.ANY))
        shown = tried.failing.schedule if tried.failing is not None else None
        return Verdict(task, "not yet", example(tried), mistake, shown)
    if len(tried.schedules) < len(SIZES):
        text = f"{tried.name} must take the number of workers and nothing else: {tried.name}(4)."
        return Verdict(task, "not yet", text)
    for workers in sorted(SIZES, key=lambda n: (n < TELLING, n)):
        schedule = tried.schedules[workers]
        excess = (
            "It has servers of its own; here the workers are alone."
            if schedule.servers
            else budget(schedule)
        )
        if excess:
            text = (
                f"{tried.name} gives the right sums, but is not what is asked for. "
                f"For {workers} worker{'s' * (workers > 1)}:"
            )
            return Verdict(task, "not yet", text, excess, schedule)
    if wrong := _unseen(tried, budget):
        return Verdict(
            task, "not yet", wrong, "Is there a list of cases in it? Compute the rounds."
        )
    for workers in REAL:
        wrong = _carried_out(tried.schedules[workers])
        if wrong:
            return Verdict(task, "not yet", wrong, shown=tried.schedules[workers])
    lengths = ", ".join(map(str, LENGTHS[:-1]))
    text = (
        f"Proved for P = {SIZES[0]} to {SIZES[-1]} workers; {spent}.\n"
        f"Carried out by {' and by '.join(map(str, REAL))} real processes on arrays of {lengths} "
        f"and {LENGTHS[-1]} numbers: every worker had the exact sum."
    )
    return Verdict(task, "passed", text, shown=tried.schedules[REAL[0]])


def _unseen(tried: Attempt, budget: Budget) -> str:
    """Words for an answer that fails for a number of workers drawn at each check; "" if right."""
    workers = secrets.choice(UNSEEN)
    try:
        with bounded(LONGEST_TRY):
            given = tried.function(workers)
            wrong = not verify(given).ok or given.workers != workers or budget(given)
    except TookTooLong:
        raise Unusable(f"{tried.name}({workers}) had not come back in time. {ENDLESS}") from None
    except Exception as error:  # a learner's function may raise anything
        wrong = f"it raises {type(error).__name__}: {error}"
    said = f" {wrong}" if isinstance(wrong, str) else ""
    right = f"It is right for {SIZES[0]} to {SIZES[-1]} workers"
    return f"{right}, and not for {workers}.{said}" if wrong else ""


def example(tried: Attempt) -> str:
    """The smallest case that fails, in words and, where it is short, with its rounds."""
    text = str(tried.failure)
    proof = tried.failing
    if proof is None or not 0 < sum(map(len, proof.schedule.rounds)) <= MOST_SHOWN:
        return text
    rounds = "\n".join(
        f"  {i}: {', '.join(map(str, r))}" for i, r in enumerate(proof.schedule.rounds)
    )
    return f"{text}\nYour rounds there (+ adds, = replaces):\n{rounds}"


def _carried_out(schedule: Schedule) -> str:
    """Words for the first array whose sum did not come out in real processes; "" if all did."""
    for done in measure([job(schedule, length, "int64", repeats=1) for length in LENGTHS]):
        if not done.exact:
            return (
                f"{schedule.workers} processes carried it out on arrays of {done.bytes // 8} "
                "numbers, and not all had the exact sum."
            )
    return ""
