"""Writes a converted dataset: episode by episode, made permanent shard by shard."""

from __future__ import annotations

import contextlib
import json
import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import IO, Any

import numpy as np
import numpy.typing as npt
import torch

from replaybank.checkpoint import fsync_directory, write_json_atomically
from replaybank.datasets.openx.files import (
    ANEW,
    EPISODES,
    MANIFEST,
    METADATA,
    PROGRESS,
    ROWS,
    STRINGS,
    Manifest,
    ShardRecord,
    Skipped,
    column_name,
    is_converted,
    read_progress,
    read_strings,
)
from replaybank.datasets.openx.locks import LOCK, FolderLock
from replaybank.datasets.openx.ted import Leaf, TedEpisode, check_shape, decode_frames
from replaybank.errors import DataFormatError
from replaybank.storages.layout import Key, LeafSpec, RowLayout, field_name

FRAME_CHUNK_BYTES = 1 << 26
"""Decoded frames held at a time: many frames a call, however long the episode."""


def plan(name: str, split: str, origin: Mapping[str, Any], leaves: Mapping[Key, Leaf]) -> Manifest:
    """A conversion as a manifest with nothing done yet."""
    return Manifest(
        name=name,
        split=split,
        origin=origin,
        layout=RowLayout.plan(LeafSpec(leaf.key, _torch_dtype(leaf), leaf.shape) for leaf in leaves.values()),
        kinds={leaf.key: leaf.kind for leaf in leaves.values() if leaf.kind != "tensor"},
    )


def _torch_dtype(leaf: Leaf) -> torch.dtype:
    """Dtype a leaf is stored in; text as the number of its string."""
    if leaf.dtype is None:
        return torch.int32
    try:
        return torch.from_numpy(np.empty(0, leaf.dtype)).dtype
    except TypeError:
        raise DataFormatError(
            f"{'/'.join(leaf.key)} has dtype {leaf.dtype}, which torch does not have"
        ) from None


class DatasetBuilder:
    """Appends episodes to the files of a converted dataset.

    What :meth:`commit` has returned from is on the disk and counted in ``progress.json``; killed at any
    instant, the next builder of the same conversion cuts the files back to that and goes on. The manifest,
    which makes the dataset usable, is written by :meth:`finish` only. One builder a folder at a time: a
    second one is refused while the first lives. Not thread-safe.

    Args:
        folder: where to write; made if missing. Must be empty or hold a conversion.
        manifest: the conversion, with nothing done yet.
        leaves: the stored leaves by key, text included.
        overwrite: begin anew, over a dataset or an unfinished conversion that is there.

    Raises:
        FileExistsError: the folder holds something else, a complete dataset or another conversion.
        BlockingIOError: another builder is at work there.
    """

    def __init__(
        self, folder: str | Path, manifest: Manifest, leaves: Mapping[Key, Leaf], *, overwrite: bool = False
    ) -> None:
        self.folder = Path(folder)
        self.leaves = dict(leaves)
        self._lock = claim(self.folder)
        self._files: dict[str, IO[bytes]] = {}
        try:
            self.manifest = self._begin(manifest, overwrite)
            self._open_files()
        except BaseException:
            self.close()
            raise

    def _begin(self, manifest: Manifest, overwrite: bool) -> Manifest:
        for name in _temporary(self.folder):  # of a replacing that was interrupted
            (self.folder / name).unlink()
        if overwrite or not is_converted(self.folder):
            discard(self.folder)  # also what is left of a discarding that was interrupted
        elif (self.folder / MANIFEST).exists():
            raise FileExistsError(
                f"{self.folder} holds a converted dataset already; overwrite=True replaces it"
            )
        if (self.folder / PROGRESS).exists():
            progress = read_progress(self.folder)
            if not progress.same_conversion(manifest):
                raise FileExistsError(
                    f"{self.folder} holds an unfinished conversion of {progress.name!r} ({progress.split}), "
                    f"which is another than this one of {manifest.name!r} ({manifest.split}): choose another "
                    f"folder; {ANEW}"
                )
            return progress
        self._write_progress(manifest)
        return manifest

    def _write_progress(self, manifest: Manifest) -> None:
        write_json_atomically(self.folder / PROGRESS, manifest.to_json())

    def _open_files(self) -> None:
        for name, size in self.manifest.sizes().items():
            path = self.folder / name
            file = open(path, "r+b" if path.exists() else "x+b")  # noqa: SIM115  (closed by close())
            self._files[name] = file
            found = file.seek(0, os.SEEK_END)
            if found < size:
                raise DataFormatError(f"{path} has {found} bytes, the progress says {size}: {ANEW}")
            file.truncate(size)
            file.seek(size)
        strings = read_strings(self.folder, self.manifest)
        self._strings: dict[str, int] = {text: number for number, text in enumerate(strings)}
        self._layout: RowLayout = self.manifest.layout
        self._row_dtype = self._layout.numpy_dtype() if self._layout.row_bytes else None
        self._shard_steps = self._shard_episodes = 0
        self._missing = {key: list(episodes) for key, episodes in self.manifest.missing.items()}
        self._faults = Counter(self.manifest.faults)
        self._skipped = list(self.manifest.skipped)

    @property
    def episodes(self) -> int:
        """Episodes so far: the number of the next one."""
        return self.manifest.episodes + self._shard_episodes

    @property
    def steps(self) -> int:
        """Steps so far."""
        return self.manifest.steps + self._shard_steps

    def add(self, episode: TedEpisode, metadata: Mapping[str, Any]) -> None:
        """Append an episode. If it fails, the files are as they were. O(bytes of the episode).

        Args:
            episode: in TED layout, with the leaves of this dataset.
            metadata: plain values for ``metadata.jsonl``.

        Raises:
            DataFormatError: a frame cannot be decoded or has another shape than the dataset.
        """
        before = {name: file.tell() for name, file in self._files.items()}
        known = len(self._strings)
        try:
            self._write(episode, metadata)
        except BaseException:
            for name, file in self._files.items():
                file.seek(before[name])
                file.truncate()
            for text in list(self._strings)[known:]:
                del self._strings[text]
            raise
        for key in episode.missing:
            self._missing.setdefault(key, []).append(self.episodes)
        self._faults.update(episode.faults)
        self._shard_steps += episode.length
        self._shard_episodes += 1

    def _write(self, episode: TedEpisode, metadata: Mapping[str, Any]) -> None:
        length = episode.length
        rows = np.zeros(length, self._row_dtype) if self._row_dtype is not None else None
        column = 0
        for spec, offset in zip(self._layout.leaves, self._layout.offsets, strict=True):
            values = episode.columns[spec.key]
            if offset is not None:
                part = self._part(self.leaves[spec.key], values, 0, length)
                rows[field_name(spec.key)] = part  # type: ignore[index]
                continue
            self._write_column(self._files[column_name(column)], self.leaves[spec.key], values, length)
            column += 1
        if rows is not None:
            self._files[ROWS].write(rows.tobytes())
        self._files[EPISODES].write(np.array([self.steps, length], "<i8").tobytes())
        line = json.dumps(metadata, ensure_ascii=True, sort_keys=True)
        self._files[METADATA].write(line.encode() + b"\n")

    def _write_column(self, file: IO[bytes], leaf: Leaf, values: Any, length: int) -> None:
        item = leaf.dtype.itemsize * int(np.prod(leaf.shape)) if leaf.dtype is not None else 4
        chunk = max(1, FRAME_CHUNK_BYTES // max(item, 1))
        for start in range(0, length, chunk):
            part = self._part(leaf, values, start, min(start + chunk, length))
            file.write(np.ascontiguousarray(part, dtype=leaf.dtype).data)

    def _part(self, leaf: Leaf, values: Any, start: int, stop: int) -> npt.NDArray[Any]:
        """Steps ``start`` to ``stop`` of a leaf as numbers, frames decoded."""
        if isinstance(values, (np.ndarray, list)):
            return self._plain(values[start:stop])
        part = decode_frames(values, start, stop)
        check_shape(leaf, part.shape[1:], f"{self.manifest.name}: episode {self.episodes}")
        return part

    def _plain(self, values: Any) -> npt.NDArray[Any]:
        """Texts as their numbers, new ones written down; arrays as they are."""
        if not isinstance(values, list):
            return np.asarray(values)
        codes = np.empty(len(values), np.int32)
        for i, text in enumerate(values):
            code = self._strings.get(text)
            if code is None:
                code = self._strings[text] = len(self._strings)
                self._files[STRINGS].write(json.dumps(text).encode() + b"\n")
            codes[i] = code
        return codes

    def skip(self, shard: str, record: int, reason: str) -> None:
        """Note a record that was left out."""
        self._skipped.append(Skipped(shard, record, reason))

    def commit(self, shard: str) -> None:
        """Make everything since the last commit permanent: the shard is done."""
        for file in self._files.values():
            file.flush()
            os.fsync(file.fileno())
        self.manifest = replace(
            self.manifest,
            shards=(*self.manifest.shards, ShardRecord(shard, self._shard_episodes, self._shard_steps)),
            strings=len(self._strings),
            file_sizes={name: self._files[name].tell() for name in (STRINGS, METADATA)},
            missing={key: tuple(episodes) for key, episodes in sorted(self._missing.items())},
            faults=dict(sorted(self._faults.items())),
            skipped=tuple(self._skipped),
        )
        self._shard_steps = self._shard_episodes = 0
        self._write_progress(self.manifest)

    def finish(self) -> Manifest:
        """Declare the dataset complete, in one step. What was not committed does not count."""
        os.replace(self.folder / PROGRESS, self.folder / MANIFEST)  # they say the same
        fsync_directory(self.folder)
        self.close()
        return self.manifest

    def close(self) -> None:
        """Close the files and let others in. What was not committed will be cut off."""
        files, self._files = self._files, {}
        try:
            with contextlib.ExitStack() as closing:  # all of them, though one may find the disk full
                for file in files.values():
                    closing.callback(file.close)
        finally:
            self._lock.release()

    def __enter__(self) -> DatasetBuilder:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def discard(folder: str | Path) -> None:
    """Remove the files of a converted dataset, complete or not, and nothing else.

    Raises:
        FileExistsError: something else is in the folder; nothing was removed.
    """
    folder = Path(folder)
    check_ours(folder)
    # The manifest first: without it, what is left is no dataset, whenever this is interrupted.
    for name in (MANIFEST, *sorted(_ours(folder) - {MANIFEST, PROGRESS, LOCK}), PROGRESS):
        (folder / name).unlink(missing_ok=True)


def check_ours(folder: Path) -> None:
    """Raise FileExistsError if a folder holds anything but a conversion."""
    ours = _ours(folder)
    strangers = {entry.name for entry in folder.iterdir()} - ours - {LOCK}
    if strangers or (ours and not is_converted(folder) and not (folder / LOCK).exists()):
        found = ", ".join(sorted(strangers or ours)[:3])
        raise FileExistsError(
            f"{folder} holds files that are not of a converted dataset ({found}): choose another folder"
        )


def _ours(folder: Path) -> set[str]:
    """Names in a folder that only a conversion makes."""
    fixed = {MANIFEST, PROGRESS, ROWS, EPISODES, STRINGS, METADATA}
    names = {entry.name for entry in folder.iterdir() if entry.is_file()}
    columns = {name for name in names if name.startswith("column-") and name.endswith(".bin")}
    return (names & fixed) | columns | _temporary(folder)


def _temporary(folder: Path) -> set[str]:
    """Names of new versions of the progress that have not replaced the old one."""
    return {path.name for path in folder.glob(f".{PROGRESS}.*.tmp")}


def claim(folder: Path) -> FolderLock:
    """Keep other conversions out of a folder, which is made if it is missing.

    Raises:
        BlockingIOError: another one is at work there.
        FileExistsError: the path is a file, or a folder that holds something else.
    """
    if folder.exists() and not folder.is_dir():
        raise FileExistsError(f"{folder} is a file: a converted dataset is a folder, choose another name")
    folder.mkdir(parents=True, exist_ok=True)
    check_ours(folder)
    return FolderLock(folder, "another conversion")
