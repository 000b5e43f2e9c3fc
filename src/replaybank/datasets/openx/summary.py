"""What is in a robot dataset, in numbers: of published files and of converted datasets alike."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from os import PathLike, fspath
from pathlib import Path

import numpy as np
import torch

from replaybank.datasets.openx.catalog import datasets
from replaybank.datasets.openx.corrections import AS_PUBLISHED
from replaybank.datasets.openx.files import (
    EPISODE_BYTES,
    EPISODES,
    MANIFEST,
    METADATA,
    Manifest,
    frames_name,
    is_converted,
    read_progress,
)
from replaybank.datasets.openx.sources.base import (
    Episode,
    EpisodeSource,
    FieldSpec,
    Images,
    Key,
    declared_episodes,
    kind_of,
    metadata_fields_of,
    notes_of,
)
from replaybank.datasets.openx.sources.files import is_url, size_of
from replaybank.datasets.openx.sources.images import image_format
from replaybank.datasets.openx.sources.open import open_published
from replaybank.datasets.openx.sources.video_frames import VideoFrames
from replaybank.datasets.openx.storage import DatasetStorage
from replaybank.progress import Bar


@dataclass(frozen=True)
class FieldSummary:
    """One entry of a step or of an episode.

    Args:
        key: where it is.
        kind: ``"tensor"``, ``"text"`` or ``"image"``.
        shape: shape of one value; images ``(H, W, C)``, once converted ``(C, H, W)``.
        dtype: name of the dtype, ``"str"`` for text.
        labels: names of the classes that its numbers stand for, in their order; empty if it is no class.
        names: names of its numbers, such as joints; empty where they have none.
    """

    key: Key
    kind: str
    shape: tuple[int, ...]
    dtype: str
    labels: tuple[str, ...] = ()
    names: tuple[str, ...] = ()


@dataclass(frozen=True)
class ImageSummary:
    """The frames of one camera.

    Args:
        key: where they are.
        form: ``"JPEG"``, ``"PNG"``, a video's codec, or ``"raw"`` where they are stored decoded.
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
        path: its folder, or URL.
        form: ``"RLDS"``, ``"LeRobot"``, ``"tar shards"`` or ``"converted"``.
        name: of the dataset.
        version: as it was published.
        split: the part that was looked at.
        splits: all parts that it declares.
        complete: False: a conversion that was started and not finished.
        bytes: size of the folder's files; None where they are behind a URL.
        fields: entries of a step.
        metadata_fields: entries of an episode.
        lengths: number of steps of each episode.
        images: one for each camera.
        texts: for each text entry of the steps, in how many episodes each string is.
        notes: anything else that a user should know.
    """

    path: str
    form: str
    name: str
    version: str
    split: str
    splits: tuple[str, ...]
    complete: bool
    bytes: int | None
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


def summarise(
    path: str | PathLike[str],
    split: str | None = None,
    on_progress: Callable[[int, int], None] | None = None,
    *,
    progress: bool | None = False,
) -> DatasetSummary:
    """Say what is in a dataset, converted or as it is published. Files that are missing are told.

    Args:
        path: its folder; of an RLDS dataset also the folder above the one version; a URL, or an id.
        split: which part of a published dataset, ``"train"`` by default; a converted dataset has one.
        on_progress: as for :func:`summarise_source`.
        progress: likewise.

    Raises:
        FileNotFoundError: there is none.
        ValueError: there is no such split.
        DataFormatError: a file is not what its format says.
        OSError: a file cannot be read.
    """
    path = fspath(path)
    if not is_url(path) and is_converted(path):
        found = summarise_converted(path)
        if split not in (None, found.split):
            raise ValueError(f"{path}: there is no split {split!r}: {found.split!r} was converted")
        return found
    source = open_published(path, split="train" if split is None else split, allow_missing_shards=True)
    return summarise_source(source, on_progress, progress=progress)


def folder_bytes(path: str | PathLike[str]) -> int | None:
    """Size of a file or of all files in a folder, bytes; None behind a URL. O(files)."""
    if is_url(fspath(path)):
        return None
    if Path(path).is_file():
        return Path(path).stat().st_size
    return sum(file.stat().st_size for file in Path(path).rglob("*") if file.is_file())


def summarise_source(
    source: EpisodeSource,
    on_progress: Callable[[int, int], None] | None = None,
    *,
    progress: bool | None = False,
) -> DatasetSummary:
    """Read every record of a split and say what is in them. O(bytes); one frame a camera is decoded.

    Args:
        source: the dataset and its split.
        on_progress: called after each shard with how many are done, and of how many.
        progress: show a progress bar of episodes; None: where the error output is a terminal.

    Raises:
        DataFormatError: a file is not what its format says.
        OSError: a file cannot be read.
    """
    shards = source.shards()
    tally = SourceTally(source)
    with Bar("Reading", "episode", declared_episodes(shards), show=progress) as bar:
        for done, shard in enumerate(shards, 1):
            for episode in source.episodes(shard):
                tally.add(episode)
                bar.update(steps=episode.length)
            if on_progress is not None:
                on_progress(done, len(shards))
    return tally.summary()


class SourceTally:
    """Counts what is in the episodes of a source as they are read. Not thread-safe.

    Args:
        source: the dataset and its split.
    """

    def __init__(self, source: EpisodeSource) -> None:
        self._source = source
        self._lengths: list[int] = []
        self._texts = {key: Counter[str]() for key, spec in source.fields.items() if spec.kind == "text"}
        self._cameras = {key: _Camera(key) for key, spec in source.fields.items() if spec.kind == "image"}
        self._missing: Counter[Key] = Counter()
        self._faults: Counter[str] = Counter()

    def add(self, episode: Episode) -> None:
        """Count one more. O(steps); the first frame of each camera is decoded."""
        self._lengths.append(episode.length)
        self._missing.update(episode.missing)
        self._faults.update(episode.faults)
        _note(episode, self._texts, self._cameras)

    def summary(self) -> DatasetSummary:
        """What there was in the episodes so far."""
        source = self._source
        path: str = getattr(source, "path", "")
        split: str = getattr(source, "split", "train")
        return DatasetSummary(
            path=path,
            form=getattr(source, "form", kind_of(source)),
            name=source.name,
            version=str(getattr(source, "version", "")),
            split=split,
            splits=tuple(getattr(source, "splits", (split,))),
            complete=True,
            bytes=folder_bytes(path) if path else None,
            fields=_fields(source.fields),
            metadata_fields=_fields(metadata_fields_of(source)),
            lengths=tuple(self._lengths),
            images=tuple(camera.summary() for camera in self._cameras.values() if camera.frames),
            texts=self._texts,
            notes=(
                *notes_of(source),
                *(f"{'/'.join(key)} is missing in {n} episodes" for key, n in self._missing.items()),
                *(_times(fault, n) for fault, n in sorted(self._faults.items())),
                *_known_defects(source),
            ),
        )


def summarise_converted(path: str | PathLike[str], *, texts: bool = True) -> DatasetSummary:
    """Say what is in a converted dataset, or in what an unfinished conversion has made of it. O(steps).

    Args:
        path: its folder.
        texts: False: without looking at the texts, which are all that is read of the steps.

    Raises:
        DataFormatError: a file is damaged.
        OSError: a file cannot be read.
    """
    folder = Path(path)
    complete = (folder / MANIFEST).is_file()
    notes: list[str] = []
    counted: dict[Key, Counter[str]] = {}
    lengths: list[int] = []
    if complete:
        storage = DatasetStorage(folder)
        manifest, lengths = storage.manifest, storage.bounds[:, 1].tolist()
        for key, kind in manifest.kinds.items():
            if texts and kind == "text":
                counted[key] = _episodes_of_texts(storage, key)
    else:
        manifest = read_progress(folder)
        if manifest.episodes:  # else the file may not be there yet
            done = np.fromfile(folder / EPISODES, "<i8", count=manifest.episodes * EPISODE_BYTES // 8)
            lengths = done.reshape(-1, 2)[:, 1].tolist()
        shards = len(manifest.origin.get("shards", ()))
        notes.append(
            f"the conversion was not finished: {len(manifest.shards)} of {shards} shards are done; "
            "run it again, it goes on where it stopped"
        )
    return DatasetSummary(
        path=str(folder),
        form="converted",
        name=manifest.name,
        version=str(manifest.origin.get("version", "")),
        split=manifest.split,
        splits=(manifest.split,),
        complete=complete,
        bytes=folder_bytes(folder),
        fields=tuple(_stored_fields(manifest)),
        metadata_fields=tuple(_stored_metadata(folder, manifest)) if lengths else (),
        lengths=tuple(lengths),
        images=tuple(_stored_images(folder, manifest)),
        texts=counted,
        notes=(*notes, *_faults(manifest)),
    )


def _known_defects(source: EpisodeSource) -> list[str]:
    """What the catalog says of a dataset; of copies in other forms it knows nothing."""
    return defects_of(source.name) if getattr(source, "form", None) in AS_PUBLISHED else []


def defects_of(name: str) -> list[str]:
    """What the catalog says to be wrong with a dataset as it was published, a sentence each."""
    facts = datasets().get(name)
    if facts is None:
        return []
    swapped = [f"{camera} has blue first; conversion puts it right" for camera in facts.bgr]
    return [*(f"known defect: {defect}" for defect in facts.defects), *swapped]


def _stored_fields(manifest: Manifest) -> Iterator[FieldSummary]:
    for leaf in manifest.leaves:
        kind = manifest.kinds.get(leaf.key, "tensor")
        dtype = "str" if kind == "text" else str(leaf.dtype).removeprefix("torch.")
        labels, names = manifest.label_names.get(leaf.key, ()), manifest.dim_names.get(leaf.key, ())
        yield FieldSummary(leaf.key, kind, leaf.shape, dtype, labels, names)


def _stored_images(folder: Path, manifest: Manifest) -> Iterator[ImageSummary]:
    for leaf in manifest.layout.leaves:
        if manifest.kinds.get(leaf.key) == "image":
            yield ImageSummary(leaf.key, "raw", leaf.shape[1], leaf.shape[2], leaf.shape[0], leaf.bytes)
    for number, leaf in enumerate(manifest.encoded):
        size = manifest.file_sizes[frames_name(number)]
        if size and manifest.steps:
            with (folder / frames_name(number)).open("rb") as file:
                form = (image_format(file.read(8)) or "unknown").upper()
            channels, height, width = leaf.shape
            yield ImageSummary(leaf.key, form, height, width, channels, size / manifest.steps)


def _stored_metadata(folder: Path, manifest: Manifest) -> Iterator[FieldSummary]:
    """The entries of the first episode, whose values tell their kinds: JSON has no others."""
    with (folder / METADATA).open(encoding="utf-8") as file:
        entries = json.loads(file.readline() or "{}").get("metadata", [])
    for key, value in entries:
        array = np.asarray(value)
        text = array.dtype.kind not in "bif"
        dtype = "str" if text else array.dtype.name
        labels = manifest.metadata_label_names.get(tuple(key), ())
        yield FieldSummary(tuple(key), "text" if text else "tensor", array.shape, dtype, labels)


def _episodes_of_texts(storage: DatasetStorage, key: Key) -> Counter[str]:
    """In how many episodes each string of an entry is. O(steps log steps)."""
    numbers = storage.read_leaf(key, slice(None)).reshape(-1).long()
    episodes = torch.arange(len(storage.bounds)).repeat_interleave(storage.bounds[:, 1])
    pairs = torch.unique(torch.stack([numbers, episodes]), dim=1)
    found, counts = torch.unique(pairs[0], return_counts=True)
    return Counter(
        {storage.strings[i]: n for i, n in zip(found.tolist(), counts.tolist(), strict=True) if i >= 0}
    )


def _times(fault: str, times: int) -> str:
    return fault if times == 1 else f"{fault} ({times:,} times)"


def _faults(manifest: Manifest) -> Iterator[str]:
    """What the conversion put right, missed or left out."""
    for fault, times in manifest.faults.items():
        yield _times(fault, times)
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
        self._key, self._bytes, self._counted = key, 0, 0
        self._form, self._shape = "", (0, 0, 0)
        self._videos: set[str] = set()

    def add(self, images: Images) -> None:
        if isinstance(images, VideoFrames):
            self._add_video(images)
            return
        frames = images.encoded()
        if not self.frames:
            self._form = (image_format(frames[0]) or "unknown").upper()
            height, width, *channels = images.decode(0, 1).shape[1:]
            self._shape = (height, width, channels[0] if channels else 1)
        self.frames += len(frames)
        self._counted += len(frames)
        self._bytes += sum(map(len, frames))

    def _add_video(self, images: VideoFrames) -> None:
        if not self.frames:
            info = images.info()
            self._form = info.codec.upper()
            self._shape = (info.height, info.width, info.channels)
        self.frames += len(images)
        if images.path not in self._videos:  # it may hold several episodes
            self._videos.add(images.path)
            self._counted += images.count()
            self._bytes += size_of(images.path) or 0

    def summary(self) -> ImageSummary:
        return ImageSummary(self._key, self._form, *self._shape, self._bytes / max(1, self._counted))


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
        FieldSummary(
            key,
            spec.kind,
            spec.shape,
            "str" if spec.dtype is None else spec.dtype.name,
            spec.labels,
            spec.names,
        )
        for key, spec in fields.items()
    )
