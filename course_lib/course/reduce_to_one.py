"""The task "reduce_to_one": all send to one rank, which adds and sends the sum back."""

from __future__ import annotations

from functools import partial

from course_lib.collectives import Schedule
from course_lib.course.algorithm import judge
from course_lib.course.mistakes import rounds_of
from course_lib.course.task import Task

HINTS = (
    "Two rounds are enough. In the first the sum comes together on rank 0; in the second it goes back. For each: who sends, who receives, "
    "and is it added to what is there ('reduce') or does it take its place ('copy')?",
    "Round 0: every rank but 0 sends chunk 0 to rank 0, op 'reduce'. Round 1: rank 0 sends chunk 0 to every other rank, op 'copy'. "
    "A round is a list with one Transfer for each of the other ranks.",
    'The first round is [Transfer(r, 0, 0, "reduce") for r in range(1, workers)]. Write the second in the same way, with sender and receiver '
    "exchanged and another op, and put both into a list.",
)


def over_budget(schedule: Schedule) -> str:
    """Words for a right schedule that is not a reduction to one rank; "" for one that is.

    For P workers it is 2 rounds of P-1 messages each.
    """
    workers, rounds = schedule.workers, rounds_of(schedule)
    if workers == 1:
        return "One worker has the sum already, and has nobody to send it to." if rounds else ""
    messages = sum(len({(t.src, t.dst) for t in r}) for r in rounds)
    if len(rounds) != 2:
        return (
            f"It takes {len(rounds)} rounds where 2 are enough: what does not wait for another belongs in the same round. "
            "All can send to one rank at once; their numbers are added there."
        )
    if messages != 2 * (workers - 1):
        return f"It takes {messages} messages where {2 * (workers - 1)} are enough: {workers - 1} to one rank, and {workers - 1} back from it."
    return ""


TASK = Task(
    name="reduce_to_one",
    answer="my_reduce_to_one",
    hints=HINTS,
    judge=partial(judge, budget=over_budget, spent="2 rounds, P-1 messages each"),
)
