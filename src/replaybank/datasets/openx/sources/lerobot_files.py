"""Where the files of a LeRobot dataset lie, and which of them are there."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

from replaybank.datasets.openx.sources.files import exists, join, list_names, open_binary
from replaybank.datasets.openx.sources.lerobot_episodes import EpisodeRow
from replaybank.datasets.openx.sources.lerobot_info import DATA_PATHS, VIDEO_PATHS, LeRobotInfo, file_name
from replaybank.errors import DataFormatError


class LeRobotFiles:
    """Names of data files and videos, by the templates of info.json or, where those name nothing, the usual.

    Asks once for each folder what is in it; where folders cannot be listed, every file is taken to be there.
    Not thread-safe while it is being asked.

    Args:
        folder: of the dataset.
        info: what its info.json says.
        episodes: all that are listed, by which wrong templates are found out.
        cameras: names of the video features.
    """

    def __init__(
        self, folder: str, info: LeRobotInfo, episodes: Sequence[EpisodeRow], cameras: Sequence[str]
    ) -> None:
        self.folder = folder
        self.cameras = tuple(cameras)
        self.notes: list[str] = []
        """What was declared and is not so."""
        self._info = info
        self._listed: dict[str, set[str] | None] = {}
        self._or_usual("data_path", DATA_PATHS[info.major], lambda: self._any_data(episodes))
        if cameras:
            usual = VIDEO_PATHS[info.major]
            self._or_usual("video_path", usual, lambda: self._any_video(episodes, cameras))

    def _or_usual(self, name: str, usual: str, found: Callable[[], bool]) -> None:
        """Go on with the usual template, where that names files and the declared one none."""
        declared = self._info
        template = getattr(declared, name)
        try:
            if template == usual or found():
                return
        except DataFormatError:  # no template at all
            pass
        changes: dict[str, Any] = {name: usual}
        self._info = replace(declared, **changes)
        if found():
            self.notes.append(f"{name}: info.json declares {template!r:.200}, found {usual!r}")
        else:
            self._info = declared

    def _any_data(self, episodes: Sequence[EpisodeRow]) -> bool:
        return self._any(self.data(row) for row in episodes)

    def _any_video(self, episodes: Sequence[EpisodeRow], cameras: Sequence[str]) -> bool:
        names = (self.video(row, camera) for row in episodes for camera in cameras)
        return self._any(name for name in names if name is not None)

    def _any(self, names: Iterable[str]) -> bool:
        """Whether one of the files is there; only the first is asked for where folders cannot be listed."""
        for name in names:
            listed = self._names(name.rpartition("/")[0])
            if listed is None:
                return exists(self.path(name))
            if name.rpartition("/")[2] in listed:
                return True
        return False

    def data(self, row: EpisodeRow) -> str:
        """Name of an episode's data file, within the dataset.

        Raises:
            DataFormatError: the template is wrong.
        """
        values: dict[str, int | str] = {"chunk_index": row.chunk, "file_index": row.file}
        if self._info.major == 2:
            values = {"episode_index": row.index, "episode_chunk": row.index // self._info.chunk}
        return file_name(self._info.data_path, values, self._info.where)

    def video(self, row: EpisodeRow, camera: str) -> str | None:
        """Name of the video with an episode's frames of one camera; ``None`` where it has none.

        Raises:
            DataFormatError: the template is wrong.
        """
        values: dict[str, int | str] = {"video_key": camera}
        if self._info.major == 2:
            values |= {"episode_index": row.index, "episode_chunk": row.index // self._info.chunk}
        elif camera in row.videos:
            part = row.videos[camera]
            values |= {"chunk_index": part.chunk, "file_index": part.file}
        else:
            return None
        return file_name(self._info.video_path, values, self._info.where)

    def path(self, name: str) -> str:
        """Path or URL of a file within the dataset."""
        return join(self.folder, name)

    def read_frame(self, name: str) -> bytes:
        """A frame that lies in a file of its own, within the dataset. O(bytes).

        Raises:
            DataFormatError: the name leads out of the dataset.
            OSError: the file cannot be read.
        """
        parts = name.replace("\\", "/").split("/")
        if not all(parts) or {".", ".."} & set(parts) or ":" in parts[0] or "\0" in name:
            raise DataFormatError(f"a frame's path {name!r:.200} leads out of the dataset")
        with open_binary(self.path(name)) as file:
            return file.read()

    def there(self, name: str) -> bool:
        """Whether a file within the dataset is there. O(1) after the first one of its folder."""
        parent, _, own = name.rpartition("/")
        listed = self._names(parent)
        return listed is None or own in listed

    def _names(self, parent: str) -> set[str] | None:
        """Names in a folder; ``None`` where it cannot be listed."""
        if parent not in self._listed:
            try:
                self._listed[parent] = list_names(self.path(parent) if parent else self.folder)
            except (FileNotFoundError, NotADirectoryError):
                self._listed[parent] = set()
        return self._listed[parent]
