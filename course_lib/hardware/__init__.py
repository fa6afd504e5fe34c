"""The machine: what it offers, and the plan of a run on it, with the reason for each choice."""

from course_lib.hardware.machine import Capability, Machine, machine_rows, probe, versions
from course_lib.hardware.placement import plan
from course_lib.record.rundir import Plan, Reason
