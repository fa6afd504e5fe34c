"""How a notebook shows a run."""

import re
from html import unescape
from typing import Any

import pytest

from course_lib import Run, start
from course_lib.errors import TaskFailed

TWO: dict[str, Any] = {"framework": "torch", "workers": 2}


def shown(run: Run) -> str:
    """As text; the page says the same."""
    bundle = run._repr_mimebundle_()
    text, page = bundle["text/plain"], unescape(bundle["text/html"])
    for line in text.splitlines()[1:]:
        assert all(part in page for part in re.split(r"\s{2,}", line.strip()))
    assert str(run.run_dir) in text
    return text


def test_a_run_that_goes_on_says_how_far_it_is_and_what_can_be_done_with_it() -> None:
    with start("multi_worker_mirrored", steps=100_000, **TWO) as run:
        text = shown(run.wait_step(3))
        assert re.search("is running: step [0-9,]+ of 100,000", text)
        for code in ("run.wait()", "run.stop()", 'run.slow("worker:1", 4)', "TrainingBoard(run)"):
            assert code in text
        assert "run.result" not in text
        run.slow("worker:1", 4)  # as it says
    assert "is stopped: step" in shown(run)
    assert "run.result" in shown(run) and "run.model()" not in shown(run)


def test_a_finished_run_leads_to_its_result_and_model() -> None:
    text = shown(start("one_device", framework="torch", steps=3).wait(60))
    assert "is finished: step 3" in text
    assert all(code in text for code in ("run.result", "Timeline(run)", "run.model()"))


def test_a_failed_run_says_what_ended_it() -> None:
    run = start(lambda: 1 / 0, workers=2)
    with pytest.raises(TaskFailed):
        run.wait(60)
    text = shown(run)
    assert "has failed: worker:" in text and "ZeroDivisionError: division by zero" in text
    assert "run.result" not in text and "run.wait()" not in text
