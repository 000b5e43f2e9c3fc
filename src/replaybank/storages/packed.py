"""The rows of a table in a checkpoint: saved as they lie, and read straight to where they are to lie."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import NamedTuple

from torch import Tensor

from replaybank.checkpoint import FieldSpec, StoredField, StoredRows
from replaybank.storages.layout import RowLayout

MOST_WASTE = 1.5
"""Rows of more bytes than this many times their leaves' are not saved as they lie: the disk costs more."""


class PackedRows(NamedTuple):
    """Leaves that share rows.

    Args:
        rows: uint8 ``[length, *columns, row_bytes]``.
        fields: where each lies.
        numbers: number of leaf by number of field.
    """

    rows: Tensor
    fields: tuple[FieldSpec, ...]
    numbers: tuple[int, ...]

    @property
    def key(self) -> str:
        """A name for them, which no leaf and no other rows have."""
        return "rows " + json.dumps([self.rows.shape[-1], [field.to_json() for field in self.fields]])

    def renumbered(self, numbers: Sequence[int]) -> PackedRows:
        """The same for a table whose leaf ``numbers[i]`` is leaf ``i`` of this one."""
        return self._replace(numbers=tuple(numbers[number] for number in self.numbers))


def packed_rows(layout: RowLayout, rows: Tensor, lead: tuple[int, ...]) -> PackedRows | None:
    """The rows of the first ``prod(lead)`` items; None where leaf by leaf is better. O(leaves)."""
    placed = [number for number, offset in enumerate(layout.offsets) if offset is not None]
    if layout.row_bytes > MOST_WASTE * sum(layout.leaves[number].bytes for number in placed):
        return None
    count = 1
    for size in lead:
        count *= size
    fields = tuple(
        FieldSpec(layout.leaves[number].dtype, layout.leaves[number].shape, layout.offsets[number] or 0)
        for number in placed
    )
    return PackedRows(rows[: count * layout.row_bytes].view(*lead, layout.row_bytes), fields, tuple(placed))


def read_straight(
    layout: RowLayout, buffers: Sequence[Tensor], leaves: Sequence[Tensor | StoredRows | StoredField]
) -> bool:
    """Read a table's leaves from a checkpoint into its buffers, if they lie there as they do here. O(bytes).

    Args:
        layout: where the leaves lie.
        buffers: as of a ``LeafTable``, for at least as many items.
        leaves: what is to be read, of the shapes that the layout names, and checked.

    Returns:
        Whether that was so; if not, nothing has been done.
    """
    rows: StoredRows | None = None
    columns: dict[int, StoredRows] = {}
    for number, (spec, offset, leaf) in enumerate(zip(layout.leaves, layout.offsets, leaves, strict=True)):
        if isinstance(leaf, StoredField):
            wanted = (FieldSpec(spec.dtype, spec.shape, -1 if offset is None else offset), layout.row_bytes)
            if (leaf.spec, leaf.rows.shape[-1]) != wanted or not (rows is None or rows.is_like(leaf.rows)):
                return False
            rows = leaf.rows
        elif isinstance(leaf, StoredRows) and offset is None and leaf.dtype == spec.dtype:
            columns[number] = leaf
        else:
            return False
    left = iter(buffers)
    parts: list[tuple[StoredRows, Tensor]] = []
    if layout.row_bytes:
        buffer = next(left)
        if rows is not None:
            parts.append((rows, buffer))
    parts.extend((columns[number], next(left)) for number in layout.columns)
    for stored, buffer in parts:
        stored.read_into(buffer[: stored.shape.numel() * stored.dtype.itemsize])
    return True
