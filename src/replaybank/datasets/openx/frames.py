"""The frames of one camera over an episode on their way into a converted dataset."""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from replaybank.datasets.openx.planes import decode_planes
from replaybank.datasets.openx.sources.base import FieldSpec, Images
from replaybank.datasets.openx.sources.images import check_headers
from replaybank.datasets.openx.ted import Leaf, check_shape, decode_frames
from replaybank.storages.room import room_for

FRAME_CHUNK_BYTES = 1 << 19
"""Decoded frames held at a time, however long the episode: what stays in a core's cache between decoding and
writing, and is written at once."""


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
        crc, at = 0, self.offset
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
        return crc

    def _check(self, shape: tuple[int, ...]) -> None:
        check_shape(self.leaf, shape, self.where)


def decoded(leaf: Leaf, values: Any, start: int, stop: int, where: str) -> npt.NDArray[Any]:
    """Steps ``start`` to ``stop`` of a leaf as numbers, frames decoded.

    Raises:
        DataFormatError: a frame cannot be decoded or is not of the dataset's shape.
    """
    if isinstance(values, np.ndarray):
        return values[start:stop]
    part = decode_frames(values, start, stop)
    check_shape(leaf, part.shape[1:], where)
    return part


def chunk_of(leaf: Leaf) -> int:
    """How many frames of a camera are worked on at a time."""
    item = np.dtype(leaf.dtype).itemsize * math.prod(leaf.shape)
    return max(1, FRAME_CHUNK_BYTES // max(item, 1))


def check_frames(contents: Sequence[bytes], leaf: Leaf, where: str, start: int = 0) -> None:
    """Compare what encoded frames, from number ``start`` on, say of themselves with what the dataset has.

    O(frames).

    Raises:
        DataFormatError: one is no JPEG or PNG, or of another shape or dtype.
    """
    channels, height, width = leaf.shape
    spec = FieldSpec("image", (height, width, channels), leaf.dtype)
    name = "/".join(leaf.source if leaf.source is not None else leaf.key)
    check_headers(contents, spec, f"{where}: {name}", start)


def extend_crc32c(crc: int, content: bytes | npt.NDArray[Any]) -> int:
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


def write_at(file: int, offset: int, content: bytes | npt.NDArray[Any]) -> None:
    """Write bytes, or a contiguous array, at a place of a file. O(bytes)."""
    left = memoryview(content if isinstance(content, bytes) else content.reshape(-1).view(np.uint8))  # type: ignore[arg-type]
    while left:
        written = os.pwrite(file, left, offset)
        left, offset = left[written:], offset + written
