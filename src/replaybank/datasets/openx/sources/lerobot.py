"""Episodes from LeRobot datasets, versions 2.0, 2.1 and 3.0: parquet, videos and embedded images.

Format: https://huggingface.co/docs/lerobot (versions 2.x: one parquet file and one video a camera and
episode; 3.0: many episodes a file, data and videos cut independently).
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any, Final

import numpy as np

from replaybank.datasets.openx.sources.base import Episode, FieldSpec, Key, Shard
from replaybank.datasets.openx.sources.files import exists, is_url, join
from replaybank.datasets.openx.sources.lerobot_episodes import (
    EpisodeRow,
    found_major,
    read_episodes,
    read_tasks,
)
from replaybank.datasets.openx.sources.lerobot_features import (
    NUMBERING,
    TASK,
    TIMESTAMP,
    declared_and_found,
    some,
)
from replaybank.datasets.openx.sources.lerobot_fields import settle_fields
from replaybank.datasets.openx.sources.lerobot_files import LeRobotFiles
from replaybank.datasets.openx.sources.lerobot_info import INFO_FILE, Feature, read_info
from replaybank.datasets.openx.sources.lerobot_steps import StepReader
from replaybank.datasets.openx.sources.parquet import open_parquet, read_rows
from replaybank.datasets.openx.sources.video import VideoInfo
from replaybank.datasets.openx.sources.video_frames import OpenVideos, VideoFrames
from replaybank.errors import DataFormatError

SHARD_STEPS: Final = 4096
"""Steps that make a shard, the unit of work and of resuming: a few seconds of decoding a camera."""
NUMBERS_SHARD_STEPS: Final = 32 * SHARD_STEPS
"""The same without cameras: a group of rows is decoded from its beginning for each shard that is in it."""


def is_lerobot(path: str | os.PathLike[str]) -> bool:
    """Whether ``path`` is the folder of a LeRobot dataset, of whatever version.

    >>> is_lerobot("/nowhere")
    False
    """
    return exists(join(os.fspath(path), INFO_FILE))


class NoDataError(FileNotFoundError):
    """A LeRobot dataset has metadata, and none of the files with its episodes is there.

    Args:
        path: of the dataset.
        missing: which files.
    """

    def __init__(self, path: str, missing: str) -> None:
        super().__init__(f"{path}: {missing}; none is there")
        self.path = path
        self.missing = missing

    def __reduce__(self) -> tuple[type[NoDataError], tuple[str, str]]:
        return type(self), (self.path, self.missing)


class LeRobotSource:
    """A LeRobot dataset of version 2.0, 2.1 or 3.0, local or at any URL that fsspec knows.

    A feature's name, split at its dots, is where it goes: ``observation.images.top`` is
    ``("observation", "images", "top")``; ``next.reward`` and ``next.done`` become ``reward`` and
    ``is_terminal``, as RLDS has them. ``("task",)`` is the text of each step's ``task_index``. The file's own
    numbers (``episode_index``, ``frame_index``, ``index``) are checked and left out of the steps; the
    episode's is in its metadata.

    Where an episode begins and ends, its metadata says. A frame is the one whose presentation time is nearest
    to the step's timestamp, half a frame period away at most.

    Pickles to workers without its open videos. Thread-safe: every call of :meth:`episodes` has a state of its
    own, and open videos are handed from one to the other.

    Args:
        path: the folder with meta/info.json.
        split: name of the split to read; ``"train"`` is everything where none is declared.
        allow_missing: read the episodes whose files are all there when others are missing.
        exclude: features to leave out, such as cameras that are not wanted.
        video_threads: of each video decoder; 0: as many as there are cores.

    Raises:
        FileNotFoundError: there is no dataset at ``path``, or files are missing; the message names them.
        ValueError: there is no such split or feature; the message names those there are.
        UnsupportedFeatureError: the dataset is of another version.
        DataFormatError: a file of the metadata is not what it should be.

    Example:
        >>> import json, pathlib, tempfile
        >>> import pyarrow as pa
        >>> import pyarrow.parquet as pq
        >>> folder = tempfile.TemporaryDirectory()
        >>> path = pathlib.Path(folder.name, "push")
        >>> for part in ("meta", "data/chunk-000"):
        ...     (path / part).mkdir(parents=True)
        >>> features = {name: {"dtype": "float32", "shape": [2]} for name in ("observation.state", "action")}
        >>> info = {"codebase_version": "v2.1", "fps": 10, "features": features}
        >>> _ = (path / "meta/info.json").write_text(json.dumps(info))
        >>> one = {"episode_index": 0, "length": 3, "tasks": ["push"]}
        >>> _ = (path / "meta/episodes.jsonl").write_text(json.dumps(one))
        >>> table = pa.table({name: [[0.0, 0.1]] * 3 for name in features})
        >>> pq.write_table(table, path / "data/chunk-000/episode_000000.parquet")
        >>> source = LeRobotSource(path)
        >>> episode = next(source.episodes(source.shards()[0]))
        >>> episode.steps["observation", "state"].shape, episode.steps["task",]
        ((3, 2), ['push', 'push', 'push'])
        >>> source.notes
        ('observation.state: info.json declares dtype float32, found float64',
         'action: info.json declares dtype float32, found float64')
        >>> folder.cleanup()
    """

    form: Final = "LeRobot"
    """How people call what it reads."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        split: str = "train",
        *,
        allow_missing: bool = False,
        exclude: Collection[str] = (),
        video_threads: int = 0,
    ) -> None:
        folder = os.fspath(path)
        if not is_lerobot(folder):
            raise FileNotFoundError(f"no LeRobot dataset at {folder}: there is no {INFO_FILE}")
        info = read_info(folder)
        self.path: str = folder
        """Folder of the files."""
        self.name: str = _name_of(folder)
        self.version: str = info.version
        self.split: str = split
        self.fps: float | None = info.fps
        """Steps a second, as declared."""
        self._info = info
        self._features = _chosen(info.features, exclude, info.where)
        cameras = tuple(f.name for f in self._features if f.dtype == "video")
        major = found_major(folder, info.major)
        listed = read_episodes(folder, major, cameras)
        tasks = read_tasks(folder, major)
        notes = []
        if major != info.major:
            notes.append(
                declared_and_found("codebase_version", "", info.version, f"the files of version {major}")
            )
            info = self._info = replace(info, major=major)
        self._files = LeRobotFiles(folder, info, listed, cameras)
        self._bases = _first_rows(listed)
        self._notes = [*notes, *self._files.notes, *_about_counts(info.episodes, info.frames, listed)]
        self._notes += _about_videos(listed, info.fps)
        self.splits: Mapping[str, int | None] = _splits(info.splits, listed)
        """Every declared split and its number of episodes."""
        rows = self._chosen_rows(listed, split)
        self._rows, self.missing = self._present(rows, split, allow_missing)
        seen = any(feature.dtype in ("video", "image") for feature in self._features)
        self._groups = _shards(self._rows, info.major, SHARD_STEPS if seen else NUMBERS_SHARD_STEPS)
        videos = OpenVideos(video_threads)
        fields = settle_fields(
            info,
            self._features,
            self._first_step(),
            tasks=bool(tasks) or any(row.tasks for row in self._rows),
            video_info=lambda camera: self._video_info(camera, videos),
            read_frame=self._files.read_frame,
        )
        self._notes += fields.notes
        self._texts = [name for name, spec in fields.read_as.items() if spec.kind == "text"]
        self._reader = StepReader(
            self.name,
            fields,
            self._files,
            videos,
            tasks,
            info.fps,
            info.major == 2,
            frozenset(_last_in_video(self._rows)),
        )
        self.fields: Mapping[Key, FieldSpec] = fields.fields
        self.metadata_fields: Mapping[Key, FieldSpec] = {
            ("episode_index",): FieldSpec("tensor", (), np.dtype(np.int64)),
            ("tasks",): FieldSpec("text", (-1,), None),
        }
        """Fields of the whole episode."""
        self.names: Mapping[Key, tuple[str, ...]] = {
            fields.keys[f.name]: f.names for f in self._features if f.names and f.name in fields.keys
        }
        """Names of the entries of fields, such as the joints of a state, as declared."""

    begins_anywhere = True
    """Where an episode lies is known without reading those before it."""
    missing: Sequence[int]
    """Numbers of the split's episodes whose files are not there."""

    @property
    def episode_numbers(self) -> tuple[int, ...]:
        """The ``episode_index`` of each episode, in the order of the shards."""
        return tuple(row.index for rows in self._groups for row in rows)

    @property
    def notes(self) -> tuple[str, ...]:
        """What the metadata declares and the files do not bear out."""
        return tuple(self._notes)

    def _chosen_rows(self, listed: Sequence[EpisodeRow], split: str) -> list[EpisodeRow]:
        if split not in self.splits:
            raise ValueError(f"{self.path} has no split {split!r}; it has {sorted(self.splits)}")
        ranges = (self._info.splits or {}).get(split)
        if ranges is None:
            chosen = list(listed)
        else:
            chosen = [row for row in listed if any(a <= row.index < b for a, b in ranges)]
            wanted = sum(max(0, b - a) for a, b in ranges)
            if len(chosen) != wanted:
                self._notes.append(
                    declared_and_found(f"split {split!r}", "episodes", wanted, f"{len(chosen)} listed")
                )
        empty = [str(row.index) for row in chosen if not row.length]
        if empty:
            self._notes.append(f"episodes without steps are left out: {some(empty)}")
        return [row for row in chosen if row.length]

    def _present(
        self, rows: Sequence[EpisodeRow], split: str, allow_missing: bool
    ) -> tuple[list[EpisodeRow], tuple[int, ...]]:
        """The episodes whose files are all there, and the numbers of the others."""
        present, missing, absent = [], [], []
        for row in rows:
            names = [self._files.data(row)]
            names += [name for c in self._files.cameras if (name := self._files.video(row, c)) is not None]
            lacking = [name for name in names if not self._files.there(name)]
            if lacking:
                missing.append(row.index)
                absent.extend(lacking)
            else:
                present.append(row)
        if missing:
            files = list(dict.fromkeys(absent))
            text = (
                f"{len(missing)} of {len(rows)} episodes of split {split!r} are missing "
                f"(numbers {_ranges(missing)}): there is no {some(files, 3)}"
            )
            if not present:
                raise NoDataError(self.path, text)
            if not allow_missing:
                raise FileNotFoundError(
                    f"{self.path}: {text}; pass allow_missing=True (--allow-missing) to read the "
                    f"{len(present)} that are there"
                )
            self._notes.append(text)
        return present, tuple(missing)

    def _first_step(self) -> Any:
        """The first row of the first episode, or nothing where it cannot be read: then reading says why."""
        if not self._rows:
            return None
        row = self._rows[0]
        try:
            start, _ = self._range(row)
            path = self._files.path(self._files.data(row))
            return next(read_rows(path, [(start, start + 1)], None), None)
        except (DataFormatError, OSError):
            return None

    def _video_info(self, camera: str, videos: OpenVideos) -> VideoInfo | None:
        """What the first video of a camera says of itself, or nothing where it cannot be read."""
        names = (self._files.video(row, camera) for row in self._rows)
        name = next((name for name in names if name is not None), None)
        if name is None:
            return None
        unknown = FieldSpec("image", (-1, -1, -1), None)
        try:
            return VideoFrames(videos, self._files.path(name), np.zeros(1), 1.0, unknown, name).info()
        except (DataFormatError, OSError):
            return None

    def shards(self) -> Sequence[Shard]:
        """Runs of episodes, in order: those of one data file, or of a folder of small files."""
        return [
            Shard(
                number,
                self._files.path(self._files.data(rows[0])),
                len(rows),
                sum(row.length for row in rows),
            )
            for number, rows in enumerate(self._groups)
        ]

    def episodes(self, shard: Shard, start: int = 0) -> Iterator[Episode]:
        """Episodes of one shard, from its ``start``-th on, in the order of their numbers.

        Of the data file only the groups of rows that are needed are read; frames are decoded when asked for.

        Args:
            shard: one of :meth:`shards`.
            start: how many of its episodes to pass over.

        Raises:
            DataFormatError: a file is damaged, or is not what the metadata says.
            IndexError: the shard has fewer than ``start`` episodes.
            OSError: a file cannot be read.
        """
        rows = self._groups[shard.number]
        if not 0 <= start <= len(rows):
            raise IndexError(f"{shard.path}: the shard has {len(rows)} episodes, it cannot start at {start}")
        wanted = [f.name for f in self._features if f.dtype != "video"]
        wanted += [name for name in (*NUMBERING, TASK, TIMESTAMP) if name not in wanted]
        for path, some_rows in self._by_file(rows[start:]):
            ranges = [self._range(row, path) for row in some_rows]
            for row, table in zip(some_rows, read_rows(path, ranges, wanted, self._texts), strict=True):
                yield self._reader.read(row, table, path)

    def _by_file(self, rows: Sequence[EpisodeRow]) -> Iterator[tuple[str, list[EpisodeRow]]]:
        """Runs of episodes whose rows lie in one data file, one behind the other."""
        run: list[EpisodeRow] = []
        path = ""
        for row in rows:
            own = self._files.path(self._files.data(row))
            if run and (own != path or self._range(row)[0] < self._range(run[-1])[1]):
                yield path, run
                run = []
            run.append(row)
            path = own
        if run:
            yield path, run

    def _range(self, row: EpisodeRow, path: str | None = None) -> tuple[int, int]:
        """The rows of an episode in its data file; of version 2, all that ``path`` has."""
        if self._info.major == 2:
            if path is None:
                return 0, row.length
            with open_parquet(path) as file:
                rows = int(file.metadata.num_rows)
            if rows < 1:
                raise DataFormatError(
                    f"{self.name}: episode {row.index} ({path}) has no steps, {row.length} are listed"
                )
            return 0, rows
        base, starts = self._bases[(row.chunk, row.file)]
        first = row.start - base if row.start >= 0 else starts[row.index]
        return first, first + row.length

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.path!r}, split={self.split!r})"


def _name_of(folder: str) -> str:
    """The last part of a path; of the hub's addresses, which end in a revision, that of the repository."""
    path = folder if is_url(folder) else os.path.abspath(folder)
    parts = path.replace(os.sep, "/").rstrip("/").split("/")
    return parts[-3] if is_url(folder) and len(parts) > 3 and parts[-2] == "resolve" else parts[-1]


def _chosen(features: Sequence[Feature], exclude: Collection[str], where: str) -> list[Feature]:
    names = [feature.name for feature in features]
    unknown = sorted(set(exclude) - set(names))
    if unknown:
        raise ValueError(f"{where} declares no feature {unknown[0]!r} to exclude; it has {names}")
    return [feature for feature in features if feature.name not in exclude]


def _splits(
    declared: Mapping[str, Sequence[tuple[int, int]]] | None, listed: Sequence[EpisodeRow]
) -> dict[str, int | None]:
    if declared is None:
        return {"train": len(listed)}
    return {name: sum(max(0, b - a) for a, b in ranges) for name, ranges in declared.items()}


def _about_counts(episodes: int | None, frames: int | None, listed: Sequence[EpisodeRow]) -> Iterator[str]:
    steps = sum(row.length for row in listed)
    for name, declared, found in (("total_episodes", episodes, len(listed)), ("total_frames", frames, steps)):
        if declared not in (None, found):
            yield f"{name}: info.json declares {declared}, found {found} listed"


def _about_videos(listed: Sequence[EpisodeRow], fps: float | None) -> Iterator[str]:
    """Episodes whose frames begin before those of the episode before them end."""
    parts: dict[tuple[str, int, int], list[tuple[float, EpisodeRow]]] = defaultdict(list)
    for row in listed:
        for camera, part in row.videos.items():
            parts[(camera, part.chunk, part.file)].append((part.start, row))
    overlapping = [
        str(two.index)
        for found in parts.values()
        for (start, one), (after, two) in pairwise(
            sorted(found, key=lambda entry: (entry[0], entry[1].index))
        )
        if fps and after < start + (one.length - 0.5) / fps
    ]
    if overlapping:
        yield f"from_timestamp lies within the episode before: episodes {some(overlapping)}"


def _first_rows(listed: Sequence[EpisodeRow]) -> dict[tuple[int, int], tuple[int, dict[int, int]]]:
    """Of each data file of version 3 the number of its first step, and where its episodes begin by lengths.

    The latter is for episodes whose steps have no numbers listed.
    """
    files: dict[tuple[int, int], list[EpisodeRow]] = defaultdict(list)
    for row in listed:
        files[(row.chunk, row.file)].append(row)
    found = {}
    for key, rows in files.items():
        base = min((row.start for row in rows if row.start >= 0), default=0)
        starts, at = {}, 0
        for row in rows:
            starts[row.index] = at
            at += row.length
        found[key] = (base, starts)
    return found


def _last_in_video(rows: Sequence[EpisodeRow]) -> set[tuple[int, str]]:
    """Episodes and cameras whose video holds no later episode."""
    last: dict[tuple[str, int, int], tuple[float, int]] = {}
    for row in rows:
        for camera, part in row.videos.items():
            key = (camera, part.chunk, part.file)
            last[key] = max(last.get(key, (-1.0, -1)), (part.start, row.index))
    return {(index, camera) for (camera, _, _), (_, index) in last.items()}


def _shards(rows: Sequence[EpisodeRow], major: int, most: int) -> list[list[EpisodeRow]]:
    """Runs of episodes of ``most`` steps at most, or of one, of version 3 within one data file."""
    groups: list[list[EpisodeRow]] = []
    if major == 3:
        rows = sorted(rows, key=lambda row: (row.chunk, row.file, row.start, row.index))
    steps = 0
    for row in rows:
        same = groups and (major == 2 or (row.chunk, row.file) == (groups[-1][0].chunk, groups[-1][0].file))
        if not same or steps + row.length > most:
            groups.append([])
            steps = 0
        groups[-1].append(row)
        steps += row.length
    return groups


def _ranges(numbers: Sequence[int], shown: int = 6) -> str:
    """Ascending numbers as runs: ``0-9, 11, 13-20``."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return some([str(a) if a == b else f"{a}-{b}" for a, b in runs], shown)
