"""Streams that leave out what cannot be read, and count it: all else comes as if it had never been there."""

from __future__ import annotations

import pickle
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

from memory_source import MemorySource, episode
from replaybank import CorruptRecordError, DataFormatError, OpenXExperienceReplay, OpenXMixture
from replaybank.cli import run
from replaybank.datasets.openx.files import Skipped
from replaybank.demo.arm import write_arm_dataset

LENGTHS = (4, 6, 3, 8, 5, 7, 9, 10)
BUFFER = 20_000
DAMAGED = {2: (0, 2), 5: (1, 1), 7: (1, 3)}
"""Shard and record of the damaged ones, by number."""


class Unsaid(MemorySource):
    """A source that does not say how many episodes its shards have."""

    def shards(self) -> list[Any]:
        from replaybank.datasets.openx.sources.base import Shard

        return [Shard(shard.number, shard.path, None) for shard in super().shards()]


def source(
    kind: type[MemorySource] = MemorySource, damaged: Any = tuple(DAMAGED), *, frames: bool = False
) -> MemorySource:
    """Two shards of four episodes; some records fail, or the frames of some episodes."""
    made: list[Any] = [episode(n, length, bad=frames and n in damaged) for n, length in enumerate(LENGTHS)]
    for number in () if frames else damaged:
        shard, record = divmod(number, 4)
        made[number] = CorruptRecordError(f"/data/shard-{shard}", record, 100 * record, "bad")
    return kind([made[:4], made[4:]])


def stream(batch_size: int | None = None, **arguments: Any) -> OpenXExperienceReplay:
    arguments.setdefault("source", source())
    arguments.setdefault("generator", torch.Generator().manual_seed(0))
    arguments.setdefault("buffer_bytes", BUFFER)
    arguments.setdefault("on_error", "skip")
    return OpenXExperienceReplay("arm", batch_size, **arguments)


def numbers(batches: Any) -> list[int]:
    return [int(number) for batch in batches for number in batch["episode"].unique_consecutive()]


def good() -> set[int]:
    return set(range(8)) - set(DAMAGED)


@pytest.mark.filterwarnings("ignore:left out")
@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize("kind", [MemorySource, Unsaid])
def test_all_that_can_be_read_comes_once_an_epoch(kind: type[MemorySource], shuffle: bool) -> None:
    dataset = stream(source=source(kind), shuffle=shuffle)
    for _ in range(2):
        found = [divmod(n, 4) if kind is MemorySource else (n >> 16, n % 65536) for n in numbers(dataset)]
        assert sorted(4 * shard + record for shard, record in found) == sorted(good())
    expected = {
        Skipped(f"shard-{shard}", record, f"/data/shard-{shard}: record {record} at byte {100 * record}: bad")
        for shard, record in DAMAGED.values()
    }
    assert len(dataset.skipped) == 3  # each once, though two epochs came by them
    assert set(dataset.skipped) == expected


def test_one_warning_a_shard_names_file_record_and_byte() -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        dataset = stream(shuffle=False, num_workers=0)
        for _ in range(2):
            assert len(list(dataset)) == 5
        dataset.close()
    first, second = (str(warning.message) for warning in caught)
    assert first.startswith("left out: /data/shard-0: record 2 at byte 200: bad")
    assert second.startswith("left out: /data/shard-1: record 1 at byte 100: bad")


def test_without_it_the_record_is_an_error() -> None:
    with pytest.raises(CorruptRecordError, match="record 2 at byte 200"):
        list(stream(on_error="raise", shuffle=False))
    with pytest.raises(ValueError, match="'raise' or 'skip'"):
        stream(on_error="ignore")


@pytest.mark.filterwarnings("ignore:left out")
@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize("taken", range(6))
def test_a_for_goes_on_from_a_state_exactly_beside_what_was_left_out(taken: int, shuffle: bool) -> None:
    dataset = stream(slice_len=3, shuffle=shuffle)
    running = iter(dataset)
    for _ in range(taken):
        next(running)
    state = pickle.loads(pickle.dumps(dataset.state_dict()))
    other = stream(slice_len=3, shuffle=shuffle, generator=torch.Generator().manual_seed(9))
    other.load_state_dict(state)
    assert [list(vars(skipped).values()) for skipped in other.skipped] == state["sampler"]["skipped"]
    for wanted, found in zip(running, other, strict=True):
        assert (wanted == found).all()
    assert len(other.skipped) == 3


@pytest.mark.filterwarnings("ignore:left out")
def test_a_stream_that_stopped_at_a_damaged_record_goes_on_behind_it() -> None:
    dataset = stream(on_error="raise", shuffle=False)
    running = iter(dataset)
    before = [next(running) for _ in range(2)]
    with pytest.raises(CorruptRecordError):
        next(running)
    other = stream(shuffle=False)
    other.load_state_dict(dataset.state_dict())
    assert numbers(before) + numbers(other) == [0, 1, 3, 4, 6]
    assert [skipped.record for skipped in other.skipped] == [2, 1, 3]


@pytest.mark.filterwarnings("ignore:left out")
def test_frames_that_cannot_be_decoded_are_left_out_too() -> None:
    dataset = stream(source=source(frames=True), shuffle=False)
    assert numbers(dataset) == sorted(good())
    assert [(skipped.shard, skipped.record) for skipped in dataset.skipped] == [
        ("shard-0", 2),
        ("shard-1", 1),
        ("shard-1", 3),
    ]
    running = iter(stream(4, slice_len=2, source=source(frames=True), shuffle=False))
    assert [numbers([batch]) for batch in running] == [[0, 1], [3, 4], [6]]


@pytest.mark.filterwarnings("ignore:left out")
@pytest.mark.parametrize("kind", [MemorySource, Unsaid])
@pytest.mark.parametrize("world_size", [2, 3, 5])
def test_ranks_leave_out_together_what_is_damaged(kind: type[MemorySource], world_size: int) -> None:
    ranks = [stream(source=source(kind), rank=rank, world_size=world_size) for rank in range(world_size)]
    given = [n for rank in ranks for n in numbers(rank)]
    assert len(set(given)) == len(given) == 5
    left_out = [(skipped.shard, skipped.record) for rank in ranks for skipped in rank.skipped]
    assert sorted(left_out) == sorted((f"shard-{shard}", record) for shard, record in DAMAGED.values())


@pytest.mark.filterwarnings("ignore:left out")
def test_where_the_way_is_lost_the_rest_of_the_shard_is_left_out() -> None:
    lost = MemorySource(source(damaged=(5,)).records, lengths_lost=True)
    dataset = stream(source=lost, shuffle=False)
    assert numbers(dataset) == [0, 1, 2, 3, 4]
    assert [skipped.reason.split(":")[0] for skipped in dataset.skipped] == [
        "/data/shard-1",
        "the rest of the shard cannot be reached",
    ]


@pytest.mark.filterwarnings("ignore:left out")
@pytest.mark.parametrize("world_size", [1, 3])
def test_behind_the_last_record_nothing_is_left_out(world_size: int) -> None:
    lost = MemorySource(source(damaged=(7,)).records, lengths_lost=True)
    ranks = [
        stream(source=lost, shuffle=False, rank=rank, world_size=world_size) for rank in range(world_size)
    ]
    assert sorted(n for rank in ranks for n in numbers(rank)) == [0, 1, 2, 3, 4, 5, 6]
    assert [(skipped.shard, skipped.record) for rank in ranks for skipped in rank.skipped] == [("shard-1", 3)]


@pytest.mark.filterwarnings("ignore:left out")
def test_a_conversion_counts_a_last_record_that_is_cut_short_once(tmp_path: Path) -> None:
    path = write_arm_dataset(tmp_path / "arm", episodes=4, shards=2)
    shard = sorted(path.glob("*.tfrecord-*"))[0]
    shard.write_bytes(shard.read_bytes()[:-5])
    stored = OpenXExperienceReplay(
        "arm", streaming=False, source=path, root=tmp_path / "root", on_error="skip"
    )
    assert (stored.num_episodes, [skipped.record for skipped in stored.skipped]) == (3, [1])


@pytest.mark.filterwarnings("ignore:left out")
@pytest.mark.parametrize("frames", [True, False])
def test_a_dataset_of_which_nothing_can_be_read_is_an_error_in_the_end(frames: bool) -> None:
    dataset = stream(3, source=source(damaged=range(8), frames=frames), buffer_bytes=0)
    with pytest.raises(DataFormatError, match="no episode"):
        list(dataset)
    with pytest.raises(DataFormatError, match="no episode"):
        dataset.sample()


def damaged_arm(folder: Path) -> Path:
    """Real files; a byte of the second shard's first record is wrong."""
    path = write_arm_dataset(folder / "arm", episodes=6, shards=2)
    shard = sorted(path.glob("*.tfrecord-*"))[1]
    content = bytearray(shard.read_bytes())
    content[len(content) // 6] ^= 1
    shard.write_bytes(content)
    return path


def test_real_files_are_read_around_a_flipped_byte(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = damaged_arm(tmp_path)
    dataset = stream(source=path)
    with pytest.warns(UserWarning, match="00001-of-00002: record 0 at byte 0: .*checksum"):
        assert len(list(dataset)) == 5
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        assert run(["stream", str(path), "--seconds", "0", "--on-error", "skip"]) == 0
    shown = capsys.readouterr()
    assert "Note: records left out: 1, the first: " in shown.out
    assert "warning: left out: " in shown.err
    stored = OpenXExperienceReplay(
        "arm", streaming=False, source=path, root=tmp_path / "root", on_error="skip"
    )
    assert (stored.num_episodes, [skipped.record for skipped in stored.skipped]) == (5, [0])


@pytest.mark.filterwarnings("ignore:left out")
def test_a_mixture_passes_over_them(tmp_path: Path) -> None:
    mixture = OpenXMixture(
        {"arm": 1.0}, 32, slice_len=4, source={"arm": damaged_arm(tmp_path)}, on_error="skip"
    )
    for _ in range(8):
        mixture.sample()
    (skipped,) = mixture.datasets[0].skipped
    assert skipped.record == 0
    mixture.close()


@pytest.mark.parametrize("state", [None, [1], [["a", 1]], [["a", "1", "b"]], [["a", True, "b"]]])
def test_a_state_with_other_things_in_it_is_refused(state: Any) -> None:
    dataset = stream()
    whole = dataset.state_dict()
    whole["sampler"]["skipped"] = state
    with pytest.raises(ValueError, match="skipped"):
        dataset.load_state_dict(whole)
