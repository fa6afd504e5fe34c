"""GPUs that Ray reserves. Those of the tests' nodes are only said to be there."""

from collections.abc import Callable

import pytest

from course_lib import engines, hardware, start
from course_lib.hardware import Machine
from course_lib.spec.run_spec import RunSpec
from tests.helpers import until


@pytest.fixture
def free_gpus(cluster: str) -> Callable[[], float]:
    from course_lib.engines.ray.cluster import connect, free

    connect(cluster)
    return lambda: free("GPU")


def test_each_worker_has_a_gpu_of_its_own(cluster: str, free_gpus: Callable[[], float]) -> None:
    spec = RunSpec(workers=4, ps=1, engine="ray", address=cluster, task_gpus=1).complete()
    engine, placed = engines.find(spec)
    try:
        has: Machine = engine.machine(hardware.probe())
        assert len(has.gpus) == 4
        assert set(has.devices) == {f"worker:{i}" for i in range(4)}
        own = {(placed.places[task], device) for task, device in has.devices.items()}
        assert len(own) == 4  # no two on one node have the same
        assert {device for _, device in own} == {"gpu:0", "gpu:1"}
        until(lambda: free_gpus() == 2, "Ray's count of them", 10)
    finally:
        engine.release()
    until(lambda: free_gpus() == 6, "the GPUs to be free again", 10)


def test_what_cannot_use_its_gpu_says_why_and_computes_on_the_cpu(
    cluster: str, free_gpus: Callable[[], float]
) -> None:
    def work(task):  # type: ignore[no-untyped-def]
        return task.device

    run = start(work, workers=2, engine="ray", address=cluster, task_gpus=1).wait(60)
    device = next(reason for reason in run.plan.reasons if reason.what == "device")
    assert "2 GPUs (reserved by Ray) left alone" in device.why
    assert set(run.values.values()) == {"cpu"}
    until(lambda: free_gpus() == 6, "the GPUs to be free again", 10)
