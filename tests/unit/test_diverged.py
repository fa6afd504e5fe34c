"""A loss that becomes NaN, or gradients that train nothing: said in one line wherever a run is
shown.
"""

import json
import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from course_lib.commands.terminal import strict
from course_lib.racing.comparison import Comparison, Figures
from course_lib.racing.fairness import Fairness
from course_lib.record.digest import Digest
from course_lib.record.events import Metric
from course_lib.record.trace import Trace
from course_lib.widgets.board import pictures
from course_lib.widgets.board.view import View
from tests.made_up import BATCH, SPEC, lockstep

SAID = "The loss of worker:0 became nan in step 6: lower learning_rate."


def losing(*steps: int, value: float = math.nan, count: int = 40) -> Trace:
    """A training of two workers whose loss is not finite in these steps."""
    return Trace(
        [
            e._replace(value=value) if isinstance(e, Metric) and e.step in steps else e
            for e in lockstep(count)
        ]
    )


def test_the_first_loss_that_is_not_finite_is_told_with_its_step_its_task_and_the_cure() -> None:
    assert Digest(SPEC, losing(*range(6, 40))).update(over=True).diverged == SAID
    assert Digest(SPEC, losing()).update(over=True).diverged == ""
    infinite = Digest(SPEC, losing(3, value=math.inf)).update(over=True)
    assert "inf in step 3" in infinite.diverged
    half = Digest(SPEC.model_copy(update={"precision": "float16"}), losing(3)).update(over=True)
    assert half.diverged.endswith("lower learning_rate, or precision=bfloat16.")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("overflow", "overflowed: leave loss_scale out, or set a smaller one."),
        ("zeros", "were zero: leave loss_scale out, or set a larger one."),
    ],
)
def test_a_fixed_loss_scale_that_trains_nothing_is_told_with_the_cure(name: str, said: str) -> None:
    def told(steps: int, good: int = -1, **fields: Any) -> str:
        found = []
        for step in range(steps):
            useless = {"overflow": name == "overflow" and step != good}
            useless |= {} if useless["overflow"] else {"zeros": 1.0 if step != good else 0.5}
            found += [Metric("worker:0", *each, step, 0, step) for each in useless.items()]
        spec = SPEC.model_copy(update={"precision": "float16", "loss_scale": 1e9} | fields)
        return Digest(spec, Trace(found)).update(over=True).diverged

    assert told(10) == f"All 10 gradients so far {said}"
    assert told(4) == told(10, good=3) == told(10, loss_scale="dynamic") == ""


def test_it_counts_in_the_means_of_its_own_windows_only() -> None:
    found, whole = (Digest(SPEC, trace).update(over=True).losses for trace in (losing(6), losing()))
    lost = np.isnan(found.means)
    assert np.flatnonzero(lost).tolist() == list(range(6, 16))  # a window is 10 batches
    assert found.means[~lost] == pytest.approx(whole.means[~lost])
    assert np.isfinite(found.best).all()


def test_a_race_says_whose_it_is_and_its_json_has_null() -> None:
    digests = {
        label: Digest(SPEC, trace).update(over=True)
        for label, trace in (("fast", losing(*range(6, 40))), ("slow", lockstep(40)))
    }
    entrants = [Figures(label, digest, "finished") for label, digest in digests.items()]
    found = Comparison(entrants, Fairness(True, "Fair: nobody waited."))
    assert f"fast: {SAID}" in found.words()
    assert not any(words.startswith("slow: ") for words in found.words())
    fast = json.loads(json.dumps(strict(found.as_dict()), allow_nan=False))["entrants"]["fast"]
    assert (fast["loss"], fast["diverged"], fast["examples"]) == (None, SAID, 40 * BATCH)


def test_boards_say_it_beside_the_headline() -> None:
    def view_of(**traces: Trace) -> View:
        run = {"spec": SPEC, "state": "finished", "result": None}
        view = View(
            {
                label: SimpleNamespace(
                    **run, trace=each, digest=Digest(SPEC, each).update(over=True)
                )
                for label, each in traces.items()
            }
        )
        view.update()
        return view

    view = view_of(mine=losing(*range(6, 40)))
    assert view.detail() == SAID
    assert SAID in pictures.head(view) and "lk-unfair" in pictures.head(view)
    both = view_of(fast=losing(*range(6, 40)), slow=lockstep(40))
    assert both.detail().startswith(f"fast: {SAID}")
