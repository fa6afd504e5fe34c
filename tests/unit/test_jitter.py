"""Jitter: what is drawn, that it is drawn again, and where it is slept."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from course_lib.cluster.task import Task
from course_lib.errors import SpecError
from course_lib.racing.entrants import parse_entrant
from course_lib.record.rundir import RunDir
from course_lib.spec.fields import STEADY, Jitter
from course_lib.spec.run_spec import RunSpec
from tests.helpers import judged, spec_for

STEPS = 20_000


def delays(text: str, task: str = "worker:1", seed: int = 0) -> np.ndarray:
    """Factors and seconds of many steps, shape (2, steps)."""
    jitter = Jitter.of(text)
    return np.array([jitter.of_step(seed, task, step) for step in range(STEPS)]).T


def furthest(found: np.ndarray, expected: np.ndarray) -> float:
    """The largest distance between two distributions, as Kolmogorov and Smirnov measure it."""
    places = np.sort(np.concatenate([found, expected]))
    counts = [np.searchsorted(np.sort(each), places, "right") for each in (found, expected)]
    return float(np.abs(counts[0] / len(found) - counts[1] / len(expected)).max())


def test_what_is_drawn_has_the_distribution_that_it_is_named_after() -> None:
    rng, near = np.random.default_rng(99), 1.95 * np.sqrt(2 / STEPS)  # exceeded once in a thousand
    factors, late = delays("lognormal:0.5")
    assert furthest(factors, rng.lognormal(0, 0.5, STEPS)) < near and not late.any()
    assert np.median(factors) == pytest.approx(1, abs=0.02)
    factors, late = delays("exponential:20ms")
    assert furthest(late, rng.exponential(0.020, STEPS)) < near and (factors == 1).all()
    factors, late = delays("one_in:100:200ms")
    assert set(late) == {0.0, 0.2} and (factors == 1).all()
    assert np.mean(late > 0) == pytest.approx(0.01, abs=0.003)


def test_the_same_seed_draws_the_same_and_tasks_and_seeds_differ() -> None:
    text = "exponential:20ms"
    first = delays(text)[1]
    assert np.array_equal(first, delays(text)[1])
    forward = [Jitter.of(text).of_step(0, "worker:1", step)[1] for step in (7, 900, 3)]
    assert forward == [first[7], first[900], first[3]]  # whatever was asked for before
    for other in (delays(text, "worker:2")[1], delays(text, seed=1)[1]):
        assert abs(np.corrcoef(first, other)[0, 1]) < 0.05
    assert abs(np.corrcoef(first[1:], first[:-1])[0, 1]) < 0.05


@pytest.mark.parametrize(
    "text",
    [
        *("gauss:3", "lognormal", "lognormal:-1", "lognormal:0", "lognormal:4", "lognormal:nan"),
        *("exponential:20", "exponential:-20ms", "exponential:11s", " exponential:20ms", ""),
        *("one_in:0:200ms", "one_in:2.5:1ms", "one_in:9:0ms", "one_in:-100:200ms"),
    ],
)
def test_what_is_no_jitter_is_refused_in_a_line_that_names_the_forms(text: str) -> None:
    with pytest.raises(SpecError) as refused:
        RunSpec(jitter=text, device_ms=20)
    assert refused.value.field == "jitter" and "\n" not in str(refused.value)
    assert "lognormal:0.5, exponential:20ms or one_in:100:200ms" in str(refused.value)


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"jitter": "lognormal:0.5"}, "set device_ms"),
        ({"jitter": {"worker:9": "exponential:1ms"}}, "worker:0 to worker:3"),
        ({"jitter": {"ps:0": "exponential:1ms"}, "ps": 1}, "do not compute"),
        ({"jitter": {"worker:1": "soon"}}, "one_in:100:200ms"),
    ],
)
def test_jitter_for_nothing_and_nobody_is_refused(fields: dict[str, Any], says: str) -> None:
    with pytest.raises(SpecError, match=says) as refused:
        judged(RunSpec(**fields))
    assert refused.value.field == "jitter"


def test_jitter_of_some_tasks_is_written_as_a_mapping_or_on_the_command_line() -> None:
    forms = {"worker:1": "one_in:100:200ms", "worker:3": "exponential:0.5s"}
    written = ",".join(f"{task}={form}" for task, form in forms.items())
    for spec in (RunSpec(jitter=forms), RunSpec(jitter=written)):
        assert RunSpec.model_validate_json(spec.model_dump_json()).jitter == forms
        assert {task: form for task in spec.tasks if (form := spec.jitter_of(task))} == forms
    everywhere = RunSpec(jitter="exponential:1ms", ps=1)
    assert {task for task in everywhere.tasks if everywhere.jitter_of(task)} == {
        f"worker:{k}" for k in range(4)
    }
    assert parse_entrant("one_device,jitter=one_in:9:5ms")["jitter"] == "one_in:9:5ms"


def test_the_devices_of_one_process_have_one_jitter() -> None:
    assert spec_for("mirrored", framework="tensorflow", jitter="one_in:9:5ms").workers == 1
    with pytest.raises(SpecError, match="cannot be slowed singly"):
        spec_for("mirrored", framework="tensorflow", jitter={"worker:1": "one_in:9:5ms"})


def paced(monkeypatch: pytest.MonkeyPatch, **fields: Any) -> tuple[Task, list[float]]:
    """A task, and a list of the seconds that it sleeps."""
    slept: list[float] = []
    monkeypatch.setattr(time, "sleep", slept.append)
    spec = RunSpec(**fields)
    jitter, recorder = Jitter.of(spec.jitter_of("worker:1")), SimpleNamespace(add=lambda _: None)
    task = Task("worker:1", spec, {}, RunDir("nowhere"), recorder, jitter=jitter)  # type: ignore[arg-type]
    return task, slept


def test_a_factor_is_for_all_parts_of_a_step_and_an_addition_for_the_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    task, slept = paced(monkeypatch, jitter="lognormal:1", device_ms=100)
    times = [task.jitter.of_step(0, "worker:1", step)[0] for step in range(2)]
    for step in range(2):
        task.begin(step)
        task.pace(share=0.25)
        task.pace(share=0.75)
    assert slept == pytest.approx([0.1 * part * f for f in times for part in (0.25, 0.75)])
    task, slept = paced(monkeypatch, jitter="exponential:1s", device_ms=100)
    task.slow_factor = 2.0
    late = [task.jitter.of_step(0, "worker:1", step)[1] for step in range(2)]
    for step in range(2):
        task.begin(step)
        task.pace(share=0.5, busy=0.01)
        task.pace(share=0.5)
    assert slept == pytest.approx([0.11 + late[0], 0.1, 0.11 + late[1], 0.1])


def test_in_functions_of_a_learners_own_the_phases_tell_the_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    task, slept = paced(monkeypatch, strategy="work()", framework="python", jitter="exponential:1s")
    for step in (0, 0, 1):
        with task.phase("compute", step):
            task.pace()
    assert slept == [task.jitter.of_step(0, "worker:1", step)[1] for step in (0, 1)]
    task.jitter = STEADY
    task.begin(2)
    task.pace()
    assert len(slept) == 2
