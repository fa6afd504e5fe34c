"""The time of a step of a learner's own models, against a plain script of the same training: DDP in
PyTorch, MirroredStrategy in TensorFlow. The two go on side by side and take turns.

Under DDP the record adds 0.2 to 0.3 ms to a step, whatever the model: DDP calls a hook in Python
for each bucket, so that its times are known, and averages the loss as well; and each phase leaves
its mark. Models whose step takes a millisecond or two show it; they are held to nothing.
"""

from __future__ import annotations

from collections.abc import Iterator

from tests.benchmarks import clusters, timed
from tests.benchmarks.harness import Aim, Options, Row, Rows, turns
from tests.benchmarks.steps import SameTraining

WITHIN = Aim("at most", 1.05)
STRATEGIES = {
    "torch": timed.Cluster("multi_worker_mirrored"),
    "tensorflow": timed.Cluster("mirrored", workers=1, replicas=2),
}
SMALL = ("mlp", "convolutions", "transformer")
MODELS = {
    "torch": dict.fromkeys(SMALL, Aim("shown"))
    | dict.fromkeys(("three_layers", "le_net", "four_blocks"), WITHIN),
    "tensorflow": dict.fromkeys(SMALL, WITHIN),
}


def rows(options: Options) -> Rows:
    """A row for each framework and model. The trace is on, as it is for learners."""
    for framework, usual in STRATEGIES.items():
        clusters.warm(framework)
        for model, aim in MODELS[framework].items():
            yield row(framework, usual._replace(model=model), aim, options)


def row(framework: str, cluster: timed.Cluster, aim: Aim, options: Options) -> Row:
    steps, same = timed.WARM_UP + (100 if options.quick else 300), SameTraining()

    def pairs() -> Iterator[tuple[float, float]]:
        ours, plain = timed.in_turns(framework, steps, cluster)
        yield same.median_ms(ours), same.median_ms(plain)

    name = f"step of {cluster.strategy}, own {cluster.model}, {framework}"
    return turns(name, "ms", pairs, f"plain_{framework}.py", aim, options)
