"""A converted dataset, to be looked at: some of its episodes, drawn at random."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch

from replaybank.datasets.openx.corrections import AS_PUBLISHED
from replaybank.datasets.openx.sources.base import Key
from replaybank.datasets.openx.sources.hub_tar import HubTarSource
from replaybank.datasets.openx.sources.lerobot import LeRobotSource
from replaybank.datasets.openx.sources.rlds import RLDSSource
from replaybank.datasets.openx.storage import DatasetStorage
from replaybank.datasets.openx.summary import defects_of, summarise_converted
from replaybank.datasets.openx.ted import IS_INIT, NEXT_REWARD
from replaybank.report.look import (
    LOOKED_STEPS,
    MOST_ITEM_BYTES,
    MOST_STEPS,
    About,
    Entry,
    Frames,
    Look,
    Progress,
    expected_of,
    hz_of,
    without_missing,
)
from replaybank.terminal import size

LOOKED_EPISODES: Final = 2000
"""Of a converted dataset: a read from all over the disk each."""

_FORMS: Final = {source.__name__: source.form for source in (RLDSSource, LeRobotSource, HubTarSource)}


class ConvertedSubject:
    """The episodes of a converted dataset.

    Not thread-safe.

    Args:
        path: its folder.

    Raises:
        FileNotFoundError, IncompleteDatasetError, DataFormatError: as :class:`DatasetStorage`.
    """

    def __init__(self, path: Path) -> None:
        self._dataset = DatasetStorage(path)
        self._path = path
        self.split = self._dataset.manifest.split
        self._seed = self._looked = 0
        self._missing = {key: frozenset(numbers) for key, numbers in self._dataset.manifest.missing.items()}

    def looks(self, seed: int, progress: Progress) -> Iterator[Look]:
        """Episodes drawn at random until there are enough, in the order of the files."""
        bounds = self._dataset.bounds.numpy()
        drawn = np.random.default_rng(seed).permutation(len(bounds))[:LOOKED_EPISODES]
        steps = np.minimum(bounds[drawn, 1], MOST_STEPS).cumsum()
        chosen = np.sort(drawn[: max(1, int(np.searchsorted(steps, LOOKED_STEPS, side="right")))])
        self._seed, self._looked = seed, len(chosen)
        for done, number in enumerate(chosen.tolist(), 1):
            yield self._look(number)
            progress(done, len(chosen))

    def _look(self, number: int) -> Look:
        dataset = self._dataset
        first, length = dataset.bounds[number].tolist()
        rows = slice(first, first + min(length, MOST_STEPS))
        columns: dict[Key, npt.NDArray[Any] | list[str]] = {}
        frames: dict[Key, Frames] = {}
        missing = frozenset(key for key, numbers in self._missing.items() if number in numbers)
        for entry in self._entries():
            if entry.key in missing:
                continue
            if entry.kind == "image":
                frames[entry.key] = self._frames(entry.key, first)
            elif entry.kind == "text":
                columns[entry.key] = [
                    dataset.strings[code] if code >= 0 else ""
                    for code in dataset.read_leaf(entry.key, rows).reshape(-1).tolist()
                ]
            elif entry.looked and entry.key != IS_INIT:
                columns[entry.key] = dataset.read_leaf(entry.key, rows).numpy()
        where = str(dataset.metadata(number)["where"])
        return Look(number, where, length, columns, frames, missing)

    def _frames(self, key: Key, first: int) -> Frames:
        def read(steps: Sequence[int]) -> npt.NDArray[Any]:
            rows = torch.tensor(steps, dtype=torch.int64) + first
            return self._dataset.read_leaf(key, rows).permute(0, 2, 3, 1).numpy()

        return read

    def _entries(self) -> list[Entry]:
        manifest = self._dataset.manifest
        encoded = {leaf.key for leaf in manifest.encoded}
        found = []
        for leaf in manifest.leaves:
            kind: Any = manifest.kinds.get(leaf.key, "tensor")
            dtype = "str" if kind == "text" else str(leaf.dtype).removeprefix("torch.")
            looked = kind != "tensor" or leaf.bytes <= MOST_ITEM_BYTES
            form = "encoded" if leaf.key in encoded else ""
            shape = () if kind == "text" else tuple(leaf.shape)
            found.append(Entry(leaf.key, kind, shape, dtype, form, looked))
        return found

    def about(self) -> About:
        """What the manifest says, and how much was looked at."""
        summary = summarise_converted(self._path, texts=False)
        manifest, lengths = self._dataset.manifest, self._dataset.bounds[:, 1].numpy()
        forms = {image.key: image.form for image in summary.images}
        entries = [
            Entry(e.key, e.kind, e.shape, e.dtype, forms.get(e.key, e.form), e.looked)
            for e in self._entries()
        ]
        origin = self._origin()
        decoded = sum(leaf.bytes for leaf in manifest.leaves) * manifest.steps
        facts = [
            ("split", manifest.split),
            ("version", summary.version),
            ("converted from", origin),
            ("in memory, decoded", size(decoded)),
        ]
        cut = bool((lengths > MOST_STEPS).any())
        return About(
            name=manifest.name,
            form="converted dataset",
            path=str(self._path),
            facts=tuple((name, value) for name, value in facts if value),
            entries=tuple(entries),
            lengths=lengths,
            episodes=manifest.episodes,
            steps=manifest.steps,
            bytes=summary.bytes,
            looked=_in_words(self._looked, len(lengths), self._seed, cut),
            rate=hz_of(manifest.name),
            notes=(*self._defects(), *without_missing(summary.notes)),
            rewarded=NEXT_REWARD in {leaf.key for leaf in manifest.leaves},
            expected=expected_of(lengths, LOOKED_EPISODES),
        )

    def _defects(self) -> tuple[str, ...]:
        """The catalog speaks of what was published as RLDS or tar shards; the origin says what this was."""
        return tuple(defects_of(self._dataset.manifest.name)) if self._origin() in AS_PUBLISHED else ()

    def _origin(self) -> str:
        kind = str(self._dataset.manifest.origin.get("kind", ""))
        return _FORMS.get(kind, kind)


def _in_words(looked: int, of: int, seed: int, cut: bool) -> str:
    long = f"; of episodes longer than {MOST_STEPS:,} steps the first {MOST_STEPS:,}" if cut else ""
    if looked == of:
        return f"all {of:,} episodes{long}"
    return f"{looked:,} of {of:,} episodes, drawn at random (seed {seed}){long}"
