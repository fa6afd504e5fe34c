"""For tasks whose answer is an all-reduce, a function from a number of workers to a `Schedule`."""

from .attempt import Attempt
from .judge import judge
from .mistakes import Rounds, rebuilt, rounds_of, with_ways

__all__ = ["Attempt", "Rounds", "judge", "rebuilt", "rounds_of", "with_ways"]
