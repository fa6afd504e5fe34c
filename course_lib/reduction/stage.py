"""`stage`: all-reduce algorithms on the stage, with a button that carries them out for real."""

from __future__ import annotations

from functools import partial
from typing import Any

from course_lib.collectives import AlphaBeta, Topology
from course_lib.reduction.call import compare
from course_lib.spec import Link
from course_lib.widgets.stage.all_reduce_stage import AllReduceStage


def stage(*algorithms: Any, link: Link | None = None, **options: Any) -> AllReduceStage:
    """All-reduce algorithms side by side, each host with `link`; what else can be said is as for
    `AllReduceStage`.

    stage("ring", "hierarchical", workers=8, hosts=2, bytes="4MiB", link=Link(mbit=200))
    """
    if link:
        options["topology"] = Topology(inter=AlphaBeta.of(link.bytes_per_second, link.delay))
    return AllReduceStage(*algorithms, run=partial(compare, repeats=3), **options)
