"""What samplers with priorities share: everything but the draw."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from replaybank.samplers.arguments import whole
from replaybank.samplers.base import SampledStorage, Sampler
from replaybank.samplers.exponents import ALPHA, BETA, EPS
from replaybank.samplers.locking import ThreadLock
from replaybank.samplers.priorities import PriorityTable
from replaybank.storages.resize import Move

PRIORITY_WEIGHT = "priority_weight"
"""Key of the importance weights in the info."""

GENERATION = "_generation"
"""Key of the stamps in the info by which overwritten items are told."""

_REDUCTIONS = ("max", "min", "median", "mean")


class _TableLock(ThreadLock):
    """The lock of a sampler, taken to look at its priorities or to change them.

    A change that was broken off, because its process was killed or interrupted, is made good by who takes the
    lock next.

    Args:
        table: the priorities.
        guarded: a lock between processes, the buffer's, is held by whoever takes this one.
    """

    def __init__(self, table: PriorityTable, guarded: bool = False) -> None:
        self._table = table
        self.guarded = guarded
        super().__init__()

    @property
    def lock(self) -> _TableLock:  # type: ignore[override]
        """This one itself."""
        return self

    def renew(self) -> None:
        """Forget who holds it."""
        self._threads = threading.RLock()
        self._depth = 0

    def __enter__(self) -> None:
        self._threads.acquire()
        if self._depth == 0:
            try:
                self._table.begin(self.guarded)
            except BaseException:
                self._threads.release()
                raise
        self._depth += 1

    def __exit__(self, *error: object) -> None:
        self._depth -= 1
        if self._depth == 0 and (error[0] is None or isinstance(error[1], Exception)):
            self._table.end()
        self._threads.release()

    def __reduce__(self) -> tuple[Any, ...]:
        return _TableLock, (self._table, self.guarded)


class PrioritySampler(Sampler):
    """A sampler with a priority for every item, whatever it draws.

    Thread-safe. Pickled, it is copied, or shared after :meth:`share_memory_`; between processes the lock of a
    ``ReplayBuffer(shared=True)`` guards it. Without one it raises RuntimeError if it finds another process at
    it; processes that take turns may use it.

    Args:
        table: the priorities.
        reduction: how the priorities of a stored trajectory become one.
    """

    def __init__(self, table: PriorityTable, reduction: str) -> None:
        if reduction not in _REDUCTIONS:
            raise ValueError(f"reduction={reduction!r}: give one of {', '.join(_REDUCTIONS)}.")
        self.reduction = reduction
        self._table = table
        self._lock = _TableLock(table)

    @property
    def guarded(self) -> bool:
        """Whether a lock between processes is held whenever this is used; a shared buffer sets it."""
        return self._lock.guarded

    @guarded.setter
    def guarded(self, value: bool) -> None:
        self._lock.guarded = value

    def _changed(self, items: Tensor | None) -> None:
        """Hear that the weights of some items have changed, or of all; for what is derived from them."""

    def _heed(self) -> None:
        """See whether ``alpha`` has changed in its tensor. O(1), O(N) if it has."""
        if self._table.heed_alpha():
            self._changed(None)

    # ---- what it was told

    @property
    def max_capacity(self) -> int:
        """Number of items there is room for."""
        return self._table.tree.capacity

    @property
    def max_size(self) -> int:
        """The same as ``max_capacity``."""
        return self.max_capacity

    @property
    def dtype(self) -> torch.dtype:
        """Of the weights."""
        return self._table.tree.dtype

    @property
    def max_priority_within_buffer(self) -> bool:
        """Whether the largest priority is that of the items now there."""
        return self._table.within_buffer

    @property
    def alpha(self) -> Any:
        """Exponent of priorities. Setting it re-weights all items, O(N)."""
        return self._table.exponents.exponent(ALPHA)

    @alpha.setter
    def alpha(self, value: float | Tensor) -> None:
        with self._lock:
            if self._table.set_exponent(ALPHA, value):
                self._changed(None)

    @property
    def beta(self) -> Any:
        """Exponent of importance weights."""
        return self._table.exponents.exponent(BETA)

    @beta.setter
    def beta(self, value: float | Tensor) -> None:
        with self._lock:
            self._table.set_exponent(BETA, value)

    @property
    def eps(self) -> float:
        """Added to priorities."""
        return self._table.exponents.real[EPS]

    # ---- looking at priorities

    def top_k(self, k: int) -> tuple[Tensor, Tensor]:
        """The items with the largest priorities. O(k log N).

        Returns:
            Priorities and numbers of items (int64, flat over all dimensions), at most k each, largest first;
            of equal ones the lower number. Items of weight 0 are left out.
        """
        k = whole("k", k, 0)
        with self._lock:
            self._heed()
            self._table.catch_up()
            _, items = self._table.tree.top_k(k)
            return self._table.priorities(items, None), items

    def priorities(self, index: Any, *, storage: SampledStorage | None = None) -> Tensor:
        """Priorities of items ``[B]``, as far as their weights tell: none if ``alpha`` is 0. O(B).

        Args:
            index: int, ``[B]``, ``[B, ndim]`` or a slice.
            storage: needed for ``[B, ndim]``.

        Raises:
            IndexError: an index is out of range.
        """
        with self._lock:
            self._heed()
            return self._table.priorities(index, storage)

    @property
    def weights(self) -> Tensor:
        """A copy of the weights of all stored items, in item order ``[N]``. O(N)."""
        with self._lock:
            self._heed()
            return self._table.weights()

    @property
    def max_priority(self) -> float:
        """Largest priority that counts for new items, 1 if there is none. O(1)."""
        with self._lock:
            self._heed()
            self._table.catch_up()
            return self._table.max_priority

    @property
    def default_priority(self) -> float:
        """The *weight* of new items, (max_priority + eps)^alpha; no priority, so nothing to update with."""
        with self._lock:
            self._heed()
            self._table.catch_up()
            return self._table.default_weight

    # ---- hearing of items

    def register_storage(self, storage: SampledStorage) -> None:
        """Hear which storage will be sampled.

        Raises:
            ValueError: it holds more than ``max_capacity`` items.
        """
        with self._lock:
            self._table.register(storage)

    def check_write(self, storage: Any, data: Any, *, single: bool = False) -> None:
        """Refuse data that would outgrow this sampler, before any is written. O(1) where it is large enough.

        Raises:
            ValueError: there would be more than ``max_capacity`` items.
        """
        if not self._table.grows and self.max_capacity < storage.max_size:
            self._table.check_rows(storage, storage.prepare(data, single=single).rows)

    def add(self, index: Any) -> None:
        """Hear that the writer wrote one item."""
        self.extend(index)

    def extend(self, index: Any) -> None:
        """Hear that the writer wrote items. O(1) where the storage is known, O(B log N) otherwise."""
        with self._lock:
            self._table.told_of(index)

    def update_priority(
        self, index: Any, priority: Any, *, storage: SampledStorage | None = None, generation: Any = None
    ) -> None:
        """Set priorities. O(B log N).

        Args:
            index: int, ``[B]``, ``[B, ndim]`` or a slice; -1 is skipped; of repeated ones the last wins.
            priority: finite and >= 0; a number, ``[B]``, or what reshapes to it, of any real dtype.
            storage: needed for ``[B, ndim]``.
            generation: ``"_generation"`` of the sample: items overwritten since keep their own priority, and
                those emptied since are skipped.

        Raises:
            RuntimeError: shapes do not fit, or ``storage`` is missing.
            IndexError: an index is out of range; nothing has been changed.
            ValueError: a priority is negative, NaN or infinite; nothing has been changed.
        """
        with self._lock.lock:
            self._heed()
            self._changed(self._table.update(index, priority, storage, generation))

    def mark_update(
        self, index: Any, *, storage: SampledStorage | None = None, generation: Any = None
    ) -> None:
        """Give items the weight of new ones; arguments as for :meth:`update_priority`. O(B log N)."""
        with self._lock:
            self._heed()
            self._changed(self._table.give_default(index, storage, generation))

    # ---- state

    def empty(self) -> None:
        """Forget all items and priorities. O(N)."""
        with self._lock:
            self._table.clear()

    def share_memory_(self) -> PrioritySampler:
        """Move the state to shared memory, so that processes it is sent to share it."""
        with self._lock:
            self._table.share_memory_()
        return self

    def state_dict(self) -> dict[str, Any]:
        """Weights, exponents, the largest priority, and how far the storage had been followed. O(N)."""
        with self._lock:
            self._heed()
            return {**self._table.state_dict(), "reduction": self.reduction}

    def moved(self, state_dict: Mapping[str, Any], move: Move) -> Mapping[str, Any]:
        """A state for a storage whose rows have moved: every item keeps its priority."""
        weights = state_dict["weights"]
        if not move.first:
            return state_dict
        if state_dict["total"] is None or weights.numel() != move.length * move.width:
            return super().moved(state_dict, move)
        return {**state_dict, "weights": move.turned_items(weights)}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Take over a state; ``state_dict`` itself is not changed. O(N).

        The weights are those of the storage that is sampled next; what it was given since is new.
        """
        with self._lock:
            reduction = state_dict["reduction"]
            if reduction not in _REDUCTIONS:
                raise ValueError(f"The state is damaged: reduction={reduction!r}. Nothing has been changed.")
            self._table.load_state_dict(state_dict)
            self.reduction = reduction

    def _facts(self) -> dict[str, Any]:
        told: dict[str, Any] = {"max_capacity": self.max_capacity, "alpha": float(self.alpha)}
        return {**told, "beta": float(self.beta), "eps": self.eps, "reduction": self.reduction}
