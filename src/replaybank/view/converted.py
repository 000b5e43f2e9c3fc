"""Episodes of converted datasets."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch

from replaybank.datasets.openx.catalog import datasets
from replaybank.datasets.openx.storage import DatasetStorage
from replaybank.datasets.openx.ted import EPISODE, IS_INIT, STEP
from replaybank.view.episode import Camera, Frames, Key, RecordedEpisode, place_of

DECODED_BYTES = 1 << 24
"""Pixels read at a time."""
_ORIGIN_NUMBER: Key = ("episode_index",)  # as LeRobot has it


def converted_episode(dataset: DatasetStorage, number: int) -> RecordedEpisode:
    """An episode of a converted dataset. O(bytes of its numbers and texts); frames are read later.

    Args:
        dataset: in which it is.
        number: of the episode, from 0; or a number that only its origin has.

    Raises:
        IndexError: there is no such episode.
        DataFormatError: a file is damaged.
    """
    manifest = dataset.manifest
    number = place_of(str(dataset.folder), number, len(dataset.bounds), lambda: _origin_numbers(dataset))
    start, length = dataset.bounds[number].tolist()
    steps = slice(start, start + length)
    numbers, texts, cameras = {}, {}, {}
    for key in dataset.leaf_keys():
        kind = manifest.kinds.get(key, "tensor")
        if key in (EPISODE, STEP, IS_INIT) or number in manifest.missing.get(key, ()):
            continue
        if kind == "image":
            cameras[key] = ConvertedCamera(dataset, key, start, length)
        elif kind == "text":
            codes = dataset.read_leaf(key, steps).reshape(-1).tolist()
            texts[key] = [dataset.strings[code] if 0 <= code < len(dataset.strings) else "" for code in codes]
        else:
            numbers[key] = dataset.read_leaf(key, steps).numpy()
    metadata = dataset.metadata(number)
    facts = {key if isinstance(key, str) else "/".join(key): v for key, v in metadata.items()}
    known = datasets().get(manifest.name)
    return RecordedEpisode(
        manifest.name,
        number,
        length,
        numbers,
        texts,
        dict[Key, Camera](cameras),
        manifest.dim_names,
        rate=None if known is None else known.hz,
        facts={name: str(value) for name, value in facts.items()},
        origin_number=metadata.get(_ORIGIN_NUMBER),
    )


def _origin_numbers(dataset: DatasetStorage) -> list[int]:
    """By which numbers the origin knows the episodes; none where it does not number them. O(episodes)."""
    found = [dataset.metadata(number).get(_ORIGIN_NUMBER) for number in range(len(dataset.bounds))]
    return [number for number in found if number is not None]


class ConvertedCamera:
    """The frames of one camera over an episode; as bytes where they are kept so.

    Args:
        dataset: in which they are.
        key: of the camera.
        start: first step of the episode.
        length: number of its steps.
    """

    lossy = False

    def __init__(self, dataset: DatasetStorage, key: Key, start: int, length: int) -> None:
        self._dataset, self._key = dataset, key
        self._start, self._length = start, length
        leaf = next(leaf for leaf in dataset.manifest.leaves if leaf.key == key)
        self._bytes = leaf.bytes
        self._pixels_only = leaf.dtype == torch.float32
        self.depth = leaf.dtype in (torch.uint16, torch.float32)

    def parts(self) -> Iterator[tuple[int, Frames]]:
        """All frames."""
        frames = self._dataset.encoded_frames(self._key)
        if frames is not None and not frames.bgr and not self._pixels_only:
            contents = frames.contents(torch.arange(self._start, self._start + self._length))
            yield 0, [bytes(content) for content in contents]
            return
        count = max(1, DECODED_BYTES // max(self._bytes, 1))
        for first in range(0, self._length, count):
            last = min(first + count, self._length)
            pixels = self._dataset.read_leaf(self._key, slice(self._start + first, self._start + last))
            yield first, np.ascontiguousarray(pixels.numpy().transpose(0, 2, 3, 1))
