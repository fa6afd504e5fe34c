"""GPUs that Ray reserves. Those of the tests' nodes are only said to be there."""

from collections.abc import Callable

import pytest

from course_lib import engines, hardware
from course_lib.hardware import Machine
from course_lib.spec.run_spec import RunSpec
from tests.helpers import until


@pytest.fixture
def free_gpus(cluster: str) -> Callable[[], float]:
    from course_lib.engines.ray.cluster import connect, free

    connect(cluster)
    return lambda: free("GPU")


@pytest.mark.parametrize("build", [("torch",), ()])
def test_each_worker_has_a_gpu_of_its_own_where_its_framework_can_use_one(
    cluster: str,
    free_gpus: Callable[[], float],
    monkeypatch: pytest.MonkeyPatch,
    build: tuple[str, ...],
) -> None:
    monkeypatch.setattr("course_lib.engines.ray.engine.cuda_frameworks", lambda: build)
    spec = RunSpec(workers=4, ps=1, framework="torch", engine=f"ray:{cluster}").complete()
    engine, placed = engines.find(spec)
    try:
        has: Machine = engine.machine(hardware.probe())
        assert len(has.gpus) == len(has.devices) == (4 if build else 0)
        own = {(placed.places[task], device) for task, device in has.devices.items()}
        assert len(own) == len(has.devices)  # no two on one node have the same
        assert {device for _, device in own} == ({"gpu:0", "gpu:1"} if build else set())
        until(lambda: free_gpus() == 6 - len(own), "Ray's count of them", 10)
    finally:
        engine.release()
    until(lambda: free_gpus() == 6, "the GPUs to be free again", 10)
