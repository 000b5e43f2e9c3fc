"""What every writer does: it decides where data goes, and says where it went."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from tensordict import TensorDictBase
from torch import Tensor

from replaybank import showing
from replaybank.checkpoint import Stateful
from replaybank.errors import DataFormatError
from replaybank.storages._tensordict import is_tensorclass, with_entry
from replaybank.storages.base import Storage, entry
from replaybank.storages.resize import Move


class Writer(Stateful):
    """Decides where in a storage new items go.

    The cursor and the count of what was written have their one home in ``storage.log``, so that two writers
    on one storage agree; a writer itself keeps only where it began to count.

    Not thread-safe: the buffer's lock guards it.

    Args:
        compilable: accepted for code that passes it; see :class:`~replaybank.storages.base.Storage`.

    Attributes:
        keeps_all: every item is written; otherwise the index has -1 for those that are not.
    """

    keeps_all = True

    def __init__(self, *, compilable: bool = False) -> None:
        self.compilable = compilable
        self._storage: Storage | None = None
        self._counted_from = 0

    def register_storage(self, storage: Storage) -> None:
        """Write to ``storage`` from now on.

        Args:
            storage: it may hold items; its cursor stays where it is.
        """
        self._storage = storage

    @property
    def storage(self) -> Storage:
        """The storage written to.

        Raises:
            RuntimeError: there is none yet.
        """
        if self._storage is None:
            raise RuntimeError(
                f"This {type(self).__name__} has no storage: give it to a replay buffer, or call "
                "register_storage first."
            )
        return self._storage

    @property
    def cursor(self) -> int:
        """Row along time that the next item goes to."""
        return self.storage.log_as_is.cursor

    @property
    def write_count(self) -> int:
        """Rows along time ever written to the storage."""
        return self.storage.log_as_is.total - self._counted_from

    @abstractmethod
    def add(self, data: Any) -> Any:
        """Write one item, or one time row of all columns.

        Args:
            data: the item, without a batch dimension.

        Returns:
            Where it went: an int, or int64 ``[items, ndim]`` for more dimensions; None if it was not kept.
        """

    @abstractmethod
    def extend(self, data: Any) -> Tensor:
        """Write a batch.

        Args:
            data: items ``[B, ...]``, as the storage takes them.

        Returns:
            Where each item went: int64 ``[B]``, or ``[items, ndim]``, time-major, for more dimensions.
        """

    def empty(self, empty_write_count: bool = True) -> None:
        """The storage was emptied. The cursor is the log's; the count starts again, if wanted.

        Args:
            empty_write_count: count writes from zero again.
        """
        if empty_write_count:
            self._counted_from = self.storage.log.total

    def state_dict(self) -> dict[str, Any]:
        """The state as plain values. The cursor is in the storage's state."""
        return {"write_count": 0 if self._storage is None else self.write_count}

    def moved(self, state_dict: Mapping[str, Any], move: Move) -> Mapping[str, Any]:
        """A state of such a writer for a storage whose rows have moved; that itself is not changed.

        Args:
            state_dict: what :meth:`state_dict` gave.
            move: where the rows come to lie.
        """
        return state_dict

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Take over a state, once the storage has taken over its own.

        What the storage's log has counted may be more than it had when the state was saved.

        Args:
            state_dict: what :meth:`state_dict` gave.

        Raises:
            DataFormatError: it is no such state; nothing has been changed.
        """
        count = entry(state_dict, "write_count", int)
        if isinstance(count, bool) or not 0 <= count < 1 << 62:
            raise DataFormatError(f"The writer's state is damaged: it has counted {count!r} rows.")
        self._counted_from = self.storage.log.total - count

    def _facts(self) -> dict[str, Any]:
        """What its repr tells."""
        if self._storage is None:
            return {"": showing.Words("no storage")}
        return {"cursor": self.cursor, "write_count": self.write_count}

    def __repr__(self) -> str:
        return showing.text_of(self)

    def _repr_html_(self) -> str:
        return showing.html_of(self)


def places(storage: Storage, start: int, rows: int) -> Tensor:
    """Indices of the items of ``rows`` time rows from ``start`` on, modulo the capacity. O(items).

    Returns:
        int64 ``[rows]``, or ``[rows * columns, ndim]``, time-major, for more dimensions.
    """
    if storage.ndim == 1:
        return _time(storage, start, rows, storage.rows)
    if not rows:  # of a storage without items, of which the columns are not known
        return torch.empty((0, storage.ndim), dtype=torch.int64, device=storage.device)
    return place_grid(storage, start, rows, storage.columns).view(-1, storage.ndim)


def place_grid(storage: Storage, start: int, rows: int, columns: tuple[int, ...]) -> Tensor:
    """The same, shaped like the data: ``[rows]``, or ``[rows, *columns, ndim]`` for more dimensions."""
    capacity = storage.rows_with(columns)
    if storage.ndim == 1:
        return _time(storage, start, rows, capacity)
    # NumPy fills this in a fifth of the time that torch's meshgrid and stack take for a row.
    grid = torch.empty((rows, *columns, 1 + len(columns)), dtype=torch.int64)
    numbers = grid.numpy()
    time = np.arange(start, start + rows)
    if start + rows > capacity:
        time %= capacity
    for axis, along in enumerate((time, *map(np.arange, columns))):
        numbers[..., axis] = along.reshape(-1, *[1] * (len(columns) - axis))
    device = storage.device
    return grid if device is None or device.type == "cpu" else grid.to(device)


def _time(storage: Storage, start: int, rows: int, capacity: int) -> Tensor:
    device = storage.device
    time = (
        torch.arange(start, start + rows)
        if device is None
        else torch.arange(start, start + rows, device=device)
    )
    return time if start + rows <= capacity else time.remainder_(capacity)


def indexed(data: TensorDictBase, index: Tensor, storage: Storage) -> TensorDictBase:
    """``data`` with the places of its items, at every step of items that are trajectories. O(entries).

    Args:
        data: an item or a batch; a tensorclass, whose fields are fixed, is given back as it is.
        index: int64, the places: ``[*batch]``, with ``[ndim]`` behind for ``ndim > 1``.
        storage: where it goes. One that holds data without an entry for places gets none now, in which those
            of the items that are there would be wrong.
    """
    keys = storage.leaf_keys()
    if is_tensorclass(data) or (keys and ("index",) not in keys):
        return data
    place = index.shape[index.ndim - (storage.ndim > 1) :]
    lead = index.shape[: index.ndim - len(place)]
    extra = data.batch_dims - len(lead)
    if extra:
        index = index.reshape(*lead, *[1] * extra, *place).expand(*data.batch_size, *place)
    return with_entry(data, "index", index)
