"""The facts of stale_synchronous."""

from __future__ import annotations

from course_lib.strategies.strategy import BY_PARAMETER_SERVERS, OVER_TCP, Facts, Strategy, programs

STALE_SYNCHRONOUS = Strategy(
    "stale_synchronous",
    Facts(
        summary="Parameter servers apply gradients as they come, but no worker begins a step "
        "while it is too far ahead of the slowest.",
        variables="on the parameter servers, cut into equal pieces; workers pull copies",
        gradients="each worker, from its share of the batch",
        update="the parameter server, with each gradient as it comes",
        waits="a worker that has done more than staleness_bound steps more than the slowest, for "
        "the slowest",
        wire="each worker pulls S and pushes S bytes; all parameter servers together 2nS in a step",
        use="clusters whose workers have hiccups at different times",
        limits="a worker that is always slow sets the pace of all; staleness up to (n-1)(2 "
        "staleness_bound + 1)",
        source="Ho et al., More Effective Distributed ML via a Stale Synchronous Parallel "
        "Parameter Server, NIPS 2013",
    ),
    programs("stale_synchronous", torch=("worker", "ps")),
    OVER_TCP,
    order=110,
    all_reduce=BY_PARAMETER_SERVERS,
    asynchronous=True,
    takes=("staleness_bound",),
)
