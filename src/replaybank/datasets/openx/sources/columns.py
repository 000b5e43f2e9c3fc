"""Turns one payload into one episode, by the schema: every field into an array, strings or frames."""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np

from replaybank import _native
from replaybank.datasets.openx.sources.base import Column, Episode, Key
from replaybank.datasets.openx.sources.example import PayloadIndex
from replaybank.datasets.openx.sources.features import IMAGE_DIMENSIONS, UNKNOWN, Schema, StoredField
from replaybank.datasets.openx.sources.images import EncodedImages
from replaybank.datasets.openx.sources.readers import (
    Dynamic,
    Encoded,
    Frames,
    Numbers,
    Reader,
    Rows,
    Text,
    shown,
    unfit,
    wrong_kind,
)
from replaybank.datasets.openx.sources.sequences import Sequences, Texts
from replaybank.errors import DataFormatError

_ALIGNMENT = 16
"""Of the arrays in an episode's one buffer: what NumPy itself gives."""


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
        self._numbers = [(key, reader) for key, reader in readers.items() if isinstance(reader, Numbers)]
        self._plan = np.array(
            [(each.row, each.kind, min(each.per_value, _MOST), each.code) for _, each in self._numbers],
            np.int64,
        ).reshape(-1, 4)
        self._places = np.zeros(len(self._numbers) + 1, np.int64)
        """Where in its buffer the numbers of an episode lie."""
        self._tables = (self._plan.ctypes.data, len(self._numbers), self._places.ctypes.data)
        self._several = [
            (key, reader) for key, reader in readers.items() if isinstance(reader, (Sequences, Texts))
        ]
        self._others = [
            (key, reader)
            for key, reader in readers.items()
            if not isinstance(reader, (Numbers, Sequences, Texts))
        ]
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
        plan, numbered, places = self._tables
        length = _native.lay_numbers(self._index.address, plan, numbered, places)
        if length < 0:
            raise self._uneven(rows, -1 - length)
        first: Key | None = None  # of the numbers, until a field of another kind is the first of all
        if not length:
            length = UNKNOWN
        for key, reader in self._others:
            column: Column | None
            if isinstance(reader, Text) and reader.as_numbers(rows):
                column = reader.read_numbers(payload, rows, key, length)
            else:
                column = reader.read(payload, rows, key, where)
            if column is None:
                missing.append(key)
                continue
            if len(column) != length:
                if length != UNKNOWN:
                    raise _disagree(self._first(rows, first), length, key, len(column))
                length, first = len(column), key
            steps[key] = column
        for key, several in self._several:
            columns = several.read(payload, rows, key, where)
            if columns is None:
                missing.extend(several.keys)
                continue
            for column in columns.values():
                if len(column) != length:
                    if length != UNKNOWN:
                        raise _disagree(self._first(rows, first), length, key, len(column))
                    length, first = len(column), key
            steps.update(columns)
        if length <= 0:
            raise DataFormatError("the episode has no steps")
        *starts, size = self._places.tolist()
        arena = np.empty(size, dtype=np.uint8)
        filled = _native.fill_numbers(payload, self._index.address, plan, numbered, places, arena)
        if filled != numbered:
            raise self._unfit(payload, rows, filled)
        for (key, numbers), start in zip(self._numbers, starts, strict=True):
            if start < 0:
                missing.append(key)
            else:
                steps[key] = np.ndarray((length, *numbers.shape), numbers.dtype, arena, start)
        return steps, length, missing

    def _first(self, rows: Rows, known: Key | None = None) -> Key:
        """The first field that told how many steps there are: of those of numbers where no other is known."""
        if known is not None:
            return known
        return next(key for key, numbers in self._numbers if numbers.per_value and rows[numbers.row][1])

    def _uneven(self, rows: Rows, which: int) -> DataFormatError:
        """Why the numbers of one field are not those of as many steps as there are."""
        key, numbers = self._numbers[which]
        kind, count, _, _ = rows[numbers.row]
        if kind != numbers.kind:
            return wrong_kind(key, numbers.spec, kind)
        found, rest = divmod(count, numbers.per_value)
        if rest:
            return DataFormatError(
                f"field {shown(key)} has {count} numbers, which are not whole values of shape "
                f"{numbers.spec.shape}"
            )
        first = self._first(rows)
        row, each = next((n.row, n.per_value) for name, n in self._numbers if name == first)
        return _disagree(first, rows[row][1] // each, key, found)

    def _unfit(self, payload: bytes, rows: Rows, which: int) -> DataFormatError:
        """Why the numbers of one field cannot be had: those of empty values were not looked at before."""
        key, numbers = self._numbers[which]
        kind, count, offset, span = rows[numbers.row]
        if kind != numbers.kind:
            return wrong_kind(key, numbers.spec, kind)
        values = np.empty(count, numbers.dtype)
        return unfit(key, numbers, _native.decode_numbers(payload, offset, span, numbers.code, values, count))


_MOST: Final = (1 << 63) - 1
"""Of numbers a value may be declared to have more than can be counted in an int64; no payload has so many."""
_NOTHING: frozenset[Key] = frozenset()


def _reader(field: StoredField, rows: list[int]) -> Numbers | Sequences | Texts | Reader:
    if field.levels and field.in_steps:
        return Sequences(field, rows)
    if field.spec.kind == "text":
        return Texts(field, rows) if field.spec.shape and field.in_steps else Text(field, rows[0])
    if field.spec.kind == "image":
        return Frames(field, rows[0])
    if field.encoding != "none":
        return Encoded(field, rows[-1], rows[0] if field.dynamic else None)
    return Dynamic(field, *rows) if field.dynamic else Numbers(field.spec, rows[0])


def _metadata_value(
    field: StoredField,
    reader: Numbers | Sequences | Texts | Reader,
    payload: bytes,
    rows: Rows,
    where: str,
) -> Any | None:
    """One value of an episode: a NumPy scalar or array, ``str`` or lists of them, or one encoded frame."""
    assert not isinstance(reader, (Sequences, Texts))  # which are of steps
    if isinstance(reader, Numbers):
        flat = reader.read_all(payload, rows, field.key)
        if flat is None or (flat.size == 0 and reader.per_value and UNKNOWN not in reader.shape):
            return None
        unknown = flat.size // reader.per_value if reader.per_value else 0
        shape = tuple(unknown if size == UNKNOWN else size for size in reader.shape)
        if math.prod(shape) != flat.size:
            raise DataFormatError(
                f"field {shown(field.key)} has {flat.size} numbers, declared shape {reader.shape}"
            )
        return flat.reshape(shape)[()]
    if isinstance(reader, Text) and reader.as_numbers(rows):
        return reader.read_numbers(payload, rows, field.key, 1)[0]
    column = reader.read(payload, rows, field.key, where)
    if column is None:
        return None
    if isinstance(reader, Dynamic) and isinstance(column, np.ndarray):
        return column if reader.texts is None else column.tolist()
    if isinstance(column, list) and field.spec.shape:
        return _list_of_texts(field, column)
    if isinstance(column, EncodedImages) and len(field.spec.shape) > IMAGE_DIMENSIONS:
        if field.spec.shape[0] not in (UNKNOWN, len(column)):
            raise DataFormatError(
                f"field {shown(field.key)} of the episode has {len(column)} frames, declared are "
                f"{field.spec.shape[0]}"
            )
        return column
    if len(column) != 1:
        raise DataFormatError(f"field {shown(field.key)} of the episode has {len(column)} values, not 1")
    return column if isinstance(column, EncodedImages) else column[0]  # type: ignore[index]


def _list_of_texts(field: StoredField, texts: list[str]) -> list[Any]:
    each = math.prod(size for size in field.spec.shape if size != UNKNOWN)
    unknown, rest = divmod(len(texts), each) if each else (0, len(texts))
    shape = tuple(unknown if size == UNKNOWN else size for size in field.spec.shape)
    if rest or math.prod(shape) != len(texts):
        raise DataFormatError(
            f"field {shown(field.key)} has {len(texts)} texts, declared shape {field.spec.shape}"
        )
    lists: list[Any] = np.array(texts, dtype=object).reshape(shape).tolist()
    return lists


def _disagree(first: Key, length: int, key: Key, found: int) -> DataFormatError:
    return DataFormatError(f"field {shown(key)} has {found} steps, field {shown(first)} has {length}")
