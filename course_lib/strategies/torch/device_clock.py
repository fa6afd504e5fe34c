"""When a GPU did what it was told to, without waiting for it.

A program gives a GPU its work and goes on. To take a time it could wait until the device has done
all of it, but then the device would stand idle. So it puts an event into the device's queue, and
asks later when the device reached that. This code has never run on a GPU.
Source: PyTorch documentation, "CUDA semantics: Asynchronous execution".
"""

from typing import Any

import torch

from course_lib.record.clock import clock

OFTEN = 60.0  # seconds; the time between two events, a float32, is too coarse if it is long


class DeviceClock:
    """Moments on the present device of this process."""

    def __init__(self) -> None:
        self._event = self.moment()
        self._event.synchronize()
        self._time = clock()  # when the device reached it

    def moment(self) -> Any:
        """An event that the device reaches once it has done what it was given so far."""
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def time(self, moment: Any) -> float:
        """When the device reached a moment, on the clock of the trace; waits until it has."""
        moment.synchronize()
        seconds = self._event.elapsed_time(moment) / 1000
        if seconds > OFTEN:
            self._event, self._time, seconds = moment, self._time + seconds, 0.0
        return self._time + seconds
