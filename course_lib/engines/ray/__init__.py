"""Runs whose tasks are placed on the nodes of a Ray cluster.

engine      has the supervisor as a thread of the notebook's kernel, and moves what is lost
cluster     what Ray is asked: to join, to find room, for our actor on a node
link        a node as the driver sees it: its clock, orders to it and the record from it
remote      a node that is not this machine: what a supervisor asks of it, over a channel
node        an actor on each node, with a warm zygote
parcels     the record, and a learner's own modules, on their way between machines
raylets     a cluster on this machine: `lockstep cluster up`
"""

import importlib
from typing import Any

from course_lib.spec.run_spec import RunSpec


def reserve(spec: RunSpec, together: bool = False) -> tuple[Any, RunSpec]:
    """An engine with room for this run, and the run with its tasks placed; `together`: on one node.
    Raises `Unavailable`.
    """
    address = spec.engine.partition(":")[2] or None
    importlib.import_module(f"{__name__}.raylets").meant(address)  # before Ray is loaded
    engine = importlib.import_module(f"{__name__}.engine").RayEngine(spec, address, together)
    return engine, engine.spec
