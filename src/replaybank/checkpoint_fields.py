"""Tensors that lie interleaved in rows of bytes: saved as the rows are, read as tensors or as the rows."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from replaybank.checkpoint_files import CHUNK, DTYPES, is_size

if TYPE_CHECKING:
    from replaybank.checkpoint_rows import Rows, StoredRows

MAX_FIELDS = 65536
MAX_ROW_BYTES = 1 << 26
"""Of an item's row that is read; what is larger comes of damage."""


@dataclass(frozen=True)
class FieldSpec:
    """Where a tensor lies in rows.

    Args:
        dtype: its dtype.
        shape: its shape in one row.
        offset: bytes from the start of a row.
    """

    dtype: torch.dtype
    shape: tuple[int, ...]
    offset: int

    @property
    def bytes(self) -> int:
        """Bytes of it in one row."""
        return math.prod(self.shape) * self.dtype.itemsize

    def to_json(self) -> dict[str, Any]:
        """The entry of a manifest."""
        name = str(self.dtype).removeprefix("torch.")
        return {"dtype": name, "shape": list(self.shape), "offset": self.offset}

    def view(self, rows: Tensor) -> Tensor:
        """The tensor ``[..., *shape]`` in rows, uint8 ``[..., row_bytes]``, not copied."""
        flat = rows[..., self.offset : self.offset + self.bytes].view(self.dtype)
        return flat.unflatten(-1, self.shape) if self.shape else flat[..., 0]


@dataclass(frozen=True, eq=False)
class Field:
    """A tensor to be saved that lies in rows; all that lie in the same ones name the same ``rows``.

    Args:
        rows: uint8 ``[..., row_bytes]``, with ``fields``.
        number: which of its fields.
    """

    rows: Rows
    number: int


class StoredField:
    """A tensor in rows in the files of a checkpoint, read when it is asked for; as ``StoredRows``.

    Thread-safe.

    Args:
        rows: the rows.
        spec: where it lies in one.
    """

    layout = torch.strided
    device = torch.device("cpu")

    def __init__(self, rows: StoredRows, spec: FieldSpec) -> None:
        self.rows = rows
        self.spec = spec
        self.dtype = spec.dtype
        self.shape = torch.Size((*rows.shape[:-1], *spec.shape))
        self.ndim = len(self.shape)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, rows: slice) -> Tensor:
        return self.spec.view(self.rows[rows]).contiguous()

    def turned(self, first: int) -> StoredField:
        """The same rows in another order: from ``first`` to the last, then those before it."""
        return StoredField(self.rows.turned(first), self.spec)

    def read(self) -> Tensor:
        """The whole tensor, some rows at a time. O(bytes of the rows)."""
        out = torch.empty(self.shape, dtype=self.dtype)
        step = max(1, CHUNK // math.prod(self.rows.shape[1:]))
        for start in range(0, len(self), step):
            out[start : start + step] = self[start : start + step]
        return out


def read_fields(entries: Any, dtype: torch.dtype, row_bytes: int) -> tuple[FieldSpec, ...] | str:
    """The fields that a manifest names of rows of uint8; else what is wrong."""
    if not isinstance(entries, list) or not 0 < len(entries) <= MAX_FIELDS:
        return "bad fields"
    if dtype != torch.uint8 or not 0 < row_bytes <= MAX_ROW_BYTES:
        return "fields of what are no rows"
    found = []
    for entry in entries:
        if not isinstance(entry, dict):
            return "a field that is no object"
        name, shape, offset = (entry.get(key) for key in ("dtype", "shape", "offset"))
        if not isinstance(name, str) or name not in DTYPES:
            return "a field of an unknown dtype"
        if not isinstance(shape, list) or len(shape) > 32 or not all(is_size(size) for size in shape):
            return "a field of a bad shape"
        if type(offset) is not int or offset < 0:
            return "a field at a bad offset"
        spec = FieldSpec(DTYPES[name], tuple(shape), offset)
        if not 0 < spec.bytes <= row_bytes - spec.offset:
            return "a field that does not lie in its row"
        if spec.offset % spec.dtype.itemsize or row_bytes % spec.dtype.itemsize:
            return "a field that is not aligned"
        found.append(spec)
    if sum(spec.bytes for spec in found) > row_bytes:  # a small file must not ask for much memory
        return "fields that overlap"
    return tuple(found)


def bool_bytes(fields: Iterable[FieldSpec]) -> list[slice]:
    """Where the bytes of a row are that must be 0 or 1, side by side ones together."""
    out: list[slice] = []
    for field in sorted((f for f in fields if f.dtype == torch.bool), key=lambda field: field.offset):
        if out and field.offset <= out[-1].stop:
            out[-1] = slice(out[-1].start, max(out[-1].stop, field.offset + field.bytes))
        else:
            out.append(slice(field.offset, field.offset + field.bytes))
    return out
