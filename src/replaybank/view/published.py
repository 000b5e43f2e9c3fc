"""Episodes of published datasets: RLDS, LeRobot and tar shards."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from replaybank.datasets.openx.catalog import datasets
from replaybank.datasets.openx.corrections import AS_PUBLISHED, CorrectedSource
from replaybank.datasets.openx.sources.base import Episode, EpisodeSource, Images, episode_numbers_of
from replaybank.datasets.openx.sources.video_frames import VideoFrames
from replaybank.datasets.openx.ted import EPISODE, IS_INIT, STEP, Leaf, settle_shapes, ted_leaves, to_ted
from replaybank.view.episode import Camera, Frames, Key, RecordedEpisode, no_such_episode, place_of

DECODED_AT_A_TIME = 32
"""Frames of a video; enough for its decoder's threads."""


def published_episode(source: EpisodeSource, number: int) -> RecordedEpisode:
    """An episode of a dataset as it is published, with its known faults put right.

    Of shards that say how many episodes they have, only the one in which it lies is read.

    Args:
        source: the dataset.
        number: of the episode, from 0, in the order of the shards; or a number that only its origin has.

    Raises:
        IndexError: there is no such episode.
        DataFormatError: a file is not what its format says.
        OSError: a file cannot be read.
    """
    own = episode_numbers_of(source)
    if own:
        number = place_of(_name(source), number, len(own), lambda: own)
    episode = _find(source, number)
    leaves = settle_shapes(ted_leaves(source.fields), episode)
    leaves = {key: leaf for key, leaf in leaves.items() if leaf.source not in episode.missing}
    leaves = {
        key: leaf for key, leaf in leaves.items() if leaf.source is None or leaf.source in episode.steps
    }
    ted = to_ted(episode, leaves, number, source.name)
    bgr = source.corrections.bgr if isinstance(source, CorrectedSource) else frozenset()
    numbers, texts, cameras = {}, {}, {}
    for key, column in ted.columns.items():
        if key in (EPISODE, STEP, IS_INIT):
            continue
        if isinstance(column, list):
            texts[key] = column
        elif isinstance(column, np.ndarray):
            numbers[key] = column
        else:
            cameras[key] = PublishedCamera(column, leaves[key], swapped=leaves[key].source in bgr)
    names: Mapping[Key, Any] = getattr(source, "names", {})
    facts = {"/".join(key): str(value) for key, value in episode.metadata.items()}
    return RecordedEpisode(
        source.name,
        number,
        ted.length,
        numbers,
        texts,
        dict[Key, Camera](cameras),
        {
            key: names[leaf.source]
            for key, leaf in leaves.items()
            if leaf.source is not None and leaf.source in names
        },
        rate_of(source),
        {"from": episode.where, **facts, **{f"fault: {what}": str(n) for what, n in ted.faults.items()}},
        origin_number=own[number] if own else None,
    )


def rate_of(source: EpisodeSource) -> float | None:
    """Steps a second, as a dataset declares it or the catalog knows it."""
    declared: float | None = getattr(source, "fps", None)
    if declared is not None:
        return declared
    form = getattr(getattr(source, "source", source), "form", None)
    facts = datasets().get(source.name) if form in AS_PUBLISHED else None
    return None if facts is None else facts.hz


def _find(source: EpisodeSource, number: int) -> Episode:
    shards = source.shards()
    before = 0
    for shard in shards:
        if shard.episodes is not None and not 0 <= number < before + shard.episodes:
            before += shard.episodes
            continue
        start = number - before if shard.episodes is not None else 0
        before += start
        for episode in source.episodes(shard, start):
            if before == number:
                return episode
            before += 1
    raise no_such_episode(_name(source), number, before)


def _name(source: EpisodeSource) -> str:
    return str(getattr(source, "path", "") or source.name)


class PublishedCamera:
    """The frames of one camera, still as they are stored.

    Args:
        images: the frames.
        leaf: what they are.
        swapped: they are stored with blue first, so that their bytes cannot be shown.
    """

    def __init__(self, images: Images, leaf: Leaf, *, swapped: bool) -> None:
        self._images = images
        self.lossy = isinstance(images, VideoFrames)
        self._decoded = swapped or self.lossy or leaf.dtype == np.float32
        self.depth = leaf.dtype in (np.uint16, np.float32)

    def parts(self) -> Iterator[tuple[int, Frames]]:
        """All frames: in one part where they are stored one by one, decoded a few at a time where not."""
        if not self._decoded:
            yield 0, self._images.encoded()
            return
        for start in range(0, len(self._images), DECODED_AT_A_TIME):
            yield start, self._images.decode(start, min(start + DECODED_AT_A_TIME, len(self._images)))
