"""Tensors that look like images: in which of the usual forms they lie, and how they are shown."""

from __future__ import annotations

from typing import Any, Final, Literal, TypeAlias

import numpy.typing as npt

ImageForm: TypeAlias = Literal["HW", "HWC", "CHW"]
"""Where height, width and channels are; without channels it is grey."""

MOST_CHANNELS: Final = 16
"""Of what is taken for an image: frames that are stacked have many."""
LEAST_SIDE: Final = 8
"""Pixels of what is taken for an image."""


def image_form(shape: tuple[int, ...], dtype: str) -> ImageForm | None:
    """How a tensor is an image: bytes, two sides of some length, perhaps a few channels; None if it is none.

    >>> image_form((3, 64, 64), "uint8"), image_form((84, 84, 4), "uint8"), image_form((84, 84), "uint8")
    ('CHW', 'HWC', 'HW')
    >>> image_form((3, 64, 64), "float32"), image_form((64, 64, 64), "uint8")
    (None, None)
    """
    if dtype != "uint8" or len(shape) not in (2, 3):
        return None
    if len(shape) == 2:
        return "HW" if min(shape) >= LEAST_SIDE else None
    first, middle, last = shape
    channels, *sides = (first, middle, last) if first < last else (last, first, middle)
    if not 1 <= channels <= MOST_CHANNELS or min(sides) < LEAST_SIDE:
        return None
    return "CHW" if first < last else "HWC"


def shown(images: npt.NDArray[Any], form: ImageForm) -> npt.NDArray[Any]:
    """Images ``[n, H, W, C]`` of 1, 3 or 4 channels, whichever way they lie; of stacked frames the last one.

    Args:
        images: ``[n, *shape]``.
        form: from :func:`image_form`.

    >>> import numpy as np
    >>> shown(np.zeros((2, 4, 84, 84), np.uint8), "CHW").shape
    (2, 84, 84, 1)
    >>> shown(np.zeros((2, 64, 64, 6), np.uint8), "HWC").shape
    (2, 64, 64, 3)
    """
    if form == "HW":
        return images[..., None]
    if form == "CHW":
        images = images.transpose(0, 2, 3, 1)
    channels = images.shape[-1]
    if channels in (1, 3) or (channels == 4 and form == "HWC"):
        return images
    return images[..., channels - (3 if channels % 3 == 0 else 1) :]
