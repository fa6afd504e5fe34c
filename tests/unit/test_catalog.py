"""The catalogue: bad input is refused in one line before anything starts, and every entry leads to
a role function.
"""

import ast
import json
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import course_lib
from course_lib import hardware, launch
from course_lib.errors import SpecError, Unavailable
from course_lib.spec.fields import Link
from course_lib.spec.run_spec import RunSpec
from course_lib.strategies import catalog, trial
from course_lib.strategies.catalog import STRATEGIES
from course_lib.strategies.gate import requested
from tests.helpers import planned, refused, spec_for
from tests.screens import says

LAPTOP: Any = SimpleNamespace(gpus=(), cuda_frameworks=(), tpu=False, cores=2)
SERVER: Any = SimpleNamespace(gpus=("a", "b"), cuda_frameworks=("torch",), tpu=False, cores=64)


def test_a_strategy_brings_its_usual_number_of_workers() -> None:
    assert spec_for("one_device").workers == 1
    assert spec_for("multi_worker_mirrored").workers == 4
    assert (
        spec_for("multi_worker_mirrored", workers=2, framework=None, run_dir=None)
        == RunSpec(workers=2).complete()
    )


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("multi_worker_mirored", {}),
        ("ddp", {}),
        ("FSDP", {}),
        ("xyzzy", {}),
        ("one_device", {"framework": "pytorch"}),
        ("fully_sharded", {"framework": "tensorflow"}),
        ("mirrored", {"workers": 100}),
        ("mirrored", {"slow": {"worker:1": 3.0}}),
        ("multi_worker_mirrored", {"backups": 2}),
        ("one_device", {"framework": "tensorflw"}),
        ("one_device", {"framework": "python"}),
        ("one_device", {"workload": "digit_cnn"}),
        ("one_device", {"workers": 3}),
        ("one_device", {"workers": 0}),
        ("multi_worker_mirrored", {"workers": -1}),
        ("multi_worker_mirrored", {"workers": 10_000}),
        ("multi_worker_mirrored", {"workers": "many"}),
        ("multi_worker_mirrored", {"global_batch": 30}),
        ("multi_worker_mirrored", {"slow": {"worker:9": 2.0}}),
        ("multi_worker_mirrored", {"ps": 2}),
        ("multi_worker_mirrored", {"chief": True}),
        ("multi_worker_mirrored", {"step": 3}),
        ("mirrored", {"emulate": True}),
        ("mirrored", {"bucket_mb": 2.0}),
        ("parameter_server", {"overlap": False}),
        ("one_device", {"all_reduce": "nccl"}),
        ("mirrored", {"pipeline": "gpipe"}),
        ("parameter_server", {"slow": {"ps:0": 2.0}}),
        ("tensor_parallel", {"workers": 3}),
        ("mirrored", {"workers": 3, "global_batch": 128}),
        ("one_device", {"evaluate_every": 5, "trace": False}),
    ],
)
def test_bad_input_names_the_field_the_value_and_what_is_allowed(
    name: str, given: dict[str, Any]
) -> None:
    assert refused("catalog", name, **given).field in {*given, "strategy", "field"}


OF_SOME = {field for strategy in STRATEGIES.values() for field in strategy.takes}
ROWS = [
    (name, framework)
    for name, strategy in STRATEGIES.items()
    for framework, jobs in strategy.programs.items()
    if jobs
]


def given_for(name: str) -> dict[str, Any]:
    return {"emulate": True} if name == "tpu" else {}


OWN = [
    (name, field)
    for name, strategy in STRATEGIES.items()
    for field in sorted(OF_SOME - {*strategy.takes})
]


@pytest.mark.parametrize(("name", "field"), OWN)
def test_what_was_set_counts_even_if_it_is_the_default(name: str, field: str) -> None:
    given = {"emulate": False, "overlap": True, "bucket_mb": 1.0}
    usual = given.get(field, RunSpec.model_fields[field].default or "hierarchical_copy")
    with pytest.raises(SpecError, match=f"{name} has no use") as caught:
        spec_for(name, **{"framework": None, **given_for(name), field: usual})
    assert caught.value.field == field


def test_the_sizes_of_a_model_are_those_of_its_workload() -> None:
    assert spec_for("one_device", workload="wide").sizes == {"parameters": 1_000_000}
    assert spec_for("one_device").sizes == {}
    with pytest.raises(SpecError, match="sizes='parameters'"):
        spec_for("one_device", sizes={"parameters": 1_000_000})


def test_what_only_some_take_is_a_field_of_the_spec() -> None:
    assert set(RunSpec.model_fields) >= OF_SOME


@pytest.mark.parametrize(("name", "framework"), ROWS)
def test_a_saved_spec_says_what_its_run_had_a_use_for_and_can_be_run_again(
    name: str, framework: str
) -> None:
    trained: dict[str, Any] = {
        "workload": "wide",
        "sizes": {"parameters": 30_010},
        "optimizer": "adamw",
    }
    spec = spec_for(name, framework=framework, **trained, **given_for(name))
    written = spec.model_dump_json()
    unused = OF_SOME - {*STRATEGIES[name].takes} | {"loss_scale"}
    assert json.loads(written).keys() == RunSpec.model_fields.keys() - unused
    again = RunSpec.model_validate_json(written)
    assert spec_for(again) == spec
    assert again.model_dump_json() == written


ONE_HOST = {
    *(("one_device", framework) for framework in ("tensorflow", "torch")),
    *((name, "tensorflow") for name in ("mirrored", "tpu", "central_storage", "tensor_parallel")),
    *((name, "torch") for name in ("mirrored", "central_storage")),
}


@pytest.mark.parametrize(("name", "framework"), ROWS)
def test_hosts_and_links_are_refused_with_the_reason_if_workers_cannot_be_on_several(
    name: str, framework: str
) -> None:
    fast = Link(mbit=500)
    spread: list[dict[str, Any]] = [
        {"hosts": 2},
        {"hosts": 2, "link": fast},
        {"hosts": 2, "link": {1: fast}},
        {"placement": {"worker:1": 1}},
    ]
    whys: set[tuple[str, str]] = set()
    for given in spread:
        given |= {"workers": 2, "framework": framework, **given_for(name)}
        if (name, framework) in ONE_HOST:
            for what, fields in ((name, given), (RunSpec(strategy=name, **given), {})):
                with pytest.raises(SpecError) as caught:
                    spec_for(what, **fields)
                whys.add((caught.value.field, caught.value.allowed))
        else:
            assert spec_for(name, **given).hosts == 2
    if (name, framework) in ONE_HOST:
        assert [field for field, _ in sorted(whys)] == ["hosts", "placement"]
        says("catalog", f"{name} with {framework} on hosts", "\n".join({why for _, why in whys}))
        with pytest.raises(SpecError, match=r"link='500 Mbit/s, 0 ms': .*one host"):
            spec_for(name, framework=framework, link=fast, **given_for(name))
        assert spec_for(name, framework=framework, hosts=1, **given_for(name)).hosts == 1


def test_without_a_framework_a_strategy_has_the_usual_one_or_its_only_one() -> None:
    assert spec_for("fully_sharded").framework == "torch"
    assert spec_for("mirrored").framework == "tensorflow"


@pytest.mark.parametrize("name", STRATEGIES)
def test_who_takes_an_all_reduce_of_ours_has_one_to_replace_and_the_plan_says_it_of_others(
    name: str,
) -> None:
    for framework, jobs in STRATEGIES[name].programs.items():
        if jobs:
            fields = {"framework": framework, "emulate": name == "tpu" or None}
            request = requested(name, fields)
            reasons = planned(name, **fields).reasons
            (reason,) = (r for r in reasons if r.what == "all-reduce")
            its = STRATEGIES[name].all_reduce(request.spec, request.model)
            assert (reason.choice in ("ring", "gloo", "nccl")) == (its is None)
            if not STRATEGIES[name].takes_schedule:
                refusal = (
                    "no all-reduce to replace" if reason.choice == "none" else "framework's own"
                )
                with pytest.raises(SpecError, match=refusal):
                    spec_for(name, **fields, all_reduce="ring")


def test_mirrored_with_torch_names_the_same_program_that_takes_an_all_reduce_of_ours() -> None:
    with pytest.raises(SpecError, match=r"mirrored .*; multi_worker_mirrored"):
        spec_for("mirrored", framework="torch", all_reduce="ring")


def test_replicas_of_one_process_may_be_given_by_their_own_name() -> None:
    by_name, as_workers = (
        spec_for("mirrored", framework="tensorflow", **given)
        for given in ({"replicas": 2}, {"workers": 2})
    )
    assert (
        (by_name.workers, by_name.replicas) == (as_workers.workers, as_workers.replicas) == (1, 2)
    )


def test_fields_beside_a_ready_made_spec_are_refused_and_not_forgotten() -> None:
    with pytest.raises(SpecError, match=r"steps=5: .*RunSpec\(\.\.\., steps=\.\.\.\)"):
        course_lib.start(RunSpec(workers=2), steps=5)


def test_what_a_ready_made_spec_leaves_open_is_as_the_strategy_usually_has_it() -> None:
    assert spec_for(RunSpec(strategy="one_device")) == spec_for("one_device")
    given = {"framework": "torch", "workers": 2, "steps": 7}
    assert spec_for(RunSpec(strategy="parameter_server", **given)) == spec_for(
        "parameter_server", **given
    )


def test_a_ready_made_spec_is_checked_too() -> None:
    with pytest.raises(SpecError, match=r"workers=2: .* 1;"):
        spec_for(RunSpec(strategy="one_device", workers=2))


def test_a_framework_that_is_not_installed_is_unavailable_with_its_cure(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(catalog.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(Unavailable) as caught:
        spec_for("one_device", framework="torch")
    assert caught.value.what == "torch" and "pip install torch" in caught.value.cure
    says("catalog", "not installed", caught.value)
    rows = catalog.rows(LAPTOP)
    assert {row["reality"] for row in rows} == {"unavailable"}
    assert all(f"pip install {row['framework']}" in row["cure"] for row in rows)


def test_rows_say_what_is_real_on_this_machine() -> None:
    laptop = {(row["strategy"], row["framework"]): row for row in catalog.rows(LAPTOP)}
    server = {(row["strategy"], row["framework"]): row for row in catalog.rows(SERVER)}
    assert {row["reality"] for (name, _), row in laptop.items() if name != "tpu"} == {"measured"}
    assert laptop["tpu", "tensorflow"]["reality"] == "unavailable"
    assert "--emulate" in laptop["tpu", "tensorflow"]["cure"]
    assert "gloo" in laptop["multi_worker_mirrored", "torch"]["why"]
    assert "NCCL" in server["multi_worker_mirrored", "torch"]["why"]
    assert "RING" in server["multi_worker_mirrored", "tensorflow"]["why"]


@pytest.mark.parametrize("name", STRATEGIES)
def test_every_entry_is_complete_and_leads_to_its_role_functions(name: str) -> None:
    strategy = STRATEGIES[name]
    assert strategy.name == name
    assert all(strategy.facts.values())
    for jobs in strategy.programs.values():
        for job, path in jobs.items():
            module, _, function = path.partition(":")
            file = (
                Path(course_lib.__file__)
                .parent.parent.joinpath(*module.split("."))
                .with_suffix(".py")
            )
            functions = [
                node.name
                for node in ast.parse(file.read_text()).body
                if isinstance(node, ast.FunctionDef)
            ]
            assert function == job
            assert function in functions


def test_the_plan_says_how_many_updates_asynchronous_steps_make() -> None:
    given = {"framework": "torch", "workers": 4, "steps": 200}
    for name, made in (("parameter_server", ["800"]), ("sync_parameter_server", [])):
        reasons = planned(name, **given).reasons
        assert [reason.choice for reason in reasons if reason.what == "updates"] == made


def test_what_starts_is_looked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """One look at the machine, one spec, one sketch of the model."""
    seen: Counter[str] = Counter()

    def counted(what: str, call: Any) -> Any:
        def counting(*arguments: Any, **named: Any) -> Any:
            seen[what] += 1
            return call(*arguments, **named)

        return counting

    for name, place in (
        ("probe", hardware),
        ("sketch", trial),
        ("__init__", RunSpec),
    ):
        monkeypatch.setattr(place, name, counted(name, getattr(place, name)))
    monkeypatch.setattr(launch, "Run", lambda *_: SimpleNamespace())
    course_lib.start("tensor_parallel", framework="torch", workers=2)
    assert seen == {"probe": 1, "sketch": 1, "__init__": 1}


@pytest.mark.parametrize(
    "name", [name for name in STRATEGIES if STRATEGIES[name].jobs.get("torch")]
)
def test_a_page_begins_with_no_more_than_a_reader_needs_before_the_code(name: str) -> None:
    page = Path(course_lib.__file__).parent / "strategies" / "torch" / f"{name}.py"
    text = ast.get_docstring(ast.parse(page.read_text()))
    assert text and len(text.splitlines()) <= 30
