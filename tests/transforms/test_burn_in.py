"""Burn-in in front of slices, against brute force, with every slice sampler, at the cursor too."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tensordict import TensorDict

from depth import examples
from reference.streams import Streams
from replaybank import (
    BurnIn,
    EncodedFrames,
    FrameStack,
    HindsightRelabel,
    LazyMemmapStorage,
    LazyTensorStorage,
    ListStorage,
    NStep,
    PrioritizedSliceSampler,
    RandomSampler,
    ReplayBuffer,
    SliceSampler,
    SliceSamplerWithoutReplacement,
    TensorDictReplayBuffer,
    split_trajectories,
)
from stream_world import SAMPLERS, World

SLICES = sorted(name for name in SAMPLERS if "slices" in name)


def slices_of(batch: TensorDict) -> list[range]:
    """The places in a batch of each of its slices."""
    ends = batch["next", "truncated"].squeeze(-1).nonzero().squeeze(-1).tolist()
    starts = [0, *(end + 1 for end in ends)]
    assert starts[-1] == len(batch)
    return [range(start, end + 1) for start, end in zip(starts, ends, strict=False)]


def expected_before(streams: Streams, column: int, place: int, n: int) -> list[tuple[int, bool]]:
    """Place of each of the ``n`` steps before one, and whether it only stands for one that is not there."""
    first = streams.trajectory(column, place)[0].place
    return [(max(place - k, first), place - k < first) for k in range(n, 0, -1)]


def check_burn_in(world: World, n: int) -> None:
    streams, batch = world.streams, world.batch
    columns, places = batch["column"].tolist(), batch["place"].tolist()
    burn_in, padded = batch["burn_in"].squeeze(-1).tolist(), batch["padded"].squeeze(-1).tolist()
    ended = (batch["next", "done"] | batch["next", "terminated"]).squeeze(-1).tolist()
    for found in slices_of(batch):
        first = found[n]
        assert [burn_in[k] for k in found] == [k < first for k in found]
        before = expected_before(streams, columns[first], places[first], n)
        assert [(places[k], padded[k]) for k in found[:n]] == before
        for k in found[n:]:
            assert (places[k], padded[k]) == (places[first] + k - first, False)
        assert {columns[k] for k in found} == {columns[first]}
        assert not any(ended[k] for k in found[:-1])
    stored = world.buffer.storage.get(tuple(batch["index"].unbind(-1)))
    assert stored["place"].tolist() == places
    assert stored["column"].tolist() == columns


@settings(max_examples=examples(80), deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(1, 5), st.sampled_from(SLICES))
def test_the_steps_before_each_slice_are_those_of_the_twin(seed: int, n: int, sampler: str) -> None:
    world = World(seed, BurnIn(n, extend=True), sampler)
    check_burn_in(world, n)
    if "prioritized" in sampler:
        for found in slices_of(world.batch):
            for key in ("priority_weight", "_generation"):
                assert len(set(world.batch[key].reshape(-1)[list(found)].tolist())) == 1


@pytest.mark.parametrize("sampler", SLICES)
def test_what_the_sampler_drew_is_there_whole(sampler: str) -> None:
    plain, extended = World(5, None, sampler), World(5, BurnIn(3, extend=True), sampler)
    assert torch.equal(extended.batch[~extended.batch["burn_in"].squeeze(-1)]["place"], plain.batch["place"])
    training = ~extended.batch["burn_in"].squeeze(-1)
    for key in (("next", "done"), ("next", "terminated"), ("next", "truncated"), "index", ("next", "reward")):
        assert torch.equal(extended.batch[key][training], plain.batch[key])


@settings(max_examples=examples(40), deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(1, 4), st.integers(1, 4), st.booleans())
def test_frames_and_returns_see_the_steps_before_a_slice_as_its_own(
    seed: int, n: int, m: int, swapped: bool
) -> None:
    transforms = [BurnIn(2, extend=True), NStep(n, 0.9), FrameStack(m, dim=-1)]
    world = World(seed, transforms[::-1] if swapped else transforms, SLICES[seed % len(SLICES)])
    streams, batch = world.streams, world.batch
    for k, (column, place) in enumerate(world.steps(batch)):
        run = streams.run(column, place, n)
        frames = [number for frame in streams.frames(column, place, m, None) for number in frame]
        after = [number for frame in streams.next_frames(column, run[-1].place, m, None) for number in frame]
        assert batch["observation"][k].tolist() == frames
        assert batch["next", "observation"][k].tolist() == after
        assert int(batch["steps_to_next_obs"][k]) == len(run)


def test_a_slice_has_one_goal_with_the_steps_before_it() -> None:
    def reward(achieved: torch.Tensor, goal: torch.Tensor) -> torch.Tensor:
        return (achieved - goal).float()

    for seed in range(20):
        transforms = [BurnIn(3, extend=True), HindsightRelabel(reward, ratio=0.6)]
        batch = World(seed, transforms, "slices").batch
        for found in slices_of(batch):
            assert len(set(batch["desired_goal"][list(found)].reshape(-1).tolist())) == 1


def numbered(rows: int, *ends: int) -> TensorDict:
    done = torch.zeros(rows, 1, dtype=torch.bool)
    done[list(ends)] = True
    number = torch.arange(rows)
    after = {"observation": number + 1, "reward": torch.ones(rows, 1), "done": done}
    return TensorDict({"observation": number, "next": after}, [rows])


def drawn(data: TensorDict, burn_in: BurnIn, size: int, capacity: int = 100, **arguments: Any) -> TensorDict:
    buffer = TensorDictReplayBuffer(
        storage=LazyTensorStorage(capacity),
        sampler=SliceSamplerWithoutReplacement(shuffle=False, strict_length=False, **arguments),
        transform=burn_in,
        batch_size=size,
        generator=torch.Generator().manual_seed(0),
    )
    buffer.extend(data)
    batch: TensorDict = buffer.sample()
    return batch


def test_slices_of_one_length_are_rows() -> None:
    batch = drawn(numbered(12, 3, 7, 11), BurnIn(2, extend=True), 12, num_slices=3).reshape(3, 6)
    assert batch["observation"].tolist() == [[0, 0, 0, 1, 2, 3], [4, 4, 4, 5, 6, 7], [8, 8, 8, 9, 10, 11]]
    assert batch["padded"].squeeze(-1).tolist() == [[True, True, False, False, False, False]] * 3
    assert batch["burn_in"].squeeze(-1).tolist() == [[True, True, False, False, False, False]] * 3


def test_what_stands_for_a_missing_step_ends_nothing_so_that_slices_can_be_told_apart() -> None:
    data = numbered(3, 0, 1, 2)  # trajectories of one step, whose only step is terminal
    data["next", "terminated"] = data["next", "done"].clone()
    batch = drawn(data, BurnIn(2, extend=True), 3, num_slices=3)
    assert batch["next", "done"].squeeze(-1).tolist() == [False, False, True] * 3
    assert batch["next", "terminated"].squeeze(-1).tolist() == [False, False, True] * 3
    rows = split_trajectories(batch)
    assert rows["observation"].tolist() == [[0, 0, 0], [1, 1, 1], [2, 2, 2]]


def test_a_ring_smaller_than_the_burn_in_gives_what_it_has() -> None:
    for capacity in (1, 2, 3):
        data = numbered(7)
        batch = drawn(data, BurnIn(5, extend=True), 1, capacity, num_slices=1)
        oldest = 7 - capacity
        first = int(batch["observation"][5])
        assert batch["observation"][:5].tolist() == [max(first - k, oldest) for k in range(5, 0, -1)]


def test_what_was_overwritten_is_not_read() -> None:
    buffer = TensorDictReplayBuffer(
        storage=LazyTensorStorage(10),
        sampler=SliceSampler(slice_len=2),
        transform=BurnIn(4, extend=True),
        batch_size=60,
        generator=torch.Generator().manual_seed(0),
    )
    buffer.extend(numbered(17))
    rows = buffer.sample().reshape(30, 6)["observation"]
    assert int(rows.min()) == 7
    assert {tuple(row) for row in rows.tolist() if row[4] == 8} == {(7, 7, 7, 7, 8, 9)}


def test_ends_are_those_that_the_sampler_was_told_of() -> None:
    data = numbered(12, 5)
    data["run"] = torch.arange(12) // 3
    for told, first in (({"traj_key": "run"}, 3), ({"end_key": ("next", "done")}, 1)):
        buffer = TensorDictReplayBuffer(
            storage=LazyTensorStorage(12),
            sampler=SliceSampler(slice_len=2, **told),
            transform=BurnIn(2, extend=True),
            batch_size=240,
            generator=torch.Generator().manual_seed(0),
        )
        buffer.extend(data)
        rows = buffer.sample().reshape(-1, 4)["observation"]
        assert {row[0] for row in rows.tolist() if row[2] == 3} == {first}
        related = buffer.transform.related
        assert related is not None
        assert not related._slicings  # the sampler's index serves both
    static = TensorDictReplayBuffer(
        storage=LazyTensorStorage(12),
        sampler=SliceSampler(slice_len=2, ends=torch.arange(12) % 4 == 3),
        transform=[BurnIn(2, extend=True), NStep(3, 1.0)],
        batch_size=240,
    )
    static.extend(data)
    batch = static.sample().reshape(-1, 4)
    assert {row[0] for row in batch["observation"].tolist() if row[2] == 4} == {4}
    assert {int(k) for k in batch["steps_to_next_obs"][batch["observation"] == 3]} == {1}


STORAGES: dict[str, Callable[[Path], Any]] = {
    "derived": lambda path: LazyTensorStorage(20, next_observation="derive"),
    "memory-mapped": lambda path: LazyMemmapStorage(20, scratch_dir=path),
    "encoded": lambda path: LazyTensorStorage(20, encoded={"pixels": EncodedFrames("png")}),
}


@pytest.mark.parametrize("kind", STORAGES)
def test_every_kind_of_storage_gives_the_same(kind: str, tmp_path: Path) -> None:
    data = numbered(33, 4, 5, 17, 29)
    data["pixels"] = (torch.arange(33)[:, None, None, None] + torch.zeros(1, 4, 4, 3)).to(torch.uint8)
    batches = []
    for make in (lambda path: LazyTensorStorage(20), STORAGES[kind]):
        buffer = TensorDictReplayBuffer(
            storage=make(tmp_path),
            sampler=SliceSampler(slice_len=3),
            transform=[BurnIn(4, extend=True), FrameStack(2, dim=-3, in_keys=["pixels"])],
            batch_size=30,
            generator=torch.Generator().manual_seed(3),
        )
        buffer.extend(data)
        batches.append(buffer.sample())
    assert bool((batches[0] == batches[1]).all())
    assert torch.equal(batches[1]["pixels"][:, 2 * 4 // 2 :, 0, 0].long()[:, 0], batches[1]["observation"])


def test_items_of_a_list_are_read_too() -> None:
    data = numbered(8)
    ends = torch.tensor([False, False, True, False, False, False, False, True])
    buffer = TensorDictReplayBuffer(
        storage=ListStorage(8),
        sampler=SliceSampler(slice_len=2, ends=ends),
        transform=BurnIn(2, extend=True),
        batch_size=40,
    )
    buffer.extend(list(data.unbind(0)))
    rows = buffer.sample().reshape(-1, 4)["observation"]
    for row in rows.tolist():
        first = 0 if row[2] < 3 else 3
        assert row[:2] == [max(row[2] - 2, first), max(row[2] - 1, first)]


def test_batches_drawn_ahead_are_the_same_and_are_extended_later_too(tmp_path: Path) -> None:
    def made(prefetch: int | None, transform: Any) -> TensorDictReplayBuffer:
        buffer = TensorDictReplayBuffer(
            storage=LazyTensorStorage(20),
            sampler=SliceSampler(slice_len=3),
            transform=transform,
            batch_size=12,
            prefetch=prefetch,
            generator=torch.Generator().manual_seed(3),
        )
        buffer.extend(numbered(33, 4, 17, 29))
        return buffer

    plain, ahead = made(None, BurnIn(2, extend=True)), made(2, BurnIn(2, extend=True))
    later = made(3, None)
    try:
        later.sample()
        plain.sample()
        ahead.sample()
        later.append_transform(BurnIn(2, extend=True))
        ahead.dumps(tmp_path)
        loaded = made(2, BurnIn(2, extend=True))
        loaded.loads(tmp_path)
        copied = copy.deepcopy(ahead)
        for _ in range(5):
            batch = plain.sample()
            assert batch["padded"].shape == (20, 1)
            for other in (ahead, later, loaded, copied):
                assert bool((other.sample() == batch).all())
    finally:
        for buffer in (ahead, later, loaded, copied):
            buffer.close()


def test_priorities_go_to_the_steps_that_were_drawn() -> None:
    buffer = TensorDictReplayBuffer(
        storage=LazyTensorStorage(20),
        sampler=PrioritizedSliceSampler(20, 1.0, 1.0, eps=0.0, slice_len=3),
        transform=BurnIn(2, extend=True),
        batch_size=9,
    )
    buffer.extend(numbered(20))
    batch = buffer.sample()
    training = batch[~batch["burn_in"].squeeze(-1)]
    training["td_error"] = torch.zeros(9)
    buffer.update_tensordict_priority(training)
    starts = set(batch.reshape(3, 5)["observation"][:, 2].tolist())
    assert not starts & set(buffer.sample().reshape(3, 5)["observation"][:, 2].tolist())


def test_the_first_step_that_was_drawn_of_each_slice_can_be_marked() -> None:
    data = numbered(9, 3, 5, 8)  # trajectories of 4, 2 and 3 steps
    marks = BurnIn(2, extend=True, first_key=("marks", "first"))
    batch = drawn(data, marks, 9, num_slices=3)
    first = batch["marks", "first"].squeeze(-1)
    assert marks.first_key == ("marks", "first")
    assert torch.equal(first, ~batch["burn_in"].squeeze(-1) & batch["burn_in"].squeeze(-1).roll(1))
    assert first.sum() == 3
    slices = split_trajectories(batch[~batch["padded"].squeeze(-1)])
    burn_in = slices["burn_in"].squeeze(-1)
    firsts = slices[torch.arange(len(slices)), burn_in.sum(1)]
    assert torch.equal(firsts["observation"], batch["observation"][first])
    assert torch.equal(slices[slices["marks", "first"].squeeze(-1)]["observation"], firsts["observation"])
    plain = drawn(data, BurnIn(2, first_key="first"), 9, num_slices=3)
    assert plain["observation"][plain["first"].squeeze(-1)].tolist() == firsts["observation"].tolist()
    assert "first" not in drawn(data, BurnIn(2), 9, num_slices=3).keys()  # noqa: SIM118


def test_a_plain_buffer_gets_the_steps_and_their_info() -> None:
    buffer = ReplayBuffer(
        storage=LazyTensorStorage(20),
        sampler=SliceSampler(slice_len=3),
        transform=BurnIn(2, extend=True, mask_key=("marks", "burn_in"), padded_key=("marks", "padded")),
        batch_size=6,
    )
    buffer.extend(numbered(20))
    batch, info = buffer.sample(return_info=True)
    assert batch["marks", "burn_in"].shape == (10, 1)
    assert torch.equal(info["marks", "padded"], batch["marks", "padded"])
    assert info["next", "truncated"].squeeze(-1).tolist() == [False] * 4 + [True] + [False] * 4 + [True]
    assert torch.equal(info["index"][0], batch["observation"])


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(ValueError, match="are both 'padded'"):
        BurnIn(2, mask_key="padded")
    with pytest.raises(ValueError, match="first_key='burn_in' is the key of another"):
        BurnIn(2, first_key="burn_in")
    with pytest.raises(ValueError, match="n=0"):
        BurnIn(0, extend=True)
    both = [BurnIn(2, extend=True), BurnIn(3, extend=True, mask_key="more")]
    with pytest.raises(ValueError, match="give one of them"):
        ReplayBuffer(storage=LazyTensorStorage(20), transform=both)
    for sampler in (RandomSampler(), SliceSampler(slice_len=2, truncated_key=None)):
        buffer = ReplayBuffer(
            storage=LazyTensorStorage(20), sampler=sampler, transform=BurnIn(2, extend=True), batch_size=4
        )
        buffer.extend(numbered(20))
        with pytest.raises(RuntimeError, match=r"BurnIn\(n=2, extend=True\) is for the first steps of"):
            buffer.sample()
