"""Turns one payload into one episode, by the schema: every field into an array, strings or frames."""

from __future__ import annotations

import math
import zlib
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from replaybank import _native
from replaybank.datasets.openx.sources.base import Column, Episode, FieldSpec, Key
from replaybank.datasets.openx.sources.example import (
    DTYPE_CODES,
    KIND_BYTES,
    KIND_FLOAT,
    KIND_INT64,
    KIND_NAMES,
    PayloadIndex,
    decode_spans,
)
from replaybank.datasets.openx.sources.features import UNKNOWN, Schema, StoredField
from replaybank.datasets.openx.sources.images import EncodedImages
from replaybank.errors import DataFormatError

_ALIGNMENT = 16
"""Of the arrays in an episode's one buffer: what NumPy itself gives."""

Rows = list[list[int]]
"""``[kind, count, offset, length]`` of every feature wanted, in the order of the index."""


class EpisodeDecoder:
    """Decodes payloads of one dataset. Not thread-safe: make one a thread.

    The numbers of an episode share one buffer, allocated once its lengths are known and agree.

    Args:
        schema: fields to look for; others are passed over.
        dataset: name of the dataset, for messages.
    """

    def __init__(self, schema: Schema, dataset: str) -> None:
        self._dataset = dataset
        fields = (*schema.steps, *schema.metadata)
        names = [name for field in fields for name in field.features]
        self._index = PayloadIndex(names)
        row_of = {names[which]: row for row, which in enumerate(self._index.order)}
        readers = {
            field.key: _reader(field, [row_of[name] for name in field.features]) for field in schema.steps
        }
        self._numbers = [(key, reader) for key, reader in readers.items() if isinstance(reader, _Numbers)]
        self._others = [(key, reader) for key, reader in readers.items() if not isinstance(reader, _Numbers)]
        self._metadata = [
            (field.key, field, _reader(field, [row_of[name] for name in field.features]))
            for field in schema.metadata
        ]

    def decode(self, payload: bytes, where: str) -> Episode:
        """Decode one payload. O(payload), frames excepted: they stay as they are.

        Args:
            payload: a tf.train.Example.
            where: shard and record, for messages.

        Raises:
            DataFormatError: the payload is not an episode of this schema.
        """
        try:
            rows = self._index.find(payload)
            steps, length, missing = self._steps(payload, rows, where)
            metadata = {
                key: value
                for key, field, reader in self._metadata
                if (value := _metadata_value(field, reader, payload, rows, where)) is not None
            }
        except DataFormatError as error:
            raise type(error)(f"{self._dataset}: {where}: {error}") from error
        absent = frozenset(missing) if missing else _NOTHING
        return Episode(steps, length, where, metadata, absent, len(payload))

    def _steps(self, payload: bytes, rows: Rows, where: str) -> tuple[dict[Key, Column], int, list[Key]]:
        steps: dict[Key, Column] = {}
        missing: list[Key] = []
        length = UNKNOWN
        first: Key = ()
        present = []
        size = 0
        for key, numbers in self._numbers:
            kind, count, offset, span = rows[numbers.row]
            if not count and numbers.per_value:
                missing.append(key)
                continue
            if numbers.per_value:
                if kind != numbers.kind:
                    raise _wrong_kind(key, numbers.spec, kind)
                found, rest = divmod(count, numbers.per_value)
                if rest:
                    raise DataFormatError(
                        f"field {_shown(key)} has {count} numbers, which are not whole values of shape "
                        f"{numbers.spec.shape}"
                    )
                if found != length:
                    if length != UNKNOWN:
                        raise _disagree(first, length, key, found)
                    length, first = found, key
            present.append((key, numbers, count, offset, span, size))
            size += count * numbers.itemsize + _ALIGNMENT - 1 & -_ALIGNMENT
        for key, reader in self._others:
            column = reader.read(payload, rows, key, where)
            if column is None:
                missing.append(key)
                continue
            if len(column) != length:
                if length != UNKNOWN:
                    raise _disagree(first, length, key, len(column))
                length, first = len(column), key
            steps[key] = column
        if length <= 0:
            raise DataFormatError("the episode has no steps")
        arena = np.empty(size, dtype=np.uint8)
        address = arena.__array_interface__["data"][0]
        for key, numbers, count, offset, span, at in present:
            if count:
                status = _native.decode_numbers(payload, offset, span, numbers.code, address + at, count)
                if status != count:
                    raise _unfit(key, numbers, status)
            steps[key] = np.ndarray((length, *numbers.shape), numbers.dtype, arena, at)
        return steps, length, missing


_NOTHING: frozenset[Key] = frozenset()


class _Reader(Protocol):
    """Reads the values of one field that is not a plain list of numbers; None where there are none."""

    def read(self, payload: bytes, rows: Rows, key: Key, where: str) -> Column | None: ...


class _Numbers:
    """A list of numbers, all values of known shape one after the other."""

    def __init__(self, spec: FieldSpec, row: int) -> None:
        assert spec.dtype is not None
        self.spec = spec
        self.row = row
        self.shape = spec.shape
        self.dtype = spec.dtype
        self.itemsize = spec.dtype.itemsize
        self.code = DTYPE_CODES[spec.dtype]
        self.kind = KIND_FLOAT if spec.dtype.kind == "f" else KIND_INT64
        self.per_value = math.prod(size for size in spec.shape if size != UNKNOWN)
        """Numbers in one value; in one entry of the unknown dimension where there is one."""

    def read_all(self, payload: bytes, rows: Rows, key: Key) -> npt.NDArray[Any] | None:
        """All numbers of the list, flat; None without a list."""
        kind, count, offset, span = rows[self.row]
        if kind == 0 or (kind != self.kind and count == 0):
            return None
        if kind != self.kind:
            raise _wrong_kind(key, self.spec, kind)
        out = np.empty(count, dtype=self.dtype)
        status = _native.decode_numbers(payload, offset, span, self.code, out.ctypes.data, count)
        if status != count:
            raise _unfit(key, self, status)
        return out


class _Dynamic:
    """Numbers with several unknown dimensions, the steps among them: a list of them and their shape."""

    def __init__(self, field: StoredField, shape_row: int, value_row: int) -> None:
        self.declared = (UNKNOWN, *field.spec.shape) if field.in_steps else field.spec.shape
        self.shape = _Numbers(FieldSpec("tensor", (UNKNOWN,), np.dtype(np.int64)), shape_row)
        self.values = _Numbers(field.spec, value_row)

    def read(self, payload: bytes, rows: Rows, key: Key, where: str) -> npt.NDArray[Any] | None:
        found = self.shape.read_all(payload, rows, (*key, "shape"))
        values = self.values.read_all(payload, rows, (*key, "value"))
        if found is None or found.size == 0:
            return None
        shape = tuple(found.tolist())
        if values is None:
            values = np.empty(0, dtype=self.values.dtype)
        fits = len(shape) == len(self.declared) and all(
            size >= 0 and wanted in (UNKNOWN, size) for size, wanted in zip(shape, self.declared, strict=True)
        )
        if not fits or math.prod(shape) != values.size:
            raise DataFormatError(
                f"field {_shown(key)} has {values.size} numbers and shape {shape}, declared {self.declared}"
            )
        return values.reshape(shape)


class _Strings:
    """A list of byte strings, one a value."""

    def __init__(self, field: StoredField, row: int) -> None:
        self.spec = field.spec
        self.row = row

    def spans(self, payload: bytes, rows: Rows, key: Key) -> npt.NDArray[np.int64] | None:
        kind, count, offset, span = rows[self.row]
        if not count:
            return None
        if kind != KIND_BYTES:
            raise _wrong_kind(key, self.spec, kind)
        return decode_spans(payload, offset, span, count)


class _Text(_Strings):
    """Text. Bytes that are not UTF-8 stay visible, as escapes."""

    def read(self, payload: bytes, rows: Rows, key: Key, where: str) -> list[str] | None:
        spans = self.spans(payload, rows, key)
        if spans is None:
            return None
        # Most steps repeat one instruction: equal strings become one object.
        known: dict[bytes, str] = {}
        texts = []
        for at, size in spans.tolist():
            raw = payload[at : at + size]
            text = known.get(raw)
            if text is None:
                text = known[raw] = raw.decode("utf-8", "backslashreplace")
            texts.append(text)
        return texts


class _Frames(_Strings):
    """Encoded images, left as they are."""

    def read(self, payload: bytes, rows: Rows, key: Key, where: str) -> EncodedImages | None:
        spans = self.spans(payload, rows, key)
        return None if spans is None else EncodedImages(payload, spans, self.spec, f"{where}: {_shown(key)}")


class _Encoded(_Strings):
    """Arrays stored as little-endian bytes, compressed or not, one string a value."""

    def __init__(self, field: StoredField, row: int) -> None:
        super().__init__(field, row)
        assert field.spec.dtype is not None
        self.dtype = field.spec.dtype
        self.size = math.prod(field.spec.shape) * self.dtype.itemsize
        self.compressed = field.encoding == "zlib"

    def read(self, payload: bytes, rows: Rows, key: Key, where: str) -> npt.NDArray[Any] | None:
        spans = self.spans(payload, rows, key)
        if spans is None:
            return None
        pieces = []
        for number, (at, size) in enumerate(spans.tolist()):
            raw = payload[at : at + size]
            if self.compressed:
                raw = self.inflate(raw, key, number)
            if len(raw) != self.size:
                raise DataFormatError(
                    f"field {_shown(key)}, value {number}: {len(raw)} bytes, but {self.dtype} of shape "
                    f"{self.spec.shape} takes {self.size}"
                )
            pieces.append(raw)
        shape = (len(pieces), *self.spec.shape)
        flat = np.frombuffer(bytearray(b"".join(pieces)), dtype=self.dtype.newbyteorder("<"))
        if self.dtype == np.bool_:
            flat = flat.view(np.uint8) != 0  # any other byte is not a valid bool
        return flat.reshape(shape)

    def inflate(self, raw: bytes, key: Key, number: int) -> bytes:
        """Decompress, never beyond one byte more than there should be."""
        inflater = zlib.decompressobj()
        try:
            return inflater.decompress(raw, self.size + 1)
        except zlib.error as error:
            raise DataFormatError(f"field {_shown(key)}, value {number}: {error}") from error


def _reader(field: StoredField, rows: list[int]) -> _Numbers | _Reader:
    if field.spec.kind == "text":
        return _Text(field, rows[0])
    if field.spec.kind == "image":
        return _Frames(field, rows[0])
    if field.encoding != "none":
        return _Encoded(field, rows[0])
    return _Dynamic(field, *rows) if field.dynamic else _Numbers(field.spec, rows[0])


def _metadata_value(
    field: StoredField, reader: _Numbers | _Reader, payload: bytes, rows: Rows, where: str
) -> Any | None:
    """One value of an episode: a NumPy scalar or array, ``str``, or one encoded frame."""
    if isinstance(reader, _Numbers):
        flat = reader.read_all(payload, rows, field.key)
        if flat is None or (flat.size == 0 and reader.per_value and UNKNOWN not in reader.shape):
            return None
        unknown = flat.size // reader.per_value if reader.per_value else 0
        shape = tuple(unknown if size == UNKNOWN else size for size in reader.shape)
        if math.prod(shape) != flat.size:
            raise DataFormatError(
                f"field {_shown(field.key)} has {flat.size} numbers, declared shape {reader.shape}"
            )
        return flat.reshape(shape)[()]
    column = reader.read(payload, rows, field.key, where)
    if column is None or isinstance(reader, _Dynamic):
        return column
    if len(column) != 1:
        raise DataFormatError(f"field {_shown(field.key)} of the episode has {len(column)} values, not 1")
    return column if isinstance(column, EncodedImages) else column[0]  # type: ignore[index]


def _shown(key: Key) -> str:
    return f"'{'/'.join(key)}'"


def _wrong_kind(key: Key, spec: FieldSpec, kind: int) -> DataFormatError:
    declared = spec.kind if spec.dtype is None or spec.kind == "image" else str(spec.dtype)
    return DataFormatError(f"field {_shown(key)} is declared as {declared} and stored as {KIND_NAMES[kind]}")


def _disagree(first: Key, length: int, key: Key, found: int) -> DataFormatError:
    return DataFormatError(f"field {_shown(key)} has {found} steps, field {_shown(first)} has {length}")


def _unfit(key: Key, numbers: _Numbers, status: int) -> DataFormatError:
    return DataFormatError(
        f"field {_shown(key)}: number {-1 - status} is beyond the range of {numbers.dtype}"
    )
