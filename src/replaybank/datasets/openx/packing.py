"""The numbers of an episode as rows: all small leaves of a step next to each other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from replaybank import _native
from replaybank.storages.channels import address_of
from replaybank.storages.layout import RowLayout


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
        self._shapes = [tuple(leaf.shape) for leaf, _ in inside]
        self._offsets = np.array([offset for _, offset in inside], np.int64)
        self._plan = np.zeros((len(inside), 4), np.int64)
        self._plan[:, 1] = layout.row_bytes
        self._plan[:, 2] = [leaf.bytes for leaf, _ in inside]
        self._address = address_of(self._plan)

    def pack(self, columns: Sequence[npt.NDArray[Any]], length: int) -> npt.NDArray[np.uint8]:
        """Rows ``[length * row_bytes]``; what lies between the leaves is zero. O(bytes).

        Args:
            columns: values ``[length, ...]`` of each leaf that lies in a row, in the layout's order.
            length: how many.

        Raises:
            ValueError: a column is of another length or shape than its leaf.
        """
        rows = np.zeros(length * self._row_bytes, np.uint8)
        fit = []
        for column, dtype, shape in zip(columns, self._dtypes, self._shapes, strict=True):
            if column.shape != (length, *shape):
                raise ValueError(f"a column has shape {column.shape}, expected {(length, *shape)}")
            if column.dtype is not dtype or not column.flags.c_contiguous:
                column = np.ascontiguousarray(column, dtype)
            fit.append(column)
        np.add(self._offsets, address_of(rows), out=self._plan[:, 0])
        if not _native.scatter_arrays(self._address, length, fit):
            raise RuntimeError("rows could not be packed")
        return rows
