"""The numbers of an episode as rows: all small leaves of a step next to each other."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from replaybank import _native
from replaybank.storages.channels import address_of
from replaybank.storages.layout import RowLayout
from replaybank.storages.room import MOST_KEPT

_LEAST_ROOM = 1 << 16
"""Bytes kept for rows: those of most episodes fit."""


class RowPacker:
    """Makes rows of columns, in one native call an episode. Not thread-safe.

    Args:
        layout: where a leaf lies in a row; leaves with columns of their own are left out.

    Example:
        >>> from replaybank.storages.layout import LeafSpec
        >>> layout = RowLayout.plan([LeafSpec(("x",), torch.int32, ()), LeafSpec(("y",), torch.uint8, (2,))])
        >>> packer = RowPacker(layout)
        >>> rows = packer.pack([np.arange(2, dtype=np.int32), np.full((2, 2), 7, np.uint8)], 2)
        >>> rows.shape == (2 * layout.row_bytes,), int(rows[layout.row_bytes])
        (True, 1)
    """

    def __init__(self, layout: RowLayout) -> None:
        inside = [
            (leaf, offset)
            for leaf, offset in zip(layout.leaves, layout.offsets, strict=True)
            if offset is not None
        ]
        self._row_bytes = layout.row_bytes
        self._dtypes = [torch.empty(0, dtype=leaf.dtype).numpy().dtype for leaf, _ in inside]
        self._shapes: list[tuple[int, ...]] = [tuple(leaf.shape) for leaf, _ in inside]
        self._offsets = np.array([offset for _, offset in inside], np.int64)
        self._plan = np.zeros((len(inside), 4), np.int64)
        self._plan[:, 1] = layout.row_bytes
        self._plan[:, 2] = [leaf.bytes for leaf, _ in inside]
        self._address = address_of(self._plan)
        self._length, self._shapes_now = -1, self._shapes
        self._make_room(0)

    def pack(self, columns: list[npt.NDArray[Any]], length: int) -> npt.NDArray[np.uint8]:
        """Rows ``[length * row_bytes]``; what lies between the leaves is zero. O(bytes).

        Args:
            columns: values ``[length, ...]`` of each leaf that lies in a row, in the layout's order.
            length: how many.

        Returns:
            The rows, only until the next ones are asked for.

        Raises:
            ValueError: a column is of another length or shape than its leaf.
        """
        size = length * self._row_bytes
        if size > self._room.nbytes:
            self._make_room(size)
        if length != self._length:
            self._length, self._shapes_now = length, [(length, *shape) for shape in self._shapes]
        as_they_are = (
            [column.shape for column in columns] == self._shapes_now
            and [column.dtype for column in columns] == self._dtypes
            and _native.scatter_arrays(self._address, length, columns)
        )
        if not as_they_are and not _native.scatter_arrays(self._address, length, self._fit(columns)):
            raise RuntimeError("rows could not be packed")
        rows = self._room[:size]
        if size > MOST_KEPT:
            self._make_room(0)
        return rows

    def _make_room(self, size: int) -> None:
        """Memory for rows. What lies between the leaves is never written, so it is zero once and for all."""
        self._room = np.zeros(max(size, _LEAST_ROOM), np.uint8)
        np.add(self._offsets, address_of(self._room), out=self._plan[:, 0])

    def _fit(self, columns: list[npt.NDArray[Any]]) -> list[npt.NDArray[Any]]:
        """The columns in the leaves' dtypes, contiguous."""
        for column, shape in zip(columns, self._shapes_now, strict=True):
            if column.shape != shape:
                raise ValueError(f"a column has shape {column.shape}, expected {shape}")
        return [
            np.ascontiguousarray(column, dtype) for column, dtype in zip(columns, self._dtypes, strict=True)
        ]
