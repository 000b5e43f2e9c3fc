"""Keeping the best: an item is written only if it outranks the worst that is there."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping
from typing import Any

import torch
from tensordict import TensorDictBase, is_tensor_collection
from torch import Tensor

from replaybank.errors import MissingKeyError
from replaybank.storages.base import Storage
from replaybank.storages.resize import Move
from replaybank.storages.write_log import LogMark
from replaybank.writers.base import Writer, indexed

NOT_KEPT = -1
"""What stands in the index for an item that was not kept."""

_REDUCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "sum": lambda values: values.sum(-1),
    "max": lambda values: values.amax(-1),
    "min": lambda values: values.amin(-1),
    "mean": lambda values: values.mean(-1),
    "median": lambda values: values.median(-1).values,  # of an even number, the lower middle one
}


class TensorDictMaxValueWriter(Writer):
    """Keeps the items with the highest rank: when the storage is full, a better one replaces the worst.

    The rank of an item, a step or a whole trajectory, is what ``reduction`` makes of all its values under
    ``rank_key``. Of equal ranks the older item stays. Items are stored with their place under ``"index"``
    (tensorclasses, whose fields are fixed, without it); the data handed in is not changed.

    Ranks are read from the storage where others have written to it, so they are never stale.

    Not thread-safe: the buffer's lock guards it.

    Args:
        rank_key: entry that ranks an item; ``("next", "reward")`` by default.
        reduction: ``"sum"``, ``"max"``, ``"min"``, ``"mean"`` or ``"median"`` of its values.
        compilable: see :class:`Writer`.

    Raises:
        ValueError: an unknown reduction.

    Example:
        >>> from tensordict import TensorDict
        >>> from replaybank.storages import LazyTensorStorage
        >>> writer = TensorDictMaxValueWriter(rank_key="score")
        >>> writer.register_storage(LazyTensorStorage(2))
        >>> writer.extend(TensorDict({"score": torch.tensor([1.0, 5.0, 3.0, 0.0])}, [4]))
        tensor([-1,  1,  0, -1])
        >>> writer.storage[:]["score"]
        tensor([3., 5.])
    """

    keeps_all = False

    def __init__(
        self,
        rank_key: str | tuple[str, ...] | None = None,
        reduction: str = "sum",
        *,
        compilable: bool = False,
    ) -> None:
        super().__init__(compilable=compilable)
        if reduction not in _REDUCTIONS:
            raise ValueError(f"reduction={reduction!r}: give one of {', '.join(_REDUCTIONS)}.")
        key = ("next", "reward") if rank_key is None else rank_key
        self._rank_key: tuple[str, ...] = (key,) if isinstance(key, str) else tuple(key)
        self.reduction = reduction
        # The worst first; of equal ranks the youngest, so that the older ones stay: (rank, -age, slot).
        self._heap: list[tuple[float, int, int]] = []
        self._ages: list[int] = []  # a slot; the older an item, the smaller
        self._next_age = 0
        self._mark: LogMark | None = None

    @property
    def rank_key(self) -> tuple[str, ...]:
        """Entry that ranks an item."""
        return self._rank_key

    def register_storage(self, storage: Storage) -> None:
        """Write to ``storage`` from now on.

        Raises:
            ValueError: it has more than one batch dimension.
        """
        if storage.ndim > 1:
            raise ValueError(
                f"A TensorDictMaxValueWriter ranks single items, and this {type(storage).__name__} has "
                f"ndim={storage.ndim}: use ndim=1, with whole trajectories as items if needed."
            )
        if storage is not self._storage:
            self._ages, self._mark = [], None
        super().register_storage(storage)

    def add(self, data: Any) -> int | None:
        """Write one item if it outranks the worst, or if there is room. O(log N).

        Returns:
            Where it went, or None if it was not kept.

        Raises:
            RuntimeError: the data is no TensorDict.
            KeyError: it lacks the rank key.
            ValueError: the rank is NaN.
        """
        _check(data)
        ranks = self._ranks(_value(data, self._rank_key).unsqueeze(0))
        slots = self._place(ranks)
        slot = int(slots[0])
        if slot < 0:
            return None
        self._write(slots, lambda _: [indexed(data, torch.tensor(slot), self.storage)])
        return slot

    def extend(self, data: Any) -> Tensor:
        """Write the items that outrank the worst. O(B log N).

        Args:
            data: a TensorDict ``[B, ...]``, or a list of them, one an item.

        Returns:
            int64 ``[B]``: where each item lies now, -1 for those that were not kept.

        Raises:
            RuntimeError: the data is no TensorDict.
            KeyError: it lacks the rank key.
            ValueError: a rank is NaN; nothing has been written.
        """
        if isinstance(data, list):
            for item in data:
                _check(item)
            ranks = [r for item in data for r in self._ranks(_value(item, self._rank_key).unsqueeze(0))]
        else:
            _check(data)
            if not data.batch_size:
                raise ValueError("The TensorDict has no batch dimension; use `add` for one item.")
            if data.batch_size[0] == 0:
                return self._index([])
            ranks = self._ranks(_value(data, self._rank_key))
        slots = self._place(ranks)
        kept = [number for number, slot in enumerate(slots) if slot >= 0]
        if kept:
            self._write(slots, lambda order: _chosen(data, order, slots, self.storage))
        return self._index(slots)

    def empty(self, empty_write_count: bool = True) -> None:
        """The storage was emptied."""
        super().empty(empty_write_count)
        self._ages, self._mark = [], None

    def state_dict(self) -> dict[str, Any]:
        """The state: what the others keep, and how old each item is."""
        if self._storage is not None:
            self._follow()
        ages = torch.tensor(self._ages, dtype=torch.int64)
        return {**super().state_dict(), "ages": ages, "next_age": self._next_age}

    def moved(self, state_dict: Mapping[str, Any], move: Move) -> Mapping[str, Any]:
        """A state for a storage whose rows have moved: every item keeps its age."""
        return {**state_dict, "ages": move.turned(state_dict["ages"])}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Take over a state; ranks are read from the storage when they are needed."""
        super().load_state_dict(state_dict)
        self._ages = state_dict["ages"].tolist()
        self._next_age = int(state_dict["next_age"])
        self._mark = None

    # --- where items go --------------------------------------------------------------------------------

    def _place(self, ranks: list[float]) -> list[int]:
        """A slot for each item in turn, -1 where it is not kept in the end. Writes only the heap."""
        self._follow()
        heap, capacity = self._heap, self.storage.rows
        slots = [NOT_KEPT] * len(ranks)
        holders: dict[int, int] = {}
        for number, rank in enumerate(ranks):
            age = self._next_age + number
            if len(heap) < capacity:
                slot = len(heap)
                heapq.heappush(heap, (rank, -age, slot))
            elif rank > heap[0][0]:
                slot = heap[0][2]
                heapq.heapreplace(heap, (rank, -age, slot))
            else:
                continue
            if slot in holders:
                slots[holders[slot]] = NOT_KEPT
            holders[slot], slots[number] = number, slot
        return slots

    def _write(self, slots: list[int], content: Callable[[list[int]], Any]) -> None:
        """Store the items that were placed, and note it."""
        order = sorted((number for number, slot in enumerate(slots) if slot >= 0), key=slots.__getitem__)
        self._mark = None  # until all is written: an error leaves the heap to be made anew
        storage = self.storage
        storage.set([slots[number] for number in order], content(order))
        self._ages.extend([0] * (storage.log.length - len(self._ages)))
        for number in order:
            self._ages[slots[number]] = self._next_age + number
        self._next_age += len(slots)
        self._mark = storage.log.mark()

    def _index(self, slots: list[int]) -> Tensor:
        return torch.tensor(slots, dtype=torch.int64, device=self.storage.device)

    # --- what the storage holds ------------------------------------------------------------------------

    def _follow(self) -> None:
        """Read what others have written since. O(1) where nobody has, else O(N)."""
        log = self.storage.log
        changes = log.changes(self._mark)
        if not changes.everything and not changes.runs:
            return
        length = log.length
        known = {} if self._mark is None else {slot: (rank, age) for rank, age, slot in self._heap}
        if changes.everything:
            fresh = list(range(length))
            if len(self._ages) != length:  # nobody knows better: the slot behind the cursor is the oldest
                first = log.cursor if length == log.rows else 0
                self._ages = [self._next_age + (slot - first) % length for slot in range(length)]
                self._next_age += length
        else:
            fresh = sorted({(s + k) % log.rows for s, count in changes.runs for k in range(count)})
            self._ages.extend([0] * (length - len(self._ages)))
            for start, count in changes.appended:
                for k in range(count):
                    self._ages[(start + k) % log.rows] = self._next_age
                    self._next_age += 1
        if fresh:
            for slot, rank in zip(fresh, self._ranks(self._stored(fresh)), strict=True):
                known[slot] = (rank, 0)
        self._heap = [(rank, -self._ages[slot], slot) for slot, (rank, _) in known.items()]
        heapq.heapify(self._heap)
        self._mark = log.mark()

    def _stored(self, slots: list[int]) -> Tensor | list[Tensor]:
        storage = self.storage
        if self._rank_key in storage.leaf_keys():
            return storage.read_leaf(self._rank_key, torch.tensor(slots))
        items = [storage.get(slot) for slot in slots]
        for item in items:
            _check(item)
        return [_value(item, self._rank_key) for item in items]

    def _ranks(self, values: Tensor | list[Tensor]) -> list[float]:
        """One number an item, as if its values had been stored and read. O(values)."""
        reduce = _REDUCTIONS[self.reduction]
        if isinstance(values, list):
            ranks = torch.stack([reduce(value.reshape(-1).to("cpu", torch.float64)) for value in values])
        else:
            storage = self.storage
            if storage.initialized and self._rank_key in storage.leaf_keys():
                values = values.to(storage.read_leaf(self._rank_key, slice(0, 0)).dtype)
            ranks = reduce(values.reshape(values.shape[0], -1).to("cpu", torch.float64))
        if bool(ranks.isnan().any()):
            at = int(ranks.isnan().nonzero()[0])
            raise ValueError(
                f"The rank of item {at} is NaN ({self.reduction} of {self._rank_key}): it cannot be ranked. "
                "Nothing has been written."
            )
        return list(ranks.tolist())


def _check(data: Any) -> None:
    if not is_tensor_collection(data):
        raise RuntimeError(
            f"TensorDictMaxValueWriter ranks TensorDicts, got {type(data).__name__}: use RoundRobinWriter."
        )


def _value(data: TensorDictBase, key: tuple[str, ...]) -> Tensor:
    value = data.get(key, None)
    if not isinstance(value, Tensor) or not value.numel():
        what = "no entry" if value is None else "nothing to rank"
        raise MissingKeyError(
            f"There is {what} under the rank key {key!r}; there are "
            f"{sorted(map(str, data.keys(True, True)))}. Nothing has been written."
        )
    return value.detach()


def _chosen(data: Any, order: list[int], slots: list[int], storage: Storage) -> Any:
    index = torch.tensor([slots[number] for number in order])
    if isinstance(data, list):
        return [indexed(data[number], place, storage) for number, place in zip(order, index, strict=True)]
    chosen = data[torch.tensor(order)] if len(order) < len(slots) or order != sorted(order) else data
    return indexed(chosen, index, storage)
