"""Buffers and items that carry their number."""

from __future__ import annotations

from typing import Any

import torch
from tensordict import TensorDict

from replaybank.buffers.replay_buffer import ReplayBuffer
from replaybank.storages import LazyTensorStorage


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def steps(start: int, count: int) -> TensorDict:
    """Items that carry their number, so that each can be told and checked."""
    n = torch.arange(start, start + count)
    return TensorDict({"n": n, "in": {"half": n[:, None] / 2}}, batch_size=count)


def tensor_buffer(capacity: int = 10, **kwargs: Any) -> ReplayBuffer:
    return ReplayBuffer(storage=LazyTensorStorage(capacity), **kwargs)
