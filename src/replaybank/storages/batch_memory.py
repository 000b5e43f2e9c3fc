"""Memory for large batches: that of a batch which was dropped serves the next one."""

from __future__ import annotations

import sys
import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from replaybank import _native

LEAST_BYTES = 1 << 18
"""Smallest tensors that are made here. Smaller ones the C library keeps for the next time anyway; larger
ones it may give back to the system and get as fresh pages, which cost ten times what copying into them does.
"""

MOST_BYTES = 1 << 28
"""Largest tensors whose memory is kept. A larger one is a part of a replay more than a batch of it, and will
not be made again soon."""

LARGE_BYTES = 1 << 22
"""Tensors from this size on lie on large pages, of 2 MiB each."""

_PAGE = 1 << 21
_LINE = 64
_SWEEP = 64  # tensors made between two looks for memory that nobody needs any more
_MOST_BLOCKS = 256  # beyond these somebody collects batches, and looking for a free one takes too long


def _nobody() -> None:
    """Whoever sees a block that has not been given out."""


@dataclass(slots=True)
class _Block:
    owner: npt.NDArray[np.uint8]
    start: int
    last: int
    seen: Callable[[], Any] = _nobody
    """Gives the array that the tensor over this block lies in, or None when that is gone."""


class BatchMemory:
    """Makes large tensors, of any content, over memory of earlier ones that are gone.

    Every tensor lies in a NumPy array of its own that nobody but the tensor's storage holds, and that this
    object refers to weakly. Whoever holds the tensor, a view of it, an array made of it or its storage keeps
    that array: its memory is taken again only once the array is gone. Memory that has not been wanted for a
    while is freed.

    A tensor has its own storage of exactly its size, on the CPU, which cannot be resized.

    Pickled and copied, it is a new one without memory. Thread-safe: two buffers, each with a lock of its own,
    may share a storage. Who comes while another is being served gets new memory. Tensors may be dropped in
    any thread.

    Example:
        >>> memory = BatchMemory()
        >>> first = memory.empty((64, 8192), torch.float32)
        >>> where = first.data_ptr()
        >>> del first
        >>> memory.empty((64, 8192), torch.float32).data_ptr() == where
        True
    """

    def __init__(self) -> None:
        self._blocks: dict[int, list[_Block]] = {}
        self._made = 0
        self._turn = threading.Lock()  # never waited for: a forked child may find it taken for good

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """A contiguous tensor. O(1) where there is memory to be taken again.

        Args:
            shape: of at least one element.
            dtype: one that :func:`recyclable` takes.
        """
        kind = _NUMPY[dtype]
        count = 1
        for size in shape:
            count *= size
        bytes_ = count * kind.itemsize
        if not self._turn.acquire(blocking=False):
            return torch.empty(shape, dtype=dtype, device="cpu")
        try:
            block = self._block(bytes_)
            view = block.owner[block.start : block.start + bytes_].view(kind).reshape(shape)
            block.seen = weakref.ref(view)
        finally:
            self._turn.release()
        return torch.from_numpy(view)

    def any_size(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """The same, or a new tensor if it is none of those made here."""
        if recyclable(dtype, torch.Size(shape).numel() * dtype.itemsize):
            return self.empty(shape, dtype)
        return torch.empty(shape, dtype=dtype, device="cpu")

    def __reduce__(self) -> tuple[Any, ...]:
        return BatchMemory, ()

    @property
    def nbytes(self) -> int:
        """Memory kept, of tensors that are in use and of others."""
        return sum(block.owner.nbytes for blocks in self._blocks.values() for block in blocks)

    def _block(self, wanted: int) -> _Block:
        self._made = now = self._made + 1
        if now % _SWEEP == 0:
            self._sweep()
        step = max(_LINE, 1 << (wanted.bit_length() - 4))  # sizes within an eighth share their blocks
        size = -(-wanted // step) * step
        blocks = self._blocks.setdefault(size, [])
        for block in blocks:
            if block.seen() is None:
                block.last = now
                return block
        align = _PAGE if size >= LARGE_BYTES else _LINE
        owner = np.empty(size + align, dtype=np.uint8)
        start = -owner.ctypes.data % align
        if align == _PAGE:
            _native.ask_large_pages(owner.ctypes.data + start, size)
        block = _Block(owner, start, now)
        if len(blocks) < _MOST_BLOCKS:
            blocks.append(block)
        return block

    def _sweep(self) -> None:
        """Free what nobody holds and nobody has asked for since the last time. O(blocks)."""
        before = self._made - _SWEEP
        for size, blocks in list(self._blocks.items()):
            blocks[:] = [block for block in blocks if block.last > before or block.seen() is not None]
            if not blocks:
                del self._blocks[size]


def recyclable(dtype: torch.dtype, bytes_: int) -> bool:
    """Whether :class:`BatchMemory` makes tensors of this dtype and size: large ones, in dtypes of NumPy's.

    Only where arrays go at once when nobody holds them, and where one thread at a time sees to it.
    """
    return _AT_ONCE and LEAST_BYTES <= bytes_ <= MOST_BYTES and dtype in _NUMPY


_is_gil_enabled: Any = getattr(sys, "_is_gil_enabled", None)
_AT_ONCE = sys.implementation.name == "cpython" and (_is_gil_enabled is None or _is_gil_enabled())

_NUMPY: dict[torch.dtype, np.dtype[Any]] = {
    getattr(torch, name): np.dtype(kind)
    for name, kind in (
        ("bool", np.bool_),
        *((name, getattr(np, name)) for name in ("uint8", "uint16", "uint32", "uint64")),
        *((name, getattr(np, name)) for name in ("int8", "int16", "int32", "int64")),
        *((name, getattr(np, name)) for name in ("float16", "float32", "float64", "complex64", "complex128")),
    )
    if hasattr(torch, name)
}
