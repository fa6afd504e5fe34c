"""The facts of parameter_server."""

from __future__ import annotations

from course_lib.strategies.strategy import BY_PARAMETER_SERVERS, OVER_TCP, Facts, Strategy, programs

PARAMETER_SERVER = Strategy(
    "parameter_server",
    Facts(
        summary="Workers pull the variables from parameter servers and push gradients back, which "
        "are applied as they come (asynchronous SGD).",
        variables="on the parameter servers, cut into equal parts; workers pull copies",
        gradients="each worker, from a share of a batch: whoever is free takes the next one",
        update="the parameter server, with each gradient as it comes",
        waits="nobody",
        wire="each worker pulls S and pushes S bytes; all parameter servers together 2nS in a step",
        use="models too large for one machine's memory, such as big embeddings; workers of "
        "unequal speed",
        limits="gradients are stale: by close to n-1 updates if computing is nearly all of a "
        "step, less otherwise; the parameter servers' network "
        "carries everything; Keras 3's fit does not support it",
        source="Li et al., Scaling Distributed Machine Learning with the Parameter Server, OSDI "
        "2014",
    ),
    programs("parameter_server", tensorflow=("chief", "worker", "ps"), torch=("worker", "ps")),
    OVER_TCP,
    order=90,
    default_workers=3,
    all_reduce=BY_PARAMETER_SERVERS,
    asynchronous=True,
)
