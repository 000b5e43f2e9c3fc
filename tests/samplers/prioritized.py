"""Prioritized samplers and what they draw from."""

from __future__ import annotations

from typing import Any

import torch

from reference.storage import PlainStorage
from replaybank.samplers.prioritized import PrioritizedSampler


def w(priority: float, alpha: float, eps: float = 1e-8) -> float:
    return float((priority + eps) ** alpha)


def make(
    capacity: int = 100, alpha: Any = 1.0, beta: Any = 1.0, seed: int = 0, **options: Any
) -> PrioritizedSampler:
    sampler = PrioritizedSampler(capacity, alpha, beta, **options)
    sampler.generator = torch.Generator().manual_seed(seed)
    return sampler


def filled(n: int, rows: int | None = None, columns: tuple[int, ...] = ()) -> PlainStorage:
    storage = PlainStorage(rows or n, columns)
    extend(storage, n)
    return storage


def extend(storage: PlainStorage, n: int) -> None:
    storage.extend({("x",): torch.zeros(n, *storage.columns)})


def numbers(storage: PlainStorage, index: Any) -> list[int]:
    parts = index if isinstance(index, tuple) else (index,)
    flat = torch.zeros_like(parts[0])
    for part, size in zip(parts, storage.shape, strict=True):
        flat = flat * size + part
    return [int(k) for k in flat]
