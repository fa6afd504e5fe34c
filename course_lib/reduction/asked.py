"""What an all-reduce is asked for, checked before a process starts."""

from typing import Any

import numpy as np

from course_lib.collectives import Schedule, verify
from course_lib.collectives.algorithms import ALGORITHMS, FOILS, Algorithm, build
from course_lib.errors import SpecError
from course_lib.exchange.communicator import check_dtype
from course_lib.spec.fields import parse_bytes


def alike(arrays: list[np.ndarray], workers: int | None) -> int:
    """The number of workers that bring these arrays, one each. Raises `SpecError` if it is not
    `workers`, or if the arrays differ in shape or dtype.
    """
    if not arrays:
        raise SpecError("arrays", [], "one array for each worker")
    if workers not in (None, len(arrays)):
        raise SpecError("workers", workers, f"{len(arrays)} arrays were given, one for each worker")
    for i, array in enumerate(arrays):
        if (array.shape, array.dtype) != (arrays[0].shape, arrays[0].dtype):
            this, first = (f"{a.dtype} of shape {a.shape}" for a in (array, arrays[0]))
            allowed = "all workers must bring the same shape and dtype"
            raise SpecError(f"arrays[{i}]", f"{this}, and arrays[0] {first}", allowed)
    return len(arrays)


def length_of(what: object, dtype: str) -> int:
    """The number of elements of a dtype in `what` bytes. Raises `SpecError`."""
    nbytes = parse_bytes(str(what))
    try:
        kind = np.dtype(dtype)
    except (TypeError, ValueError, SyntaxError):  # numpy evaluates what stands before a comma
        allowed = "the name of a numpy dtype, such as float32 or int64"
        raise SpecError("dtype", dtype, allowed) from None
    check_dtype(kind)
    itemsize = kind.itemsize
    if nbytes % itemsize:
        near = nbytes // itemsize * itemsize
        allowed = f"a whole number of {dtype} elements of {itemsize} bytes"
        raise SpecError("bytes", nbytes, f"{allowed}, such as {near} or {near + itemsize}")
    return nbytes // itemsize


def checked(
    algorithm: str | Algorithm, workers: int, hosts: int, options: dict[str, Any]
) -> Schedule:
    """The schedule of an all-reduce. One from a learner's own function is verified first; raises
    `SpecError` if it is wrong.
    """
    if isinstance(algorithm, str) and algorithm not in ALGORITHMS | FOILS:
        raise SpecError.unknown("algorithm", algorithm, ALGORITHMS | FOILS)
    schedule = build(algorithm, workers, hosts=hosts, **options)
    if schedule.kind != "all_reduce":
        raise SpecError("algorithm", schedule.name, f"is a {schedule.kind}, not an all_reduce")
    own = callable(algorithm) and algorithm not in ALGORITHMS.values()
    if own and not (proof := verify(schedule)):
        raise SpecError("algorithm", schedule.name, f"it is not right yet.\n{proof}")
    return schedule
