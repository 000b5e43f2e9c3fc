"""Memory of the frames of a batch: its slices are decoded into it, and not copied to be joined."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from replaybank.datasets.openx.sources.base import Key
from replaybank.storages.batch_memory import BatchMemory
from replaybank.storages.channels import address_of


class Slab:
    """Tensors of one batch, made when they are first asked for. Thread-safe.

    Args:
        count: slices of the batch.
        length: steps of each.
        memory: where the tensors are taken from.

    Example:
        >>> slab = Slab(2, 3, BatchMemory())
        >>> slab.part(("x",), (4,), torch.uint8, 1).shape, slab.tensors["x",].shape
        ((3, 4), torch.Size([6, 4]))
    """

    def __init__(self, count: int, length: int, memory: BatchMemory) -> None:
        self.count = count
        self.length = length
        self.tensors: dict[Key, Tensor] = {}
        self._memory = memory
        self._lock = threading.Lock()

    def part(self, key: Key, shape: tuple[int, ...], dtype: torch.dtype, place: int) -> npt.NDArray[Any]:
        """What is to hold an entry of a slice, ``[length, *shape]``, of any content."""
        with self._lock:
            tensor = self.tensors.get(key)
            if tensor is None:
                tensor = self._memory.any_size((self.count * self.length, *shape), dtype)
                self.tensors[key] = tensor
        part: npt.NDArray[Any] = tensor.numpy()[place * self.length : (place + 1) * self.length]
        return part

    def has(self, key: Key, column: Any, place: int) -> bool:
        """Whether an entry of a slice lies here: that of an episode which lacks the camera does not. O(1)."""
        tensor = self.tensors.get(key)
        if tensor is None or not isinstance(column, np.ndarray):
            return False
        begin = tensor.data_ptr() + tensor.nbytes // self.count * place
        return address_of(column) == begin


class Slabs:
    """A slab for each batch of a stream of slices. Thread-safe.

    Args:
        first: number of the slice with which the first batch begins.
        count: slices of a batch.
        length: steps of a slice.
        memory: where tensors are taken from.
    """

    def __init__(self, first: int, count: int, length: int, memory: BatchMemory) -> None:
        self._first = first
        self._count = count
        self._length = length
        self._memory = memory
        self._slabs: dict[int, Slab] = {}
        self._lock = threading.Lock()

    def place(self, number: int) -> tuple[Slab, int]:
        """The slab of a slice, and its place there."""
        batch, place = divmod(number - self._first, self._count)
        with self._lock:
            slab = self._slabs.get(batch)
            if slab is None:
                slab = self._slabs[batch] = Slab(self._count, self._length, self._memory)
        return slab, place

    def done(self, number: int) -> None:
        """Forget the slabs of batches that end before a slice: whoever has the batch has its tensors."""
        batch = (number - self._first) // self._count
        with self._lock:
            for old in [known for known in self._slabs if known < batch]:
                del self._slabs[old]
