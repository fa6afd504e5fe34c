"""What IPython completes: fields, names of strategies and algorithms, and values of fields."""

import inspect
import re
import typing
from collections.abc import Iterator
from typing import Any

import pytest
from IPython.core.completer import provisionalcompleter
from IPython.core.interactiveshell import InteractiveShell

from course_lib import RunSpec, race, stage, start
from course_lib.launch import names_for
from course_lib.notebook import shell as ipython
from course_lib.spec.run_spec import NOT_GIVEN
from course_lib.strategies.catalog import STRATEGIES, StrategyName


@pytest.fixture(scope="module")
def shell() -> Iterator[Any]:
    shell = InteractiveShell.instance()
    shell.run_cell("from course_lib import Link, allreduce, compare, race, stage, start")
    ipython.complete(names_for)  # launch was imported before there was a shell
    ipython.complete(names_for)
    yield shell
    InteractiveShell.clear_instance()


@pytest.mark.parametrize("jedi", [True, False])
@pytest.mark.parametrize(
    ("code", "first"),
    [
        ('start("one_device", wor', ["workers=", "workload="]),
        ('race("one_device", "mirrored", devi', ["device_ms="]),
        ('stage("ring", wor', ["workers="]),
        ('start("mul', ["multi_worker_mirrored"]),
        ('race("one_device", "para', ["parameter_server"]),
        ('run = start(\n    "one_device",\n    framework="', ["python", "tensorflow", "torch"]),
        ("start(optimizer='mo", ["momentum"]),
        ('race({"strategy": "one', ["one_device"]),
        ('start("one_device", workload="dig', ["digits", "digits_cnn", "digits_deep"]),
        ('allreduce("4MiB", "hi', ["hierarchical"]),
        ('compare("4MiB", ["ring", "dou', ["double_tree"]),
        ('stage("dir', ["direct"]),
    ],
)
def test_a_name_that_is_begun_is_completed(
    shell: Any, jedi: bool, code: str, first: list[str]
) -> None:
    shell.Completer.use_jedi = jedi
    with provisionalcompleter():
        found = {each.text for each in shell.Completer.completions(code, len(code))}
    assert {text.strip("\"'") for text in found} == set(first)


@pytest.mark.parametrize(
    "code", ['print("mul', 'start("one_device")\nprint("mul', 'start(slow={"wor', 'x = "mul', ""]
)
def test_elsewhere_nothing_of_ours_is_offered(code: str) -> None:
    assert ipython.values(code, names_for) == []


@pytest.mark.parametrize("function", [start, race])
def test_the_signature_has_every_field_with_its_type_and_default(function: Any) -> None:
    parameters = inspect.signature(function).parameters
    assert not any(each.kind == each.VAR_KEYWORD for each in parameters.values())
    for name, field in RunSpec.model_fields.items():
        if name in NOT_GIVEN:
            continue
        assert parameters[name].default == field.default
        assert parameters[name].annotation == typing.get_type_hints(RunSpec)[name]
        assert re.search(rf"^    {name}: .+ \(.+\)$", function.__doc__, re.MULTILINE)
    assert "workers" in inspect.signature(stage).parameters


def test_the_type_of_a_strategy_s_name_is_the_catalogue_and_stands_in_start_and_race() -> None:
    assert list(typing.get_args(StrategyName)) == list(STRATEGIES)
    for function, first in ((start, "what"), (race, "entrants")):
        names, *others = typing.get_args(typing.get_type_hints(function)[first])
        # mypy, which reads all of the package, would take any text beside them
        assert names == StrategyName and str not in others
