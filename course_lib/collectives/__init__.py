"""Collectives as data: an algorithm is a function that returns a `Schedule`, and everything else
reads the schedule.
"""

from course_lib.collectives.algorithms import ALGORITHMS, COLLECTIVES, FOILS, build, closed_form
from course_lib.collectives.cost import AlphaBeta, Topology, bus_bandwidth, cost
from course_lib.collectives.schedule import Round, Schedule, Transfer, bounds, place
from course_lib.collectives.simulate import Simulation, simulate
from course_lib.collectives.verify import Proof, State, verify

# `ring`, `ring_all_gather` and so on, by their names
globals().update(ALGORITHMS | FOILS | COLLECTIVES)
