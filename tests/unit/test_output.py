"""TensorFlow's remarks stay out of a learner's terminal, errors do not; and an answer that prints
for ever, or raises a book, leaves a notebook small.
"""

import os
import subprocess
import sys

import pytest

from course_lib.course.answers import Verdict, check
from course_lib.notebook.output import LEVEL, MOST, few_words, without_remarks


def test_remarks_of_compiled_code_are_held_back_and_errors_are_not(
    capfd: pytest.CaptureFixture[str],
) -> None:
    with without_remarks():
        for line in (
            "WARNING: All log messages before absl::InitializeLog() is called",
            "I0000 00:00:1795395817.722152   24862 cudart_stub.cc:31] Could not find cuda drivers",
            "2026-01-02 03:04:05.678901: I tensorflow/core/platform/cpu_feature_guard.cc:210] This",
            "To enable the following instructions: AVX2 FMA, rebuild TensorFlow",
            "E0000 00:00:1795395817.72 1 cuda_fft.cc:477] Unable to register cuFFT factory",
            "E0000 00:00:1795395817.72 1 env.cc:9] No space left on device",
        ):
            os.write(2, f"{line}\n".encode())
    assert capfd.readouterr().err == (
        "E0000 00:00:1795395817.72 1 env.cc:9] No space left on device\n"
    )


def test_what_was_written_comes_out_also_after_an_error(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ImportError), without_remarks():
        os.write(2, b"libcudart.so.12: wrong version\n")
        raise ImportError
    os.write(2, b"and on\n")
    assert capfd.readouterr().err == "libcudart.so.12: wrong version\nand on\n"


@pytest.mark.timeout(240)
def test_importing_tensorflow_after_us_prints_nothing() -> None:
    code = "import course_lib, keras; print(keras.__version__)"
    quiet = {name: value for name, value in os.environ.items() if name != LEVEL}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, env=quiet)
    assert (done.returncode, done.stderr) == (0, b"")


def test_an_answer_that_prints_for_ever_leaves_a_notebook_small(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with few_words("my_ring"):
        for _ in range(100_000):
            print("round")
            print("!", file=sys.stderr)
    out, err = capsys.readouterr()
    for printed, count in ((out, "600,000"), (err, "200,000")):
        assert len(printed) < MOST + 200
        assert f"my_ring printed {count} characters" in printed


def test_what_an_answer_prints_in_a_check_is_shown_and_bounded(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def my_ring(workers: int) -> object:
        print("with", workers, "x" * 1_000_000)
        raise ValueError("y" * 1_000_000)

    verdict = check("ring", my_ring)
    assert not verdict
    assert "it raises ValueError: yyy" in verdict.text and len(verdict.text) < 5200
    out = capsys.readouterr().out
    assert out.startswith("with ") and len(out) < MOST + 200


def test_a_verdict_is_short_and_orders_nothing_of_a_terminal() -> None:
    assert Verdict("ring", "to do", "a" * 5000).text == "a" * 5000
    assert Verdict("ring", "to do", "a" * 5007).text.endswith("a [... 7 characters more]")
    assert Verdict("ring", "to do", "a\nb\x1b[2J").text == "a\nb?[2J"
