"""Samplers for the tests of buffers: one with passes, one with priorities."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from replaybank.samplers.base import Sampler


class InOrder(Sampler):
    """The stored order, in passes; the last batch of a pass may be short."""

    def __init__(self, drop_last: bool = False) -> None:
        super().__init__()
        self.drop_last = drop_last
        self._at = 0
        self._ran_out = False

    def sample(self, storage: Any, batch_size: int) -> tuple[Tensor, dict[Any, Any]]:
        n = len(storage)
        if n == 0:
            raise RuntimeError("Cannot sample from an empty storage.")
        if self._at >= n:
            self._at = 0
        index = torch.arange(self._at, min(self._at + batch_size, n))
        self._at += batch_size
        self._ran_out = self._at >= n
        return index, {}

    @property
    def ran_out(self) -> bool:
        return self._ran_out

    @ran_out.setter
    def ran_out(self, value: bool) -> None:
        self._ran_out = value

    def empty(self) -> None:
        self._at = 0

    def state_dict(self) -> dict[str, Any]:
        return {"at": self._at}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        self._at = state_dict["at"]


class Remembers(Sampler):
    """Draws like the RandomSampler and remembers what it is told of priorities."""

    def __init__(self, reduction: str = "max") -> None:
        super().__init__()
        self.reduction = reduction
        self.told: list[Any] = []
        self.priorities: dict[tuple[int, ...], float] = {}

    def sample(self, storage: Any, batch_size: int) -> tuple[Any, dict[Any, Any]]:
        if len(storage) == 0:
            raise RuntimeError("Cannot sample from an empty storage.")
        index = torch.randint(len(storage), (batch_size,), generator=self.generator)
        info = {"priority_weight": torch.ones(batch_size), "_generation": index + 100}
        if storage.ndim > 1:
            return torch.unravel_index(index, storage.shape), info
        return index, info

    def add(self, index: Any) -> None:
        self.told.append(("add", index))

    def extend(self, index: Any) -> None:
        self.told.append(("extend", index.tolist()))

    def update_priority(
        self, index: Any, priority: Any, *, storage: Any = None, generation: Any = None
    ) -> None:
        rows = torch.as_tensor(index).reshape(-1, 1) if torch.as_tensor(index).ndim < 2 else index
        values = torch.as_tensor(priority).reshape(-1).expand(len(rows)).tolist()
        for row, value in zip(rows.tolist(), values, strict=True):
            self.priorities[tuple(row)] = value
        self.told.append(("priority", None if generation is None else generation.tolist()))

    def mark_update(self, index: Any, *, storage: Any = None) -> None:
        self.told.append(("mark", torch.as_tensor(index).tolist()))
