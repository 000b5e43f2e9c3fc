"""What is in a robot dataset, in numbers: of RLDS files and of converted datasets alike."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import Literal

import numpy as np
import torch

from replaybank.datasets.openx.files import (
    EPISODE_BYTES,
    EPISODES,
    MANIFEST,
    Manifest,
    is_converted,
    read_progress,
)
from replaybank.datasets.openx.sources.base import Episode, FieldSpec, Images, Key
from replaybank.datasets.openx.sources.rlds import RLDSSource, is_rlds
from replaybank.datasets.openx.storage import DatasetStorage


@dataclass(frozen=True)
class FieldSummary:
    """One entry of a step or of an episode.

    Args:
        key: where it is.
        kind: ``"tensor"``, ``"text"`` or ``"image"``.
        shape: shape of one value; images ``(H, W, C)`` in RLDS, ``(C, H, W)`` once converted.
        dtype: name of the dtype, ``"str"`` for text.
    """

    key: Key
    kind: str
    shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True)
class ImageSummary:
    """The frames of one camera.

    Args:
        key: where they are.
        form: ``"JPEG"``, ``"PNG"``, or ``"raw"`` where they are stored decoded.
        height: pixels.
        width: pixels.
        channels: 3 for colour.
        bytes_per_frame: mean over all frames.
    """

    key: Key
    form: str
    height: int
    width: int
    channels: int
    bytes_per_frame: float


@dataclass(frozen=True)
class DatasetSummary:
    """What is in a dataset.

    Args:
        path: its folder.
        form: ``"RLDS"`` or ``"converted"``.
        name: of the dataset.
        version: as it was published.
        split: the part that was looked at.
        splits: all parts that it declares.
        complete: False: a conversion that was started and not finished.
        bytes: size of the folder's files.
        fields: entries of a step.
        metadata_fields: entries of an episode.
        lengths: number of steps of each episode.
        images: one for each camera.
        texts: for each text entry of the steps, in how many episodes each string is.
        notes: anything else that a user should know.
    """

    path: Path
    form: Literal["RLDS", "converted"]
    name: str
    version: str
    split: str
    splits: tuple[str, ...]
    complete: bool
    bytes: int
    fields: tuple[FieldSummary, ...]
    metadata_fields: tuple[FieldSummary, ...] = ()
    lengths: tuple[int, ...] = ()
    images: tuple[ImageSummary, ...] = ()
    texts: Mapping[Key, Counter[str]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def episodes(self) -> int:
        """Number of episodes."""
        return len(self.lengths)

    @property
    def steps(self) -> int:
        """Number of steps of all episodes."""
        return sum(self.lengths)

    @property
    def length_range(self) -> tuple[int, float, int]:
        """Shortest, median and longest episode, steps; zeros where there is none."""
        if not self.lengths:
            return 0, 0.0, 0
        return min(self.lengths), float(np.median(self.lengths)), max(self.lengths)


def find_rlds(path: str | PathLike[str]) -> Path | None:
    """The RLDS folder at a path: the path itself, or the one version folder below it.

    Args:
        path: ``.../bridge_dataset/1.0.0`` or ``.../bridge_dataset``.

    Returns:
        The folder, ``None`` if there is none.

    Raises:
        ValueError: there are several versions below the path.
        OSError: the path cannot be read.
    """
    folder = Path(path)
    if is_rlds(folder):
        return folder
    found = sorted(child for child in folder.iterdir() if child.is_dir() and is_rlds(child))
    if len(found) > 1:
        msg = f"{folder} holds {len(found)} datasets: name one, as in {found[-1]}"
        raise ValueError(msg)
    return found[0] if found else None


def need_rlds(path: str | PathLike[str]) -> Path:
    """As :func:`find_rlds`, where nothing else will do.

    Raises:
        ValueError: there is no RLDS folder at the path, or there are several.
        OSError: the path cannot be read.
    """
    folder = find_rlds(path)
    if folder is None:
        msg = f"{path} is not an RLDS folder: one holds features.json and dataset_info.json"
        raise ValueError(msg)
    return folder


def folder_bytes(path: Path) -> int:
    """Size of all files below a folder, bytes. O(files)."""
    return sum(file.stat().st_size for file in path.rglob("*") if file.is_file())


def summarise(
    path: str | PathLike[str],
    split: str = "train",
    on_progress: Callable[[int, int], None] | None = None,
) -> DatasetSummary:
    """Say what is in an RLDS folder or in a converted dataset.

    Args:
        path: its folder, or that of the one version of an RLDS dataset.
        split: which part of an RLDS folder; a converted dataset has one.
        on_progress: as for :func:`summarise_rlds`.

    Raises:
        ValueError: it is neither.
        DataFormatError: a file is not what its format says.
        OSError: a file cannot be read.
    """
    if is_converted(path):
        return summarise_converted(path)
    folder = find_rlds(path)
    if folder is None:
        msg = (
            f"{path} is neither an RLDS folder (features.json and dataset_info.json) nor a converted dataset "
            f"({MANIFEST})"
        )
        raise ValueError(msg)
    return summarise_rlds(folder, split, on_progress)


def summarise_rlds(
    path: str | PathLike[str],
    split: str = "train",
    on_progress: Callable[[int, int], None] | None = None,
) -> DatasetSummary:
    """Read every record of a split and say what is in them. O(bytes); one frame a camera is decoded.

    Args:
        path: RLDS folder.
        split: which part.
        on_progress: called after each shard with how many are done, and of how many.

    Raises:
        DataFormatError: a file is not what its format says.
        OSError: a file cannot be read.
    """
    source = RLDSSource(path, split)
    shards = source.shards()
    lengths: list[int] = []
    texts = {key: Counter[str]() for key, spec in source.fields.items() if spec.kind == "text"}
    cameras = {key: _Camera(key) for key, spec in source.fields.items() if spec.kind == "image"}
    missing: Counter[Key] = Counter()
    for done, shard in enumerate(shards, 1):
        for episode in source.episodes(shard):
            lengths.append(episode.length)
            missing.update(episode.missing)
            _note(episode, texts, cameras)
        if on_progress is not None:
            on_progress(done, len(shards))
    return DatasetSummary(
        path=Path(path),
        form="RLDS",
        name=source.name,
        version=source.version,
        split=split,
        splits=tuple(source.splits),
        complete=True,
        bytes=folder_bytes(Path(path)),
        fields=_fields(source.fields),
        metadata_fields=_fields(source.metadata_fields),
        lengths=tuple(lengths),
        images=tuple(camera.summary() for camera in cameras.values() if camera.frames),
        texts=texts,
        notes=tuple(f"{'/'.join(key)} is missing in {n} episodes" for key, n in missing.items()),
    )


def summarise_converted(path: str | PathLike[str]) -> DatasetSummary:
    """Say what is in a converted dataset, or in what an unfinished conversion has made of it. O(steps).

    Raises:
        DataFormatError: a file is damaged.
        OSError: a file cannot be read.
    """
    folder = Path(path)
    complete = (folder / MANIFEST).is_file()
    notes: list[str] = []
    texts: dict[Key, Counter[str]] = {}
    if complete:
        storage = DatasetStorage(folder)
        manifest, lengths = storage.manifest, storage.bounds[:, 1].tolist()
        for key, kind in manifest.kinds.items():
            if kind == "text":
                texts[key] = _episodes_of_texts(storage, key)
    else:
        manifest = read_progress(folder)
        done = np.fromfile(folder / EPISODES, "<i8", count=manifest.episodes * EPISODE_BYTES // 8)
        lengths = done.reshape(-1, 2)[:, 1].tolist()
        shards = len(manifest.origin.get("shards", ()))
        notes.append(
            f"the conversion was not finished: {len(manifest.shards)} of {shards} shards are done; "
            "run it again, it goes on where it stopped"
        )
    return DatasetSummary(
        path=folder,
        form="converted",
        name=manifest.name,
        version=str(manifest.origin.get("version", "")),
        split=manifest.split,
        splits=(manifest.split,),
        complete=complete,
        bytes=folder_bytes(folder),
        fields=tuple(_stored_fields(manifest)),
        lengths=tuple(lengths),
        images=tuple(
            ImageSummary(leaf.key, "raw", *leaf.shape[1:], leaf.shape[0], leaf.bytes)
            for leaf in manifest.layout.leaves
            if manifest.kinds.get(leaf.key) == "image"
        ),
        texts=texts,
        notes=(*notes, *_faults(manifest)),
    )


def _stored_fields(manifest: Manifest) -> Iterator[FieldSummary]:
    for leaf in manifest.layout.leaves:
        kind = manifest.kinds.get(leaf.key, "tensor")
        dtype = "str" if kind == "text" else str(leaf.dtype).removeprefix("torch.")
        yield FieldSummary(leaf.key, kind, leaf.shape, dtype)


def _episodes_of_texts(storage: DatasetStorage, key: Key) -> Counter[str]:
    """In how many episodes each string of an entry is. O(steps log steps)."""
    numbers = storage.read_leaf(key, slice(None)).reshape(-1).long()
    episodes = torch.arange(len(storage.bounds)).repeat_interleave(storage.bounds[:, 1])
    pairs = torch.unique(torch.stack([numbers, episodes]), dim=1)
    found, counts = torch.unique(pairs[0], return_counts=True)
    return Counter(
        {storage.strings[i]: n for i, n in zip(found.tolist(), counts.tolist(), strict=True) if i >= 0}
    )


def _faults(manifest: Manifest) -> Iterator[str]:
    """What the conversion put right, missed or left out."""
    for fault, times in manifest.faults.items():
        yield f"{fault}: put right in {times} steps"
    for key, episodes in manifest.missing.items():
        yield f"{'/'.join(key)} is missing in {len(episodes)} episodes"
    if manifest.skipped:
        first = manifest.skipped[0]
        yield (
            f"{len(manifest.skipped)} records were left out, the first one of {first.shard}: "
            f"record {first.record}, {first.reason}"
        )


class _Camera:
    """Counts the frames of one camera."""

    def __init__(self, key: Key) -> None:
        self.frames = 0
        self._key, self._bytes = key, 0
        self._form, self._shape = "", (0, 0, 0)

    def add(self, images: Images) -> None:
        frames = images.encoded()
        if not self.frames:
            self._form = "JPEG" if frames[0][:2] == b"\xff\xd8" else "PNG"
            height, width, *channels = images.decode().shape[1:]
            self._shape = (height, width, channels[0] if channels else 1)
        self.frames += len(frames)
        self._bytes += sum(map(len, frames))

    def summary(self) -> ImageSummary:
        return ImageSummary(self._key, self._form, *self._shape, self._bytes / self.frames)


def _note(episode: Episode, texts: Mapping[Key, Counter[str]], cameras: Mapping[Key, _Camera]) -> None:
    """Count an episode's strings, each once, and its frames."""
    for key, counter in texts.items():
        column = episode.steps.get(key)
        if isinstance(column, list):
            counter.update(set(column))
    for key, camera in cameras.items():
        images = episode.steps.get(key)
        if images is not None and not isinstance(images, (list, np.ndarray)):
            camera.add(images)


def _fields(fields: Mapping[Key, FieldSpec]) -> tuple[FieldSummary, ...]:
    return tuple(
        FieldSummary(key, spec.kind, spec.shape, "str" if spec.dtype is None else spec.dtype.name)
        for key, spec in fields.items()
    )


__all__ = [
    "DatasetSummary",
    "FieldSummary",
    "ImageSummary",
    "find_rlds",
    "folder_bytes",
    "need_rlds",
    "summarise",
    "summarise_converted",
    "summarise_rlds",
]
