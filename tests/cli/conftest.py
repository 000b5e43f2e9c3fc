"""Datasets that the commands are tried on."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from command_line import EPISODES
from replaybank.demo import arm


@pytest.fixture(scope="module")
def arm_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("rlds") / arm.NAME / arm.VERSION
    return arm.write_arm_dataset(folder, episodes=EPISODES, shards=2)


@pytest.fixture
def broken_folder(arm_folder: Path, tmp_path: Path) -> Path:
    folder = tmp_path / "broken"
    shutil.copytree(arm_folder, folder)
    shard = sorted(folder.glob("*tfrecord*"))[0]
    content = bytearray(shard.read_bytes())
    content[5000] ^= 1
    shard.write_bytes(content)
    return folder
