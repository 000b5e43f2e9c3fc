"""The files of a converted dataset, and what says that it is complete.

A folder holds

======================  ====================================================================================
``manifest.json``       what is here; it gets this name last of all, so that its presence means: complete
``progress.json``       the same while a conversion is under way, renewed after each shard
``rows.bin``            the small leaves of all steps in rows (:mod:`replaybank.storages.layout`)
``column-000.bin`` ...  one plain array ``[steps, *shape]`` for each large leaf, in the layout's order
``frames-000.bin`` ...  the JPEG or PNG bytes of one camera's frames, end to end, where they are kept encoded
``ends-000.bin`` ...    int64 ``[steps]``: where each of these frames ends in its file
``episodes.bin``        int64 ``[episodes, 2]``: first step and length of each episode
``strings.jsonl``       the distinct texts, one JSON string a line; leaves of text hold line numbers
``metadata.jsonl``      one JSON object an episode: where it came from and its metadata
``stats.json``          statistics of entries, once somebody asked for them
``checksums.bin``       uint32 ``[episodes, files]``: CRC-32C of what each episode has in each data file
======================  ====================================================================================

All numbers are little-endian, arrays in C order, without headers. While a conversion is under way a file may
be longer than the progress says (it was killed in the middle of a shard): what is beyond does not count.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from replaybank.errors import DataFormatError, IncompleteDatasetError
from replaybank.storages.layout import LeafSpec, RowLayout

MANIFEST = "manifest.json"
PROGRESS = "progress.json"
ROWS = "rows.bin"
EPISODES = "episodes.bin"
STRINGS = "strings.jsonl"
METADATA = "metadata.jsonl"
CHECKSUMS = "checksums.bin"
STATS = "stats.json"

FORMAT = "replaybank.dataset"
VERSION = 2
"""Of the datasets that are written. Version 1, which is read, has neither checksums nor encoded frames."""

EPISODE_BYTES = 16
"""Two int64: first step and length."""
END_BYTES = 8
CHECKSUM_BYTES = 4

ANEW = "overwrite=True (--overwrite, or download='force' of the dataset) converts it anew"
"""What to do about files that cannot be used: as the function, the command and the dataset call it."""

_MAX_MANIFEST_BYTES = 1 << 28  # of a file that is read into memory: a million episodes' faults fit many times


NAMES = ("label_names", "dim_names", "metadata_label_names")
"""Entries of the manifest that tell names; datasets of earlier releases lack them."""

REQUIRED = frozenset({("episode",), ("next", "done")})
"""Leaves without which steps are no episodes."""


def column_name(number: int) -> str:
    """File of the ``number``-th large leaf."""
    return f"column-{number:03d}.bin"


def frames_name(number: int) -> str:
    """File of the encoded frames of the ``number``-th leaf that is kept so."""
    return f"frames-{number:03d}.bin"


def ends_name(number: int) -> str:
    """File of where those frames end."""
    return f"ends-{number:03d}.bin"


@dataclass(frozen=True)
class ShardRecord:
    """One shard of the origin, as far as it has been converted.

    Args:
        name: its file name, without the folder.
        episodes: episodes taken from it.
        steps: steps taken from it.
    """

    name: str
    episodes: int
    steps: int


@dataclass(frozen=True)
class Skipped:
    """A record of the origin that could not be read and was left out on request.

    Args:
        shard: file name of its shard.
        record: its number there.
        reason: what was wrong with it.
    """

    shard: str
    record: int
    reason: str


@dataclass(frozen=True)
class Manifest:
    """What a converted dataset holds, or has so far.

    Args:
        name: name of the dataset.
        split: split that was converted.
        origin: what it was made from: kind, version, and name, declared episodes and bytes of each shard; and
            which corrections were made, if any: cameras with blue first, last steps dropped.
        layout: where the stored leaves of a step lie that are kept as numbers.
        kinds: ``"text"`` and ``"image"`` leaves by key; all others hold numbers.
        shards: the shards done, in order.
        strings: number of distinct texts.
        file_sizes: bytes that count of the files whose sizes do not follow from the numbers of steps and
            episodes: ``strings.jsonl``, ``metadata.jsonl``, ``frames-000.bin`` ...
        missing: for each leaf that some episode lacks, the numbers of those episodes.
        faults: faults of the data that were put right, with how often.
        skipped: records left out.
        encoded: leaves that are images and kept as JPEG or PNG bytes; as they are read.
        checksums: CRC-32C of the files that hold no steps, by name.
        label_names: names of the classes that the numbers of a leaf stand for, in the order of the numbers.
        dim_names: names of the numbers along the last dimension of a leaf.
        metadata_label_names: names of classes, as above, of values of whole episodes.
        version: of the format.
    """

    name: str
    split: str
    origin: Mapping[str, Any]
    layout: RowLayout
    kinds: Mapping[tuple[str, ...], str]
    shards: tuple[ShardRecord, ...] = ()
    strings: int = 0
    file_sizes: Mapping[str, int] = field(default_factory=lambda: {STRINGS: 0, METADATA: 0})
    missing: Mapping[tuple[str, ...], tuple[int, ...]] = field(default_factory=dict)
    faults: Mapping[str, int] = field(default_factory=dict)
    skipped: tuple[Skipped, ...] = ()
    encoded: tuple[LeafSpec, ...] = ()
    checksums: Mapping[str, int] = field(default_factory=dict)
    label_names: Mapping[tuple[str, ...], tuple[str, ...]] = field(default_factory=dict)
    dim_names: Mapping[tuple[str, ...], tuple[str, ...]] = field(default_factory=dict)
    metadata_label_names: Mapping[tuple[str, ...], tuple[str, ...]] = field(default_factory=dict)
    version: int = VERSION

    @property
    def steps(self) -> int:
        """Steps in all."""
        return sum(shard.steps for shard in self.shards)

    @property
    def episodes(self) -> int:
        """Episodes in all."""
        return sum(shard.episodes for shard in self.shards)

    @property
    def leaves(self) -> tuple[LeafSpec, ...]:
        """All stored leaves: those of the layout, then those that are kept encoded."""
        return (*self.layout.leaves, *self.encoded)

    @property
    def data_files(self) -> list[str]:
        """The files that hold steps, in the order of their checksums."""
        names = [ROWS] if self.layout.row_bytes else []
        names += [column_name(number) for number in range(len(self.layout.columns))]
        for number in range(len(self.encoded)):
            names += [ends_name(number), frames_name(number)]
        return names

    @property
    def bgr(self) -> frozenset[tuple[str, ...]]:
        """Cameras whose frames had blue first in the origin; frames that are kept encoded still have."""
        corrections = self.origin.get("corrections")
        keys = corrections.get("bgr") if isinstance(corrections, dict) else None
        return frozenset(tuple(map(str, key)) for key in keys or () if isinstance(key, list))

    def sizes(self) -> dict[str, int]:
        """Bytes that count of each file beside the manifest."""
        sizes = {EPISODES: self.episodes * EPISODE_BYTES, **self.file_sizes}
        if self.version > 1:
            sizes[CHECKSUMS] = self.episodes * len(self.data_files) * CHECKSUM_BYTES
        if self.layout.row_bytes:
            sizes[ROWS] = self.steps * self.layout.row_bytes
        for number, leaf in enumerate(self.layout.columns):
            sizes[column_name(number)] = self.steps * self.layout.leaves[leaf].bytes
        for number in range(len(self.encoded)):
            sizes[ends_name(number)] = self.steps * END_BYTES
        return sizes

    def same_conversion(self, other: Manifest) -> bool:
        """Whether both come from one origin into one layout: one can go on where the other stopped."""
        return replace(self, **_BLANK) == replace(other, **_BLANK)

    def to_json(self) -> dict[str, Any]:
        """Plain values for JSON; :meth:`from_json` takes them back."""
        return {
            "format": FORMAT,
            "version": self.version,
            "name": self.name,
            "split": self.split,
            "origin": dict(self.origin),
            "steps": self.steps,
            "episodes": self.episodes,
            "layout": self.layout.to_json(),
            "kinds": [{"key": list(key), "kind": kind} for key, kind in self.kinds.items()],
            "shards": [vars(shard) for shard in self.shards],
            "strings": self.strings,
            "file_sizes": dict(self.file_sizes),
            "missing": [{"key": list(key), "episodes": list(e)} for key, e in self.missing.items()],
            "faults": dict(self.faults),
            "skipped": [vars(record) for record in self.skipped],
            "encoded": [
                {
                    "key": list(leaf.key),
                    "dtype": str(leaf.dtype).removeprefix("torch."),
                    "shape": [*leaf.shape],
                }
                for leaf in self.encoded
            ],
            "checksums": dict(self.checksums),
            **{name: _named(getattr(self, name)) for name in NAMES},
        }

    @classmethod
    def from_json(cls, value: Any) -> Manifest:
        """The manifest that :meth:`to_json` described. Trusts nothing.

        Raises:
            ValueError: the value is no such description; says what is wrong.
        """
        _expect(value, dict, "the manifest")
        if value.get("format") != FORMAT:
            raise ValueError(f"its format is {value.get('format')!r:.80}, not {FORMAT!r}")
        version = _natural(value, "version")
        if not 1 <= version <= VERSION:
            raise ValueError(f"it is of version {version}; this release reads up to {VERSION}")
        layout = RowLayout.from_json(value.get("layout"))
        keys = {leaf.key for leaf in layout.leaves}
        if () in keys or not keys >= REQUIRED:
            raise ValueError(f"its layout lacks entries that every dataset has: {sorted(REQUIRED - keys)}")
        encoded = () if version == 1 else _encoded(value, keys)
        keys |= {leaf.key for leaf in encoded}
        sized = [STRINGS, METADATA, *(frames_name(number) for number in range(len(encoded)))]
        kinds = {}
        for entry in _list(value, "kinds"):
            kind = _get(entry, "kind", str)
            if kind not in ("text", "image"):
                raise ValueError(f"a leaf is of the unknown kind {kind!r:.80}")
            kinds[_key(entry, keys)] = kind
        manifest = cls(
            name=_get(value, "name", str),
            split=_get(value, "split", str),
            origin=_get(value, "origin", dict),
            layout=layout,
            kinds=kinds,
            shards=tuple(
                ShardRecord(_get(s, "name", str), _natural(s, "episodes"), _natural(s, "steps"))
                for s in _list(value, "shards")
            ),
            strings=_natural(value, "strings"),
            file_sizes={n: _natural(_get(value, "file_sizes", dict), n) for n in sized},
            missing={
                _key(entry, keys): tuple(_expect(e, int, "an episode") for e in _list(entry, "episodes"))
                for entry in _list(value, "missing")
            },
            faults={k: _natural(value["faults"], k) for k in _get(value, "faults", dict)},
            skipped=tuple(
                Skipped(_get(s, "shard", str), _natural(s, "record"), _get(s, "reason", str))
                for s in _list(value, "skipped")
            ),
            encoded=encoded,
            checksums={}
            if version == 1
            else {n: _natural(value["checksums"], n) for n in _get(value, "checksums", dict)},
            label_names=_names(value, "label_names", keys),
            dim_names=_names(value, "dim_names", keys),
            metadata_label_names=_names(value, "metadata_label_names", None),
            version=version,
        )
        for name in ("steps", "episodes"):
            if _natural(value, name) != getattr(manifest, name):
                raise ValueError(f"it claims {value[name]} {name}, its shards have {getattr(manifest, name)}")
        for absent in manifest.missing.values():
            if any(not 0 <= episode < manifest.episodes for episode in absent):
                raise ValueError("it names a missing entry in an episode that it does not have")
        return manifest


_BLANK: dict[str, Any] = {
    "shards": (),
    "strings": 0,
    "file_sizes": {},
    "missing": {},
    "faults": {},
    "skipped": (),
    "checksums": {},
    "version": VERSION,
    **{name: {} for name in NAMES},
}


def is_converted(path: str | os.PathLike[str]) -> bool:
    """Whether a folder holds a converted dataset, complete or not."""
    return (Path(path) / MANIFEST).is_file() or (Path(path) / PROGRESS).is_file()


def read_manifest(path: str | os.PathLike[str]) -> Manifest:
    """The manifest of a complete dataset, its files checked to be there with their sizes.

    Raises:
        FileNotFoundError: there is no converted dataset.
        IncompleteDatasetError: its conversion has not been finished.
        DataFormatError: the manifest is damaged, or a file is not of its size.
    """
    folder = Path(path)
    if not (folder / MANIFEST).is_file():
        if (folder / PROGRESS).is_file():
            progress = read_progress(folder)
            raise IncompleteDatasetError(
                f"{folder}: the conversion of {progress.name!r} was not finished ({len(progress.shards)} of "
                f"{len(progress.origin.get('shards', ()))} shards are done); run the same conversion again, "
                "it goes on where it stopped"
            )
        raise FileNotFoundError(
            f"{folder} holds no converted dataset (there is no {MANIFEST}); "
            "make one with replaybank.convert(source, path) or `replaybank convert SOURCE PATH`"
        )
    manifest = read_begun(folder / MANIFEST)
    for name, size in manifest.sizes().items():
        try:
            found = (folder / name).stat().st_size
        except FileNotFoundError:
            raise DataFormatError(f"{folder / name} is missing: {ANEW}") from None
        if found != size:
            raise DataFormatError(f"{folder / name} has {found} bytes, the manifest says {size}: {ANEW}")
    return manifest


def read_strings(path: str | os.PathLike[str], manifest: Manifest) -> list[str]:
    """The distinct texts of a dataset.

    Raises:
        DataFormatError: the file is not the one that the manifest describes.
    """
    file = Path(path) / STRINGS
    with open(file, "rb") as opened:
        content = opened.read(manifest.file_sizes[STRINGS])
    try:
        strings = [json.loads(line) for line in content.splitlines()]
    except (ValueError, RecursionError) as error:
        raise DataFormatError(f"{file} is damaged: {error}; {ANEW}") from error
    if not all(isinstance(text, str) for text in strings) or len(set(strings)) != manifest.strings:
        raise DataFormatError(f"{file} is damaged: it should hold {manifest.strings} distinct texts; {ANEW}")
    return strings


def read_progress(path: str | os.PathLike[str]) -> Manifest:
    """What a conversion that is under way, or was interrupted, has done so far.

    Raises:
        FileNotFoundError: there is none.
        DataFormatError: the file is damaged.
    """
    return read_begun(Path(path) / PROGRESS)


def read_begun(file: Path) -> Manifest:
    """A manifest, of a complete dataset or of a conversion that is under way; its files are not looked at.

    Raises:
        FileNotFoundError: there is none.
        DataFormatError: it is damaged.
    """
    if sys.byteorder != "little":
        raise DataFormatError(f"{file}: converted datasets are little-endian, this machine is not")
    if file.stat().st_size > _MAX_MANIFEST_BYTES:
        raise DataFormatError(f"{file}: larger than any manifest ({_MAX_MANIFEST_BYTES} bytes)")
    try:
        return Manifest.from_json(json.loads(file.read_bytes()))
    except (ValueError, RecursionError) as error:
        raise DataFormatError(f"{file} is damaged: {error}; {ANEW}") from error


def _expect(value: Any, kind: type, what: str) -> Any:
    if type(value) is not kind:
        raise ValueError(f"{what} should be of type {kind.__name__}, got {value!r:.80}")
    return value


def _get(entry: Any, name: str, kind: type) -> Any:
    return _expect(_expect(entry, dict, "an entry").get(name), kind, f"{name!r}")


def _list(entry: Any, name: str) -> list[Any]:
    found: list[Any] = _get(entry, name, list)
    return found


def _natural(entry: Any, name: str) -> int:
    number: int = _get(entry, name, int)
    if not 0 <= number < 1 << 62:
        raise ValueError(f"{name!r} should be a number of things, got {number}")
    return number


def _encoded(value: Any, keys: set[tuple[str, ...]]) -> tuple[LeafSpec, ...]:
    """The leaves that are kept as JPEG or PNG bytes."""
    entries = [{**_expect(entry, dict, "an entry"), "offset": None} for entry in _list(value, "encoded")]
    described = {"format": "replaybank.row-layout", "version": 1, "row_bytes": 0, "leaves": entries}
    leaves = RowLayout.from_json(described).leaves
    if any(len(leaf.shape) != 3 or leaf.key in keys or not leaf.key for leaf in leaves):
        raise ValueError(f"its encoded leaves are no images: {[leaf.key for leaf in leaves]!r:.200}")
    return leaves


def _named(names: Mapping[tuple[str, ...], tuple[str, ...]]) -> list[dict[str, Any]]:
    return [{"key": list(key), "names": list(found)} for key, found in names.items()]


def _names(
    value: Any, name: str, keys: set[tuple[str, ...]] | None
) -> dict[tuple[str, ...], tuple[str, ...]]:
    """Names by key, where there are any."""
    if name not in value:
        return {}
    return {
        _key(entry, keys): tuple(_expect(part, str, "a name") for part in _list(entry, "names"))
        for entry in _list(value, name)
    }


def _key(entry: Any, keys: set[tuple[str, ...]] | None) -> tuple[str, ...]:
    key = tuple(_expect(part, str, "a part of a key") for part in _list(entry, "key"))
    if keys is not None and key not in keys:
        raise ValueError(f"the leaf {key!r:.80} is not in the layout")
    return key
