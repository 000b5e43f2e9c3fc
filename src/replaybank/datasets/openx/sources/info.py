"""dataset_info.json: what a dataset's splits are and which files they lie in."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from replaybank.datasets.openx.sources.base import ALLOW_MISSING, Shard
from replaybank.datasets.openx.sources.files import exists, join, list_names, open_binary
from replaybank.errors import DataFormatError, UnsupportedFeatureError

INFO_FILE: Final = "dataset_info.json"
FEATURES_FILE: Final = "features.json"
FILE_FORMAT: Final = "tfrecord"
DEFAULT_TEMPLATE: Final = "{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}"
_PLACEHOLDER: Final = re.compile(r"\{([^{}]*)\}")
_NAMES_SHOWN: Final = 8
"""Of many missing files a message names the first few."""


@dataclass(frozen=True)
class Split:
    """One split as declared.

    Args:
        name: "train", "val", ...
        template: names of its files, with placeholders.
        lengths: number of episodes in each shard; None where it is not declared.
    """

    name: str
    template: str
    lengths: tuple[int, ...] | None

    @property
    def episodes(self) -> int | None:
        """Episodes declared in all."""
        return None if self.lengths is None else sum(self.lengths)


@dataclass(frozen=True)
class DatasetInfo:
    """What dataset_info.json says."""

    name: str
    version: str
    description: str
    splits: Mapping[str, Split]


def find_dataset(path: str) -> str | None:
    """The folder of the files: ``path`` itself, or the one version folder in it; None without any.

    Raises:
        DataFormatError: there are several versions to choose from.
    """
    if exists(join(path, INFO_FILE)):
        return path
    try:
        names = sorted(list_names(path) or ())
    except (FileNotFoundError, NotADirectoryError):
        return None
    found = [name for name in names if exists(join(join(path, name), INFO_FILE))]
    if len(found) > 1:
        raise DataFormatError(f"{path} holds several datasets, give the folder of one: {', '.join(found)}")
    return join(path, found[0]) if found else None


def read_info(folder: str) -> DatasetInfo:
    """Read a folder's dataset_info.json.

    Raises:
        FileNotFoundError: there is none.
        DataFormatError: it is not what it should be.
        UnsupportedFeatureError: its files are not TFRecords.
    """
    where = join(folder, INFO_FILE)
    with open_binary(where) as file:
        text = file.read()
    try:
        raw = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise DataFormatError(f"{where} is not JSON: {error}") from error
    if not isinstance(raw, dict) or not isinstance(raw.get("name"), str):
        raise DataFormatError(f"{where} must be an object with a 'name'")
    file_format = str(raw.get("fileFormat") or FILE_FORMAT)
    if file_format != FILE_FORMAT:
        raise UnsupportedFeatureError(
            f"{where}: files of format {file_format!r:.80}; only {FILE_FORMAT!r} is read"
        )
    listed = raw.get("splits")
    listed = [] if listed is None else listed
    if not isinstance(listed, list):
        raise DataFormatError(f"{where}: 'splits' must be a list, got {listed!r:.80}")
    splits = [_split(entry, where) for entry in listed]
    return DatasetInfo(
        name=raw["name"],
        version=str(raw.get("version", "")),
        description=str(raw.get("description", "")),
        splits={split.name: split for split in splits},
    )


def _split(raw: Any, where: str) -> Split:
    if not isinstance(raw, dict) or not isinstance(raw.get("name"), str):
        raise DataFormatError(f"{where}: a split must be an object with a 'name', got {raw!r:.200}")
    lengths = raw.get("shardLengths")
    try:
        # 64-bit numbers are strings in this kind of JSON; older files have plain ones.
        counts = None if lengths is None else tuple(int(length) for length in lengths)
    except (TypeError, ValueError, OverflowError):
        counts = (-1,)
    if counts is not None and any(count < 0 for count in counts):
        raise DataFormatError(
            f"{where}: shardLengths of split '{raw['name']}' must be counts, got {lengths!r:.200}"
        )
    return Split(raw["name"], str(raw.get("filepathTemplate") or DEFAULT_TEMPLATE), counts)


def shard_name(template: str, dataset: str, split: str, number: int, shards: int) -> str:
    """Name of a shard's file.

    Raises:
        DataFormatError: the template has an unknown placeholder, or leads out of the dataset's folder.

    >>> shard_name(DEFAULT_TEMPLATE, "bridge", "train", 3, 10)
    'bridge-train.tfrecord-00003-of-00010'
    """
    values = {
        "DATASET": dataset,
        "SPLIT": split,
        "FILEFORMAT": FILE_FORMAT,
        "SHARD_INDEX": f"{number:05d}",
        "NUM_SHARDS": f"{shards:05d}",
        "SHARD_X_OF_Y": f"{number:05d}-of-{shards:05d}",
    }
    unknown = [name for name in _PLACEHOLDER.findall(template) if name not in values]
    if unknown:
        raise DataFormatError(
            f"filepathTemplate {template!r:.200} has unknown {unknown}; known are {sorted(values)}"
        )
    name = _PLACEHOLDER.sub(lambda match: values[match[1]], template)
    if "/" in name or "\\" in name or name in ("", ".", ".."):
        raise DataFormatError(
            f"filepathTemplate {template!r:.200} gives {name!r:.200}, which is not a file of the folder"
        )
    return name


def find_shards(folder: str, info: DatasetInfo, split: str, *, allow_missing: bool) -> tuple[Shard, ...]:
    """The shards of a split that are there, in order.

    Raises:
        ValueError: there is no such split; the message names those there are.
        FileNotFoundError: files are missing and that was not allowed, or all are.
    """
    if split not in info.splits:
        raise ValueError(f"{folder} has no split {split!r}; it has {sorted(info.splits)}")
    chosen = info.splits[split]
    names = list_names(folder)
    lengths: tuple[int | None, ...]
    if chosen.lengths is None:
        lengths = (None,) * _count_on_disk(folder, info, chosen, names)
    else:
        lengths = chosen.lengths
    shards = []
    missing = []
    for number, episodes in enumerate(lengths):
        name = shard_name(chosen.template, info.name, split, number, len(lengths))
        if names is None or name in names:
            shards.append(Shard(number, join(folder, name), episodes))
        else:
            missing.append(name)
    if missing and (not allow_missing or not shards):
        raise FileNotFoundError(_about_missing(folder, split, missing, len(lengths), names or set()))
    return tuple(shards)


def _count_on_disk(folder: str, info: DatasetInfo, split: Split, names: set[str] | None) -> int:
    counts = set()
    for name in names or ():
        match = re.search(r"-of-(\d{1,9})\b", name)
        if match and name == shard_name(split.template, info.name, split.name, _index(name), int(match[1])):
            counts.add(int(match[1]))
    if len(counts) != 1:
        raise DataFormatError(
            f"{folder}: split '{split.name}' declares no shardLengths, and its files do not tell how many "
            f"there are (numbers found: {sorted(counts)})"
        )
    return counts.pop()


def _index(name: str) -> int:
    match = re.search(r"(\d{1,9})-of-", name)
    return int(match[1]) if match else -1


def _about_missing(folder: str, split: str, missing: list[str], declared: int, names: set[str]) -> str:
    shown = ", ".join(missing[:_NAMES_SHOWN])
    more = f" and {len(missing) - _NAMES_SHOWN} more" if len(missing) > _NAMES_SHOWN else ""
    start = missing[0].split("-of-")[0].rstrip("0123456789")
    others = sorted(name for name in names if name.startswith(start) and name not in missing)
    text = f"{folder}: {len(missing)} of {declared} shards of split '{split}' are missing: {shown}{more}"
    if len(missing) == declared:
        there = f"; other files of the split are there: {', '.join(others[:_NAMES_SHOWN])}" if others else ""
        return f"{text}; none is there{there}"
    return f"{text}; pass {ALLOW_MISSING} to read the {declared - len(missing)} that are there"
