"""Episodes from RLDS files as TFDS writes them: dataset_info.json, features.json and TFRecord shards."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final

from replaybank.datasets.openx.sources.base import Episode, FieldSpec, Key, Shard
from replaybank.datasets.openx.sources.columns import EpisodeDecoder
from replaybank.datasets.openx.sources.features import parse_features
from replaybank.datasets.openx.sources.files import exists, join, open_binary
from replaybank.datasets.openx.sources.info import (
    FEATURES_FILE,
    INFO_FILE,
    find_dataset,
    find_shards,
    read_info,
)
from replaybank.datasets.openx.sources.tfrecord import read_records
from replaybank.errors import DataFormatError


def is_rlds(path: str | os.PathLike[str]) -> bool:
    """Whether ``path`` is a dataset in RLDS form, or holds one version of one.

    >>> is_rlds("/nowhere")
    False
    """
    try:
        folder = find_dataset(os.fspath(path))
    except DataFormatError:
        return True  # several versions: opening it says which
    return folder is not None and exists(join(folder, FEATURES_FILE))


def _label_names(folder: str, labels: Mapping[Key, str]) -> dict[Key, tuple[str, ...]]:
    """The names of class labels, which TFDS keeps in text files of their own, a line each."""
    names = {}
    for key, name in labels.items():
        path = join(folder, f"{name.replace('/', '.')}.labels.txt")
        if exists(path):
            with open_binary(path) as file:
                lines = file.read().decode("utf-8", "backslashreplace").splitlines()
            names[key] = tuple(line for line in lines if line)
    return names


class RLDSSource:
    """An RLDS dataset, local or at any URL that fsspec knows.

    Holds no open file, so it can be pickled to workers. Thread-safe: every call of :meth:`episodes` has a
    state of its own.

    Args:
        path: the folder with dataset_info.json and features.json, or a folder with one such version in it.
        split: name of the split to read.
        allow_missing_shards: read the shards that are there when others are missing.

    Raises:
        FileNotFoundError: there is no dataset at ``path``, or shards are missing; the message names them.
        ValueError: there is no such split; the message names those there are.
        UnsupportedFeatureError: a feature is stored in a way that this version cannot read.
        DataFormatError: one of the two files is not what it should be.

    Example:
        >>> import tempfile
        >>> from replaybank.demo.arm import write_arm_dataset
        >>> folder = tempfile.TemporaryDirectory()
        >>> source = RLDSSource(write_arm_dataset(folder.name + "/arm", episodes=3, shards=2))
        >>> [shard.episodes for shard in source.shards()]
        [2, 1]
        >>> episode = next(source.episodes(source.shards()[0]))
        >>> episode.steps[("action",)].shape == (episode.length, 2)
        True
        >>> folder.cleanup()
    """

    form: Final = "RLDS"
    """How people call what it reads."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        split: str = "train",
        *,
        allow_missing_shards: bool = False,
    ) -> None:
        folder = find_dataset(os.fspath(path))
        if folder is None:
            raise FileNotFoundError(f"no RLDS dataset at {os.fspath(path)}: there is no {INFO_FILE}")
        info = read_info(folder)
        features = join(folder, FEATURES_FILE)
        if not exists(features):
            raise FileNotFoundError(f"no RLDS dataset at {folder}: there is no {FEATURES_FILE}")
        with open_binary(features) as file:
            self._schema = parse_features(file.read(), features)
        self.path: str = folder
        """Folder of the files."""
        self.name: str = info.name
        self.version: str = info.version
        self.description: str = info.description
        self.split: str = split
        self.splits: Mapping[str, int | None] = {s.name: s.episodes for s in info.splits.values()}
        """Every declared split and its number of episodes, None where that is not declared."""
        self.label_names: Mapping[Key, tuple[str, ...]] = _label_names(folder, self._schema.labels)
        """Names of the classes, in the order of their numbers, of each field of class labels with names."""
        self.fields: Mapping[Key, FieldSpec] = self._labelled(self._schema.fields)
        self.metadata_fields: Mapping[Key, FieldSpec] = self._labelled(
            {f.key: f.spec for f in self._schema.metadata}
        )
        """Fields of the whole episode, by their path, such as ``("episode_metadata", "file_path")``."""
        self._shards = find_shards(folder, info, split, allow_missing=allow_missing_shards)
        self._missing = len(info.splits[split].lengths or self._shards) - len(self._shards)

    def _labelled(self, fields: Mapping[Key, FieldSpec]) -> dict[Key, FieldSpec]:
        return {key: replace(spec, labels=self.label_names.get(key, ())) for key, spec in fields.items()}

    @property
    def notes(self) -> tuple[str, ...]:
        """What is declared and not there, or cannot be read: fields of a step of that kind are an error."""
        left_out = tuple(f"left out: {why}" for why in self._schema.skipped.values())
        if not self._missing:
            return left_out
        declared = self._missing + len(self._shards)
        missing = f"{self._missing} of {declared} shards of split '{self.split}' are missing"
        return (missing, *left_out)

    def shards(self) -> Sequence[Shard]:
        """The shards of the split that are there, in order."""
        return self._shards

    def episodes(self, shard: Shard, start: int = 0) -> Iterator[Episode]:
        """Episodes of one shard, from record ``start`` on, in file order.

        After an error in one record, reading can go on with ``start`` one beyond it, unless its length is
        corrupt: then the same error comes again.

        Args:
            shard: one of :meth:`shards`.
            start: how many of its episodes to pass over.

        Raises:
            CorruptRecordError: a record is cut short or fails a checksum.
            DataFormatError: a record is not an episode of this dataset, or the shard has another number
                of episodes than declared.
            IndexError: the shard has fewer than ``start`` records.
        """
        decoder = EpisodeDecoder(self._schema, self.name)
        count = start
        for record in read_records(shard.path, start=start):
            decoded = [decoder.decode(record.payload, f"{shard.path}, record {record.number}")]
            del record  # or its payload, and with it the memory that the next one could have, is held here
            yield decoded.pop()
            count += 1
        if shard.episodes is not None and count != shard.episodes:
            raise DataFormatError(
                f"{shard.path} ends after {count} episodes, {INFO_FILE} declares {shard.episodes}: the file "
                "is incomplete or belongs to another version"
            )

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.path!r}, split={self.split!r})"
