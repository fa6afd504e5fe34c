"""one_device."""

from __future__ import annotations

from course_lib.hardware import Machine
from course_lib.strategies.strategy import Facts, Standing, Strategy, no_all_reduce, programs


def standing(framework: str, machine: Machine) -> Standing:
    gpu = machine.gpus and framework in machine.cuda_frameworks
    return Standing(
        "measured", "one real process, on a GPU" if gpu else "one real process, on the CPU"
    )


ONE_DEVICE = Strategy(
    "one_device",
    Facts(
        summary="One process trains on one device: the yardstick for all others.",
        variables="on the device",
        gradients="the device, from the whole batch",
        update="the device",
        waits="nobody",
        wire="nothing",
        use="whatever fits on one device and is fast enough there; debugging",
        limits="one device's speed and memory",
        source="https://www.tensorflow.org/api_docs/python/tf/distribute/OneDeviceStrategy",
    ),
    programs("one_device", tensorflow=("worker",), torch=("worker",)),
    standing,
    order=10,
    default_workers=1,
    max_workers=1,
    all_reduce=no_all_reduce("One device has nobody to reduce with."),
)
