"""The facts of fully_sharded."""

from __future__ import annotations

from course_lib.strategies.strategy import Facts, Strategy, no_all_reduce, programs

FULLY_SHARDED = Strategy(
    "fully_sharded",
    Facts(
        summary="Every worker keeps a part of each layer's parameters, and gathers the rest from "
        "the others only while it computes that layer.",
        variables="1/n of each layer on every worker",
        gradients="each worker, from its share of the batch; a reduce-scatter leaves it with the "
        "mean of its part",
        update="each worker, to its own part",
        waits="every worker for all others, in each layer, forward and back",
        wire="3(n-1)/n S bytes sent by each worker: two all-gathers of the parameters and a "
        "reduce-scatter of the gradients",
        use="data parallelism with models that do not fit on one device: the usual way to train "
        "large ones",
        limits="half as much again over the wire as an all-reduce; the largest layers, two at a "
        "time, must fit on every worker",
        source="Rajbhandari et al., ZeRO, SC 2020; Zhao et al., PyTorch FSDP, VLDB 2023",
    ),
    programs("fully_sharded", torch=("worker",)),
    order=80,
    default_workers=2,
    all_reduce=no_all_reduce(
        "All-gathers of parameters and a reduce-scatter of gradients take its place."
    ),
)
