"""Checks every record of a dataset and says what is wrong where."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from replaybank.datasets.openx.files import (
    CHECKSUMS,
    END_BYTES,
    EPISODES,
    METADATA,
    ROWS,
    STRINGS,
    Manifest,
    ends_name,
    frames_name,
    is_converted,
    read_manifest,
)
from replaybank.datasets.openx.frames import extend_crc32c
from replaybank.datasets.openx.sources.base import (
    Episode,
    EpisodeSource,
    Images,
    Shard,
    declared_episodes,
    notes_of,
)
from replaybank.datasets.openx.sources.open import open_published
from replaybank.datasets.openx.storage import DatasetStorage
from replaybank.errors import CorruptRecordError, DataFormatError
from replaybank.progress import Bar

FRAMES_AT_A_TIME = 64
"""Frames decoded before the next are looked at: they need not fit into memory together."""

_BYTES_AT_A_TIME = 1 << 24


@dataclass(frozen=True)
class Problem:
    """Something that is wrong with a dataset.

    Args:
        where: file, and record or episode.
        what: what is wrong with it.
    """

    where: str
    what: str


@dataclass(frozen=True)
class Verdict:
    """What a check found.

    Args:
        episodes: episodes that were read and are whole.
        steps: their steps.
        problems: what is wrong, in the order of the data.
        unchecked: what could not be checked, in words; empty if everything was.
    """

    episodes: int
    steps: int
    problems: tuple[Problem, ...]
    unchecked: str = ""


def verify(
    source: EpisodeSource | str | os.PathLike[str],
    split: str = "train",
    on_progress: Callable[[int, int], None] | None = None,
    *,
    progress: bool | None = None,
) -> Verdict:
    """Read all of a dataset and say what is wrong with it. O(bytes), decoding every frame of an original one.

    Of a converted dataset every byte is compared with its checksum. Of an original one every record is read,
    checked and parsed, and every frame decoded.

    Args:
        source: path or URL of a dataset in any form, converted or not, an id of the catalog, or any episode
            source.
        split: split to check, where ``source`` is an original dataset's folder.
        on_progress: called with how many shards (or episodes of a converted dataset) are done, and of how
            many.
        progress: show a progress bar; by default where the error output is a terminal.

    Raises:
        FileNotFoundError: there is no such dataset.
        DataFormatError: it cannot be opened at all; says why.

    Example:
        >>> import tempfile
        >>> from replaybank.demo.arm import write_arm_dataset
        >>> folder = tempfile.TemporaryDirectory()
        >>> path = write_arm_dataset(folder.name + "/arm", episodes=3)
        >>> found = verify(path)
        >>> found.episodes, found.problems
        (3, ())
        >>> folder.cleanup()
    """
    if isinstance(source, (str, os.PathLike)):
        if is_converted(source):
            return _verify_converted(Path(source), on_progress, progress)
        source = open_published(source, split=split, allow_missing_shards=True)
    shards = list(source.shards())
    episodes = steps = 0
    place = str(getattr(source, "path", source.name))
    problems = [Problem(place, note) for note in notes_of(source)]
    with Bar("Verifying", "episode", declared_episodes(shards), show=progress) as bar:
        for done, shard in enumerate(shards, 1):
            for length in _good_episodes(source, shard, problems):
                episodes += 1
                steps += length
                bar.update(steps=length)
            if on_progress is not None:
                on_progress(done, len(shards))
    return Verdict(episodes, steps, tuple(problems))


# --- original datasets -----------------------------------------------------------------------------------


def _good_episodes(source: EpisodeSource, shard: Shard, problems: list[Problem]) -> Iterator[int]:
    """Lengths of the episodes of a shard that are whole; what is wrong with others is noted."""
    for record, episode in readable_episodes(source, shard, problems):
        wrong = [
            Problem(f"{shard.path} record {record}", str(error))
            for column in episode.steps.values()
            if not isinstance(column, (np.ndarray, list))
            for error in _undecodable(column)
        ]
        problems += wrong
        if not wrong:
            yield episode.length


def readable_episodes(
    source: EpisodeSource, shard: Shard, problems: list[Problem]
) -> Iterator[tuple[int, Episode]]:
    """The episodes of a shard that can be read, with the numbers of their records. No frame is decoded.

    Args:
        source: of the episodes.
        shard: the shard.
        problems: what is wrong with other records is added to it.
    """
    record, failed = 0, -1
    while True:
        try:
            for episode in source.episodes(shard, record):
                record += 1
                yield record - 1, episode
            return
        except DataFormatError as error:
            at = error.record if isinstance(error, CorruptRecordError) else record
            if at <= failed:
                if shard.episodes is not None and record >= shard.episodes:
                    return  # it is said to end here
                problems.append(
                    Problem(f"{shard.path} record {record}", "the rest of the shard cannot be reached")
                )
                return
            problems.append(Problem(f"{shard.path} record {at}", str(error)))
            failed, record = at, at + 1
        except IndexError:
            if failed < 0:
                raise
            return  # the record that failed last was the last one


def _undecodable(images: Images) -> Iterator[DataFormatError]:
    """What is wrong with the frames of a camera, the first of each few."""
    for start in range(0, len(images), FRAMES_AT_A_TIME):
        try:
            images.decode(start, min(start + FRAMES_AT_A_TIME, len(images)))
        except DataFormatError as error:
            yield error


# --- converted datasets ----------------------------------------------------------------------------------


def _verify_converted(
    folder: Path, on_progress: Callable[[int, int], None] | None, progress: bool | None
) -> Verdict:
    manifest = read_manifest(folder)
    if manifest.version == 1:
        DatasetStorage(folder)
        return Verdict(
            manifest.episodes,
            manifest.steps,
            (),
            "it was converted by a release that wrote no checksums: only the sizes of files were compared",
        )
    problems = [
        Problem(str(folder / name), "its content is not what was written")
        for name in (EPISODES, STRINGS, METADATA, CHECKSUMS)
        if _crc_of(folder / name) != manifest.checksums.get(name)
    ]
    if any(Path(problem.where).name in (EPISODES, CHECKSUMS) for problem in problems):
        return Verdict(0, 0, tuple(problems))  # where episodes lie, or what they should be, is lost
    bounds = np.fromfile(folder / EPISODES, "<i8").reshape(-1, 2)
    expected = np.fromfile(folder / CHECKSUMS, "<u4").reshape(manifest.episodes, -1)
    maps = {name: _map(folder / name) for name in manifest.data_files}
    good = np.ones(manifest.episodes, dtype=np.bool_)
    with Bar("Verifying", "episode", manifest.episodes, show=progress) as bar:
        for number, (first, length) in enumerate(bounds.tolist()):
            found = _crcs(manifest, maps, first, length)
            for name, crc, wanted in zip(manifest.data_files, found, expected[number].tolist(), strict=True):
                if crc != wanted:
                    good[number] = False
                    problems.append(
                        Problem(f"{folder / name} episode {number}", "its content is not what was written")
                    )
            bar.update(steps=length)
            if on_progress is not None:
                on_progress(number + 1, manifest.episodes)
    return Verdict(int(good.sum()), int(bounds[good, 1].sum()), tuple(problems))


def _crcs(
    manifest: Manifest, maps: dict[str, npt.NDArray[np.uint8]], first: int, length: int
) -> list[int | None]:
    """CRC-32C of what an episode has in each data file; None where it lies nowhere."""
    found: list[int | None] = []
    layout = manifest.layout
    sizes = {ROWS: layout.row_bytes} if layout.row_bytes else {}
    for name, leaf in zip([n for n in maps if n.startswith("column-")], layout.columns, strict=True):
        sizes[name] = layout.leaves[leaf].bytes
    for name, size in sizes.items():
        found.append(_crc(maps[name][first * size : (first + length) * size]))
    for number in range(len(manifest.encoded)):
        ends, content = maps[ends_name(number)].view("<i8"), maps[frames_name(number)]
        start, stop = int(ends[first - 1]) if first else 0, int(ends[first + length - 1])
        found.append(_crc(maps[ends_name(number)][first * END_BYTES : (first + length) * END_BYTES]))
        found.append(_crc(content[start:stop]) if 0 <= start <= stop <= len(content) else None)
    return found


def _map(path: Path) -> npt.NDArray[np.uint8]:
    return np.memmap(path, np.uint8, "r") if path.stat().st_size else np.empty(0, np.uint8)


def _crc(content: npt.NDArray[np.uint8]) -> int:
    crc = 0
    for start in range(0, len(content), _BYTES_AT_A_TIME):
        crc = extend_crc32c(crc, np.asarray(content[start : start + _BYTES_AT_A_TIME]))
    return crc


def _crc_of(path: Path) -> int:
    return _crc(_map(path))
