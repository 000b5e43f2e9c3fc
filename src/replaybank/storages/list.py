"""Any Python objects in a list."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from typing import Any

import torch
from tensordict import is_tensor_collection
from torch import Tensor

from replaybank import showing
from replaybank.storages.base import Batch, Storage, entry
from replaybank.storages.capacity import check_memory, whole_number
from replaybank.storages.indexing import Run
from replaybank.storages.log_header import checked_state
from replaybank.storages.log_states import check_log, cursor_and_length, moved_state, resize_log
from replaybank.storages.resize import Move, move_to
from replaybank.storages.torch_indexing import out_of_range

UNBOUNDED = sys.maxsize
"""Capacity of a list without ``max_size``."""

_FIRST_ROWS = 1024  # of the log of an unbounded list; doubled as the list grows


class ListStorage(Storage):
    """Any Python objects, kept as they are: ``get`` gives back the object that was written, not a copy.

    A list written with ``extend`` is a list of items; a tensor, an array or a TensorDict is taken apart along
    its first dimension. ``get`` of several items gives a list.

    Not thread-safe: the buffer's lock guards it.

    Args:
        max_size: capacity; without it the list grows as needed.
        device: tensors and TensorDicts are moved there when they are written; None leaves all as it is.
        compilable: see :class:`~replaybank.storages.base.Storage`.

    Example:
        >>> storage = ListStorage(10)
        >>> storage.set(range(2), ["a", {"b": 1}])
        >>> storage[1], storage[[0, -1]]
        ({'b': 1}, ['a', {'b': 1}])
    """

    def __init__(
        self,
        max_size: int | None = None,
        *,
        device: torch.device | str | None = None,
        compilable: bool = False,
    ) -> None:
        if max_size is not None:
            max_size = whole_number(max_size, "max_size")
        bounded = max_size is not None and max_size < UNBOUNDED
        self._bound = max_size if bounded else None
        rows = self._bound or _FIRST_ROWS
        check_memory(
            rows,
            f"The log of a storage of {rows} items",
            advice="Ask for fewer items, or leave max_size out: the list then grows as needed.",
        )
        super().__init__(rows, 1, None if device is None else torch.device(device), compilable=compilable)
        self._items: list[Any] = []

    @property
    def rows(self) -> int:
        """Capacity."""
        return self._bound or UNBOUNDED

    @property
    def initialized(self) -> bool:
        """Always: a list takes anything."""
        return True

    def prepare(self, data: Any, *, single: bool = False) -> Batch:
        """Take data apart into items. O(B)."""
        items = [data] if single else _items_of(data)
        if self.device is not None:
            items = [_moved(item, self.device) for item in items]
        return Batch(len(items), self._kept(items), single)

    def _kept(self, items: list[Any]) -> list[Any]:
        """Items in the form in which they are kept. Raises for what cannot be."""
        return items

    def _given(self, kept: list[Any]) -> list[Any]:
        """Items as the user sees them, of their kept form."""
        return kept

    def _together(self, items: list[Any]) -> Any:
        """What is given for several items."""
        return items

    def _part(self, batch: Batch, first: int, count: int) -> Batch:
        return Batch(count, batch.content[first : first + count])

    def _store_run(self, start: int, batch: Batch, skip: int) -> None:
        items = batch.content[skip:] if skip else batch.content
        if self._bound is None and start + len(items) >= self.log.rows:
            # Grown before it is full, so that the log never wraps.
            resize_log(self.log, 2 * (start + len(items)))
        rows = self.rows
        room = min(len(items), rows - start)
        if start > len(self._items):  # a batch larger than the list fills what lies before as well
            self._items.extend([None] * (start - len(self._items)))
        self._items[start : start + room] = items[:room]
        if room < len(items):
            self._items[: len(items) - room] = items[room:]

    def _store_items(self, items: Run | Tensor, data: Any) -> None:
        if isinstance(items, Run) and not items.lead:
            self._items[items.start] = self.prepare(data, single=True).content[0]
            return
        numbers = self._numbers(items)
        values = self.prepare(data).content
        if len(values) != len(numbers):
            raise ValueError(f"{len(values)} items for {len(numbers)} places. Nothing has been written.")
        for number, value in zip(numbers, values, strict=True):
            self._items[number] = value

    def _numbers(self, items: Run | Tensor) -> Sequence[int]:
        if isinstance(items, Run):
            return range(items.start, items.start + items.size)
        length = len(self)
        numbers = items.reshape(-1).tolist()
        for number in numbers:
            if not -length <= number < length:
                raise out_of_range(number, length)
        return numbers

    def _read_run(self, run: Run) -> Any:
        found = self._given(self._items[run.start : run.start + run.size])
        return self._together(found) if run.lead else found[0]

    def _read_items(self, items: Tensor) -> Any:
        numbers = self._numbers(items)
        found = self._given([self._items[number] for number in numbers])
        return self._together(found) if items.ndim else found[0]

    def empty(self) -> None:
        """Forget all items."""
        self.log.clear()
        self._items.clear()

    def state_dict(self, *, copy: bool = True) -> dict[str, Any]:
        """The state. O(N).

        Args:
            copy: the items are in it as deep copies, whatever they are; False: as they are.
        """
        items = self._items[: len(self)]
        return {"log": self.log.state_dict(), "items": deepcopy(items) if copy else items}

    def move_of(self, state_dict: Mapping[str, Any]) -> Move | None:
        """Where the items of a state come to lie; see the base class."""
        log = entry(state_dict, "log", dict)
        checked_state(log)
        if self._bound is not None:
            return move_to(log, self._bound, 1)
        rows, (_, length) = len(log["cut"]), cursor_and_length(log)
        return move_to(log, 2 * rows if length == rows else rows, 1)  # a list without a bound is never full

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Take over a state; ``state_dict`` stays the caller's. O(N).

        Raises:
            ValueError: it holds more than there is room for; nothing has been changed.
            DataFormatError: it is damaged; nothing has been changed.
        """
        log, items = entry(state_dict, "log", dict), entry(state_dict, "items", list)
        rows = check_log(log, len(items))
        items = deepcopy(items)
        move = self.move_of(state_dict)
        if move is not None:
            log, items = moved_state(log, move.rows, move.first), items[move.first :] + items[: move.first]
        if self._bound is None:
            resize_log(self.log, rows if move is None else move.rows)
        self.log.load_state_dict(log)
        self._items = items

    def _facts(self) -> dict[str, Any]:
        told = super()._facts()
        return told if self._bound is not None else {**told, "max_size": showing.Words("unbounded")}


def _items_of(data: Any) -> list[Any]:
    if isinstance(data, list):
        return data
    if is_tensor_collection(data) or isinstance(data, Tensor):
        return list(data.unbind(0))
    if (
        hasattr(data, "__len__")
        and hasattr(data, "__getitem__")
        and not isinstance(data, str | bytes | Mapping)
    ):
        return list(data)
    raise TypeError(
        f"A {type(data).__name__} is no sequence of items: give a list of them, or one item to `add`."
    )


def _moved(item: Any, device: torch.device) -> Any:
    move: Callable[..., Any] | None = getattr(item, "to", None)
    if move is not None and (isinstance(item, Tensor) or is_tensor_collection(item)):
        return move(device)
    return item
