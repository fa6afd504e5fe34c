"""Words that are put together."""

import numpy as np
import pytest

from course_lib.text import kind_of


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (None, "nothing"),
        (1, "an int"),
        ([], "a list"),
        (np.ones(1), "an ndarray"),
        (object(), "an object"),
        (set(), "a set"),
    ],
    ids=lambda each: type(each).__name__,
)
def test_a_kind_has_its_article(value: object, words: str) -> None:
    assert kind_of(value) == words
