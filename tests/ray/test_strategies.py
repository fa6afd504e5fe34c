"""Every strategy, in both frameworks, on the nodes of a Ray cluster."""

from typing import Any

import numpy as np
import pytest

from course_lib import start
from course_lib.errors import Unavailable
from course_lib.strategies.catalog import STRATEGIES
from tests.helpers import losses_of

CASES = [
    (name, framework)
    for name, its in STRATEGIES.items()
    for framework in its.jobs
    if (name, framework) != ("tpu", "torch")
]
# what a slow worker changes: whose gradients an update is made of
BY_PACE = [name for name, its in STRATEGIES.items() if its.asynchronous] + ["backup_workers"]

# what cuts the layers of digits in two, or by a divisor of their units
BY_CUTS = "pipeline_parallel", "tensor_parallel"


@pytest.mark.sample(2)
@pytest.mark.parametrize(("name", "framework"), CASES)
def test_a_strategy_trains_on_three_nodes_as_on_one_machine(
    cluster: str, name: str, framework: str
) -> None:
    strategy = STRATEGIES[name]
    fields: dict[str, Any] = {"framework": framework, "steps": 30 if name in BY_PACE else 6}
    workers = 2 if name in BY_CUTS else 3
    fields |= {"workers": workers, "global_batch": 48} if strategy.default_workers > 1 else {}
    fields |= {"emulate": True} if name == "tpu" else {}
    if name == "backup_workers":
        fields |= {"workers": 3, "backups": 1, "global_batch": 48}
    here = start(name, **fields)
    on = {"engine": f"ray:{cluster}"}
    alone = here.plan.threads > 1  # than there, where each task has a CPU
    here.wait(120)
    there = start(name, **fields, **on).wait(120)
    one = bool(strategy.why_one_host(framework)) or there.spec.workers == 1
    nodes = next(reason for reason in there.plan.reasons if reason.what == "nodes")
    assert nodes.choice == ("1 node" if one else f"{workers} nodes"), nodes
    assert all(task in nodes.why for task in there.spec.tasks)
    if name in BY_PACE:
        losses = losses_of(there.trace)
        assert losses[-1] < losses[0]
        return
    assert alone or there.result["parameter_digest"] == here.result["parameter_digest"]
    mine, theirs = here.files.trained_weights(), there.files.trained_weights()
    assert mine.keys() == theirs.keys()
    for key, array in mine.items():
        np.testing.assert_allclose(theirs[key], array, rtol=0, atol=1e-5 * alone, err_msg=key)


def test_what_one_machine_has_not_the_cluster_has_not_either(cluster: str) -> None:
    with pytest.raises(Unavailable, match="torch_xla"):
        start("tpu", framework="torch", emulate=True, engine=f"ray:{cluster}")
