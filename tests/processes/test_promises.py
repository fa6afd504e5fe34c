"""`check_strategy` refuses strategies that break their promise, in words that name the mistake, and
lets pass those that keep it.
"""

import re
from typing import Any

import pytest

from course_lib import check_strategy
from course_lib.errors import SpecError
from course_lib.racing.promises import promised
from course_lib.strategies import catalog
from tests.wrong_pages import RIGHT, WRONG

MOMENTUM = {"loses_its_momentum", "keeps_its_momentum"}


def fields(name: str) -> dict[str, Any]:
    return {"optimizer": "momentum"} if name in MOMENTUM else {}


@pytest.mark.sample(4)
@pytest.mark.parametrize("name", WRONG)
def test_a_strategy_that_breaks_its_promise_is_refused_in_words_that_name_the_mistake(
    name: str,
) -> None:
    page, words = WRONG[name]
    findings = check_strategy(page, **fields(name))
    assert not findings
    assert re.search(words, findings.findings[-1].why), findings
    assert [each.state for each in findings.findings[:-1]].count("broken") == 0


@pytest.mark.sample(4)
@pytest.mark.parametrize("name", RIGHT)
def test_an_unusual_strategy_that_keeps_its_promise_passes(name: str) -> None:
    assert (findings := check_strategy(RIGHT[name], **fields(name))), findings


def test_forty_mistakes_and_ten_unusual_ways_are_known() -> None:
    assert len(WRONG) >= 40 and len(RIGHT) >= 10


@pytest.mark.sample(3)
@pytest.mark.parametrize("name", [n for n in catalog.STRATEGIES if catalog.carries_over(n)])
def test_the_synchronous_strategies_of_the_library_keep_the_same_promise(name: str) -> None:
    if catalog.find(name).max_workers == 1 or name == "tpu":
        pytest.skip("it has one worker, or needs a TPU")
    assert (findings := check_strategy(name, framework="torch")), findings


@pytest.mark.parametrize(
    ("wire", "workers", "times"),
    [("2(n-1)/n S", 4, 1.5), ("S", 3, 1.0), ("2S/8", 2, 0.25), ("(n - 1) S", 4, 3.0)],
)
def test_a_promise_of_bytes_is_a_formula_of_workers_and_parameters(
    wire: str, workers: int, times: float
) -> None:
    assert promised(wire, workers, 1000) == pytest.approx(1000 * times)


@pytest.mark.parametrize("wire", ["two S", "__import__('os')", "2(n-1", "S/0", ""])
def test_what_is_no_formula_is_refused(wire: str) -> None:
    with pytest.raises(SpecError, match="a formula of n"):
        promised(wire, 2, 1000)
