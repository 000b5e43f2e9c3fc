"""Writing in a circle: the newest items replace the oldest."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from replaybank.storages._tensordict import is_tensor_collection
from replaybank.storages.base import Storage
from replaybank.writers.base import Writer, indexed, place_grid, places


class RoundRobinWriter(Writer):
    """Item ``k`` of a batch goes to row ``(cursor + k) mod capacity``: the newest replace the oldest.

    Of a batch larger than the storage the last items stay, in order; every item given gets an index.

    Not thread-safe: the buffer's lock guards it.

    Args:
        compilable: see :class:`Writer`.

    Example:
        >>> import torch
        >>> from replaybank.storages import LazyTensorStorage
        >>> writer = RoundRobinWriter()
        >>> writer.register_storage(LazyTensorStorage(4))
        >>> writer.extend(torch.arange(3)), writer.extend(torch.arange(3, 6))
        (tensor([0, 1, 2]), tensor([3, 0, 1]))
        >>> writer.cursor, writer.write_count, writer.storage[:]
        (2, 6, tensor([4, 5, 2, 3]))
    """

    def add(self, data: Any) -> Any:
        """Write one item, or one time row of all columns. O(bytes of it).

        Returns:
            An int, or int64 ``[items, ndim]`` for more dimensions.
        """
        return self._add(data, None)

    def _add(self, data: Any, grid: Tensor | None) -> Any:
        storage = self.storage
        start = storage.log.cursor
        storage.write(start, storage.prepare(data, single=True))
        return start if storage.ndim == 1 else _written(storage, start, 1, grid)

    def extend(self, data: Any) -> Tensor:
        """Write a batch; nothing, and an empty index, for an empty one. O(bytes of it).

        Args:
            data: items along the first dimension; a list is a list of items.

        Returns:
            int64 ``[B]``, or ``[items, ndim]``, time-major, for more dimensions.
        """
        return self._extend(data, None)

    def _extend(self, data: Any, grid: Tensor | None) -> Tensor:
        storage = self.storage
        start = storage.log.cursor
        batch = storage.prepare(data)
        storage.write(start, batch)
        return _written(storage, start, batch.rows, grid)


class TensorDictRoundRobinWriter(RoundRobinWriter):
    """A :class:`RoundRobinWriter` that also stores each item's place under ``"index"``.

    The data handed in is not changed. The entry is int64 ``[B]``, or ``[B, *columns, ndim]`` for more
    dimensions. Tensorclasses, whose fields are fixed, are stored without it, and so is all data in a storage
    that already holds items without it.

    Not thread-safe: the buffer's lock guards it.

    Args:
        compilable: see :class:`Writer`.

    Example:
        >>> import torch
        >>> from tensordict import TensorDict
        >>> from replaybank.storages import LazyTensorStorage
        >>> writer = TensorDictRoundRobinWriter()
        >>> writer.register_storage(LazyTensorStorage(2))
        >>> writer.extend(TensorDict({"x": torch.arange(3)}, [3]))
        tensor([0, 1, 0])
        >>> writer.storage[:]["x"], writer.storage[:]["index"]
        (tensor([2, 1]), tensor([0, 1]))
    """

    def add(self, data: Any) -> Any:
        """Write one TensorDict; see :meth:`RoundRobinWriter.add`."""
        _check(data)
        storage = self.storage
        columns = tuple(data.batch_size[: storage.ndim - 1])
        grid = place_grid(storage, storage.log.cursor, 1, columns)
        return self._add(indexed(data, grid[0], storage), grid)

    def extend(self, data: Any) -> Tensor:
        """Write a batch of TensorDicts, or a list of them; see :meth:`RoundRobinWriter.extend`."""
        storage = self.storage
        start = storage.log.cursor
        if isinstance(data, list):
            for item in data:
                _check(item)
            columns = tuple(data[0].batch_size[: storage.ndim - 1]) if data else ()
            grid = place_grid(storage, start, len(data), columns)
            items = [indexed(item, place, storage) for item, place in zip(data, grid, strict=True)]
            return self._extend(items, grid)
        _check(data)
        if not data.batch_size:
            raise ValueError("The TensorDict has no batch dimension; use `add` for one item.")
        if not data.batch_size[0]:
            return self._extend(data, None)
        grid = place_grid(storage, start, data.batch_size[0], tuple(data.batch_size[1 : storage.ndim]))
        return self._extend(indexed(data, grid, storage), grid)


def _written(storage: Storage, start: int, rows: int, grid: Tensor | None) -> Tensor:
    """Where rows went, of which the places may be known already."""
    # In one dimension a list keeps the very places that were handed in with the data: those are the caller's.
    if grid is None or storage.ndim == 1 or grid.shape[:-1] != (rows, *storage.columns):
        return places(storage, start, rows)
    return grid.view(-1, storage.ndim)


def _check(data: Any) -> None:
    if not is_tensor_collection(data):
        raise TypeError(
            f"TensorDictRoundRobinWriter writes TensorDicts, got {type(data).__name__}: use RoundRobinWriter."
        )
