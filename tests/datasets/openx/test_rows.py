"""Trajectories as padded rows: each episode an item, made when it is read."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest
import torch

import memory_source
from memory_source import MemorySource
from replaybank.datasets.openx.convert import convert
from replaybank.datasets.openx.nest import unnest
from replaybank.datasets.openx.replay import OpenXExperienceReplay
from replaybank.datasets.openx.sources.base import Episode
from replaybank.samplers.random import RandomSampler

LENGTHS = (4, 1, 6, 3)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("root")
    made = [memory_source.episode(number, length) for number, length in enumerate(LENGTHS)]
    lacking = {key: column for key, column in made[3].steps.items() if key != ("action",)}
    made[3] = Episode(lacking, 3, "record 3", missing=frozenset({("action",)}))
    convert(MemorySource([made]), folder / "arm")
    return folder


def open_rows(root: Path, batch_size: int | None = None, **arguments: Any) -> OpenXExperienceReplay:
    arguments.setdefault("generator", torch.Generator().manual_seed(0))
    return OpenXExperienceReplay("arm", batch_size, streaming=False, split_trajs=True, root=root, **arguments)


def test_an_item_is_an_episode_with_what_is_behind_its_end_masked(root: Path) -> None:
    rows = open_rows(root)
    assert len(rows) == 4
    for number, length in enumerate(LENGTHS):
        row, steps = rows[number], rows.episode(number)
        assert row.batch_size == (6,)
        assert row["mask"].tolist() == [True] * length + [False] * (6 - length)
        assert ("language_instruction",) in unnest(steps)
        for key, expected in unnest(steps).items():
            given = row.get(("entry_mask", *key[1:]) if key[0] == "mask" else key)
            if isinstance(expected, torch.Tensor):
                assert torch.equal(given[:length], expected), key
                assert not given[length:].any()
            else:
                assert given.tolist() == expected.tolist() + [""] * (6 - length)
    assert rows[3]["next", "done"].flatten().nonzero().flatten().tolist() == [2]


def test_a_batch_has_a_row_a_trajectory(root: Path) -> None:
    rows = open_rows(root, 3)
    assert isinstance(rows.sampler, RandomSampler)
    batch = rows.sample()
    assert batch.batch_size == (3, 6)
    assert batch["observation", "image"].shape == (3, 6, 3, 20, 20)
    assert (batch["index"] == batch["episode"][:, :1])[batch["mask"]].all()
    assert torch.equal(rows[:]["mask"].sum(1), torch.tensor(LENGTHS))
    assert rows[torch.tensor([2, -1])]["mask"].sum(1).tolist() == [6, 3]
    with pytest.raises(IndexError):
        rows[4]


def test_a_for_gives_each_trajectory_once(root: Path) -> None:
    assert [int(row["episode"][0]) for row in open_rows(root, shuffle=False)] == [0, 1, 2, 3]
    assert sorted(int(row["episode"][0]) for row in open_rows(root)) == [0, 1, 2, 3]
    batches = list(open_rows(root, 3, replacement=False))
    assert [len(batch) for batch in batches] == [3, 1]


def test_rows_pickle_as_paths_and_cannot_be_written(root: Path) -> None:
    rows = open_rows(root, 2)
    other = pickle.loads(pickle.dumps(rows))
    assert (other.sample() == rows.sample()).all()
    with pytest.raises(RuntimeError, match="read-only"):
        rows.extend(rows[:1])
    with pytest.raises(RuntimeError, match="cannot be written to"):
        rows[0] = rows[1]


def test_one_camera_of_a_stored_dataset_is_read_alone(root: Path) -> None:
    blind = OpenXExperienceReplay("arm", 4, streaming=False, root=root, image_keys=[])
    for batch in (blind.sample(), blind[0], blind.episode(2), pickle.loads(pickle.dumps(blind)).sample()):
        assert "image" not in batch["observation"]
        assert "image" not in batch["next", "observation"]
        assert "state" in batch["next", "observation"]
    whole = OpenXExperienceReplay("arm", 4, streaming=False, root=root)
    assert torch.equal(blind.episode(2)["action"], whole.episode(2)["action"])
    with pytest.raises(ValueError, match="'wrist' is no camera"):
        OpenXExperienceReplay("arm", 4, streaming=False, root=root, image_keys=["wrist"])
    rows = open_rows(root, 2, image_keys=[])
    assert "image" not in rows.sample()["observation"]
