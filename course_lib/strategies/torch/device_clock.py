"""When a GPU did what it was told to, without waiting for it.

A GPU works behind the program's back. To take a time the program could wait until the device has
done all that it was given, and then the device would stand idle. So it puts an event among the
device's work, and asks later when that was passed. No GPU has been seen by this code so far.
Source: PyTorch documentation, "CUDA semantics: Asynchronous execution".
"""

from typing import Any

import torch

from course_lib.cluster.task import clock

OFTEN = 60.0  # seconds; events tell the time between two of them in milliseconds of 24 bits


class DeviceClock:
    """Moments on the present device of this process."""

    def __init__(self) -> None:
        self._event = self.moment()
        self._event.synchronize()
        self._time = clock()  # when it was passed

    def moment(self) -> Any:
        """An event that the device passes once it has done what it was given so far."""
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def time(self, moment: Any) -> float:
        """When it was, on the clock of the trace; the device may have to get there first."""
        moment.synchronize()
        seconds = self._event.elapsed_time(moment) / 1000
        if seconds > OFTEN:
            self._event, self._time, seconds = moment, self._time + seconds, 0.0
        return self._time + seconds
