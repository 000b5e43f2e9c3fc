"""Columns of a LeRobot table: told apart by their types, turned into arrays, strings or frames."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from replaybank.datasets.openx.sources.base import FieldSpec
from replaybank.datasets.openx.sources.images import EncodedImages
from replaybank.errors import DataFormatError


@dataclass(frozen=True)
class ColumnType:
    """What a column holds.

    Args:
        kind: ``"number"``, ``"text"``, ``"image"``, or ``"other"``, which is not read.
        dtype: of numbers.
        depth: how many lists a value is nested in.
    """

    kind: Literal["number", "text", "image", "other"]
    dtype: np.dtype[Any] | None = None
    depth: int = 0


def column_type(arrow: Any) -> ColumnType:
    """What a column of this Arrow type holds."""
    import pyarrow as pa

    types = pa.types
    depth = 0
    while True:
        if isinstance(arrow, pa.BaseExtensionType):
            arrow = arrow.storage_type
        elif types.is_dictionary(arrow):
            arrow = arrow.value_type
        elif types.is_list(arrow) or types.is_large_list(arrow) or types.is_fixed_size_list(arrow):
            arrow = arrow.value_type
            depth += 1
        else:
            break
    if types.is_boolean(arrow) or types.is_integer(arrow) or types.is_floating(arrow):
        return ColumnType("number", np.dtype(arrow.to_pandas_dtype()), depth)
    if (types.is_string(arrow) or types.is_large_string(arrow)) and depth <= 1:
        return ColumnType("text", None, depth)
    if depth == 0 and (types.is_binary(arrow) or types.is_large_binary(arrow)):
        return ColumnType("image")
    if depth == 0 and types.is_struct(arrow) and arrow.get_field_index("bytes") >= 0:
        return ColumnType("image")
    return ColumnType("other", None, depth)


def found_shape(column: Any) -> tuple[int, ...]:
    """Shape of the first value of a column of numbers."""
    value = column[0].as_py() if len(column) else None
    shape = []
    while isinstance(value, list):
        shape.append(len(value))
        value = value[0] if value else None
    return tuple(shape)


def numbers(column: Any, dtype: np.dtype[Any], shape: tuple[int, ...]) -> npt.NDArray[Any]:
    """A column of numbers, ``[T, *shape]`` in ``dtype``. O(values).

    Missing values of a float are NaN.

    Raises:
        DataFormatError: values are missing, are not of this shape, or do not fit the dtype.
    """
    import pyarrow as pa
    import pyarrow.compute

    pc: Any = pyarrow.compute  # its functions are made at run time
    rows = len(column)
    array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    if isinstance(array, pa.ChunkedArray):  # some types come back in chunks, though asked for one
        array = pa.concat_arrays(array.chunks)
    found = []
    while True:
        if isinstance(array, pa.ExtensionArray):
            array = array.storage
        if not pa.types.is_nested(array.type):
            break
        if array.null_count:
            raise DataFormatError(f"{array.null_count} values are missing")
        lengths = pc.min_max(pc.list_value_length(array)).as_py() if len(array) else {"min": 0, "max": 0}
        if lengths["min"] != lengths["max"]:
            raise DataFormatError(f"values have {lengths['min']} to {lengths['max']} entries: no one shape")
        found.append(int(lengths["max"]))
        array = array.flatten()
    if math.prod(found) != math.prod(shape) or len(array) != rows * math.prod(found):
        raise DataFormatError(f"a value has shape {tuple(found)}, the dataset has {shape}")
    if array.null_count and not (dtype.kind == "f" and pa.types.is_floating(array.type)):
        raise DataFormatError(f"{array.null_count} values are missing")
    values = np.asarray(array.to_numpy(zero_copy_only=False))
    if values.dtype != dtype:
        with np.errstate(all="ignore"):
            cast = values.astype(dtype)
            if dtype.kind != "f" and not np.array_equal(cast.astype(values.dtype), values):
                raise DataFormatError(f"values of {values.dtype} do not fit the declared {dtype}")
        values = cast
    return values.reshape(rows, *shape)


def strings(column: Any) -> list[str]:
    """A column of text; what is missing is empty.

    Raises:
        DataFormatError: a value is a list of several texts.
    """
    values = column.to_pylist()
    found = []
    for value in values:
        if isinstance(value, list):
            if len(value) > 1:
                raise DataFormatError(f"a step has {len(value)} texts in place of one")
            value = value[0] if value else None
        found.append("" if value is None else str(value))
    return found


def frame_bytes(column: Any, read_file: Callable[[str], bytes]) -> list[bytes]:
    """The encoded frames of an image column: embedded, or in files of their own.

    Args:
        column: ``struct{bytes, path}``, or binary.
        read_file: reads a path that a frame names instead of holding bytes.

    Raises:
        DataFormatError: a frame has neither bytes nor a path.
    """
    frames = []
    for number, value in enumerate(column.to_pylist()):
        frame = value.get("bytes") if isinstance(value, dict) else value
        if frame is None and isinstance(value, dict) and isinstance(value.get("path"), str):
            frame = read_file(value["path"])
        if not isinstance(frame, bytes):
            raise DataFormatError(f"frame {number} has neither bytes nor the path of a file")
        frames.append(frame)
    return frames


def encoded_images(frames: list[bytes], spec: FieldSpec, where: str) -> EncodedImages:
    """Frames as a camera of an episode. O(their bytes)."""
    lengths = np.fromiter(map(len, frames), np.int64, len(frames))
    spans = np.stack([np.cumsum(lengths) - lengths, lengths], axis=1)
    return EncodedImages(b"".join(frames), spans, spec, where)
