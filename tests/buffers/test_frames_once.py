"""Frames are stored once, and what buffers sample is bit by bit what happened.

Each frame is a function of its environment, episode and step, so every sampled observation can be told to be
the true one: at ends of episodes, terminated or truncated, at the cursor, in every column, under every
sampler.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tensordict import TensorDict
from torch import Tensor

from replaybank import (
    EncodedFrames,
    LazyMemmapStorage,
    LazyTensorStorage,
    PrioritizedSampler,
    PrioritizedSliceSampler,
    RandomSampler,
    Sampler,
    SamplerWithoutReplacement,
    SliceSampler,
    SliceSamplerWithoutReplacement,
    TensorDictReplayBuffer,
)

SIDE = 12
LAST_TO_FRAME = torch.arange(SIDE * SIDE).view(1, SIDE, SIDE)


def frames(env: Tensor, episode: Tensor, step: Tensor) -> Tensor:
    """uint8 ``[*ids, 1, 12, 12]``: no two that meet in these tests are alike."""
    seed = (env * 131 + episode * 31 + step * 7)[..., None, None, None]
    return ((seed + LAST_TO_FRAME * (1 + step[..., None, None, None] % 5)) % 251).to(torch.uint8)


class Run:
    """What environments did, a time row at a time."""

    def __init__(self, columns: tuple[int, ...], seed: int) -> None:
        self.columns = columns
        self.count = int(torch.Size(columns).numel())
        self.generator = torch.Generator().manual_seed(seed)
        self.env = torch.arange(self.count)
        self.episode = torch.zeros(self.count, dtype=torch.int64)
        self.step = torch.zeros(self.count, dtype=torch.int64)

    def rows(self, count: int) -> TensorDict:
        """``[T, *columns]``."""
        rows = []
        for _ in range(count):
            ended = torch.rand(self.count, generator=self.generator) < 0.15
            truncated = ended & (torch.rand(self.count, generator=self.generator) < 0.5)
            row = {
                "observation": frames(self.env, self.episode, self.step),
                "env": self.env,
                "episode": self.episode.clone(),
                "step": self.step.clone(),
                "ended": ended,  # slices say where they end themselves in ("next", "done")
                "cut off": truncated,
                "next": {
                    "observation": frames(self.env, self.episode, self.step + 1),
                    "done": ended[:, None],
                    "truncated": truncated[:, None],
                    "terminated": (ended & ~truncated)[:, None],
                },
            }
            rows.append(TensorDict(row, [self.count]))
            self.episode = self.episode + ended
            self.step = torch.where(ended, 0, self.step + 1)
        data: Any = torch.stack(rows)  # type: ignore[arg-type]
        found: TensorDict = data.reshape(count, *self.columns) if self.columns else data.squeeze(1)
        return found


SAMPLERS: dict[str, Callable[[], Sampler]] = {
    "random": RandomSampler,
    "without": SamplerWithoutReplacement,
    "prioritized": lambda: PrioritizedSampler(1000, 0.7, 0.5),
    "slices": lambda: SliceSampler(slice_len=4, strict_length=False),
    "slices by their ends": lambda: SliceSampler(slice_len=4, strict_length=False, end_key=("next", "done")),
    "slices without": lambda: SliceSamplerWithoutReplacement(slice_len=4, strict_length=False),
    "prioritized slices": lambda: PrioritizedSliceSampler(1000, 0.7, 0.5, slice_len=4, strict_length=False),
}

KEYS = (("observation",), ("next", "observation"))
STORAGES: dict[str, Callable[..., LazyTensorStorage]] = {
    "derived": lambda size, ndim: LazyTensorStorage(size, ndim=ndim, next_observation="derive"),
    "derived, shared": lambda size, ndim: LazyTensorStorage(
        size, ndim=ndim, next_observation="derive", shared_init=True
    ),
    "derived, on disk": lambda size, ndim: LazyMemmapStorage(size, ndim=ndim, next_observation="derive"),
    "encoded": lambda size, ndim: LazyTensorStorage(
        size, ndim=ndim, encoded={key: EncodedFrames("png", channels_first=True) for key in KEYS}
    ),
}


def check(batch: TensorDict) -> None:
    env, episode, step = batch["env"], batch["episode"], batch["step"]
    assert torch.equal(batch["observation"], frames(env, episode, step))
    assert torch.equal(batch["next", "observation"], frames(env, episode, step + 1))


@pytest.mark.parametrize("columns", [(), (3,)], ids=str)
@pytest.mark.parametrize("storage", list(STORAGES))
@pytest.mark.parametrize("sampler", list(SAMPLERS))
def test_every_sampled_observation_is_the_true_one(
    storage: str, sampler: str, columns: tuple[int, ...]
) -> None:
    rows = 23
    run = Run(columns, seed=len(storage))
    buffer = TensorDictReplayBuffer(
        storage=STORAGES[storage](rows * run.count, 1 + len(columns)),
        sampler=SAMPLERS[sampler](),
        batch_size=32,
        dim_extend=0,
        generator=torch.Generator().manual_seed(0),
    )
    ends = truncations = 0
    # partly filled, full, around the end, more than there is room for
    for count in (1, 5, 9, 7, 1, 13, 2, 30, 3):
        buffer.extend(run.rows(count))
        for _ in range(2):
            batch = buffer.sample()
            check(batch)
            if "prioritized" in sampler:
                batch["td_error"] = torch.rand(batch.shape[0])
                buffer.update_tensordict_priority(batch)
            ends += int(batch["ended"].sum())
            truncations += int(batch["cut off"].sum())
    assert ends > truncations > 0
    data = buffer.storage[:]
    check(data)
    newest = (buffer.storage.log.cursor - 1) % rows
    last = data[newest].reshape(-1)[0]
    assert torch.equal(last["next", "observation"], frames(last["env"], last["episode"], last["step"] + 1))


def test_an_atari_shaped_buffer_takes_half_and_gives_the_same() -> None:
    """84 x 84 frames, four stacked, of eight environments, with episodes of a hundred steps."""
    rows, envs, episode = 120, 8, 50
    full = LazyTensorStorage(rows * envs, ndim=2)
    half = LazyTensorStorage(rows * envs, ndim=2, next_observation="derive")
    generator = torch.Generator().manual_seed(0)
    run = torch.randint(0, 256, (300, envs, 4, 84, 84), dtype=torch.uint8, generator=generator)
    for start in range(0, 290, 10):
        ends = (torch.arange(start, start + 10)[:, None] + 6 * torch.arange(envs)) % episode == episode - 1
        after = run[start + 1 : start + 11].clone()
        after[ends] ^= 255
        data: Any = TensorDict(
            {
                "observation": run[start : start + 10],
                "next": {"observation": after, "done": ends[..., None]},
            },
            [10, envs],
        )
        for storage in (full, half):
            storage.set([(start + k) % rows for k in range(10)], data)
    index = tuple(torch.randint(0, size, (64,), generator=generator) for size in (rows, envs))
    one, other = full.get(index), half.get(index)
    assert all(torch.equal(one[key], other[key]) for key in (*KEYS, ("next", "done")))
    assert half.stored_bytes() < 0.55 * 2 * rows * envs * 4 * 84 * 84
