"""A buffer that environments have written to, for tests of sampling transforms."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from tensordict import TensorDict

from reference.streams import Streams
from replaybank import (
    LazyTensorStorage,
    PrioritizedSampler,
    PrioritizedSliceSampler,
    RandomSampler,
    SamplerWithoutReplacement,
    SliceSampler,
    SliceSamplerWithoutReplacement,
    TensorDictReplayBuffer,
)

SAMPLERS: dict[str, Callable[[int], Any]] = {
    "random": lambda size: RandomSampler(),
    "without replacement": lambda size: SamplerWithoutReplacement(),
    "prioritized": lambda size: PrioritizedSampler(size, 0.7, 0.5),
    "slices": lambda size: SliceSampler(slice_len=3, strict_length=False),
    "slices, spanning": lambda size: SliceSampler(slice_len=3, strict_length=False, span=True),
    "slices without replacement": lambda size: SliceSamplerWithoutReplacement(
        slice_len=3, strict_length=False
    ),
    "prioritized slices": lambda size: PrioritizedSliceSampler(
        size, 0.7, 0.5, slice_len=3, strict_length=False
    ),
}


class World:
    """A buffer that environments have written to, and what they did."""

    def __init__(self, seed: int, transform: Any, sampler: str | None = None) -> None:
        random = Streams(seed, 1, 1).random
        columns, rows = random.choice([0, 0, 1, 2, 3]), random.randint(1, 12)
        self.streams = Streams(seed, max(columns, 1), rows)
        self.slices = False
        name = random.choice(list(SAMPLERS)) if sampler is None else sampler
        self.slices = "slices" in name
        derive = random.random() < 0.5
        storage = LazyTensorStorage(
            rows * max(columns, 1),
            ndim=2 if columns else 1,
            next_observation="derive" if derive else None,
        )
        self.buffer = TensorDictReplayBuffer(
            storage=storage,
            sampler=SAMPLERS[name](storage.max_size),
            transform=transform,
            batch_size=12,
            generator=torch.Generator().manual_seed(seed),
        )
        for _ in range(random.randint(1, 5)):
            data = self.streams.steps(random.randint(1, 2 * rows))
            self.buffer.extend(data if columns else data[0])
            self.batch = self.buffer.sample()

    def steps(self, batch: TensorDict) -> list[tuple[int, int]]:
        """Column and place of every step of a batch."""
        return list(zip(batch["column"].tolist(), batch["place"].tolist(), strict=True))
