"""tf.train.Example payloads: named lists of byte strings, floats or ints."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from replaybank import _native
from replaybank.errors import DataFormatError

KIND_NONE, KIND_BYTES, KIND_FLOAT, KIND_INT64 = range(4)
KIND_NAMES = ("nothing", "byte strings", "floats", "ints")

DTYPE_CODES: Mapping[np.dtype[Any], int] = {
    np.dtype(name): code
    for code, name in enumerate(
        (
            *("bool", "int8", "int16", "int32", "int64"),
            *("uint8", "uint16", "uint32", "uint64"),
            *("float16", "float32", "float64"),
        )
    )
}
"""Codes of ``decode_numbers`` in csrc/example_values.hpp, by the dtype it writes."""

FeatureValue: TypeAlias = "npt.NDArray[np.float32] | npt.NDArray[np.int64] | list[bytes] | None"
"""Values of one feature; None where the payload names it and gives no list."""


def malformed(status: int) -> DataFormatError:
    """The error for a negative status of the payload readers."""
    return DataFormatError(f"the payload is not a tf.train.Example: malformed at its byte {-1 - status}")


class PayloadIndex:
    """Finds a known set of features in payloads, in one pass and with nothing allocated per payload.

    Not thread-safe: the table of places is reused; make one a thread.

    Args:
        names: names of the features wanted, without repeats.
    """

    def __init__(self, names: Sequence[str]) -> None:
        encoded = sorted((name.encode(), i) for i, name in enumerate(names))
        self._names = b"".join(name for name, _ in encoded)
        self._offsets = np.zeros(len(encoded) + 1, dtype=np.int64)
        np.cumsum([len(name) for name, _ in encoded], out=self._offsets[1:])
        self._rows = np.zeros((max(len(encoded), 1), 4), dtype=np.int64)
        self._count = len(encoded)
        self.address = self._rows.ctypes.data
        """Where :meth:`find` writes its rows, int64 ``[names, 4]``: for kernels that go on from there."""
        self._offsets_address = self._offsets.ctypes.data
        self.order = [i for _, i in encoded]
        """Row ``r`` of :meth:`find` belongs to ``names[order[r]]``."""

    def find(self, payload: bytes) -> list[list[int]]:
        """Where the features lie: ``[kind, count, offset, length]`` each, zeros for absent ones.

        O(bytes of numbers + entries log names). Rows are in the order of :attr:`order`.

        Raises:
            DataFormatError: the payload is malformed.
        """
        status = _native.match_example(payload, self._names, self._offsets_address, self._count, self.address)
        if status < 0:
            raise malformed(status)
        found: list[list[int]] = self._rows.tolist()
        return found


def decode_spans(payload: bytes, offset: int, length: int, count: int) -> npt.NDArray[np.int64]:
    """Places of the byte strings of one feature: ``[count, 2]`` of (offset in the payload, length)."""
    spans = np.empty((count, 2), dtype=np.int64)
    if _native.decode_bytes(payload, offset, length, spans, count) != count:
        raise DataFormatError("a byte-string feature is not where the index of its payload says")
    return spans


def parse_example(payload: bytes) -> dict[str, FeatureValue]:
    """Read every feature of a payload. O(payload).

    Protobuf's rules hold: of repeated names the last counts, lists of one kind merge, numbers may be packed
    or not, unknown fields are passed over.

    Raises:
        DataFormatError: the payload is malformed.

    >>> parse_example(serialize_example({"steps/reward": np.array([0.5, 1.0], dtype=np.float32)}))
    {'steps/reward': array([0.5, 1. ], dtype=float32)}
    """
    rows = np.empty((64, 6), dtype=np.int64)
    count = _native.index_example(payload, rows.ctypes.data, len(rows))
    if count > len(rows):
        rows = np.empty((count, 6), dtype=np.int64)
        count = _native.index_example(payload, rows.ctypes.data, count)
    if count < 0:
        raise malformed(count)
    features: dict[str, FeatureValue] = {}
    for name_at, name_length, kind, values, offset, length in rows[:count].tolist():
        try:
            name = payload[name_at : name_at + name_length].decode()
        except UnicodeDecodeError as error:
            raise DataFormatError(f"the name at byte {name_at} of the payload is not UTF-8") from error
        features[name] = _feature(payload, kind, values, offset, length)
    return features


def _feature(payload: bytes, kind: int, count: int, offset: int, length: int) -> FeatureValue:
    if kind == KIND_NONE:
        return None
    if kind == KIND_BYTES:
        spans = decode_spans(payload, offset, length, count).tolist()
        return [payload[at : at + size] for at, size in spans]
    out: npt.NDArray[Any] = np.empty(count, dtype=np.float32 if kind == KIND_FLOAT else np.int64)
    _native.decode_numbers(payload, offset, length, DTYPE_CODES[out.dtype], out, count)
    return out


def serialize_example(features: Mapping[str, npt.NDArray[Any] | Sequence[bytes] | None]) -> bytes:
    """Write a payload: floats and ints packed, in the mapping's order.

    Args:
        features: float arrays become float lists (as float32), bool and int arrays int64 lists (uint64 by its
            bits), sequences of ``bytes`` bytes lists, None a feature without a list.

    >>> serialize_example({"a": np.array([True])}).hex()
    '0a0c0a0a0a016112051a030a0101'
    """
    entries = []
    for name, value in features.items():
        entry = _delimited(1, name.encode()) + _delimited(2, _serialize_feature(value))
        entries.append(_delimited(1, entry))
    return _delimited(1, b"".join(entries))


def _serialize_feature(value: npt.NDArray[Any] | Sequence[bytes] | None) -> bytes:
    if value is None:
        return b""
    if not isinstance(value, np.ndarray):
        return _delimited(KIND_BYTES, b"".join(_delimited(1, text) for text in value))
    flat = value.reshape(-1)
    if flat.dtype.kind == "f":
        packed, kind = flat.astype("<f4").tobytes(), KIND_FLOAT
    elif flat.dtype.kind in "biu":
        packed, kind = _packed_varints(flat), KIND_INT64
    else:
        raise TypeError(f"a feature holds bool, int or float values or bytes, not {flat.dtype}")
    return _delimited(kind, _delimited(1, packed) if packed else b"")


def _packed_varints(values: npt.NDArray[Any]) -> bytes:
    if values.dtype == np.bool_:
        return values.tobytes()
    small = values.size == 0 or (values.min() >= 0 and values.max() < 0x80)
    if small:
        return values.astype(np.uint8).tobytes()
    return b"".join(map(_varint, values.tolist()))


def _varint(value: int) -> bytes:
    value &= 0xFFFFFFFFFFFFFFFF
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _delimited(number: int, content: bytes) -> bytes:
    return b"".join((_varint(number << 3 | 2), _varint(len(content)), content))
