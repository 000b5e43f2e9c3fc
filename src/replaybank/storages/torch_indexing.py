"""What torch's indexing lacks: numbers that are checked as the kernels check them, and some dtypes."""

from __future__ import annotations

import torch
from torch import Tensor

from replaybank.storages.layout import DTYPES

_UNKNOWN = frozenset(
    dtype
    for name, dtype in DTYPES.items()
    if name.startswith("float8") or name in ("uint16", "uint32", "uint64")
)


def movable(view: Tensor) -> Tensor:
    """The same memory in a dtype that torch's indexing knows on every device.

    It lacks some (uint32, float8): it would fail at such a leaf, with the leaves before it written.
    """
    kind = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}.get(view.dtype.itemsize)
    return view.view(kind) if view.dtype in _UNKNOWN and kind is not None else view


def out_of_range(index: int, valid: int) -> IndexError:
    """The error for an item that is not there."""
    return IndexError(f"Index {index} is out of range: {valid} item(s) have been written.")


def checked(index: Tensor, valid: int) -> Tensor:
    """The index with negative items counted from the end; raises IndexError as the kernels do."""
    bad = (index >= valid) | (index < -valid)
    if bad.any():
        raise out_of_range(int(index[bad][0]), valid)
    return torch.where(index < 0, index + valid, index)


def unravel(items: Tensor, dims: torch.Size, device: torch.device) -> tuple[Tensor, ...]:
    """Item numbers as one index a dimension, on ``device``."""
    items = items.to(device)
    out: list[Tensor] = []
    for size in reversed(dims[1:]):
        out.append(items % size)
        items = items // size
    return (items, *reversed(out))
