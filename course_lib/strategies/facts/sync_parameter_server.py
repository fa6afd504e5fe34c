"""The facts of sync_parameter_server."""

from __future__ import annotations

from course_lib.strategies.strategy import BY_PARAMETER_SERVERS, OVER_TCP, Facts, Strategy, programs

SYNC_PARAMETER_SERVER = Strategy(
    "sync_parameter_server",
    Facts(
        summary="Workers pull the variables from parameter servers, which wait for a gradient "
        "from every worker and apply their mean, once a step.",
        variables="on the parameter servers, cut into equal parts; workers pull copies",
        gradients="each worker, from its share of the batch",
        update="the parameter server, with the mean of all workers' gradients",
        waits="every worker for all others, in each step",
        wire="each worker pulls S and pushes S bytes; all parameter servers together 2nS in a step",
        use="as an all-reduce would, where variables are to live on machines of their own",
        limits="the slowest worker sets the pace; the parameter servers' network carries "
        "everything; TensorFlow 2 has none, this one is ours",
        source="Chen et al., Revisiting Distributed Synchronous SGD, 2016 (arXiv:1604.00981)",
    ),
    programs("sync_parameter_server", tensorflow=("chief", "worker", "ps"), torch=("worker", "ps")),
    OVER_TCP,
    order=100,
    default_workers=3,
    all_reduce=BY_PARAMETER_SERVERS,
)
