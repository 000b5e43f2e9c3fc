"""Conversion: right values, whole or not at all, whatever happens on the way."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from memory_source import MemorySource
from replaybank.datasets.openx.convert import convert
from replaybank.datasets.openx.files import MANIFEST, read_manifest
from replaybank.datasets.openx.locks import LOCK
from replaybank.datasets.openx.sources.base import Episode, FieldSpec, Key
from replaybank.datasets.openx.sources.rlds import RLDSSource
from replaybank.datasets.openx.sources.rlds_writer import RLDSWriter
from replaybank.errors import CorruptRecordError, DataFormatError, IncompleteDatasetError
from replaybank.storages.layout import field_name

VECTOR = FieldSpec("tensor", (2,), np.dtype("float32"))
STEP_FIELDS: dict[Key, FieldSpec] = {
    ("observation", "state"): VECTOR,
    ("observation", "image"): FieldSpec("image", (32, 32, 3), np.dtype("uint8")),
    ("action",): VECTOR,
    ("language_instruction",): FieldSpec("text", (), None),
}
METADATA_FIELDS: dict[Key, FieldSpec] = {("episode_metadata", "file_path"): FieldSpec("text", (), None)}


ACTIONS: dict[Key, FieldSpec] = {("action",): FieldSpec("tensor", (-1,), np.dtype("float32"))}
"""Fields of a dataset of nothing but actions, their number not declared."""


def actions(number: int, length: int, width: int = 2) -> Episode:
    return Episode({("action",): np.full((length, width), number, np.float32)}, length, f"record {number}")


def corrupt(shard: int, record: int) -> CorruptRecordError:
    return CorruptRecordError(f"/data/shard-{shard}", record, 17, "the checksum is wrong")


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.name != LOCK}


def column(folder: Path, key: Key) -> Any:
    manifest = read_manifest(folder)
    return np.fromfile(folder / "rows.bin", manifest.layout.numpy_dtype())[field_name(key)]


def write_rlds(folder: Path, lengths: Sequence[int] = (4, 6, 5, 3, 7, 2, 9, 5), shards: int = 3) -> Path:
    with RLDSWriter(
        folder, "arm", fields=STEP_FIELDS, metadata_fields=METADATA_FIELDS, shards=shards
    ) as writer:
        for number, length in enumerate(lengths):
            rng = np.random.default_rng(number)
            writer.write(
                {
                    ("observation", "state"): rng.normal(size=(length, 2)).astype(np.float32),
                    ("observation", "image"): rng.integers(0, 255, (length, 32, 32, 3)).astype(np.uint8),
                    ("action",): np.full((length, 2), number, np.float32),
                    ("language_instruction",): [f"do {number % 3}"] * length,
                },
                {("episode_metadata", "file_path"): f"/logs/{number}"},
            )
    return folder


def test_episodes_lie_one_behind_the_other_in_the_order_of_the_records(tmp_path: Path) -> None:
    source = MemorySource([[actions(0, 3), actions(1, 2)], [], [actions(2, 4)]], ACTIONS)
    manifest = convert(source, tmp_path / "out")
    assert (manifest.steps, manifest.episodes) == (9, 3)
    assert column(tmp_path / "out", ("action",))[:, 0].tolist() == [0, 0, 0, 1, 1, 2, 2, 2, 2]
    assert column(tmp_path / "out", ("episode",)).tolist() == [0, 0, 0, 1, 1, 2, 2, 2, 2]
    assert column(tmp_path / "out", ("step",)).tolist() == [0, 1, 2, 0, 1, 0, 1, 2, 3]
    assert [shard.steps for shard in manifest.shards] == [5, 0, 4]


def test_a_real_dataset_converts_with_every_value_of_every_episode(tmp_path: Path) -> None:
    source = RLDSSource(write_rlds(tmp_path / "rlds"))
    manifest = convert(source, tmp_path / "out")
    images = np.fromfile(tmp_path / "out" / "column-000.bin", np.uint8).reshape(-1, 3, 32, 32)
    lines = (tmp_path / "out" / "metadata.jsonl").read_text().splitlines()
    start = 0
    for number, episode in enumerate(e for shard in source.shards() for e in source.episodes(shard)):
        part = slice(start, start + episode.length)
        frames: Any = episode.steps[("observation", "image")]
        assert np.array_equal(images[part], frames.decode().transpose(0, 3, 1, 2))
        state = column(tmp_path / "out", ("observation", "state"))[part]
        given: Any = episode.steps[("observation", "state")]
        assert np.array_equal(state, given)
        told = {tuple(key): value for key, value in json.loads(lines[number])["metadata"]}
        assert told == episode.metadata
        start += episode.length
    assert (start, manifest.strings) == (41, 3)


def test_converting_again_changes_nothing(tmp_path: Path) -> None:
    source = MemorySource([[actions(0, 3)]], ACTIONS)
    first = convert(source, tmp_path / "out")
    before = {p.name: p.stat().st_mtime_ns for p in (tmp_path / "out").iterdir()}
    assert convert(source, tmp_path / "out") == first
    assert {p.name: p.stat().st_mtime_ns for p in (tmp_path / "out").iterdir()} == before


def test_another_dataset_does_not_replace_a_converted_one_unasked(tmp_path: Path) -> None:
    convert(MemorySource([[actions(0, 3)]], ACTIONS), tmp_path)
    other = MemorySource([[actions(5, 2)], [actions(6, 2)]], ACTIONS)
    with pytest.raises(FileExistsError, match="overwrite=True"):
        convert(other, tmp_path)
    assert read_manifest(tmp_path).steps == 3
    assert convert(other, tmp_path, overwrite=True).steps == 4


def test_a_dataset_made_anew_under_the_same_name_is_not_taken_for_the_converted_one(tmp_path: Path) -> None:
    convert(write_rlds(tmp_path / "old", [4, 6, 5]), tmp_path / "out")
    new = write_rlds(tmp_path / "new", [4, 6, 7])
    with pytest.raises(FileExistsError, match="overwrite=True"):
        convert(new, tmp_path / "out")
    assert convert(new, tmp_path / "out", overwrite=True).steps == 17


def test_a_corrupt_record_stops_the_conversion_and_is_named(tmp_path: Path) -> None:
    source = MemorySource([[actions(0, 3)], [actions(1, 2), corrupt(1, 1), actions(2, 2)]], ACTIONS)
    with pytest.raises(CorruptRecordError, match="/data/shard-1: record 1 at byte 17"):
        convert(source, tmp_path)
    with pytest.raises(IncompleteDatasetError, match="1 of 2 shards"):
        read_manifest(tmp_path)


def test_a_corrupt_record_is_skipped_and_counted_when_asked_for(tmp_path: Path) -> None:
    source = MemorySource(
        [[corrupt(0, 0), actions(1, 2), corrupt(0, 2), actions(3, 1), corrupt(0, 4)]], ACTIONS
    )
    manifest = convert(source, tmp_path, on_error="skip")
    assert column(tmp_path, ("action",))[:, 0].tolist() == [1, 1, 3]
    assert column(tmp_path, ("episode",)).tolist() == [0, 0, 1]
    assert [(s.shard, s.record) for s in manifest.skipped] == [("shard-0", 0), ("shard-0", 2), ("shard-0", 4)]


def test_behind_a_lost_length_the_rest_of_the_shard_is_skipped_and_said_so(tmp_path: Path) -> None:
    records: list[list[Episode | Exception]] = [
        [actions(0, 1), corrupt(0, 1), actions(2, 1)],
        [actions(3, 1)],
    ]
    manifest = convert(MemorySource(records, ACTIONS, lengths_lost=True), tmp_path, on_error="skip")
    assert column(tmp_path, ("action",))[:, 0].tolist() == [0, 3]
    assert [(s.record, "rest of the shard" in s.reason) for s in manifest.skipped] == [(1, False), (2, True)]


def test_an_episode_of_another_shape_is_an_error_or_skipped(tmp_path: Path) -> None:
    source = MemorySource([[actions(0, 2), actions(1, 2, width=3), actions(2, 2)]], ACTIONS)
    with pytest.raises(DataFormatError, match=r"memory: episode 1 .* action has shape \(3,\), .* \(2,\)"):
        convert(source, tmp_path / "raise")
    manifest = convert(source, tmp_path / "skip", on_error="skip")
    assert column(tmp_path / "skip", ("action",))[:, 0].tolist() == [0, 0, 2, 2]
    assert [s.record for s in manifest.skipped] == [1]


@pytest.mark.parametrize("shards", [[], [[]], [[], []]])
def test_an_empty_dataset_is_a_clear_error(tmp_path: Path, shards: Any) -> None:
    with pytest.raises(DataFormatError, match="no episode"):
        convert(MemorySource(shards, ACTIONS), tmp_path)
    assert not (tmp_path / MANIFEST).exists()


def test_on_error_takes_two_words_only(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="'raise' or 'skip', got 'ignore'"):
        convert(MemorySource([[actions(0, 1)]], ACTIONS), tmp_path, on_error="ignore")  # type: ignore[arg-type]


@pytest.mark.parametrize("dest", ["", "gs://bucket/arm", "http://host/arm"])
def test_a_destination_is_a_folder_of_this_machine(
    dest: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match="a folder of this machine"):
        convert(MemorySource([[actions(0, 1)]], ACTIONS), dest)
    assert list(tmp_path.iterdir()) == []


def test_a_converted_dataset_is_not_converted_again(tmp_path: Path) -> None:
    convert(MemorySource([[actions(0, 1)]], ACTIONS), tmp_path / "out")
    with pytest.raises(ValueError, match="converted dataset already"):
        convert(tmp_path / "out", tmp_path / "again")
    assert not (tmp_path / "again").exists()


def test_the_home_folder_may_be_written_short(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    convert(MemorySource([[actions(0, 1)]], ACTIONS), "~/arm")
    assert read_manifest(tmp_path / "arm").steps == 1


def test_without_tqdm_a_conversion_goes_unwatched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tqdm", None)
    assert convert(MemorySource([[actions(0, 1)]], ACTIONS), tmp_path, progress=True).steps == 1


def test_without_a_package_that_it_needs_nothing_is_begun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "google_crc32c", None)
    with pytest.raises(ImportError, match=r"pip install 'replaybank\[openx\]'"):
        convert(MemorySource([[actions(0, 1)]], ACTIONS), tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("damage", ["rows.bin", MANIFEST])
def test_what_a_damaged_dataset_says_to_do_helps(tmp_path: Path, damage: str) -> None:
    source = MemorySource([[actions(0, 3)]], ACTIONS)
    convert(source, tmp_path)
    (tmp_path / damage).write_bytes(b"{")
    with pytest.raises(DataFormatError, match="overwrite=True"):
        convert(source, tmp_path)
    assert convert(source, tmp_path, overwrite=True).steps == 3
    assert read_manifest(tmp_path).steps == 3


def calls_of(work: Callable[[], object], kill_at: int | None = None) -> int:
    """Number of calls and returns that some work makes; at the one given, the process is killed."""
    count = 0

    def see(*_: object) -> None:
        nonlocal count
        count += 1
        if count == kill_at:
            os.kill(os.getpid(), signal.SIGKILL)

    sys.setprofile(see)
    try:
        work()
    finally:
        sys.setprofile(None)
    return count


def test_killed_at_any_moment_it_goes_on_to_the_same_bytes_and_is_never_taken_for_complete(
    tmp_path: Path,
) -> None:
    source = RLDSSource(write_rlds(tmp_path / "rlds", [6] * 12, shards=4))
    convert(source, tmp_path / "first", progress=False)  # what is imported and kept at the first use is there
    calls = calls_of(lambda: convert(source, tmp_path / "whole", progress=False))
    whole = contents(tmp_path / "whole")
    moments = random.Random(0)
    killed = 0
    for attempt in range(25):
        out = tmp_path / f"killed-{attempt}"

        def work(out: Path = out) -> object:
            return convert(source, out, progress=False)

        for _ in range(2):  # killed again while going on
            if not (out / MANIFEST).exists():
                moment = moments.randrange(1, calls)  # here: a child's draws are forgotten
                child = os.fork()
                if child == 0:
                    try:
                        calls_of(work, kill_at=moment)
                    finally:
                        os._exit(0)
                killed += os.WIFSIGNALED(os.waitpid(child, 0)[1])
            if not (out / MANIFEST).exists():
                with pytest.raises((IncompleteDatasetError, FileNotFoundError)):
                    read_manifest(out)
        convert(source, out, progress=False)
        assert contents(out) == whole
        shutil.rmtree(out)
    assert killed >= 20  # the first of each two, but for those that count a call less than here
