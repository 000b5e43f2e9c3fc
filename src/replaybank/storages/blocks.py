"""Byte strings of any length, written, read and freed in any order."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from replaybank import _native
from replaybank.storages.arena import Arena

BLOCK_BYTES = _native.BLOCK_BYTES
BLOCK_PAYLOAD = _native.BLOCK_PAYLOAD

MOST_BLOCKS = (1 << 31) - 2
"""Blocks are numbered by int32: some 500 GiB."""

CHUNK_BLOCKS = 1 << 16
"""Blocks that are added at a time where memory can grow: 16 MiB."""

_HEADER_BYTES = 64


class ByteBlocks:
    """Byte strings in blocks of one size, chained: nothing is ever moved, whatever is freed.

    A string takes its bytes, 4 in 252, and half a block on average. What is freed is used again first.

    Not thread-safe to write: the buffer's lock guards it; reading may go on in several threads. Shareable
    between processes where its buffers are.

    Args:
        header: uint8, zero at the start: how many blocks are taken.
        chunks: uint8 buffers of the same number of blocks each.
        arena: where more chunks come from; None: there are as many as there will be.
        name: of the buffers.
    """

    def __init__(self, header: Tensor, chunks: list[Tensor], arena: Arena, name: str, *, grows: bool) -> None:
        self._header_bytes = header
        self._header = memoryview(header[:24].view(torch.int64).numpy())  # type: ignore[arg-type]
        self._chunks = chunks
        self._arena = arena
        self._name = name
        self._grows = grows
        self._chunk_blocks = chunks[0].numel() // BLOCK_BYTES if chunks else CHUNK_BLOCKS
        self._assured = len(chunks) * self._chunk_blocks if grows else 0
        self._address = header.data_ptr()
        self._addresses = [chunk.data_ptr() for chunk in chunks]

    @classmethod
    def allocate(cls, arena: Arena, name: str, blocks: int, *, grows: bool, fresh: bool) -> ByteBlocks:
        """Take the buffers.

        Args:
            arena: where they come from.
            name: their name.
            blocks: at most so many, where the buffers cannot grow: all are there from the start, and take
                room only as they are written.
            grows: more buffers may be taken later.
            fresh: nothing is in them; False: they are there already and hold strings.
        """
        header = arena.take(f"{name}-header", _HEADER_BYTES, zero=True)
        if fresh:
            header.zero_()
        chunks = [] if grows else [arena.take(name, min(blocks, MOST_BLOCKS) * BLOCK_BYTES, zero=False)]
        return cls(header, chunks, arena, name, grows=grows)

    @property
    def taken_bytes(self) -> int:
        """Bytes that have ever been in use at once."""
        return int(self._header[0]) * BLOCK_BYTES

    @property
    def used_bytes(self) -> int:
        """Bytes in use now."""
        return int(self._header[0] - self._header[2]) * BLOCK_BYTES

    def make_room(self, sizes: list[int]) -> None:
        """See to it that strings of these sizes can be written.

        Raises:
            MemoryError, OSError: there is no room; nothing has been taken.
        """
        wanted = sum(-(-size // BLOCK_PAYLOAD) for size in sizes)
        mark, _, free = self._header
        top = mark + max(wanted - free, 0)
        if top <= self._assured:
            return
        there = len(self._chunks) * self._chunk_blocks
        if top > (MOST_BLOCKS if self._grows else there):
            raise MemoryError(
                f"{self._name}: {top * BLOCK_BYTES} bytes of encoded frames, and at most "
                f"{(MOST_BLOCKS if self._grows else there) * BLOCK_BYTES} can be kept."
            )
        if self._grows:
            more = -(-(top - there) // CHUNK_BLOCKS)
            self._arena.check(more * CHUNK_BLOCKS * BLOCK_BYTES, f"Keeping {top} blocks of encoded frames")
            for _ in range(more):
                name = f"{self._name}-{len(self._chunks)}"
                self._chunks.append(self._arena.take(name, CHUNK_BLOCKS * BLOCK_BYTES, zero=False))
            self._addresses = [chunk.data_ptr() for chunk in self._chunks]
            self._assured = len(self._chunks) * self._chunk_blocks
        else:
            top = min(max(top, mark + CHUNK_BLOCKS), there)  # asked in steps: asking takes a while
            self._arena.check((top - mark) * BLOCK_BYTES, f"Keeping {top} blocks of encoded frames")
            self._assured = top

    def write(self, content: bytes) -> int:
        """Store a string for which there is room; its number. O(bytes)."""
        number = _native.blocks_write(self._addresses, self._chunk_blocks, self._address, content)
        if number < 0:
            raise MemoryError(f"{self._name}: no room for {len(content)} bytes; make_room was not asked.")
        return number

    def free(self, number: int, size: int) -> None:
        """Forget a string. O(bytes)."""
        _native.blocks_free(self._addresses, self._chunk_blocks, self._address, number, size)

    def read(self, number: int, size: int) -> bytes:
        """A string of known size. O(bytes).

        Raises:
            ValueError: it is damaged.
        """
        found = _native.blocks_read(self._addresses, self._chunk_blocks, self._address, number, size)
        if found is None:
            raise ValueError(f"{self._name}: string {number} is damaged.")
        return found

    def keep_only(self, numbers: Tensor, sizes: Tensor) -> None:
        """Have all blocks free that no string of these uses, whatever was free before. O(blocks taken).

        Args:
            numbers: int64 ``[k]``, of strings that are whole.
            sizes: int64 ``[k]``, their bytes.
        """
        taken, step = int(self._header[0]), self._chunk_blocks
        links = [
            chunk[: max(min(taken - at * step, step), 0) * BLOCK_BYTES]
            .view(torch.int32)
            .view(-1, BLOCK_BYTES // 4)[:, 0]
            for at, chunk in enumerate(self._chunks)
        ]
        following = torch.cat(links).to(torch.int64) if links else torch.empty(0, dtype=torch.int64)
        free = torch.ones(taken, dtype=torch.bool)
        left = (sizes + BLOCK_PAYLOAD - 1) // BLOCK_PAYLOAD
        while numbers.numel():
            free[numbers] = False
            left = left - 1
            numbers, left = following[numbers][left > 0], left[left > 0]
        blocks = free.nonzero().reshape(-1)
        self._header[1] = self._header[2] = 0
        if not blocks.numel():
            return
        chain = torch.cat([blocks[1:], torch.tensor([-1])]).to(torch.int32)
        for at, link in enumerate(links):
            here = (blocks >= at * step) & (blocks < (at + 1) * step)
            link[blocks[here] - at * step] = chain[here]
        self._header[1], self._header[2] = int(blocks[0]) + 1, blocks.numel()

    def clear(self) -> None:
        """Forget all. O(1)."""
        self._header_bytes.zero_()

    def __getstate__(self) -> dict[str, Any]:
        chunks = self._chunks
        if self._grows:  # only what has ever been used
            used = int(self._header[0]) * BLOCK_BYTES
            size = CHUNK_BLOCKS * BLOCK_BYTES
            chunks = [chunk[: max(used - at * size, 0)].clone() for at, chunk in enumerate(chunks)]
        return {
            "header": self._header_bytes,
            "chunks": chunks,
            "arena": self._arena,
            "name": self._name,
            "grows": self._grows,
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        if state["grows"]:
            size, arena = CHUNK_BLOCKS * BLOCK_BYTES, state["arena"]
            chunks = []
            for used in state["chunks"]:
                chunk = arena.take(state["name"], size, zero=False)
                chunk[: used.numel()] = used
                chunks.append(chunk)
            state = {**state, "chunks": chunks}
        self.__init__(**state)  # type: ignore[misc]
