"""What a learner sees of an error: their own lines, and one line for calls inside ours."""

import json
import linecache
import pickle
from typing import Any

import numpy as np
import pytest
from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.capture import capture_output

from course_lib import start
from course_lib.errors import Interrupted, SpecError
from course_lib.notebook import shell as ipython


@pytest.fixture
def shell() -> Any:
    shell = InteractiveShell.instance(colors="nocolor")
    yield shell
    InteractiveShell.clear_instance()


def shown(shell: Any, cell: str) -> str:
    with capture_output() as out:
        shell.run_cell(cell)
    return str(out.stdout)


def test_a_notebook_shows_the_learners_lines_and_the_message_and_tb_shows_all(shell: Any) -> None:
    said = shown(shell, "from course_lib import start\n\nstart('one_device', wrkers=3)")
    assert "----> 3 start('one_device', wrkers=3)" in said
    assert said.rstrip().endswith("SpecError: field='wrkers': did you mean 'workers'?")
    assert "course_lib/" not in said and "contextlib.py" not in said
    whole = shown(shell, "%tb")
    assert "course_lib/launch.py" in whole and "----> 3 start('one_device', wrkers=3)" in whole
    assert "course_lib/" in shown(shell, "%tb")  # as often as it is asked for


def test_a_learners_function_that_ours_calls_is_shown(shell: Any) -> None:
    cell = "from course_lib import allreduce\ndef mine(workers):\n    return None\n\n"
    said = shown(shell, f"{cell}allreduce('4KiB', mine)")
    assert "must return a Schedule" in said
    cell = (
        "from course_lib.errors import LockstepError\ndef mine(workers):\n    raise LockstepError"
    )
    said = shown(shell, f"{cell}('no')\n\nallreduce('4KiB', mine)")
    assert "raise LockstepError('no')" in said and "allreduce('4KiB', mine)" in said
    assert "course_lib/" not in said


def test_an_interrupted_wait_is_shown_like_an_error(shell: Any) -> None:
    said = shown(
        shell, "from course_lib.errors import Interrupted\nraise Interrupted('it goes on')"
    )
    assert said.rstrip().endswith("Interrupted: it goes on")
    assert issubclass(Interrupted, KeyboardInterrupt)


def test_an_error_that_was_shown_can_be_sent_to_another_process(shell: Any) -> None:
    try:
        start("one_device", batch=64)
    except SpecError as error:
        assert error._render_traceback_()
        assert str(pickle.loads(pickle.dumps(error))) == str(error)


def failing(values: list[float]) -> None:
    np.linalg.inv(np.zeros((2, 3)))


def test_calls_in_a_library_are_one_line_and_the_learners_lines_are_whole() -> None:
    try:
        failing([])
    except np.linalg.LinAlgError as error:
        text = ipython.in_words(error, "", {})
    assert "in failing\n    np.linalg.inv(np.zeros((2, 3)))" in text
    assert "call" in text and " inside numpy (" in text and "def " not in text
    assert text.endswith("LinAlgError: Last 2 dimensions of the array must be square\n")


def test_an_error_of_ours_alone_keeps_all_its_lines() -> None:
    try:
        start("one_device", batch=64)
    except SpecError as error:
        ours = ipython.in_words(error, __file__, {})
    assert ours.count("course_lib/") > 2 and "... " not in ours


def test_a_cell_is_called_by_its_number_in_a_task_that_cannot_read_it(shell: Any) -> None:
    shell.run_cell("def mine():\n    return 1 / 0", store_history=True)
    cells = json.loads(json.dumps(ipython.cells()))
    try:
        shell.user_ns["mine"]()
    except ZeroDivisionError as error:
        for name in cells:
            linecache.cache.pop(name)
        text = ipython.in_words(error, __file__, cells)
    assert text.startswith('  File "Cell In[1]", line 2, in mine\n    return 1 / 0\n')
    assert ipython.cells()  # and a notebook's own are not lost


MEANT = {
    "batch": "global_batch",
    "batch_size": "global_batch",
    "lr": "learning_rate",
    "world_size": "workers",
    "wrkers": "workers",
    "model": "workload",
}


@pytest.mark.parametrize(("name", "meant"), MEANT.items())
def test_names_that_others_use_lead_to_ours(name: str, meant: str) -> None:
    with pytest.raises(SpecError) as refused:
        start("one_device", **{name: 64})
    assert str(refused.value) == f"field={name!r}: did you mean {meant!r}?"


def test_a_name_that_is_like_no_other_gets_the_whole_list() -> None:
    with pytest.raises(SpecError, match=r"field='zzz': allowed:"):
        start("one_device", zzz=64)
