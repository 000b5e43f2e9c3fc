"""Fields of a step that hold several values: lists of numbers, and lists of texts."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from replaybank.datasets.openx.sources.base import Column, FieldSpec, Key
from replaybank.datasets.openx.sources.features import UNKNOWN, StoredField
from replaybank.datasets.openx.sources.images import EncodedImages
from replaybank.datasets.openx.sources.ragged import Lengths, check_lengths, nested, padded
from replaybank.datasets.openx.sources.readers import Dynamic, Encoded, Numbers, Rows, Strings, Text, shown
from replaybank.errors import DataFormatError


class Sequences:
    """Lists in each step: padded with zeros where their lengths vary, beside which these are told."""

    def __init__(self, field: StoredField, rows: Sequence[int]) -> None:
        self.field = field
        self.keys = tuple(field.entries)
        self.levels = field.levels
        self.inner_shape = field.spec.shape[len(field.levels) :]
        plain, flat, *lengths = rows
        inner = FieldSpec(field.spec.kind, self.inner_shape, field.spec.dtype)
        self.plain, self.flat = (_values_of(field, inner, row) for row in (plain, flat))
        self.lengths = [Numbers(FieldSpec("tensor", (), np.dtype(np.int64)), row) for row in lengths]

    def read(self, payload: bytes, rows: Rows, key: Key, where: str) -> dict[Key, Column] | None:
        found = self.values(payload, rows, key, where)
        if found is None:
            return None
        values, lists = found
        if self.field.spec.kind == "image":
            return self.frames(payload, np.asarray(values), where)
        if isinstance(values, list):
            return _texts(self.field, nested(values, lists))
        try:
            array, told = padded(values, lists, self.levels, len(payload))
        except DataFormatError as error:
            raise DataFormatError(f"field {shown(key)}: {error}") from error
        lengths = {name: told[level] for level, name in self.field.lengths.items()}
        return {key: array, **lengths}

    def frames(self, payload: bytes, spans: npt.NDArray[Any], where: str) -> dict[Key, Column]:
        """The frames at each position of the lists, which are all as long as declared, as a column each."""
        placed = spans.reshape(-1, len(self.keys), 2)
        spec = self.field.entries
        return {
            name: EncodedImages(payload, placed[:, position], spec[name], f"{where}: {shown(name)}")
            for position, name in enumerate(self.keys)
        }

    def values(
        self, payload: bytes, rows: Rows, key: Key, where: str
    ) -> tuple[npt.NDArray[Any] | list[str], list[Lengths]] | None:
        """All values, flat, and the lengths of all lists."""
        lists = []
        for numbers in self.lengths:
            found = numbers.read_all(payload, rows, key)
            if found is None:
                break
            lists.append(found)
        if lists and lists[0].size:
            lists += [np.empty(0, np.int64)] * (len(self.lengths) - len(lists))  # all lists above are empty
            values = self.flat(payload, rows, key, where)
        elif UNKNOWN not in self.levels:
            values = self.plain(payload, rows, key, where)
            lists = self.even(len(values), key)
        elif len(self.flat(payload, rows, key, where)):
            raise DataFormatError(f"field {shown(key)} has values and no lengths of its lists")
        else:
            return None
        if not lists or not len(lists[0]):
            return None
        try:
            check_lengths(lists, self.levels, len(values))
        except DataFormatError as error:
            raise DataFormatError(f"field {shown(key)}: {error}") from error
        return values, lists

    def even(self, count: int, key: Key) -> list[Lengths]:
        """The lengths of lists that are all as long as declared."""
        each = math.prod(self.levels)
        steps, rest = divmod(count, each) if each else (0, count)
        if rest:
            raise DataFormatError(
                f"field {shown(key)} has {count} values, which are no whole lists of shape {self.levels}"
            )
        return [
            np.full(steps * math.prod(self.levels[:level]), length, np.int64)
            for level, length in enumerate(self.levels)
        ]


def _values_of(field: StoredField, inner: FieldSpec, row: int) -> Callable[..., Any]:
    """What reads the values of a sequence, flat: ``(payload, rows, key, where)`` to ``[N, ...]`` or texts.

    Of frames it gives their places in the payload, ``[N, 2]``.
    """
    if inner.kind == "image":
        strings, none = Strings(field, row), np.empty((0, 2), np.int64)

        def spans(payload: bytes, rows: Rows, key: Key, where: str) -> npt.NDArray[Any]:
            found = strings.spans(payload, rows, key)
            return none if found is None else found

        return spans
    if inner.kind == "text":
        texts = Text(field, row)
        return lambda payload, rows, key, where: texts.read(payload, rows, key, where) or []
    empty = np.empty((0, *inner.shape), inner.dtype)
    if field.encoding != "none":
        encoded = Encoded(field, row)

        def arrays(payload: bytes, rows: Rows, key: Key, where: str) -> npt.NDArray[Any]:
            found = encoded.read(payload, rows, key, where)
            return empty if found is None else found

        return arrays
    numbers = Numbers(inner, row)

    def plain(payload: bytes, rows: Rows, key: Key, where: str) -> npt.NDArray[Any]:
        flat = numbers.read_all(payload, rows, key)
        if flat is None:
            return empty
        if not numbers.per_value or flat.size % numbers.per_value:
            raise DataFormatError(
                f"field {shown(key)} has {flat.size} numbers, which are not whole values of shape "
                f"{inner.shape}"
            )
        return flat.reshape(-1, *inner.shape)

    return plain


class Texts:
    """Several texts a step."""

    def __init__(self, field: StoredField, rows: Sequence[int]) -> None:
        self.field = field
        self.keys = tuple(field.entries)
        self.reader: Text | Dynamic = Dynamic(field, *rows) if field.dynamic else Text(field, rows[0])

    def read(self, payload: bytes, rows: Rows, key: Key, where: str) -> dict[Key, Column] | None:
        found = self.reader.read(payload, rows, key, where)
        if found is None:
            return None
        if isinstance(found, np.ndarray):
            return _texts(self.field, found.tolist())
        shape = self.field.spec.shape
        each = math.prod(shape)
        if len(found) % each:
            raise DataFormatError(
                f"field {shown(key)} has {len(found)} texts, which are no whole values of shape {shape}"
            )
        return {name: found[position::each] for position, name in enumerate(self.keys)}


def _texts(field: StoredField, steps: list[Any]) -> dict[Key, Column]:
    """The columns of lists of texts: one for each position, or one of JSON where their number varies."""
    if UNKNOWN in field.spec.shape:
        return {field.key: [json.dumps(texts, ensure_ascii=False) for texts in steps]}
    for _ in field.spec.shape[1:]:
        steps = [[text for texts in step for text in texts] for step in steps]
    return {key: [step[position] for step in steps] for position, key in enumerate(field.entries)}
