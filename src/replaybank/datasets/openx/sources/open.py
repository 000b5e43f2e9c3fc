"""From a path to the source of its episodes: what is there says which."""

from __future__ import annotations

import os
from typing import TypeAlias

from replaybank.datasets.openx.sources.files import is_url
from replaybank.datasets.openx.sources.info import FEATURES_FILE, INFO_FILE
from replaybank.datasets.openx.sources.lerobot import LeRobotSource, is_lerobot
from replaybank.datasets.openx.sources.lerobot_info import INFO_FILE as LEROBOT_INFO
from replaybank.datasets.openx.sources.rlds import RLDSSource, is_rlds

FileSource: TypeAlias = RLDSSource | LeRobotSource
"""A source of what lies in files."""


def open_source(
    path: str | os.PathLike[str],
    split: str = "train",
    *,
    allow_missing: bool = False,
    video_threads: int = 0,
) -> FileSource:
    """The episodes of a folder or URL in one of the published forms: RLDS or LeRobot.

    Args:
        path: the folder, or for RLDS the one above its one version.
        split: name of the split to read.
        allow_missing: read what is there where files are missing.
        video_threads: of each video decoder; 0: as many as there are cores.

    Raises:
        FileNotFoundError: there is no such dataset, or files are missing.
        ValueError: there is no such split.
        DataFormatError: the dataset is not what its form says.

    >>> open_source("/nowhere")
    Traceback (most recent call last):
        ...
    FileNotFoundError: /nowhere: there is no such folder
    """
    path = os.fspath(path)
    if is_lerobot(path):
        return LeRobotSource(path, split, allow_missing=allow_missing, video_threads=video_threads)
    if is_rlds(path):
        return RLDSSource(path, split, allow_missing_shards=allow_missing)
    if not is_url(path) and not os.path.exists(path):
        raise FileNotFoundError(f"{path}: there is no such folder")
    raise FileNotFoundError(
        f"{path} is no robot dataset: neither RLDS ({FEATURES_FILE} and {INFO_FILE}), nor LeRobot "
        f"({LEROBOT_INFO}), nor a converted one (manifest.json)"
    )
