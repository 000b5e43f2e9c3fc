"""A dataset as it is published, to be looked at through its source: some episodes of some of its shards."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from replaybank.datasets.openx.corrections import CorrectedSource
from replaybank.datasets.openx.sources.base import Episode, EpisodeSource, Images, Key, held_bytes
from replaybank.datasets.openx.summary import SourceTally
from replaybank.datasets.openx.ted import IS_INIT, Leaf, settle_shapes, ted_leaves, to_ted, widen_shapes
from replaybank.datasets.openx.verify import Problem, readable_episodes
from replaybank.errors import DataFormatError
from replaybank.report.look import (
    LOOKED_STEPS,
    MOST_ITEM_BYTES,
    MOST_STEPS,
    About,
    Entry,
    Frames,
    Look,
    Progress,
    hz_of,
    without_missing,
)

LOOKED_EPISODES: Final = 200
"""Of a published dataset: each is read and parsed whole, and may come from far away."""
LOOKED_BYTES: Final = 1 << 30
"""Of its records: a second or two from a disk, some minutes from a server."""
LOOKED_SHARDS: Final = 8
"""Files that are opened: more show more of the dataset, and each costs a read from its start."""


class PublishedSubject:
    """The episodes of a source.

    Not thread-safe.

    Args:
        source: the dataset and its split.
    """

    def __init__(self, source: EpisodeSource) -> None:
        self._source = source
        self._shards = list(source.shards())
        self._inner = source.source if isinstance(source, CorrectedSource) else source
        self._tally = SourceTally(self._inner)
        self._leaves = ted_leaves(source.fields)
        self._problems: list[Problem] = []
        self._faults: dict[str, int] = {}
        self._looked = self._from = self._seed = self._longest = 0
        self._whole = False

    def looks(self, seed: int, progress: Progress) -> Iterator[Look]:
        """The first episodes of shards drawn at random; all episodes of a small dataset."""
        count = len(self._shards) if self._is_small() else min(len(self._shards), LOOKED_SHARDS)
        order = np.random.default_rng(seed).permutation(len(self._shards))
        chosen = sorted(order[:count].tolist())
        each = LOOKED_EPISODES if self._is_small() else math.ceil(LOOKED_EPISODES / max(count, 1))
        expected = self._expected
        self._seed, self._from, self._whole = seed, count, count == len(self._shards)
        steps = size = 0
        for place, number in enumerate(chosen):
            left = len(chosen) - place
            taken_steps = taken_bytes = 0
            for taken, (record, episode) in enumerate(self._episodes(number)):
                enough = (
                    taken_steps * left >= LOOKED_STEPS - steps or taken_bytes * left >= LOOKED_BYTES - size
                )
                if taken >= each or (taken and enough):
                    self._whole = False
                    break
                taken_steps += min(episode.length, MOST_STEPS)
                taken_bytes += episode.record_bytes or held_bytes(episode)
                look = self._look(episode, self._number_of(number, record, episode))
                if look is not None:
                    self._looked += 1
                    yield look
                    progress(min(self._looked, expected), expected)
            steps, size = steps + taken_steps, size + taken_bytes

    def _episodes(self, shard: int) -> Iterator[tuple[int, Episode]]:
        return readable_episodes(self._source, self._shards[shard], self._problems)

    @property
    def _declared(self) -> int | None:
        """Episodes in all, if every shard says how many it has."""
        counts = [shard.episodes for shard in self._shards]
        return None if None in counts else sum(count for count in counts if count is not None)

    @property
    def _expected(self) -> int:
        declared = self._declared
        return LOOKED_EPISODES if declared is None else min(LOOKED_EPISODES, declared)

    def _is_small(self) -> bool:
        return self._declared is not None and self._declared <= LOOKED_EPISODES

    def _number_of(self, shard: int, record: int, episode: Episode) -> int:
        """The number of an episode: LeRobot's own, with gaps where files are missing, or by counting."""
        own = episode.metadata.get(("episode_index",))
        if own is not None:
            return int(own)
        if self._declared is None:
            return self._looked
        return sum(before.episodes or 0 for before in self._shards[:shard]) + record

    def _look(self, episode: Episode, number: int) -> Look | None:
        try:
            self._leaves = widen_shapes(settle_shapes(self._leaves, episode), episode)
            ted = to_ted(episode, self._leaves, number, self._source.name)
        except DataFormatError as error:
            self._problems.append(Problem(episode.where, str(error)))
            return None
        self._tally.add(episode)
        for fault, times in ted.faults.items():
            self._faults[fault] = self._faults.get(fault, 0) + times
        self._longest = max(self._longest, episode.length)
        columns: dict[Key, npt.NDArray[Any] | list[str]] = {}
        frames: dict[Key, Frames] = {}
        for key, column in ted.columns.items():
            if key in ted.missing or key == IS_INIT:
                continue
            if isinstance(column, list):
                columns[key] = column[:MOST_STEPS]
            elif not isinstance(column, np.ndarray):
                frames[key] = _frames(column)
            elif _looked(self._leaves[key]):
                columns[key] = column[:MOST_STEPS]
        return Look(number, episode.where, episode.length, columns, frames, ted.missing)

    def about(self) -> About:
        """What the source says of itself, and how much was looked at."""
        summary = self._tally.summary()
        steps = [shard.steps for shard in self._shards]
        episodes = self._declared
        known = None if None in steps else sum(n for n in steps if n is not None)
        if self._whole:
            episodes, known = self._looked, summary.steps
        forms = {image.key: image.form for image in summary.images}
        facts = [("split", summary.split), ("version", summary.version), ("shards", f"{len(self._shards):,}")]
        faults = [f"{what} ({times:,} times)" if times > 1 else what for what, times in self._faults.items()]
        return About(
            name=summary.name,
            form=f"{summary.form} dataset",
            path=summary.path,
            facts=tuple((name, value) for name, value in facts if value),
            entries=tuple(
                self._entry(leaf, forms.get(leaf.source or leaf.key, "")) for leaf in self._leaves.values()
            ),
            lengths=np.asarray(summary.lengths, np.int64),
            episodes=episodes,
            steps=known,
            bytes=summary.bytes,
            looked=self._in_words(episodes),
            rate=getattr(self._inner, "fps", None) or hz_of(summary.name),
            names=self._names(),
            notes=tuple(dict.fromkeys((*without_missing(summary.notes), *faults))),
            problems=tuple(self._problems),
            rewarded=any(leaf.source == ("reward",) for leaf in self._leaves.values()),
            expected=self._expected,
        )

    def _names(self) -> dict[Key, tuple[str, ...]]:
        """What the source calls the numbers of its fields."""
        there: Mapping[Key, tuple[str, ...]] = getattr(self._inner, "names", {})
        sources = {leaf.source: key for key, leaf in self._leaves.items() if leaf.source is not None}
        return {sources[field]: names for field, names in there.items() if field in sources}

    def _entry(self, leaf: Leaf, form: str) -> Entry:
        dtype = "str" if leaf.dtype is None else leaf.dtype.name
        looked = leaf.kind != "tensor" or _looked(leaf)
        return Entry(leaf.key, leaf.kind, leaf.shape, dtype, form, looked)

    def _in_words(self, episodes: int | None) -> str:
        long = f"; of episodes longer than {MOST_STEPS:,} steps the first {MOST_STEPS:,}"
        cut = long if self._longest > MOST_STEPS else ""
        if self._whole:
            return f"all {self._looked:,} episodes{cut}"
        of = f" of {episodes:,}" if episodes is not None else ""
        where = f"the first ones of {self._from:,} of {len(self._shards):,} shards"
        drawn = f" drawn at random (seed {self._seed})" if self._from < len(self._shards) else ""
        return f"{self._looked:,}{of} episodes: {where}{drawn}{cut}"


def _looked(leaf: Leaf) -> bool:
    size = 0 if leaf.dtype is None else math.prod(leaf.shape) * leaf.dtype.itemsize
    return size <= MOST_ITEM_BYTES


def _frames(images: Images) -> Frames:
    def read(steps: Sequence[int]) -> npt.NDArray[Any]:
        # What lies near each other is decoded together: a video goes forwards only.
        return np.concatenate([images.decode(step, step + 1) for step in steps])

    return read
