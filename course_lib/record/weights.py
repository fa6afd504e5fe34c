"""The trained weights of a run: `tasks/worker-0/weights.npz` in its directory, arrays by name that
`numpy.load` reads. `worker:0` leaves the weights of the whole model, or the chief if it trains; in
a pipeline each stage leaves its own.
"""

from typing import Any

import numpy as np

from course_lib.errors import LockstepError
from course_lib.record import reading
from course_lib.record.files import whole
from course_lib.record.rundir import RunDir


def leave(files: RunDir, task: str, arrays: dict[str, Any]) -> None:
    """Keep these weights. The file appears whole or not at all."""
    with whole(files.weights(task)) as file:
        np.savez(file, **arrays)


def found(files: RunDir) -> dict[str, np.ndarray]:
    """All weights that the tasks of a run have left. Raises `LockstepError` if there are none."""
    arrays: dict[str, np.ndarray] = {}
    for path in sorted(files.path.glob("tasks/*/weights.npz")):
        with reading.opened(path) as file, np.load(file) as held:
            arrays |= held
    if not arrays:
        why = "it has keep_model=False, has not finished, or is a function of your own"
        raise LockstepError(f"the run in {files.path} left no trained weights: {why}")
    return arrays
