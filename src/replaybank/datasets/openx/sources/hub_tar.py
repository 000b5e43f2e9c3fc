"""Episodes from the hub's tar shards: ``<id>_00000.tar``, ... of one pickled episode a member.

That is how https://huggingface.co/datasets/jxu124/OpenX-Embodiment publishes the datasets. The loading script
that comes with them is neither needed nor run; the pickles are read by
:mod:`~replaybank.datasets.openx.sources.safe_pickle`, which cannot run anything.
"""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from replaybank.datasets.openx.sources import safe_pickle
from replaybank.datasets.openx.sources.base import ALLOW_MISSING, Episode, FieldSpec, Key, Shard
from replaybank.datasets.openx.sources.files import exists, is_folder, is_url, join, list_names, open_binary
from replaybank.datasets.openx.sources.hub_columns import (
    RawEpisode,
    columns_of,
    field_spec,
    plain_metadata,
    raw_episode,
)
from replaybank.datasets.openx.sources.tar import Member, TarFault, members
from replaybank.errors import CorruptRecordError, DataFormatError

EPISODE_SUFFIX: Final = ".data.pickle"
"""Of a member that is an episode; others are passed over."""
FIRST_EPISODES: Final = 4
"""Nothing declares the fields of such a dataset: they are those of its first episodes."""
MAX_FAILURES: Final = 100
"""Episodes that cannot be read before the first ones that can."""
MAX_SHARDS: Final = 100_000
"""Five digits; how many there are is not listed anywhere, so they are asked for one by one."""
_SHARD: Final = re.compile(r"(?P<name>.+)_(?P<number>\d{5})\.tar")


def is_hub_tar(path: str | os.PathLike[str], dataset_id: str | None = None) -> bool:
    """Whether ``path`` is a tar shard, or a folder or URL with numbered ones.

    >>> is_hub_tar("/nowhere")
    False
    """
    try:
        return bool(_find(os.fspath(path), dataset_id, allow_missing=True))
    except (FileNotFoundError, NotADirectoryError):
        return False
    except DataFormatError:
        return True  # several datasets: opening it says which


def shard_name(dataset_id: str, number: int) -> str:
    """Name of a shard's file.

    >>> shard_name("bridge", 3)
    'bridge_00003.tar'
    """
    return f"{dataset_id}_{number:05d}.tar"


class HubTarSource:
    """A dataset of tar shards with one pickled episode a member, local or at any URL that fsspec knows.

    Nothing in a pickle is run, nothing of a tar is extracted, and one episode is held at a time. Fields are
    those of the first episodes; what later episodes have beyond them is left out and counted as a fault.
    Holds no open file, so it can be pickled to workers. Thread-safe: every call of :meth:`episodes` has a
    state of its own.

    Args:
        path: a folder with ``<id>_00000.tar``, ..., one such file, or the URL of either.
        split: ``"train"``: there are no others.
        dataset_id: which dataset, where the folder holds several or cannot be listed; by default the name in
            front of the numbers, or of the folder.
        allow_missing_shards: read the shards that are there when numbers between them are missing.

    Raises:
        FileNotFoundError: there are no such files, or some are missing; the message names them.
        ValueError: another split was asked for.
        DataFormatError: the folder holds several datasets, or no episode can be read.
        UnsafePickleError: the first pickle names something that is not data; nothing of it has been run.

    Example:
        >>> import io, pickle, tarfile, tempfile
        >>> import numpy as np
        >>> step = {"observation": {"state": np.zeros(2, np.float32)}, "action": np.ones(1, np.float32)}
        >>> content = pickle.dumps({"steps": [step, step]})
        >>> folder = tempfile.TemporaryDirectory()
        >>> with tarfile.open(folder.name + "/toy_00000.tar", "w") as tar:
        ...     member = tarfile.TarInfo("toy_0.data.pickle")
        ...     member.size = len(content)
        ...     tar.addfile(member, io.BytesIO(content))
        >>> source = HubTarSource(folder.name)
        >>> next(source.episodes(source.shards()[0])).steps[("action",)].tolist()
        [[1.0], [1.0]]
        >>> folder.cleanup()
    """

    form: Final = "tar shards"
    """How people call what it reads."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        split: str = "train",
        *,
        dataset_id: str | None = None,
        allow_missing_shards: bool = False,
    ) -> None:
        self.path: str = os.fspath(path)
        if split != "train":
            raise ValueError(f"{self.path} has no split {split!r}; tar shards have only 'train'")
        found = _find(self.path, dataset_id, allow_missing=allow_missing_shards)
        if not found:
            name = shard_name(dataset_id or "<id>", 0)
            raise FileNotFoundError(f"no tar shards at {self.path}: there is no {name}")
        self.name: str = dataset_id or _name_of(found[0])
        self.version: str = ""
        self.description: str = ""
        self.split: str = split
        self.splits: Mapping[str, int | None] = {"train": None}
        """The one split; its number of episodes is not declared."""
        self._shards = tuple(Shard(number, shard, None) for number, shard in enumerate(found))
        self.fields: Mapping[Key, FieldSpec] = {}
        self.metadata_fields: Mapping[Key, FieldSpec] = {}
        """Fields of the whole episode, by their path."""
        last = _SHARD.fullmatch(_file_name(found[-1]))
        numbers = len(found) if last is None or len(found) == 1 else int(last["number"]) + 1
        self._missing = numbers - len(found)
        self._find_fields()

    @property
    def notes(self) -> tuple[str, ...]:
        """What must have been there and is not."""
        if not self._missing:
            return ()
        return (f"{self._missing} of at least {self._missing + len(self._shards)} shards are missing",)

    def _find_fields(self) -> None:
        """Take the fields from the first episodes that can be read.

        Those that cannot are passed over: whoever reads the episodes may want to leave such ones out.
        """
        fields: dict[Key, FieldSpec] = {}
        metadata: dict[Key, FieldSpec] = {}
        failures: list[DataFormatError] = []
        seen = 0
        for shard in self._shards:
            record = 0
            while seen < FIRST_EPISODES and len(failures) < MAX_FAILURES:
                try:
                    for where, raw in self._raw(shard, record):
                        record += 1
                        try:
                            _add_fields(fields, raw.steps, where)
                            _add_fields(metadata, _listed(raw.metadata), where)
                            seen += 1
                        except DataFormatError as error:
                            failures.append(error)
                        if seen == FIRST_EPISODES:
                            break
                    break
                except CorruptRecordError as error:
                    failures.append(error)
                    break  # the way to the members behind it is lost
                except DataFormatError as error:
                    failures.append(error)
                    record += 1
        if not seen:
            raise (
                failures[0]
                if failures
                else DataFormatError(f"{self.path}: no member of the shards is named *{EPISODE_SUFFIX}")
            )
        self.fields, self.metadata_fields = fields, metadata

    def shards(self) -> Sequence[Shard]:
        """The tar files, in the order of their numbers."""
        return self._shards

    def episodes(self, shard: Shard, start: int = 0) -> Iterator[Episode]:
        """Episodes of one shard, from the ``start``-th on, in file order. One is held at a time.

        After an error in a pickle, reading can go on with ``start`` one beyond it.

        Args:
            shard: one of :meth:`shards`.
            start: how many of its episodes to pass over.

        Raises:
            UnsafePickleError: a pickle names something that is not data; nothing of it has been run.
            CorruptRecordError: the archive is broken or cut short; what is behind cannot be reached.
            DataFormatError: a member is no episode of this dataset.
            IndexError: the shard has fewer than ``start`` episodes.
        """
        yield from itertools.starmap(self._episode, self._raw(shard, start))

    def _episode(self, where: str, raw: RawEpisode) -> Episode:
        place = f"{self.name}: {where}"
        steps, missing, faults = columns_of(raw, self.fields, place)
        if not steps:
            raise DataFormatError(f"{place}: the episode has none of the dataset's fields")
        return Episode(steps, raw.length, where, plain_metadata(raw.metadata), missing, raw.size, faults)

    def _raw(self, shard: Shard, start: int) -> Iterator[tuple[str, RawEpisode]]:
        """Where each episode is, and its values."""
        record = 0
        with open_binary(shard.path) as file:
            try:
                for member in members(file):
                    if not member.name.endswith(EPISODE_SUFFIX):
                        continue
                    if record >= start:
                        yield _unpickled(member, shard.path)
                    record += 1
            except TarFault as fault:
                raise CorruptRecordError(shard.path, record, fault.offset, fault.reason) from fault
        if record < start:
            raise IndexError(f"{shard.path} has {record} episodes, cannot start at episode {start}")

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.path!r}, dataset_id={self.name!r})"


def _unpickled(member: Member, path: str) -> tuple[str, RawEpisode]:
    where = f"{path}, member {member.name[-200:]}"
    content = safe_pickle.loads(member.read(), where)
    try:
        return where, raw_episode(content, member.size)
    except DataFormatError as error:
        raise type(error)(f"{where}: {error}") from error


def _add_fields(fields: dict[Key, FieldSpec], columns: Mapping[Key, Sequence[Any]], where: str) -> None:
    """Add what is not known yet; nothing if anything of it cannot be read."""
    found = {key: field_spec(key, column, where) for key, column in columns.items() if key not in fields}
    fields.update((key, spec) for key, spec in found.items() if spec is not None)


def _listed(values: Mapping[Key, Any]) -> dict[Key, list[Any]]:
    return {key: [value] for key, value in plain_metadata(values).items()}


def _file_name(path: str) -> str:
    return path.rstrip("/").replace(os.sep, "/").rpartition("/")[2]


def _name_of(path: str) -> str:
    file = _file_name(path)
    match = _SHARD.fullmatch(file)
    return match["name"] if match else file.removesuffix(".tar")


def _find(path: str, dataset_id: str | None, *, allow_missing: bool) -> list[str]:
    """The shards, in the order of their numbers; none where there are none.

    Raises:
        FileNotFoundError: numbers are missing and that was not allowed.
        DataFormatError: there are several datasets to choose from.
    """
    if path.split("?")[0].endswith(".tar"):
        return [path] if exists(path) else []
    if not is_url(path) and not is_folder(path):
        return []
    names = list_names(path)
    if names is None:
        return _ask(path, dataset_id or path.rstrip("/").rpartition("/")[2])
    found: dict[str, dict[int, str]] = {}
    for name in names:
        match = _SHARD.fullmatch(name)
        if match and dataset_id in (None, match["name"]):
            found.setdefault(match["name"], {})[int(match["number"])] = join(path, name)
    if not found and dataset_id in names:
        return _find(join(path, str(dataset_id)), dataset_id, allow_missing=allow_missing)
    if len(found) > 1:
        raise DataFormatError(
            f"{path} holds the shards of several datasets, name one: {', '.join(sorted(found))}"
        )
    for name, numbered in found.items():
        absent = [n for n in range(max(numbered) + 1) if n not in numbered]
        if absent and not allow_missing:
            shown = ", ".join(shard_name(name, n) for n in absent[:8])
            raise FileNotFoundError(
                f"{path}: {len(absent)} of at least {max(numbered) + 1} shards are missing: {shown}"
                f"{' and more' if len(absent) > 8 else ''}; pass {ALLOW_MISSING} to read the "
                f"{len(numbered)} that are there"
            )
        return [numbered[number] for number in sorted(numbered)]
    return []


def _ask(folder: str, dataset_id: str) -> list[str]:
    """The shards of a place that lists nothing: those up to the first number that is not there."""
    shards = (join(folder, shard_name(dataset_id, number)) for number in range(MAX_SHARDS))
    return list(itertools.takewhile(exists, shards))
