"""What a learner's function gave back, as plain data: it crosses to the judge as JSON, so that
nothing of the learner's runs there, as it could if it were unpickled.
"""

from typing import Any

import numpy as np

from course_lib.cluster.run import Run
from course_lib.collectives import Schedule
from course_lib.errors import SpecError
from course_lib.record.saved import SavedRun

MOST = 4096  # chunks or ranks of a schedule that a judge looks at
# errors that judges tell from others; all others are only told by their names
_KINDS = {kind.__name__: kind for kind in (NotImplementedError, MemoryError, TypeError)}


def plain(value: Any) -> list[Any]:
    """A value as JSON: its kind, and what it holds. A run is the directory of its record. Of other
    objects only the name of their type is kept.
    """
    match value:
        case None | bool() | int() | float() | str():
            return ["value", value]
        case np.generic():
            return plain(value.item())
        case np.ndarray() if value.dtype.kind in "biuf":
            return ["array", value.dtype.str, value.tolist()]
        case list() | tuple():
            return ["list", [plain(each) for each in value]]
        case dict() if all(isinstance(key, str) for key in value):
            return ["dict", {key: plain(each) for key, each in value.items()}]
        case Schedule():
            rounds = [[list(transfer) for transfer in each] for each in value.rounds]
            sizes = [value.workers, value.chunks, value.servers]
            goal = [value.kind, value.owners, value.hosts]
            return ["schedule", value.name, sizes, rounds, *goal]
        case Run() | SavedRun():
            return ["run", str(value.run_dir if isinstance(value, Run) else value.path)]
        case SpecError():
            return ["spec error", value.field, plain(value.value), value.allowed]
    return ["other", type(value).__name__]


def rebuilt(data: Any) -> Any:
    """The value of plain data. Raises an error of some kind for what `plain` has not made."""
    match data:
        case ["value", None | bool() | int() | float() | str() as value]:
            return value
        case ["array", str(dtype), values] if np.dtype(dtype).kind in "biuf":
            return np.array(values, dtype)
        case ["list", values]:
            return [rebuilt(each) for each in values]
        case ["dict", dict() as values]:
            return {str(key): rebuilt(each) for key, each in values.items()}
        case ["schedule", name, [workers, chunks, servers], rounds, kind, owners, hosts]:
            if max(workers, chunks, servers) > MOST:
                raise ValueError(f"more than {MOST} chunks or ranks")
            return Schedule(name, workers, chunks, rounds, kind, owners, servers, hosts)
        case ["run", str(path)]:
            return SavedRun(path)
        case ["spec error", str(field), value, str(allowed)]:
            return SpecError(field, rebuilt(value), allowed)
        case ["error", str(name), str(words)]:
            return type(name, (_KINDS.get(name, Exception),), {})(words)
        case ["other", str(name)]:
            return type(name, (), {})()
    raise ValueError("no plain data")
