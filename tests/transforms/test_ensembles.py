"""Sampling transforms of ensembles: each item is transformed within the buffer that it came from."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch
from tensordict import TensorDict

from reference.streams import Streams, discounted
from replaybank import (
    BurnIn,
    FrameStack,
    HindsightRelabel,
    LazyTensorStorage,
    NStep,
    PrioritizedSampler,
    RandomSampler,
    ReplayBufferEnsemble,
    SamplerEnsemble,
    SliceSampler,
    StorageEnsemble,
    TensorDictReplayBuffer,
    TensorDictRoundRobinWriter,
    WriterEnsemble,
)


def part(seed: int, steps: int = 30, **arguments: Any) -> tuple[TensorDictReplayBuffer, Streams]:
    buffer = TensorDictReplayBuffer(
        storage=LazyTensorStorage(20), generator=torch.Generator().manual_seed(seed), **arguments
    )
    streams = Streams(seed, 1, 20)
    buffer.extend(streams.steps(steps)[0])
    return buffer, streams


def check_returns(batch: Any, streams: Streams, n: int) -> None:
    for place, found in zip(batch["place"].tolist(), batch["next", "reward"].tolist(), strict=True):
        run = streams.run(0, place, n)
        assert found == pytest.approx([discounted([step.reward for step in run], 0.9)], abs=1e-6)


def test_each_item_is_transformed_among_the_steps_of_its_own_buffer() -> None:
    (one, first), (two, second) = part(1), part(2, 13)
    both = ReplayBufferEnsemble(one, two, transform=NStep(3, 0.9), sample_from_all=True, batch_size=64)
    for _ in range(3):
        batch = both.sample()
        check_returns(batch[0], first, 3)
        check_returns(batch[1], second, 3)
        one.extend(first.steps(3)[0])
        two.extend(second.steps(9)[0])
    assert not torch.equal(one.sample(8)["next", "reward"], batch["next", "reward"][0, :8])
    assert "steps_to_next_obs" not in one.sample(8).keys()  # noqa: SIM118 (a TensorDict iterates over items)


def test_those_of_a_buffer_and_of_the_ensemble_go_together() -> None:
    """The return of the ensemble ends with frames that the first buffer alone stacks."""
    (one, first), (two, second) = part(1, transform=FrameStack(3, dim=None)), part(2)
    both = ReplayBufferEnsemble(one, two, sample_from_all=True, batch_size=32)
    both.append_transform(NStep(2, 0.9))
    parts = both.sample()
    assert both.transform.sampling == (both.transform[0],)
    for streams, batch, depth in ((first, parts[0], 3), (second, parts[1], 1)):
        check_returns(batch, streams, 2)
        for k, place in enumerate(batch["place"].tolist()):
            last = streams.run(0, place, 2)[-1]
            frames = streams.next_frames(0, last.place, depth, None)
            assert batch["next", "observation"][k].tolist() == (frames if depth > 1 else frames[0])


def test_a_batch_of_buffers_with_and_without_one_is_a_lazy_stack() -> None:
    (one, _), (two, second) = part(1), part(2, transform=NStep(3, 0.9))
    batch = ReplayBufferEnsemble(one, two, sample_from_all=True, batch_size=16).sample()
    check_returns(batch[1], second, 3)
    assert "gamma" not in batch[0].keys()  # noqa: SIM118
    assert batch["next", "reward"].shape == (2, 8, 1)


def reward(achieved: torch.Tensor, goal: torch.Tensor) -> torch.Tensor:
    return achieved.float() - goal


def test_goals_and_burn_in_stay_in_their_buffer() -> None:
    parts = [part(seed, sampler=SliceSampler(slice_len=2, strict_length=True)) for seed in (1, 2)]
    both = ReplayBufferEnsemble(
        *(buffer for buffer, _ in parts),
        transform=[BurnIn(3, extend=True), HindsightRelabel(reward, ratio=1.0)],
        sample_from_all=True,
        batch_size=16,
        generator=torch.Generator().manual_seed(0),
    )
    batch = both.sample()
    assert batch.shape == (2, 20)
    for number, (_, streams) in enumerate(parts):
        rows = batch[number].reshape(4, 5)
        for row in rows:
            places, goals = row["place"].tolist(), set(row["desired_goal"].reshape(-1).tolist())
            first = streams.trajectory(0, places[3])[0].place
            assert places[:3] == [max(places[3] - k, first) for k in (3, 2, 1)]
            assert len(goals) == 1
            assert goals.pop() - 1 in [step.place for step in streams.trajectory(0, places[4])]
    assert torch.equal(batch["index", "buffer_ids"], torch.tensor([[0] * 20, [1] * 20]))


def test_only_some_buffers_may_have_their_slices_extended() -> None:
    (one, _), (two, _) = (
        part(1, sampler=SliceSampler(slice_len=2), transform=BurnIn(3, extend=True)),
        part(2, sampler=SliceSampler(slice_len=2)),
    )
    batch = ReplayBufferEnsemble(one, two, sample_from_all=True, batch_size=8).sample()
    assert [item.batch_size for item in batch.unbind(0)] == [torch.Size([10]), torch.Size([4])]
    assert not bool(batch[1]["padded"].any())
    with pytest.raises(ValueError, match="give one of them"):
        ReplayBufferEnsemble(
            one, two, transform=BurnIn(2, extend=True), sample_from_all=True, batch_size=8
        ).sample()


def test_an_ensemble_of_storages_has_one_a_storage() -> None:
    storages, streams = [], [Streams(seed, 1, 20) for seed in (1, 2)]
    for each in streams:
        storage = LazyTensorStorage(20)
        storage.set(range(20), each.steps(20)[0].clone())
        storages.append(storage)
    both = ReplayBufferEnsemble(
        storages=StorageEnsemble(*storages, transforms=[NStep(3, 0.9), None]),
        samplers=SamplerEnsemble(RandomSampler(), RandomSampler(), sample_from_all=True),
        writers=WriterEnsemble(TensorDictRoundRobinWriter(), TensorDictRoundRobinWriter()),
        batch_size=32,
    )
    batch = both.sample()
    check_returns(batch[0], streams[0], 3)
    check_returns(batch[1], streams[1], 1)
    both.append_transform(FrameStack(2, dim=None))
    batch = both.sample()
    check_returns(batch[0], streams[0], 3)
    assert batch["observation"].shape == (2, 16, 2, 2)
    # Items that are read, and not sampled, are as they are stored.
    assert both.storage[:, :3]["observation"].shape == both[:, :3]["observation"].shape == (2, 3, 2)


def test_priorities_go_back_to_the_steps_that_were_drawn() -> None:
    (one, _), (two, _) = (part(seed, sampler=PrioritizedSampler(20, 1.0, 1.0, eps=0.0)) for seed in (1, 2))
    both = ReplayBufferEnsemble(one, two, transform=NStep(3, 0.9), sample_from_all=True, batch_size=16)
    batch = both.sample()
    batch["td_error"] = torch.zeros(2, 8)
    both.update_tensordict_priority(batch)
    again = both.sample()
    for number in range(2):
        assert not set(again["place"][number].tolist()) & set(batch["place"][number].tolist())


def test_copies_parts_and_checkpoints_go_on_with_them(tmp_path: Any) -> None:
    def made() -> ReplayBufferEnsemble:
        return ReplayBufferEnsemble(
            part(1)[0],
            part(2)[0],
            transform=[NStep(3, 0.9), HindsightRelabel(reward)],
            batch_size=16,
            generator=torch.Generator().manual_seed(5),
        )

    both = made()
    both.sample()
    both.dumps(tmp_path)
    loaded = made()
    loaded.loads(tmp_path)
    others = [copy.deepcopy(both), pickle.loads(pickle.dumps(both)), loaded]
    for _ in range(3):
        batch = both.sample()
        for other in others:
            assert bool((other.sample() == batch).all())
    single: TensorDict = both[[1]].sample()
    assert single["steps_to_next_obs"].shape == (1, 16, 1)
