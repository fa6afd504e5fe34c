"""Known failures of the frameworks come with their cure, and without pages of numbers."""

import re
from typing import Any

import numpy as np
import pytest

from course_lib import start
from course_lib.errors import TaskFailed
from tests import own_mistakes
from tests.own_mistakes import Mistake
from tests.screens import says

MISTAKES = [
    pytest.param(framework, mistake, id=mistake.__name__)
    for framework, mistakes in (
        ("tensorflow", own_mistakes.TENSORFLOW),
        ("torch", own_mistakes.TORCH),
    )
    for mistake in mistakes
]
NUMBERS = re.compile(r"(-?\d+\.\d+(e[-+]\d+)?[\s,]+){10}")


def failure(function: Any, framework: str, workers: int = 2) -> TaskFailed:
    with pytest.raises(TaskFailed) as caught:
        start(function, framework=framework, workers=workers).wait(90)
    return caught.value


@pytest.mark.sample(3)
@pytest.mark.parametrize(("framework", "mistake"), MISTAKES)
def test_a_known_failure_has_its_cure_in_the_line_below_the_error(
    framework: str, mistake: Mistake
) -> None:
    error = failure(mistake, framework)
    says("known_failures", mistake.__name__, error.cure)
    before, line, after = str(error).partition(f"\nCure: {error.cure}.\n")
    assert error.cure and "\n" not in error.cure
    assert before.endswith(error.reason) and line and "--- traceback on worker:" in after
    assert mistake.__name__ in after
    assert len(error.reason) < 1300 and not NUMBERS.search(str(error))


@pytest.mark.parametrize(
    "function",
    [
        own_mistakes.fit_on_several_workers,
        own_mistakes.call_outside_of_run_on_workers,
        own_mistakes.call_outside_of_run_mirrored,
    ],
)
def test_an_error_with_values_of_replicas_is_a_few_lines_with_both_its_ends(function: Any) -> None:
    reason = failure(function, "tensorflow").reason
    assert "PerReplica" in reason and "..." in reason
    assert len(reason) < 700 and reason.count("\n") < 15


@pytest.mark.parametrize("framework", ["python", "tensorflow", "torch"])
def test_arrays_in_a_message_keep_their_ends_in_the_error_and_in_its_traceback(
    framework: str,
) -> None:
    def work() -> None:
        values = np.arange(900).reshape(30, 30) / 1000
        kinds: list[Any] = [values, values.tolist(), list(values[:9].ravel()), values > 0.5]
        if framework == "torch":
            import torch

            kinds += [torch.tensor(values), torch.tensor(values, requires_grad=True)]
        elif framework == "tensorflow":
            import tensorflow as tf

            kinds += [tf.constant(values), tf.Variable(values)]
        message = "; ".join(f"got {kind!r}, not an image" for kind in kinds)
        raise ValueError(message)  # a line that the traceback shows

    error = failure(work, framework, 1)
    for text in (error.reason, error.remote_traceback):
        assert text.count("got ") == text.count("not an image") == text.count("...") > 3
        assert text.count("0.899") == text.count("0.001") - 1 > 1  # one is shorter, one of bools
        assert len(text) < 1200
    assert error.cure == "" and "\nCure: " not in str(error)
