"""Slow, obvious versions of csrc/channels.hpp over NumPy arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


def planes(frame: Array, *, swapped: bool) -> Array:
    """``[H, W, C]`` as ``[C, H, W]``, the first and the third channel exchanged if asked for."""
    order = list(range(frame.shape[2]))
    if swapped and len(order) > 2:
        order[0], order[2] = order[2], order[0]
    return np.stack([frame[:, :, channel] for channel in order])


def split(frames: Array, out: Array, at: int, after: Array | None, after_at: int, *, swapped: bool) -> None:
    """Frame ``k`` to ``out[at + k]`` and ``after[after_at + k]``, as far as there are such."""
    for k, frame in enumerate(frames):
        for room, first in ((out, at), (after, after_at)):
            if room is not None and 0 <= first + k < len(room):
                room[first + k] = planes(frame, swapped=swapped)


def scatter(
    frames: Array, ends: Array, first: int, places: Array, rooms: list[Array], *, swapped: bool
) -> None:
    """Frame ``k`` to all its places, which count through the rooms."""
    every = [room[i] for room in rooms for i in range(len(room))]
    for k, frame in enumerate(frames, first):
        for place in places[ends[k] : ends[k + 1]]:
            every[place][...] = planes(frame, swapped=swapped)
