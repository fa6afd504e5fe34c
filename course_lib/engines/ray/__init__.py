"""Runs whose tasks are placed on the nodes of a Ray cluster."""

import importlib
from typing import Any

from course_lib.spec.run_spec import RunSpec


def reserve(spec: RunSpec, together: bool = False) -> tuple[Any, RunSpec]:
    """An engine with room for this run, and the run with its tasks placed; `together`: on one node.
    Raises `Unavailable`.
    """
    importlib.import_module(f"{__name__}.raylets").meant(spec.address)  # before Ray is loaded
    engine = importlib.import_module(f"{__name__}.engine").RayEngine(spec, together)
    return engine, engine.spec
