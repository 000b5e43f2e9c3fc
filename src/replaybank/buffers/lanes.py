"""Steps of several environments that wait to be written, a queue for each."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from replaybank.storages.arena import MemoryArena
from replaybank.storages.layout import Key, LeafSpec, RowLayout
from replaybank.storages.leaf_table import LeafTable

Steps = dict[Key, Tensor]
"""A step of n environments: each leaf ``[n, ...]``. Or several of one: ``[k, ...]``."""

_FIRST_PLACES = 16


class Lanes:
    """A queue of steps for each of n environments, in one ring of places for all.

    They lie in a table, one for each device: all leaves go in and out in one call, whatever their places are.

    Not thread-safe.

    Args:
        count: number of environments, n.

    Example:
        >>> lanes = Lanes(2)
        >>> lanes.put({("x",): torch.tensor([1, 2])}, np.array([True, False]))
        >>> lanes.put({("x",): torch.tensor([3, 4])}, np.array([True, True]))
        >>> lanes.waiting.tolist(), lanes.firsts()["x",].tolist(), lanes.of(0, 2)["x",].tolist()
        ([2, 1], [1, 4], [1, 3])
    """

    def __init__(self, count: int) -> None:
        self.waiting: npt.NDArray[np.int64] = np.zeros(count, dtype=np.int64)
        self._heads: npt.NDArray[np.int64] = np.zeros(count, dtype=np.int64)
        self._bases: npt.NDArray[np.int64] = np.zeros(count, dtype=np.int64)  # where each lane's places begin
        self._tables: list[tuple[list[Key], LeafTable]] = []
        self._places = 0

    def put(self, steps: Mapping[Key, Tensor], there: npt.NDArray[np.bool_]) -> None:
        """Queue a step of the environments that have one. O(bytes of it), now and then of all that waits.

        Args:
            steps: leaves ``[n, ...]``, always of the same keys, shapes and dtypes.
            there: which environments have a step.
        """
        if int(self.waiting.max()) >= self._places:
            self._grow(steps)
        # The place behind the last one of a lane is free: whoever has no step leaves nothing but noise there.
        items = torch.from_numpy(self._bases + (self._heads + self.waiting) % self._places)
        for keys, table in self._tables:
            leaves = table.fit([steps[key] for key in keys], (len(there),))
            table.scatter(items, leaves, table.items)
        self.waiting += there

    def take_back(self, there: npt.NDArray[np.bool_]) -> None:
        """Undo the last :meth:`put`. O(n)."""
        self.waiting -= there

    def firsts(self) -> Steps:
        """The oldest waiting step of each environment, ``[n, ...]``; each must have one. O(bytes)."""
        return self._at(self._bases + self._heads)

    def of(self, env: int, count: int) -> Steps:
        """The oldest ``count`` waiting steps of one environment, ``[count, ...]``. O(bytes)."""
        return self._at(self._bases[env] + (self._heads[env] + np.arange(count)) % self._places)

    def set_first(self, env: int, key: Key, value: float) -> None:
        """Replace an entry of the oldest waiting step of one environment. O(1)."""
        item = int(self._bases[env] + self._heads[env])
        for keys, table in self._tables:
            if key in keys:
                table.views[keys.index(key)][item] = value

    def forget(self, env: int | slice, count: int) -> None:
        """Drop the oldest ``count`` waiting steps of one environment, or of each. O(1), or O(n)."""
        self._heads[env] = (self._heads[env] + count) % self._places
        self.waiting[env] -= count

    def _at(self, items: npt.NDArray[np.int64]) -> Steps:
        index = torch.from_numpy(items)
        found: Steps = {}
        for keys, table in self._tables:
            found.update(zip(keys, table.gather(index, table.items), strict=True))
        return found

    def _grow(self, steps: Mapping[Key, Tensor]) -> None:
        count, places = len(self.waiting), max(2 * self._places, _FIRST_PLACES)
        bases = np.arange(count) * places
        tables = self._tables_for(steps, count * places)
        if self._places:
            old = self._bases[:, None] + (self._heads[:, None] + np.arange(self._places)) % self._places
            new = bases[:, None] + np.arange(self._places)
            for (_, table), (_, wider) in zip(self._tables, tables, strict=True):
                leaves = table.gather(torch.from_numpy(old), table.items)
                wider.scatter(torch.from_numpy(new), leaves, wider.items)
        self._tables, self._bases, self._places = tables, bases, places
        self._heads[:] = 0

    @staticmethod
    def _tables_for(steps: Mapping[Key, Tensor], items: int) -> list[tuple[list[Key], LeafTable]]:
        by_device: dict[torch.device, list[Key]] = {}
        for key, leaf in steps.items():
            by_device.setdefault(leaf.device, []).append(key)
        tables = []
        for device, keys in by_device.items():
            specs = [LeafSpec(key, steps[key].dtype, tuple(steps[key].shape[1:])) for key in keys]
            # As in a storage: rows that mix leaves are for cache lines, which a GPU does not need.
            plain = RowLayout(specs, [None] * len(specs), 0)
            layout = RowLayout.plan(specs) if device.type == "cpu" else plain
            tables.append((keys, LeafTable.allocate(layout, (items,), MemoryArena(device), device)))
        return tables
