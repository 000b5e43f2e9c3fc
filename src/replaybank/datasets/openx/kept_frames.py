"""The frames of a camera as their JPEG or PNG bytes, on their way into a converted dataset."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from replaybank import _native
from replaybank.datasets.openx.frames import FRAME_CHUNK_BYTES, Content, chunk_of
from replaybank.datasets.openx.sources.base import FieldSpec, Images, stored_spans
from replaybank.datasets.openx.sources.images import PNG_HEADER_SIZE, check_headers, image_format
from replaybank.datasets.openx.ted import Leaf
from replaybank.storages.channels import address_of
from replaybank.storages.room import room_for

_TRIES = 4
"""Headers that are remembered in vain before nothing more is: some cameras give each frame another."""

_JPEG_BEGIN = b"\xff\xd8"
_SCAN = 0xDA
_SEGMENTS = frozenset(bytes([marker]) for marker in (*range(0xC0, 0xD0), *range(0xDA, 0xFF)))
"""Second bytes of what begins a segment of a JPEG, whose length follows."""


class KeptFrames(NamedTuple):
    """Some frames, end to end.

    Args:
        sizes: bytes of each, int64 ``[n]``.
        content: the bytes of all; only until the next ones are asked for.
    """

    sizes: npt.NDArray[np.int64]
    content: Content


def kept_frames(images: Images, leaf: Leaf, where: str) -> Iterator[KeptFrames]:
    """The frames of a camera as they are stored, about ``FRAME_CHUNK_BYTES`` at a time. O(their bytes).

    Args:
        images: the frames.
        leaf: what a frame is like.
        where: dataset and episode, for messages.

    Raises:
        DataFormatError: what a frame says of itself is not what the dataset has: it is no JPEG or PNG, or of
            another shape or dtype.
    """
    channels, height, width = leaf.shape
    spec = FieldSpec("image", (height, width, channels), leaf.dtype)
    where = f"{where}: {'/'.join(leaf.source if leaf.source is not None else leaf.key)}"
    found = stored_spans(images)
    if found is not None:
        payload, spans = found[0], np.ascontiguousarray(found[1], np.int64)  # of a film every n-th row
        _check_spans(payload, spans, spec, where)
        yield from _joined(payload, spans)
        return
    chunk = chunk_of(leaf)
    for start in range(0, len(images), chunk):
        contents: Sequence[bytes] = images.encoded(start, min(start + chunk, len(images)))
        check_headers(contents, spec, where, start)
        yield KeptFrames(np.array([len(content) for content in contents], np.int64), b"".join(contents))


def _check_spans(payload: bytes, spans: npt.NDArray[np.int64], spec: FieldSpec, where: str) -> None:
    """Check the headers of frames that lie in a payload. O(frames).

    The frames of a camera mostly begin with the same bytes up to the pixels, and nothing else is looked at:
    one of them speaks for those like it.
    """
    tries, at, count = 0, 0, len(spans)
    while at < count:
        place, size = spans[at].tolist()
        frame = payload[place : place + size]
        check_headers([frame], spec, where, at)
        at += 1
        if tries == _TRIES:
            continue
        known = header_bytes(frame)
        if known:
            like = _native.spans_starting(payload, address_of(spans[at:]), count - at, known)
            tries = 0 if like else tries + 1
            at += like


def header_bytes(frame: bytes) -> bytes | None:
    r"""All that a good frame's header is read from, if that can be told. O(segments of the header).

    Of a JPEG that is everything up to its first scan, of a PNG its first chunk.

    >>> header_bytes(b"\xff\xd8" + b"\xff\xc0\0\x03." + b"\xff\xda\0\x03." + b"pixels").hex()
    'ffd8ffc000032effda00032e'
    """
    if image_format(frame) == "png":
        return frame[:PNG_HEADER_SIZE]
    at = len(_JPEG_BEGIN)
    while frame[at : at + 1] == b"\xff" and frame[at + 1 : at + 2] in _SEGMENTS:
        size = int.from_bytes(frame[at + 2 : at + 4], "big")  # these two bytes included
        end = at + 2 + size
        if size < 2 or end > len(frame):
            return None
        if frame[at + 1] == _SCAN:
            return frame[:end]
        at = end
    return None


def _joined(payload: bytes, spans: npt.NDArray[np.int64]) -> Iterator[KeptFrames]:
    """Frames that lie in a payload, end to end."""
    sizes = np.ascontiguousarray(spans[:, 1])
    ends = sizes.cumsum()
    start, before = 0, 0
    while start < len(spans):
        stop = max(int(ends.searchsorted(before + FRAME_CHUNK_BYTES, "right")), start + 1)
        wanted = int(ends[stop - 1]) - before
        room = room_for("kept", (wanted,), np.dtype(np.uint8))
        part = spans[start:stop]
        if _native.join_spans(payload, address_of(part), len(part), address_of(room), wanted) != wanted:
            raise RuntimeError("frames lie outside of what they came in")
        yield KeptFrames(sizes[start:stop], room)
        start, before = stop, before + wanted
