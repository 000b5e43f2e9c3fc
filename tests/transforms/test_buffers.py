"""Sampling transforms in buffers: when they run, and what goes on with them."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tensordict import TensorDict, tensorclass
from torch import Tensor

from reference.streams import Streams, discounted
from replaybank import (
    CompressedListStorage,
    FrameStack,
    HindsightRelabel,
    ImmutableDatasetWriter,
    LazyMemmapStorage,
    LazyStackStorage,
    LazyTensorStorage,
    ListStorage,
    NStep,
    PrioritizedSampler,
    RandomSampler,
    ReplayBuffer,
    SliceSampler,
    TensorDictReplayBuffer,
    TensorStorage,
)


def reward(achieved: Tensor, goal: Tensor) -> Tensor:
    return achieved.float() - goal


def every() -> list[Any]:
    return [NStep(3, 0.9), FrameStack(2), HindsightRelabel(reward)]


def filled(seed: int = 0, steps: int = 30, **arguments: Any) -> TensorDictReplayBuffer:
    arguments = {"storage": LazyTensorStorage(20), "transform": every(), "batch_size": 8, **arguments}
    buffer = TensorDictReplayBuffer(generator=torch.Generator().manual_seed(seed), **arguments)
    buffer.extend(Streams(seed, 1, 20).steps(steps)[0])
    return buffer


def same(left: Any, right: Any) -> bool:
    return set(left.keys(True, True)) == set(right.keys(True, True)) and bool((left == right).all())


def test_they_come_before_other_transforms_and_reading_leaves_them_out() -> None:
    seen: list[tuple[int, ...]] = []

    def look(batch: TensorDict) -> TensorDict:
        seen.append(tuple(batch["observation"].shape))
        return batch

    buffer = filled(transform=[look, FrameStack(3)])
    buffer.append_transform(NStep(2, 0.9))
    batch = buffer.sample()
    assert seen == [(8, 6)]
    assert "steps_to_next_obs" in batch.keys()  # noqa: SIM118 (a TensorDict iterates over items)
    assert buffer[:4]["observation"].shape == (4, 2)
    assert len(buffer.transform) == 3
    assert "NStep(n_steps=2, gamma=0.9)" in repr(buffer)


def test_a_seed_decides_goals_too() -> None:
    first, second, other = filled(1), filled(1), filled(1)
    other.set_rng(torch.Generator().manual_seed(2))
    assert same(first.sample(), second.sample())
    assert not torch.equal(first.sample()["desired_goal"], other.sample()["desired_goal"])


@pytest.mark.parametrize("clone", [copy.deepcopy, lambda buffer: pickle.loads(pickle.dumps(buffer))])
def test_a_copy_goes_on_as_the_buffer_does(clone: Callable[[Any], Any]) -> None:
    buffer = filled()
    buffer.sample()
    copied = clone(buffer)
    for _ in range(3):
        assert same(buffer.sample(), copied.sample())
    copied.extend(Streams(5, 1, 20).steps(3)[0])
    copied.sample()


def test_a_checkpoint_goes_on_as_the_buffer_does(tmp_path: Path) -> None:
    buffer, loaded = filled(), filled(7, 3)
    buffer.sample()
    buffer.dumps(tmp_path / "saved")
    loaded.loads(tmp_path / "saved")
    for _ in range(3):
        assert same(buffer.sample(), loaded.sample())


def test_batches_drawn_ahead_are_the_same() -> None:
    plain, ahead = filled(), filled(prefetch=2)
    try:
        for _ in range(6):
            assert same(plain.sample(), ahead.sample())
    finally:
        ahead.close()


def test_what_was_drawn_ahead_goes_through_a_transform_that_comes_later() -> None:
    buffer = filled(prefetch=3, transform=None)
    try:
        buffer.sample()
        buffer.append_transform(FrameStack(3))
        for _ in range(5):
            assert buffer.sample()["observation"].shape == (8, 6)
    finally:
        buffer.close()


def test_priorities_go_to_the_first_steps() -> None:
    buffer = filled(sampler=PrioritizedSampler(20, 1.0, 1.0, eps=0.0), transform=NStep(3, 0.9))
    batch = buffer.sample()
    batch["td_error"] = torch.zeros(8)
    buffer.update_tensordict_priority(batch)
    assert not set(buffer.sample()["place"].tolist()) & set(batch["place"].tolist())


def test_another_buffer_on_the_storage_is_followed() -> None:
    streams = Streams(3, 1, 12)
    storage = LazyTensorStorage(12)
    reading = TensorDictReplayBuffer(storage=storage, transform=NStep(4, 0.5), batch_size=16)
    writing = TensorDictReplayBuffer(storage=storage, writer=reading.writer)
    for count in (1, 5, 9, 2, 30, 1):
        writing.extend(streams.steps(count)[0])
        batch = reading.sample()
        for place, found in zip(batch["place"].tolist(), batch["next", "reward"].tolist(), strict=True):
            run = streams.run(0, place, 4)
            assert found == pytest.approx([discounted([step.reward for step in run], 0.5)], abs=1e-6)


def test_an_emptied_buffer_starts_anew() -> None:
    streams, buffer = Streams(0, 1, 20), filled()
    buffer.sample()
    buffer.empty()
    buffer.extend(streams.steps(4)[0])
    batch = buffer.sample()
    assert batch["steps_to_next_obs"].max() <= 4


def test_a_replaced_end_counts_at_once() -> None:
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(20), transform=NStep(20, 1.0), batch_size=64)
    steps = Streams(0, 1, 20).steps(6)[0]
    steps["next", "done"].zero_()
    buffer.extend(steps)
    assert buffer.sample()["steps_to_next_obs"].max() == 6
    steps["next", "done"][2] = True
    buffer[:] = steps.set("index", torch.arange(6))
    batch = buffer.sample()
    places, count = batch["place"], batch["steps_to_next_obs"].squeeze(-1)
    assert torch.equal(count, torch.where(places <= 2, 3 - places, 6 - places))


@pytest.mark.parametrize("storage", ["files", "images"])
def test_storages_that_make_what_they_give_are_read_as_they_are(storage: str, tmp_path: Path) -> None:
    streams = Streams(2, 2, 10)
    made: Any
    if storage == "files":
        made = LazyMemmapStorage(20, scratch_dir=tmp_path / "files", ndim=2, next_observation="derive")
    else:
        pytest.importorskip("PIL")
        from replaybank import EncodedFrames

        made = LazyTensorStorage(20, ndim=2, encoded={"pixels": EncodedFrames("png")})
    buffer = TensorDictReplayBuffer(
        storage=made,
        transform=[NStep(3, 0.9), FrameStack(3, dim=None, in_keys=["place", "pixels"])],
        batch_size=16,
    )
    for count in (3, 9, 4):
        data = streams.steps(count)
        place = data["place"].to(torch.uint8)
        data["pixels"] = place[..., None, None, None].expand(*place.shape, 8, 8, 3).contiguous()
        buffer.extend(data)
        batch = buffer.sample()
        assert torch.equal(batch["pixels"][..., 0, 0, 0].long(), batch["place"])
        for k, (column, places) in enumerate(
            zip(batch["column"].tolist(), batch["place"].tolist(), strict=True)
        ):
            frames = streams.frames(column, places[-1], 3, None)
            assert places == [int(frame[0]) for frame in frames]
            run = streams.run(column, places[-1], 3)
            assert batch["next", "observation"][k].tolist() == run[-1].after


@pytest.mark.parametrize("shape", ["negative", "int32", "columns"])
def test_the_indices_of_a_sampler_of_a_users_own_are_understood(shape: str) -> None:
    class Own(RandomSampler):
        def sample(self, storage: Any, batch_size: int) -> Any:
            index, info = super().sample(storage, batch_size)
            if isinstance(index, tuple):
                return (index[0] - 20, index[1]), info
            return (index - len(storage) if shape == "negative" else index.int()), info

    nested = shape == "columns"
    streams = Streams(0, 2 if nested else 1, 20)
    buffer = TensorDictReplayBuffer(
        storage=LazyTensorStorage(40 if nested else 20, ndim=2 if nested else 1),
        sampler=Own(),
        transform=NStep(3, 0.9),
        batch_size=16,
    )
    data = streams.steps(31)
    buffer.extend(data if nested else data[0])
    batch = buffer.sample()
    for k, (column, place) in enumerate(zip(batch["column"].tolist(), batch["place"].tolist(), strict=True)):
        assert int(batch["steps_to_next_obs"][k]) == len(streams.run(column, place, 3))


@pytest.mark.parametrize("kind", [ListStorage, LazyStackStorage, CompressedListStorage])
def test_items_of_lists_are_read_where_ends_are_given(kind: Any) -> None:
    data = Streams(0, 1, 20).steps(12)[0]
    buffer = TensorDictReplayBuffer(
        storage=kind(12),
        sampler=SliceSampler(slice_len=2, ends=torch.arange(12) % 4 == 3),
        transform=[NStep(3, 1.0), FrameStack(2, dim=None)],
        batch_size=16,
    )
    buffer.extend(list(data.unbind(0)))
    batch = buffer.sample()
    for k, place in enumerate(batch["place"].tolist()):
        last = min(place + 2, place // 4 * 4 + 3)
        assert float(batch["next", "reward"][k]) == pytest.approx(
            float(data["next", "reward"][place : last + 1].sum()), abs=1e-6
        )
        before = max(place - 1, place // 4 * 4)
        assert batch["observation"][k].tolist() == data["observation"][[before, place]].tolist()


def test_tensors_that_were_given_are_read_as_they_lie() -> None:
    streams = Streams(0, 3, 20)
    data = streams.steps(20)
    for given in (data.transpose(0, 1), data[:, ::2].transpose(0, 1).contiguous(), data[:1].transpose(0, 1)):
        storage = TensorStorage(given, ndim=2)
        buffer = TensorDictReplayBuffer(
            storage=storage, writer=ImmutableDatasetWriter(), transform=NStep(1, 0.5), batch_size=16
        )
        batch = buffer.sample()
        rows, columns = batch["index"].unbind(1)
        assert torch.equal(batch["next", "reward"], given["next", "reward"][rows, columns])


def test_items_that_are_no_tensordicts_are_refused() -> None:
    listed = ReplayBuffer(storage=ListStorage(10), transform=NStep(3, 0.9), batch_size=2)
    listed.extend([torch.zeros(1), torch.ones(1)])
    with pytest.raises(RuntimeError, match="Could not get a tensordict out of the storage"):
        listed.sample()
    plain = ReplayBuffer(storage=LazyTensorStorage(10), transform=NStep(3, 0.9), batch_size=2)
    plain.extend({"next": {"reward": torch.zeros(3), "done": torch.zeros(3)}})
    with pytest.raises(TypeError, match="makes entries of TensorDicts, and the storage gives a dict"):
        plain.sample()


@tensorclass
class After:
    reward: Tensor
    done: Tensor


@tensorclass
class Item:
    observation: Tensor
    next: After


def test_a_tensorclass_gets_what_it_has_fields_for() -> None:
    buffer = ReplayBuffer(storage=LazyTensorStorage(10), transform=NStep(2, 0.5), batch_size=4)
    after = After(torch.ones(3), torch.tensor([False, False, True]), batch_size=[3])  # type: ignore[call-arg]
    buffer.extend(Item(torch.arange(3), after, batch_size=[3]))  # type: ignore[call-arg]
    batch = buffer.sample()
    assert isinstance(batch, Item)
    expected = torch.where(batch.observation == 2, 1.0, 1.5)
    assert torch.equal(batch.next.reward, expected)


def test_slices_of_a_plain_buffer_get_returns_too() -> None:
    buffer = ReplayBuffer(
        storage=LazyTensorStorage(20),
        sampler=SliceSampler(slice_len=2, strict_length=False, truncated_key=None),
        transform=[NStep(3, 0.9), HindsightRelabel(reward)],
        batch_size=8,
    )
    buffer.extend(Streams(0, 1, 20).steps(30)[0])
    batch, info = buffer.sample(return_info=True)
    assert batch["steps_to_next_obs"].shape == (len(info["index"][0]), 1)
