"""Conversion in several threads: the same bytes as in one, whatever goes wrong where, within its memory."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import memory_source
from memory_source import Frames, MemorySource
from patience import PATIENCE
from replaybank.datasets.openx.convert import convert
from replaybank.datasets.openx.conveyor import threads_for
from replaybank.datasets.openx.files import read_manifest, read_progress
from replaybank.datasets.openx.frames import FRAME_CHUNK_BYTES
from replaybank.datasets.openx.locks import LOCK
from replaybank.datasets.openx.sources.base import Episode
from replaybank.errors import CorruptRecordError, DataFormatError

IMAGE = ("observation", "image")


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.name != LOCK}


class Slow(Frames):
    """A camera whose frames come when they are let go."""

    def __init__(self, frames: Any, gate: threading.Event, *, bad: bool = False) -> None:
        super().__init__(frames, bad)
        self.gate = gate

    def decode(self, start: int = 0, stop: int | None = None) -> Any:
        assert self.gate.wait(PATIENCE)
        return super().decode(start, stop)


def held_up(number: int, length: int, gate: threading.Event, *, bad: bool = False) -> Episode:
    """An episode whose frames come late, and perhaps not at all."""
    made = memory_source.episode(number, length)
    frames = made.steps[IMAGE]
    assert isinstance(frames, Frames)
    return Episode({**made.steps, IMAGE: Slow(frames.frames, gate, bad=bad)}, length, made.where)


class Opening(MemorySource):
    """Opens a gate once it has given its last record: all before are under way by then."""

    def __init__(self, shards: Any, gate: threading.Event) -> None:
        super().__init__(shards)
        self.gate = gate

    def episodes(self, shard: Any, start: int = 0) -> Any:
        yield from super().episodes(shard, start)
        if shard.number == len(self.records) - 1:
            self.gate.set()


def records(bad: set[int] = frozenset()) -> list[list[Episode | Exception]]:  # type: ignore[assignment]
    """Three shards of twelve episodes; the frames of the bad ones cannot be decoded."""
    return [
        [memory_source.episode(n, 3 + n % 4, bad=n in bad) for n in range(first, first + 4)]
        for first in (0, 4, 8)
    ]


@pytest.mark.parametrize("images", ["raw", "encoded"])
@pytest.mark.parametrize("workers", [2, 3, 8])
def test_any_number_of_workers_gives_the_same_bytes(tmp_path: Path, workers: int, images: Any) -> None:
    if images == "encoded":
        source: Any = encoded_source(tmp_path)
    else:
        source = MemorySource(records())
    convert(source, tmp_path / "one", num_workers=1, images=images)
    convert(source, tmp_path / "many", num_workers=workers, images=images)
    assert contents(tmp_path / "many") == contents(tmp_path / "one")


def encoded_source(folder: Path) -> Any:
    from replaybank.datasets.openx.sources.rlds import RLDSSource
    from replaybank.demo.arm import write_arm_dataset

    return RLDSSource(write_arm_dataset(str(folder / "arm"), episodes=6))


@pytest.mark.parametrize("bad", [{0}, {5}, {11}, {0, 1}, {3, 4, 7}, set(range(12)) - {6}])
@pytest.mark.parametrize("workers", [1, 4])
def test_damaged_frames_are_left_out_and_all_else_is_as_if_they_had_never_been(
    tmp_path: Path, bad: set[int], workers: int
) -> None:
    good: list[list[Episode | Exception]] = [
        [
            record
            for record in shard
            if isinstance(record, Episode) and int(record.where.split()[1]) not in bad
        ]
        for shard in records()
    ]
    convert(MemorySource(good), tmp_path / "good")
    made = convert(MemorySource(records(bad)), tmp_path / "skip", on_error="skip", num_workers=workers)
    assert [(s.shard, s.record) for s in made.skipped] == [(f"shard-{n // 4}", n % 4) for n in sorted(bad)]
    assert all("not a JPEG" in s.reason for s in made.skipped)
    names = ("rows.bin", "column-000.bin", "episodes.bin", "strings.jsonl", "checksums.bin")
    skip, whole = contents(tmp_path / "skip"), contents(tmp_path / "good")
    assert {name: skip[name] for name in names} == {name: whole[name] for name in names}
    assert [shard.episodes for shard in made.shards] == [len(shard) for shard in good]


def test_what_was_begun_behind_a_damaged_episode_is_begun_again_without_it(tmp_path: Path) -> None:
    gate = threading.Event()
    shards: Any = [
        [held_up(0, 3, gate), held_up(1, 4, gate, bad=True), memory_source.episode(2, 5)],
        [CorruptRecordError("/data/shard-1", 0, 0, "bad"), held_up(3, 2, gate, bad=True)],
        [memory_source.episode(4, 6), held_up(5, 2, gate)],
    ]
    made = convert(Opening(shards, gate), tmp_path, on_error="skip", num_workers=2)
    bounds = np.fromfile(tmp_path / "episodes.bin", np.int64).reshape(-1, 2)
    assert bounds.tolist() == [[0, 3], [3, 5], [8, 6], [14, 2]]
    assert [(s.shard, s.record) for s in made.skipped] == [("shard-0", 1), ("shard-1", 0), ("shard-1", 1)]
    images = np.fromfile(tmp_path / "column-000.bin", np.uint8).reshape(16, 3, 20, 20)
    expected = []
    for number, length in ((0, 3), (2, 5), (4, 6), (5, 2)):
        frames: Any = memory_source.episode(number, length).steps[IMAGE]
        expected.append(frames.frames.transpose(0, 3, 1, 2))
    assert np.array_equal(images, np.concatenate(expected))


def test_of_two_faults_the_first_in_the_data_is_named_though_the_second_is_found_first(
    tmp_path: Path,
) -> None:
    gate = threading.Event()

    class Late(Opening):
        def episodes(self, shard: Any, start: int = 0) -> Any:
            try:
                yield from super().episodes(shard, start)
            except CorruptRecordError:
                self.gate.set()  # the reader has met the second fault: now the first may show
                raise

    shards: Any = [
        [memory_source.episode(0, 3)],
        [held_up(1, 4, gate, bad=True), CorruptRecordError("x", 1, 0, "bad")],
    ]
    with pytest.raises(DataFormatError, match="not a JPEG"):
        convert(Late(shards, gate), tmp_path, num_workers=2)
    assert len(read_progress(tmp_path).shards) == 1


def test_nothing_is_left_running_after_an_error(tmp_path: Path) -> None:
    before = threading.active_count()
    with pytest.raises(DataFormatError):
        convert(MemorySource(records({11})), tmp_path, num_workers=4)
    assert threading.active_count() == before


def test_few_bytes_allow_few_threads_and_one_at_least() -> None:
    assert threads_for(None, 1) == 1
    assert threads_for(64, 60 * FRAME_CHUNK_BYTES) == 10
    assert threads_for(3, 1 << 40) == 3


@pytest.mark.parametrize(("workers", "memory"), [(0, 1), (-1, 1), (1, 0)])
def test_less_than_one_worker_or_byte_is_refused(tmp_path: Path, workers: int, memory: int) -> None:
    with pytest.raises(ValueError, match=f"num_workers={workers} and max_memory={memory}"):
        convert(MemorySource(records()), tmp_path / "out", num_workers=workers, max_memory=memory)
    assert not (tmp_path / "out").exists()


def test_an_episode_that_alone_takes_more_memory_than_allowed_is_named(tmp_path: Path) -> None:
    source = MemorySource([[memory_source.episode(0, 2), memory_source.episode(1, 4000)]])
    with pytest.raises(MemoryError, match=r"record 1 takes .* max_memory=100,000"):
        convert(source, tmp_path, max_memory=100_000)


LIMITED = """
import resource, sys
from pathlib import Path
import numpy as np
from memory_source import Frames
from replaybank.datasets.openx.convert import convert
from replaybank.datasets.openx.sources.base import Episode, FieldSpec, Shard

class Large:
    name = "large"
    fields = {
        ("observation", "image"): FieldSpec("image", (128, 128, 3), np.dtype("uint8")),
        ("action",): FieldSpec("tensor", (1024,), np.dtype("float64")),
    }
    def shards(self):
        return [Shard(0, "/data/shard-0", 40)]
    def episodes(self, shard, start=0):
        for number in range(start, 40):
            frames = Frames(np.broadcast_to(np.full((1, 128, 128, 3), number, np.uint8), (200, 128, 128, 3)))
            frames.record = bytes([number + 1]) * (8 << 20)
            steps = {
                ("observation", "image"): frames,
                ("action",): np.full((200, 1024), number, np.float64),
            }
            yield Episode(steps, 200, f"record {number}", record_bytes=8 << 20)

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

import google_crc32c
before = peak()
made = convert(Large(), sys.argv[1] + "/out", num_workers=4, max_memory=100 << 20, progress=False)
print(made.steps, peak() - before)
"""


def test_memory_stays_within_what_was_allowed(tmp_path: Path) -> None:
    """390 MB of frames, 65 MB of numbers, 320 MB of records: with all of it held this would take 800 MB."""
    script = tmp_path / "limited.py"
    script.write_text(LIMITED)
    environment = {"PYTHONPATH": str(Path(__file__).parents[2]), "PATH": ""}
    done = subprocess.run(
        [sys.executable, str(script), str(tmp_path)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    steps, grown = map(int, done.stdout.split())
    assert steps == 8000
    assert grown < 100 << 20
    assert read_manifest(tmp_path / "out").steps == steps
