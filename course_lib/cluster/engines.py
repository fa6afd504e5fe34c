"""Engines: where the processes of a run are started. This machine's is the usual one; that of a Ray
cluster is loaded only when it is asked for.
"""

import importlib.util
import pkgutil
from typing import Protocol

from course_lib.cluster import nursery
from course_lib.cluster.pipes import Channel
from course_lib.engines.ray import raylets
from course_lib.errors import Unavailable
from course_lib.hardware import Machine
from course_lib.spec.run_spec import RunSpec


class Engine(Protocol):
    """Where the processes of one run are started."""

    def machine(self, here: Machine) -> Machine:
        """What the run has; `here` is this machine, or a share of it."""

    def supervisor(self, framework: str, start_method: str, timeout: float) -> Channel:
        """A channel to a supervisor that waits for its order to start."""

    def last_words(self, framework: str) -> str:
        """What there is to be said of a supervisor that is gone."""

    def release(self) -> None:
        """The run is over, or will not be: what is held for it is free again."""


class Local:
    """This machine."""

    def machine(self, here: Machine) -> Machine:
        return here

    def supervisor(self, framework: str, start_method: str, timeout: float) -> Channel:
        return nursery.supervisor(framework, start_method, timeout)

    def last_words(self, framework: str) -> str:
        return nursery.last_words(framework)

    def release(self) -> None:
        """Nothing is held."""


LOCAL = Local()


def found(spec: RunSpec, together: bool = False) -> tuple[Engine, RunSpec]:
    """The engine of a run, and the run with its tasks placed; `together`: on one node. Raises
    `Unavailable` where it cannot be had.
    """
    if spec.engine == "local":
        return LOCAL, spec
    need_ray()
    raylets.meant(spec.address)
    engine = pkgutil.resolve_name("course_lib.engines.ray.engine:RayEngine")(spec, together)
    return engine, engine.spec


def need_ray() -> None:
    """Raise `Unavailable` where Ray is not installed."""
    if not importlib.util.find_spec("ray"):
        cure = "Where the course is, install it: pip install -e '.[ray]'."
        raise Unavailable("a Ray cluster", "Ray is not installed here", cure)
