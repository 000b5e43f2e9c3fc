"""What the catalog knows to be wrong in a dataset, put right as its episodes are read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, get_args

import numpy as np
import numpy.typing as npt

from replaybank.datasets.openx.catalog import LastStep, datasets
from replaybank.datasets.openx.sources.base import (
    Column,
    Episode,
    EpisodeSource,
    FieldSpec,
    Images,
    Key,
    Shard,
    as_stored,
    decoded_into,
    kind_of,
    stored_spans,
)
from replaybank.datasets.openx.sources.code_points import texts_of
from replaybank.storages.channels import exchanged

IS_TERMINAL: Key = ("is_terminal",)
IS_LAST: Key = ("is_last",)
AS_PUBLISHED: Final = ("RLDS", "tar shards")
"""Forms that the catalog speaks of: who made a copy in another one may have put right what was wrong."""


@dataclass(frozen=True)
class Corrections:
    """What to do with the episodes of a source.

    Args:
        bgr: cameras whose frames have blue first: their channels are swapped.
        texts: entries that hold text as numbers: they are decoded.
        last_step: ``"drop"`` leaves out the last step of each episode of two steps or more.
    """

    bgr: frozenset[Key] = frozenset()
    last_step: LastStep = "keep"
    texts: frozenset[Key] = frozenset()

    def to_json(self) -> dict[str, Any]:
        """Plain values, for the manifest of what was converted."""
        plain: dict[str, Any] = {
            "bgr": sorted(list(key) for key in self.bgr),
            "last_step": self.last_step,
        }
        return {**plain, "texts": sorted(list(key) for key in self.texts)} if self.texts else plain


def corrected(
    source: EpisodeSource,
    dataset_id: str | None = None,
    *,
    bgr: Sequence[str] | None = None,
    last_step: LastStep | None = None,
) -> EpisodeSource:
    """A source with its known faults put right; the same object where there are none.

    The catalog speaks of the datasets as they were published, so of RLDS files and tar shards only.

    Args:
        source: the episodes as they are published.
        dataset_id: its name in the catalog; by default that of the source.
        bgr: names of the cameras (entries of the observation) whose frames have blue first; by default those
            of the catalog.
        last_step: whether to ``"keep"`` or ``"drop"`` the last step of an episode; by default what the
            catalog says.

    Raises:
        ValueError: the source has no such camera, or ``last_step`` is something else.
    """
    published = getattr(source, "form", None) in AS_PUBLISHED
    facts = datasets().get(source.name if dataset_id is None else dataset_id) if published else None
    if bgr is None:
        names = () if facts is None else facts.bgr
        keys = [("observation", name) for name in names if _is_camera(source, name)]
    else:
        absent = [name for name in bgr if not _is_camera(source, name)]
        if absent:
            raise ValueError(f"{source.name} has no cameras {absent}; it has {_cameras(source)}")
        keys = [("observation", name) for name in bgr]
    if last_step is None:
        last_step = "keep" if facts is None else facts.last_step
    elif last_step not in get_args(LastStep):
        raise ValueError(f"last_step must be 'keep' or 'drop', got {last_step!r}")
    texts = () if facts is None else facts.instruction
    made = Corrections(frozenset(keys), last_step, frozenset(_numbered_texts(source, texts)))
    return source if made == Corrections() else CorrectedSource(source, made)


def _numbered_texts(source: EpisodeSource, names: Sequence[str]) -> Iterator[Key]:
    """Entries that the catalog calls an instruction and that hold a row of integers: the text's bytes."""
    for key, spec in source.fields.items():
        named = key[-1] in names or "/".join(key) in names
        whole = spec.kind == "tensor" and spec.dtype is not None and spec.dtype.kind in "iu"
        if named and whole and len(spec.shape) == 1:
            yield key


def _cameras(source: EpisodeSource) -> list[str]:
    images = (key for key, spec in source.fields.items() if spec.kind == "image")
    return [key[1] for key in images if len(key) == 2 and key[0] == "observation"]


def _is_camera(source: EpisodeSource, name: str) -> bool:
    spec = source.fields.get(("observation", name))
    return spec is not None and spec.kind == "image"


class CorrectedSource:
    """The episodes of a source with some things put right. As thread-safe and as picklable as the source.

    Args:
        source: the episodes.
        corrections: what to do.
    """

    def __init__(self, source: EpisodeSource, corrections: Corrections) -> None:
        self.source = source
        self.corrections = corrections
        self.name: str = source.name
        self.fields: Mapping[Key, FieldSpec] = {
            key: FieldSpec("text", (), None) if key in corrections.texts else spec
            for key, spec in source.fields.items()
        }
        self.kind: str = kind_of(source)
        self.version: str = getattr(source, "version", "")
        self.split: str = getattr(source, "split", "train")

    def shards(self) -> Sequence[Shard]:
        """The shards of the source; where steps are dropped, how many steps they have is not known."""
        shards = self.source.shards()
        if self.corrections.last_step == "keep":
            return shards
        return tuple(replace(shard, steps=None) for shard in shards)

    def episodes(self, shard: Shard, start: int = 0) -> Iterator[Episode]:
        """Episodes of one shard, from record ``start`` on. Raises what the source raises."""
        for episode in self.source.episodes(shard, start):
            yield self._correct(episode)

    def _correct(self, episode: Episode) -> Episode:
        steps: dict[Key, Column] = dict(episode.steps)
        for key in self.corrections.bgr & steps.keys():
            frames = steps[key]
            if not isinstance(frames, (list, np.ndarray)):
                steps[key] = SwappedImages(frames)
        for key in self.corrections.texts & steps.keys():
            numbers = steps[key]
            if isinstance(numbers, np.ndarray):
                steps[key] = texts_of(numbers)
        if self.corrections.last_step == "keep":
            return replace(episode, steps=steps)
        if episode.length == 1:
            faults = Counter(episode.faults)
            faults["the last step is kept: it is the only one of its episode"] += 1
            return replace(episode, steps=steps, faults=faults)
        length = episode.length - 1
        cut: dict[Key, Column] = {key: _first(column, length) for key, column in steps.items()}
        terminal = steps.get(IS_TERMINAL)
        if isinstance(terminal, np.ndarray) and terminal.size == episode.length:
            # The step that ends the episode now leads to the state that the dropped one was in.
            moved = terminal[:length].copy()
            moved[-1] |= terminal[length] != 0
            cut[IS_TERMINAL] = moved
        marks = steps.get(IS_LAST)
        if isinstance(marks, np.ndarray) and marks.size == episode.length and marks[length]:
            cut[IS_LAST] = marks[1:]  # the mark moves with the end: it was no fault of the data
        return replace(episode, steps=cut, length=length)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.source!r}, {self.corrections})"


def _first(column: Column, length: int) -> Column:
    if isinstance(column, list):
        return column[:length]
    return column[:length] if isinstance(column, np.ndarray) else FirstImages(column, length)


class SwappedImages:
    """Frames whose first and third channel are exchanged when they are decoded. Immutable.

    Args:
        images: the frames with blue first.
    """

    def __init__(self, images: Images) -> None:
        self._images = images

    def __len__(self) -> int:
        return len(self._images)

    def encoded(self, start: int = 0, stop: int | None = None) -> Sequence[bytes]:
        """The frames as they are stored, blue first: to swap them would mean to lose some of each."""
        return self._images.encoded(start, stop)

    def spans(self) -> tuple[bytes, npt.NDArray[np.int64]] | None:
        """Where they lie as they are stored, if in one piece of memory."""
        return stored_spans(self._images)

    def as_stored(self) -> tuple[Images, bool]:
        """See :func:`~replaybank.datasets.openx.sources.base.as_stored`."""
        return self._images, True

    def decode(self, start: int = 0, stop: int | None = None) -> npt.NDArray[Any]:
        """Frames ``start`` to ``stop``, ``[n, H, W, C]``, RGB."""
        return exchanged(self._images.decode(start, stop))

    def decode_into(
        self, room: npt.NDArray[Any] | None, start: int = 0, stop: int | None = None
    ) -> npt.NDArray[Any]:
        """The same; ``room`` is for the frames as they are stored."""
        return exchanged(decoded_into(self._images, room, start, stop))


class FirstImages:
    """The first frames of a camera. Immutable.

    Args:
        images: all of them.
        length: how many.
    """

    def __init__(self, images: Images, length: int) -> None:
        self._images = images
        self._length = length

    def __len__(self) -> int:
        return self._length

    def encoded(self, start: int = 0, stop: int | None = None) -> Sequence[bytes]:
        """Frames ``start`` to ``stop`` as they are stored."""
        first, last, _ = slice(start, stop).indices(self._length)
        return self._images.encoded(first, max(first, last))

    def spans(self) -> tuple[bytes, npt.NDArray[np.int64]] | None:
        """Where they lie as they are stored, if in one piece of memory."""
        found = stored_spans(self._images)
        return None if found is None else (found[0], found[1][: self._length])

    def as_stored(self) -> tuple[Images, bool]:
        """See :func:`~replaybank.datasets.openx.sources.base.as_stored`."""
        stored, swapped = as_stored(self._images)
        return FirstImages(stored, self._length), swapped

    def decode(self, start: int = 0, stop: int | None = None) -> npt.NDArray[Any]:
        """Frames ``start`` to ``stop``, ``[n, H, W, C]``, RGB."""
        first, last, _ = slice(start, stop).indices(self._length)
        return self._images.decode(first, max(first, last))

    def decode_into(
        self, room: npt.NDArray[Any] | None, start: int = 0, stop: int | None = None
    ) -> npt.NDArray[Any]:
        """The same, in ``room`` where that is an array of the result's shape and dtype."""
        first, last, _ = slice(start, stop).indices(self._length)
        return decoded_into(self._images, room, first, max(first, last))
