"""What the metadata of a LeRobot dataset says, where its data files are not there."""

from __future__ import annotations

import os
from collections import Counter

import numpy as np

from replaybank.datasets.openx.sources.lerobot_episodes import found_major, read_episodes
from replaybank.datasets.openx.sources.lerobot_features import NUMBERING
from replaybank.datasets.openx.sources.lerobot_info import Feature, read_info
from replaybank.datasets.openx.summary import DatasetSummary, FieldSummary, ImageSummary, folder_bytes

UNKNOWN = -1
"""A size that the metadata does not tell."""


def summarise_metadata(path: str, split: str = "train", note: str = "") -> DatasetSummary:
    """Say what a LeRobot dataset holds by its metadata alone: entries, cameras, episodes, tasks. O(episodes).

    Args:
        path: the folder or URL with meta/info.json.
        split: which part.
        note: put before the other notes.

    Raises:
        FileNotFoundError: there is no metadata.
        ValueError: there is no such split; those there are are named.
        DataFormatError: the metadata is damaged.
    """
    info = read_info(path)
    major = found_major(path, info.major)
    rows = read_episodes(path, major, tuple(f.name for f in info.features if f.dtype == "video"))
    splits = tuple(info.splits or {"train": ()})
    if split not in splits:
        raise ValueError(f"{path} has no split {split!r}; it has {sorted(splits)}")
    if info.splits is not None:
        rows = [row for row in rows if any(a <= row.index < b for a, b in info.splits[split])]
    tasks = Counter(task for row in rows for task in set(row.tasks))
    rate = "" if info.fps is None else f"{info.fps:g} steps a second are declared"
    return DatasetSummary(
        path=path,
        form="LeRobot, metadata only",
        name=os.path.basename(os.path.abspath(path)),
        version=info.version,
        split=split,
        splits=splits,
        complete=True,
        bytes=folder_bytes(path),
        fields=tuple(_field(feature) for feature in info.features if feature.name not in NUMBERING),
        lengths=tuple(row.length for row in rows),
        images=tuple(_camera(f) for f in info.features if f.dtype in ("video", "image")),
        texts={("task",): tasks} if tasks else {},
        notes=tuple(text for text in (note, rate) if text),
    )


def _field(feature: Feature) -> FieldSummary:
    shape = feature.shape or ()
    if feature.dtype in ("video", "image"):
        return FieldSummary(tuple(feature.name.split(".")), "image", _pixels(feature), "uint8")
    kind = "text" if feature.dtype == "string" else "tensor"
    return FieldSummary(
        tuple(feature.name.split(".")), kind, shape, "str" if kind == "text" else feature.dtype
    )


def _camera(feature: Feature) -> ImageSummary:
    form = (feature.codec or feature.dtype).upper()
    return ImageSummary(tuple(feature.name.split(".")), form, *_pixels(feature), 0.0)


def _pixels(feature: Feature) -> tuple[int, int, int]:
    """Height, width and channels, whichever of the axes is said to be which."""
    shape = feature.shape or ()
    if len(shape) != 3:
        return UNKNOWN, UNKNOWN, UNKNOWN
    first = feature.names[:1] == ("channels",) or feature.names[:1] == ("channel",)
    order = np.roll(shape, -1) if first else np.array(shape)
    height, width, channels = order.tolist()
    return height, width, channels
