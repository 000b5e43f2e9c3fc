"""Priorities on their way from samples of an ensemble to the buffers that the items came from."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from tensordict import is_tensor_collection
from torch import Tensor

from replaybank.buffers.replay_buffer import ReplayBuffer
from replaybank.buffers.tensordict import GENERATION, INDEX, TensorDictReplayBuffer, takes_priorities
from replaybank.samplers.ensemble_index import flat_of, items_of
from replaybank.storages.ensemble import item_index

_BUFFER_IDS = "buffer_ids"
_DEFAULT_KEY = "td_error"  # of buffers that name none


class Shares:
    """An index into an ensemble, taken apart into what concerns each buffer.

    Args:
        buffers: those of the ensemble.
        index: ``"buffer_ids"`` and ``"index"``, as they were sampled or flattened together.
        priority: a number, or one an item; None: there are none.
        generation: stamps of the items, or None.

    Raises:
        TypeError: the index does not say which buffers.
        IndexError: there is no such buffer or item.
        RuntimeError: numbers of priorities or stamps are not that of the items.
        ValueError: a priority is negative, NaN or infinite.
    """

    def __init__(self, buffers: Sequence[ReplayBuffer], index: Any, priority: Any, generation: Any) -> None:
        values = None if priority is None else flat_of(priority).detach()
        self._buffers = buffers
        self._ids, self._places = items_of(index, None if values is None else values.numel())
        self._priority = None if values is None else self._one_each(values, "priorities")
        self._stamps = None if generation is None else self._one_each(flat_of(generation), "generations")
        wrong = self._ids[(self._ids < 0) | (self._ids >= len(buffers))]
        if wrong.numel():
            raise IndexError(f"There is no buffer {int(wrong[0])}: the ensemble has {len(buffers)}.")
        if values is not None:
            bad = values[~values.isfinite() | (values < 0)]
            if bad.numel():
                raise ValueError(
                    f"A priority of {bad[0].item()}: give finite numbers of at least 0. Nothing has been "
                    "changed."
                )

    def _one_each(self, values: Tensor, what: str) -> Tensor:
        count = len(self._ids)
        if values.numel() not in (1, count):
            raise RuntimeError(f"{values.numel()} {what} were given for {count} items.")
        return values.to(self._ids.device).expand(count)

    def _each(self) -> Iterator[tuple[ReplayBuffer, Tensor, Tensor]]:
        for number in self._ids.unique().tolist():
            chosen = self._ids == number
            part = self._buffers[number]
            yield part, chosen, _rows(self._places[chosen], part.storage.ndim)

    def update_priorities(self) -> None:
        """Set the priorities, in the buffers whose samplers have some; all or none."""
        shares = [share for share in self._each() if takes_priorities(share[0].sampler)]
        if not shares:
            for part, chosen, rows in self._each():
                part.update_priority(rows, _given(self._priority)[chosen])  # it warns
            return
        for part, _, rows in shares:
            _check_range(rows, part)
        for part, chosen, rows in shares:
            stamps = {} if self._stamps is None else {"generation": self._stamps[chosen]}
            part.update_priority(rows, _given(self._priority)[chosen], **stamps)

    def mark_updates(self) -> None:
        """Tell the samplers that the items have changed."""
        for part, _, rows in self._each():
            part.mark_update(rows)


def _given(priority: Tensor | None) -> Tensor:
    return torch.zeros(0) if priority is None else priority


def _rows(places: Tensor, ndim: int) -> Tensor:
    """Rows of an ensemble's index as an index of one buffer: ``[n]``, or ``[n, ndim]``."""
    index = item_index(places, ndim)
    return index if isinstance(index, Tensor) else torch.stack(index, -1)


def _check_range(rows: Tensor, part: ReplayBuffer) -> None:
    """See to it that all items are there before a priority of any is changed; -1 is none.

    Raises:
        IndexError: one is not.
    """
    shape = torch.tensor(part.storage.shape if rows.ndim > 1 else [len(part)])
    table = rows.reshape(len(rows), -1).cpu()
    bad = (((table < 0) | (table >= shape)).any(-1)) & ~(table == -1).all(-1)
    if bool(bad.any()):
        raise IndexError(
            f"Index {table[bad][0].tolist()} is out of range: the buffer it is said to come from holds "
            f"{shape.tolist()}. Nothing has been changed."
        )


def rows_by_part(data: Any, buffers: Sequence[ReplayBuffer]) -> Iterator[tuple[ReplayBuffer, Any]]:
    """What samples of an ensemble say to each buffer, as TensorDicts like those that it gives itself.

    Only the entries that the buffer asks for are in it.

    Args:
        data: a sample of an ensemble, whole, reshaped or indexed.
        buffers: those of the ensemble.

    Raises:
        KeyError: there is no index in the data.
        TypeError: its index does not say which buffers.
        IndexError: there is no such buffer.
    """
    index = data.get(INDEX, None)
    if index is None:
        raise KeyError(
            f"The TensorDict has no entry 'index', only {sorted(map(str, data.keys()))}: give one that came "
            "from sample(), or use update_priority(index, priority)."
        )
    if not is_tensor_collection(index) or _BUFFER_IDS not in set(index.keys()):
        raise TypeError(
            "The entry 'index' does not say which buffer an item is from: give a sample of this ensemble, or "
            "ask the buffer itself, ensemble[i].update_tensordict_priority(...)."
        )
    if data.batch_dims > 1:
        rows = data.unbind(0)
        if all(
            bool((row[INDEX, _BUFFER_IDS] == row[INDEX, _BUFFER_IDS].flatten()[:1]).all()) for row in rows
        ):
            for row in rows:
                if row.numel():
                    part = _part(buffers, int(row[INDEX, _BUFFER_IDS].flatten()[0]))
                    yield part, _of_part(row, part)
            return
        data = data.reshape(-1)
    elif data.batch_dims == 0:
        data = data.unsqueeze(0)
    ids = data[INDEX, _BUFFER_IDS]
    for number in ids.unique().tolist():
        part = _part(buffers, number)
        yield part, _of_part(data, part, ids == number)


def _part(buffers: Sequence[ReplayBuffer], number: int) -> ReplayBuffer:
    if not 0 <= number < len(buffers):
        raise IndexError(f"There is no buffer {number}: the ensemble has {len(buffers)}.")
    return buffers[number]


def take_priorities(part: ReplayBuffer, rows: Any) -> None:
    """Hand a buffer what :func:`rows_by_part` found for it."""
    if isinstance(part, TensorDictReplayBuffer):
        part.update_tensordict_priority(rows)
    elif takes_priorities(part.sampler):
        priority, stamps = rows.get(_DEFAULT_KEY, None), rows.get(GENERATION, None)
        if priority is None:
            part.mark_update(rows[INDEX])
            return
        if priority.ndim > 1:
            priority = priority.flatten(1).amax(-1)
        part.update_priority(rows[INDEX], priority, generation=stamps)


def _of_part(data: Any, part: ReplayBuffer, chosen: Tensor | None = None) -> Any:
    """The index of one part's items, their stamps and their priorities."""
    key = getattr(part, "priority_key", _DEFAULT_KEY)
    wanted = data.select(INDEX, key, GENERATION, strict=False)
    if chosen is not None:
        wanted = wanted[chosen]
    places = wanted[INDEX, "index"]
    width = places.ndim - wanted.batch_dims
    index = _rows(places.reshape(-1, *places.shape[wanted.batch_dims :]), part.storage.ndim)
    wanted = wanted.exclude(INDEX)
    return wanted.set(INDEX, index.reshape(*wanted.batch_size, *index.shape[1:]) if width else places)
