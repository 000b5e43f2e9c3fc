"""What every storage must do, whatever it is made of and whatever is in it; other parts add theirs."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pytest
import torch
from tensordict import TensorDict, tensorclass
from torch import Tensor

from replaybank.storages import (
    CompressedListStorage,
    EncodedFrames,
    LazyMemmapStorage,
    LazyStackStorage,
    LazyTensorStorage,
    ListStorage,
    Storage,
    TensorStorage,
)


class Step(NamedTuple):
    """A named tuple as an item."""

    number: Tensor
    pixels: Tensor


@tensorclass
class Frame:
    """A tensorclass as an item."""

    number: Tensor
    flag: Tensor


def _flag(ids: Tensor) -> Tensor:
    return ids % 2 == 0


def _vector(ids: Tensor) -> Tensor:
    """float32 ``[*ids, 3]``: the numbers, with something that depends on them beside them."""
    return torch.stack([ids, ids + 1, -ids], -1).to(torch.float32)


def _pixels(ids: Tensor) -> Tensor:
    """uint8 ``[*ids, 40, 30]``: too large for the row."""
    return (ids % 251).to(torch.uint8)[..., None, None].expand(*ids.shape, 40, 30)


@dataclass(frozen=True)
class DataKind:
    """A form of data: made from ids of any shape, and read back into them.

    Args:
        name: for test ids.
        make: ids ``[*lead]`` to data of that lead.
        ids: data to ids ``[*lead]``; checks that all of it belongs together.
    """

    name: str
    make: Callable[[Tensor], Any]
    ids: Callable[[Any], Tensor]

    def __str__(self) -> str:
        return self.name


def _read(number: Tensor, *others: tuple[Tensor, Tensor]) -> Tensor:
    for value, expected in others:
        assert value.dtype == expected.dtype
        assert value.shape == expected.shape
        assert torch.equal(value, expected)
    return number


def _ids_of_tensordict(data: Any) -> Tensor:
    assert type(data) is TensorDict
    ids: Tensor = data["number"]
    assert data.batch_size == ids.shape
    assert data["next"].batch_size == ids.shape
    return _read(
        ids,
        (data["vector"], _vector(ids)),
        (data["next", "flag"], _flag(ids)),
        (data["next", "pixels"], _pixels(ids)),
    )


def _frame(ids: Tensor) -> Any:
    cls: Any = Frame  # the decorator adds arguments that type checkers do not see
    return cls(ids.clone(), _flag(ids), batch_size=ids.shape)


def _ids_of_frame(data: Any) -> Tensor:
    assert type(data) is Frame
    assert getattr(data, "batch_size") == data.number.shape  # noqa: B009
    return _read(data.number, (data.flag, _flag(data.number)))


def _next_ids(ids: Tensor) -> Tensor:
    """What follows: the next number, but for every fifth, where something ends."""
    return torch.where(ids % 5 == 4, -ids, ids + 1)


def _transitions(ids: Tensor) -> Any:
    after = TensorDict({"observation": _vector(_next_ids(ids)), "flag": _flag(ids)}, ids.shape)
    return TensorDict({"observation": _vector(ids), "next": after, "number": ids.clone()}, ids.shape)


TRANSITIONS = DataKind(
    "transitions",
    _transitions,
    lambda data: _read(
        data["number"],
        (data["observation"], _vector(data["number"])),
        (data["next", "observation"], _vector(_next_ids(data["number"]))),
        (data["next", "flag"], _flag(data["number"])),
    ),
)
"""For storages that make one observation from another."""


def _image(ids: Tensor, axis: int) -> Tensor:
    """uint8 ``[*ids, 5, 4, 3]``, or channels first: different for each id up to 251."""
    steps = torch.arange(60).view(5, 4, 3) if axis else torch.arange(60).view(3, 5, 4)
    return ((ids[..., None, None, None] * 7 + steps) % 251).to(torch.uint8)


IMAGES = DataKind(
    "images",
    lambda ids: TensorDict(
        {"number": ids.clone(), "last": _image(ids, 1), "in": {"first": _image(ids, 0)}}, ids.shape
    ),
    lambda data: _read(
        data["number"],
        (data["last"], _image(data["number"], 1)),
        (data["in", "first"], _image(data["number"], 0)),
    ),
)
"""For storages that encode images."""

KINDS = [
    DataKind("tensor", lambda ids: ids.clone(), lambda data: _read(data)),
    DataKind(
        "tensordict",
        lambda ids: TensorDict(
            {
                "next": {"pixels": _pixels(ids), "flag": _flag(ids)},
                "number": ids.clone(),
                "vector": _vector(ids),
            },
            ids.shape,
        ),
        _ids_of_tensordict,
    ),
    DataKind("tensorclass", _frame, _ids_of_frame),
    DataKind(
        "dict",
        lambda ids: {"number": ids.clone(), "inner": {"flag": _flag(ids)}},
        lambda data: _read(data["number"], (data["inner"]["flag"], _flag(data["number"]))),
    ),
    DataKind(
        "tuple",
        lambda ids: (_vector(ids), (ids.clone(),)),
        lambda data: _read(data[1][0], (data[0], _vector(data[1][0]))),
    ),
    DataKind(
        "namedtuple",
        lambda ids: Step(ids.clone(), _pixels(ids)),
        lambda data: _read(data.number, (data.pixels, _pixels(data.number))),
    ),
]


@dataclass
class Model:
    """The same storage as plain lists: ids of the rows, and where writing goes on."""

    capacity: int
    columns: tuple[int, ...]
    rows: dict[int, Tensor] = field(default_factory=dict)
    cursor: int = 0
    total: int = 0

    def write(self, ids: Tensor) -> list[int]:
        """Rows one by one; their slots."""
        slots = []
        for row in ids:
            self.rows[self.cursor] = row
            slots.append(self.cursor)
            self.cursor = (self.cursor + 1) % self.capacity
            self.total += 1
        return slots

    def empty(self) -> None:
        """All forgotten, except the count."""
        self.rows.clear()
        self.cursor = 0

    def all(self) -> Tensor:
        """Ids of the valid rows."""
        if not self.rows:
            return torch.empty((0, *self.columns), dtype=torch.int64)
        return torch.stack([self.rows[slot] for slot in range(len(self.rows))])


def read_ids(kind: DataKind, storage: Storage, index: Any) -> Tensor:
    """Ids of what the storage holds at ``index``."""
    data = storage.get(index)
    if isinstance(storage, LazyStackStorage) and data.batch_size:
        data = list(data.unbind(0))
    if isinstance(storage, ListStorage) and isinstance(data, list):
        return torch.stack([kind.ids(item) for item in data]) if data else torch.empty(0, dtype=torch.int64)
    return kind.ids(data)


def items_for(storage: Storage, kind: DataKind, ids: Tensor) -> Any:
    """A batch in the form that this storage takes: lists take lists of items."""
    return [kind.make(row) for row in ids] if isinstance(storage, ListStorage) else kind.make(ids)


def check_storage(storage: Storage, kind: DataKind, model: Model) -> None:
    """The storage and the model hold the same, however it is read."""
    expected = model.all()
    length = len(model.rows)
    assert len(storage) == expected.numel()
    if storage.initialized:
        assert storage.shape == expected.shape
    assert storage.log.total == model.total
    assert storage.log.cursor == model.cursor
    if not length:
        return
    assert torch.equal(read_ids(kind, storage, slice(None)), expected)
    assert torch.equal(read_ids(kind, storage, -1), expected[-1])
    backwards = list(range(length - 1, -1, -1))
    for index in (backwards, torch.tensor(backwards), range(length - 1, -1, -1), slice(None, None, -1)):
        assert torch.equal(read_ids(kind, storage, index), expected.flip(0))
    for beyond in (length, -length - 1, [0, length], torch.tensor([-length - 1])):
        with pytest.raises(IndexError, match=str(length)):
            storage.get(beyond)


def check_state(storage: Storage, fresh: Callable[[], Storage], kind: DataKind, model: Model) -> None:
    """A state can be loaded twice, is not changed by it, and pickling keeps everything."""
    state = storage.state_dict()
    for _ in range(2):
        other = fresh()
        other.load_state_dict(state)
        check_storage(other, kind, model)
    check_storage(pickle.loads(pickle.dumps(storage)), kind, model)


Factory = Callable[[int, tuple[int, ...], DataKind], Storage]

COLUMNS: list[tuple[int, ...]] = [(), (3,), (2, 2)]


def _given(rows: int, columns: tuple[int, ...], kind: DataKind) -> Storage:
    dense = LazyTensorStorage(items_in(rows, columns), ndim=1 + len(columns))
    dense.set(range(rows), kind.make(torch.zeros((rows, *columns), dtype=torch.int64)))
    return TensorStorage(dense.get(slice(None)), ndim=1 + len(columns))


def items_in(rows: int, columns: tuple[int, ...]) -> int:
    """Items of so many rows."""
    return rows * torch.Size(columns).numel()


AS_PNG: dict[Any, EncodedFrames] = {
    "last": EncodedFrames("png"),
    ("in", "first"): EncodedFrames("png", channels_first=True),
}

STORAGES: dict[str, Factory] = {
    "list": lambda rows, columns, kind: ListStorage(rows),
    "stack": lambda rows, columns, kind: LazyStackStorage(rows),
    "compressed": lambda rows, columns, kind: CompressedListStorage(rows),
    "given": _given,
    "lazy": lambda rows, columns, kind: LazyTensorStorage(items_in(rows, columns), ndim=1 + len(columns)),
    "shared": lambda rows, columns, kind: LazyTensorStorage(
        items_in(rows, columns), ndim=1 + len(columns), shared_init=True
    ),
    "derived": lambda rows, columns, kind: LazyTensorStorage(
        items_in(rows, columns), ndim=1 + len(columns), next_observation="derive"
    ),
    "derived-shared": lambda rows, columns, kind: LazyTensorStorage(
        items_in(rows, columns), ndim=1 + len(columns), next_observation="derive", shared_init=True
    ),
    "derived-memmap": lambda rows, columns, kind: LazyMemmapStorage(
        items_in(rows, columns), ndim=1 + len(columns), next_observation="derive"
    ),
    "images": lambda rows, columns, kind: LazyTensorStorage(
        items_in(rows, columns), ndim=1 + len(columns), encoded=AS_PNG
    ),
    "images-shared": lambda rows, columns, kind: LazyTensorStorage(
        items_in(rows, columns), ndim=1 + len(columns), encoded=AS_PNG, shared_init=True
    ),
    "images-memmap": lambda rows, columns, kind: LazyMemmapStorage(
        items_in(rows, columns), ndim=1 + len(columns), encoded=AS_PNG
    ),
    "memmap": lambda rows, columns, kind: LazyMemmapStorage(items_in(rows, columns), ndim=1 + len(columns)),
}

LISTS = ("list", "stack", "compressed")
