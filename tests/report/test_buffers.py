"""Checkpoints of every kind of storage and sampler are read where they lie, and nothing in them is run."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tensordict import TensorDict

import replaybank
from replaybank import (
    CompressedListStorage,
    ConsumingSampler,
    EncodedFrames,
    LazyMemmapStorage,
    LazyStackStorage,
    LazyTensorStorage,
    ListStorage,
    ReplayBuffer,
    ReplayBufferEnsemble,
    SliceSampler,
    Storage,
    TensorDictPrioritizedReplayBuffer,
    TensorDictReplayBuffer,
    TensorStorage,
    checkpoint,
)
from replaybank.errors import DataFormatError, UnsafePickleError
from replaybank.report.buffers import STRETCH, BufferSubject
from replaybank.report.look import About, Look

T = 10
"""Steps of a trajectory."""


def steps(count: int) -> TensorDict:
    """Step ``k`` has the action ``k``; trajectories of ``T`` steps, those of odd number terminate."""
    k = torch.arange(count)
    last = (k % T == T - 1)[:, None]
    odd = (k // T % 2 == 1)[:, None]
    image = (k % 250).to(torch.uint8)[:, None, None, None].expand(count, 3, 8, 10).contiguous()
    return TensorDict(
        {
            "observation": k[:, None].float().expand(count, 3).contiguous(),
            "pixels": image,
            "action": k[:, None].float(),
            "next": {
                "observation": (k[:, None] + 1).float().expand(count, 3).contiguous(),
                "reward": torch.ones(count, 1),
                "done": last,
                "terminated": last & odd,
                "truncated": last & ~odd,
            },
        },
        [count],
    )


def looked(path: Path, seed: int = 0) -> tuple[list[Look], About]:
    subject = BufferSubject(path)
    try:
        looks = list(subject.looks(seed, lambda done, of: None))
        for one in looks:  # frames are read as long as the checkpoint is open
            for key, frames in one.frames.items():
                one.columns[key] = frames(range(one.length))  # type: ignore[index]
        return looks, subject.about()
    finally:
        subject.close()


STORAGES: dict[str, Callable[[int], Storage]] = {
    "memory": LazyTensorStorage,
    "derived": lambda size: LazyTensorStorage(size, next_observation="derive"),
    "encoded": lambda size: LazyTensorStorage(
        size, encoded={"pixels": EncodedFrames("png", channels_first=True)}
    ),
    "memmap": LazyMemmapStorage,
    "list": ListStorage,
    "stack": LazyStackStorage,
    "compressed": CompressedListStorage,
}


@pytest.mark.parametrize("kind", STORAGES)
def test_every_storage_gives_its_trajectories(kind: str, tmp_path: Path) -> None:
    if kind == "compressed":
        pytest.importorskip("compression.zstd" if sys.version_info >= (3, 14) else "backports.zstd")
    buffer = TensorDictReplayBuffer(storage=STORAGES[kind](100), batch_size=4)
    buffer.extend(steps(45))
    buffer.dumps(tmp_path / "saved")
    looks, about = looked(tmp_path / "saved")
    assert [one.length for one in looks] == [10, 10, 10, 10, 5]
    assert [one.ended for one in looks] == [True, True, True, True, False]
    actions = np.concatenate([one.numbers(("action",)) for one in looks])
    assert actions.reshape(-1).tolist() == list(range(45))
    for one in looks:
        pixels = one.columns["pixels",]
        assert isinstance(pixels, np.ndarray)
        assert pixels.shape == (one.length, 8, 10, 3)
        assert pixels[:, 0, 0, 0].tolist() == [int(a) for a in one.numbers(("action",)).reshape(-1)]  # type: ignore[union-attr]
    assert (about.episodes, about.steps, about.episodic) == (5, 45, True)
    assert about.lengths.tolist() == [10, 10, 10, 10, 5]
    assert about.looked == "all 5 trajectories"
    facts = dict(about.facts)
    assert facts["items"] == "45 of at most 100"
    assert facts["written in all"] == "45"
    kinds = {entry.name: (entry.kind, entry.form) for entry in about.entries}
    assert kinds["pixels"] == ("image", "PNG" if kind == "encoded" else "raw")
    assert (kinds["next/observation"][1] != "") == (kind == "derived")


def test_a_buffer_that_went_round_is_read_across_its_cursor(tmp_path: Path) -> None:
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(24), batch_size=4)
    buffer.extend(steps(20))
    buffer.extend(steps(40)[20:])
    buffer.dumps(tmp_path / "saved")
    looks, about = looked(tmp_path / "saved")
    assert sorted(one.length for one in looks) == [4, 10, 10]
    got = {tuple(one.numbers(("action",)).reshape(-1).tolist()) for one in looks}  # type: ignore[union-attr]
    assert got == {tuple(range(16, 20)), tuple(range(20, 30)), tuple(range(30, 40))}
    assert dict(about.facts)["written in all"] == "40"


def test_a_storage_of_several_columns_gives_the_trajectories_of_each(tmp_path: Path) -> None:
    both = torch.stack([steps(20), steps(40)[20:]], dim=0)  # batch, time
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(50, ndim=2), batch_size=4)
    buffer.extend(both)
    buffer.dumps(tmp_path / "saved")
    looks, about = looked(tmp_path / "saved")
    firsts = [one.numbers(("action",))[0].item() for one in looks]  # type: ignore[index]
    assert firsts == [0, 10, 20, 30]
    assert [one.where for one in looks][2] == "column 1, rows 0 to 9"
    assert about.steps == 40


def test_without_ends_stretches_are_looked_at(tmp_path: Path) -> None:
    buffer = ReplayBuffer(storage=ListStorage(1000), batch_size=4)
    buffer.extend([{"obs": torch.full((2,), float(k)), "say": f"text {k % 3}"} for k in range(STRETCH + 50)])
    buffer.dumps(tmp_path / "saved")
    looks, about = looked(tmp_path / "saved")
    assert not about.episodic
    assert [one.length for one in looks] == [STRETCH, 50]
    assert looks[0].columns["say",][:4] == ["text 0", "text 1", "text 2", "text 0"]


def test_a_full_buffer_without_ends_begins_with_its_oldest_item(tmp_path: Path) -> None:
    buffer = ReplayBuffer(storage=LazyTensorStorage(8), batch_size=4)
    for k in range(11):
        buffer.add(torch.tensor(float(k)))
    buffer.dumps(tmp_path / "saved")
    (one,), _ = looked(tmp_path / "saved")
    assert one.numbers(()).tolist() == [3, 4, 5, 6, 7, 8, 9, 10]  # type: ignore[union-attr]


def test_given_tensors_are_read_too(tmp_path: Path) -> None:
    ReplayBuffer(storage=TensorStorage(steps(30)), batch_size=4).dumps(tmp_path / "saved")
    looks, _ = looked(tmp_path / "saved")
    assert [one.length for one in looks] == [10, 10, 10]


def test_an_empty_buffer_has_nothing_to_look_at(tmp_path: Path) -> None:
    ReplayBuffer(storage=LazyTensorStorage(8), batch_size=4).dumps(tmp_path / "saved")
    looks, about = looked(tmp_path / "saved")
    assert (looks, about.entries, about.notes) == ([], (), ())


def test_items_of_differing_keys_lack_some(tmp_path: Path) -> None:
    buffer = ReplayBuffer(storage=ListStorage(10), batch_size=2)
    buffer.extend([{"a": torch.zeros(1), "b": torch.zeros(2)}, {"a": torch.ones(1)}])
    buffer.dumps(tmp_path / "saved")
    (one,), _ = looked(tmp_path / "saved")
    assert one.missing == {("b",)}
    assert one.numbers(("a",)).tolist() == [[0], [1]]  # type: ignore[union-attr]


def test_priorities_are_those_that_the_sampler_had(tmp_path: Path) -> None:
    buffer = TensorDictPrioritizedReplayBuffer(
        alpha=0.5, beta=0.4, eps=0.0, storage=LazyTensorStorage(50), batch_size=4
    )
    buffer.extend(steps(20))
    buffer.update_priority(torch.arange(20), torch.arange(20).float() ** 2)
    buffer.dumps(tmp_path / "saved")
    _, about = looked(tmp_path / "saved")
    (sampling,) = about.samplings
    assert sampling.name == "PrioritizedSampler"
    assert sampling.priorities is not None
    assert sampling.priorities.weights.tolist() == [float(k) for k in range(20)]
    assert [sampling.priorities.alpha, sampling.priorities.beta] == pytest.approx([0.5, 0.4])
    assert sampling.drawn is None


def test_a_sampler_that_counts_says_how_often_items_were_drawn(tmp_path: Path) -> None:
    buffer = ReplayBuffer(
        storage=LazyTensorStorage(20), sampler=ConsumingSampler(max_times_sampled=2), batch_size=4
    )
    buffer.extend(torch.arange(12.0))
    drawn = torch.zeros(12, dtype=torch.int64)
    for _ in range(4):
        drawn += torch.bincount(buffer.sample().long(), minlength=12)
    buffer.dumps(tmp_path / "saved")
    _, about = looked(tmp_path / "saved")
    (sampling,) = about.samplings
    assert sampling.drawn is not None
    assert sampling.drawn.tolist() == drawn.tolist()
    assert dict(sampling.facts)["used up"] == f"{int((drawn == 2).sum())} items"


def test_slices_have_a_sampler_without_priorities(tmp_path: Path) -> None:
    buffer = TensorDictReplayBuffer(
        storage=LazyTensorStorage(50), sampler=SliceSampler(slice_len=4), batch_size=8
    )
    buffer.extend(steps(20))
    buffer.dumps(tmp_path / "saved")
    (sampling,) = looked(tmp_path / "saved")[1].samplings
    assert (sampling.name, sampling.priorities, sampling.drawn) == ("SliceSampler", None, None)


def test_the_buffers_of_an_ensemble_are_all_looked_at(tmp_path: Path) -> None:
    parts = [TensorDictReplayBuffer(storage=LazyTensorStorage(30), batch_size=4) for _ in range(2)]
    for part, data in zip(parts, (steps(20), steps(40)[20:]), strict=True):
        part.extend(data)
    ReplayBufferEnsemble(*parts, batch_size=4).dumps(tmp_path / "saved")
    looks, about = looked(tmp_path / "saved")
    assert [one.number for one in looks] == [0, 1, 2, 3]
    assert [one.where for one in looks][2] == "buffer 1, rows 0 to 9"
    assert len(about.samplings) == 2
    assert about.steps == 40


def test_of_many_trajectories_some_are_drawn_by_the_seed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("replaybank.report.buffers.LOOKED_STEPS", 50)
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(300), batch_size=4)
    buffer.extend(steps(300))
    buffer.dumps(tmp_path / "saved")
    first, again, other = (looked(tmp_path / "saved", seed) for seed in (0, 0, 1))
    assert len(first[0]) == 5
    assert first[1].looked == "5 of 30 trajectories, drawn at random (seed 0)"
    assert first[1].lengths.tolist() == [10] * 30
    numbers = [[one.number for one in looks] for looks, _ in (first, again, other)]
    assert numbers[0] == numbers[1] != numbers[2]


def test_a_checkpoint_of_a_dataset_says_where_the_data_are(tmp_path: Path) -> None:
    from replaybank.demo.arm import write_arm_dataset

    rlds = write_arm_dataset(tmp_path / "arm", episodes=2, shards=1)
    replay = replaybank.OpenXExperienceReplay(
        "two_link_arm", 4, streaming=False, source=rlds, root=tmp_path / "root"
    )
    replay.dumps(tmp_path / "saved")
    looks, about = looked(tmp_path / "saved")
    assert looks == []
    assert "the data are those of the dataset 'two_link_arm'" in about.notes[0]


def test_a_pickled_object_is_not_unpickled(tmp_path: Path) -> None:
    class Touch:
        def __reduce__(self) -> tuple[Any, ...]:
            return Path.touch, (tmp_path / "touched",)

    buffer = ReplayBuffer(storage=ListStorage(4), batch_size=1)
    buffer.add(Touch())
    buffer.dumps(tmp_path / "saved", allow_pickle=True)
    with pytest.raises(UnsafePickleError, match="runs nothing from a checkpoint"):
        BufferSubject(tmp_path / "saved")
    assert not (tmp_path / "touched").exists()


def test_a_checkpoint_of_something_else_is_refused(tmp_path: Path) -> None:
    checkpoint.save(tmp_path / "saved", {"model": torch.zeros(3)})
    with pytest.raises(DataFormatError, match=r"not of a buffer: it holds \['model'\]"):
        BufferSubject(tmp_path / "saved")


def test_a_damaged_state_is_an_error_in_words(tmp_path: Path) -> None:
    buffer = ReplayBuffer(storage=LazyTensorStorage(4), batch_size=1)
    buffer.add(torch.zeros(2))
    buffer.dumps(tmp_path / "saved")
    state = checkpoint.load(tmp_path / "saved")
    del state["storage"]["columns"]
    checkpoint.save(tmp_path / "bad", state)
    with pytest.raises(DataFormatError, match="is damaged"):
        BufferSubject(tmp_path / "bad")


def test_few_bytes_of_a_large_checkpoint_are_read_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from replaybank.checkpoint_rows import StoredRows

    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(3000), batch_size=4)
    buffer.extend(steps(3000).exclude("pixels"))
    buffer.dumps(tmp_path / "saved")
    monkeypatch.setattr("replaybank.buffers.stored_items.BLOCK_BYTES", 4096)
    read, most = StoredRows.__getitem__, []

    def counted(self: StoredRows, rows: slice) -> torch.Tensor:
        found = read(self, rows)
        most.append(found.numel() * found.element_size())
        return found

    monkeypatch.setattr(StoredRows, "__getitem__", counted)
    looks, _ = looked(tmp_path / "saved")
    assert len(looks) == 300
    assert max(most) <= 4096


def test_numbers_without_a_meaning_are_listed_and_not_looked_at(tmp_path: Path) -> None:
    buffer = ReplayBuffer(storage=ListStorage(10), batch_size=2)
    buffer.extend([{"flag": True, "count": k, "nothing": None} for k in range(3)])
    buffer.dumps(tmp_path / "saved")
    (one,), about = looked(tmp_path / "saved")
    assert {entry.name: entry.looked for entry in about.entries} == {
        "flag": True,
        "count": True,
        "nothing": False,
    }
    assert one.numbers(("count",)).tolist() == [0, 1, 2]  # type: ignore[union-attr]
