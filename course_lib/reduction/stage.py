"""`stage`: all-reduce algorithms on the stage, with a button that carries them out for real."""

from __future__ import annotations

from functools import partial
from typing import Any

from course_lib.reduction.call import compare
from course_lib.widgets.stage.all_reduce_stage import AllReduceStage


def stage(*algorithms: Any, **options: Any) -> AllReduceStage:
    """All-reduce algorithms side by side, with `options` of `AllReduceStage`.

    stage("ring", "hierarchical", workers=8, hosts=2, bytes="4MiB", link=Link(mbit=200))
    """
    return AllReduceStage(*algorithms, run=partial(compare, repeats=3), **options)
