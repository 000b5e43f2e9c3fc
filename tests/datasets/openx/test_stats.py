"""Statistics of a dataset are exact, over what is selected, and found again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tensordict import TensorDict

import memory_source
from memory_source import MemorySource
from replaybank.datasets.openx import stats as module
from replaybank.datasets.openx.convert import convert
from replaybank.datasets.openx.files import MANIFEST, STATS, read_manifest
from replaybank.datasets.openx.folder import discard
from replaybank.datasets.openx.normalize import Normalize
from replaybank.datasets.openx.sources.base import Episode, FieldSpec, Key
from replaybank.datasets.openx.stats import EntryStats, dataset_stats
from replaybank.datasets.openx.storage import DatasetStorage

ACTION: Key = ("action",)
STATE: Key = ("observation", "state")
IMAGE: Key = ("observation", "image")
LENGTHS = (7, 3, 11, 5)


@pytest.fixture
def dataset(tmp_path: Path) -> DatasetStorage:
    episodes: Any = [memory_source.episode(number, length) for number, length in enumerate(LENGTHS)]
    convert(MemorySource([episodes]), tmp_path)
    return DatasetStorage(tmp_path)


def check(found: EntryStats, values: Any, axis: Any = 0) -> None:
    values = np.asarray(values, np.float64)
    expected = {
        "mean": values.mean(axis),
        "std": values.std(axis),
        "min": values.min(axis),
        "max": values.max(axis),
        "q01": np.quantile(values, 0.01, axis),
        "q99": np.quantile(values, 0.99, axis),
    }
    for name, value in expected.items():
        got = getattr(found, name)
        assert got.dtype == torch.float64
        np.testing.assert_allclose(
            got.reshape(-1).numpy(), value.reshape(-1), rtol=1e-12, atol=1e-12, err_msg=name
        )


def test_numbers_are_those_of_numpy(dataset: DatasetStorage) -> None:
    found = dataset_stats(dataset)
    assert set(found) == {ACTION, STATE, ("next", "reward")}
    steps = dataset[:]
    for key, stats in found.items():
        check(stats, steps[key])
        assert (stats.count, stats.left_out, stats.mean.shape) == (26, 0, steps[key].shape[1:])


def test_images_are_looked_at_by_channel(dataset: DatasetStorage) -> None:
    found = dataset_stats(dataset, images=True)[IMAGE]
    assert found.mean.shape == (3, 1, 1)
    check(found, dataset[:][IMAGE].numpy(), axis=(0, 2, 3))
    assert dataset_stats(dataset, [IMAGE])[IMAGE].count == 26


@pytest.mark.parametrize("chosen", [[1], [0, 2], [-1, 3], torch.tensor([2, 1])])
def test_only_the_selected_episodes_count(dataset: DatasetStorage, chosen: Any) -> None:
    steps = dataset[:]
    numbers = {int(n) % 4 for n in chosen}
    mask = torch.tensor([int(e) in numbers for e in steps["episode"]])
    for key, stats in dataset_stats(dataset, [ACTION, STATE], episodes=chosen).items():
        check(stats, steps[key][mask])
        assert stats.count == int(mask.sum())


def test_episodes_that_lack_an_entry_do_not_count_as_zeros(tmp_path: Path) -> None:
    lacking = memory_source.episode(1, 4)
    steps = {key: value for key, value in lacking.steps.items() if key != STATE}
    episodes: Any = [
        memory_source.episode(0, 3),
        Episode(steps, 4, "record 1", missing=frozenset({STATE})),
        memory_source.episode(2, 5),
    ]
    convert(MemorySource([episodes]), tmp_path)
    dataset = DatasetStorage(tmp_path)
    found = dataset_stats(dataset, [STATE])[STATE]
    there = dataset[:][STATE][dataset[:]["mask", "observation", "state"]]
    check(found, there)
    assert found.count == 8
    empty = dataset_stats(dataset, [STATE], episodes=[1])[STATE]
    assert empty.count == 0
    assert bool(empty.mean.isnan().all())


def test_values_that_are_no_numbers_are_left_out_and_counted(tmp_path: Path) -> None:
    values = np.array([[1.0, np.nan], [3.0, 5.0], [np.inf, 7.0]], np.float32)
    fields: dict[Key, FieldSpec] = {ACTION: FieldSpec("tensor", (2,), np.dtype("float32"))}
    convert(MemorySource([[Episode({ACTION: values}, 3, "record 0")]], fields), tmp_path)
    found = dataset_stats(DatasetStorage(tmp_path))[ACTION]
    assert (found.mean.tolist(), found.max.tolist(), found.left_out) == ([2.0, 6.0], [3.0, 7.0], 2)


def test_large_values_that_hardly_differ_keep_their_deviation(tmp_path: Path) -> None:
    values = (1e9 + np.arange(4) * 1e-3)[:, None]
    fields: dict[Key, FieldSpec] = {ACTION: FieldSpec("tensor", (1,), np.dtype("float64"))}
    convert(MemorySource([[Episode({ACTION: values}, 4, "record 0")]], fields), tmp_path)
    found = dataset_stats(DatasetStorage(tmp_path))[ACTION]
    assert found.std.item() == pytest.approx(np.std(np.arange(4) * 1e-3), rel=1e-4)


def test_wide_entries_are_looked_at_in_parts(
    dataset: DatasetStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = dataset_stats(dataset, [STATE], episodes=range(4))[STATE]
    monkeypatch.setattr(module, "_BLOCK_BYTES", 1)
    parts = dataset_stats(dataset, [STATE], episodes=range(4))[STATE]
    assert torch.equal(whole.q01, parts.q01)
    assert torch.equal(whole.std, parts.std)


def test_what_was_computed_is_stored_with_the_dataset(
    dataset: DatasetStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = dataset_stats(dataset)
    more = dataset_stats(dataset, images=True)  # what is there already is not looked at again
    monkeypatch.setattr(module, "_stats_of", None)
    again = dataset_stats(DatasetStorage(dataset.folder), images=True)
    assert set(again) == set(more) == {*first, IMAGE}
    for key, stats in again.items():
        assert torch.equal(stats.mean, more[key].mean)
        assert (stats.count, stats.q99.shape) == (more[key].count, more[key].q99.shape)


@pytest.mark.parametrize(
    "damage", ["{", "[]", '{"format": "x"}', '{"format": "replaybank.stats", "version": 1}']
)
def test_damaged_statistics_are_computed_again(dataset: DatasetStorage, damage: str) -> None:
    whole = dataset_stats(dataset, [ACTION])
    (dataset.folder / STATS).write_text(damage)
    assert torch.equal(dataset_stats(dataset, [ACTION])[ACTION].mean, whole[ACTION].mean)
    assert json.loads((dataset.folder / STATS).read_bytes())["of"] == module._identity(dataset.manifest)


def test_statistics_of_other_content_do_not_count(dataset: DatasetStorage, tmp_path: Path) -> None:
    dataset_stats(dataset)
    stored = (dataset.folder / STATS).read_bytes()
    episodes: Any = [memory_source.episode(number + 9, length) for number, length in enumerate(LENGTHS)]
    convert(MemorySource([episodes]), dataset.folder, overwrite=True)
    assert not (dataset.folder / STATS).exists()
    (dataset.folder / STATS).write_bytes(stored)
    other = DatasetStorage(dataset.folder)
    check(dataset_stats(other, [ACTION])[ACTION], other[:][ACTION])


def test_a_dataset_with_statistics_is_still_one_and_is_removed_whole(dataset: DatasetStorage) -> None:
    dataset_stats(dataset)
    assert read_manifest(dataset.folder).steps == 26
    discard(dataset.folder)
    assert not (dataset.folder / STATS).exists()
    assert not (dataset.folder / MANIFEST).exists()


def test_what_cannot_be_asked_is_said(dataset: DatasetStorage) -> None:
    with pytest.raises(KeyError, match=r"\('speed',\) is not in memory"):
        dataset_stats(dataset, ["speed"])
    with pytest.raises(ValueError, match="is text"):
        dataset_stats(dataset, ["language_instruction"])
    with pytest.raises(IndexError, match="Episode 4 is out of range: there are 4"):
        dataset_stats(dataset, episodes=[0, 4])
    with pytest.raises(ValueError, match="No episode is selected"):
        dataset_stats(dataset, episodes=[])


@pytest.mark.parametrize("mode", ["mean_std", "min_max", "quantiles"])
def test_normalising_and_back(dataset: DatasetStorage, mode: Any) -> None:
    normalize = Normalize(dataset_stats(dataset, [ACTION, STATE]), mode)
    steps = dataset[:]
    scaled = normalize(steps)
    action = scaled["action"].double()
    if mode == "mean_std":
        assert torch.allclose(action.mean(0), torch.zeros(2, dtype=torch.float64), atol=1e-12)
        assert torch.allclose(action.std(0, correction=0), torch.ones(2, dtype=torch.float64))
    elif mode == "min_max":
        assert action.amin(0).tolist() == pytest.approx([-1, -1])
        assert action.amax(0).tolist() == pytest.approx([1, 1])
    else:
        assert torch.allclose(action.quantile(0.99, 0), torch.ones(2, dtype=torch.float64))
    assert torch.equal(steps["action"], dataset[:]["action"])
    back = normalize.inv(scaled)
    for key in (ACTION, STATE, ("next", *STATE)):
        assert back[key].dtype == steps[key].dtype
        assert torch.allclose(back[key], steps[key], atol=1e-5)
    before, after = steps["next", "observation", "state"], scaled["next", "observation", "state"]
    assert torch.allclose(after[0], scaled["observation", "state"][1])
    assert before.shape == after.shape


def test_numbers_that_never_change_are_only_shifted_and_masked_ones_stay() -> None:
    def of(*values: float) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.float64)

    stats = {
        ACTION: EntryStats(of(5, 1, 2), of(0, 2, 4), of(5, 0, 0), of(5, 2, 4), of(5, 0, 0), of(5, 2, 4), 9)
    }
    batch = TensorDict({"action": torch.tensor([[7, 3, 6]])}, [1])
    mask = {"action": torch.tensor([True, True, False])}
    scaled = Normalize(stats, mask=mask)(batch)
    assert scaled["action"].dtype == torch.float32
    assert scaled["action"].tolist() == [[2.0, 1.0, 6.0]]
    with pytest.raises(ValueError, match=r"mask of \('reward',\)"):
        Normalize(stats, mask={"reward": torch.tensor([True])})
    with pytest.raises(ValueError, match="mode must be"):
        Normalize(stats, "log")  # type: ignore[arg-type]


def test_quantiles_from_counts_are_those_of_the_values() -> None:
    rng = np.random.default_rng(0)
    for size in (1, 2, 3, 99, 100, 101, 1000):
        values = rng.integers(0, 256, size)
        found = module._of_counts(np.bincount(values, minlength=256))
        assert found[4:] == pytest.approx(tuple(np.quantile(values, (0.01, 0.99))))
        assert found[:2] == pytest.approx((values.mean(), values.std()))
