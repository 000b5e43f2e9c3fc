"""From the rows of one episode to its steps."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from replaybank.datasets.openx.sources import lerobot_columns as columns
from replaybank.datasets.openx.sources.base import Column, Episode, FieldSpec, Key
from replaybank.datasets.openx.sources.images import EncodedImages
from replaybank.datasets.openx.sources.lerobot_episodes import EpisodeRow
from replaybank.datasets.openx.sources.lerobot_features import TASK, TIMESTAMP, terminal
from replaybank.datasets.openx.sources.lerobot_fields import RATE_TOLERANCE, StepFields
from replaybank.datasets.openx.sources.lerobot_files import LeRobotFiles
from replaybank.datasets.openx.sources.video_frames import OpenVideos, VideoFrames
from replaybank.errors import DataFormatError

DEFAULT_FPS: Final = 30.0
"""Where neither info.json nor timestamps tell."""
_ONE_NUMBER: Final = FieldSpec("tensor", (), np.dtype(np.int64))
_ONE_TIME: Final = FieldSpec("tensor", (), np.dtype(np.float64))


@dataclass(frozen=True)
class StepReader:
    """Turns tables into episodes. Holds nothing of them, so it is safe to share between threads.

    Args:
        dataset: its name, for messages.
        fields: what is read and where it goes.
        files: where the files lie.
        videos: where open videos are kept.
        tasks: texts by their numbers.
        fps: steps a second, as declared.
        whole_videos: a video holds one episode, as in version 2.
        last_in_video: episodes and cameras whose video holds no later episode.
    """

    dataset: str
    fields: StepFields
    files: LeRobotFiles
    videos: OpenVideos
    tasks: Mapping[int, str]
    fps: float | None
    whole_videos: bool
    last_in_video: frozenset[tuple[int, str]]

    def read(self, row: EpisodeRow, table: Any, path: str) -> Episode:
        """One episode. O(its numbers and encoded images); nothing of a video is decoded.

        Args:
            row: as the metadata lists it.
            table: ``pyarrow.Table`` of its rows.
            path: of the file they are from.

        Raises:
            DataFormatError: a column is not what the dataset declares; names dataset, episode and feature.
            OSError: a frame's file or a video cannot be read.
        """
        where = f"episode {row.index} ({path})"
        try:
            steps, faults = self._steps(row, table, f"{self.dataset}: {where}")
        except DataFormatError as error:
            raise type(error)(f"{self.dataset}: {where}: {error}") from error
        metadata: dict[Key, Any] = {("episode_index",): row.index, ("tasks",): list(row.tasks)}
        absent = frozenset(self.fields.fields) - frozenset(steps)
        held = sum(column.nbytes for column in steps.values() if isinstance(column, EncodedImages))
        return Episode(steps, table.num_rows, where, metadata, absent, held, faults)

    def _steps(self, row: EpisodeRow, table: Any, place: str) -> tuple[dict[Key, Column], Counter[str]]:
        faults: Counter[str] = Counter()
        length = table.num_rows
        if length != row.length:
            faults["an episode has another number of steps than the metadata lists"] += 1
        self._check_numbering(row, table, faults)
        steps: dict[Key, Column] = {}
        ends = {}
        for name, spec in self.fields.read_as.items():
            if (column := self._column(table, name, spec, place)) is None:
                continue
            if name in self.fields.keys:
                steps[self.fields.keys[name]] = column
            else:
                ends[name] = np.asarray(column)
        flags = terminal(ends, length)
        if flags is not None:
            steps.setdefault(("is_terminal",), flags[:, None])
        if self.fields.task in self.fields.fields:
            steps[self.fields.task] = self._texts(row, table, faults)
        self._add_videos(row, table, place, steps, faults)
        return steps, faults

    def _column(self, table: Any, name: str, spec: FieldSpec, place: str = "") -> Column | None:
        """A feature's values; ``None`` where the table has no such column."""
        if name not in table.column_names or table.num_rows == 0:
            return None
        try:
            column = table.column(name)
            if spec.kind == "text":
                return columns.strings(column)
            if spec.kind == "tensor" and spec.dtype is not None:
                return columns.numbers(column, spec.dtype, spec.shape)
            frames = columns.frame_bytes(column, self.files.read_frame)
            return columns.encoded_images(frames, spec, f"{place}: {name}")
        except DataFormatError as error:
            raise type(error)(f"{name}: {error}") from error
        except (KeyError, ValueError, NotImplementedError) as error:  # two columns of a name; strange types
            raise DataFormatError(f"{name} cannot be read: {error}") from error

    def _check_numbering(self, row: EpisodeRow, table: Any, faults: Counter[str]) -> None:
        """The rows must be of one episode; whether they bear the listed number is told, no more."""
        episodes = self._column(table, "episode_index", _ONE_NUMBER)
        if episodes is not None:
            found = np.unique(np.asarray(episodes))
            if len(found) > 1:
                raise DataFormatError(
                    f"its rows are of several episodes, {int(found[0])} to {int(found[-1])}: "
                    "the metadata puts its beginning or end elsewhere"
                )
            if found[0] != row.index:
                faults["episode_index is another one than listed"] += 1
        frames = self._column(table, "frame_index", _ONE_NUMBER)
        if frames is not None and not np.array_equal(np.asarray(frames), np.arange(table.num_rows)):
            faults["frame_index does not count the steps"] += 1

    def _texts(self, row: EpisodeRow, table: Any, faults: Counter[str]) -> list[str]:
        """The text of every step: by its number, else the one that the episode has."""
        only = row.tasks[0] if len(row.tasks) == 1 else ""
        found = self._column(table, TASK, _ONE_NUMBER)
        if found is None:
            return [only] * table.num_rows
        numbers = np.asarray(found).tolist()
        unknown = sum(number not in self.tasks for number in numbers)
        if unknown:
            faults["task_index without a task"] += unknown
        return [self.tasks.get(number, only) for number in numbers]

    def _add_videos(
        self, row: EpisodeRow, table: Any, place: str, steps: dict[Key, Column], faults: Counter[str]
    ) -> None:
        timing: tuple[npt.NDArray[np.float64], float] | None = None
        for camera in self.files.cameras:
            name = self.files.video(row, camera)
            if name is None:
                continue  # this episode has no such camera
            times, period = timing = timing or self._times(table, faults)
            start = row.videos[camera].start if camera in row.videos else 0.0
            frames = VideoFrames(
                self.videos,
                self.files.path(name),
                times + start,
                period,
                self.fields.read_as[camera],
                f"{place}: {camera}",
                last=self.whole_videos or (row.index, camera) in self.last_in_video,
            )
            if self.whole_videos and frames.count() > len(times):
                faults[f"{camera}: the video has more frames than there are steps"] += 1
            steps[self.fields.keys[camera]] = frames

    def _times(self, table: Any, faults: Counter[str]) -> tuple[npt.NDArray[np.float64], float]:
        """Seconds from the episode's beginning, one a step, and the period."""
        declared = 1 / (self.fps or DEFAULT_FPS)
        found = self._column(table, TIMESTAMP, _ONE_TIME)
        if found is None:
            return np.arange(table.num_rows) * declared, declared
        times = np.asarray(found)
        gaps = np.diff(times)
        bad = ~np.isfinite(times)
        bad[1:] |= gaps < 0
        if bad.any():
            step = int(np.argmax(bad))
            raise DataFormatError(f"timestamp {times[step]} of step {step} does not follow those before it")
        period = float(np.median(gaps)) if len(gaps) else declared
        if period <= 0:
            raise DataFormatError(f"most steps have the timestamp of the one before, such as {times[0]}")
        if self.fps and abs(period * self.fps - 1) > RATE_TOLERANCE:
            faults[f"timestamps are not {self.fps:g} a second, as info.json declares"] += 1
        return times, period
