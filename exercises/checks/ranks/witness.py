"""The witness: what a learner's code did on a rank, which its results do not show."""

from __future__ import annotations

from typing import Any


class Witness:
    """Notes the bytes that this rank hands to torch.distributed, call by call, and the ready-made
    answers that are used. It stands below the functions of torch.distributed, so it makes no
    difference how these were imported.
    """

    def __init__(self) -> None:
        import torch.distributed as dist
        import torch.distributed.nn.functional as nn
        from torch.nn.parallel import DistributedDataParallel
        from torch.utils.data.distributed import DistributedSampler

        self.calls: list[tuple[str, int]] = []
        self.ready: list[str] = []
        for name in CALLS:
            self._note(dist.ProcessGroup, name)
        self._recognise(DistributedDataParallel, "__init__", "DistributedDataParallel")
        self._recognise(DistributedSampler, "__init__", "DistributedSampler")
        for name, kind in vars(nn).items():
            if isinstance(kind, type) and "forward" in vars(kind):
                self._recognise(kind, "forward", f"torch.distributed.nn ({name.strip('_')})")

    def _note(self, kind: Any, name: str) -> None:
        call = getattr(kind, name)

        def noted(group: Any, *given: Any, **named: Any) -> Any:
            self.calls.append((name, _bytes([*given, *named.values()])))
            return call(group, *given, **named)

        setattr(kind, name, noted)

    def _recognise(self, kind: Any, name: str, what: str) -> None:
        call = getattr(kind, name)

        def noted(*given: Any, **named: Any) -> Any:
            self.ready.append(what)
            return call(*given, **named)

        setattr(kind, name, staticmethod(noted) if name == "forward" else noted)

    def handed(self, since: int = 0) -> int:
        """The bytes handed over in the calls after the first `since`."""
        return sum(size for _, size in self.calls[since:])


# what a rank hands over; what it receives with `recv` is none of its bytes
CALLS = (
    "allreduce",
    "broadcast",
    "reduce",
    "allgather",
    "_allgather_base",
    "gather",
    "send",
    "scatter",
    "reduce_scatter",
    "_reduce_scatter_base",
    "alltoall",
    "alltoall_base",
)


def _bytes(given: Any) -> int:
    """The bytes of the largest of nested tensors: of input and output the larger counts."""
    import torch

    if isinstance(given, torch.Tensor):
        return given.numel() * given.element_size()
    if isinstance(given, list | tuple):
        return max((_bytes(each) for each in given), default=0)
    return 0
