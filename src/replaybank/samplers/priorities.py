"""The priorities of a storage's items: what prioritized samplers share."""

from __future__ import annotations

import math
from collections.abc import Mapping, MutableSequence
from typing import Any

import torch
from torch import Tensor

from replaybank.samplers.arguments import whole
from replaybank.samplers.base import SampledStorage
from replaybank.samplers.exponents import ALPHA, BETA, EPS, LARGEST, Exponents
from replaybank.samplers.generations import stale_items
from replaybank.samplers.item_index import item_numbers, shape_of_index, values_of
from replaybank.samplers.priority_state import checked_state
from replaybank.samplers.processes import is_alive, this_process
from replaybank.samplers.uniforms import Uniforms
from replaybank.storages.write_log import WriteLog
from replaybank.weights.sum_tree import SumTree

# Whole numbers of the state. The epoch and the total are the log's at the last look; KNOWN is the number of
# items that had a weight then; the last two belong to slices.
EPOCH, TOTAL, KNOWN, NEEDED, FIRST_STEPS = range(5)
# How often a change that was broken off has been made good, and who is at it (a process, 0 for none).
REPAIRS, _CHANGING = 6, 7

_MOST = 1 << 50
"""Items that an address space could hold; more is a mistake that no allocation would explain."""

_UNSEEN, _LOADED = -1, -2
"""In place of an epoch: no storage has been looked at; a state was loaded, and its storage not yet seen."""


class PriorityTable:
    """A weight ``(priority + eps)^alpha`` for every item of a storage, kept current by its write log.

    New items get the weight of the largest priority, whoever wrote them; an item whose content was replaced
    in its place keeps its own. What has been followed is part of the state, so that processes that share a
    table do not give new items their first weight twice.

    Not thread-safe: the sampler's lock guards it. Shared between processes after :meth:`share_memory_`;
    between processes, the buffer's lock guards it.

    Args:
        capacity: number of items there is room for; None: as many as the storage that is followed has.
        alpha: exponent of priorities.
        beta: exponent of importance weights.
        eps: added to priorities.
        dtype: of the weights.
        within_buffer: the largest priority is that of the items now there, not of all there ever were.
        on_cpu: the weights stay on the CPU, wherever the storage is.
    """

    def __init__(
        self,
        capacity: int | None,
        alpha: float | Tensor,
        beta: float | Tensor,
        eps: float,
        dtype: torch.dtype,
        within_buffer: bool,
        *,
        on_cpu: bool = False,
    ) -> None:
        if dtype not in (torch.float32, torch.float64):
            raise NotImplementedError(
                f"dtype={dtype}: priorities are kept in torch.float32 or torch.float64."
            )
        self.grows = capacity is None
        capacity = 1 if capacity is None else whole("max_capacity", capacity)
        if capacity > _MOST:
            raise ValueError(f"max_capacity={capacity}: give at most {_MOST}.")
        self.within_buffer = within_buffer
        self.on_cpu = on_cpu
        self.tree = SumTree(capacity, dtype)
        self.ints = torch.zeros(8, dtype=torch.int64)
        self.exponents = Exponents(eps)
        self._view()
        self._forget_storage()
        self.number[EPOCH] = _UNSEEN
        self._uniforms = Uniforms()
        self.set_exponent(ALPHA, alpha)
        self.set_exponent(BETA, beta)

    def _view(self) -> None:
        # A tensor element takes microseconds to read, a memoryview's 40 ns; other processes' writes show too.
        self.number: MutableSequence[int] = memoryview(self.ints.numpy())  # type: ignore[arg-type, assignment]

    def _forget_storage(self) -> None:
        self._log: WriteLog | None = None
        self._unshaped: SampledStorage | None = None
        self._ndim = 1
        self._columns: tuple[int, ...] = ()
        self._width = 1
        # Items that were given weight 0 before any storage was seen: others have it for want of any.
        self._zeroed: set[int] = set()

    # ---- alpha, beta, eps

    def set_exponent(self, which: int, value: float | Tensor) -> bool:
        """Set ``alpha`` or ``beta``; whether the weights have changed. O(N) for another ``alpha``.

        Raises:
            TypeError: it is no number.
            ValueError: it is negative, infinite or NaN, or makes weights too large; nothing has been changed.
        """
        exponents = self.exponents
        number = exponents.checked(which, value)
        changed = which == ALPHA and number != exponents.real[ALPHA]
        if changed:
            self.catch_up()
            exponents.reweight(self.tree, self._limit(), self.number[KNOWN], number)
        exponents.keep(which, value, number)
        return changed

    def heed_alpha(self) -> bool:
        """Whether ``alpha``, given as a tensor, was changed in its place, and with it now all weights."""
        given = self.exponents.given[ALPHA]
        return isinstance(given, Tensor) and self.set_exponent(ALPHA, given)

    @property
    def max_priority(self) -> float:
        """Largest priority that counts, 1 if there is none. O(1)."""
        if self.within_buffer and self.exponents.real[ALPHA] > 0:
            weight = self.tree.largest
            return self.exponents.priority(weight) if weight > 0 else 1.0
        return self.exponents.largest_seen()

    @property
    def default_weight(self) -> float:
        """Weight of a new item. O(1)."""
        exponents = self.exponents
        if self.within_buffer and exponents.real[ALPHA] > 0:
            # Weights that were inherited count too, and are not to be rounded to and fro.
            weight = self.tree.largest
            return weight if weight > 0 else exponents.weight(1.0)
        return exponents.weight(exponents.largest_seen())

    # ---- following the storage

    def register(self, storage: SampledStorage) -> None:
        """Hear which storage this is for.

        Raises:
            ValueError: it holds more items than there is room for.
        """
        self._make_room(storage)
        if storage.log is not self._log:
            self._enter(storage)

    def _enter(self, storage: SampledStorage) -> None:
        if self._log is not None:  # another storage: what is known is of no use
            self.clear()
        zeroed = self._zeroed
        self._forget_storage()
        self._zeroed = zeroed
        self._log = storage.log
        self._set_columns(storage)
        device = storage.device
        if not self.on_cpu and device is not None and device.type != "cpu" and self.tree.device != device:
            moved = SumTree(self.tree.capacity, self.tree.dtype, device=device)
            moved.set_leaves(self.tree.leaves)
            self.tree = moved

    def _set_columns(self, storage: SampledStorage) -> None:
        self._ndim = storage.ndim
        self._columns = tuple(storage.columns)
        # Before its first write a storage may not know its columns; it is asked again.
        self._unshaped = None if self._ndim == 1 + len(self._columns) else storage
        self._width = math.prod(self._columns)

    def follow(self, storage: SampledStorage) -> bool:
        """Take in what was written since the last call, by whomever. O(k) for k items.

        Returns:
            Whether a change of ``alpha`` in its tensor changed all weights.

        Raises:
            ValueError: the storage has grown beyond ``max_capacity``.
        """
        log, number = storage.log, self.number
        changed = False
        if log is not self._log:
            self._enter(storage)
        if isinstance(self.exponents.given[ALPHA], Tensor):
            changed = self.heed_alpha()
        if not log.is_at(number[EPOCH], number[TOTAL]):
            if storage.columns != self._columns:
                self._set_columns(storage)
            self._make_room(storage)
            self.catch_up()
        return changed

    def catch_up(self) -> None:
        """Take in what was written to the storage last followed."""
        log, number = self._log, self.number
        if log is None or log.is_at(number[EPOCH], number[TOTAL]):
            return
        if self._unshaped is not None:
            self._set_columns(self._unshaped)
            if self._unshaped is not None:
                return
        if log.length * self._width > self.tree.capacity:
            if not self.grows:
                raise self._outgrown(log.length * self._width)
            self.tree.grow(log.rows * self._width)
        if log.mended(number[EPOCH]) and log.total >= number[TOTAL]:
            self._mend(log)
        elif number[EPOCH] != log.epoch or log.total < number[TOTAL]:
            self._adopt(log)
        else:
            runs = log.appended_since(number[TOTAL])
            if runs is None:
                self._give_default(0, log.length)
            else:
                self._renew([(start, count) for start, count, _ in runs], log.rows)
        number[EPOCH], number[TOTAL] = log.epoch, log.total
        number[KNOWN] = log.length * self._width

    def _mend(self, log: WriteLog) -> None:
        """Keep the weights over a write that was broken off and made good."""
        there = log.length * self._width
        if self.tree.capacity > there:
            self.tree.fill(there, self.tree.capacity - there, 0.0)
        # Which rows are new is not known any more; as many as there are lie before the cursor.
        count = min(log.total - self.number[TOTAL], log.length)
        if count:
            self._renew([((log.cursor - count) % log.length, count)], log.length)

    def _adopt(self, log: WriteLog) -> None:
        """Look at a storage for the first time, or at one of which nothing is known any more."""
        state, known, there = self.number[EPOCH], self.number[KNOWN], log.length * self._width
        tree = self.tree
        if state >= 0 or (state == _UNSEEN and tree.largest == 0 and not self._zeroed):
            if state >= 0:
                self.clear()
            self._give_default(0, log.length)
            return
        if tree.capacity > there and bool((tree.leaves[there:] > 0).any()):
            tree.fill(there, tree.capacity - there, 0.0)
        if state == _LOADED:
            if there > known:
                tree.fill(known, there - known, self.default_weight)
            if log.total > self.number[TOTAL]:
                runs = log.appended_since(self.number[TOTAL])
                if runs is not None:
                    self._renew([(start, count) for start, count, _ in runs], log.rows)
                else:
                    self._renew([self._newest(log, known // self._width)], log.rows)
            return
        # The sampler was told of items before it saw them: those keep what they were given.
        missing = (tree.leaves[:there] == 0).nonzero().squeeze(-1)
        if missing.numel():
            tree.update(missing, torch.tensor(self.default_weight, dtype=torch.float64))
        zeroed = [item for item in self._zeroed if item < there]
        if zeroed:
            tree.update(torch.tensor(zeroed), torch.tensor(0.0))
        self._zeroed.clear()

    def _newest(self, log: WriteLog, rows: int) -> tuple[int, int]:
        """The run of rows that is new, if there were ``rows`` and the log does not know: all, if unsure."""
        fresh = log.total - self.number[TOTAL]
        if log.length != min(log.rows, rows + fresh):
            return 0, log.length  # they were not written in a circle
        count = min(fresh, log.rows)
        return (log.cursor - count) % log.rows, count

    def _renew(self, runs: list[tuple[int, int]], rows: int) -> None:
        """Give new rows the weight of new items."""
        if self.within_buffer:  # what they replace does not count
            for start, count in runs:
                self._fill(start, count, rows, 0.0)
        weight = self.default_weight
        for start, count in runs:
            self._fill(start, count, rows, weight)

    def _give_default(self, first: int, count: int) -> None:
        self.tree.fill(first * self._width, count * self._width, self.default_weight)

    def _fill(self, start: int, count: int, rows: int, weight: float) -> None:
        width, fill = self._width, self.tree.fill
        if count >= rows:
            fill(0, rows * width, weight)
        elif start + count <= rows:
            fill(start * width, count * width, weight)
        else:
            fill(start * width, (rows - start) * width, weight)
            fill(0, (start + count - rows) * width, weight)

    # ---- changes that are broken off

    def begin(self, guarded: bool) -> None:
        """Note that somebody is at it. If whoever was before did not end, the sums are made anew, O(N).

        Args:
            guarded: a lock between processes is held, so that whoever has begun and not ended is no more.

        Raises:
            RuntimeError: another process is at it.
        """
        number = self.number
        owner = number[_CHANGING]
        if owner:
            if not guarded and owner != this_process() and self.ints.is_shared() and is_alive(owner):
                raise RuntimeError(
                    f"This sampler is shared, and process {owner} is using it at this moment: without a "
                    "buffer nothing keeps processes apart. Put it into a ReplayBuffer(shared=True), which "
                    "has a lock between processes."
                )
            self.tree.refresh()
            number[REPAIRS] += 1
        number[_CHANGING] = this_process()

    def end(self) -> None:
        """Note that the change is done."""
        self.number[_CHANGING] = 0

    # ---- room

    def _make_room(self, storage: SampledStorage) -> None:
        """Grow with the storage, or with its rounding to whole rows; refuse one that holds too much."""
        capacity = self.tree.capacity
        width = math.prod(storage.columns)
        full = storage.log.rows * width
        if self.grows and storage.ndim > 1 + len(storage.columns):
            full = storage.max_size  # as far as it is known before the first write
        if capacity < full and (self.grows or full < capacity + width):
            self.tree.grow(full)
        elif storage.log.length * width > capacity:
            raise self._outgrown(storage.log.length * width)

    def _outgrown(self, items: int) -> ValueError:
        return ValueError(
            f"The sampler has max_capacity={self.tree.capacity} and the storage {items} items: make the "
            "sampler at least as large as the storage."
        )

    def check_rows(self, storage: SampledStorage, rows: int) -> None:
        """Refuse a write of so many rows before it happens.

        Raises:
            ValueError: there would then be more items than room.
        """
        if self.grows:
            return
        width = math.prod(storage.columns)
        items = min(storage.log.rows, storage.log.length + rows) * width
        if items > self.tree.capacity and not self.tree.capacity > storage.log.rows * width - width:
            raise self._outgrown(items)

    # ---- priorities

    def told_of(self, index: Any) -> None:
        """Hear of new items. O(1) where the storage is known: they are then found by its log.

        With ``within_buffer`` they are taken in at once: what the maximum is depends on when one looks.
        """
        if self._log is None:
            if isinstance(index, (slice, range)):
                index = item_numbers(index, None, self.tree.capacity)
            flat = torch.as_tensor(index).detach()
            if flat.ndim > 1 or not flat.numel():
                return  # which items these are only the storage knows
            if self.within_buffer:  # what they replace does not count
                self.tree.update(flat.reshape(-1), torch.tensor(0.0))
            self.tree.update(flat.reshape(-1), torch.tensor(self.default_weight, dtype=torch.float64))
            self._zeroed.difference_update(flat.reshape(-1).tolist())
        elif self.within_buffer:
            self.catch_up()

    def give_default(self, index: Any, storage: SampledStorage | None, generation: Any = None) -> Tensor:
        """Give items the weight of new ones; returns their numbers. O(B log N)."""
        items = self.items(index, storage, perhaps_gone=generation is not None)
        self._set(items, torch.tensor(self.default_weight, dtype=torch.float64), generation, 0.0, 1.0)
        return items

    def update(
        self, index: Any, priority: Any, storage: SampledStorage | None, generation: Any = None
    ) -> Tensor:
        """Give items another priority; returns their numbers. O(B log N).

        Args:
            index: int, ``[B]``, ``[B, ndim]`` or a slice; -1: not stored, skipped.
            priority: number, ``[B]``, or what reshapes to it.
            storage: the storage they are in; needed for ``[B, ndim]``.
            generation: stamps ``[B]`` of a sample: items overwritten since are left alone.

        Raises:
            RuntimeError: shapes do not fit, or the storage is needed.
            IndexError: an index is out of range; nothing has been changed.
            ValueError: a priority is negative, NaN or infinite; nothing has been changed.
        """
        items = self.items(index, storage, perhaps_gone=generation is not None)
        values = priority if type(priority) is Tensor else values_of(priority)
        count = items.numel()
        if values.ndim and values.numel() != count:
            raise RuntimeError(
                f"The priority has shape {tuple(values.shape)} and the index shape "
                f"{shape_of_index(index, count)}: give one number for each item, or one for all."
            )
        if not count:
            return items
        if values.dtype is torch.bool or values.is_complex():
            raise TypeError(f"Priorities of dtype {values.dtype}: give real numbers.")
        numbers = self.exponents.real
        largest = self._set(items, values, generation, numbers[EPS], numbers[ALPHA])
        if largest > numbers[LARGEST]:
            numbers[LARGEST] = largest
        if self._log is None and numbers[EPS] == 0:
            self._note_zeros(items, values)
        return items

    def _set(self, items: Tensor, values: Tensor, generation: Any, eps: float, alpha: float) -> float:
        limit = self._limit()
        stale = None
        if generation is not None and self._log is not None:
            stale = stale_items(self._log, self._width, items, generation)
        try:
            return self.tree.update_powers(
                items, values, eps=eps, alpha=alpha, skip=True, stale=stale, limit=limit
            )
        except IndexError:
            gone = (items >= limit) & (items < self.tree.capacity)
            if generation is None or not bool(gone.any()):
                raise
            # They were there when they were sampled, and the storage was emptied since.
            return self.tree.update_powers(
                items.masked_fill(gone, -1), values, eps=eps, alpha=alpha, skip=True, stale=stale, limit=limit
            )

    def _note_zeros(self, items: Tensor, values: Tensor) -> None:
        for item, value in zip(
            items.tolist(), values.reshape(-1).expand(items.numel()).tolist(), strict=True
        ):
            (self._zeroed.add if value == 0 else self._zeroed.discard)(item)

    def _limit(self) -> int:
        """Number of items there are, as far as is known; what was told before any storage may be anywhere."""
        unseen = self._log is None and self.number[EPOCH] == _UNSEEN
        return self.tree.capacity if unseen else self.number[KNOWN]

    def items(self, index: Any, storage: SampledStorage | None, *, perhaps_gone: bool = False) -> Tensor:
        """Numbers of items, int64 ``[B]`` on the tree's device, -1 where there is none.

        ``perhaps_gone``: rows that are not there any more are good too.

        Raises:
            IndexError: one is out of range along its dimension.
        """
        if storage is not None:
            self.follow(storage)
        else:
            self.catch_up()
        items = item_numbers(index, storage, self._limit(), perhaps_gone=perhaps_gone)
        return items if self.tree.native else items.to(self.tree.device)

    def weights(self) -> Tensor:
        """A copy of the weights of all stored items, in item order. O(N)."""
        self.catch_up()
        return self.tree.leaves[: self._limit()].clone()

    def priorities(self, index: Any, storage: SampledStorage | None) -> Tensor:
        """Priorities of items, as far as the weights tell. O(B)."""
        items, limit = self.items(index, storage), self._limit()
        bad = (items < 0) | (items >= limit)
        if bool(bad.any()):
            raise IndexError(f"Index {int(items[bad][0])} is out of range: there are {limit} items.")
        return self.exponents.priorities(self.tree.weights(items).double()).to(self.tree.dtype)

    # ---- draws

    def uniforms(self, count: int, generator: torch.Generator | None) -> Tensor:
        """Float64 ``[count]`` in ``[0, 1)``, to be used before the next call."""
        return self._uniforms.draw(count, generator, self.tree.device)

    def stamp(self) -> int:
        """What tells items that are there now from later ones in their slots: the rows written so far."""
        return self.number[TOTAL]

    # ---- state

    def clear(self) -> None:
        """Forget all items and priorities. O(N)."""
        self.tree.clear()
        self.exponents.real[LARGEST] = -1.0
        self.number[EPOCH], self.number[TOTAL], self.number[KNOWN] = _UNSEEN, 0, 0
        self._zeroed.clear()

    def share_memory_(self) -> None:
        """Move the state to shared memory, so that processes it is sent to see one table."""
        self.tree.share_memory_()
        self.ints.share_memory_()
        self.exponents.share_memory_()
        self._view()

    def state_dict(self) -> dict[str, Any]:
        """The full state, as copies. O(N)."""
        self.catch_up()
        seen = self.number[EPOCH] != _UNSEEN
        return {
            "weights": self.tree.leaves[: self.number[KNOWN] if seen else self.tree.capacity].cpu().clone(),
            "capacity": self.tree.capacity,
            "total": self.number[TOTAL] if seen else None,
            **self.exponents.state_dict(),
        }

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Take over a state, and grow if it is of a larger table. O(N).

        Raises:
            ValueError: the state is damaged; nothing has been changed.
        """
        weights, total = checked_state(state_dict)
        self.tree.grow(weights.numel())
        self.tree.set_leaves(weights)
        self._forget_storage()
        seen = total is not None
        self.number[EPOCH] = _LOADED if seen else _UNSEEN
        self.number[TOTAL] = 0 if total is None else total
        self.number[KNOWN] = weights.numel() if seen else 0
        self.exponents.load_state_dict(state_dict)

    def __getstate__(self) -> dict[str, Any]:
        state = self.__dict__.copy()
        for name in ("number", "_log", "_unshaped", "_uniforms"):
            del state[name]
        if not self.ints.is_shared():
            state["ints"] = self.ints.clone()
            state["ints"][_CHANGING] = 0
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._view()
        self._log = self._unshaped = None
        self._uniforms = Uniforms()
