"""The episodes and tasks of a LeRobot dataset, as its meta folder lists them."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count, pairwise, takewhile
from typing import Any, Final

from replaybank.datasets.openx.sources.files import exists, join, list_names, open_binary
from replaybank.datasets.openx.sources.parquet import open_parquet, row_batches
from replaybank.errors import DataFormatError

EPISODES_LINES: Final = "meta/episodes.jsonl"
EPISODES_FOLDER: Final = "meta/episodes"
TASKS_LINES: Final = "meta/tasks.jsonl"
TASKS_TABLE: Final = "meta/tasks.parquet"
MAX_LINE_BYTES: Final = 1 << 20
MAX_INDEX: Final = 1 << 40
"""More episodes, files or steps than there will be; keeps sums of them within 64 bits."""


@dataclass(frozen=True)
class VideoPart:
    """Where the frames of one camera and episode lie in version 3.

    Args:
        chunk: folder of the video.
        file: its number there.
        start: seconds from the video's beginning to the episode's.
    """

    chunk: int
    file: int
    start: float


@dataclass(frozen=True)
class EpisodeRow:
    """One episode as listed.

    Args:
        index: its number.
        length: steps declared.
        tasks: what was to be done, mostly one text.
        chunk: folder of its data file; in version 2 unused.
        file: number of its data file; in version 2 unused.
        start: number of its first step in the dataset; -1 where it is not listed.
        videos: where its frames lie, by camera; empty in version 2.
    """

    index: int
    length: int
    tasks: tuple[str, ...]
    chunk: int = 0
    file: int = 0
    start: int = -1
    videos: Mapping[str, VideoPart] = field(default_factory=dict)


def found_major(folder: str, declared: int) -> int:
    """The version whose list of episodes is there, whatever is declared."""
    lines = exists(join(folder, EPISODES_LINES))
    if declared == 2 and not lines:
        tables = next(_tables(folder), None) is not None
        return 3 if tables else 2
    if declared == 3 and lines:
        return 3 if next(_tables(folder), None) is not None else 2
    return declared


def read_episodes(folder: str, major: int, cameras: Sequence[str]) -> list[EpisodeRow]:
    """All episodes, by number. O(episodes).

    Args:
        folder: of the dataset.
        major: version, 2 or 3.
        cameras: names of the video features.

    Raises:
        FileNotFoundError: the list is missing.
        DataFormatError: it is not what it should be.
    """
    found = _from_lines(folder) if major == 2 else _from_tables(folder, cameras)
    rows = sorted(found, key=lambda row: row.index)
    for one, two in pairwise(rows):
        if one.index == two.index:
            raise DataFormatError(f"{folder}: episode {one.index} is listed twice")
    return rows


def _from_lines(folder: str) -> Iterator[EpisodeRow]:
    where = join(folder, EPISODES_LINES)
    texts: dict[str, str] = {}
    for number, raw in read_lines(where):
        place = f"{where}, line {number}"
        yield EpisodeRow(
            _index(raw.get("episode_index"), place, "episode_index"),
            _index(raw.get("length"), place, "length"),
            _tasks(raw.get("tasks"), texts),
        )


def read_lines(where: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """The objects of a JSON lines file, with their line numbers from 1; one line is in memory at a time.

    Raises:
        DataFormatError: a line is no object; names file and line.
    """
    with open_binary(where) as file:
        for number in count(1):
            line = file.readline(MAX_LINE_BYTES + 1)
            if not line:
                return
            if not line.strip():
                continue
            try:
                if len(line) > MAX_LINE_BYTES:
                    raise ValueError(f"longer than {MAX_LINE_BYTES} bytes")
                value = json.loads(line)
                if not isinstance(value, dict):
                    raise ValueError("not an object")  # noqa: TRY004  (told below, with the others)
            except (ValueError, RecursionError) as error:
                raise DataFormatError(f"{where}, line {number} is no JSON object: {error}") from error
            yield number, value


def _from_tables(folder: str, cameras: Sequence[str]) -> Iterator[EpisodeRow]:
    texts: dict[str, str] = {}
    plain = ["episode_index", "length", "tasks", "data/chunk_index", "data/file_index"]
    plain += ["dataset_from_index", "dataset_to_index"]
    parts = [f"videos/{c}/{n}" for c in cameras for n in ("chunk_index", "file_index", "from_timestamp")]
    tables = list(_tables(folder))
    if not tables:
        raise FileNotFoundError(f"{folder} lists no episodes: there is no Parquet file in {EPISODES_FOLDER}")
    for path in tables:
        with open_parquet(path) as file:
            for batch in row_batches(file, path, [*plain, *parts]):
                for number, raw in enumerate(batch):
                    yield _row(raw, cameras, f"{path}, row {number}", texts)


def _tables(folder: str) -> Iterator[str]:
    """The files of the list, in order; where they cannot be listed, one after the other is asked for."""
    top = join(folder, EPISODES_FOLDER)
    chunks = _names(top)
    if chunks is None:
        for chunk in count():
            paths = (join(top, f"chunk-{chunk:03d}/file-{number:03d}.parquet") for number in count())
            there = list(takewhile(exists, paths))
            if not there:
                return
            yield from there
        return
    for name in sorted(chunks):
        if name.endswith(".parquet"):
            yield join(top, name)
        else:
            inner = _names(join(top, name)) or set()
            yield from (join(join(top, name), own) for own in sorted(inner) if own.endswith(".parquet"))


def _names(folder: str) -> set[str] | None:
    try:
        return list_names(folder)
    except (FileNotFoundError, NotADirectoryError):
        return set()


def _row(raw: Mapping[str, Any], cameras: Sequence[str], place: str, texts: dict[str, str]) -> EpisodeRow:
    index = _index(raw.get("episode_index"), place, "episode_index")
    place = f"{place} (episode {index})"
    start, stop, length = (raw.get(n) for n in ("dataset_from_index", "dataset_to_index", "length"))
    first = -1 if start is None else _index(start, place, "dataset_from_index")
    if length is None and first >= 0:
        length = _index(stop, place, "dataset_to_index") - first
    steps = _index(length, place, "length")
    if first >= 0 and stop is not None and stop != first + steps:
        raise DataFormatError(
            f"{place}: its length is {steps}, its steps are numbered {start} to {stop}: "
            f"{stop - first if isinstance(stop, int) else stop!r:.80} steps"
        )
    videos = {}
    for camera in cameras:
        chunk, file, at = (
            raw.get(f"videos/{camera}/{name}") for name in ("chunk_index", "file_index", "from_timestamp")
        )
        if chunk is None and file is None:
            continue  # this episode has no such camera
        if isinstance(at, bool) or not isinstance(at, (int, float)) or not 0 <= at < MAX_INDEX:
            raise DataFormatError(f"{place}: from_timestamp of {camera} must be a time, got {at!r:.80}")
        videos[camera] = VideoPart(
            _index(chunk, place, f"chunk_index of {camera}"),
            _index(file, place, f"file_index of {camera}"),
            float(at),
        )
    return EpisodeRow(
        index,
        steps,
        _tasks(raw.get("tasks"), texts),
        _index(raw.get("data/chunk_index", 0), place, "data/chunk_index"),
        _index(raw.get("data/file_index", 0), place, "data/file_index"),
        first,
        videos,
    )


def read_tasks(folder: str, major: int) -> dict[int, str]:
    """The texts by their numbers; empty where there is no list of them.

    Raises:
        DataFormatError: the list is not what it should be.
    """
    lines, table = join(folder, TASKS_LINES), join(folder, TASKS_TABLE)
    if major == 2 or not exists(table):
        if not exists(lines):
            return {}
        return {
            _index(raw.get("task_index"), f"{lines}, line {number}", "task_index"): str(raw.get("task", ""))
            for number, raw in read_lines(lines)
        }
    tasks: dict[int, str] = {}
    with open_parquet(table) as file:
        names = file.schema_arrow.names
        # The text is the index of a pandas frame, which names it or does not.
        text = next((n for n in ("task", "__index_level_0__") if n in names), None)
        if text is None:
            raise DataFormatError(f"{table} has neither 'task' nor an index of texts, only {names!r:.200}")
        for batch in row_batches(file, table, ["task_index", text]):
            for number, raw in enumerate(batch):
                index = _index(raw.get("task_index"), f"{table}, row {number}", "task_index")
                tasks[index] = str(raw.get(text) or "")
    return tasks


def _index(value: Any, place: str, name: str) -> int:
    if isinstance(value, float) and math.isfinite(value) and value == int(value):
        value = int(value)  # a column of integers with gaps, as pandas writes it
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < MAX_INDEX:
        raise DataFormatError(f"{place}: {name} must be a whole number from 0 on, got {value!r:.80}")
    return value


def _tasks(raw: Any, texts: dict[str, str]) -> tuple[str, ...]:
    """The texts of an episode, equal ones kept once for all episodes."""
    if isinstance(raw, str):
        raw = [raw]
    if not isinstance(raw, list):
        return ()
    return tuple(texts.setdefault(text, text) for text in raw if isinstance(text, str))
