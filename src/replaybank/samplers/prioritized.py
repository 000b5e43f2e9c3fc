"""Sampling in proportion to priorities."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from replaybank.samplers.arguments import batch_of
from replaybank.samplers.base import Index, InfoKey, SampledStorage, refuse_empty, unravel_columns
from replaybank.samplers.priorities import PriorityTable
from replaybank.samplers.priority_sampler import GENERATION, PRIORITY_WEIGHT, PrioritySampler


class PrioritizedSampler(PrioritySampler):
    """Items in proportion to (priority + eps)^alpha, with replacement (Schaul et al. 2015, arXiv 1511.05952).

    New items get the weight of the largest priority seen so far, 1 if there is none, whichever buffer or
    process wrote them; an item replaced in its place (``storage[i] = v``) keeps its priority. A draw costs
    O(B log N), an update of B priorities as much, k new items O(k).

    Thread-safe. Pickled, it is copied, or shared after :meth:`share_memory_`; between processes the buffer's
    lock guards it.

    Args:
        max_capacity: number of items there is room for, at least what the storage holds; None: as many as the
            storage has room for, whichever that comes to be.
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
        >>> storage = TensorStorage(torch.zeros(3))
        >>> sampler = PrioritizedSampler(3, alpha=1.0, beta=1.0, eps=0.0)
        >>> sampler.update_priority([0, 1, 2], [0.0, 1.0, 4.0], storage=storage)
        >>> index, info = sampler.sample(storage, 100)
        >>> sorted(set(zip(index.tolist(), info["priority_weight"].tolist(), strict=True)))
        [(1, 1.0), (2, 0.25)]
    """

    def __init__(
        self,
        max_capacity: int | None,
        alpha: float | Tensor,
        beta: float | Tensor,
        eps: float = 1e-8,
        dtype: torch.dtype = torch.float,
        reduction: str = "max",
        max_priority_within_buffer: bool = False,
        *,
        stratified: bool = False,
    ) -> None:
        table = PriorityTable(max_capacity, alpha, beta, eps, dtype, max_priority_within_buffer)
        super().__init__(table, reduction)
        self.stratified = stratified

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
        batch_size = batch_of(batch_size)
        with self._lock.lock:
            table = self._table
            table.follow(storage)
            items, importance, stamps = table.tree.draw(
                table.uniforms(batch_size, self.generator),
                beta=table.exponents.beta(),
                stamp=table.stamp(),
                stratified=self.stratified,
            )
        info: dict[InfoKey, Any] = {PRIORITY_WEIGHT: importance, GENERATION: stamps}
        if storage.ndim == 1:
            return items, info
        n_columns = math.prod(storage.columns)
        return (items // n_columns, *unravel_columns(items % n_columns, storage.columns)), info

    def state_dict(self) -> dict[str, Any]:
        """Weights, exponents, the largest priority, and how far the storage had been followed. O(N)."""
        return {**super().state_dict(), "stratified": self.stratified}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Take over a state; ``state_dict`` itself is not changed. O(N).

        The weights are those of the storage that is sampled next; what it was given since is new.
        """
        stratified = state_dict["stratified"]
        if not isinstance(stratified, bool):
            raise ValueError(f"The state is damaged: stratified={stratified!r}. Nothing has been changed.")  # noqa: TRY004
        super().load_state_dict(state_dict)
        self.stratified = stratified
