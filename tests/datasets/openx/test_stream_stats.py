"""Statistics of a stream are those of the stored dataset, over the episodes that are read for them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from memory_source import FIELDS, MemorySource, episode
from replaybank.datasets.openx.replay import OpenXExperienceReplay
from replaybank.datasets.openx.sources.base import Episode, Shard
from replaybank.datasets.openx.stats import EntryStats
from replaybank.errors import DataFormatError
from shared_data import bridge_path

LENGTHS = (7, 3, 11, 5, 4, 2)
NUMBERS = {("action",), ("observation", "state"), ("next", "reward")}


class Watched(MemorySource):
    """Notes which records are handed out; with ``said`` False it does not say how many there are."""

    said = True
    read: list[tuple[int, int]]

    def shards(self) -> list[Shard]:
        shards = list(super().shards())
        return shards if self.said else [Shard(shard.number, shard.path, None) for shard in shards]

    def episodes(self, shard: Shard, start: int = 0) -> Iterator[Episode]:
        for record, found in enumerate(super().episodes(shard, start), start):
            self.read.append((shard.number, record))
            yield found


def source(*, damaged: bool = False) -> Watched:
    made: list[Episode | Exception] = [episode(number, length) for number, length in enumerate(LENGTHS)]
    del made[2].steps["action",]  # type: ignore[union-attr]
    if damaged:
        made[4] = DataFormatError("no record")
    given = Watched([made[:3], [], made[3:]], FIELDS)
    given.read = []
    return given


def stream(given: Any, **arguments: Any) -> OpenXExperienceReplay:
    return OpenXExperienceReplay("arm", source=given, generator=torch.Generator().manual_seed(0), **arguments)


def assert_same(found: EntryStats, expected: EntryStats) -> None:
    assert (found.count, found.left_out) == (expected.count, expected.left_out)
    for name in ("mean", "std", "min", "max", "q01", "q99"):
        assert torch.equal(getattr(found, name), getattr(expected, name)), name


@pytest.mark.parametrize("chosen", [range(6), [0], [5, 0, 0], [-1, 2], torch.tensor([2]), [3, 4]])
def test_they_are_those_of_the_stored_dataset(chosen: Any, tmp_path: Path) -> None:
    stored = OpenXExperienceReplay("arm", streaming=False, source=source(), root=tmp_path)
    found = stream(source()).stats(episodes=chosen)
    expected = stored.stats(episodes=chosen)
    assert set(found) == set(expected) == NUMBERS
    for key, stats in found.items():
        if stats.count:
            assert_same(stats, expected[key])
        else:
            assert expected[key].count == 0
            assert stats.mean.isnan().all()


def test_only_the_records_up_to_those_asked_for_are_read_and_no_frame() -> None:
    given = source()
    made = stream(given, image_keys=[])
    given.read.clear()  # what tells the entries
    made.stats(["action"], episodes=[4, 0])
    assert given.read == [(0, 0), (2, 1)]
    batches = [batch["episode"][0].item() for batch in made]  # and the stream stands where it stood
    assert sorted(batches) == list(range(6))


def test_where_counts_are_not_declared_episodes_have_the_numbers_of_their_steps() -> None:
    given = source()
    given.said = False
    made = stream(given)
    numbers = sorted({int(number) for batch in made for number in batch["episode"]})
    assert_same(
        made.stats([("next", "reward")], episodes=numbers)["next", "reward"],
        stream(source()).stats(episodes=range(6))["next", "reward"],
    )
    with pytest.raises(IndexError, match="how many there are is not known"):
        made.stats(episodes=[-1])
    for number in (numbers[2] + 1, numbers[-1] + (1 << 16)):
        with pytest.raises(IndexError):
            made.stats(episodes=[number])


def test_episodes_have_to_be_said_and_to_be_there() -> None:
    made = stream(source())
    with pytest.raises(RuntimeError, match=r"is streamed. Say which episodes .* episodes=range\(100\)"):
        made.stats()
    with pytest.raises(IndexError, match="Episode 6 is out of range: there are 6"):
        made.stats(episodes=[0, 6])
    with pytest.raises(ValueError, match="No episode is selected"):
        made.stats(episodes=[])
    with pytest.raises(KeyError, match="speed"):
        made.stats(["speed"], episodes=[0])
    with pytest.raises(ValueError, match="is text"):
        made.stats(["language_instruction"], episodes=[0])
    with pytest.raises(ValueError, match="is a camera"):
        made.stats([("observation", "image")], episodes=[0])
    with pytest.raises(ValueError, match="images=True is for a stored dataset"):
        made.stats(episodes=[0], images=True)


def test_records_that_cannot_be_read_are_left_out_where_that_is_said() -> None:
    with pytest.raises(DataFormatError, match="no record"):
        stream(source(damaged=True)).stats(episodes=range(6))
    made = stream(source(damaged=True), on_error="skip")
    with pytest.warns(UserWarning, match="no record"):
        found = made.stats(episodes=range(6))
    assert found["next", "reward"].count == sum(LENGTHS) - LENGTHS[4]
    assert [skipped.record for skipped in made.skipped] == [1]


def test_those_of_the_real_file_are_those_of_its_conversion(tmp_path: Path) -> None:
    path = bridge_path()
    stored = OpenXExperienceReplay(
        "bridge", streaming=False, source=path, root=tmp_path, image_keys=[], images="encoded"
    )
    chosen = [number for number in range(25) if number % 5]
    expected = stored.stats(episodes=chosen)
    for key, stats in stream(path).stats(episodes=chosen).items():
        assert_same(stats, expected[key])
        assert np.isfinite(stats.mean.numpy()).all()
