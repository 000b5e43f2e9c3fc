"""What the leaves of data say together: their shapes, their dtypes, how many items there are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from replaybank.storages.layout import DTYPES, Key, LeafSpec
from replaybank.storages.structure import Structure, show

_STORABLE = frozenset(DTYPES.values())


def leaf_specs(keys: Sequence[Key], leaves: Sequence[Tensor], batch_dims: int) -> list[LeafSpec]:
    for key, leaf in zip(keys, leaves, strict=True):
        if leaf.dtype not in _STORABLE or leaf.layout is not torch.strided:
            raise TypeError(
                f"The tensor at {show(key)} has dtype {leaf.dtype} and layout {leaf.layout}: only dense "
                "tensors of plain dtypes can be stored."
            )
    return [
        LeafSpec(key, leaf.dtype, tuple(leaf.shape[batch_dims:]))
        for key, leaf in zip(keys, leaves, strict=True)
    ]


def common_lead(structure: Structure, leaves: Sequence[Tensor], batch_dims: int) -> tuple[int, ...]:
    """The first ``batch_dims`` sizes, which all leaves must share."""
    lead = tuple(leaves[0].shape[:batch_dims])
    for key, leaf in zip(structure.keys, leaves, strict=True):
        if leaf.ndim < batch_dims or tuple(leaf.shape[:batch_dims]) != lead:
            raise ValueError(
                f"All leaves must share their first {batch_dims} size(s): {show(structure.keys[0])} has "
                f"shape {list(leaves[0].shape)}, {show(key)} {list(leaf.shape)}. Nothing has been written."
            )
    return lead


def is_empty(data: Any) -> bool:
    """Whether it is a TensorDict, tensor or array of no items, which need not have keys or columns."""
    sizes: Sequence[int] = getattr(data, "batch_size", getattr(data, "shape", ()))
    return len(sizes) > 0 and sizes[0] == 0


def count_of(leaf: Any, key: Key) -> int:
    shape: Sequence[int] = getattr(leaf, "shape", ())
    if len(shape) == 0:
        raise ValueError(f"The data at {show(key)} has no dimension that counts items; `add` takes one item.")
    return int(shape[0])
