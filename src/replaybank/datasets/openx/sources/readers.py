"""Readers of the fields of an episode: each knows where in a payload its values lie and what they are."""

from __future__ import annotations

import math
import zlib
from dataclasses import replace
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from replaybank import _native
from replaybank.datasets.openx.sources.base import Column, FieldSpec, Key
from replaybank.datasets.openx.sources.code_points import texts_of
from replaybank.datasets.openx.sources.example import (
    DTYPE_CODES,
    KIND_BYTES,
    KIND_FLOAT,
    KIND_INT64,
    KIND_NAMES,
    decode_spans,
)
from replaybank.datasets.openx.sources.features import IMAGE_DIMENSIONS, UNKNOWN, StoredField
from replaybank.datasets.openx.sources.images import EncodedImages
from replaybank.errors import DataFormatError

Rows = list[list[int]]
"""``[kind, count, offset, length]`` of every feature wanted, in the order of the index."""


class Reader(Protocol):
    """Reads the values of one field that is not a plain list of numbers; None where there are none."""

    def read(self, payload: bytes, rows: Rows, key: Key, where: str) -> Column | None: ...


class Numbers:
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
            raise wrong_kind(key, self.spec, kind)
        out = np.empty(count, dtype=self.dtype)
        status = _native.decode_numbers(payload, offset, span, self.code, out, count)
        if status != count:
            raise unfit(key, self, status)
        return out


class Dynamic:
    """Values with several unknown dimensions, the steps among them: a list of them and their shape."""

    def __init__(self, field: StoredField, shape_row: int, value_row: int) -> None:
        self.declared = (UNKNOWN, *field.spec.shape) if field.in_steps else field.spec.shape
        self.shape = Numbers(FieldSpec("tensor", (UNKNOWN,), np.dtype(np.int64)), shape_row)
        self.values = Numbers(field.spec, value_row) if field.spec.kind == "tensor" else None
        self.texts = None if self.values else Text(field, value_row)

    def read(self, payload: bytes, rows: Rows, key: Key, where: str) -> npt.NDArray[Any] | None:
        """The numbers as an array; of texts an array of objects."""
        found = self.shape.read_all(payload, rows, (*key, "shape"))
        values = self.flat(payload, rows, (*key, "value"), where)
        if found is None or found.size == 0:
            return None
        shape = tuple(found.tolist())
        fits = len(shape) == len(self.declared) and all(
            size >= 0 and wanted in (UNKNOWN, size) for size, wanted in zip(shape, self.declared, strict=True)
        )
        if not fits or math.prod(shape) != values.size:
            raise DataFormatError(
                f"field {shown(key)} has {values.size} numbers and shape {shape}, declared {self.declared}"
            )
        return values.reshape(shape)

    def flat(self, payload: bytes, rows: Rows, key: Key, where: str) -> npt.NDArray[Any]:
        if self.values is not None:
            values = self.values.read_all(payload, rows, key)
            return np.empty(0, dtype=self.values.dtype) if values is None else values
        assert self.texts is not None
        return np.array(self.texts.read(payload, rows, key, where) or [], dtype=object)


class Strings:
    """A list of byte strings, one a value."""

    def __init__(self, field: StoredField, row: int) -> None:
        self.spec = field.spec
        self.row = row

    def spans(self, payload: bytes, rows: Rows, key: Key) -> npt.NDArray[np.int64] | None:
        kind, count, offset, span = rows[self.row]
        if not count:
            return None
        if kind != KIND_BYTES:
            raise wrong_kind(key, self.spec, kind)
        return decode_spans(payload, offset, span, count)


class Text(Strings):
    """Text. Bytes that are not UTF-8 stay visible, as escapes."""

    def read(self, payload: bytes, rows: Rows, key: Key, where: str) -> list[str] | None:
        kind, count, offset, span = rows[self.row]
        if kind == KIND_BYTES:  # most episodes repeat one instruction
            same = _native.same_bytes(payload, offset, span, count)
            if same is not None:
                return [same.decode("utf-8", "backslashreplace")] * count
        spans = self.spans(payload, rows, key)
        if spans is None:
            return None
        # Equal strings become one object.
        known: dict[bytes, str] = {}
        texts = []
        for at, size in spans.tolist():
            raw = payload[at : at + size]
            text = known.get(raw)
            if text is None:
                text = known[raw] = raw.decode("utf-8", "backslashreplace")
            texts.append(text)
        return texts

    def as_numbers(self, rows: Rows) -> bool:
        """Whether the texts were stored as ints."""
        return rows[self.row][0] == KIND_INT64 and rows[self.row][1] > 0

    def read_numbers(self, payload: bytes, rows: Rows, key: Key, values: int) -> list[str]:
        """Texts that were stored as ints, as many for each of ``values``, zeros behind the end of each."""
        count = rows[self.row][1]
        if values <= 0 or count % values:
            raise wrong_kind(key, self.spec, KIND_INT64)
        numbers = Numbers(_CODE_POINTS, self.row).read_all(payload, rows, key)
        assert numbers is not None
        return texts_of(numbers.reshape(values, -1))


_CODE_POINTS = FieldSpec("tensor", (), np.dtype(np.int64))


class Frames(Strings):
    """Encoded images, left as they are."""

    def __init__(self, field: StoredField, row: int) -> None:
        super().__init__(field, row)
        self.frame = replace(self.spec, shape=self.spec.shape[-IMAGE_DIMENSIONS:])
        """The spec without the length of a video."""

    def read(self, payload: bytes, rows: Rows, key: Key, where: str) -> EncodedImages | None:
        spans = self.spans(payload, rows, key)
        return None if spans is None else EncodedImages(payload, spans, self.frame, f"{where}: {shown(key)}")


class Encoded(Strings):
    """Arrays stored as little-endian bytes, compressed or not, one string a value.

    One unknown dimension follows from the number of bytes; several are told in a list of shapes.
    """

    def __init__(self, field: StoredField, row: int, shape_row: int | None = None) -> None:
        super().__init__(field, row)
        assert field.spec.dtype is not None
        self.dtype = field.spec.dtype
        self.shape = field.spec.shape[len(field.levels) :]
        self.compressed = field.encoding == "zlib"
        self.told = (
            None
            if shape_row is None
            else Numbers(FieldSpec("tensor", (len(self.shape),), np.dtype(np.int64)), shape_row)
        )

    def read(self, payload: bytes, rows: Rows, key: Key, where: str) -> npt.NDArray[Any] | None:
        spans = self.spans(payload, rows, key)
        if spans is None:
            return None
        shape = self.shape if self.told is None else self.told_shape(payload, rows, key, len(spans))
        size = None if UNKNOWN in shape else math.prod(shape) * self.dtype.itemsize
        pieces = []
        for number, (at, length) in enumerate(spans.tolist()):
            raw = payload[at : at + length]
            if self.compressed:
                raw = self.inflate(raw, _MOST_INFLATED if size is None else size, key, number)
            if size is None:  # the first value tells
                shape = self.found_shape(shape, len(raw), key)
                size = len(raw)
            if len(raw) != size:
                raise DataFormatError(
                    f"field {shown(key)}, value {number}: {len(raw)} bytes, but {self.dtype} of shape "
                    f"{shape} takes {size}"
                )
            pieces.append(raw)
        flat = np.frombuffer(bytearray(b"".join(pieces)), dtype=self.dtype.newbyteorder("<"))
        if self.dtype == np.bool_:
            flat = flat.view(np.uint8) != 0  # any other byte is not a valid bool
        return flat.reshape(len(pieces), *shape)

    def told_shape(self, payload: bytes, rows: Rows, key: Key, values: int) -> tuple[int, ...]:
        """The shape that all values have by the list of shapes."""
        assert self.told is not None
        told = self.told.read_all(payload, rows, (*key, "shape"))
        shapes = np.empty(0, np.int64) if told is None else told
        if shapes.size != values * len(self.shape):
            raise DataFormatError(
                f"field {shown(key)} has {values} values of {len(self.shape)} dimensions, and "
                f"{shapes.size} numbers for their shapes"
            )
        shape = tuple(shapes[: len(self.shape)].tolist())
        other = (shapes.reshape(values, -1) != shape).any(1)
        if other.any():
            at = int(other.argmax())
            raise DataFormatError(
                f"field {shown(key)}: value 0 has shape {shape}, value {at} has "
                f"{tuple(shapes.reshape(values, -1)[at].tolist())}"
            )
        fits = all(
            0 <= size < 1 << 31 and want in (UNKNOWN, size)
            for size, want in zip(shape, self.shape, strict=True)
        )
        if not fits:
            raise DataFormatError(f"field {shown(key)} has shape {shape}, declared {self.shape}")
        return shape

    def found_shape(self, shape: tuple[int, ...], length: int, key: Key) -> tuple[int, ...]:
        one = math.prod(size for size in shape if size != UNKNOWN) * self.dtype.itemsize
        if length % one if one else length:
            raise DataFormatError(
                f"field {shown(key)}, value 0: {length} bytes are no whole number of {self.dtype} of shape "
                f"{shape}"
            )
        return tuple((length // one if one else 0) if size == UNKNOWN else size for size in shape)

    def inflate(self, raw: bytes, size: int, key: Key, number: int) -> bytes:
        """Decompress, never beyond one byte more than there should be."""
        inflater = zlib.decompressobj()
        try:
            return inflater.decompress(raw, size + 1)
        except zlib.error as error:
            raise DataFormatError(f"field {shown(key)}, value {number}: {error}") from error


_MOST_INFLATED = 32 << 20
"""Bytes of a compressed value whose shape is not declared."""


def shown(key: Key) -> str:
    return f"'{'/'.join(key)}'"


def wrong_kind(key: Key, spec: FieldSpec, kind: int) -> DataFormatError:
    declared = spec.kind if spec.dtype is None or spec.kind == "image" else str(spec.dtype)
    return DataFormatError(f"field {shown(key)} is declared as {declared} and stored as {KIND_NAMES[kind]}")


def unfit(key: Key, numbers: Numbers, status: int) -> DataFormatError:
    return DataFormatError(f"field {shown(key)}: number {-1 - status} is beyond the range of {numbers.dtype}")
