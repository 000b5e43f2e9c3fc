"""What every origin of robot episodes offers: shards, and the episodes in them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

Key: TypeAlias = tuple[str, ...]
"""Path of a field in an episode. A part is never split: names may contain ``/`` themselves."""


@dataclass(frozen=True)
class FieldSpec:
    """What a source declares about one field of a step or of an episode.

    Args:
        kind: ``"tensor"`` (numbers), ``"text"`` or ``"image"`` (stored encoded).
        shape: shape of one value, without the step dimension; -1 where it is unknown. ``(H, W, C)`` for
            images.
        dtype: dtype of the values once decoded; ``None`` for text.
        ragged: how many of the first dimensions are of lists that differ in length from step to step: arrays
            are padded with zeros behind to the longest of their episode, so those of another may be larger.
        labels: names of the classes that its numbers stand for, in their order; empty if it is no class.
        names: names of the numbers along its last dimension, such as joints; empty where they have none.
    """

    kind: Literal["tensor", "text", "image"]
    shape: tuple[int, ...]
    dtype: np.dtype[Any] | None
    ragged: int = field(default=0, repr=False)
    labels: tuple[str, ...] = field(default=(), repr=False, compare=False)
    names: tuple[str, ...] = field(default=(), repr=False, compare=False)


class Images(Protocol):
    """The frames of one camera over an episode, still encoded until asked for.

    Memory that it holds and the episode's ``record_bytes`` does not count is in an attribute ``nbytes``.
    """

    def __len__(self) -> int:
        """Number of frames, one a step."""
        ...

    def encoded(self, start: int = 0, stop: int | None = None) -> Sequence[bytes]:
        """Frames ``start`` to ``stop`` as they are stored (JPEG or PNG), one ``bytes`` a step."""
        ...

    def decode(self, start: int = 0, stop: int | None = None) -> npt.NDArray[Any]:
        """Frames ``start`` to ``stop`` (the last one by default), ``[n, H, W, C]``, RGB."""
        ...


def decoded_into(
    images: Images, room: npt.NDArray[Any] | None, start: int, stop: int | None
) -> npt.NDArray[Any]:
    """What :meth:`Images.decode` gives, in ``room`` where that fits and the images know how.

    Those of this package have a method ``decode_into(room, start, stop)``; a source of somebody else's need
    not have it.
    """
    into: Callable[..., npt.NDArray[Any]] | None = getattr(images, "decode_into", None)
    return images.decode(start, stop) if into is None else into(room, start, stop)


def stored_spans(images: Images) -> tuple[bytes, npt.NDArray[np.int64]] | None:
    """Where the frames lie as they are stored, if they all lie in one piece of memory. O(1).

    Those that do have a method ``spans()``.

    Returns:
        That memory, and of each frame its place and its size there: int64 ``[T, 2]``, not always contiguous.
    """
    found: Callable[[], tuple[bytes, npt.NDArray[np.int64]] | None] | None = getattr(images, "spans", None)
    return None if found is None else found()


def as_stored(images: Images) -> tuple[Images, bool]:
    """The same frames without an exchange of channels, and whether there is one to be made. O(1).

    Images that exchange them have a method of this name, so that who moves the pixels anyway does it on the
    way.
    """
    found: Callable[[], tuple[Images, bool]] | None = getattr(images, "as_stored", None)
    return (images, False) if found is None else found()


Column: TypeAlias = "npt.NDArray[Any] | list[str] | Images"
"""One field over an episode: an array ``[T, ...]``, ``T`` strings, or ``T`` encoded images."""


ALLOW_MISSING = "allow_missing=True (--allow-missing; of the source itself allow_missing_shards=True)"
"""What to pass for a dataset of which files are missing: as function, command and class call it."""


@dataclass(frozen=True)
class Shard:
    """A file of episodes: the unit of work, of progress and of resuming.

    Args:
        number: position among the shards of the split, from 0.
        path: where it is, as a path or URL.
        episodes: number of episodes declared for it, ``None`` if unknown.
        steps: number of steps declared for it, ``None`` if unknown.
    """

    number: int
    path: str
    episodes: int | None
    steps: int | None = None


@dataclass(frozen=True)
class Episode:
    """One episode as its origin has it: no key renamed, no frame decoded.

    Args:
        steps: fields that vary over the steps, each with ``length`` entries.
        length: number of steps, at least 1.
        where: shard path and record number, for error messages.
        metadata: values that belong to the whole episode.
        missing: keys that the dataset declares and this episode does not have; absent from ``steps``.
        record_bytes: bytes of the record that it was read from and keeps in memory for its frames.
        faults: what was wrong in the data and put right by the source, with how often.
    """

    steps: Mapping[Key, Column]
    length: int
    where: str
    metadata: Mapping[Key, Any] = field(default_factory=dict)
    missing: frozenset[Key] = frozenset()
    record_bytes: int = 0
    faults: Mapping[str, int] = field(default_factory=dict)


def declared_episodes(shards: Sequence[Shard]) -> int | None:
    """How many episodes shards have together; None where one does not say."""
    counts = [shard.episodes for shard in shards]
    return None if None in counts else sum(count for count in counts if count is not None)


def kind_of(source: EpisodeSource) -> str:
    """What an origin is: the name of its class, of the one inside where it only changes another."""
    return str(getattr(source, "kind", type(source).__name__))


def origin_in(source: EpisodeSource) -> EpisodeSource:
    """The origin itself, inside those that only change another."""
    inner: EpisodeSource | None = getattr(source, "source", None)
    return source if inner is None else origin_in(inner)


def begins_anywhere(source: EpisodeSource) -> bool:
    """Whether an origin finds an episode without passing over those before it, and says so."""
    return bool(getattr(origin_in(source), "begins_anywhere", False))


def episode_numbers_of(source: EpisodeSource) -> tuple[int, ...]:
    """By which numbers an origin knows its episodes, in the order of its shards; empty where it has none."""
    return tuple(getattr(origin_in(source), "episode_numbers", ()))


def notes_of(source: EpisodeSource) -> tuple[str, ...]:
    """What an origin found to be not as declared; of the one inside where it only changes another."""
    return tuple(getattr(origin_in(source), "notes", ()))


def metadata_fields_of(source: EpisodeSource) -> Mapping[Key, FieldSpec]:
    """Fields of an origin's whole episodes; of the one inside where it only changes another."""
    found: Mapping[Key, FieldSpec] = getattr(origin_in(source), "metadata_fields", {})
    return found


def held_bytes(episode: Episode) -> int:
    """Bytes of memory that an episode takes as long as it is held. O(fields).

    Frames lie in the record that they came in, or say themselves what they hold (``nbytes``); those that are
    still in a file hold nothing.
    """
    total = record = episode.record_bytes
    for column in episode.steps.values():
        if isinstance(column, np.ndarray):
            total += column.nbytes
        elif not record and not isinstance(column, list):
            total += int(getattr(column, "nbytes", 0))
    return total


class EpisodeSource(Protocol):
    """An origin of episodes. Holds no open file between calls, so that it can be pickled to workers."""

    name: str
    """Name of the dataset."""
    fields: Mapping[Key, FieldSpec]
    """Fields of a step."""

    def shards(self) -> Sequence[Shard]:
        """All shards of the chosen split, in order."""
        ...

    def episodes(self, shard: Shard, start: int = 0) -> Iterator[Episode]:
        """Episodes of one shard, from record ``start`` on, in file order."""
        ...
