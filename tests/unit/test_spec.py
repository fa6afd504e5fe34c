"""RunSpec: what may be asked for, and how what may not is refused."""

import inspect
from typing import Any

import pytest

from course_lib import race, start
from course_lib.errors import SpecError
from course_lib.spec.fields import Link
from course_lib.spec.run_spec import RunSpec
from tests.helpers import judged


def test_a_spec_goes_to_json_and_back() -> None:
    spec = RunSpec(strategy="one_device", workers=1, slow={"worker:0": 2.0}, device_ms=5)
    assert RunSpec.model_validate_json(spec.model_dump_json()) == spec


def test_json_holds_what_is_set_and_of_a_complete_spec_all_but_what_is_unused() -> None:
    spec = RunSpec(backups=1, hosts=1)  # both are the defaults
    assert spec.model_dump() == {"backups": 1, "hosts": 1}
    complete = spec.complete(unused=("staleness_bound", "pipeline"))
    written = complete.model_dump_json()
    assert set(RunSpec.model_fields) - complete.model_fields_set == {"staleness_bound", "pipeline"}
    again = RunSpec.model_validate_json(written)
    assert again == complete
    assert complete == spec.model_copy(update={"global_batch": 128})
    assert again.model_fields_set == complete.model_fields_set
    assert again.model_dump_json() == written


def test_a_link_between_hosts_needs_two_of_them() -> None:
    for link in (Link(mbit=9), {0: Link(mbit=9)}):
        with pytest.raises(SpecError, match="set hosts to 2 or more") as caught:
            judged(RunSpec(link=link))
        assert caught.value.field == "link"


def test_tasks_are_named_as_tensorflow_names_them() -> None:
    assert RunSpec(workers=2, ps=1, chief=True).tasks == ("chief:0", "worker:0", "worker:1", "ps:0")


@pytest.mark.parametrize(
    ("workers", "batch"), [(1, 128), (2, 128), (3, 126), (4, 128), (100, 100), (200, 200)]
)
def test_the_default_batch_divides_over_any_number_of_workers(workers: int, batch: int) -> None:
    assert RunSpec(workers=workers).batch == batch


@pytest.mark.parametrize(
    ("field", "fields", "says"),
    [
        ("workers", {"workers": 0}, "1 to 256"),
        ("workers", {"workers": -1}, "1 to 256"),
        ("workers", {"workers": 10_000}, "1 to 256"),
        ("workers", {"workers": 2.5}, "whole number"),
        ("workers", {"workers": True}, "whole number"),
        ("workers", {"workers": "many"}, "whole number"),
        ("framework", {"framework": "jax"}, "tensorflow"),
        ("global_batch", {"global_batch": 100, "workers": 3}, "99 or 102"),
        ("global_batch", {"global_batch": 2, "workers": 4}, "such as 4"),
        (
            "global_batch",
            {"global_batch": 4, "workers": 1, "replicas": 3},
            "over 3 devices",
        ),
        ("steps", {"steps": 0}, "1 to 1000000"),
        ("engine", {"engine": "rya"}, "did you mean 'ray'"),
        ("engine", {"engine": "10.0.0.1:6379"}, "such as ray:10.0.0.1:6379"),
        ("seed", {"seed": -5}, "0 to"),
        ("device_ms", {"device_ms": -1}, "from 0"),
        ("device_ms", {"device_ms": float("nan")}, "from 0"),
        ("learning_rate", {"learning_rate": 0}, "above 0"),
        ("slow", {"slow": {"worker:9": 2}}, "worker:0 to worker:3"),
        ("slow", {"slow": "worker:1"}, '{"worker:1": 3}'),
        ("placement", {"placement": "worker:1"}, '{"worker:1": 1}'),
        ("slow", {"slow": {"worker:1": 0.5}}, "a factor from 1"),
        ("field", {"wrkers": 4}, "did you mean 'workers'"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(
    field: str, fields: dict[str, object], says: str
) -> None:
    with pytest.raises(SpecError) as caught:
        judged(RunSpec(**fields))
    assert caught.value.field == field
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", ["worker:1", "worker:1=fast", "worker:1=", "worker:1=1.2.3"])
def test_a_straggler_that_cannot_be_read_is_refused(text: str) -> None:
    with pytest.raises(SpecError, match="worker:1=3"):
        RunSpec(slow=[text])


def test_what_is_said_of_single_tasks_is_read_from_text() -> None:
    assert RunSpec(slow=["worker:1=3", "worker:2=1.5"]).slow == {"worker:1": 3, "worker:2": 1.5}
    assert RunSpec(placement="worker:1=1").complete().hosts == 2
    with pytest.raises(SpecError, match="0 to 255"):
        RunSpec(placement="worker:1=1.5")


def test_a_number_below_0_is_told_what_may_be() -> None:
    with pytest.raises(SpecError, match="a factor from 1"):
        RunSpec(slow="worker:1=-3")
    for text, says in (("1=-50", "above 0"), ("1=50,-2", "from 0")):
        with pytest.raises(SpecError, match=says):
            RunSpec(link=[text])


@pytest.mark.parametrize("function", [start, race])
def test_help_lists_every_field_that_can_be_given_with_its_default(function: Any) -> None:
    parameters, about = inspect.signature(function).parameters, inspect.getdoc(function) or ""
    for name, field in RunSpec.model_fields.items():
        if name not in ("strategy", "chief"):
            assert parameters[name].default == field.default
            assert f"    {name}: {field.title}" in about
    assert parameters["workers"].annotation is int and "\nEmulated time:\n    device_ms:" in about
    assert not any(each.kind is each.VAR_KEYWORD for each in parameters.values())
