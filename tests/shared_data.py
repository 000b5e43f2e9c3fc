"""Real dataset files that tests read where they lie; a test that needs an absent one is skipped."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

SHARED: Path = Path(os.environ.get("REPLAYBANK_SHARED", Path(__file__).resolve().parents[2] / "shared"))


def _folder(*parts: str) -> Path:
    folder = SHARED.joinpath("data", *parts)
    if not folder.is_dir():
        pytest.skip(f"{folder} is not there; set REPLAYBANK_SHARED to the folder that holds data/")
    return folder


def bridge_path() -> Path:
    """Folder of the bridge sample in RLDS form: 25 episodes of 10 steps, four 64 x 64 cameras."""
    return _folder("bridge_rlds", "bridge_dataset", "1.0.0")


def lerobot_g1_path() -> Path:
    """Folder of a LeRobot v2.1 dataset of a Unitree G1: files of episodes 10 and 20 of 100, AV1 640 x 480."""
    return _folder("lerobot_v21_g1")


def lerobot_so101_path() -> Path:
    """Folder of the metadata of a LeRobot v3.0 dataset of an SO-101 arm: 50 episodes, no data, no video."""
    return _folder("lerobot_v30_so101_meta")


def video_path(name: str) -> Path:
    """A video that is no robot's."""
    return _folder("videos") / name
