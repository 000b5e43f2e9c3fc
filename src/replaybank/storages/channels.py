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
        ValueError: ``out`` is something else, or lies where the frames do.

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
    put(frames, out)
    return out


def put(
    frames: npt.NDArray[Any],
    out: npt.NDArray[Any],
    at: int = 0,
    after: npt.NDArray[Any] | None = None,
    after_at: int = 0,
    *,
    swapped: bool = False,
    passing: bool = False,
) -> None:
    """Write each frame to two places, channels first, as far as there are such. O(bytes).

    Args:
        frames: ``[n, H, W, C]``: frame ``k`` goes to ``out[at + k]`` and to ``after[after_at + k]``.
        out: ``[m, C, H, W]``, contiguous, of any dtype: numbers are converted.
        at: may be negative: the first frames are passed over.
        after: as ``out``, of its dtype.
        after_at: as ``at``.
        swapped: the first and the third channel are exchanged.
        passing: by the caches, because nobody reads the results soon.

    Raises:
        ValueError: the arrays do not fit, or overlap; nothing is written.
    """
    if splits(frames, out):
        if not _native.split_channels(frames, out, at, after, after_at, swapped, passing):
            places = [place.shape for place in (out, after) if place is not None]
            raise ValueError(
                f"frames {frames.shape} of {frames.dtype} cannot be put into {places}: give contiguous "
                "arrays [m, C, H, W] of one dtype that can be written and share no memory"
            )
        return
    pixels = exchanged(frames) if swapped else frames
    for place, begin in ((out, at), (after, after_at)):
        if place is not None:
            skip, begin = max(-begin, 0), max(begin, 0)
            part = pixels[skip : skip + max(len(place) - begin, 0)]
            place[begin : begin + len(part)] = part.transpose(0, 3, 1, 2)


def put_each(
    frames: npt.NDArray[Any],
    ends: npt.NDArray[np.int64],
    first: int,
    places: npt.NDArray[np.int64],
    out: npt.NDArray[Any],
    after: npt.NDArray[Any] | None = None,
    *,
    swapped: bool = False,
    passing: bool = False,
) -> None:
    """Write each frame to any number of places, channels first. O(bytes).

    Args:
        frames: ``[n, H, W, C]``, contiguous.
        ends: ``[first + n + 1]`` or longer: frame ``k`` goes to the places from ``ends[first + k]`` to
            before ``ends[first + k + 1]``.
        first: number of the first of the frames.
        places: counted through ``out`` and then ``after``.
        out: ``[m, C, H, W]``, contiguous, of the dtype of the frames.
        after: the same.
        swapped: the first and the third channel are exchanged.
        passing: by the caches, because nobody reads the results soon.

    Raises:
        ValueError: the arrays do not fit, or overlap, or there is no such place; nothing is written.
    """
    good = frames.dtype == out.dtype and (after is None or after.dtype == out.dtype)
    if not good or not _native.scatter_channels(frames, ends, first, places, out, after, swapped, passing):
        raise ValueError(
            f"frames {frames.shape} of {frames.dtype} cannot be put into {out.shape} of {out.dtype} at these "
            "places: give contiguous arrays of one dtype that share no memory, and places that there are"
        )


def splits(frames: npt.NDArray[Any], out: npt.NDArray[Any]) -> bool:
    """Whether the kernels take these: their bytes are moved as they are."""
    return frames.dtype == out.dtype and frames.dtype.kind in "biufc" and frames.flags.c_contiguous


def exchanged(pixels: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Pixels ``[..., C]`` with the first and the third channel exchanged; as they are if there are fewer."""
    if pixels.shape[-1] < 3:
        return pixels
    order = [2, 1, 0, *range(3, pixels.shape[-1])]
    return pixels[..., order]


def address_of(array: npt.NDArray[Any]) -> int:
    """Where an array lies: ``array.ctypes.data``, in a third of the time."""
    address: int = array.__array_interface__["data"][0]
    return address
