"""Where the leaves of an item lie: small ones together in one row, large ones in columns of their own."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

Key = tuple[str, ...]
"""Path of a leaf in an item. A part is never split: names may contain any character."""

SMALL_BYTES = 1024
"""Largest leaf that lies in the row. Up to some 16 cache lines the wait for the first line is most of a
leaf's cost, and a row waits once for all of them; beyond, the copy itself is, and a column of its own can be
read, mapped and extended without dragging the other leaves along."""

LINE_BYTES = 64
"""Rows start on a cache line and take whole ones, so that none touches one line more than it must."""

SHORT_ROW_BYTES = 32
"""Rows of up to half a line take the next power of two instead: they never straddle a line either, and a
replay of two bytes an item does not cost 64."""

_FORMAT = "replaybank.row-layout"
_VERSION = 1
_MAX_LEAVES = 65536  # of a file that is read: more is no item, but a damaged or hostile file
_MAX_ITEM_BYTES = 1 << 48

DTYPES: dict[str, torch.dtype] = {
    name: getattr(torch, name)
    for name in (
        *("bool", "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64"),
        *("float16", "bfloat16", "float32", "float64", "complex64", "complex128"),
        *("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz"),
    )
    if hasattr(torch, name)
}
"""Dtypes by name that items may have: those whose tensors are plain bytes that can be copied."""


@dataclass(frozen=True)
class LeafSpec:
    """One leaf of an item.

    Args:
        key: its path in the item.
        dtype: its dtype.
        shape: its shape in one item; ``()`` for a number.
    """

    key: Key
    dtype: torch.dtype
    shape: tuple[int, ...]

    @property
    def bytes(self) -> int:
        """Bytes of the leaf in one item."""
        count = 1
        for size in self.shape:
            count *= size
        return count * self.dtype.itemsize


class LeafPlace(NamedTuple):
    """Where a leaf of all items lies in memory.

    Args:
        address: of the leaf in item 0.
        step: bytes from one item to the next.
        bytes: bytes of the leaf in one item, which lie side by side.
        dtype: its dtype.
        shape: its shape in one item.
    """

    address: int
    step: int
    bytes: int
    dtype: torch.dtype
    shape: tuple[int, ...]


class RowLayout:
    """The leaves of an item and where each of them lies, the same in memory and in a file.

    Leaves of at most :data:`SMALL_BYTES` share one row an item: in falling order of the size of their
    elements, so that each is aligned without gaps, at the byte ``offsets[i]`` of the row, C order, native
    byte order. The rows, ``row_bytes`` apart, follow each other without a header, so that
    ``numpy.memmap(file, layout.numpy_dtype())`` reads a file of them. Other leaves, and a small one that is
    alone, lie in a column each: a plain contiguous array ``[N, *shape]``; their offset is ``None``.

    Immutable, so safe in any thread.

    Args:
        leaves: the leaves, in the order in which they are to be handed in and out.
        offsets: bytes from the start of the row, ``None`` for a column. Use :meth:`plan` to choose them.
        row_bytes: bytes from one row to the next, 0 without rows.

    Raises:
        ValueError: two leaves have one key or overlap, a leaf does not fit into the row or is not aligned.

    Example:
        >>> layout = RowLayout.plan([
        ...     LeafSpec(("done",), torch.bool, ()),
        ...     LeafSpec(("observation",), torch.float32, (17,)),
        ...     LeafSpec(("pixels",), torch.uint8, (64, 64, 3)),
        ... ])
        >>> layout.offsets, layout.row_bytes
        ((68, 0, None), 128)
    """

    __slots__ = ("leaves", "offsets", "row_bytes")

    def __init__(self, leaves: Iterable[LeafSpec], offsets: Iterable[int | None], row_bytes: int) -> None:
        self.leaves = tuple(leaves)
        self.offsets = tuple(offsets)
        self.row_bytes = row_bytes
        self._validate()

    @classmethod
    def plan(cls, leaves: Iterable[LeafSpec]) -> RowLayout:
        """Choose where the leaves lie. Needs no data. O(L log L)."""
        leaves = tuple(leaves)
        small = [i for i, leaf in enumerate(leaves) if 0 < leaf.bytes <= SMALL_BYTES]
        offsets: list[int | None] = [None] * len(leaves)
        if len(small) < 2:
            return cls(leaves, offsets, 0)
        end = 0
        for i in sorted(small, key=lambda i: -leaves[i].dtype.itemsize):
            offsets[i] = end
            end += leaves[i].bytes
        if end <= SHORT_ROW_BYTES:
            return cls(leaves, offsets, 1 << (end - 1).bit_length())
        return cls(leaves, offsets, -(-end // LINE_BYTES) * LINE_BYTES)

    @property
    def columns(self) -> tuple[int, ...]:
        """Numbers of the leaves that lie in columns of their own."""
        return tuple(i for i, offset in enumerate(self.offsets) if offset is None)

    @property
    def item_bytes(self) -> int:
        """Bytes that one item takes in all."""
        return self.row_bytes + sum(self.leaves[i].bytes for i in self.columns)

    def views(self, rows: Tensor, items: int) -> dict[int, Tensor]:
        """The leaves in the rows, as strided views of them. O(L).

        Args:
            rows: contiguous uint8 with at least ``items * row_bytes`` elements.
            items: number of items.

        Returns:
            The leaves by number, ``[items, *shape]`` each, all on the storage of ``rows``.

        Raises:
            ValueError: ``rows`` is no such tensor.
        """
        if rows.dtype != torch.uint8 or not rows.is_contiguous() or rows.numel() < items * self.row_bytes:
            raise ValueError(
                f"{items} rows of {self.row_bytes} bytes need a contiguous uint8 tensor of "
                f"{items * self.row_bytes}, got {rows.dtype} of {rows.numel()}."
            )
        views = {}
        for i, (leaf, offset) in enumerate(zip(self.leaves, self.offsets, strict=True)):
            if offset is None:
                continue
            size = leaf.dtype.itemsize
            strides = [self.row_bytes // size]
            step = leaf.bytes // size
            for length in leaf.shape:
                step //= length
                strides.append(step)
            view = torch.empty(0, dtype=leaf.dtype, device=rows.device)
            first = (rows.storage_offset() + offset) // size
            views[i] = view.set_(rows.untyped_storage(), first, (items, *leaf.shape), tuple(strides))
        return views

    def numpy_dtype(self) -> np.dtype[np.void]:
        """The row as a structured dtype.

        Field names are the parts of the key joined by ``/`` (with ``~`` written ``~0`` and ``/`` written
        ``~1`` inside a part, as in RFC 6901). Dtypes that NumPy lacks (bfloat16, float8) appear as unsigned
        integers of their size.
        """
        placed = [
            (leaf, offset)
            for leaf, offset in zip(self.leaves, self.offsets, strict=True)
            if offset is not None
        ]
        return np.dtype(
            {
                "names": [field_name(leaf.key) for leaf, _ in placed],
                "formats": [(_numpy_format(leaf.dtype), leaf.shape) for leaf, _ in placed],
                "offsets": [offset for _, offset in placed],
                "itemsize": self.row_bytes,
            }
        )

    def to_json(self) -> dict[str, Any]:
        """The layout as plain values for JSON; :meth:`from_json` takes them back."""
        return {
            "format": _FORMAT,
            "version": _VERSION,
            "row_bytes": self.row_bytes,
            "leaves": [
                {
                    "key": list(leaf.key),
                    "dtype": str(leaf.dtype).removeprefix("torch."),
                    "shape": list(leaf.shape),
                    "offset": offset,
                }
                for leaf, offset in zip(self.leaves, self.offsets, strict=True)
            ],
        }

    @classmethod
    def from_json(cls, value: object) -> RowLayout:
        """The layout that :meth:`to_json` described. Trusts nothing: every number is checked.

        Raises:
            ValueError: the value is no such description.
        """
        if not isinstance(value, Mapping) or value.get("format") != _FORMAT:
            raise ValueError(f"Not a row layout: expected an object with format {_FORMAT!r}.")
        if value.get("version") != _VERSION:
            raise ValueError(
                f"Row layout of version {value.get('version')!r}; this release reads {_VERSION}."
            )
        entries = value.get("leaves")
        if not isinstance(entries, list) or len(entries) > _MAX_LEAVES:
            raise ValueError(f"A row layout lists its leaves, at most {_MAX_LEAVES} of them.")
        leaves, offsets = [], []
        for entry in entries:
            if not isinstance(entry, Mapping):
                raise ValueError(f"A leaf is described by an object, got {entry!r:.80}.")  # noqa: TRY004
            leaves.append(_leaf_from_json(entry))
            offset = entry.get("offset")
            offsets.append(None if offset is None else _natural(offset, "offset"))
        return cls(leaves, offsets, _natural(value.get("row_bytes"), "row_bytes"))

    def _validate(self) -> None:
        if len(self.leaves) != len(self.offsets):
            raise ValueError(f"{len(self.leaves)} leaves, but {len(self.offsets)} offsets.")
        if len({leaf.key for leaf in self.leaves}) != len(self.leaves):
            raise ValueError("Two leaves of a layout have the same key.")
        end = 0
        for offset, size, leaf in self._placed():
            if not size:
                raise ValueError(f"Leaf {leaf.key} of shape {leaf.shape} is empty: it lies in no row.")
            if offset < end:
                raise ValueError(
                    f"Leaf {leaf.key} at byte {offset} overlaps the one that ends at byte {end}."
                )
            if offset % leaf.dtype.itemsize or self.row_bytes % leaf.dtype.itemsize:
                raise ValueError(
                    f"Leaf {leaf.key} at byte {offset} of rows of {self.row_bytes} is not aligned to "
                    f"{leaf.dtype.itemsize} bytes."
                )
            end = offset + size
        if end > self.row_bytes:
            raise ValueError(f"The leaves end at byte {end} of a row of {self.row_bytes}.")

    def _placed(self) -> list[tuple[int, int, LeafSpec]]:
        placed = [
            (offset, leaf.bytes, leaf)
            for leaf, offset in zip(self.leaves, self.offsets, strict=True)
            if offset is not None
        ]
        return sorted(placed, key=lambda entry: entry[0])

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, RowLayout):
            return NotImplemented
        mine = (self.leaves, self.offsets, self.row_bytes)
        return mine == (other.leaves, other.offsets, other.row_bytes)

    def __hash__(self) -> int:
        return hash((self.leaves, self.offsets, self.row_bytes))

    def __repr__(self) -> str:
        return (
            f"RowLayout(leaves={len(self.leaves)}, columns={len(self.columns)}, row_bytes={self.row_bytes})"
        )


def field_name(key: Key) -> str:
    """A key as one string, each key another: parts joined by ``/``, ``~`` and ``/`` in them escaped.

    Example:
        >>> field_name(("next", "a/b"))
        'next/a~1b'
    """
    return "/".join(part.replace("~", "~0").replace("/", "~1") for part in key)


def _numpy_format(dtype: torch.dtype) -> np.dtype[Any]:
    try:
        return torch.empty(0, dtype=dtype).numpy().dtype
    except TypeError:
        return np.dtype(f"u{dtype.itemsize}")


def _natural(value: object, name: str) -> int:
    if type(value) is not int or not 0 <= value <= _MAX_ITEM_BYTES:
        raise ValueError(f"{name} must be a whole number from 0 to {_MAX_ITEM_BYTES}, got {value!r:.80}.")
    return value


def _leaf_from_json(entry: Mapping[str, Any]) -> LeafSpec:
    key, dtype, shape = entry.get("key"), entry.get("dtype"), entry.get("shape")
    if not isinstance(key, list) or not all(isinstance(part, str) for part in key):
        raise ValueError(f"A leaf's key is a list of strings, got {key!r:.80}.")
    if not isinstance(dtype, str) or dtype not in DTYPES:
        raise ValueError(f"Leaf {key!r:.80} has the unknown dtype {dtype!r:.80}.")
    if not isinstance(shape, list) or len(shape) > 64:
        raise ValueError(f"Leaf {key!r:.80}: a shape is a list of at most 64 sizes, got {shape!r:.80}.")
    spec = LeafSpec(tuple(key), DTYPES[dtype], tuple(_natural(size, "A size") for size in shape))
    if spec.bytes > _MAX_ITEM_BYTES:
        raise ValueError(f"Leaf {key!r:.80} would take {spec.bytes} bytes an item.")
    return spec
