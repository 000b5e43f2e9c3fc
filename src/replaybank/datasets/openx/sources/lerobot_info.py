"""meta/info.json of a LeRobot dataset: version, rate, features, splits and where the files lie."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from replaybank.datasets.openx.sources.files import join, open_binary
from replaybank.errors import DataFormatError, UnsupportedFeatureError

INFO_FILE: Final = "meta/info.json"
MAX_INFO_BYTES: Final = 1 << 21
"""Real ones have a few kilobytes; parsed, JSON can take twenty times its size."""
MAX_DIMENSIONS: Final = 8
DEFAULT_CHUNK: Final = 1000
"""Episodes in a folder of version 2, where the file does not say."""

DATA_PATHS: Final = {
    2: "data/chunk-{episode_chunk:03d}/episode_{episode_index:06d}.parquet",
    3: "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet",
}
VIDEO_PATHS: Final = {
    2: "videos/chunk-{episode_chunk:03d}/{video_key}/episode_{episode_index:06d}.mp4",
    3: "videos/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mp4",
}
_PLACEHOLDER: Final = re.compile(r"\{([a-z_]+)(?::0?(\d{1,2})d)?\}")


@dataclass(frozen=True)
class Feature:
    """One feature as declared.

    Args:
        name: with its dots, such as ``"observation.images.top"``.
        dtype: ``"video"``, ``"image"``, ``"string"`` or the name of a number's dtype.
        shape: of one value, ``None`` where the file does not say.
        names: of its entries, or of its axes, flat; empty where there are none.
        codec: of a video, ``None`` where the file does not say.
    """

    name: str
    dtype: str
    shape: tuple[int, ...] | None
    names: tuple[str, ...] = ()
    codec: str | None = None


@dataclass(frozen=True)
class LeRobotInfo:
    """What meta/info.json says.

    Args:
        where: its path.
        version: as written, ``"v2.1"``.
        major: 2 or 3.
        fps: frames a second, ``None`` where the file does not say.
        features: in the file's order.
        splits: ranges of episode numbers of each split; ``None`` where the file does not say.
        data_path: template of the parquet files.
        video_path: template of the videos.
        chunk: episodes in a folder of version 2.
        episodes: number of episodes declared.
        frames: number of steps declared.
    """

    where: str
    version: str
    major: int
    fps: float | None
    features: tuple[Feature, ...]
    splits: Mapping[str, tuple[tuple[int, int], ...]] | None
    data_path: str
    video_path: str
    chunk: int
    episodes: int | None
    frames: int | None


def read_info(folder: str) -> LeRobotInfo:
    """Read a dataset's meta/info.json.

    Raises:
        FileNotFoundError: there is none.
        DataFormatError: it is not what it should be.
        UnsupportedFeatureError: it is of a version that is not read.
    """
    where = join(folder, INFO_FILE)
    with open_binary(where) as file:
        text = file.read(MAX_INFO_BYTES + 1)
    if len(text) > MAX_INFO_BYTES:
        raise DataFormatError(f"{where} is larger than any such file ({MAX_INFO_BYTES} bytes)")
    try:
        raw = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise DataFormatError(f"{where} is not JSON: {error}") from error
    return parse_info(raw, where)


def parse_info(raw: Any, where: str) -> LeRobotInfo:
    """Take apart what meta/info.json holds; trusts nothing.

    Raises:
        DataFormatError: it is not what it should be.
        UnsupportedFeatureError: it is of a version that is not read.
    """
    if not isinstance(raw, dict) or not isinstance(raw.get("features"), dict):
        raise DataFormatError(f"{where} must be an object with 'features'")
    version = raw.get("codebase_version")
    match = re.fullmatch(r"v?([23])(\.\d{1,4}){0,2}", version) if isinstance(version, str) else None
    if match is None:
        raise UnsupportedFeatureError(
            f"{where}: codebase_version is {version!r:.80}; versions 2.x and 3.x are read"
        )
    major = int(match[1])
    fps = raw.get("fps")
    if fps is not None and (
        isinstance(fps, bool) or not isinstance(fps, (int, float)) or not 1e-3 <= fps <= 1e6
    ):
        raise DataFormatError(f"{where}: fps must be a rate in hertz, got {fps!r:.80}")
    return LeRobotInfo(
        where=where,
        version=str(version),
        major=major,
        fps=None if fps is None else float(fps),
        features=tuple(_feature(name, value, where) for name, value in raw["features"].items()),
        splits=_splits(raw.get("splits"), where),
        data_path=_template(raw.get("data_path"), DATA_PATHS[major], where),
        video_path=_template(raw.get("video_path"), VIDEO_PATHS[major], where),
        chunk=_count(raw.get("chunks_size"), where, "chunks_size") or DEFAULT_CHUNK,
        episodes=_count(raw.get("total_episodes"), where, "total_episodes"),
        frames=_count(raw.get("total_frames"), where, "total_frames"),
    )


def _count(value: Any, where: str, name: str) -> int | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 1 << 62:
        raise DataFormatError(f"{where}: {name} must be a count, got {value!r:.80}")
    return value


def _template(value: Any, default: str, where: str) -> str:
    if value is None:
        return default
    if not isinstance(value, str):
        raise DataFormatError(f"{where}: the template of a path must be text, got {value!r:.80}")
    return value


def file_name(template: str, values: Mapping[str, int | str], where: str) -> str:
    """The path of a file in the dataset, by a template. Not ``str.format``, which follows attributes.

    Raises:
        DataFormatError: the template has an unknown placeholder, or leads out of the dataset.

    >>> file_name(DATA_PATHS[3], {"chunk_index": 0, "file_index": 12}, "info.json")
    'data/chunk-000/file-012.parquet'
    """

    def fill(match: re.Match[str]) -> str:
        value = values.get(match[1])
        if value is None or (match[2] and isinstance(value, str)):
            raise DataFormatError(
                f"{where}: the template {template!r:.200} has {match[0]!r}, which is none of {sorted(values)}"
            )
        return str(value).zfill(int(match[2] or 0))

    name = _PLACEHOLDER.sub(fill, template)
    literal = _PLACEHOLDER.sub("", template)
    parts = name.split("/")
    if "{" in literal or "}" in literal or "\\" in name or "\0" in name or ":" in parts[0]:
        raise DataFormatError(f"{where}: {template!r:.200} is no template of a path")
    if any(part in ("", ".", "..") for part in parts):
        raise DataFormatError(f"{where}: {template!r:.200} gives {name!r:.200}, which leads elsewhere")
    return name


def _splits(raw: Any, where: str) -> Mapping[str, tuple[tuple[int, int], ...]] | None:
    if not raw:
        return None
    if not isinstance(raw, dict):
        raise DataFormatError(f"{where}: 'splits' must be an object, got {raw!r:.80}")
    found = {}
    for name, value in raw.items():
        ranges = []
        for part in value.split(",") if isinstance(value, str) else [""]:
            match = re.fullmatch(r"\s*(\d{1,12})\s*:\s*(\d{1,12})\s*", part)
            if match is None:
                raise DataFormatError(
                    f"{where}: split {name!r:.80} must be a range of episodes like '0:50', got {value!r:.80}"
                )
            ranges.append((int(match[1]), int(match[2])))
        found[name] = tuple(ranges)
    return found


def _feature(name: str, raw: Any, where: str) -> Feature:
    if not name or not isinstance(raw, dict) or not isinstance(raw.get("dtype"), str):
        raise DataFormatError(f"{where}: feature {name!r:.80} must be an object with a 'dtype'")
    shape = raw.get("shape")
    if shape is not None:
        if not isinstance(shape, list) or len(shape) > MAX_DIMENSIONS:
            raise DataFormatError(f"{where}: the shape of {name!r:.80} must be a list, got {shape!r:.80}")
        for size in shape:
            # Products of dimensions must stay within 64 bits.
            if isinstance(size, bool) or not isinstance(size, int) or not 0 <= size < 1 << 31:
                raise DataFormatError(f"{where}: the shape of {name!r:.80} has {size!r:.80} as a dimension")
        if math.prod(shape) >= 1 << 31:
            raise DataFormatError(f"{where}: {name!r:.80} has shape {shape}, larger than any step")
    details = raw.get("info") or raw.get("video_info") or {}
    codec = details.get("video.codec") if isinstance(details, dict) else None
    return Feature(
        name=name,
        dtype=raw["dtype"].lower(),
        shape=None if shape is None else tuple(shape),
        names=tuple(_flat_names(raw.get("names"))),
        codec=codec if isinstance(codec, str) else None,
    )


def _flat_names(raw: Any) -> list[str]:
    """Names as they are found: a list, a list in a list, or a dict of lists."""
    if isinstance(raw, dict):
        raw = list(raw.values()) if all(isinstance(v, list) for v in raw.values()) else list(raw)
    if not isinstance(raw, list):
        return []
    found: list[str] = []
    for entry in raw:
        found.extend(map(str, entry) if isinstance(entry, list) else [str(entry)])
    return found
