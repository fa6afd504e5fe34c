"""The table of known failures, and texts without long arrays."""

import pytest

from course_lib.cures import CURES, cure_of
from course_lib.errors import TaskFailed
from course_lib.text import shortened
from tests.screens import says

GPU = [
    (
        "OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has a total "
        "capacity of 15.77 GiB of which 12.88 MiB is free."
    ),
    (
        "ResourceExhaustedError: Graph execution error:\n\nOOM when allocating tensor with shape"
        "[512,64,224,224] and type float on /job:localhost/replica:0/task:0/device:GPU:0"
    ),
    ("ValueError: ProcessGroupNCCL is only supported with GPUs, no GPUs found!"),
    (
        "RuntimeError: Expected all tensors to be on the same device, but found at least two "
        "devices, cuda:0 and cpu!"
    ),
    (
        "DistNetworkError: The server socket has failed to listen on any local network address. "
        "port: 29500, useIpv6: false, code: -98, name: EADDRINUSE, message: address already in use"
    ),
]
"""What only machines with GPUs or other programs on them say."""


@pytest.mark.parametrize("reason", GPU)
def test_errors_of_other_machines_have_their_cure(reason: str) -> None:
    says("cures", reason.partition(":")[0], TaskFailed("worker:0", 3, reason).cure)


@pytest.mark.parametrize("cure", CURES.values())
def test_a_cure_is_one_short_line(cure: str) -> None:
    assert "\n" not in cure and not cure.endswith(".") and len(cure) < 240


@pytest.mark.parametrize(
    "reason",
    [
        "its process was killed by SIGKILL (the system may have run out of memory)",
        "it was paused, and worker:1 gave up waiting: RuntimeError: Connection closed by peer",
        "it called sys.exit(3); return from the function instead",
        "AssertionError",
        "KeyError: 'loss'",
    ],
)
def test_an_error_whose_cause_is_told_or_that_is_the_learners_own_has_no_cure(reason: str) -> None:
    assert (
        cure_of(reason, '  File "mine.py", line 3, in work\n    assert x\nAssertionError\n') == ""
    )


def test_a_text_without_long_arrays_stays_as_it_is() -> None:
    text = "shapes [3, 4] and (5, 6): " + ", ".join(f"layer {i} of {{'a': {i}}}" for i in range(40))
    assert shortened(text, 2000) == text


def test_of_a_long_text_the_ends_are_kept() -> None:
    text = shortened("first " + "x" * 9000 + " last", 600)
    assert text.startswith("first ") and "[...]" in text and text.endswith(" last")
    assert len(text) < 610


@pytest.mark.parametrize(
    "part", ["[", "[1, ", "1, ", "1,", " ", "1" * 70 + " ", "1 2 3" + "," * 99]
)
def test_whatever_a_text_is_made_of_it_is_shortened(part: str) -> None:
    for text in (part * 20_000, f"[{part * 20_000}x", f"1 {part * 20_000}\n]"):
        assert len(shortened(text, 600)) < 610
