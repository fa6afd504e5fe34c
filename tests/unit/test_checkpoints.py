"""Checkpoints: whole or not there at all; and only a run that is alike goes on from one."""

import os
import random
import signal
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from course_lib.errors import SpecError
from course_lib.record import checkpoints
from course_lib.record.rundir import Plan, RunDir
from course_lib.spec.run_spec import RunSpec
from course_lib.strategies import saving
from course_lib.strategies.optimizers import LossScale
from course_lib.workloads import load, order
from tests.helpers import examples_of, spec_for

NUMBERS = {"samples": 5120, "updates": 40}


def leave(
    files: RunDir,
    steps: int,
    task: str = "worker:0",
    tasks: Sequence[str] = ("worker:0",),
    attempt: int = 0,
    facts: dict[str, Any] | None = None,
    size: int = 1000,
) -> Path:
    """Save one part, with bytes that its step decides."""
    part = checkpoints.part_of(files, task, steps, attempt)
    (part / "inside").mkdir(exist_ok=True)
    (part / "inside" / "state").write_bytes(random.Random(steps).randbytes(size))
    (part / ".metadata").write_bytes(b"x" * 10)
    checkpoints.seal(part, steps, NUMBERS, facts or {}, tasks)
    return part


def usable(files: RunDir) -> list[int]:
    return [found.steps for found in checkpoints.of_run(files) if not found.problem]


def test_a_run_without_checkpoints_has_none(tmp_path: Path) -> None:
    assert checkpoints.of_run(RunDir(tmp_path)) == []
    assert checkpoints.latest(RunDir(tmp_path)) is None


def test_a_part_without_its_manifest_does_not_exist(tmp_path: Path) -> None:
    files = RunDir(tmp_path)
    leave(files, 20)
    (leave(files, 40) / checkpoints.MANIFEST).unlink()
    latest = checkpoints.latest(files)
    assert latest and latest.steps == 20 and latest.bytes == 1010
    assert latest.part("worker:3")[1].numbers == NUMBERS
    assert "it was not finished: it has no manifest.json" in str(checkpoints.of_run(files)[-1])


@pytest.mark.parametrize("harm", ["change", "cut", "remove", "pipe", "manifest"])
def test_a_damaged_file_is_named_and_the_checkpoint_before_is_taken(
    tmp_path: Path, harm: str
) -> None:
    files = RunDir(tmp_path)
    leave(files, 20)
    part = leave(files, 40)
    state = part / "inside" / "state"
    match harm:
        case "change":
            state.write_bytes(b"y" + state.read_bytes()[1:])
        case "cut":
            state.write_bytes(state.read_bytes()[:500])
        case "remove":
            state.unlink()
        case "pipe":  # which nobody writes to
            state.unlink()
            os.mkfifo(state)
        case "manifest":
            state = part / checkpoints.MANIFEST
            state.write_text(state.read_text()[:100])
    name = "worker-0/manifest.json" if harm == "manifest" else "worker-0/inside/state"
    found = checkpoints.of_run(files)[-1]
    assert found.problem.startswith(name) and name in str(found)
    assert usable(files) == [20]


def test_a_checkpoint_in_parts_is_complete_when_the_last_part_is_there(tmp_path: Path) -> None:
    files, tasks = RunDir(tmp_path), ("ps:0", "ps:1", "ps:2")
    for task in ("ps:2", "ps:0"):
        leave(files, 40, task, tasks)
        assert usable(files) == []
    assert "ps-1 has no manifest" in checkpoints.of_run(files)[0].problem
    leave(files, 40, "ps:1", tasks)
    assert usable(files) == [40]
    assert checkpoints.of_run(files)[0].part("ps:1")[0].name == "ps-1"


def test_the_last_two_complete_ones_are_kept(tmp_path: Path) -> None:
    files = RunDir(tmp_path)
    for steps in (20, 40, 60):
        leave(files, steps)
    leave(files, 80, tasks=("worker:0", "worker:1"))  # not complete, so 40 and 60 are still needed
    assert [found.steps for found in checkpoints.of_run(files)] == [40, 60, 80]
    leave(files, 100)
    assert [found.steps for found in checkpoints.of_run(files)] == [60, 80, 100]
    leave(files, 1_000_000)
    leave(files, 1_000_020)
    assert usable(files) == [1_000_000, 1_000_020]


def test_tasks_started_again_never_mix_their_parts_with_older_ones(tmp_path: Path) -> None:
    files, tasks = RunDir(tmp_path), ("ps:0", "ps:1")
    leave(files, 40, "ps:0", tasks)  # and here ps:1 was killed
    leave(files, 40, "ps:1", tasks, attempt=1)
    assert usable(files) == []
    part = leave(files, 40, "ps:0", tasks, attempt=1)
    latest = checkpoints.latest(files)
    assert latest and latest.path == part.parent


def test_a_hundred_kills_during_a_save_lose_no_checkpoint(tmp_path: Path) -> None:
    files, moments, saved, torn = RunDir(tmp_path), random.Random(1), 0, 0
    for _ in range(100):
        reading, writing = os.pipe()
        if not (child := os.fork()):
            try:
                for steps in range(saved + 1, saved + 1000):
                    leave(files, steps, size=200_000)
                    os.write(writing, steps.to_bytes(4, "big"))
            finally:
                os._exit(1)
        os.close(writing)
        time.sleep(moments.uniform(0, 0.04))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        with os.fdopen(reading, "rb") as pipe:
            told = pipe.read()
        saved = int.from_bytes(told[-4:], "big") if told else saved
        latest = checkpoints.latest(files)
        # killed between the manifest and the word of it, a checkpoint is there all the same
        assert (latest.steps if latest else 0) in (saved, saved + 1)
        saved = latest.steps if latest else 0
        torn += checkpoints.of_run(files)[-1:] != [latest]
    assert latest and torn > 20
    state = (latest.part("worker:0")[0] / "inside" / "state").read_bytes()
    assert state == random.Random(saved).randbytes(200_000)


# --- who goes on from it ---


def spec_of(**fields: Any) -> RunSpec:
    usual = {"framework": "torch", "steps": 100}
    return spec_for("multi_worker_mirrored", **usual | fields)


def run_with(path: Path, spec: RunSpec, *steps: int) -> Path:
    """The directory of a run with checkpoints."""
    path.mkdir()
    (path / "spec.json").write_text(spec.model_dump_json())
    for each in steps:
        leave(RunDir(path), each, facts=saving.facts_of(spec))
    return path


def test_a_run_that_is_alike_goes_on_and_its_plan_says_where(tmp_path: Path) -> None:
    earlier = run_with(tmp_path / "run", spec_of(), 20, 40)
    plan = saving.resumed(spec_of(resume=earlier, learning_rate=0.3), Plan())
    assert plan.resumed_from == 40
    assert str(plan).startswith("resume: step 40. ") and str(plan).endswith(f"{earlier}.")


def test_the_plan_says_which_checkpoint_was_damaged(tmp_path: Path) -> None:
    earlier = run_with(tmp_path / "run", spec_of(), 20, 40)
    (earlier / "checkpoints/step-000040/worker-0/.metadata").write_bytes(b"")
    plan = saving.resumed(spec_of(resume=earlier), Plan())
    assert plan.resumed_from == 20
    assert "worker-0/.metadata is damaged" in str(plan)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("workload", "digits_cnn"),
        ("optimizer", "adamw"),
        ("framework", "tensorflow"),
        ("seed", 7),
        ("global_batch", 64),
        ("precision", "bfloat16"),
        ("sampler", "per_worker"),
    ],
)
def test_another_run_is_refused_with_what_differs(
    tmp_path: Path, field: str, value: object
) -> None:
    earlier = run_with(tmp_path / "run", spec_of(), 40)
    with pytest.raises(SpecError) as caught:
        saving.resumed(spec_of(**{field: value, "resume": earlier}), Plan())
    assert (caught.value.field, caught.value.value) == (field, value)
    assert f"has {getattr(spec_of(), field)!r}: " in caught.value.allowed


ASYNCHRONOUS = {"strategy": "parameter_server", "workers": 3}


def moved(path: Path, there: dict[str, Any], here: dict[str, Any]) -> Plan:
    """The plan of a run that goes on from the checkpoint of another strategy or other workers."""
    usual = {"strategy": "multi_worker_mirrored", "framework": "torch", "steps": 100}
    specs = [dict(usual | fields) for fields in (there, here)]
    theirs, ours = (spec_for(fields.pop("strategy"), **fields) for fields in specs)
    earlier = run_with(path / "run", theirs, 40)
    return saving.resumed(ours.model_copy(update={"resume": earlier}), Plan())


@pytest.mark.parametrize(
    ("there", "here", "says"),
    [
        ({}, {"workers": 2}, "workers=4"),
        ({}, {"workers": 3}, "workers=4, global_batch=128"),
        ({"workers": 3}, {"strategy": "one_device", "global_batch": 126}, "workers=3"),
        ({"strategy": "fully_sharded"}, {}, "strategy=fully_sharded"),
        ({"strategy": "sync_parameter_server"}, {"workers": 3}, "server, ps=1"),
        (
            {"strategy": "mirrored", "framework": "tensorflow", "workers": 4},
            {"framework": "tensorflow"},
            "strategy=mirrored, workers=1, replicas=4",
        ),
        (
            {"sampler": "per_worker"},
            {"sampler": "per_worker", "strategy": "fully_sharded", "workers": 4},
            "strategy=multi_worker_mirrored",
        ),
    ],
)
def test_a_synchronous_run_goes_on_elsewhere_and_its_plan_says_what_differs(
    tmp_path: Path, there: dict[str, Any], here: dict[str, Any], says: str
) -> None:
    plan = str(moved(tmp_path, there, here))
    assert "resume: step 40" in plan
    assert ", which was left with " in plan and says in plan


@pytest.mark.parametrize(
    ("there", "here", "field"),
    [
        ({}, {"strategy": "pipeline_parallel", "workers": 2}, "strategy"),
        ({"strategy": "tensor_parallel"}, {"workers": 2}, "strategy"),
        (ASYNCHRONOUS, {"strategy": "sync_parameter_server"}, "strategy"),
        ({}, {"strategy": "stale_synchronous"}, "strategy"),
        ({}, {"strategy": "backup_workers"}, "strategy"),
        (ASYNCHRONOUS, ASYNCHRONOUS | {"workers": 2}, "workers"),
        ({"strategy": "tensor_parallel", "workers": 4}, {"strategy": "tensor_parallel"}, "workers"),
        ({"sampler": "per_worker"}, {"sampler": "per_worker", "workers": 2}, "workers"),
        ({}, {"global_batch": 120, "workers": 2}, "global_batch"),
        ({}, {"framework": "tensorflow", "workers": 2}, "framework"),
        ({}, {"optimizer": "adamw", "workers": 2}, "optimizer"),
        ({}, {"workload": "digits_cnn", "strategy": "fully_sharded"}, "workload"),
    ],
)
def test_what_cannot_be_carried_over_is_refused_by_name(
    tmp_path: Path, there: dict[str, Any], here: dict[str, Any], field: str
) -> None:
    with pytest.raises(SpecError) as caught:
        moved(tmp_path, there, here)
    assert caught.value.field.startswith(field)
    assert "leave resume out" in caught.value.allowed
    if field == "strategy":
        assert "(one_device, mirrored, " in caught.value.allowed


def test_another_size_of_the_model_is_refused(tmp_path: Path) -> None:
    earlier = run_with(tmp_path / "run", spec_of(workload="wide", sizes={"parameters": 20_000}), 40)
    with pytest.raises(SpecError, match=r"sizes=.*30000}: .* has .*20000}: set the same"):
        spec = spec_of(workload="wide", sizes={"parameters": 30_000}, resume=earlier)
        saving.resumed(spec, Plan())


def test_a_directory_without_a_usable_checkpoint_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="no run is there"):
        saving.resumed(spec_of(resume=tmp_path / "nowhere"), Plan())
    for odd in ("~nobody-of-this-name/run", "x" * 300):
        with pytest.raises(SpecError, match=r"no run|a directory"):
            saving.resumed(spec_of(resume=odd), Plan())
    earlier = run_with(tmp_path / "run", spec_of())
    with pytest.raises(SpecError, match="checkpoint_every"):
        saving.resumed(spec_of(resume=earlier), Plan())
    (leave(RunDir(earlier), 40) / "inside/state").unlink()
    with pytest.raises(SpecError, match="step 40: worker-0/inside/state is damaged: No such file"):
        saving.resumed(spec_of(resume=earlier), Plan())


def test_a_run_whose_steps_are_done_already_is_refused(tmp_path: Path) -> None:
    earlier = run_with(tmp_path / "run", spec_of(), 100)
    with pytest.raises(SpecError, match=r"steps=100: 100 .*more"):
        saving.resumed(spec_of(resume=earlier), Plan())


def test_the_directory_means_the_same_from_everywhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert RunSpec(resume="run").resume == tmp_path / "run"


# --- what a training step counts ---


def test_the_scale_of_float16_goes_on_where_it_was() -> None:
    spec = RunSpec(precision="float16")
    first, second = LossScale(spec), LossScale(spec)
    for norm in [float("inf"), *[1.0] * 30]:
        first.seen(norm, 0.0)
    second.state = first.state
    for _ in range(9):
        first.seen(1.0, 0.0), second.seen(1.0, 0.0)
    assert first.state == second.state == {"loss_scale": 2.0**16, "good": 19}
    assert LossScale(RunSpec(precision="float16", loss_scale=8.0)).state == {}


def test_smaller_batches_after_larger_ones_skip_no_example_and_repeat_none() -> None:
    workload = load(RunSpec())
    before = [examples_of(workload, step, 0, 128) for step in range(5)]
    ahead = 5 * 128 - 5 * 96  # from here on with three workers of four
    pieces = [
        piece
        for step in range(5, 15)
        for share in range(3)
        for piece in order.pieces(RunSpec(), workload.train, step, share, 3, 96, ahead)
    ]
    whole = np.concatenate([examples_of(workload, step, 0, 128) for step in range(20)])
    read = np.concatenate([*before, *(indices for _, indices in pieces)])
    assert np.array_equal(read, whole[: 640 + 960])  # the order that larger batches would have had
