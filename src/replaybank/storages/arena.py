"""Where the bytes of a table come from: memory, shared memory, a device."""

from __future__ import annotations

import mmap
import os
from typing import Any, Protocol

import torch
from torch import Tensor

from replaybank import _native
from replaybank.storages.capacity import check_memory, check_shared_memory

LARGE_PAGES_BYTES = 1 << 24
"""Buffers of at least this size ask for large pages. Smaller ones fit the TLB's second level well enough, and
the system rounds each up to 2 MiB."""


MAPPED_BYTES = 1 << 20
"""Zero buffers of at least this size are mapped: ``torch.zeros`` would write to every page at once."""


class Arena(Protocol):
    """Gives out buffers."""

    def check(self, wanted: int, what: str) -> None:
        """Raise if there is no room for ``wanted`` bytes in all."""
        ...

    def take(self, name: str, count: int, *, zero: bool) -> Tensor:
        """A contiguous uint8 tensor of ``count`` bytes, aligned to 64; zero or of any content."""
        ...


class MemoryArena:
    """Process memory or a device's. Pages are taken when they are first written, not here.

    Args:
        device: where.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def check(self, wanted: int, what: str) -> None:
        """Raise MemoryError if there is no room."""
        check_memory(wanted, what, self.device)

    def take(self, name: str, count: int, *, zero: bool) -> Tensor:
        """A buffer. O(1): the system hands out zero pages lazily."""
        buffer: Tensor
        if zero and count >= MAPPED_BYTES and self.device.type == "cpu":
            buffer = torch.frombuffer(_zero_pages(count), dtype=torch.uint8)
        else:
            make = torch.zeros if zero else torch.empty
            buffer = make(count, dtype=torch.uint8, device=self.device)
        if buffer.is_cpu and count >= LARGE_PAGES_BYTES:
            _native.ask_large_pages(buffer.data_ptr(), count)
        return buffer


def _zero_pages(count: int) -> mmap.mmap:
    if os.name == "nt":
        return mmap.mmap(-1, count)
    return mmap.mmap(-1, count, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)


class SharedArena:
    """Memory that other processes see when the tensors are sent to them."""

    def check(self, wanted: int, what: str) -> None:
        """Raise MemoryError or OSError if there is no room."""
        check_shared_memory(wanted, what)

    def take(self, name: str, count: int, *, zero: bool) -> Tensor:
        """A buffer, always zero. O(1)."""
        make: Any = getattr(torch.UntypedStorage, "_new_shared", None)
        buffer = torch.empty(0, dtype=torch.uint8)
        if make is None or count == 0:  # the public way copies, which touches every page
            copied: Tensor = torch.zeros(count, dtype=torch.uint8).share_memory_()
            return copied
        memory: torch.UntypedStorage = make(count, device="cpu")
        buffer.set_(memory, 0, (count,), (1,))
        return buffer
