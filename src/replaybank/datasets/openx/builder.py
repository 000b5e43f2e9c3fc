"""Writes a converted dataset: episode by episode, made permanent shard by shard."""

from __future__ import annotations

import errno
import json
import os
import struct
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt

from replaybank.checkpoint import fsync_directory, write_json_atomically
from replaybank.datasets.openx.files import (
    ANEW,
    CHECKSUMS,
    EPISODES,
    MANIFEST,
    METADATA,
    NAMES,
    PROGRESS,
    ROWS,
    STRINGS,
    VERSION,
    Manifest,
    ShardRecord,
    Skipped,
    column_name,
    ends_name,
    frames_name,
    is_converted,
    read_progress,
    read_strings,
)
from replaybank.datasets.openx.folder import claim, discard, temporary
from replaybank.datasets.openx.frames import Content, FrameColumn, decoded, extend_crc32c
from replaybank.datasets.openx.growing import GrowingFiles
from replaybank.datasets.openx.kept_frames import KeptFrames, kept_frames
from replaybank.datasets.openx.packing import RowPacker
from replaybank.datasets.openx.ted import Leaf, TedEpisode
from replaybank.storages.layout import Key

_LINE = json.JSONEncoder(ensure_ascii=True, sort_keys=True)
_BOUNDS = struct.Struct("<qq")
"""First step and length of an episode."""


@dataclass(frozen=True)
class Mark:
    """Where a builder stands between two episodes.

    Args:
        episodes: episodes so far, in all.
        steps: steps so far, in all.
        sizes: bytes so far of each file that holds them.
        strings: distinct texts so far.
        missing: for each leaf, how many episodes lack it.
        faults: what was put right.
        skipped: records left out so far.
        checksums: CRC-32C so far of the files that hold no steps.
    """

    episodes: int
    steps: int
    sizes: Mapping[str, int]
    strings: int
    missing: Mapping[Key, int]
    faults: Mapping[str, int]
    skipped: int
    checksums: Mapping[str, int]


@dataclass
class Begun:
    """An episode that has been begun: all of it is written but the frames of some cameras.

    Args:
        before: where the builder stood.
        frames: cameras whose frames are still to be decoded and written, in any thread.
        checksums: CRC-32C of what the episode has in the other files that hold steps.
    """

    before: Mark
    frames: Sequence[FrameColumn]
    checksums: dict[str, int]


class DatasetBuilder:
    """Appends episodes to the files of a converted dataset.

    What :meth:`commit` (or :meth:`end_shard`, then :meth:`save`) has returned from is on the disk and counted
    in ``progress.json``; killed at any instant, the next builder of the same conversion cuts the files back
    to that and goes on. The manifest, which makes the dataset usable, is written by :meth:`finish` only. One
    builder a folder at a time: a second one is refused while the first lives.

    :meth:`add` writes an episode whole. To have frames decoded elsewhere meanwhile, :meth:`begin` an episode,
    and :meth:`settle` it once its frames are written; several may be under way, and are settled in order.
    Not thread-safe.

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
        self._files = GrowingFiles(self.folder)
        self._saved: Manifest | None = None
        try:
            self.manifest = self._begin(manifest, overwrite)
            self._open_files()
        except BaseException:
            self.close()
            raise

    def _begin(self, manifest: Manifest, overwrite: bool) -> Manifest:
        for name in temporary(self.folder):  # of a replacing that was interrupted
            (self.folder / name).unlink()
        if overwrite or not is_converted(self.folder):
            discard(self.folder)  # also what is left of a discarding that was interrupted
        elif (self.folder / MANIFEST).exists():
            raise FileExistsError(
                f"{self.folder} holds a converted dataset already; overwrite=True replaces it"
            )
        if (self.folder / PROGRESS).exists():
            progress = read_progress(self.folder)
            if progress.version != VERSION:
                raise FileExistsError(
                    f"{self.folder} holds a conversion that an earlier release did not finish; {ANEW}"
                )
            if not progress.same_conversion(manifest):
                raise FileExistsError(
                    f"{self.folder} holds an unfinished conversion of {progress.name!r} ({progress.split}), "
                    f"which is another than this one of {manifest.name!r} ({manifest.split}): choose another "
                    f"folder; {ANEW}"
                )
            # One that an earlier release began does not tell names.
            return replace(progress, **{name: getattr(manifest, name) for name in NAMES})
        self._write_progress(manifest)
        return manifest

    def _write_progress(self, manifest: Manifest) -> None:
        write_json_atomically(self.folder / PROGRESS, manifest.to_json())
        self._saved = manifest

    def _open_files(self) -> None:
        manifest = self.manifest
        for name, size in manifest.sizes().items():
            self._files.open(name, size)
        strings = read_strings(self.folder, manifest)
        self._strings: dict[str, int] = {text: number for number, text in enumerate(strings)}
        layout = manifest.layout
        self._parts = [
            (spec, self.leaves[spec.key], offset is not None)
            for spec, offset in zip(layout.leaves, layout.offsets, strict=True)
        ]
        self._data_files = manifest.data_files
        self._crcs = struct.Struct(f"<{len(self._data_files)}I")
        self._packer = RowPacker(layout) if layout.row_bytes else None
        self._episodes, self._steps = manifest.episodes, manifest.steps
        self._settled = manifest.episodes
        self._missing = {key: list(episodes) for key, episodes in manifest.missing.items()}
        self._faults = Counter(manifest.faults)
        self._skipped = list(manifest.skipped)
        self._checksums = dict(manifest.checksums)

    @property
    def episodes(self) -> int:
        """Episodes so far: the number of the next one."""
        return self._episodes

    @property
    def steps(self) -> int:
        """Steps so far."""
        return self._steps

    def mark(self) -> Mark:
        """Where the builder stands. O(files + leaves that some episode lacks)."""
        return Mark(
            episodes=self._episodes,
            steps=self._steps,
            sizes=dict(self._files.sizes),
            strings=len(self._strings),
            missing={key: len(episodes) for key, episodes in self._missing.items()},
            faults=dict(self._faults),
            skipped=len(self._skipped),
            checksums=dict(self._checksums),
        )

    # --- writing ---------------------------------------------------------------------------------------

    def add(self, episode: TedEpisode, metadata: Mapping[str, Any]) -> None:
        """Append an episode. If it fails, the files are as they were. O(bytes of the episode).

        Args:
            episode: in TED layout, with the leaves of this dataset.
            metadata: plain values for ``metadata.jsonl``.

        Raises:
            DataFormatError: a frame cannot be decoded or has another shape than the dataset.
        """
        begun = self.begin(episode, metadata)
        try:
            self.settle(begun, [column.write() for column in begun.frames])
        except BaseException:
            self.go_back(begun.before)
            raise

    def begin(self, episode: TedEpisode, metadata: Mapping[str, Any]) -> Begun:
        """Append an episode but for the frames that lie in columns. If it fails, the files are as they were.

        Args:
            episode: in TED layout, with the leaves of this dataset.
            metadata: plain values for ``metadata.jsonl``.

        Returns:
            What is left to do: each of its ``frames`` is to be written, and then the episode settled.

        Raises:
            DataFormatError: a frame that lies in a row cannot be decoded or has another shape than the
                dataset; a frame that is kept encoded says that it has.
        """
        begun = Begun(self.mark(), [], {})
        try:
            begun.frames = self._write(episode, metadata, begun.checksums)
        except BaseException:
            self.go_back(begun.before)
            raise
        for key in episode.missing:
            self._missing.setdefault(key, []).append(self._episodes)
        if episode.faults:
            self._faults.update(episode.faults)
        self._steps += episode.length
        self._episodes += 1
        return begun

    def settle(self, begun: Begun, checksums: Sequence[int]) -> None:
        """Note that an episode is whole: the oldest of those begun.

        Args:
            begun: from :meth:`begin`.
            checksums: what writing each of its ``frames`` gave.
        """
        if begun.before.episodes != self._settled:
            raise RuntimeError(f"episode {self._settled} is to be settled before {begun.before.episodes}")
        found = dict(begun.checksums)
        found.update((column.name, crc) for column, crc in zip(begun.frames, checksums, strict=True))
        for column in begun.frames:
            self._files.written(column.name, column.end)
        self._note(CHECKSUMS, self._crcs.pack(*map(found.get, self._data_files)))
        self._settled += 1

    def go_back(self, mark: Mark) -> None:
        """Cut off everything behind a mark; nobody is writing frames any more."""
        for name, size in mark.sizes.items():
            if name != CHECKSUMS:  # only what is settled is in it
                self._files.cut(name, size)
        while len(self._strings) > mark.strings:
            self._strings.popitem()
        self._missing = {key: self._missing[key][:count] for key, count in mark.missing.items()}
        self._faults = Counter(mark.faults)
        del self._skipped[mark.skipped :]
        self._checksums = {**mark.checksums, CHECKSUMS: self._checksums.get(CHECKSUMS, 0)}
        self._episodes, self._steps = mark.episodes, mark.steps

    def _append(self, name: str, content: Content, before: int = 0) -> int:
        """Put at the end of a file; the checksum of the content, and of what ``before`` is of before it."""
        if isinstance(content, np.ndarray):
            content = content.reshape(-1).view(np.uint8)
        self._files.append(name, content)
        return extend_crc32c(before, content)

    def _note(self, name: str, content: bytes) -> None:
        """Put at the end of a file that has one checksum in all, and not one for each episode."""
        self._files.append(name, content)
        self._checksums[name] = extend_crc32c(self._checksums.get(name, 0), content)

    def _write(
        self, episode: TedEpisode, metadata: Mapping[str, Any], checksums: dict[str, int]
    ) -> list[FrameColumn]:
        length = episode.length
        where = f"{self.manifest.name}: episode {self._episodes}"
        rows: list[npt.NDArray[Any]] = []
        frames: list[FrameColumn] = []
        columns = 0
        for spec, leaf, in_row in self._parts:
            values = episode.columns[spec.key]
            if in_row:
                if isinstance(values, list):
                    rows.append(self._codes(values))
                else:
                    rows.append(decoded(leaf, values, length, where))
                continue
            name = column_name(columns)
            columns += 1
            if isinstance(values, list):
                checksums[name] = self._append(name, self._codes(values))
                continue
            place = self._files.claim(name, length * spec.bytes)
            file = self._files.descriptor(name)
            frames.append(FrameColumn(name, file, place, leaf, values, length, where))
        if self._packer is not None:
            checksums[ROWS] = self._append(ROWS, self._packer.pack(rows, length))
        for number, spec in enumerate(self.manifest.encoded):
            self._write_encoded(number, self.leaves[spec.key], episode.columns[spec.key], where, checksums)
        self._note(EPISODES, _BOUNDS.pack(self._steps, length))
        self._note(METADATA, _LINE.encode(metadata).encode() + b"\n")
        return frames

    def _write_encoded(
        self, number: int, leaf: Leaf, values: Any, where: str, checksums: dict[str, int]
    ) -> None:
        """Frames as they are stored, some at a time; absent ones, which are zeros, as none."""
        name, ends = frames_name(number), ends_name(number)
        checksums[name] = checksums[ends] = 0
        if isinstance(values, np.ndarray):
            parts: Iterable[KeptFrames] = [KeptFrames(np.zeros(len(values), np.int64), b"")]
        else:
            parts = kept_frames(values, leaf, where)
        for sizes, content in parts:
            places = (self._files.sizes[name] + sizes.cumsum()).astype("<i8")
            checksums[ends] = self._append(ends, places, checksums[ends])
            checksums[name] = self._append(name, content, checksums[name])

    def _codes(self, texts: Sequence[str]) -> npt.NDArray[np.int32]:
        """Texts as their numbers, new ones written down."""
        known = len(self._strings)
        if texts.count(texts[0]) == len(texts):  # one text for all steps, as most episodes have
            codes = np.empty(len(texts), np.int32)
            codes.fill(self._strings.setdefault(texts[0], known))
        else:
            codes = np.array([self._strings.setdefault(text, len(self._strings)) for text in texts], np.int32)
        if len(self._strings) > known:
            new = reversed(list(islice(reversed(self._strings), len(self._strings) - known)))
            self._note(STRINGS, "".join(json.dumps(text) + "\n" for text in new).encode())
        return codes

    def skip(self, shard: str, record: int, reason: str) -> None:
        """Note a record that was left out."""
        self._skipped.append(Skipped(shard, record, reason))

    # --- making permanent ------------------------------------------------------------------------------

    def commit(self, shard: str) -> None:
        """Make everything since the last commit permanent: the shard is done.

        Args:
            shard: its name.
        """
        self.end_shard(shard, self.mark())
        self.save()

    def save(self) -> None:
        """Make the shards that have ended permanent."""
        if self._saved is self.manifest:
            return
        self._files.sync()
        self._write_progress(self.manifest)

    def end_shard(self, shard: str, at: Mark) -> None:
        """Note that a shard is done; it counts once it is saved.

        Args:
            shard: its name.
            at: where it ended: all episodes before are settled, none behind; more may have been begun since.
        """
        if at.episodes != self._settled:
            raise RuntimeError(f"{at.episodes} episodes are to be there, {self._settled} are settled")
        done = self.manifest
        record = ShardRecord(shard, at.episodes - done.episodes, at.steps - done.steps)
        missing = {key: tuple(self._missing[key][:count]) for key, count in at.missing.items()}
        self.manifest = replace(
            done,
            shards=(*done.shards, record),
            strings=at.strings,
            file_sizes={name: at.sizes[name] for name in done.file_sizes},
            missing={key: episodes for key, episodes in sorted(missing.items()) if episodes},
            faults=dict(sorted(at.faults.items())),
            skipped=tuple(self._skipped[: at.skipped]),
            checksums=dict(sorted({**at.checksums, CHECKSUMS: self._checksums.get(CHECKSUMS, 0)}.items())),
        )

    def finish(self) -> Manifest:
        """Declare the dataset complete, in one step. What was not committed does not count."""
        if self._saved is not self.manifest:
            self.save()
        self._files.trim(self.manifest.sizes())
        os.replace(self.folder / PROGRESS, self.folder / MANIFEST)  # they say the same
        fsync_directory(self.folder)
        self.close()
        return self.manifest

    def close(self) -> None:
        """Close the files and let others in. What was not committed will be cut off."""
        try:
            self._files.close()
        finally:
            self._lock.release()

    def __enter__(self) -> DatasetBuilder:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
        if isinstance(error, OSError) and error.errno == errno.ENOSPC and error.filename is None:
            raise OSError(
                errno.ENOSPC,
                "the disk is full; once there is room, the same call goes on where it stopped",
                os.fspath(self.folder),
            ) from error
