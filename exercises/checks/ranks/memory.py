"""Bytes that a process holds, by which a rank shows that it keeps a part and not all."""

from __future__ import annotations

import ctypes
import gc
from typing import Any

# of glibc's mallinfo2: `hblkhd` bytes in maps of their own, `uordblks` in its arenas
FIELDS = ["arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks"]
FIELDS += ["fordblks", "keepcost"]


def in_use() -> int:
    """The bytes that this process has allocated, as glibc counts them: those that autograd keeps
    are among them. Elsewhere those of all tensors that Python knows.
    """
    gc.collect()
    count: Any = getattr(ctypes.CDLL(None), "mallinfo2", None)
    if count:
        # made here, since a class of C cannot be sent to the ranks
        fields = [(name, ctypes.c_size_t) for name in FIELDS]
        count.restype = type("Info", (ctypes.Structure,), {"_fields_": fields})
        info = count()
        return int(info.uordblks + info.hblkhd)
    import torch

    tensors = [each for each in gc.get_objects() if isinstance(each, torch.Tensor)]
    stores = {each.untyped_storage()._cdata: each.untyped_storage().nbytes() for each in tensors}
    return sum(stores.values())


def megabytes(size: float) -> str:
    return f"{size / 1e6:.2f} MB"
