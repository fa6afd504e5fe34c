"""The recorder of a training step: what a page says, and what the trace then holds."""

import itertools
import threading
import time
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from course_lib import RunSpec
from course_lib.cluster.task import Task
from course_lib.errors import SpecError
from course_lib.racing.fairness import wait_at_line
from course_lib.record.events import Metric, Phase, Read, Recorder, Update
from course_lib.record.measures import coverage
from course_lib.record.rundir import RunDir
from course_lib.record.trace import Trace
from course_lib.strategies.steps import TrainingStep
from tests.helpers import examples_of


class Toy(TrainingStep):
    """A step without a framework; its accuracy is 0.5."""

    def tensors(self, indices: np.ndarray) -> tuple[Any, Any]:
        return self.workload.train.inputs[indices], self.workload.train.targets[indices]

    def outputs(self, inputs: np.ndarray) -> np.ndarray:
        halves = self.workload.test.targets[: len(inputs)].copy()
        halves[::2] += 1  # every other one is wrong
        return np.eye(11)[halves]

    def memory(self) -> dict[str, int]:
        return {}

    def weights(self) -> list[np.ndarray]:
        return []

    def named_weights(self) -> dict[str, np.ndarray]:
        return {}

    def variables_on(self) -> dict[str, int]:
        return {}

    def state_on(self) -> dict[str, int]:
        return {}

    def matmul_flops(self) -> float:
        return 1.0

    def save_state(self, part: Path) -> None:
        (part / "state").write_text(f"after step {self.number}")

    def load_state(self, part: Path) -> None:
        self.restored = (part / "state").read_text()


def toy(
    index: int = 0, holds: str = "all", path: Path | str = "nowhere", **fields: Any
) -> tuple[Toy, list[Any]]:
    """A step of a task that has two workers, and the list of its events."""
    spec = RunSpec(**{"workers": 2, "steps": 3, "global_batch": 64, **fields})
    events: list[Any] = []
    recorder: Any = SimpleNamespace(add=events.append)
    task = Task(f"worker:{index}", spec, {}, RunDir(path), recorder)
    return Toy(task, [(holds, "cpu")]), events


def phases(events: list[Any]) -> list[Phase]:
    return [event for event in events if isinstance(event, Phase)]


def test_a_step_is_recorded_in_the_order_of_its_page() -> None:
    step, events = toy()
    while step.begin():
        images, labels = step.read(0, 2)
        assert (len(images), len(labels)) == (32, 32)
        with step.computing():
            pass
        with step.reducing():
            pass
        with step.waiting():
            pass
        with step.applying():
            pass
        step.done(loss=2.0 - step.number)
    found = phases(events)
    order = ("read", "compute", "reduce", "wait", "apply")
    assert [(p.step, p.what) for p in found] == list(itertools.product(range(3), order))
    assert all(a.end <= b.start for a, b in itertools.pairwise(found))
    losses = [(e.value, e.step, e.samples) for e in events if isinstance(e, Metric)]
    assert losses == [(2.0, 0, 64), (1.0, 1, 128), (0.0, 2, 192)]
    updates = [(e.step, e.read, e.written, e.gradients) for e in events if isinstance(e, Update)]
    assert updates == [(n, n, n + 1, 2) for n in range(3)]
    assert step.loss == 0.0


def test_an_exchange_that_computing_waits_for_divides_it_and_is_no_computing() -> None:
    step, events = toy(slow={})
    step.begin()
    with step.computing(), step.exchanging():
        time.sleep(0.03)
    with step.exchanging():  # while the accuracy is measured
        pass
    assert [p.what for p in phases(events)] == ["compute", "reduce", "compute"]
    first, exchange, second = phases(events)
    assert first.end == exchange.start and exchange.end == second.start
    assert step._busy[1.0][-1] < 0.03 <= exchange.end - exchange.start


def test_computing_ends_when_the_last_reduction_beside_it_begins() -> None:
    step, events = toy()
    step.begin()
    with step.computing():
        for begun in (time.monotonic(), time.monotonic()):
            step.reduced_beside(begun)
    compute, *reductions = phases(events)
    assert [p.what for p in reductions] == ["reduce", "reduce"]
    assert compute.end == reductions[-1].start


def test_a_slowed_task_takes_longer_over_device_time_and_what_it_computed() -> None:
    step, _ = toy(device_ms=4)
    paced: list[tuple[float, float]] = []

    def delay(busy: float, share: float) -> float:
        paced.append((busy, share))
        return 0.0

    step.task.delay = delay  # type: ignore[method-assign]
    step.begin()
    for part in (1.0, 0.5, 1.0):
        with step.computing(part):
            time.sleep(0.01)
    assert [(busy > 0, share) for busy, share in paced] == [
        (False, 1.0),
        (False, 0.5),
        (False, 1.0),
    ]
    for _ in range(5):  # the first guess of nothing is forgotten
        with step.computing():
            time.sleep(0.01)
    assert paced[-1][0] >= 0.01


@pytest.mark.parametrize(
    ("index", "holds", "measures"), [(0, "all", True), (1, "all", False), (1, "shard 1", True)]
)
def test_who_holds_a_part_of_the_model_takes_part_in_measuring_its_accuracy(
    index: int, holds: str, measures: bool
) -> None:
    step, events = toy(index, holds, evaluate_every=2)
    while step.begin():
        step.done()
    found = [(e.name, e.step, e.samples) for e in events if isinstance(e, Metric)]
    assert found == ([("accuracy", 1, 128)] if measures else [])


def test_parameters_that_were_fetched_for_a_step_are_measured_when_they_are_read() -> None:
    step, events = toy()
    step.begin(1)
    step.evaluate_at = 64
    step.read()
    step.done()
    assert [type(event) for event in events] == [Phase, Metric]
    assert (events[1].name, events[1].step, events[1].samples) == ("accuracy", 0, 64)


def test_a_starting_line_holds_a_task_at_the_end_of_its_first_step_and_of_no_other(
    tmp_path: Path,
) -> None:
    task = Task("worker:1", RunSpec(workers=2), {}, RunDir(tmp_path), Recorder(None))
    task.files.line.mkdir()
    task.at_step_end = partial(wait_at_line, task)
    steps: list[int] = []

    def train() -> None:
        for n in range(3):
            task.at_step_end()
            steps.append(n)

    worker = threading.Thread(target=train)
    worker.start()
    while not (task.files.line / "worker-1").exists():
        assert worker.is_alive()
    assert steps == []
    (task.files.line / "open").touch()
    worker.join(10)
    assert steps == [0, 1, 2]


@pytest.mark.parametrize(
    ("sampler", "workers", "batch", "repeated"),
    [
        ("global", 2, 64, 0),
        ("global", 3, 1437, 0),
        ("per_worker", 2, 64, 1),
        ("per_worker", 4, 128, 3),
        ("per_worker", 3, 1437, 0),
    ],
)
def test_what_is_read_in_an_epoch_is_recorded_and_a_batch_may_reach_into_the_next(
    sampler: str, workers: int, batch: int, repeated: int
) -> None:
    """1437 examples: batches of 64 or 128 do not divide them, so the last one of an epoch is also
    the first of the next. Uneven parts are padded.
    """
    events: list[Any] = []
    fields = {"sampler": sampler, "workers": workers, "global_batch": batch, "steps": 50}
    for worker in range(workers):
        step, mine = toy(worker, record_examples=True, **fields)
        while step.begin():
            inputs, _ = step.read(worker, workers)
            reads = [e for e in mine if isinstance(e, Read) and e.step == step.number]
            read = [i for e in reads for i in e.examples]
            assert np.array_equal(inputs, step.workload.train.inputs[read])
        events += mine
    found = coverage(Trace(events), 1437)
    assert all(not found[epoch].never for epoch in (0, 1))
    assert [len(found[epoch].repeated) for epoch in (0, 1)] == [repeated] * 2
    assert all(len(set(who)) == 1 for who in found[0].repeated.values())  # padded by itself


def test_a_share_that_two_workers_read_shows() -> None:
    events: list[Any] = []
    for worker in range(2):
        step, mine = toy(worker, record_examples=True, steps=30)
        while step.begin():
            with pytest.raises(SpecError, match="a whole number from 0 to 1"):
                step.read(2, 2)
            step.read(0, 2)  # the mistake: not its own
        events += mine
    found = coverage(Trace(events), 1437)[0]
    assert len(found.repeated) == found.read == 1437 - len(found.never)
    assert set(map(tuple, found.repeated.values())) == {("worker:0", "worker:1")}


def test_the_replicas_of_one_process_have_parts_of_their_own_too() -> None:
    fields = {"global_batch": 64, "sampler": "per_worker"}
    one, _ = toy(workers=1, replicas=4, **fields)
    four = [toy(k, workers=4, **fields)[0] for k in range(4)]
    for step in (one, *four):
        step.begin()
    together = [step.read(k, 4)[0] for k, step in enumerate(four)]
    assert np.array_equal(one.read(0, 1)[0], np.concatenate(together))


def test_a_step_saves_when_it_is_due_and_another_one_goes_on_from_there(tmp_path: Path) -> None:
    fields: dict[str, Any] = {"path": tmp_path, "steps": 7, "checkpoint_every": 3}
    first, events = toy(**fields)
    while first.begin():
        with first.applying():
            pass
        first.done(1.0)
    assert [p.step for p in phases(events) if p.what == "checkpoint"] == [2, 5, 6]  # and the end
    second, events = toy(index=1, **fields | {"steps": 9})
    assert second.begin() and second.number == 7 and second.updates == 7
    assert second.restored == "after step 6"


def test_a_step_with_smaller_batches_goes_on_with_the_next_example(tmp_path: Path) -> None:
    fields: dict[str, Any] = {"path": tmp_path, "checkpoint_every": 1}
    first, _ = toy(**fields, steps=1)
    first.begin(), first.done()
    step, events = toy(**fields, steps=3, workers=1, global_batch=32, record_examples=True)
    assert step.begin()
    step.read()
    (read,) = (event for event in events if isinstance(event, Read))
    whole = examples_of(step.workload, 0, 0, 128)
    assert read.examples == whole[64:96].tolist()
    step.done(1.0)
    assert {event.samples for event in events if isinstance(event, Metric)} == {96}
