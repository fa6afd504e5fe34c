"""For tasks whose answer is an all-reduce, a function from a number of workers to a `Schedule`."""

from . import across
from .attempt import Attempt
from .judge import judge
from .mistakes import Rounds, rebuilt, rounds_of, with_ways

__all__ = ["Attempt", "Rounds", "across", "judge", "rebuilt", "rounds_of", "with_ways"]
