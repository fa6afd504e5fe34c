"""The task "tree": a tree that was given with one mistake in it, mended."""

from __future__ import annotations

from functools import partial

from course_lib.collectives import Schedule
from course_lib.course.algorithm import judge
from course_lib.course.attempt import Attempt
from course_lib.course.mistakes import Rounds, halves, rebuilt, rounds_of
from course_lib.course.task import Task

HINTS = (
    "For 2 and 3 workers the tree is right. Write down its rounds for 4 workers, and what is in chunk 0 of each rank after each of them. "
    "Which rank passes something on that it should not have passed on yet?",
    "The way up is right: after it rank 0 has the sum. On the way down a rank may pass the sum on only when it has it. For 4 workers: "
    "who must get it first from rank 0, so that two ranks can pass it on in the next round?",
    "The way down is the way up, played backwards: what was the last round going up is the first going down. Look at the order of `gaps`.",
)


def over_budget(schedule: Schedule) -> str:
    """Words for a right schedule that is not a tree; "" for one that is: 2⌈lg P⌉ rounds, P-1
    messages up and P-1 down, a rank in one at a time.
    """
    workers, rounds = schedule.workers, rounds_of(schedule)
    want = 2 * (workers - 1).bit_length()
    busiest = max(
        (sum(rank in (t.src, t.dst) for t in r) for r in rounds for rank in range(workers)),
        default=0,
    )
    if busiest > 1:
        return f"In one round a rank has {busiest} messages to send or receive. In this tree ranks meet in pairs: one message a round for each."
    if len(rounds) != want:
        return f"It takes {len(rounds)} rounds; the tree takes 2⌈lg P⌉ = {want}. The way down needs as many as the way up."
    messages = sum(map(len, rounds))
    if messages != 2 * (workers - 1):
        return f"It takes {messages} messages; the tree takes {2 * (workers - 1)}: each rank but 0 hands in one, and gets one."
    return ""


def wrong_order(attempt: Attempt) -> str:
    """One of the ways, or both, run backwards."""

    def way(up: bool, down: bool) -> bool:
        def change(schedule: Schedule) -> Schedule:
            first, second = halves(rounds_of(schedule))
            return rebuilt(schedule, [*_turned(first, up), *_turned(second, down)])

        return attempt.right_if(change)

    if way(False, True):
        return (
            "The way down runs in the same order as the way up, so ranks far from rank 0 are served by ranks that do not have the sum yet. "
            "Rank 0 must first send it the farthest way, then everyone who has it a shorter way, and so on."
        )
    if way(True, False):
        return "The way up runs in the wrong order: a rank hands in its sum before all that belongs in it has come. The nearest pairs come first."
    if way(True, True):
        return "Both ways run in the wrong order. The way up was right as it was: turn only the way down."
    return ""


def _turned(rounds: Rounds, turn: bool) -> Rounds:
    return rounds[::-1] if turn else rounds


TASK = Task(
    name="tree",
    answer="my_tree",
    hints=HINTS,
    judge=partial(
        judge,
        budget=over_budget,
        spent="2⌈lg P⌉ rounds, a rank in one message at a time",
        known=(wrong_order,),
    ),
)
