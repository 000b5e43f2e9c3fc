"""Memory of a batch of slices: they are written where the batch has them, and not copied to be joined."""

from __future__ import annotations

import math
import threading
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from replaybank import _native
from replaybank.datasets.openx.planning import torch_dtype
from replaybank.datasets.openx.sources.base import Key
from replaybank.datasets.openx.ted import (
    EPISODE,
    IS_INIT,
    NEXT_DONE,
    NEXT_TERMINATED,
    NEXT_TRUNCATED,
    STEP,
    Leaf,
)
from replaybank.storages.batch_memory import LEAST_BYTES, BatchMemory

NEXT_VALID: Key = ("next", "valid")
MASK: Key = ("mask",)

_FLAGS: tuple[Key, ...] = (("done",), ("terminated",), ("truncated",))
_MARKS = (STEP, EPISODE, IS_INIT, *_FLAGS, NEXT_DONE, NEXT_TERMINATED, NEXT_TRUNCATED, NEXT_VALID)
"""What the kernel makes from where a slice lies, in the order in which it takes them."""


class Entry(NamedTuple):
    """An entry of a step of a batch that is a tensor.

    Args:
        key: where it is.
        shape: of one step's value.
        dtype: of the values.
        kind: the same, as torch calls it.
        bytes: of one step's value.
    """

    key: Key
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    kind: torch.dtype
    bytes: int


class Entries:
    """What the steps of a batch have. Immutable.

    Args:
        leaves: what a step of the source has, shapes settled.
        filled: with the mask of a padded batch.
    """

    def __init__(self, leaves: Mapping[Key, Leaf], *, filled: bool) -> None:
        flag = np.dtype(np.bool_)
        self.keys: list[Key] = []
        """All entries, texts too, in the order in which a batch has them."""
        self.tensors: list[Entry] = []
        self.numbers: list[tuple[Key, np.dtype[Any], bool, int]] = []
        """Leaves of numbers that a source has: dtype, whether the next step has them too, bytes of a step."""
        for key, leaf in leaves.items():
            observed = is_observed(key)
            for entry in (key, following(key)) if observed else (key,):
                self.keys.append(entry)
                if leaf.dtype is not None:
                    self.tensors.append(_entry(entry, leaf.shape, leaf.dtype, torch_dtype(leaf)))
            if leaf.kind == "tensor" and leaf.dtype is not None and key not in _MARKS:
                self.numbers.append((key, leaf.dtype, observed, _bytes(leaf.shape, leaf.dtype)))
        for key in (NEXT_VALID, *_FLAGS, *([MASK] if filled else [])):
            self.keys.append(key)
            self.tensors.append(_entry(key, () if key == MASK else (1,), flag, torch.bool))


def _entry(key: Key, shape: tuple[int, ...], dtype: np.dtype[Any], kind: torch.dtype) -> Entry:
    return Entry(key, shape, dtype, kind, _bytes(shape, dtype))


def _bytes(shape: tuple[int, ...], dtype: np.dtype[Any]) -> int:
    return math.prod(shape) * dtype.itemsize


def is_observed(key: Key) -> bool:
    """Whether a leaf is of the observation: a batch has that of the next step as well."""
    return key[0] == "observation"


def following(key: Key) -> Key:
    """Where an entry of the next step is."""
    return ("next", *key)


class Slab:
    """Tensors of one batch, of any content at first. Its slices may be written by several threads at once.

    Args:
        entries: what a step has.
        count: slices of the batch.
        length: steps of each.
        memory: where large tensors are taken from.

    Example:
        >>> from replaybank.datasets.openx.sources.base import FieldSpec
        >>> from replaybank.datasets.openx.ted import ted_leaves
        >>> leaves = ted_leaves({("action",): FieldSpec("tensor", (4,), np.dtype("float32"))})
        >>> slab = Slab(Entries(leaves, filled=False), 2, 3, BatchMemory())
        >>> slab.part(("action",), 1).shape, slab.tensors["action",].shape
        ((3, 4), torch.Size([6, 4]))
    """

    def __init__(self, entries: Entries, count: int, length: int, memory: BatchMemory) -> None:
        self.entries = entries
        self.count = count
        self.length = length
        steps = count * length
        self.tensors: dict[Key, Tensor] = {}
        address = {}
        for key, shape, dtype, kind, bytes_ in entries.tensors:
            if bytes_ * steps < LEAST_BYTES:  # torch would let the GIL go for each of them
                tensor = torch.from_numpy(np.empty((steps, *shape), dtype))
            else:
                tensor = memory.any_size((steps, *shape), kind)
            self.tensors[key] = tensor
            address[key] = tensor.data_ptr()
        self._plan = [address[key] for key in _MARKS]
        for key, _, observed, bytes_ in entries.numbers:
            self._plan += (address[key], address[following(key)] if observed else 0, bytes_)

    def part(self, key: Key, place: int) -> npt.NDArray[Any]:
        """What holds an entry of a slice, ``[length, *shape]``."""
        array: npt.NDArray[Any] = self.tensors[key].numpy()
        return array[place * self.length : (place + 1) * self.length]

    def write(
        self,
        place: int,
        arrays: list[npt.NDArray[Any]],
        *,
        start: int,
        steps: int,
        there: int,
        number: int,
        terminated: bool,
    ) -> bool:
        """Write the numbers of a slice, and what each step gets: where it is, and what ends. O(bytes).

        Args:
            place: of the slice.
            arrays: for each leaf of numbers in turn, its values from the slice's first step on, contiguous
                and in its dtype: ``[steps, ...]``, with the step behind these where there is one and the
                next step's are wanted.
            start: of the slice in its episode.
            steps: of the slice, at most ``length``; what lies behind them stays as it is.
            there: steps of the episode.
            number: of the episode.
            terminated: whether its last step is a terminal one.

        Returns:
            False, and nothing has been written, where an array is of another size.
        """
        assert 0 <= place < self.count
        return _native.cut_slice(
            self._plan, arrays, place, self.length, start, steps, there, number, terminated
        )


class Slabs:
    """A slab for each batch of a stream of slices. Thread-safe.

    Args:
        entries: what a step has.
        first: number of the slice with which the first batch begins.
        count: slices of a batch.
        length: steps of a slice.
        memory: where large tensors are taken from.
    """

    def __init__(self, entries: Entries, first: int, count: int, length: int, memory: BatchMemory) -> None:
        self._entries = entries
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
                slab = self._slabs[batch] = Slab(self._entries, self._count, self._length, self._memory)
        return slab, place

    def done(self, number: int) -> None:
        """Forget the slabs of batches that end before a slice: whoever has the batch has its tensors."""
        batch = (number - self._first) // self._count
        with self._lock:
            for old in [known for known in self._slabs if known < batch]:
                del self._slabs[old]
