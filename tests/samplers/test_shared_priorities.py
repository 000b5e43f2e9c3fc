"""Prioritized samplers in several processes at once: no update is lost, and all see one tree."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.multiprocessing as mp
from tensordict import TensorDict

from patience import PATIENCE
from replaybank.buffers.tensordict import TensorDictReplayBuffer
from replaybank.samplers import PrioritizedSampler, PrioritizedSliceSampler
from replaybank.storages import LazyTensorStorage

ROUNDS, ITEMS = 40, 60


def steps(first: int, count: int) -> TensorDict:
    number = torch.arange(first, first + count)
    return TensorDict({"number": number, "episode": number // 5}, [count])


def update(buffer: TensorDictReplayBuffer, remainder: int) -> None:
    """Raise the priorities of every other item, round by round, and sample in between."""
    mine = torch.arange(remainder, ITEMS, 2)
    for k in range(ROUNDS):
        buffer.update_priority(mine, float(k + 1 + remainder))
        number = buffer.sample()["number"]
        assert bool((number < ITEMS).all())


@pytest.mark.parametrize(
    "sampler",
    [
        PrioritizedSampler(80, 1.0, 1.0, eps=0.0),
        PrioritizedSliceSampler(80, 1.0, 1.0, eps=0.0, slice_len=2),
    ],
    ids=["items", "slices"],
)
def test_two_processes_that_update_at_once_lose_nothing(sampler: Any) -> None:
    buffer = TensorDictReplayBuffer(
        storage=LazyTensorStorage(80, shared_init=True), sampler=sampler, batch_size=20, shared=True
    )
    buffer.extend(steps(0, ITEMS))
    buffer.sample()
    child: Any = mp.get_context("spawn").Process(target=update, args=(buffer, 1))
    child.start()
    update(buffer, 0)
    child.join(PATIENCE)
    child.kill()
    assert child.exitcode == 0
    expected = [float(ROUNDS + k % 2) for k in range(ITEMS)]
    assert sampler.weights.tolist() == expected
    assert sampler.max_priority == ROUNDS + 1
    assert sampler._table.tree.total == sum(expected)
    if isinstance(sampler, PrioritizedSliceSampler) and hasattr(sampler, "_starts"):
        buffer.sample()
        starts = [weight if k % 5 < 4 else 0.0 for k, weight in enumerate(expected)]
        assert sampler._starts.tree.leaves.tolist() == starts + [0.0] * (80 - ITEMS)
        assert sampler._starts.tree.total == sum(starts)
    buffer.extend(steps(ITEMS, 5))
    assert sampler.weights.tolist() == [*expected, *[ROUNDS + 1.0] * 5]
