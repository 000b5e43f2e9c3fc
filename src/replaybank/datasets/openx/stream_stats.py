"""Statistics of a stream: over episodes that are read for them, their frames left alone."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby

import numpy as np
import numpy.typing as npt
from torch import Tensor

from replaybank.datasets.openx.chosen import chosen_records
from replaybank.datasets.openx.selection import episodes_chosen
from replaybank.datasets.openx.skipping import LeftOut
from replaybank.datasets.openx.sources.base import Episode
from replaybank.datasets.openx.stats import EntryStats, entries_wanted, stats_of_values
from replaybank.datasets.openx.stream import EpisodeStream
from replaybank.datasets.openx.ted import Leaf, to_ted
from replaybank.progress import Bar
from replaybank.storages.layout import Key


def stream_stats(
    stream: EpisodeStream,
    leaves: Mapping[Key, Leaf],
    keys: Iterable[Key | str] | None = None,
    *,
    episodes: Sequence[int] | Tensor,
    progress: bool | None = None,
) -> dict[Key, EntryStats]:
    """Statistics over the steps of some episodes, the same as those of the stored dataset.

    Reads these episodes, in the order of the files. O(bytes of them), and O(steps log steps) for each number;
    memory: all values asked for.

    Args:
        stream: the episodes.
        leaves: what a step has.
        keys: entries of numbers; by default all but those that only count steps and mark ends.
        episodes: numbers of the episodes that count, the ``"episode"`` entry of their steps.
        progress: show a progress bar; by default where the error output is a terminal.

    Raises:
        KeyError: there is no such entry.
        IndexError: there is no such episode.
        ValueError: an entry is text or a camera, or no episode is selected.
        DataFormatError: an episode cannot be read.
    """
    name = stream.source.name
    kinds: dict[Key, str] = {key: leaf.kind for key, leaf in leaves.items()}
    wanted = entries_wanted(name, kinds, keys, images=False)
    cameras = [key for key in wanted if kinds[key] == "image"]
    if cameras:
        raise ValueError(
            f"{cameras[0]!r} is a camera: statistics of frames are those of a stored dataset "
            "(streaming=False); of a stream, leave it out"
        )
    numbers = episodes_chosen(episodes, stream.episodes).tolist()
    plain = {key: leaf for key, leaf in leaves.items() if leaf.kind == "tensor"}
    values: dict[Key, list[npt.NDArray[np.generic]]] = {
        key: [np.zeros((0, *leaves[key].shape), leaves[key].dtype)] for key in wanted
    }
    with Bar("Statistics", "episode", len(numbers), show=progress) as bar:
        for number, episode in _episodes(stream, numbers):
            if isinstance(episode, Episode):
                ted = to_ted(episode, plain, number, name)
                for key in wanted:
                    column = ted.columns[key]
                    if key not in ted.missing and isinstance(column, np.ndarray):
                        values[key].append(np.array(column))  # not a view of all that was read with it
            bar.update(1)
    return {key: stats_of_values(np.concatenate(values.pop(key))) for key in wanted}


def _episodes(stream: EpisodeStream, numbers: Sequence[int]) -> Iterator[tuple[int, Episode | LeftOut]]:
    """Episodes by their numbers, which rise; each file read forwards."""
    for shard, run in groupby(numbers, key=lambda number: stream.place_of(number)[0]):
        number_of = {stream.place_of(number)[1]: number for number in run}
        read = chosen_records(stream.source, stream.shards[shard], list(number_of), skip=stream.skip)
        with contextlib.closing(read):
            for record, episode in read:
                if isinstance(episode, LeftOut):
                    stream.skipped.note(stream.shards[shard], record, episode.reason)
                yield number_of[record], episode
