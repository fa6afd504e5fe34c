"""Collectives as data: an algorithm is a function that returns a `Schedule`, and everything else
reads the schedule.
"""

from course_lib.collectives.algorithms import (
    ALGORITHMS,
    FOILS,
    HALVES,
    build,
    closed_form,
    find,
)
from course_lib.collectives.algorithms.direct import (
    direct,
    direct_all_gather,
    direct_reduce_scatter,
)
from course_lib.collectives.algorithms.double_tree import double_tree
from course_lib.collectives.algorithms.halving_doubling import halving_doubling
from course_lib.collectives.algorithms.hierarchical import hierarchical
from course_lib.collectives.algorithms.parameter_server import parameter_server
from course_lib.collectives.algorithms.recursive_doubling import recursive_doubling
from course_lib.collectives.algorithms.reduce_to_one import reduce_to_one
from course_lib.collectives.algorithms.ring import (
    ring,
    ring_all_gather,
    ring_reduce_scatter,
    ring_worst_order,
)
from course_lib.collectives.algorithms.tree import tree, tree_broadcast, tree_reduce
from course_lib.collectives.contributions import State
from course_lib.collectives.cost import Cost, bus_bandwidth, cost
from course_lib.collectives.explain import Problem
from course_lib.collectives.fit import Fit, Sample, fit
from course_lib.collectives.model import AlphaBeta, ClosedForm, Terms, Topology
from course_lib.collectives.schedule import Round, Schedule, Transfer, bounds, place
from course_lib.collectives.simulate import Simulation, simulate
from course_lib.collectives.verify import Proof, verify
