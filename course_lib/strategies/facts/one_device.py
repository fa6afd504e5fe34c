"""The facts of one_device."""

from __future__ import annotations

from course_lib.strategies.strategy import Facts, Strategy, measured, no_all_reduce, programs

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
    measured("one real process, on the CPU", "one real process, on a GPU", at_least=1),
    order=10,
    default_workers=1,
    max_workers=1,
    all_reduce=no_all_reduce("One device has nobody to reduce with."),
)
