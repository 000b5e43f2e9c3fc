"""Checking a dataset: every flipped byte is found and placed, whole ones pass."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

import memory_source
from memory_source import MemorySource
from replaybank.datasets.openx.convert import convert
from replaybank.datasets.openx.files import CHECKSUMS, EPISODES, MANIFEST, METADATA, ROWS, STRINGS
from replaybank.datasets.openx.sources.rlds import RLDSSource
from replaybank.datasets.openx.verify import verify
from replaybank.demo.arm import write_arm_dataset
from replaybank.errors import CorruptRecordError, DataFormatError
from shared_data import bridge_path


@pytest.fixture(scope="module", params=["raw", "encoded"])
def dataset(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("verify")
    source = RLDSSource(write_arm_dataset(str(folder / "arm"), episodes=5))
    convert(source, folder / "out", images=request.param)
    return folder / "out"


def test_a_whole_dataset_has_no_problems(dataset: Path) -> None:
    seen: list[tuple[int, int]] = []
    found = verify(dataset, on_progress=lambda done, of: seen.append((done, of)))
    assert (found.episodes, found.problems, found.unchecked) == (5, (), "")
    assert seen == [(k, 5) for k in range(1, 6)]


def test_a_flipped_byte_is_found_in_every_file_and_the_episode_named(dataset: Path) -> None:
    whole = verify(dataset)
    moments = random.Random(0)
    for file in sorted(dataset.iterdir()):
        if file.name == MANIFEST or not file.stat().st_size:
            continue
        content = file.read_bytes()
        for place in {0, len(content) - 1, *moments.sample(range(len(content)), min(10, len(content)))}:
            file.write_bytes(content[:place] + bytes([content[place] ^ 4]) + content[place + 1 :])
            found = verify(dataset)
            assert found.problems, (file.name, place)
            assert file.name in found.problems[0].where
            if file.name not in (EPISODES, CHECKSUMS, STRINGS, METADATA):
                assert "episode" in found.problems[0].where
                assert found.episodes < whole.episodes
        file.write_bytes(content)
    assert verify(dataset) == whole


def test_a_dataset_of_the_first_version_says_that_it_has_no_checksums(tmp_path: Path) -> None:
    convert(MemorySource([[memory_source.episode(0, 3)]]), tmp_path)
    manifest = json.loads((tmp_path / MANIFEST).read_bytes())
    (tmp_path / MANIFEST).write_text(json.dumps({**manifest, "version": 1}))
    found = verify(tmp_path)
    assert (found.steps, found.problems) == (3, ())
    assert "no checksums" in found.unchecked


def test_every_record_of_an_original_dataset_is_read_and_every_frame_decoded(tmp_path: Path) -> None:
    bad = memory_source.episode(1, 4, bad=True)
    shards: Any = [
        [
            memory_source.episode(0, 3),
            bad,
            CorruptRecordError("/data/shard-0", 2, 17, "the checksum is wrong"),
        ],
        [DataFormatError("not an episode"), memory_source.episode(2, 5)],
    ]
    found = verify(MemorySource(shards))
    assert (found.episodes, found.steps) == (2, 8)
    assert [(p.where, p.what.split(":")[-1].strip()) for p in found.problems] == [
        ("/data/shard-0 record 1", "not a JPEG"),
        ("/data/shard-0 record 2", "the checksum is wrong"),
        ("/data/shard-1 record 0", "not an episode"),
    ]


@pytest.mark.parametrize("behind", [0, 1])
def test_behind_a_lost_length_the_rest_of_a_shard_is_a_problem_if_there_is_one(behind: int) -> None:
    lost = CorruptRecordError("/data/shard-0", 1, 9, "the length is wrong")
    rest = [memory_source.episode(2 + number, 3) for number in range(behind)]
    shards: Any = [[memory_source.episode(0, 3), lost, *rest]]
    found = verify(MemorySource(shards, lengths_lost=True))
    assert found.episodes == 1
    assert [p.where for p in found.problems] == ["/data/shard-0 record 1", "/data/shard-0 record 2"][
        : 1 + behind
    ]
    assert all("cannot be reached" in problem.what for problem in found.problems[1:])


def test_the_real_bridge_file_is_whole_and_a_flipped_byte_in_it_is_not(tmp_path: Path) -> None:
    found = verify(bridge_path())
    assert (found.episodes, found.steps, found.problems) == (25, 250, ())
    for file in bridge_path().iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    shard = next(file for file in tmp_path.iterdir() if "tfrecord" in file.name)
    content = bytearray(shard.read_bytes())
    content[len(content) // 2] ^= 1
    shard.write_bytes(content)
    damaged = verify(tmp_path)
    assert (damaged.episodes, len(damaged.problems)) == (24, 1)
    assert "record 12" in damaged.problems[0].where


def test_rows_that_are_damaged_are_told_from_others(tmp_path: Path) -> None:
    convert(MemorySource([[memory_source.episode(n, 3) for n in range(4)]]), tmp_path)
    content = bytearray((tmp_path / ROWS).read_bytes())
    content[4 * len(content) // 12] ^= 128  # in the second episode
    (tmp_path / ROWS).write_bytes(content)
    found = verify(tmp_path)
    assert [problem.where for problem in found.problems] == [f"{tmp_path / ROWS} episode 1"]
