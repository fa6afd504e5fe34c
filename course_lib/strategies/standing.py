"""How real a strategy is on a machine, and why."""

from collections.abc import Callable
from typing import Literal, NamedTuple

from course_lib.hardware import Machine


class Standing(NamedTuple):
    """How real a strategy is on a machine, `why`, and, if it is not available, the `cure`."""

    reality: Literal["measured", "unavailable"]
    why: str
    cure: str = ""


StandingOf = Callable[[str, Machine], Standing]
"""Framework and machine -> how real a strategy is there."""


def measured(cpu: str, gpu: str = "", at_least: int = 2) -> StandingOf:
    """The standing of a strategy with real processes. Its `why` is `gpu`, with the number of GPUs
    in place of {gpus}, if the framework can use `at_least` so many, else `cpu`.
    """

    def standing(framework: str, machine: Machine) -> Standing:
        gpus = len(machine.gpus) if framework in machine.cuda_frameworks else 0
        return Standing("measured", gpu.format(gpus=gpus) if gpu and gpus >= at_least else cpu)

    return standing


def by_framework(**standings: StandingOf) -> StandingOf:
    """A standing that differs by framework: `by_framework(tensorflow=..., torch=...)`."""
    return lambda framework, machine: standings[framework](framework, machine)


NCCL = "real processes; NCCL for up to {gpus} workers, a GPU each"
NO_NCCL = "between CPUs, as NCCL needs a GPU for each worker"
REAL_PROCESSES = by_framework(
    tensorflow=measured(f"real processes; TensorFlow's RING {NO_NCCL}", NCCL),
    torch=measured(f"real processes; gloo {NO_NCCL}", NCCL),
)
