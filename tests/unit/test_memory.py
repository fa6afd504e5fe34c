"""The memory of tasks, without processes: what is recorded, what formulas say, what is shown."""

from typing import Any

import pytest

from course_lib import workloads
from course_lib.record import measures
from course_lib.record.events import Metric
from course_lib.strategies import catalog
from course_lib.strategies.steps import Census
from course_lib.strategies.strategy import per_example
from course_lib.workloads.layers import Sketch
from tests.helpers import spec_for
from tests.unit.test_steps import toy

S, A = 4000, 100  # bytes of parameters; of activations of an example
MODEL = Sketch(parameters=S // 4, parts=8, activations=A)
WHOLE = {"parameters": S, "gradients": S, "optimizer_state": 2 * S}
HALF = {kind: n // 2 for kind, n in WHOLE.items()}
CLIENT = {"parameters": S, "gradients": S, "optimizer_state": 0, "activations": 32 * A}


def foretold(strategy: str, framework: str = "torch", **fields: Any) -> measures.Memory:
    """For adamw, whose state is 2 S, two workers or replicas, and 64 examples in a step."""
    defaults = {"optimizer": "adamw", "global_batch": 64, "workers": 2}
    spec = spec_for(strategy, framework=framework, **defaults | fields)
    return catalog.find(strategy).foretold(spec, MODEL)


def test_what_is_noted_in_the_first_step_is_recorded_at_its_peak_and_later_steps_are_not() -> None:
    step, events = toy()
    step.memory = lambda: {"parameters": 40, "buffers": 3}  # type: ignore[method-assign]
    while step.begin():
        for activations, exchange in [(5, 7), (9, 2), (100 * step.number, 1)]:
            step.census.note(activations=activations, exchange=exchange)
        step.done()
    found = measures.with_memory({}, [event for event in events if isinstance(event, Metric)])
    kinds = {"parameters": 40, "gradients": 0, "optimizer_state": 0}
    assert found == {"worker:0": kinds | {"activations": 9, "buffers": 3 + 7}}
    assert [event.step for event in events if event.name == "activations"] == [0]


def test_what_is_noted_of_a_kind_takes_the_place_of_what_is_held() -> None:
    step, events = toy()
    census = Census(step.task)
    census.note(parameters=0)  # they are another task's
    census.close(3, 96, lambda: {"parameters": 8, "optimizer_state": 16})
    values = {event.name: (event.value, event.step, event.samples) for event in events}
    assert values == {"parameters": (0, 3, 96), "optimizer_state": (16, 3, 96)}


@pytest.mark.parametrize(
    ("strategy", "fields", "expected"),
    [
        ("one_device", {"workers": 1}, [WHOLE | {"activations": 64 * A}]),
        ("multi_worker_mirrored", {}, 2 * [WHOLE | {"activations": 32 * A}]),
        ("multi_worker_mirrored", {"accumulate": 4}, 2 * [WHOLE | {"activations": 8 * A}]),
        ("fully_sharded", {}, 2 * [HALF | {"activations": 32 * A}]),
        ("fully_sharded", {"accumulate": 2}, 2 * [HALF | {"gradients": S, "activations": 16 * A}]),
        (
            "pipeline_parallel",
            {"accumulate": 8},
            [HALF | {"activations": kept * 64 // 8 * A // 2} for kept in (2, 1)],
        ),
        (
            "pipeline_parallel",
            {"accumulate": 8, "pipeline": "gpipe"},
            2 * [HALF | {"activations": 64 * A // 2}],
        ),
        (
            "central_storage",
            {},
            [
                WHOLE | {"activations": 32 * A, "buffers": 2 * (S + 4)},
                {**CLIENT, "parameters": 0},
            ],
        ),
        (
            "parameter_server",
            {"ps": 2},
            2 * [CLIENT | {"buffers": 2 * S}] + 2 * [HALF | {"buffers": S // 2}],
        ),
        (
            "sync_parameter_server",
            {"ps": 1},
            2 * [CLIENT | {"buffers": 2 * S}] + [WHOLE | {"gradients": 2 * S, "buffers": S}],
        ),
    ],
)
def test_a_formula_says_who_holds_what(
    strategy: str, fields: dict[str, Any], expected: list[dict[str, int]]
) -> None:
    assert list(foretold(strategy, **fields).values()) == expected


def test_in_16_bits_copies_of_weights_are_kept_once_for_all_examples() -> None:
    def activations(strategy: str, model: Sketch) -> list[Any]:
        spec = spec_for(
            strategy, framework="torch", workers=2, global_batch=64, precision="bfloat16"
        )
        found = catalog.find(strategy).foretold(spec, model).values()
        return [kinds.get("activations") for kinds in found]

    copied = MODEL._replace(copies=500)
    assert activations("multi_worker_mirrored", copied) == [32 * A + 500] * 2
    assert activations("fully_sharded", copied) == [32 * A] * 2  # gathers them in 16 bits
    assert activations("multi_worker_mirrored", Sketch(S)) == [None] * 2  # not known: left out
    found = per_example(few=2 * A + 500, twice=4 * A + 500, examples=2)
    assert found == (A, 500)


def test_the_course_s_own_models_in_16_bits() -> None:
    spec = spec_for("one_device", framework="torch", precision="bfloat16")
    found = workloads.load(spec).sketch_in("torch", "bfloat16")
    # what layers take, and logits in float32 for the loss; weights of the second layer
    assert found and (found.activations, found.copies) == (2 * (64 + 64) + 4 * 10, 2 * 64 * 10)
    gpt = workloads.load(spec.model_copy(update={"workload": "tiny_gpt"}))
    unknown = gpt.sketch_in("torch", "bfloat16")
    assert unknown and unknown.parameters and not unknown.activations


def test_a_process_of_several_replicas_holds_that_many_copies() -> None:
    (mirrored,) = foretold("mirrored", "tensorflow", workers=1, replicas=2).values()
    assert mirrored == {kind: 2 * n for kind, n in (WHOLE | {"activations": 32 * A}).items()}
    (central,) = foretold("central_storage", "tensorflow", workers=1, replicas=2).values()
    assert central == {**WHOLE, "gradients": 2 * S, "activations": 64 * A}


def test_the_table_has_the_formula_beside_what_was_counted() -> None:
    counted = {
        "worker:0": dict.fromkeys(measures.MEMORY, 0) | {"parameters": 2048, "activations": 3}
    }
    head, row, formula = measures.memory_table(
        counted, {"worker:0": {"parameters": 1024}}
    ).splitlines()
    assert " ".join(head.split()) == "parameters gradients optimizer state activations buffers"
    assert " ".join(row.split()) == "worker:0 2 KiB 0 B 0 B 3 B 0 B"
    assert " ".join(formula.split()) == "by the formula 1 KiB - - - -"
    assert measures.memory_line(counted["worker:0"]) == "2 KiB: 2 KiB parameters, 3 B activations"
