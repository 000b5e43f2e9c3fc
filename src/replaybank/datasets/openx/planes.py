"""Frames decoded straight to where they are wanted, channels first: nothing as large as them lies between."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy.typing as npt

from replaybank.datasets.openx.sources.base import Images, as_stored, decoded_into
from replaybank.storages.channels import put
from replaybank.storages.room import GROUP_BYTES, room_for

PASSING_BYTES = 1 << 19
"""Frames from this size on pass by the caches when they are written: two copies of one and its pixels would
push all else out of a core's own. Two copies of 0.9 MB take 80 microseconds instead of 170 (AVX-512), those
of 0.2 MB the same either way."""


def decode_planes(
    images: Images,
    start: int,
    out: npt.NDArray[Any],
    after: npt.NDArray[Any] | None = None,
    *,
    check: Callable[[tuple[int, ...]], None],
    soon: bool = False,
) -> None:
    """Decode the frames from ``start`` on. O(bytes); each is decoded once.

    Args:
        images: the frames of a camera.
        start: the first one wanted.
        out: ``[n, C, H, W]``, contiguous: frames ``start`` to ``start + n``.
        after: ``[m, C, H, W]``, contiguous, of the same dtype: frames ``start + 1`` to ``start + 1 + m``;
            ``m`` is ``n`` or one less.
        check: told the shape ``(C, H, W)`` of the frames before they are written; raises where it is wrong.
        soon: ``out`` is read at once, and is small enough to stay in the caches until then.
    """
    number, (channels, height, width) = len(out), out.shape[1:]
    total = number if after is None else max(number, len(after) + 1)
    frame = max(int(out[:1].nbytes), 1)
    group = max(1, GROUP_BYTES // frame)
    images, swapped = as_stored(images)
    for first in range(0, total, group):
        stop = min(first + group, total)
        room = room_for("pixels", (stop - first, height, width, channels), out.dtype)
        pixels = decoded_into(images, room, start + first, start + stop)
        check((pixels.shape[3], *pixels.shape[1:3]))
        passing = not soon and frame >= PASSING_BYTES
        put(pixels, out, first, after, first - 1, swapped=swapped, passing=passing)
