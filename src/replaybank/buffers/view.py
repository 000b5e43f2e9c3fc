"""Items as the user wrote them: ``buffer[...]`` with the time dimension back in its place."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from replaybank.buffers.collate import time_back, time_to_front
from replaybank.storages.base import Storage


def is_key(index: Any) -> bool:
    """Whether an index names an entry of the data rather than items."""
    return isinstance(index, str) or (
        isinstance(index, tuple) and len(index) > 0 and all(isinstance(part, str) for part in index)
    )


def is_single(index: Any) -> bool:
    """Whether an index is one number."""
    if isinstance(index, tuple) and len(index) == 1:
        index = index[0]
    return isinstance(index, (int, np.integer)) or (isinstance(index, Tensor) and index.ndim == 0)


def read(storage: Storage, index: Any, dim_extend: int) -> Any:
    """Items in the layout in which they were given to ``extend``. O(items read)."""
    if not dim_extend:
        return storage[index]
    if dim_extend >= storage.ndim:
        return _index(time_back(storage[:], dim_extend), index)
    return storage[_slots(storage, index, dim_extend)]


def write(storage: Storage, index: Any, data: Any, dim_extend: int) -> None:
    """Replace items, given in the layout of ``extend``. O(items written)."""
    if not dim_extend:
        storage[index] = data
    elif dim_extend < storage.ndim:
        storage[_slots(storage, index, dim_extend)] = data
    else:
        # Time was moved in front of dimensions that the storage takes for the item's own.
        items = time_back(storage[:], dim_extend)
        items[index] = data
        storage[:] = time_to_front(items, dim_extend)


def _slots(storage: Storage, index: Any, dim_extend: int) -> tuple[Tensor, ...]:
    """The storage's own numbers of what ``index`` means to the user, one tensor a dimension."""
    shape = list(storage.shape)
    shape.insert(dim_extend, shape.pop(0))
    # The numbers of all items are never laid out: an expanded range has no memory until it is indexed.
    numbers = [
        torch.arange(size).view([-1 if at == dim else 1 for at in range(len(shape))]).expand(shape)[index]
        for dim, size in enumerate(shape)
    ]
    numbers.insert(0, numbers.pop(dim_extend))
    return tuple(numbers)


def _index(data: Any, index: Any) -> Any:
    if isinstance(data, dict):
        return {key: _index(value, index) for key, value in data.items()}
    if isinstance(data, tuple):
        values = [_index(value, index) for value in data]
        return type(data)(*values) if hasattr(data, "_fields") else tuple(values)
    return data[index]
