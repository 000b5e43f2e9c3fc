"""Frames decoded straight to where they are wanted, channels first: nothing as large as them lies between."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from replaybank.datasets.openx.channels import channels_first
from replaybank.datasets.openx.sources.base import Images, decoded_into

GROUP_BYTES = 1 << 18
"""Pixels between the decoder and their planes: they stay in a core's own cache. A larger frame goes alone."""

MOST_KEPT = 1 << 22
"""Bytes that each thread keeps for the next frames; larger ones are made anew."""

_here = threading.local()


def room_for(purpose: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """An array of any content, of this thread's memory: only until the thread asks for the next one. O(1).

    Args:
        purpose: arrays for different ones are different.
        shape: of the array.
        dtype: of the array.
    """
    size = math.prod(shape) * dtype.itemsize
    if size > MOST_KEPT:
        return np.empty(shape, dtype)
    kept: npt.NDArray[np.uint8] | None = getattr(_here, purpose, None)
    if kept is None or kept.nbytes < size:
        kept = np.empty(max(size, GROUP_BYTES), np.uint8)
        setattr(_here, purpose, kept)
    return kept[:size].view(dtype).reshape(shape)


def decode_planes(
    images: Images,
    start: int,
    out: npt.NDArray[Any],
    after: npt.NDArray[Any] | None = None,
    *,
    check: Callable[[tuple[int, ...]], None],
) -> None:
    """Decode the frames from ``start`` on. O(bytes); each is decoded once.

    Args:
        images: the frames of a camera.
        start: the first one wanted.
        out: ``[n, C, H, W]``, contiguous: frames ``start`` to ``start + n``.
        after: ``[m, C, H, W]``, contiguous: frames ``start + 1`` to ``start + 1 + m``; ``m`` is ``n`` or one
            less.
        check: told the shape ``(C, H, W)`` of the frames before they are written; raises where it is wrong.
    """
    number, (channels, height, width) = len(out), out.shape[1:]
    total = number if after is None else max(number, len(after) + 1)
    frame = max(int(out[:1].nbytes), 1)
    group = max(1, GROUP_BYTES // frame)
    for first in range(0, total, group):
        stop = min(first + group, total)
        room = room_for("pixels", (stop - first, height, width, channels), out.dtype)
        pixels = decoded_into(images, room, start + first, start + stop)
        check((pixels.shape[3], *pixels.shape[1:3]))
        ours = min(stop, number)
        if first < ours:
            put(pixels[: ours - first], out[first:ours])
        if after is not None and stop > 1:
            skip = 1 if first == 0 else 0
            put(pixels[skip:], after[first + skip - 1 : stop - 1])


def put(pixels: npt.NDArray[Any], out: npt.NDArray[Any]) -> None:
    """Frames ``[n, H, W, C]`` as ``[n, C, H, W]``, their numbers in the dtype of ``out``."""
    if pixels.dtype == out.dtype:
        channels_first(pixels, out)
    else:
        out[...] = pixels.transpose(0, 3, 1, 2)
