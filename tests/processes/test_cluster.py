"""Real processes: functions of a learner's own on a cluster, everything that can go wrong with
them, and nothing left afterwards.
"""

import contextlib
import itertools
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest
from jupyter_client.manager import start_new_kernel

from course_lib import Run, start
from course_lib.cluster import nursery
from course_lib.errors import LockstepError, SpecError, Stalled, StartTimeout, TaskFailed
from course_lib.record.events import Lifecycle, Metric, Phase
from course_lib.record.saved import SavedRun
from tests.conftest import gone_within
from tests.helpers import losses_of, until

# What an interrupt says.
END_IT = "from course_lib import Run; Run.going()[-1].stop()"
GOES_ON = "The run goes on, as long as this Python process does."
WORD = f"{GOES_ON} This ends it: {END_IT}"


def alive(run: Any) -> list[int]:
    """Pids of a run's tasks that still exist."""
    pids = [e.pid for e in run.trace.all(Lifecycle, state="starting")]
    return [
        pid
        for pid in pids
        if psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    ]


def failure(function: Callable[..., Any], **fields: Any) -> TaskFailed:
    """The failure that a run of `function` on two workers ends with; all its processes must be
    gone.
    """
    run = start(function, **{"workers": 2, **fields})
    with pytest.raises(TaskFailed) as caught:
        run.wait(60)
    assert run.state == "failed"
    assert alive(run) == []
    return caught.value


def test_a_function_from_a_cell_runs_on_every_worker(start_method: str) -> None:
    secret = 42  # a closure, as in a notebook

    def work(task):
        print("hello from", task.name)
        return task.name, secret, os.getpid()

    run = start(work, workers=3)
    result = run.wait(60).result
    assert [result[t][:2] for t in ("worker:0", "worker:1", "worker:2")] == [
        (f"worker:{i}", 42) for i in range(3)
    ]
    assert len({pid for _, _, pid in result.values()} | {os.getpid()}) == 4
    assert run.log("worker:1") == "hello from worker:1"
    assert run.plan.start_method == start_method
    assert alive(run) == []


def test_start_returns_before_the_tasks_run() -> None:
    def work(task):
        until((task.run_dir / "go").exists, "start() to return")

    run = start(work, workers=2)
    assert run.state in ("starting", "running")
    (run.run_dir / "go").touch()
    assert run.wait(60).state == "finished"


def test_jobs_have_their_own_functions_and_a_parameter_server_ends_with_the_workers() -> None:
    def serve():
        threading.Event().wait()

    def work(task):
        return sorted(task.addresses), task.rank

    result = start({"worker": work, "ps": serve}, workers=2, ps=1).wait(30).result
    assert result == {"worker:0": (["ps", "worker"], 0), "worker:1": (["ps", "worker"], 1)}


def test_a_parameter_server_has_time_to_return_when_the_workers_are_done() -> None:
    def serve(task: Any) -> str:
        until((task.run_dir / "done").exists, "the worker")
        time.sleep(0.3)
        return "served"

    run = start({"worker": lambda task: (task.run_dir / "done").touch(), "ps": serve}, ps=1)
    assert run.wait(30).result["ps:0"] == "served"
    assert set(run.tasks.values()) == {"done"}


def test_a_job_without_a_function_is_refused_with_the_call_that_has_one() -> None:
    def work() -> None: ...

    for fields, says in (
        ({"ps": 1}, 'ps:0, and each job has a function: start({"worker": work, "ps": ...}, ...)'),
        ({"chief": True}, 'start({"chief": ..., "worker": work}, ...)'),
        (
            {"chief": True, "ps": 2},
            "chief:0, worker:0, worker:1, ps:0, ps:1, and each job has a function",
        ),
    ):
        with pytest.raises(SpecError) as caught:
            start(work, workers=2, **fields)
        assert says in str(caught.value)


def test_a_job_that_has_a_function_has_a_task() -> None:
    def serve() -> None:
        threading.Event().wait()

    def train(task: Any) -> list[str]:
        return list(task.spec.tasks)

    workers = ["worker:0", "worker:1"]
    for jobs, fields, tasks in (
        ({"chief": train, "ps": serve}, {"ps": 1}, ["chief:0", *workers, "ps:0"]),
        ({"chief": train}, {}, ["chief:0", *workers]),
        ({"chief": train, "ps": serve}, {"ps": 2}, ["chief:0", *workers, "ps:0", "ps:1"]),
    ):
        run = start({"worker": serve, **jobs}, workers=2, **fields).wait(60)
        assert run.result == {"chief:0": tasks}
    run = start({"worker": train, "ps": serve}, workers=2).wait(60)
    assert run.result["worker:1"] == [*workers, "ps:0"]


@pytest.mark.parametrize(("job", "value"), [("chief", False), ("ps", 0)])
def test_a_function_for_a_job_that_is_left_out_is_refused_with_the_cure(
    job: str, value: int
) -> None:
    with pytest.raises(SpecError) as caught:
        start({"worker": print, job: print}, **{job: value})
    assert caught.value.field == "start"
    assert caught.value.allowed.endswith('each job has a function: start({"worker": print}, ...)')


def test_no_task_is_said_to_run_when_the_run_has_been_stopped() -> None:
    with start(lambda: threading.Event().wait(), workers=2) as run:
        run.wait_running(30)
    assert run.tasks == {"worker:0": "stopped", "worker:1": "stopped"}


def test_a_program_with_a_chief_ends_when_its_function_has_returned() -> None:
    def serve():
        threading.Event().wait()

    programs = {"chief": lambda: "trained", "worker": serve, "ps": serve}
    run = start(programs, workers=2).wait(60)
    assert (run.state, run.result) == ("finished", {"chief:0": "trained"})


def test_a_task_that_is_slowed_or_paused_before_it_arrives_has_not_arrived(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("LOCKSTEP_START", "spawn")  # a second's time before they arrive
    with start(lambda: threading.Event().wait(), workers=2) as run:
        for task in run.spec.tasks:
            run.slow(task, 2)
        run.wait_running(60)
        assert run.tasks == dict.fromkeys(run.spec.tasks, "running")
        assert len(run.trace.all(Lifecycle, state="running")) == 2
    monkeypatch.setattr("course_lib.cluster.run.START", 3)
    run = start(lambda: None, workers=2)
    run.pause("worker:0")
    with pytest.raises(StartTimeout) as caught:
        run.wait(30)
    assert "worker:0" in caught.value.waiting_for
    until(lambda: alive(run) == [], "the end of all tasks")


def test_an_exception_comes_back_with_task_step_traceback_and_log(start_method: str) -> None:
    def work(task):
        print("about to fail")
        if task.index == 1:
            with task.phase("compute", 7):
                raise ValueError("the seventh step went wrong")
        time.sleep(30)

    error = failure(work)
    assert (error.task, error.step, error.reason) == (
        "worker:1",
        7,
        "ValueError: the seventh step went wrong",
    )
    assert "in work" in error.remote_traceback
    assert "process.py" not in error.remote_traceback
    assert "about to fail" in error.log_tail


def test_the_first_failure_is_the_one_shown() -> None:
    def work(task):
        if task.index != 2:
            first = task.run_dir / "tasks" / "worker-2" / "error.json"
            until(first.exists, "the first failure")
        raise RuntimeError(f"{task.name} gave up")

    assert failure(work, workers=4).task == "worker:2"


def test_a_long_traceback_is_capped() -> None:
    def work():
        raise ValueError("x" * 100_000)

    assert len(str(failure(work))) < 15_000


@pytest.mark.parametrize(
    ("function", "says"),
    [
        (lambda: threading.Lock(), "cannot be sent back"),
        (lambda: sys.exit(3), "sys.exit(3)"),
        (lambda: sys.exit(), "sys.exit()"),
        (lambda: os._exit(5), "exit code 5"),
        (lambda: os.kill(os.getpid(), signal.SIGSEGV), "SIGSEGV"),
        (lambda: os.kill(os.getpid(), signal.SIGKILL), "SIGKILL"),
        (lambda one, two: None, "missing 1 required"),
    ],
    ids=[
        "unpicklable",
        "sys.exit(3)",
        "sys.exit()",
        "os._exit",
        "segfault",
        "killed",
        "wrong signature",
    ],
)
def test_a_function_that_ends_badly_is_told_in_words(
    function: Callable[..., Any], says: str
) -> None:
    assert says in failure(function).reason


def test_an_endless_function_stalls_a_wait_and_obeys_stop() -> None:
    def work(task):
        with task.phase("compute", 3):
            pass
        while True:
            pass

    run = start(work, workers=2)
    until(lambda: len(run.trace.all(Phase)) == 2, "a step of each")
    with pytest.raises(Stalled) as caught:
        run.wait(0.2)
    assert [*caught.value.does] == ["worker:0", "worker:1"]
    assert all("'compute' of step 3" in words for words in caught.value.waiting_for.values())
    assert run.stop().state == "stopped"
    assert alive(run) == []
    assert run.result == {}  # of what the tasks were to return


def test_a_stopped_run_has_a_result_as_far_as_it_came_live_and_saved() -> None:
    """With the same keys as that of a run that was left to finish."""
    fields: dict[str, Any] = {"framework": "torch", "workers": 2}
    whole = start("multi_worker_mirrored", steps=3, **fields).wait(60).result
    assert (whole["stopped"], whole["steps_done"], whole["examples"]) == (False, 3, 3 * 128)
    early = start("multi_worker_mirrored", **fields).stop().result
    assert (early["stopped"], early["steps_done"], early["final_loss"]) == (True, 0, None)
    run = start("multi_worker_mirrored", steps=100_000, **fields)
    with pytest.raises(LockstepError, match=r"it is (starting|running)"):
        _ = run.result
    until(lambda: len(run.trace.all(Metric, name="loss")) > 40, "steps of both")
    found = run.stop().result
    assert found["stopped"] and 20 <= found["steps_done"] < 100_000 == found["steps"]
    assert found["examples"] == found["steps_done"] * 128
    assert found["final_loss"] == losses_of(run.trace)[-1]
    assert set(whole) == set(early) == set(found) == set(SavedRun(run.run_dir).result)
    assert (found["test_accuracy"], found["diverged"], found["faults"]) == (None, None, [])
    assert json.loads(json.dumps(early, allow_nan=False)) == SavedRun(early["run_dir"]).result


def test_stop_before_the_tasks_are_there_is_kept() -> None:
    run = start(lambda: time.sleep(60), workers=2)
    with pytest.raises(TypeError):
        run.stop("worker:1")  # type: ignore[misc]  # a run is stopped, not a task of it
    assert run.state != "stopped"
    assert run.stop(timeout=30).state == "stopped"
    assert alive(run) == []


def test_orders_given_before_the_tasks_are_there_are_kept() -> None:
    def work(task):
        for step in range(20):
            with task.phase("compute", step):
                task.pace()

    run = start(work, workers=2, device_ms=5)
    run.slow("worker:1", 10)
    run.wait(60)
    assert [p.end - p.start > 0.04 for p in run.trace.all(Phase, "worker:1")][-1]
    assert [e.task for e in run.trace.all(Lifecycle, state="slowed")] == ["worker:1"]


def test_an_order_to_a_run_that_is_over_is_refused() -> None:
    run = start(lambda: 1, workers=1).wait(60)
    with pytest.raises(LockstepError, match=r"late: .* finished"):
        run.pause("worker:0")


def test_when_a_task_was_paused_the_failure_of_those_that_waited_says_so() -> None:
    def work(task):
        until((task.run_dir / "paused").exists, "the pause")
        raise TimeoutError("no answer")

    run = start(work, workers=2).wait_running(30)
    run.pause("worker:0")
    until(lambda: run.trace.all(Lifecycle, state="paused"), "the pause")
    (run.run_dir / "paused").touch()
    with pytest.raises(
        TaskFailed,
        match=(
            r"paused, and worker:1 .*TimeoutError:"
            r" no answer"
        ),
    ):
        run.wait(30)


@pytest.mark.parametrize(
    ("what", "says"),
    [
        (4, "a strategy's name"),
        ({"woker": len}, "did you mean 'worker'"),
        ({}, "has a function"),
    ],
)
def test_what_cannot_be_started_is_refused(what: Any, says: str) -> None:
    with pytest.raises(SpecError, match=says):
        start(what)


def test_a_kill_is_named_as_the_cause() -> None:
    run = start(lambda: time.sleep(60), workers=3).wait_running(30)
    run.kill("worker:1")
    with pytest.raises(TaskFailed, match=r"worker:1 .*killed by run\.kill\(\)"):
        run.wait(30)
    assert [e.task for e in run.trace.all(Lifecycle, state="killed")] == ["worker:1"]


@pytest.mark.skipif(sys.platform != "linux", reason="Linux alone has such names")
def test_a_process_has_the_name_of_its_task() -> None:
    def comm() -> str:
        return Path("/proc/self/comm").read_text().strip()

    run = start({"worker": comm, "ps": comm}, framework="python", workers=2, ps=1).wait(60)
    assert run.result == {"worker:0": "worker:0", "worker:1": "worker:1", "ps:0": "ps:0"}


def test_pause_freezes_a_task_and_resume_lets_it_go_on() -> None:
    def count(task):
        for step in itertools.count():
            with task.phase("compute", step):
                time.sleep(0.005)

    with start(count, workers=2) as run:
        until(lambda: run.trace.all(Phase, "worker:1"), "the first steps")
        run.pause("worker:1")
        until(lambda: run.trace.all(Lifecycle, state="paused"), "the pause")
        before = len(run.trace.all(Phase, "worker:1"))
        time.sleep(0.5)
        assert len(run.trace.all(Phase, "worker:1")) == before
        with pytest.raises(Stalled, match=r"is paused.* \(run\.resume\('worker:1'\)"):
            run.wait(0.1)
        run.resume("worker:1")
        until(lambda: len(run.trace.all(Phase, "worker:1")) > before, "steps after the pause")
        run.pause("worker:0")  # and a paused task can be stopped
    assert run.state == "stopped"
    assert alive(run) == []


def test_a_task_that_somebody_else_stops_is_said_to_be_paused() -> None:
    with start(lambda: time.sleep(60), workers=2) as run:
        run.wait_running(30)
        [process] = [e.pid for e in run.trace.all(Lifecycle, "worker:1", state="starting")]
        os.kill(process, signal.SIGSTOP)
        until(lambda: run.trace.all(Lifecycle, state="paused"), "the pause")
        with pytest.raises(Stalled, match=r"is paused.* \(run\.resume\('worker:1'\) lets"):
            run.wait(0.1)
        run.resume("worker:1")
        os.kill(process, signal.SIGSTOP)
        os.kill(process, signal.SIGCONT)
        until(lambda: "paused" not in str(run.waiting_for()), "the task to go on")


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere there is no zygote to wait for")
def test_a_run_stops_at_once_while_its_framework_is_still_imported() -> None:
    nursery.close()
    nursery.warm("python")
    zygote = nursery._zygotes["python"].process
    zygote.send_signal(signal.SIGSTOP)  # an import that takes long
    try:
        run = start(lambda: 1, workers=2)
        assert run.stop(timeout=5).result == {}
        assert run not in Run.going()
        assert not any(run.run_dir.glob("tasks/*/tmp"))
    finally:
        zygote.send_signal(signal.SIGCONT)
    assert start(lambda: 1, workers=2).wait(60).result == {"worker:0": 1, "worker:1": 1}
    assert run.trace.all(Lifecycle) == []  # nor was it started later


def test_runs_may_be_started_by_several_threads_at_once(start_method: str) -> None:
    nursery.close()
    with ThreadPoolExecutor(6) as threads:
        found = threads.map(lambda n: start(lambda: n, workers=1).wait(60).result, range(6))
        assert list(found) == [{"worker:0": n} for n in range(6)]


@pytest.mark.sample(2)
def test_a_run_directory_may_have_any_name(start_method: str, tmp_path: Path) -> None:
    path = tmp_path / "größter Versuch 日本語" / ("n" * 120)
    with start(
        "multi_worker_mirrored", framework="torch", steps=2, all_reduce="ring", run_dir=path
    ) as run:
        run.wait(120)
    assert SavedRun(path).result == run.result


@pytest.mark.parametrize("framework", ["tensorflow", "torch"])
def test_workers_of_a_synchronous_run_are_said_to_wait_for_the_one_that_is_paused(
    framework: str,
) -> None:
    with start("multi_worker_mirrored", workers=3, steps=100_000, framework=framework) as run:
        until(
            lambda: len(run.wait_running(60).trace.all(Phase, "worker:0", what="apply")) > 5,
            "the first steps",
        )
        run.pause("worker:2")
        until(
            lambda: [does.awaits for does in run.waiting_for().values()][1:] == [("worker:2",)] * 2,
            "the others to wait",
        )
        with pytest.raises(Stalled) as caught:
            run.wait(0.1)
        # one worker may leave an exchange, and come to the next step, before another
        assert re.search(
            r"worker:0 and worker:1 wait in steps? \d+( and \d+)? for worker:2, which is paused"
            r" \(run\.resume\('worker:2'\) lets it go on\)",
            str(caught.value),
        )
        steps = max(p.step for p in run.trace.all(Phase))
        said = [int(n) for n in re.findall(r"in step (\d+)", str(caught.value.waiting_for))]
        assert all(abs(step - steps) <= 1 for step in said)
        run.resume("worker:2")
        until(lambda: run.trace.all(Phase, "worker:0", step=steps + 3), "steps after the pause")


def test_warnings_of_torch_at_its_start_are_not_in_a_tasks_log() -> None:
    def meet(task):
        import torch.distributed as dist

        dist.init_process_group("gloo")
        print("met")

    run = start(meet, framework="torch", workers=2).wait(60)
    assert [run.log(task) for task in run.tasks] == ["met", "met"]


def test_slow_acts_on_a_running_task() -> None:
    def work(task):
        for step in itertools.count():
            with task.phase("compute", step):
                task.pace()

    with start(work, workers=2, device_ms=10).wait_running(30) as run:

        def seconds():
            return [p.end - p.start for p in run.trace.all(Phase, "worker:1")]

        # at full speed a busy machine makes some steps long, slowed none is short
        until(lambda: any(step < 0.05 for step in seconds()), "a step at full speed")
        run.slow("worker:1", 5)
        until(lambda: all(step >= 0.05 for step in seconds()[-5:]), "five slow steps")
        count = len(seconds())
        until(lambda: len(seconds()) > count + 5, "more steps")
        assert min(seconds()[count:]) >= 0.05


@pytest.mark.parametrize("order", ["kill", "pause", "resume"])
def test_orders_to_a_task_that_is_not_there_are_refused(order: str) -> None:
    with (
        start(lambda: time.sleep(5), workers=2) as run,
        pytest.raises(SpecError, match="worker:0 to worker:1"),
    ):
        getattr(run, order)("worker:9")


# In a process of its own: do something once its main thread waits in run.wait().
WHILE_IT_WAITS = """
import os, signal, sys, threading, time, traceback
from course_lib import Run, start

def while_it_waits(do):
    def watch():
        main = threading.main_thread().ident
        names = lambda: [f.name for f in traceback.extract_stack(sys._current_frames()[main])]
        while names()[-3:] != ["_await", "wait", "wait"]:  # of Run, Event, Condition
            time.sleep(0.01)
        do()
    threading.Thread(target=watch, daemon=True).start()
"""


def test_an_interrupt_ends_the_wait_and_not_the_run_and_says_so(
    tmp_path: Path,
) -> None:
    script = tmp_path / "cell.py"
    script.write_text(
        WHILE_IT_WAITS + "def work(task):\n"
        "    while not (task.run_dir / 'go').exists():\n        time.sleep(0.02)\n"
        "    return 'whole'\n"
        "run = start(work, workers=2).wait_running(60)\n"
        # as Jupyter does: to the whole group
        "while_it_waits(lambda: os.killpg(0, signal.SIGINT))\n"
        "try:\n    run.wait(30)\nexcept KeyboardInterrupt as interrupt:\n    print(run.state,"
        " Run.going() == [run], interrupt)\n"
        "(run.run_dir / 'go').touch()\n"
        "print(run.wait(30).result, Run.going())\n"
        "try:\n    with start(lambda: time.sleep(60)) as run:\n"
        "        while_it_waits(lambda: os.killpg(0, signal.SIGINT))\n        run.wait(30)\n"
        "except KeyboardInterrupt as interrupt:\n    print(run.state, interrupt)\n"
    )
    out = subprocess.run(
        [sys.executable, str(script)],
        capture_output=True,
        text=True,
        timeout=90,
        start_new_session=True,
    )
    assert out.stdout.splitlines() == [
        f"running True {GOES_ON}",  # nobody can type in a script
        "{'worker:0': 'whole', 'worker:1': 'whole'} []",
        "stopped The with block ends, and stops the run.",
    ], out.stderr


def reply_to(client: Any, message: str) -> dict[str, Any]:
    """What a kernel says when it is done with a cell."""
    while (reply := client.get_shell_msg(timeout=60))["parent_header"].get("msg_id") != message:
        pass
    return dict(reply["content"])


def test_a_cell_that_is_interrupted_shows_the_word_and_what_it_says_ends_a_run_without_a_name(
    home: Path,
) -> None:
    manager, client = start_new_kernel(env={**os.environ, "LOCKSTEP_HOME": str(home)})
    try:
        cell = client.execute(
            f"{WHILE_IT_WAITS}\nwhile_it_waits(lambda: open({str(home / 'waits')!r}, 'w'))\n"
            "start(lambda: time.sleep(120), workers=2).wait(90)"
        )
        until((home / "waits").exists, "the cell to wait")
        manager.interrupt_kernel()
        reply = reply_to(client, cell)
        assert (reply["ename"], reply["evalue"]) == ("Interrupted", WORD)
        assert "course_lib/" not in "".join(reply["traceback"])
        assert WORD in reply["traceback"][-1]
        ended = {"status": "aborted"}  # what a kernel answers for a moment after an error
        while ended["status"] == "aborted":
            asked = client.execute(END_IT, user_expressions={"left": "Run.going()"})
            ended = reply_to(client, asked)
        assert ended["status"] == "ok", ended
        assert ended["user_expressions"]["left"]["data"]["text/plain"] == "[]"
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)
    assert not gone_within(str(home), 30.0)


def test_what_a_task_starts_goes_with_it() -> None:
    def work():
        return subprocess.Popen(["sleep", "300"], start_new_session=True).pid

    pids = start(work, workers=2).wait(30).result.values()
    assert not any(
        psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
        for pid in pids
    )


def test_tasks_that_never_arrive_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCKSTEP_START", "spawn")
    monkeypatch.setattr("course_lib.cluster.run.START", 0.05)
    run = start(lambda: None, workers=2)
    with pytest.raises(StartTimeout) as caught:
        run.wait(30)
    assert caught.value.waiting_for == ("worker:0", "worker:1")


def test_an_import_that_takes_too_long_is_named_and_no_task(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    nursery.close()
    monkeypatch.setattr("course_lib.cluster.run.START", 0.01)
    run = start(lambda: None, workers=2)
    with pytest.raises(StartTimeout, match=r"Call warm\('python'\)") as caught:
        run.wait(30)
    assert (caught.value.importing, caught.value.waiting_for) == ("python", ())


def test_a_stop_that_runs_out_of_time_names_the_tasks_that_have_not_ended() -> None:
    run = start(lambda: time.sleep(60), workers=2).wait_running(30)
    with pytest.raises(Stalled, match=r"stop .* worker:0 and worker:1"):
        run.stop(timeout=0)
    run.stop()


def test_runs_side_by_side_do_not_collide() -> None:
    def meet(task):
        import torch.distributed as dist

        dist.init_process_group("gloo")
        numbers = [None] * dist.get_world_size()
        dist.all_gather_object(numbers, task.rank + task.spec.seed)
        return numbers

    runs = [start(meet, framework="torch", workers=2, seed=100 * i) for i in range(4)]
    assert [run.wait(60).values["worker:0"] for run in runs] == [
        [100 * i, 100 * i + 1] for i in range(4)
    ]


def test_metrics_of_a_cell_function_reach_the_trace() -> None:
    def work(task):
        task.metric("height", 1.5, step=0, samples=8)

    run = start(work, workers=1).wait(30)
    (metric,) = run.trace.all(Metric)
    assert (metric.task, metric.name, metric.value, metric.samples) == (
        "worker:0",
        "height",
        1.5,
        8,
    )


def test_the_run_directory_is_the_record(tmp_path: Path) -> None:
    run = start(lambda: 1, workers=2, run_dir=tmp_path / "mine").wait(30)
    assert run.run_dir == tmp_path / "mine"
    names = {str(p.relative_to(run.run_dir)) for p in run.run_dir.rglob("*")}
    assert {
        "spec.json",
        "machine.json",
        "run.json",
        "result.json",
        "lifecycle.jsonl",
        "tasks/worker-1/events.jsonl",
    } <= names
    with pytest.raises(SpecError, match="not empty"):
        start(lambda: 1, run_dir=tmp_path / "mine")


def sockets() -> list[tuple[str, str, str]]:
    """Family, own name and name of the peer of all sockets of this process."""
    found = []
    for link in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            if str(link.readlink()).startswith("socket:"):
                with socket.socket(fileno=os.dup(int(link.name))) as each:
                    names = each.getsockname(), each.getpeername()
                    found.append((each.family.name, *map(str, names)))
    return found


def test_orders_go_through_sockets_without_an_address() -> None:
    run = start(lambda: (sockets(), time.sleep(1))[0], workers=2).wait_running(30)
    assert run._channel
    ours = run._channel.sock
    assert (ours.family, ours.getsockname(), ours.getpeername()) == (socket.AF_UNIX, "", "")
    for theirs in run.wait(30).values.values():
        assert theirs and set(theirs) == {("AF_UNIX", "", "")}


def test_a_run_directory_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SpecError, match="run_dir="):
        start(lambda: 1, run_dir=tmp_path / "file" / "run")


def test_the_zygote_has_one_thread_when_it_has_imported_a_framework() -> None:
    for framework in ("tensorflow", "torch", "python"):
        start(lambda: 1, workers=1, framework=framework).wait(120)
        assert psutil.Process(nursery._zygotes[framework].process.pid).num_threads() == 1
