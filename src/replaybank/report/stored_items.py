"""The items in a checkpoint of a storage, read a few at a time and without running anything from it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final, Protocol

import numpy as np
import numpy.typing as npt
import torch
from tensordict import is_non_tensor
from torch import Tensor

from replaybank.checkpoint import StoredField, StoredRows
from replaybank.datasets.openx.sources.base import Key
from replaybank.errors import DataFormatError
from replaybank.report.look import MOST_ITEM_BYTES, Entry
from replaybank.storages import CompressedListStorage, EncodedFrames, WriteLog
from replaybank.storages.frames import frames_of
from replaybank.storages.layout import LeafSpec, RowLayout
from replaybank.storages.structure import leaves_of

BLOCK_BYTES: Final = 1 << 23
"""Of rows that are read at a time."""
_MOST_CHANNELS: Final = 16
"""Of what is taken for an image: frames that are stacked have many."""
_LEAST_SIDE: Final = 8
"""Pixels of what is taken for an image."""
_ITEMS_FOR_KEYS: Final = 100
"""Items of a list that are asked for their entries."""


class Items(Protocol):
    """The items of a storage.

    Args:
        log: of its writes.
        columns: sizes of the dimensions behind time.
        entries: of an item.
        item_bytes: of an item, about.
    """

    log: WriteLog
    columns: tuple[int, ...]
    entries: list[Entry]
    item_bytes: float

    def read_leaf(self, key: Key, rows: Tensor | slice) -> Tensor:
        """Values ``[k, *columns, *item]`` of some rows."""
        ...

    def column(self, key: Key, rows: slice, column: int) -> npt.NDArray[Any] | list[str]:
        """Values of consecutive rows, in one column."""
        ...

    def frames(self, key: Key, rows: Sequence[int], column: int) -> npt.NDArray[Any]:
        """Images of some rows, ``[n, H, W, C]``."""
        ...


def items_of(state: Mapping[str, Any]) -> Items | None:
    """The items of a storage's state; None if they are not in it.

    Raises:
        DataFormatError, ValueError: the state is damaged.
    """
    if state.get("initialized") and "leaves" in state:
        return TensorItems(state)
    if "sizes" in state and "forms" in state:
        return ListItems(_unpacked(state), state["log"])
    if isinstance(state.get("items"), list):
        return ListItems(state["items"], state["log"])
    return None


def log_of(state: Mapping[str, Any]) -> WriteLog:
    """The log of a storage's state."""
    log = WriteLog(max(1, len(state["cut"])))
    log.load_state_dict(state)
    return log


class TensorItems:
    """The items of a storage of tensors: whatever is asked for is read from the files.

    Not thread-safe.

    Args:
        state: of the storage; good as long as the checkpoint is open.
    """

    def __init__(self, state: Mapping[str, Any]) -> None:
        self.log = log_of(state["log"])
        self.columns = tuple(state["columns"])
        layout = {"format": "replaybank.row-layout", "version": 1, "row_bytes": 0, "leaves": state["leaves"]}
        specs = RowLayout.from_json(layout).leaves
        data: list[Tensor | StoredRows | StoredField | None] = list(state["data"])
        if len(data) != len(specs):
            raise DataFormatError(f"The state is damaged: {len(data)} leaves, {len(specs)} are described.")
        made = {number for number, _ in state["next"]["links"]} if "next" in state else set()
        count = self.log.length * torch.Size(self.columns).numel()
        images = {entry["leaf"]: frames_of(entry, count) for entry in state.get("frames", ())}
        self._data = {spec.key: leaf for spec, leaf in zip(specs, data, strict=True) if leaf is not None}
        self._images = {specs[number].key: (specs[number], *kept) for number, kept in images.items()}
        self.entries = [_entry(spec, n in made, self._images.get(spec.key)) for n, spec in enumerate(specs)]
        self.item_bytes = float(sum(spec.bytes for spec in specs))

    def read_leaf(self, key: Key, rows: Tensor | slice) -> Tensor:
        """Values ``[k, *columns, *item]`` of some rows."""
        if key not in self._data:
            raise KeyError(key)
        data = self._data[key]
        if isinstance(rows, slice):
            start, stop, _ = rows.indices(len(data))
            return _some_rows(data, start, stop)
        if isinstance(data, Tensor):
            return data[rows]
        found = [data[row : row + 1] for row in rows.reshape(-1).tolist()]
        return torch.cat(found) if found else data[0:0]

    def column(self, key: Key, rows: slice, column: int) -> npt.NDArray[Any]:
        """Values of consecutive rows, in one column."""
        return _array(self._of_column(self.read_leaf(key, rows), column))

    def _of_column(self, values: Tensor, column: int) -> Tensor:
        return values.flatten(1, len(self.columns))[:, column] if self.columns else values

    def frames(self, key: Key, rows: Sequence[int], column: int) -> npt.NDArray[Any]:
        """Images of some rows, ``[n, H, W, C]``."""
        if key not in self._images:
            values = self._of_column(self.read_leaf(key, torch.tensor(rows, dtype=torch.int64)), column)
            return channels_last(values.numpy())
        spec, frames, contents = self._images[key]
        width = torch.Size(self.columns).numel()
        out = torch.empty((len(rows), *spec.shape), dtype=torch.uint8)
        frames.decode_all([contents[row * width + column] for row in rows].__getitem__, out)
        return out.permute(0, 2, 3, 1).numpy() if frames.channels_first else out.numpy()


def _some_rows(data: Tensor | StoredRows | StoredField, start: int, stop: int) -> Tensor:
    """Consecutive rows; of a tensor among others in rows, no more of these at a time than a few megabytes."""
    if not isinstance(data, StoredField):
        return data[start:stop]
    out = torch.empty((max(0, stop - start), *data.shape[1:]), dtype=data.dtype)
    step = max(1, BLOCK_BYTES // math.prod(data.rows.shape[1:]))
    for first in range(start, stop, step):
        out[first - start : first - start + step] = data[first : min(first + step, stop)]
    return out


class ListItems:
    """The items of a list, which hold anything that has tensors, numbers and texts in it.

    Not thread-safe.

    Args:
        items: the list, or what gives an item when it is asked for.
        log: state of the storage's log.
    """

    def __init__(self, items: Sequence[Any], log: Mapping[str, Any]) -> None:
        self._items = items
        self.log = log_of(log)
        self.columns: tuple[int, ...] = ()
        count = min(len(items), _ITEMS_FOR_KEYS)
        rows = np.unique(np.linspace(0, max(0, len(items) - 1), count).astype(int)).tolist()
        leaves: dict[Key, list[Any]] = {}
        size = 0
        for row in rows:
            for key, value in leaves_of(items[row]):
                leaves.setdefault(key, []).append(_plain(value))
        self.entries = []
        for key, values in leaves.items():
            self.entries.append(_entry_of_values(key, values))
            size += sum(v.nbytes if isinstance(v, np.ndarray) else len(str(v)) for v in values)
        self.item_bytes = size / max(1, len(rows))

    def _values(self, key: Key, rows: Sequence[int]) -> list[Any]:
        values = []
        for row in rows:
            found = dict(leaves_of(self._items[row]))
            if key not in found:
                raise KeyError(key)
            values.append(_plain(found[key]))
        return values

    def read_leaf(self, key: Key, rows: Tensor | slice) -> Tensor:
        """Values ``[k, *item]`` of some rows."""
        return torch.from_numpy(np.stack(self._values(key, self._numbers(rows))))

    def _numbers(self, rows: Tensor | slice) -> list[int]:
        if isinstance(rows, slice):
            return list(range(*rows.indices(len(self._items))))
        return [int(row) for row in rows.reshape(-1).tolist()]

    def column(self, key: Key, rows: slice, column: int) -> npt.NDArray[Any] | list[str]:
        """Values of consecutive rows."""
        values = self._values(key, self._numbers(rows))
        return values if any(isinstance(value, str) for value in values) else np.stack(values)

    def frames(self, key: Key, rows: Sequence[int], column: int) -> npt.NDArray[Any]:
        """Images of some rows, ``[n, H, W, C]``."""
        return channels_last(np.stack(self._values(key, rows)))


def is_image(shape: tuple[int, ...], dtype: str) -> bool:
    """Whether a tensor looks like an image: bytes, two sides of some length, and a few channels.

    >>> is_image((3, 64, 64), "uint8"), is_image((84, 84, 1), "uint8"), is_image((3, 64, 64), "float32")
    (True, True, False)
    """
    if dtype != "uint8" or len(shape) != 3:
        return False
    first, middle, last = shape
    channels, *sides = (first, middle, last) if first < last else (last, first, middle)
    return 1 <= channels <= _MOST_CHANNELS and min(sides) >= _LEAST_SIDE


def channels_last(images: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Images ``[n, H, W, C]``, whichever way they lie; of stacked frames the last one.

    >>> channels_last(np.zeros((2, 4, 84, 84), np.uint8)).shape
    (2, 84, 84, 1)
    """
    if images.shape[1] < images.shape[3]:
        channels = images.shape[1]
        depth = 3 if channels % 3 == 0 else 1
        return images[:, channels - depth :].transpose(0, 2, 3, 1)
    return images


def _entry(spec: LeafSpec, made: bool, image: tuple[LeafSpec, EncodedFrames, Any] | None) -> Entry:
    dtype = str(spec.dtype).removeprefix("torch.")
    if image is not None:
        return Entry(spec.key, "image", tuple(spec.shape), dtype, image[1].format.upper())
    if made:
        return Entry(spec.key, "tensor", tuple(spec.shape), dtype, "made from the next step", looked=False)
    if is_image(tuple(spec.shape), dtype):
        return Entry(spec.key, "image", tuple(spec.shape), dtype, "raw")
    return Entry(spec.key, "tensor", tuple(spec.shape), dtype, looked=spec.bytes <= MOST_ITEM_BYTES)


def _entry_of_values(key: Key, values: Sequence[Any]) -> Entry:
    if all(isinstance(value, str) for value in values):
        return Entry(key, "text", (), "str")
    forms = {(v.shape, v.dtype.name) if isinstance(v, np.ndarray) else ((), type(v).__name__) for v in values}
    shape, dtype = forms.pop()
    if forms:
        return Entry(key, "tensor", shape, dtype, "of differing shapes", looked=False)
    if not isinstance(values[0], np.ndarray):
        return Entry(key, "tensor", (), dtype, looked=False)
    if is_image(shape, dtype):
        return Entry(key, "image", shape, dtype, "raw")
    looked = values[0].dtype.kind in "biuf" and values[0].nbytes <= MOST_ITEM_BYTES
    return Entry(key, "tensor", shape, dtype, looked=looked)


def _plain(value: Any) -> Any:
    """An array of what is a number or a tensor, a string of what is text; anything else as it is."""
    if is_non_tensor(value):
        value = value.tolist() if hasattr(value, "tolist") else value.data
    if isinstance(value, Tensor):
        return _array(value.detach())
    if isinstance(value, (bool, int, float, np.ndarray, np.generic)):
        return np.asarray(value)
    return value


def _array(values: Tensor) -> npt.NDArray[Any]:
    """As NumPy has it; of numbers that it does not have, float32 ones."""
    values = values.resolve_conj().resolve_neg()
    if values.is_complex():
        values = torch.view_as_real(values)
    if values.dtype is torch.bfloat16 or "float8" in str(values.dtype):
        values = values.float()
    return values.numpy()


class _Unpacked(Sequence[Any]):
    """Items of a compressed list, each decompressed when it is asked for."""

    def __init__(self, storage: CompressedListStorage) -> None:
        self._storage = storage

    def __len__(self) -> int:
        return len(self._storage)

    def __getitem__(self, index: Any) -> Any:
        return self._storage.get(index)


def _unpacked(state: Mapping[str, Any]) -> Sequence[Any]:
    storage = CompressedListStorage(max(1, len(state["log"]["cut"])))
    storage.load_state_dict(state)
    return _Unpacked(storage)
