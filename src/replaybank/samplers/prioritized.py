"""Sampling in proportion to priorities."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from replaybank.samplers.base import Index, InfoKey, SampledStorage, Sampler, refuse_empty, unravel_columns
from replaybank.samplers.locking import ThreadLock
from replaybank.samplers.priorities import ALPHA, BETA, EPS, PriorityTable

PRIORITY_WEIGHT = "priority_weight"
GENERATION = "_generation"

_REDUCTIONS = ("max", "min", "median", "mean")


class PrioritizedSampler(Sampler):
    """Items in proportion to (priority + eps)^alpha, with replacement (Schaul et al. 2015, arXiv 1511.05952).

    New items get the weight of the largest priority seen so far, 1 if there is none, whichever buffer or
    process wrote them; an item replaced in its place (``storage[i] = v``) keeps its priority. A draw costs
    O(B log N), an update of B priorities as much, k new items O(k).

    Thread-safe. Pickled, it is copied, or shared after :meth:`share_memory_`; between processes the buffer's
    lock guards it.

    Args:
        max_capacity: number of items there is room for, at least what the storage holds.
        alpha: exponent of priorities, a number or 0-d tensor >= 0; 0 is uniform.
        beta: exponent of importance weights, a number or 0-d tensor >= 0.
        eps: added to priorities.
        dtype: of the weights, torch.float32 (5.1 bytes an item in all) or torch.float64.
        reduction: how the priorities of a stored trajectory become one, ``"max"``, ``"min"``, ``"median"``
            or ``"mean"``; the buffer applies it.
        max_priority_within_buffer: new items get the largest weight of the items now there.
        stratified: the k-th item of a batch is drawn from the k-th of B equal parts of the total weight.

    Raises:
        ValueError: ``alpha``, ``beta`` or ``eps`` is negative; another ``reduction``.
        NotImplementedError: another ``dtype``.

    Example:
        >>> from replaybank.storages import TensorStorage
        >>> storage, sampler = TensorStorage(torch.zeros(3)), PrioritizedSampler(3, alpha=1.0, beta=1.0, eps=0.0)
        >>> sampler.update_priority([0, 1, 2], [0.0, 1.0, 4.0], storage=storage)
        >>> index, info = sampler.sample(storage, 100)
        >>> sorted(set(zip(index.tolist(), info["priority_weight"].tolist(), strict=True)))
        [(1, 1.0), (2, 0.25)]
    """

    def __init__(
        self,
        max_capacity: int,
        alpha: float | Tensor,
        beta: float | Tensor,
        eps: float = 1e-8,
        dtype: torch.dtype = torch.float,
        reduction: str = "max",
        max_priority_within_buffer: bool = False,
        *,
        stratified: bool = False,
    ) -> None:
        if reduction not in _REDUCTIONS:
            raise ValueError(f"reduction={reduction!r}: give one of {', '.join(_REDUCTIONS)}.")
        self.reduction = reduction
        self.stratified = stratified
        self._lock = ThreadLock()
        self._table = PriorityTable(max_capacity, alpha, beta, eps, dtype, max_priority_within_buffer)

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
        return self._table.exponent(ALPHA)

    @alpha.setter
    def alpha(self, value: float | Tensor) -> None:
        with self._lock:
            self._table.set_exponent(ALPHA, value)

    @property
    def beta(self) -> Any:
        """Exponent of importance weights."""
        return self._table.exponent(BETA)

    @beta.setter
    def beta(self, value: float | Tensor) -> None:
        with self._lock:
            self._table.set_exponent(BETA, value)

    @property
    def eps(self) -> float:
        """Added to priorities."""
        return self._table.real[EPS]

    # ---- sampling

    def sample(self, storage: SampledStorage, batch_size: int) -> tuple[Index, dict[InfoKey, Any]]:
        """Draw ``batch_size`` items with replacement. O(B log N).

        Returns:
            int64 ``[B]``, or a tuple of them for storages of more dimensions, and ``"priority_weight"``
            ``[B]``: (weight / smallest positive weight stored)^-beta; ``"_generation"`` int64 ``[B]``: stamps
            by which :meth:`update_priority` tells whether an item has been overwritten since.

        Raises:
            RuntimeError: the storage is empty, or all weights are 0.
            ValueError: the storage holds more than ``max_capacity`` items.
        """
        refuse_empty(storage)
        with self._lock:
            table = self._table
            table.follow(storage)
            items, importance, stamps = table.tree.draw(
                table.uniforms(batch_size, self.generator),
                beta=table.beta(),
                stamp=table.stamp(),
                stratified=self.stratified,
            )
        info: dict[InfoKey, Any] = {PRIORITY_WEIGHT: importance, GENERATION: stamps}
        if storage.ndim == 1:
            return items, info
        n_columns = math.prod(storage.columns)
        return (items // n_columns, *unravel_columns(items % n_columns, storage.columns)), info

    def top_k(self, k: int) -> tuple[Tensor, Tensor]:
        """The items with the largest priorities. O(k log N).

        Returns:
            Priorities and numbers of items (int64, flat over all dimensions), at most k each, largest first;
            of equal ones the lower number. Items of weight 0 are left out.
        """
        with self._lock:
            self._table.catch_up()
            _, items = self._table.tree.top_k(k)
            return self._table.priorities(items, None), items

    def priorities(self, index: Any, *, storage: SampledStorage | None = None) -> Tensor:
        """Priorities of items ``[B]``, as far as their weights tell: none if ``alpha`` is 0. O(B).

        Args:
            index: int, ``[B]`` or ``[B, ndim]``.
            storage: needed for ``[B, ndim]``.
        """
        with self._lock:
            return self._table.priorities(index, storage)

    @property
    def weights(self) -> Tensor:
        """A copy of the weights of all stored items, in item order ``[N]``. O(N)."""
        with self._lock:
            return self._table.weights()

    @property
    def max_priority(self) -> float:
        """Largest priority that counts for new items, 1 if there is none. O(1)."""
        with self._lock:
            return self._table.max_priority

    @property
    def default_priority(self) -> float:
        """The *weight* of new items, (max_priority + eps)^alpha; no priority, so nothing to update with."""
        with self._lock:
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
        if self.max_capacity < storage.max_size:
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
            index: int, ``[B]`` or ``[B, ndim]``; -1 is skipped; of repeated ones the last wins.
            priority: finite and >= 0; a number, ``[B]``, or what reshapes to it, of any real dtype and device.
            storage: needed for ``[B, ndim]``.
            generation: ``"_generation"`` of the sample: items overwritten since keep their own priority.

        Raises:
            RuntimeError: shapes do not fit, or ``storage`` is missing.
            IndexError: an index is out of range; nothing has been changed.
            ValueError: a priority is negative, NaN or infinite; nothing has been changed.
        """
        with self._lock:
            self._table.update(index, priority, storage, generation)

    def mark_update(self, index: Any, *, storage: SampledStorage | None = None) -> None:
        """Give items the weight of new ones. O(B log N)."""
        with self._lock:
            self._table.give_default(index, storage)

    # ---- state

    def empty(self) -> None:
        """Forget all items and priorities. O(N)."""
        with self._lock:
            self._table.clear()

    def share_memory_(self) -> PrioritizedSampler:
        """Move the state to shared memory, so that processes it is sent to share it."""
        with self._lock:
            self._table.share_memory_()
        return self

    def state_dict(self) -> dict[str, Any]:
        """Weights, exponents, the largest priority, and how far the storage had been followed. O(N)."""
        with self._lock:
            return {**self._table.state_dict(), "reduction": self.reduction, "stratified": self.stratified}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Take over a state; ``state_dict`` itself is not changed. O(N).

        The weights are those of the storage that is sampled next; what it was given since is new.
        """
        with self._lock:
            self._table.load_state_dict(state_dict)
            self.reduction, self.stratified = state_dict["reduction"], state_dict["stratified"]

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}(max_capacity={self.max_capacity}, alpha={float(self.alpha)}, "
            f"beta={float(self.beta)}, eps={self.eps})"
        )
