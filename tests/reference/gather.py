"""Slow, obvious versions of csrc/gather.hpp over NumPy arrays of bytes."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]
Index = npt.NDArray[np.int64]


def first_bad(index: Index, n: int) -> int:
    """Position of the first index outside ``[-n, n)``, or -1."""
    for position, i in enumerate(index.tolist()):
        if not -n <= i < n:
            return position
    return -1


def run(n: int, start: int, count: int) -> Index:
    """The items of a run modulo ``n``."""
    return np.array([(start + k) % n for k in range(count)], dtype=np.int64)


def flatten_index(indices: list[Index], sizes: list[int]) -> Index:
    """Numbers of items in C order."""
    wrapped = [np.where(index < 0, index + size, index) for index, size in zip(indices, sizes, strict=True)]
    return np.ravel_multi_index(tuple(wrapped), tuple(sizes)).astype(np.int64)


def gather(leaves: list[Bytes], index: Index) -> list[Bytes]:
    """``leaves``: ``[n, bytes]`` each, of any stride."""
    return [np.stack([leaf[i] for i in index]) if len(index) else leaf[:0].copy() for leaf in leaves]


def scatter(leaves: list[Bytes], index: Index, batches: list[Bytes]) -> None:
    """In order: of repeated indices the last wins."""
    for leaf, batch in zip(leaves, batches, strict=True):
        for k, i in enumerate(index):
            leaf[i] = batch[k]
