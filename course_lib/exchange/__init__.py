"""Schedules carried out between real processes: what `Communicator` does, and how."""

from course_lib.exchange.communicator import PATIENCE, Communicator
