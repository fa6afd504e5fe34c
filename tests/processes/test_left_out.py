"""A collective that a rank leaves out is named at once, with the ranks that wait in it."""

import re
from collections.abc import Callable
from typing import Any

import pytest

from course_lib import start
from course_lib.cluster.task import Task
from course_lib.course import check
from course_lib.errors import Stalled
from tests import left_out

ONLY_0 = "worker:0 waits in {} for worker:1 and worker:2, which have returned"
NOT_0 = "worker:1 and worker:2 wait in {} for worker:0, which has returned"


def told(function: Callable[[Task], Any]) -> str:
    """What a wait says that would give up after half a minute, without places."""
    with start(function, framework="torch", workers=3) as run, pytest.raises(Stalled) as caught:
        run.wait(30)
    assert caught.value.standing  # it is certain, and no time was over
    return re.sub(r" of \([\d, ]+\) float32| at left_out\.py:\d+", "", str(caught.value))


@pytest.mark.sample(6)
@pytest.mark.parametrize("name", left_out.CALLS)
def test_a_collective_that_only_rank_0_calls_is_named(name: str) -> None:
    assert ONLY_0.format(name) in told(left_out.program(name, {0}))


@pytest.mark.sample(6)
@pytest.mark.parametrize("name", left_out.CALLS)
def test_a_collective_that_all_but_rank_0_call_is_named(name: str) -> None:
    assert NOT_0.format(name) in told(left_out.program(name, {1, 2}))


def test_a_collective_that_is_left_out_late_is_named() -> None:
    name = "broadcast from rank 0"
    assert ONLY_0.format(name) in told(left_out.program(name, {0}, before=40))


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (
            left_out.meeting,
            "worker:1 and worker:2 wait in init_process_group for worker:0, which has returned",
        ),
        (left_out.sends, "worker:0 waits in isend to rank 1 for worker:1, which has returned"),
        (
            left_out.receives,
            "worker:1 waits in recv from any rank for worker:0 and worker:2, which have returned",
        ),
        (
            left_out.in_a_smaller_group,
            "worker:0 waits in broadcast from rank 0 for worker:1, which has returned",
        ),
        (
            left_out.our_own,
            "worker:0 and worker:2 wait in all_reduce by ring for worker:1, which has returned",
        ),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_groups_messages_and_our_own_collectives_are_named_as_well(
    function: Callable[[Task], Any], words: str
) -> None:
    assert words in told(function)


@pytest.mark.sample(3)
@pytest.mark.parametrize("name", ["broadcast from rank 0", "reduce to rank 0", "barrier"])
@pytest.mark.parametrize("root", [True, False])
def test_the_check_of_an_exercise_names_it_too(name: str, root: bool) -> None:
    def answer(module: Any) -> None:
        import torch.distributed as dist

        if (dist.get_rank() == 0) == root:
            left_out.call(name)

    verdict = check("same_start", answer)
    waits, gone = (0, 1) if root else (1, 0)
    assert verdict.state == "not yet" and verdict.text.startswith("With 2 ranks it never ends")
    assert f"rank {waits} waits in {name}" in verdict.text
    assert f"for rank {gone}, which has returned" in verdict.text
