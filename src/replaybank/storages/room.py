"""Memory that each thread keeps for what it works on: frames between their decoder and where they go."""

from __future__ import annotations

import math
import threading
from typing import Any

import numpy as np
import numpy.typing as npt

from replaybank.storages.channels import address_of

GROUP_BYTES = 1 << 18
"""Pixels between the decoder and their planes: they stay in a core's own cache. A larger frame goes alone."""

MOST_KEPT = 1 << 22
"""Bytes that each thread keeps for the next frames; larger ones are made anew."""

_UNALIGNED = 8
"""Where arrays begin in a line of 64 bytes. Rows that begin at a multiple of 32 (16 without AVX2)
libjpeg-turbo writes past the caches: a frame of 64 x 64 pixels then takes 26 microseconds instead of 21, and
has to be fetched again. Items of up to eight bytes are aligned all the same."""

_LINE = 64

_here = threading.local()


def room_for(purpose: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """An array of any content, of this thread's memory: only until the thread asks for the next one. O(1).

    Args:
        purpose: arrays for different ones are different.
        shape: of the array.
        dtype: of the array.
    """
    known: tuple[npt.NDArray[np.uint8], npt.NDArray[Any]] | None = getattr(_here, purpose, None)
    if known is not None and known[1].shape == shape and known[1].dtype == dtype:
        return known[1]
    size = math.prod(shape) * dtype.itemsize
    if size > MOST_KEPT:
        return _unaligned(size).view(dtype).reshape(shape)
    kept = _unaligned(max(size, GROUP_BYTES)) if known is None or known[0].nbytes < size else known[0]
    room = kept[:size].view(dtype).reshape(shape)
    setattr(_here, purpose, (kept, room))
    return room


def _unaligned(size: int) -> npt.NDArray[np.uint8]:
    """Memory that decoders keep in the caches."""
    made = np.empty(size + 2 * _LINE, np.uint8)
    begin = (_UNALIGNED - address_of(made)) % _LINE
    return made[begin : begin + size]
