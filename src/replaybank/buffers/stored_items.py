"""The items in a checkpoint of a storage, read a few at a time and without running anything from it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, Protocol

import numpy as np
import numpy.typing as npt
import torch
from tensordict import is_non_tensor
from torch import Tensor

from replaybank.buffers.image_forms import ImageForm, image_form, shown
from replaybank.checkpoint import StoredField, StoredRows
from replaybank.errors import DataFormatError
from replaybank.storages import CompressedListStorage, EncodedFrames, WriteLog
from replaybank.storages.frames import frames_of
from replaybank.storages.layout import Key, LeafSpec, RowLayout
from replaybank.storages.structure import leaves_of

BLOCK_BYTES: Final = 1 << 23
"""Of rows that are read at a time."""
_ITEMS_FOR_KEYS: Final = 100
"""Items of a list that are asked for their entries."""


@dataclass(frozen=True)
class StoredEntry:
    """One entry of the items.

    Args:
        key: where it is.
        kind: ``"tensor"``, ``"text"`` or ``"image"``; or ``"object"`` for anything else.
        shape: of one value; of images as they are stored.
        dtype: its name; of what is no tensor that of its class.
        bytes: of one value, 0 where that is not known.
        note: how it is stored, where that is worth a word: ``"JPEG"``.
        made: it is made from the next step, and is not there itself.
        image: how an image of plain pixels lies.
    """

    key: Key
    kind: Literal["tensor", "text", "image", "object"]
    shape: tuple[int, ...]
    dtype: str
    bytes: int = 0
    note: str = ""
    made: bool = False
    image: ImageForm | None = None

    @property
    def readable(self) -> bool:
        """Whether its values can be asked for, over consecutive rows."""
        return self.kind in ("tensor", "text") and not self.made


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
    entries: list[StoredEntry]
    item_bytes: float

    def read_leaf(self, key: Key, rows: Tensor | slice) -> Tensor:
        """Values ``[k, *columns, *item]`` of some rows."""
        ...

    def column(self, key: Key, rows: slice, column: int) -> npt.NDArray[Any] | list[str]:
        """Values of consecutive rows, in one column."""
        ...

    def frames(self, key: Key, rows: Sequence[int], column: int) -> npt.NDArray[Any]:
        """Images of some rows, ``[n, H, W, C]``, of 1, 3 or 4 channels; of stacked frames the last one.

        Raises:
            DataFormatError: one cannot be decoded, or is not there.
        """
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
        self._forms = {entry.key: entry.image for entry in self.entries if entry.image}
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
            return shown(values.numpy(), self._forms[key])
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
        self._forms = {entry.key: entry.image for entry in self.entries if entry.image}
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
        try:
            images = np.stack(self._values(key, rows))
            return shown(images, self._forms[key])
        except (KeyError, ValueError) as error:
            name = "/".join(key)
            raise DataFormatError(
                f"items {rows[0]} to {rows[-1]} do not all have an image {name} of one shape: {error}"
            ) from error


def _entry(spec: LeafSpec, made: bool, image: tuple[LeafSpec, EncodedFrames, Any] | None) -> StoredEntry:
    shape, dtype = tuple(spec.shape), str(spec.dtype).removeprefix("torch.")
    if image is not None:
        return StoredEntry(spec.key, "image", shape, dtype, spec.bytes, image[1].format.upper())
    if made:
        return StoredEntry(spec.key, "tensor", shape, dtype, spec.bytes, "made from the next step", made=True)
    return _tensor(spec.key, shape, dtype, spec.bytes)


def _tensor(key: Key, shape: tuple[int, ...], dtype: str, size: int) -> StoredEntry:
    form = image_form(shape, dtype)
    if form is None:
        return StoredEntry(key, "tensor", shape, dtype, size)
    return StoredEntry(key, "image", shape, dtype, size, "raw", image=form)


def _entry_of_values(key: Key, values: Sequence[Any]) -> StoredEntry:
    if all(isinstance(value, str) for value in values):
        return StoredEntry(key, "text", (), "str")
    forms = {(v.shape, v.dtype.name) if isinstance(v, np.ndarray) else ((), type(v).__name__) for v in values}
    shape, dtype = forms.pop()
    if forms:
        return StoredEntry(key, "object", shape, dtype, note="of differing shapes")
    if not isinstance(values[0], np.ndarray) or values[0].dtype.kind not in "biuf":
        return StoredEntry(key, "object", shape, dtype)
    return _tensor(key, shape, dtype, values[0].nbytes)


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
