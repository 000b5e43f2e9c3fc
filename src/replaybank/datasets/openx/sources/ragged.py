"""Sequences of differing length: from a flat list of values and lists of lengths to padded arrays.

TFDS stores them as TensorFlow's ragged tensors: ``ragged_flat_values``, and for each level of nesting
``ragged_row_lengths_0``, ``_1``, ..., the outermost first (``_add_ragged_fields`` of its
example_serializer.py).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from replaybank.errors import DataFormatError

Lengths: TypeAlias = "npt.NDArray[np.int64]"

PADDING_BYTES = 16 << 20
"""Bytes that a padded array may always take; a larger one only in proportion to the record."""
PADDING_TIMES = 16
"""What it may take of the record's own bytes beyond that."""


def check_lengths(lists: Sequence[Lengths], levels: Sequence[int], values: int) -> None:
    """Compare lists of lengths with each other, what is declared, and the number of values. O(lengths).

    Args:
        lists: lengths of each level, the outermost first.
        levels: the declared length of each, -1 where it varies.
        values: how many values there are.

    Raises:
        DataFormatError: they do not fit together.
    """
    for level, (lengths, declared) in enumerate(zip(lists, levels, strict=True)):
        rows = len(lists[level + 1]) if level + 1 < len(lists) else values
        bad = (lengths < 0) | (lengths > rows) if declared < 0 else lengths != declared
        if bad.any():
            expected = f"0 to {rows}" if declared < 0 else f"always {declared}, as declared"
            raise DataFormatError(
                f"the list {int(bad.argmax())} of level {level} has length {int(lengths[bad][0])}, "
                f"expected {expected}"
            )
        if int(lengths.sum()) != rows:
            raise DataFormatError(
                f"the lists of level {level} have {int(lengths.sum())} elements in all, and {rows} are there"
            )


def padded(
    values: npt.NDArray[Any], lists: Sequence[Lengths], levels: Sequence[int], record_bytes: int
) -> tuple[npt.NDArray[Any], list[npt.NDArray[np.int32]]]:
    """Values in their places, zeros behind the end of each list. O(result).

    Args:
        values: ``[N, ...]``, one after the other.
        lists: from :func:`check_lengths`.
        levels: the declared length of each level, -1 where it varies.
        record_bytes: size of the record they came in: it bounds what padding may take.

    Returns:
        The array ``[T, W_0, W_1, ..., ...]``, each ``W`` the longest list of its level, and the lengths of
        the lists: ``[T]``, ``[T, W_0]``, ...

    Raises:
        DataFormatError: the array would be out of all proportion.

    >>> values, lengths = np.array([1, 2, 3]), np.array([2, 0, 1])
    >>> array, (found,) = padded(values, [lengths], [-1], 64)
    >>> array.tolist(), found.tolist()
    ([[1, 2], [0, 0], [3, 0]], [2, 0, 1])
    """
    slots = np.arange(len(lists[0]), dtype=np.int64)
    shape = [len(lists[0])]
    told = []
    allowed = PADDING_BYTES + PADDING_TIMES * record_bytes
    item = values.dtype.itemsize * math.prod(values.shape[1:])
    for lengths, declared in zip(lists, levels, strict=True):
        _afford(shape, np.dtype(np.int32).itemsize, allowed)
        place = np.zeros(math.prod(shape), dtype=np.int32)
        place[slots] = lengths
        told.append(place.reshape(shape))
        width = max(declared, int(lengths.max(initial=0)))
        first = np.cumsum(lengths) - lengths
        within = np.arange(int(lengths.sum())) - np.repeat(first, lengths)
        slots = np.repeat(slots * width, lengths) + within
        shape.append(width)
    _afford(shape, item, allowed)
    out = np.zeros((math.prod(shape), *values.shape[1:]), dtype=values.dtype)
    out[slots] = values
    return out.reshape(*shape, *values.shape[1:]), told


def _afford(shape: Sequence[int], item: int, allowed: int) -> None:
    size = math.prod(shape) * max(item, 1)
    if size > allowed:
        raise DataFormatError(
            f"padded to the longest list it has shape {tuple(shape)} and takes {size} bytes, out of "
            f"proportion to what is stored: {allowed} are allowed"
        )


def nested(values: list[Any], lists: Sequence[Lengths]) -> list[Any]:
    """The same as lists of lists, for what cannot be padded. O(values).

    >>> nested(["a", "b", "c"], [np.array([2, 0, 1])])
    [['a', 'b'], [], ['c']]
    """
    for lengths in reversed(lists):
        ends = np.cumsum(lengths).tolist()
        values = [values[end - size : end] for end, size in zip(ends, lengths.tolist(), strict=True)]
    return values
