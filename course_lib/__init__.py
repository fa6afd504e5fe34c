"""Lockstep: learn distributed training by running it.

    from course_lib import start
    run = start("multi_worker_mirrored", workers=4)   # four TensorFlow processes, in the background
    run.wait().result

Importing this package loads neither TensorFlow nor PyTorch: they live in the processes it starts.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from course_lib.cluster.nursery import warm
    from course_lib.cluster.run import Run
    from course_lib.hardware import probe as machine
    from course_lib.spec import RunSpec
    from course_lib.start import start
    from course_lib.trace import Trace

# Name -> where it lives. Looked up on first use, so that one part of the package can be imported without the others.
_NAMES = {
    "start": "course_lib.start:start",
    "warm": "course_lib.cluster.nursery:warm",
    "machine": "course_lib.hardware:probe",
    "Run": "course_lib.cluster.run:Run",
    "RunSpec": "course_lib.spec:RunSpec",
    "Trace": "course_lib.trace:Trace",
}
__all__ = ["Run", "RunSpec", "Trace", "machine", "start", "warm"]


def __getattr__(name: str) -> Any:
    if name not in _NAMES:
        raise AttributeError(f"module 'course_lib' has no attribute {name!r}")
    module, _, attribute = _NAMES[name].partition(":")
    return getattr(import_module(module), attribute)


def __dir__() -> list[str]:
    return sorted(__all__)
