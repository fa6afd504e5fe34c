"""The time of a step of multi_worker_mirrored on digits, against a plain script of the same
training.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from tests.benchmarks import clusters, timed
from tests.benchmarks.harness import Aim, Options, Rows, compare

# how far the final losses may be apart; rounding differs with the order of additions, a different
# training does more
SAME = 0.01


def rows(options: Options) -> Rows:
    """A row for each framework. The trace is on, as it is for learners."""
    steps = timed.WARM_UP + (100 if options.quick else 300)
    for framework in ("tensorflow", "torch"):
        clusters.warm(framework)
        same = SameTraining()
        ours = same.median(lambda f=framework: timed.ours(f, steps))
        plain = same.median(lambda f=framework: timed.plain(f, steps))
        name = f"step of multi_worker_mirrored, {timed.WORKERS} workers, {framework}"
        yield compare(
            name, "ms", ours, (f"plain_{framework}.py", plain), Aim("at most", 1.05), options
        )


class SameTraining:
    """Sees to it that what is compared is one and the same training: all must end with the same
    loss.
    """

    def __init__(self) -> None:
        self.loss: float | None = None

    def median(self, train: Callable[[], timed.Training]) -> Callable[[], float]:
        return lambda: self.median_ms(train())

    def median_ms(self, training: timed.Training) -> float:
        """Milliseconds of a step. Raises ValueError if it was another training."""
        self.loss = training.final_loss if self.loss is None else self.loss
        if not math.isclose(training.final_loss, self.loss, abs_tol=SAME):
            raise ValueError(
                f"not the same training: it ended with a loss of {training.final_loss:.4f} and"
                f" the other with {self.loss:.4f}"
            )
        return timed.median_ms(training.moments)
