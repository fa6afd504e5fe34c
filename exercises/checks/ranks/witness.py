"""The witness: what a learner's code handed over on a rank, which its results do not show."""

from __future__ import annotations

from typing import Any


class Witness:
    """Notes the bytes that this rank hands to torch.distributed, call by call. It stands below the
    functions of torch.distributed, so it makes no difference how these were imported.
    """

    def __init__(self) -> None:
        import torch.distributed as dist

        self.calls: list[tuple[str, int]] = []
        for name in CALLS:
            self._note(dist.ProcessGroup, name)

    def _note(self, kind: Any, name: str) -> None:
        call = getattr(kind, name)

        def noted(group: Any, *given: Any, **named: Any) -> Any:
            self.calls.append((name, max(map(_bytes, [*given, *named.values()]), default=0)))
            return call(group, *given, **named)

        setattr(kind, name, noted)

    def handed(self, since: int = 0) -> int:
        """The bytes handed over in the calls after the first `since`."""
        return sum(size for _, size in self.calls[since:])


# what a rank hands over; what it receives with `recv` is none of its bytes. Of input and output the
# larger counts: a rank that gathers holds what all have.
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
    "allreduce_coalesced",
    "allgather_coalesced",
    "allgather_into_tensor_coalesced",
    "reduce_scatter_tensor_coalesced",
    "all_gather_single",
    "all_gather_single_coalesced",
    "all_to_all_single",
    "reduce_scatter_single",
    "reduce_scatter_single_coalesced",
)


def _bytes(given: Any) -> int:
    """The bytes of a tensor, or of all in a list. A float64 counts as a float32: a sum that is more
    exact is no waste.
    """
    import torch

    if isinstance(given, torch.Tensor):
        return given.numel() * min(4, given.element_size())
    if isinstance(given, list | tuple):
        return sum(map(_bytes, given))
    return 0
