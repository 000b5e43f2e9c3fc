"""A converted dataset as a storage: each frame once, and every value where its step says."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tensordict import TensorDict

import memory_source
from memory_source import FIELDS, Frames
from replaybank.datasets.openx.builder import DatasetBuilder
from replaybank.datasets.openx.planning import plan
from replaybank.datasets.openx.sources.base import Episode, Key
from replaybank.datasets.openx.storage import DatasetStorage
from replaybank.datasets.openx.ted import ted_leaves, to_ted
from replaybank.errors import DataFormatError, IncompleteDatasetError

LENGTHS = (4, 1, 6, 3)
STEPS = sum(LENGTHS)
LEAVES = ted_leaves(FIELDS)
EPISODES = [memory_source.episode(number, length) for number, length in enumerate(LENGTHS)]
WHERE = [(number, step) for number, length in enumerate(LENGTHS) for step in range(length)]
"""Episode and step of each item."""


def build(folder: Path, episodes: list[Episode] = EPISODES, *, finish: bool = True) -> Path:
    blank = plan("arm", "train", {"shards": ["a"]}, LEAVES)
    with DatasetBuilder(folder, blank, LEAVES) as builder:
        for number, episode in enumerate(episodes):
            builder.add(to_ted(episode, LEAVES, number, "arm"), {})
        builder.commit("a")
        if finish:
            builder.finish()
    return folder


@pytest.fixture(scope="module")
def storage(tmp_path_factory: pytest.TempPathFactory) -> DatasetStorage:
    return DatasetStorage(build(tmp_path_factory.mktemp("dataset")))


def true_value(key: Key, episode: int, step: int) -> Any:
    """One entry of the source's episode, as TED shows it."""
    column: Any = EPISODES[episode].steps[key]
    if isinstance(column, Frames):
        return column.frames[step].transpose(2, 0, 1)
    return column[step]


def check_item(item: TensorDict, episode: int, step: int) -> None:
    """Every entry of a step, computed here from the episode alone."""
    length = LENGTHS[episode]
    last = step == length - 1
    terminal = last and episode % 2 == 0
    for key in FIELDS:
        if key in (("reward",), ("is_terminal",)):
            continue
        expected = true_value(key, episode, step)
        assert item[key] == expected if isinstance(expected, str) else np.array_equal(item[key], expected), (
            key
        )
        if key[0] == "observation":
            following = item[("next", *key)]
            if last:
                assert following == "" if isinstance(expected, str) else not following.any()
            else:
                expected = true_value(key, episode, step + 1)
                same = (
                    following == expected
                    if isinstance(expected, str)
                    else np.array_equal(following, expected)
                )
                assert same, key
    assert item["next", "reward"].item() == true_value(("reward",), episode, step)
    assert item["next", "done"].tolist() == [last]
    assert item["next", "valid"].tolist() == [not last]
    assert item["next", "terminated"].tolist() == [terminal]
    assert item["next", "truncated"].tolist() == [last and not terminal]
    assert (item["episode"].item(), item["step"].item(), item["is_init"].item()) == (episode, step, step == 0)
    for flag in ("done", "terminated", "truncated"):
        assert item[flag].tolist() == [False]


def test_every_step_has_all_its_entries(storage: DatasetStorage) -> None:
    assert len(storage) == STEPS
    for i, (episode, step) in enumerate(WHERE):
        check_item(storage[i], episode, step)


@given(st.lists(st.integers(-STEPS, STEPS - 1), max_size=30))
def test_steps_drawn_in_any_order_are_the_right_ones(storage: DatasetStorage, index: list[int]) -> None:
    batch = storage.get(torch.tensor(index, dtype=torch.int64))
    assert batch.batch_size == (len(index),)
    for position, i in enumerate(index):
        check_item(batch[position], *WHERE[i])


@pytest.mark.parametrize(
    "index",
    [
        slice(None),
        slice(2, 9),
        range(3, 8),
        [0, 13, 5],
        np.array([1, 2]),
        (torch.tensor([4, 4]),),
        slice(5, 5),
    ],
)
def test_every_kind_of_index_works(storage: DatasetStorage, index: Any) -> None:
    numbers = np.arange(STEPS)[index[0].numpy() if isinstance(index, tuple) else index]
    batch = storage[index]
    assert batch.batch_size == (len(numbers),)
    for position, i in enumerate(numbers.tolist()):
        check_item(batch[position], *WHERE[i])


def test_a_batch_of_two_dimensions_keeps_its_shape(storage: DatasetStorage) -> None:
    batch = storage.get(torch.tensor([[0, 1], [7, 13]]))
    assert batch.batch_size == (2, 2)
    check_item(batch[1, 1], *WHERE[13])
    assert batch["language_instruction"] == [["text 0", "text 0"], ["text 2", "text 3"]]


@pytest.mark.parametrize(
    "index", [STEPS, -STEPS - 1, torch.tensor([0, STEPS]), [-STEPS - 1], slice("a", None)]
)
def test_steps_that_are_not_there_are_an_error(storage: DatasetStorage, index: Any) -> None:
    with pytest.raises((IndexError, TypeError)):
        storage[index]


def test_ends_and_episode_numbers_come_without_reading_the_rows(storage: DatasetStorage) -> None:
    everything = storage[:]
    for key in (("episode",), ("next", "done")):
        for rows in (slice(None), slice(3, 11), torch.tensor([13, 0, 4, 4]), slice(2, 2)):
            read = storage.read_leaf(key, rows)
            assert torch.equal(read, everything[key][rows])
            assert read.dtype == everything[key].dtype
    with pytest.raises(KeyError, match="nowhere"):
        storage.read_leaf(("nowhere",), slice(None))


def test_a_batch_is_the_callers_own(storage: DatasetStorage) -> None:
    before = storage[:].clone()
    batch = storage[:]
    batch["observation", "image"].zero_()
    batch["action"].zero_()
    assert (storage[:] == before).all()


def test_nothing_can_be_written(storage: DatasetStorage) -> None:
    for attempt in (
        lambda: storage.set(0, storage[0]),
        lambda: storage.__setitem__(0, storage[0]),
        storage.empty,
        lambda: storage.prepare(storage[:2]),
    ):
        with pytest.raises(RuntimeError, match="arm is a stored dataset and cannot be written to"):
            attempt()
    check_item(storage[0], 0, 0)


def test_it_pickles_as_a_path(storage: DatasetStorage) -> None:
    pickled = pickle.dumps(storage)
    assert len(pickled) < 1000
    check_item(pickle.loads(pickled)[9], *WHERE[9])


def test_a_state_is_taken_only_from_the_same_dataset(storage: DatasetStorage, tmp_path: Path) -> None:
    storage.load_state_dict(storage.state_dict())
    other = DatasetStorage(build(tmp_path / "other", EPISODES[:2]))
    with pytest.raises(ValueError, match="this dataset is"):
        storage.load_state_dict(other.state_dict())


def test_entries_that_some_episodes_lack_are_masked(tmp_path: Path) -> None:
    lacking = dict(EPISODES[2].steps)
    del lacking[("observation", "state")], lacking[("language_instruction",)]
    episodes = [EPISODES[0], EPISODES[1], Episode(lacking, LENGTHS[2], "record 2"), EPISODES[3]]
    batch = DatasetStorage(build(tmp_path, episodes))[:]
    there = [episode != 2 for episode, _ in WHERE]
    assert batch["mask", "observation", "state"].tolist() == there
    assert batch["mask", "language_instruction"].tolist() == there
    assert set(batch["mask"].keys(include_nested=True, leaves_only=True)) == {
        ("observation", "state"),
        "language_instruction",
    }
    assert not batch["observation", "state"][~torch.tensor(there)].any()


def test_a_dataset_without_observations_has_no_next_ones(tmp_path: Path) -> None:
    leaves = {key: leaf for key, leaf in LEAVES.items() if key[0] != "observation"}
    with DatasetBuilder(tmp_path, plan("arm", "train", {"shards": []}, leaves), leaves) as builder:
        builder.add(to_ted(EPISODES[0], leaves, 0, "arm"), {})
        builder.commit("a")
        builder.finish()
    batch = DatasetStorage(tmp_path)[:]
    assert "observation" not in batch["next"].keys()  # noqa: SIM118  (a TensorDict iterates over items)
    assert batch["next", "valid"].ravel().tolist() == [True, True, True, False]


def test_an_unfinished_conversion_does_not_open(tmp_path: Path) -> None:
    with pytest.raises(IncompleteDatasetError):
        DatasetStorage(build(tmp_path, finish=False))


@pytest.mark.parametrize("damage", ["starts", "lengths", "negative", "wrapping"])
def test_a_damaged_episode_table_is_an_error(tmp_path: Path, damage: str) -> None:
    path = build(tmp_path) / "episodes.bin"
    table = np.fromfile(path, np.int64).reshape(-1, 2)
    if damage == "starts":
        table[2, 0] += 1
    elif damage == "lengths":
        table[-1, 1] += 1
    elif damage == "negative":
        table[1, 1], table[2, 1] = -1, 8
    else:  # in 64 bits these add up to the right numbers
        table[1, 1], table[2] = 2**62, (2**62 + 4, 7 - 2**62)
    table.tofile(path)
    with pytest.raises(DataFormatError, match=r"episodes\.bin is damaged"):
        DatasetStorage(tmp_path)


@pytest.mark.parametrize("line", ["x", "3", "", '"a" "b"', "[" * 60])
def test_damaged_strings_are_an_error(tmp_path: Path, line: str) -> None:
    path = build(tmp_path) / "strings.jsonl"
    size = path.stat().st_size
    path.write_text((line + "\n").ljust(size))
    with pytest.raises(DataFormatError, match=r"strings\.jsonl is damaged"):
        DatasetStorage(tmp_path)


def test_a_string_number_beyond_the_strings_is_an_error_not_another_string(tmp_path: Path) -> None:
    path = build(tmp_path) / "rows.bin"
    table = np.memmap(path, DatasetStorage(tmp_path).manifest.layout.numpy_dtype(), mode="r+")
    table["language_instruction"][3] = 99
    table.flush()
    with pytest.raises(DataFormatError, match="names text 99"):
        DatasetStorage(tmp_path)[3]


@pytest.mark.parametrize("text", ["", "x\n", "{}\n" * 3, "[]\n" * 4, "{}\n" * 4, "[" * 9])
def test_damaged_metadata_is_an_error(tmp_path: Path, text: str) -> None:
    path = build(tmp_path) / "metadata.jsonl"
    size = path.stat().st_size
    path.write_text(text.ljust(size))
    with pytest.raises(DataFormatError, match=r"metadata\.jsonl is damaged"):
        DatasetStorage(tmp_path).metadata(1)
