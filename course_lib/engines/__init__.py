"""Engines: where the processes of a run are started. This machine's is the usual one. Another has a
folder here, found by its name and loaded only when a run asks for it, and is named after the
library that it runs on.
"""

import importlib.util
from typing import Any

from course_lib.cluster import nursery
from course_lib.cluster.pipes import Channel
from course_lib.errors import Unavailable
from course_lib.hardware import Machine
from course_lib.spec.run_spec import RunSpec


class Engine:
    """Starts the processes of one run: on this machine; other engines are kinds of it."""

    def machine(self, here: Machine) -> Machine:
        """Return the machine that the run has; `here` is this one, or a share of it."""
        return here

    def supervisor(self, framework: str, start_method: str, timeout: float) -> Channel:
        """A channel to a supervisor that waits for its order to start."""
        return nursery.supervisor(framework, start_method, timeout)

    def last_words(self, framework: str) -> str:
        """The end of what a supervisor that is gone has printed."""
        return nursery.last_words(framework)

    def release(self) -> None:
        """Free what was reserved for the run: it is over, or will not be."""


LOCAL = Engine()


def find(spec: RunSpec, together: bool = False) -> tuple[Engine, RunSpec]:
    """The engine of a run, and the run with its tasks placed; `together`: on one node. Raises
    `Unavailable` where it cannot be had.
    """
    if spec.engine == "local":
        return LOCAL, spec
    return load(spec.engine.partition(":")[0]).reserve(spec, together)


def load(module: str) -> Any:
    """Import an engine's package (`ray`), or a module in it (`ray.raylets`). Raises `Unavailable`
    where the engine or its library is not installed.
    """
    name = module.partition(".")[0]
    what = f"the engine {name}"
    if not importlib.util.find_spec(f"{__name__}.{name}"):
        why = f"the folder course_lib/engines/{name} is not there"
        raise Unavailable(what, why, "Install the whole of the course.")
    if not importlib.util.find_spec(name):
        cure = f"Where the course is, install it: pip install -e '.[{name}]'."
        raise Unavailable(what, f"{name} is not installed here", cure)
    return importlib.import_module(f"{__name__}.{module}")
