"""Frames with their channels first, as networks take them."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from replaybank import _native


def channels_first(frames: npt.NDArray[Any], out: npt.NDArray[Any] | None = None) -> npt.NDArray[Any]:
    """Frames ``[n, H, W, C]`` as a contiguous array ``[n, C, H, W]``. O(bytes).

    Args:
        frames: of any dtype.
        out: where to put them: contiguous, of their dtype and of the result's shape; by default a new array.

    Raises:
        ValueError: ``out`` is something else.

    >>> channels_first(np.arange(6, dtype=np.uint8).reshape(1, 1, 2, 3)).tolist()
    [[[[0, 3]], [[1, 4]], [[2, 5]]]]
    """
    number, height, width, channels = frames.shape
    shape = (number, channels, height, width)
    if out is None:
        out = np.empty(shape, frames.dtype)
    elif out.shape != shape or out.dtype != frames.dtype or not out.flags.c_contiguous:
        raise ValueError(
            f"out must be a contiguous array of {frames.dtype} and shape {shape}, got one of {out.dtype} and "
            f"shape {out.shape}"
        )
    if channels == 3 and frames.dtype == np.uint8 and frames.flags.c_contiguous:
        _native.split_channels(address_of(frames), number, height * width, address_of(out))
    else:
        out[...] = frames.transpose(0, 3, 1, 2)
    return out


def address_of(array: npt.NDArray[Any]) -> int:
    """Where an array lies: ``array.ctypes.data``, in a third of the time."""
    address: int = array.__array_interface__["data"][0]
    return address
