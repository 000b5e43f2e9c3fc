"""Memory for large batches: that of a batch which was dropped serves the next one."""

from __future__ import annotations

import sys
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

_UNUSED = 2  # references to a block that only its list and the argument of ``getrefcount`` hold


@dataclass(slots=True)
class _Block:
    owner: npt.NDArray[np.uint8]
    start: int
    last: int


class BatchMemory:
    """Makes large tensors, of any content, over memory of earlier ones that are gone.

    Every tensor is a view of a NumPy array that only this object and the tensor's storage refer to. While
    anybody holds the tensor, a view of it, an array made of it or its storage, the array has one reference
    more than this object's own: its memory is taken again only once all are gone. Memory that has not been
    wanted for a while is freed.

    A tensor has its own storage of exactly its size, on the CPU, which cannot be resized.

    Not thread-safe: the buffer's lock guards it. Tensors may be dropped in any thread.

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
        block = self._block(bytes_)
        view = block.owner[block.start : block.start + bytes_].view(kind).reshape(shape)
        return torch.from_numpy(view)

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
            if sys.getrefcount(block.owner) == _UNUSED:
                block.last = now
                return block
        align = _PAGE if size >= LARGE_BYTES else _LINE
        owner = np.empty(size + align, dtype=np.uint8)
        start = -owner.ctypes.data % align
        if align == _PAGE:
            _native.ask_large_pages(owner.ctypes.data + start, -(-size // _PAGE) * _PAGE)
        block = _Block(owner, start, now)
        if len(blocks) < _MOST_BLOCKS:
            blocks.append(block)
        return block

    def _sweep(self) -> None:
        """Free what nobody holds and nobody has asked for since the last time. O(blocks)."""
        before = self._made - _SWEEP
        for size, blocks in list(self._blocks.items()):
            blocks[:] = [
                block for block in blocks if block.last > before or sys.getrefcount(block.owner) > _UNUSED
            ]
            if not blocks:
                del self._blocks[size]


def recyclable(dtype: torch.dtype, bytes_: int) -> bool:
    """Whether :class:`BatchMemory` makes tensors of this dtype and size: large ones, in dtypes of NumPy's.

    Without the global interpreter lock nobody can tell how many hold a block.
    """
    return _COUNTS and LEAST_BYTES <= bytes_ <= MOST_BYTES and dtype in _NUMPY


_is_gil_enabled: Any = getattr(sys, "_is_gil_enabled", None)
_COUNTS = sys.implementation.name == "cpython" and (_is_gil_enabled is None or _is_gil_enabled())

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
