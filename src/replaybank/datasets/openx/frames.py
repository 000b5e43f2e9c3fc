"""The frames of one camera over an episode on their way into a converted dataset."""

from __future__ import annotations

import math
import os
import threading
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from replaybank import _native
from replaybank.datasets.openx.planes import decode_planes
from replaybank.datasets.openx.sources.base import Images
from replaybank.datasets.openx.ted import Leaf, check_shape, decode_frames
from replaybank.storages.room import room_for

Content: TypeAlias = "bytes | memoryview | npt.NDArray[Any]"
"""What is written: bytes, or a contiguous array."""

FRAME_CHUNK_BYTES = 1 << 19
"""Decoded frames held at a time, however long the episode: what stays in a core's cache between decoding and
writing, and is written at once."""

WRITE_BACK = 1 << 23
"""Bytes of a file from which on the disk is told to begin with them. Told of nothing it begins when they are
to be permanent, and everybody waits: 0.52 seconds a gigabyte instead of 0.36, where it takes 2.7 GB/s. What
cannot be begun, or goes wrong then, is found out when it is made permanent."""


class Stopped(Exception):
    """Writing was given up half way, because of something else."""


@dataclass
class FrameColumn:
    """Frames to be decoded and written at their place in a column. Writing is safe in any thread.

    Args:
        name: of the column's file.
        file: its descriptor.
        offset: where the first frame goes.
        leaf: what a frame is like.
        frames: the frames, or, for a leaf of numbers, the array; one thread at a time reads them, in order.
        length: how many.
        where: dataset and episode, for messages.
        stop: set to give up.
    """

    name: str
    file: int
    offset: int
    leaf: Leaf
    frames: Images | npt.NDArray[Any]
    length: int
    where: str
    stop: threading.Event = field(default_factory=threading.Event)

    def write(self) -> int:
        """Decode and write them; the CRC-32C of what was written. O(bytes of the decoded frames).

        Raises:
            DataFormatError: a frame cannot be decoded or is not of the dataset's shape.
            Stopped: ``stop`` was set.
        """
        dtype = np.dtype(self.leaf.dtype)
        chunk = chunk_of(self.leaf)
        crc, at, begun = 0, self.offset, self.offset
        for start in range(0, self.length, chunk):
            if self.stop.is_set():
                raise Stopped
            stop = min(start + chunk, self.length)
            if isinstance(self.frames, np.ndarray):
                content = np.ascontiguousarray(self.frames[start:stop], dtype=dtype)
            else:
                content = room_for("planes", (stop - start, *self.leaf.shape), dtype)
                decode_planes(self.frames, start, content, check=self._check, soon=True)
            crc = extend_crc32c(crc, content)
            write_at(self.file, at, content)
            at += content.nbytes
            if at - begun >= WRITE_BACK:
                _native.start_write_back(self.file, begun, at - begun)
                begun = at
        return crc

    @property
    def end(self) -> int:
        """Where the last frame ends in the file."""
        return self.offset + self.length * np.dtype(self.leaf.dtype).itemsize * math.prod(self.leaf.shape)

    def _check(self, shape: tuple[int, ...]) -> None:
        check_shape(self.leaf, shape, self.where)


def decoded(leaf: Leaf, values: Any, length: int, where: str) -> npt.NDArray[Any]:
    """The first steps of a leaf as numbers, frames decoded.

    Raises:
        DataFormatError: a frame cannot be decoded or is not of the dataset's shape.
    """
    if isinstance(values, np.ndarray):
        return values if len(values) == length else values[:length]
    part = decode_frames(values, 0, length)
    check_shape(leaf, part.shape[1:], where)
    return part


def chunk_of(leaf: Leaf) -> int:
    """How many frames of a camera are worked on at a time."""
    item = np.dtype(leaf.dtype).itemsize * math.prod(leaf.shape)
    return max(1, FRAME_CHUNK_BYTES // max(item, 1))


def extend_crc32c(crc: int, content: Content) -> int:
    """The CRC-32C of what ``crc`` is of and of ``content`` behind it. O(bytes), 10 GB/s.

    Raises:
        ImportError: google-crc32c is not installed.
    """
    try:
        import google_crc32c
    except ImportError as error:
        raise ImportError(
            "Checksums of datasets need google-crc32c: pip install 'replaybank[openx]'"
        ) from error
    extended: int = google_crc32c.extend(crc, content)
    return extended


def write_at(file: int, offset: int, content: Content) -> None:
    """Write bytes, or a contiguous array, at a place of a file. O(bytes)."""
    left = memoryview(content.reshape(-1).view(np.uint8) if isinstance(content, np.ndarray) else content)  # type: ignore[arg-type]
    while left:
        written = os.pwrite(file, left, offset)
        left, offset = left[written:], offset + written
