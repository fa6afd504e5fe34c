"""A run that stands still: who holds it up is named within moments, and nobody is who goes on."""

import io
import os
import re
import signal
import time
from collections.abc import Callable
from typing import Any

import pytest
from rich.console import Console

from course_lib import Run, start
from course_lib.cluster.task import Task
from course_lib.commands.watch import frame
from course_lib.errors import Stalled, TaskFailed
from course_lib.record.events import Lifecycle, Phase
from course_lib.record.saved import SavedRun
from course_lib.widgets.board.view import View
from tests import own_collectives
from tests.helpers import until
from tests.screens import says

SOON = 40.0  # seconds: the frameworks themselves take 10 s or 60 s, or never say a word


def pid_of(run: Run, task: str) -> int:
    return run.trace.all(Lifecycle, task, state="starting")[-1].pid


def stalled(run: Run) -> Stalled:
    """What `wait` raises, soon and not because its time is over."""
    began = time.monotonic()
    with pytest.raises(Stalled) as caught:
        run.wait(60)
    assert time.monotonic() - began < SOON
    assert caught.value.standing and run.state == "running"
    return caught.value


def printed(view: View) -> str:
    """What `lockstep watch` prints, on a terminal so wide that no line is broken."""
    console = Console(width=200, file=io.StringIO())
    console.print(frame(view, 200))
    return console.file.getvalue()  # type: ignore[attr-defined]


def steps_done(run: Run) -> int:
    return max((p.step for p in run.trace.all(Phase)), default=-1)


@pytest.mark.parametrize(
    ("strategy", "framework", "victim"),
    [
        ("multi_worker_mirrored", "torch", "worker:1"),
        ("multi_worker_mirrored", "tensorflow", "worker:0"),
        ("parameter_server", "torch", "ps:0"),
        ("parameter_server", "tensorflow", "chief:0"),
        ("sync_parameter_server", "tensorflow", "ps:0"),
    ],
)
def test_a_task_that_is_stopped_from_outside_is_named_and_the_run_goes_on_when_it_does(
    strategy: str, framework: str, victim: str
) -> None:
    fields: dict[str, Any] = {"workers": 2, "steps": 1_000_000, "framework": framework}
    with start(strategy, **fields) as run:
        until(lambda: steps_done(run) > 20, "some steps")
        os.kill(pid_of(run, victim), signal.SIGSTOP)
        error = stalled(run)
        assert next(iter(error.waiting_for)) == victim
        cure = f"(run.resume('{victim}') lets it go on)"
        assert error.waiting_for[victim].startswith("is paused") and cure in str(error)
        others = [task for task in run.spec.tasks if task.startswith(("chief", "worker"))]
        waiting = [task for task in others if task != victim and task in error.waiting_for]
        assert all(error.does[task].awaits == (victim,) for task in waiting)
        assert waiting or victim == "chief:0"
        os.kill(pid_of(run, victim), signal.SIGCONT)
        before = steps_done(run)
        until(lambda: steps_done(run) > before + 5, "steps after the pause")
        assert run.standstill() is None


def test_stragglers_and_long_hiccups_are_no_standstill() -> None:
    fields: dict[str, Any] = {"jitter": "one_in:2:1300ms", "slow": {"worker:1": 3}, "steps": 4}
    run = start("multi_worker_mirrored", framework="torch", workers=2, device_ms=5, **fields)
    run.wait(60)
    assert run.state == "finished"


def test_a_straggler_beside_a_paused_task_that_others_do_not_need_is_no_standstill() -> None:
    fields: dict[str, Any] = {"workers": 3, "steps": 1_000_000, "device_ms": 5}
    with start("parameter_server", framework="torch", **fields) as run:
        until(lambda: steps_done(run) > 20, "some steps")
        run.pause("worker:2")
        with pytest.raises(Stalled) as caught:
            run.wait(3)
        assert not caught.value.standing


AT = r"at own_collectives\.py:\d+"


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (
            own_collectives.other_shape,
            rf"worker:2 calls all_reduce of \(10, 4\) float32 {AT} as number 2 of its group;"
            rf" worker:0 and worker:1 call all_reduce of \(10, 5\) float32 {AT} instead\. All",
        ),
        (
            own_collectives.waits_for_async,
            rf"worker:2 calls all_reduce of \(10, 4\) float32 {AT} as number 1",
        ),
        (
            own_collectives.other_collective,
            rf"worker:1 calls barrier {AT} as number 1 of its group; worker:0 and worker:2 call"
            rf" all_reduce of \(10,\) float32 {AT} instead",
        ),
        (
            own_collectives.another_root,
            rf"worker:2 calls broadcast from rank 0 of \(10,\) float32 {AT} as number 1 of its"
            r" group; worker:1 calls broadcast from rank 2",
        ),
        (
            own_collectives.gathers_more,
            rf"worker:2 calls all_gather of \(5,\) float32 {AT} as number 1",
        ),
        (
            own_collectives.receives_less,
            rf"worker:1 calls recv from rank 0 of \(4,\) float32 {AT} as number 1 of its group;"
            rf" worker:0 calls send to rank 1 of \(8,\) float32 {AT} instead",
        ),
        (
            own_collectives.one_returns,
            rf"worker:0 and worker:1 wait in all_reduce of \(10,\) float32 {AT} for worker:2, which"
            r" has returned\. All ranks",
        ),
        (
            own_collectives.one_ends_its_group,  # the others' connections may end with it
            rf"worker:0 and worker:1 wait in all_reduce of \(10,\) float32 {AT} for worker:2, which"
            r" has returned\. All ranks",
        ),
        (
            own_collectives.receive_from_each_other,
            rf"worker:0 waits in recv from rank 1 of \(4,\) float32 {AT} for worker:1;"
            rf" worker:1 waits in recv from rank 0 of \(4,\) float32 {AT} for worker:0;"
            rf" worker:2 waits in barrier {AT} for worker:0 and worker:1",
        ),
        (
            own_collectives.groups_in_another_order,
            rf"worker:0 waits in all_reduce of \(10,\) float32 {AT} for worker:1;"
            rf" worker:1 waits in all_reduce of \(10,\) float32 {AT} for worker:0",
        ),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_calls_that_can_never_end_are_named_with_rank_shape_and_line(
    function: Callable[[Task], Any], words: str
) -> None:
    with start(function, framework="torch", workers=3) as run:
        began = time.monotonic()
        # gloo ends a process to which more is sent than it expects, and says nothing otherwise
        with pytest.raises((Stalled, TaskFailed), match=words):
            run.wait(60)
        assert time.monotonic() - began < SOON


@pytest.mark.parametrize(
    ("function", "workers"),
    [
        (own_collectives.ddp_returns_early, 2),
        (own_collectives.ddp_ends_its_group_early, 2),
        (own_collectives.watched_ddp_returns_early, 2),
        (own_collectives.batch_norm_returns_early, 2),
        (own_collectives.batch_norm_returns_early_but_rank_0, 3),
        (own_collectives.ddp_leaves_early, 2),
        (own_collectives.fsdp_returns_early, 2),
        (own_collectives.last_stage_returns_early, 2),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_exchanges_of_ddp_fsdp_and_pipelines_that_wait_for_who_has_returned_are_named(
    function: Callable[[Task], Any], workers: int
) -> None:
    with start(function, framework="torch", workers=workers) as run:
        error, view = stalled(run), View({"it": run})
        view.update()
        said = re.sub(r"own_collectives\.py:\d+", "{}", error.words)
        says("standstill", function.__name__.replace("_", " "), said)
        assert f"{error.words}. All ranks" in str(error)
        still = run.standstill()
        assert still and still.words == error.words
        assert view.sides[0].still and view.sides[0].still.words == error.words


def test_joined_ranks_and_long_passes_are_no_standstill_and_join_gives_the_same_weights() -> None:
    import torch

    start(own_collectives.slow_ddp, framework="torch", workers=2).wait(60)
    values = start(own_collectives.joined_ddp, framework="torch", workers=2).wait(60).values
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    draws = [torch.Generator().manual_seed(rank) for rank in (0, 1)]
    for ranks in (2, 2, 1, 1):  # one process; a gradient is divided by two also if one is missing
        optimizer.zero_grad()
        for draw in draws[-ranks:]:
            (model(torch.randn(8, 4, generator=draw)).square().mean() / 2).backward()
        optimizer.step()
    plain = [x for p in model.parameters() for x in p.flatten().tolist()]
    assert values["worker:0"] == values["worker:1"] == pytest.approx(plain, rel=1e-5)


def test_a_rank_that_does_not_come_is_told_when_the_wait_is_over_and_not_before() -> None:
    words = (
        rf"worker:0 and worker:1 are in all_reduce of \(10,\) float32 {AT};"
        r" worker:2 has entered nothing for [\d.]+ s"
    )
    with (
        start(own_collectives.never_comes, framework="torch", workers=3) as run,
        pytest.raises(Stalled, match=words) as caught,
    ):
        run.wait(4)
    assert not caught.value.standing


def test_watched_functions_return_and_raise_what_they_do_without() -> None:
    def ring(task: Task) -> Any:
        import torch
        import torch.distributed as dist

        dist.init_process_group("gloo")
        after, before = (task.index + 1) % 3, (task.index - 1) % 3
        got = torch.zeros(2)
        operations = [
            dist.P2POp(dist.isend, torch.full((2,), float(task.index)), after),
            dist.P2POp(dist.irecv, got, before),
        ]
        for work in dist.batch_isend_irecv(operations):
            work.wait()
        with pytest.raises(ValueError, match="Invalid"):
            dist.send(got, dst=task.index)
        sum_ = torch.ones(3)
        work = dist.all_reduce(sum_, async_op=True)
        assert work.wait() and dist.all_reduce.__name__ == "all_reduce"
        names = [None] * 3
        dist.all_gather_object(names, task.name)
        group = dist.new_group([0, 1])
        dist.all_reduce(sum_, group=group)  # not on rank 2, which is not in it
        source = (
            dist.recv(got) if task.index == 0 else dist.send(got, dst=0) if task.index == 1 else 0
        )
        return got.tolist(), sum_.tolist(), names, source

    values = start(ring, framework="torch", workers=3).wait(60).values
    tasks = ["worker:0", "worker:1", "worker:2"]
    assert values == {
        "worker:0": ([0.0, 0.0], [6.0] * 3, tasks, 1),
        "worker:1": ([0.0, 0.0], [6.0] * 3, tasks, None),
        "worker:2": ([1.0, 1.0], [3.0] * 3, tasks, 0),
    }


def test_who_only_has_the_directory_sees_the_standstill_and_its_end() -> None:
    with start("multi_worker_mirrored", framework="torch", workers=2, steps=1_000_000) as run:
        until(lambda: steps_done(run) > 20, "some steps")
        saved = SavedRun(run.run_dir)
        view = View({"it": saved})

        def still() -> bool:
            view.update()
            return view.sides[0].still is not None

        run.pause("worker:1")
        says = (
            r"standing still for [\d.]+ s: worker:0 waits in step \d+ for worker:1, which is paused"
        )
        until(lambda: still() and re.search(says, printed(view)), "the standstill")
        run.resume("worker:1")
        until(lambda: not still(), "steps after the pause")
    assert saved.pulse() is None and not run.files.beats.exists()
    view.update()
    assert [mark.word for mark in view.sides[0].digest.life.marks()] == ["pause", "resume"]
