"""Robot episodes that are known without any file or codec."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from replaybank.datasets.openx.sources.base import Episode, FieldSpec, Key, Shard
from replaybank.errors import DataFormatError

FIELDS: dict[Key, FieldSpec] = {
    ("observation", "image"): FieldSpec("image", (20, 20, 3), np.dtype("uint8")),
    ("observation", "state"): FieldSpec("tensor", (3,), np.dtype("float32")),
    ("observation", "note"): FieldSpec("text", (), None),
    ("action",): FieldSpec("tensor", (2,), np.dtype("float64")),
    ("reward",): FieldSpec("tensor", (), np.dtype("float32")),
    ("is_terminal",): FieldSpec("tensor", (), np.dtype("bool")),
    ("language_instruction",): FieldSpec("text", (), None),
}


class Frames:
    """A camera; with ``bad`` its frames cannot be decoded."""

    def __init__(self, frames: npt.NDArray[Any], bad: bool = False) -> None:
        self.frames, self.bad = frames, bad

    def __len__(self) -> int:
        return len(self.frames)

    @property
    def nbytes(self) -> int:
        return self.frames.nbytes

    def encoded(self, start: int = 0, stop: int | None = None) -> list[bytes]:
        return [frame.tobytes() for frame in self.frames[start:stop]]

    def decode(self, start: int = 0, stop: int | None = None) -> npt.NDArray[Any]:
        if self.bad:
            raise DataFormatError("frame 0: not a JPEG")
        return self.frames[start:stop]


def episode(number: int, length: int, *, bad: bool = False, height: int = 20) -> Episode:
    """Random values that the number determines; episodes of even number end in a terminal state."""
    rng = np.random.default_rng(number)
    terminal = np.zeros(length, bool)
    terminal[-1] = number % 2 == 0
    steps: dict[Key, Any] = {
        ("observation", "image"): Frames(rng.integers(0, 255, (length, height, 20, 3)).astype(np.uint8), bad),
        ("observation", "state"): rng.normal(size=(length, 3)).astype(np.float32),
        ("observation", "note"): [f"note {step}" for step in range(length)],
        ("action",): rng.normal(size=(length, 2)),
        ("reward",): rng.normal(size=length).astype(np.float32),
        ("is_terminal",): terminal,
        ("language_instruction",): [f"text {number}"] * length,
    }
    return Episode(steps, length, f"record {number}")


class MemorySource:
    """Shards of episodes in memory; a record may be an error instead of an episode.

    With ``lengths_lost`` a record that is an error cannot be stepped over either.
    """

    name = "memory"

    def __init__(
        self,
        shards: Sequence[Sequence[Episode | Exception]],
        fields: Mapping[Key, FieldSpec] = FIELDS,
        *,
        lengths_lost: bool = False,
    ) -> None:
        self.records = shards
        self.fields = fields
        self.lengths_lost = lengths_lost

    def shards(self) -> Sequence[Shard]:
        return [Shard(i, f"/data/shard-{i}", len(records)) for i, records in enumerate(self.records)]

    def episodes(self, shard: Shard, start: int = 0) -> Iterator[Episode]:
        records = self.records[shard.number]
        if start > len(records):
            raise IndexError(f"{shard.path} has {len(records)} records")
        for number, record in enumerate(records):
            if isinstance(record, Exception) and (number >= start or self.lengths_lost):
                raise record
            if number >= start:
                assert isinstance(record, Episode)
                yield record
