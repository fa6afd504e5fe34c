"""For tasks whose answer is an all-reduce, a function from a number of workers to a `Schedule`."""

from .attempt import Attempt
from .judge import judge
from .mistakes import Rounds, halves, rebuilt, rounds_of

__all__ = ["Attempt", "Rounds", "halves", "judge", "rebuilt", "rounds_of"]
