"""Whether the disk has room for a dataset is worked out before it is converted."""

from __future__ import annotations

import errno
import os
import shutil
from collections import Counter, namedtuple
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import memory_source
from memory_source import MemorySource, episode
from replaybank.datasets.openx.convert import convert
from replaybank.datasets.openx.files import MANIFEST, PROGRESS, ROWS
from replaybank.datasets.openx.sources.base import Episode, Shard
from replaybank.datasets.openx.sources.rlds import RLDSSource
from replaybank.demo.arm import write_arm_dataset

Usage = namedtuple("Usage", "total used free")


def disk_of(monkeypatch: pytest.MonkeyPatch, free: int) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(1 << 50, 0, free))


class Declared(MemorySource):
    """Says how many steps its shards have; the second may not be reached."""

    unplugged = False

    def episodes(self, shard: Shard, start: int = 0) -> Iterator[Episode]:
        if shard.number == 1 and self.unplugged:
            raise OSError("unplugged")
        return super().episodes(shard, start)

    def shards(self) -> Any:
        return [
            Shard(shard.number, shard.path, shard.episodes, sum(self._steps(shard)))
            for shard in super().shards()
        ]

    def _steps(self, shard: Shard) -> Iterator[int]:
        for record in self.records[shard.number]:
            assert isinstance(record, Episode)
            yield record.length


def source() -> Declared:
    return Declared(
        [[memory_source.episode(number, 10) for number in range(first, first + 3)] for first in (0, 3)]
    )


def taken(folder: Path) -> int:
    return sum(
        file.stat().st_size for file in folder.glob("*.bin") if not file.name.startswith(("epi", "che"))
    )


def test_declared_steps_are_believed_to_the_byte(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    convert(source(), tmp_path / "measured")
    needed = taken(tmp_path / "measured")
    disk_of(monkeypatch, needed - 1)
    with pytest.raises(
        OSError, match=r"memory: 60 steps will take .* and .* are free there. Make room"
    ) as found:
        convert(source(), tmp_path / "out")
    assert (found.value.errno, found.value.filename) == (errno.ENOSPC, str(tmp_path / "out"))
    assert not (tmp_path / "out" / MANIFEST).exists()
    disk_of(monkeypatch, needed)
    assert convert(source(), tmp_path / "out").steps == 60


def test_what_is_there_already_is_not_asked_for_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    convert(source(), tmp_path / "measured")
    needed = taken(tmp_path / "measured")

    stopping = source()
    stopping.unplugged = True
    with pytest.raises(OSError, match="unplugged"):
        convert(stopping, tmp_path / "out", num_workers=1)
    assert (tmp_path / "out" / PROGRESS).exists()
    disk_of(monkeypatch, needed // 2)
    assert convert(source(), tmp_path / "out").steps == 60


@pytest.mark.parametrize("images", ["raw", "encoded"])
def test_without_declared_steps_some_episodes_tell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, images: Any
) -> None:
    arm = RLDSSource(write_arm_dataset(str(tmp_path / "arm"), episodes=12))
    convert(arm, tmp_path / "measured", images=images)
    needed = sum(file.stat().st_size for file in (tmp_path / "measured").iterdir())
    disk_of(monkeypatch, needed // 2)
    with pytest.raises(OSError, match=r"about [0-9,]+ steps will take") as found:
        convert(arm, tmp_path / "out", images=images)
    assert ("encoded" in str(found.value)) == (images == "raw")
    assert (tmp_path / "out" / ROWS).stat().st_size == 0
    disk_of(monkeypatch, 2 * needed)
    assert convert(arm, tmp_path / "out", images=images).episodes == 12


def test_where_nothing_is_known_nothing_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk_of(monkeypatch, 1)
    made = convert(MemorySource([[memory_source.episode(0, 3)]]), tmp_path)
    assert made.steps == 3


def test_a_disk_that_fills_up_is_named_and_the_same_call_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = MemorySource([[episode(number, 5)] for number in range(4)])
    convert(source, tmp_path / "whole")
    real, written = os.pwrite, Counter[str]()

    def full(file: int, content: Any, offset: int) -> int:
        written["calls"] += 1
        if written["calls"] > 12:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(file, content, offset)

    with monkeypatch.context() as patched:
        patched.setattr(os, "pwrite", full)
        with pytest.raises(OSError, match="the same call goes on where it stopped") as found:
            convert(source, tmp_path / "out")
    assert (found.value.errno, found.value.filename) == (errno.ENOSPC, str(tmp_path / "out"))
    made = convert(source, tmp_path / "out")
    assert made.episodes == 4
    for file in (tmp_path / "whole").glob("*.bin"):
        assert file.read_bytes() == (tmp_path / "out" / file.name).read_bytes()


def test_a_link_to_nowhere_is_no_folder_to_write_to(tmp_path: Path) -> None:
    (tmp_path / "out").symlink_to(tmp_path / "nowhere")
    with pytest.raises(FileExistsError, match=r"is a link to .*nowhere, which is not there"):
        convert(MemorySource([[episode(0, 2)]]), tmp_path / "out")
    (tmp_path / "nowhere").mkdir()
    assert convert(MemorySource([[episode(0, 2)]]), tmp_path / "out").episodes == 1
