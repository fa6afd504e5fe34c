"""What a wait says while it lasts."""

import io
import sys
import threading
from types import SimpleNamespace

import pytest

from course_lib.commands.terminal import progress as bars
from course_lib.course import answers, check
from course_lib.course.answers import ExerciseTask, Verdict
from course_lib.record import progress
from course_lib.record.progress import Line


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def on_terminal(monkeypatch: pytest.MonkeyPatch, after: float = 0.0) -> Terminal:
    """A terminal in place of stderr, on which lines come `after` so many seconds."""
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.delitem(sys.modules, "IPython", raising=False)
    monkeypatch.setattr(progress, "EVERY", 0.0)
    monkeypatch.setattr(progress, "AFTER", after)
    return terminal


def test_a_short_wait_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    stderr = on_terminal(monkeypatch, after=60.0)
    with Line(lambda: "it runs") as line:
        line()
    assert stderr.getvalue() == ""


def test_on_a_terminal_the_line_is_written_over_and_taken_away_at_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stderr = on_terminal(monkeypatch)
    texts = iter(["step 1", "step 1", "step 2", "the end"])
    with Line(lambda: next(texts)) as line:
        for _ in range(3):
            line()
    assert stderr.getvalue() == "\r\x1b[Kstep 1\r\x1b[Kstep 2\r\x1b[K"


def test_the_outermost_line_speaks_for_the_waits_inside_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stderr = on_terminal(monkeypatch)
    with Line(lambda: "all of it"), Line(lambda: "a part") as inner:
        inner()
    assert "all of it" in stderr.getvalue() and "a part" not in stderr.getvalue()
    with Line(lambda: "later") as alone:
        alone()
    assert "later" in stderr.getvalue()


def test_beside_the_bars_of_a_command_waits_say_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    stderr = on_terminal(monkeypatch)
    with bars(), Line(lambda: "a part") as inner:
        inner()
    assert "a part" not in stderr.getvalue()


def test_a_check_says_that_it_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def judge(task: str, answer: object) -> Verdict:
        with Line(lambda: "a part") as inner:
            inner()
        return Verdict(task, "passed", "")

    stderr = on_terminal(monkeypatch)
    task = ExerciseTask("toy", "toy", ("", "", ""), judge)
    monkeypatch.setattr(answers, "find", lambda name: task)
    assert check("toy", len)
    assert stderr.getvalue() == "\r\x1b[KChecking toy: 0 s\r\x1b[K"


def test_a_run_is_told_with_its_own_seconds_once_it_is_over_and_by_its_name() -> None:
    digest = SimpleNamespace(seconds=6.24, steps_done=0, losses=SimpleNamespace(last=None))
    spec = SimpleNamespace(strategy="gpipe()", own=True, model_fields_set=set())
    run = SimpleNamespace(state="running", digest=digest, spec=spec, standstill=lambda: None)
    says, own = progress.of_run(run), progress.of_run(run, "<lambda>()", lambda digest: 4.36)
    assert (says(), own()) == (
        "gpipe is running after 0 s",
        "your function is running after 0 s",
    )
    run.state = "finished"
    assert (says(), own()) == (
        "gpipe is finished after 6.2 s",
        "your function is finished after 4.4 s",
    )


def test_nothing_is_said_where_there_is_no_terminal_and_from_other_threads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stderr = on_terminal(monkeypatch)

    def wait() -> None:
        with Line(lambda: "it runs") as line:
            line()

    thread = threading.Thread(target=wait)
    thread.start()
    thread.join()
    assert stderr.getvalue() == ""
    monkeypatch.setattr(stderr, "isatty", lambda: False)
    wait()
    assert stderr.getvalue() == ""
