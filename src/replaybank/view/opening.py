"""Finds an episode at a path, whatever is there."""

from __future__ import annotations

import os

from replaybank import checkpoint
from replaybank.buffers.checkpointed import opened_buffers
from replaybank.datasets.openx.files import is_converted
from replaybank.datasets.openx.sources.files import is_url
from replaybank.datasets.openx.sources.open import open_source
from replaybank.datasets.openx.storage import DatasetStorage
from replaybank.view.buffer import buffer_episode
from replaybank.view.converted import converted_episode
from replaybank.view.episode import RecordedEpisode
from replaybank.view.published import published_episode


def open_episode(
    path: str | os.PathLike[str],
    number: int = 0,
    *,
    split: str | None = None,
    progress: bool | None = None,
) -> RecordedEpisode:
    """An episode of a converted dataset, a dataset as it is published, or a checkpointed buffer.

    Files that are missing of a published dataset are passed over: the episodes are those that are there.

    Args:
        path: a folder, a URL, or an id of the catalog.
        number: of the episode, from 0, as its steps' ``"episode"`` entry has it. One that is none of these
            may be the origin's own, such as LeRobot's ``episode_index``.
        split: of a published dataset, ``"train"`` by default.
        progress: show a bar if a checkpoint takes long to read; by default where the error output is a
            terminal.

    Raises:
        FileNotFoundError: there is nothing that can be read.
        ValueError: there is no such split.
        IndexError: there is no such episode; the range is told.
        DataFormatError: a file is not what its format says; or a buffer does not say where episodes end.

    Example:
        >>> import tempfile
        >>> from replaybank.demo.arm import write_arm_dataset
        >>> folder = tempfile.TemporaryDirectory()
        >>> episode = open_episode(write_arm_dataset(folder.name + "/arm", episodes=2), 1)
        >>> episode.number, sorted("/".join(key) for key in episode.cameras)
        (1, ['observation/hand_image', 'observation/image'])
        >>> folder.cleanup()
    """
    place = os.fspath(path)
    if not is_url(place):
        if is_converted(place):
            dataset = DatasetStorage(place)
            if split not in (None, dataset.manifest.split):
                raise ValueError(
                    f"{place}: there is no split {split!r}: {dataset.manifest.split!r} was converted"
                )
            return converted_episode(dataset, number)
        if checkpoint.is_checkpoint(place):
            with opened_buffers(place, progress=progress) as buffers:
                return buffer_episode(buffers, place, number)
    source = open_source(place, split="train" if split is None else split, allow_missing_shards=True)
    return published_episode(source, number)
