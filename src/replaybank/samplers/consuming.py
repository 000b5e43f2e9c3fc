"""Sampling that uses items up."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from replaybank.samplers.arguments import batch_of, whole
from replaybank.samplers.base import Index, InfoKey, SampledStorage, Sampler, refuse_empty, unravel_columns
from replaybank.samplers.follow import Follower
from replaybank.storages.resize import Move

_INT32_ITEMS = 1 << 31
"""Up to so many items their numbers fit into int32."""


class ConsumingSampler(Sampler):
    """Every item at most ``max_times_sampled`` times since it was written, then never again.

    Each batch is drawn uniformly, without replacement, from the items that are not used up; it is shorter
    than asked for when fewer are left. Items written to a slot, by whomever, are new ones and come as often
    again; content replaced in its place (``storage[i] = v``) is the same item. :attr:`ran_out` is True after
    the call that used up the last item; sampling is then an error until something is written, or the
    sampler is emptied, after which all items come again.

    O(B) a batch, O(items written since the last batch) to take them in. Memory: 12 bytes an item of the
    capacity (20 beyond 2^31 of them).

    Not thread-safe: the buffer's lock guards it.

    Args:
        max_times_sampled: how often an item comes, at least 1. Settable: it counts for items written later.

    Raises:
        TypeError: ``max_times_sampled`` is no int.
        ValueError: it is not positive.

    Example:
        >>> from replaybank.storages import TensorStorage
        >>> storage, sampler = TensorStorage(torch.zeros(5)), ConsumingSampler()
        >>> first, _ = sampler.sample(storage, 3)
        >>> rest, _ = sampler.sample(storage, 3)
        >>> sorted(first.tolist() + rest.tolist()), sampler.ran_out
        ([0, 1, 2, 3, 4], True)
    """

    def __init__(self, max_times_sampled: int = 1) -> None:
        self.max_times_sampled = max_times_sampled
        self._ran_out = False
        self._forget()

    @property
    def max_times_sampled(self) -> int:
        """How often an item comes."""
        return self._max_times_sampled

    @max_times_sampled.setter
    def max_times_sampled(self, value: int) -> None:
        self._max_times_sampled = whole("max_times_sampled", value)

    def _forget(self) -> None:
        self._follower = Follower()
        self._allocate(0)

    def _allocate(self, capacity: int) -> None:
        """Make room for so many items, none of which is available. Memory is taken as it is used."""
        dtype = torch.int32 if capacity <= _INT32_ITEMS else torch.int64
        self._capacity = capacity
        self._n_available = 0
        # The first ones are the available items, in an order that says nothing; where each of them is in it,
        # -1 for others; and how often each may still come.
        self._available = torch.empty(capacity, dtype=dtype)
        self._places = torch.full((capacity,), -1, dtype=dtype)
        self._uses = torch.empty(capacity, dtype=torch.int32)

    def sample(self, storage: SampledStorage, batch_size: int) -> tuple[Index, dict[InfoKey, Any]]:
        """Draw available items, and use each up by one. O(B + items written since the last call).

        Args:
            storage: at least one item.
            batch_size: number of items, B.

        Returns:
            int64 ``[B]`` for 1-d storages, a tuple of them for others, shorter where fewer are left, and no
            extras.

        Raises:
            RuntimeError: the storage is empty, or all of its items are used up.
            ValueError: ``batch_size`` is negative.
        """
        n, batch_size = refuse_empty(storage), batch_of(batch_size)
        self._take_in(storage)
        if self._n_available == 0:
            raise RuntimeError(
                f"All {n} items are used up, with max_times_sampled={self.max_times_sampled}. Write new "
                "ones, or call empty() on the sampler to have all come again."
            )
        positions = self._distinct(min(batch_size, self._n_available))
        items = self._available[positions].to(torch.int64)
        left = self._uses[items] - 1
        self._uses[items] = left
        self._remove(positions[left <= 0], items[left <= 0])
        self._ran_out = self._n_available == 0
        if storage.ndim == 1:
            return items, {}
        n_columns = math.prod(storage.columns)
        return (items // n_columns, *unravel_columns(items % n_columns, storage.columns)), {}

    def count_left(self, storage: SampledStorage) -> int:
        """Number of items that are not used up. O(items written since the last call)."""
        self._take_in(storage)
        return self._n_available

    # ---- which are available

    def _take_in(self, storage: SampledStorage) -> None:
        log, n_columns = storage.log, math.prod(storage.columns)
        news = self._follower.look(log)
        if news.everything or self._capacity != log.rows * n_columns:
            self._allocate(log.rows * n_columns)
            self._refresh(torch.arange(log.length * n_columns))
            return
        for start, count in news.appended:
            rows = torch.arange(start, start + count).remainder_(log.rows)
            if n_columns > 1:
                rows = (rows.unsqueeze(-1) * n_columns + torch.arange(n_columns)).reshape(-1)
            self._refresh(rows)

    def _refresh(self, items: Tensor) -> None:
        """Distinct items are new ones."""
        self._uses[items] = self.max_times_sampled
        gone = items[self._places[items] < 0]
        end = self._n_available + len(gone)
        self._available[self._n_available : end] = gone
        self._places[gone] = torch.arange(self._n_available, end, dtype=self._places.dtype)
        self._n_available = end

    def _remove(self, positions: Tensor, items: Tensor) -> None:
        """Items at these positions are used up: the last available ones take their positions."""
        end = self._n_available - len(items)
        stays = torch.ones(len(items), dtype=torch.bool)
        stays[positions[positions >= end] - end] = False
        movers = self._available[end : self._n_available][stays].to(torch.int64)
        holes = positions[positions < end]
        self._available[holes] = movers.to(self._available.dtype)
        self._places[movers] = holes.to(self._places.dtype)
        self._places[items] = -1
        self._n_available = end

    def _distinct(self, count: int) -> Tensor:
        """Distinct positions of available items, every order of every choice alike. O(count), expected."""
        n, generator = self._n_available, self.generator
        device = None if generator is None else generator.device
        if 2 * count >= n:
            return torch.randperm(n, generator=generator, device=device)[:count].cpu()
        drawn = np.empty(0, dtype=np.int64)
        while len(drawn) < count:  # what came before is passed over: at most half of what is drawn
            more = torch.randint(n, (count,), generator=generator, device=device).cpu().numpy()
            drawn = np.concatenate([drawn, more])
            drawn = drawn[np.sort(np.unique(drawn, return_index=True)[1])]
        return torch.from_numpy(drawn[:count])

    # ---- state

    @property
    def ran_out(self) -> bool:
        """Whether the last call used up the last item. Setting it does not bring items back."""
        return self._ran_out

    @ran_out.setter
    def ran_out(self, value: bool) -> None:
        self._ran_out = bool(value)

    def empty(self) -> None:
        """Forget everything: the buffer was emptied."""
        self._ran_out = False
        self._forget()

    def state_dict(self) -> dict[str, Any]:
        """Which items are available and how often each may still come, as copies. O(items)."""
        available = self._available[: self._n_available].clone()
        return {
            "max_times_sampled": self.max_times_sampled,
            "capacity": self._capacity,
            "available": available,
            "uses": self._uses[available.to(torch.int64)],
            "ran_out": self._ran_out,
            "follower": self._follower.state_dict(),
        }

    def moved(self, state_dict: Mapping[str, Any], move: Move) -> Mapping[str, Any]:
        """A state for a storage whose rows have moved: every item keeps its uses."""
        available = state_dict["available"]
        return {
            **state_dict,
            "capacity": move.rows * move.width,
            "available": move.item(available.to(torch.int64)).to(available.dtype),
            "follower": Follower.moved(state_dict["follower"], move),
        }

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Take over a state; items written to the storage since then are new ones. O(capacity).

        Raises:
            ValueError: the state contradicts itself; nothing has been changed.
        """
        capacity, available, uses = (state_dict[name] for name in ("capacity", "available", "uses"))
        items = available.to(torch.int64)
        if len(items) and (int(items.min()) < 0 or int(items.max()) >= capacity):
            raise ValueError(f"The state is of {capacity} items and names others.")
        if uses.shape != items.shape or len(items.unique()) != len(items):
            raise ValueError("The state counts items twice, or not at all.")
        self.max_times_sampled = state_dict["max_times_sampled"]
        self._allocate(int(capacity))
        self._n_available = len(items)
        self._available[: len(items)] = available
        self._places[items] = torch.arange(len(items), dtype=self._places.dtype)
        self._uses[items] = uses
        self._ran_out = bool(state_dict["ran_out"])
        self._follower.load_state_dict(state_dict["follower"])

    def _facts(self) -> dict[str, Any]:
        return {"max_times_sampled": self.max_times_sampled}
