"""Ensembles whose items say which buffer and which place they are of."""

from __future__ import annotations

from typing import Any

import torch
from tensordict import TensorDict

from replaybank.buffers import (
    ReplayBufferEnsemble,
    TensorDictPrioritizedReplayBuffer,
    TensorDictReplayBuffer,
)
from replaybank.samplers import SamplerWithoutReplacement
from replaybank.storages import LazyTensorStorage


def steps(part: int, count: int, start: int = 0, **more: Any) -> TensorDict:
    """Steps that know which part they are of, and their number in it."""
    n = torch.arange(start, start + count)
    return TensorDict({"part": torch.full((count,), part), "n": n, **more}, batch_size=count)


def parts_of(*sizes: int, kind: Any = TensorDictReplayBuffer, **kwargs: Any) -> list[Any]:
    found = []
    for number, size in enumerate(sizes):
        made = {name: value() if callable(value) else value for name, value in kwargs.items()}
        buffer = kind(storage=LazyTensorStorage(20), **made)
        if size:
            buffer.extend(steps(number, size))
        found.append(buffer)
    return found


def prioritized(*sizes: int, **kwargs: Any) -> list[Any]:
    return parts_of(*sizes, kind=TensorDictPrioritizedReplayBuffer, alpha=1.0, beta=1.0, eps=0.0, **kwargs)


def passes(*sizes: int, **kwargs: Any) -> list[Any]:
    return parts_of(*sizes, sampler=lambda: SamplerWithoutReplacement(**kwargs))


def seeded(*buffers: Any, seed: int = 0, **kwargs: Any) -> Any:
    return ReplayBufferEnsemble(*buffers, generator=torch.Generator().manual_seed(seed), **kwargs)


def check(sample: Any) -> None:
    """Every item is of the part and the place that its index says."""
    assert torch.equal(sample["part"], sample["index", "buffer_ids"])
    assert torch.equal(sample["n"], sample["index", "index"].reshape(sample["n"].shape))
