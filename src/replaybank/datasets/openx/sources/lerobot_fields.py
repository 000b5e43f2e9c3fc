"""The fields of a LeRobot dataset's steps: what info.json declares, set right by what the files show."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from replaybank.datasets.openx.sources import lerobot_columns as columns
from replaybank.datasets.openx.sources.base import FieldSpec, Key
from replaybank.datasets.openx.sources.images import frame_spec
from replaybank.datasets.openx.sources.lerobot_features import (
    ENDS,
    NUMBER_DTYPES,
    NUMBERING,
    declared_and_found,
    image_spec,
    is_flag,
    some,
    step_keys,
)
from replaybank.datasets.openx.sources.lerobot_info import Feature, LeRobotInfo
from replaybank.datasets.openx.sources.video import VideoInfo
from replaybank.errors import DataFormatError

RATE_TOLERANCE: Final = 0.05
"""By which a rate may differ from the declared one before it is told."""
_CODECS: Final = {
    "libsvtav1": "av1",
    "libaom-av1": "av1",
    "libdav1d": "av1",
    "libx264": "h264",
    "avc": "h264",
    "avc1": "h264",
    "libx265": "hevc",
    "h265": "hevc",
    "hvc1": "hevc",
}
"""Names of encoders, and others, that some write in place of the codec's."""


@dataclass(frozen=True)
class StepFields:
    """What is read of a dataset's steps, and where it goes.

    Args:
        fields: of a step, as the source shows them.
        read_as: what each feature that is read holds, by its name.
        keys: where each of them goes; the flags of a step's outcome go nowhere by themselves.
        ends: those flags.
        task: where the text of ``task_index`` goes.
        notes: what is declared and not so, and what is not read.
    """

    fields: Mapping[Key, FieldSpec]
    read_as: Mapping[str, FieldSpec]
    keys: Mapping[str, Key]
    ends: tuple[str, ...]
    task: Key
    notes: tuple[str, ...]


def settle_fields(
    info: LeRobotInfo,
    features: Sequence[Feature],
    first: Any | None,
    *,
    tasks: bool,
    video_info: Callable[[str], VideoInfo | None],
    read_frame: Callable[[str], bytes],
) -> StepFields:
    """The fields, by what is declared and by what the first episode that is there shows.

    Args:
        info: what info.json says.
        features: those that are wanted.
        first: ``pyarrow.Table`` of the first step, ``None`` where it cannot be read.
        tasks: whether there are texts of tasks.
        video_info: what the first video of a camera says of itself, ``None`` where it cannot be read.
        read_frame: reads a frame that lies in a file of its own.
    """
    settler = _Settler(info, video_info, read_frame)
    places = step_keys(features)
    names = set(first.column_names) if first is not None else set()
    fields: dict[Key, FieldSpec] = {}
    read_as: dict[str, FieldSpec] = {}
    for feature in features:
        name = feature.name
        if name in NUMBERING:
            continue
        spec = settler.spec(feature, first.column(name) if first is not None and name in names else None)
        if spec is not None:
            read_as[name] = spec
            if name not in ENDS or not is_flag(spec):
                fields[places[name]] = _named(spec, feature.names)
    ends = tuple(name for name in ENDS if name in read_as and is_flag(read_as[name]))
    if {"next.done", "next.terminated"} & set(ends):
        fields.setdefault(("is_terminal",), FieldSpec("tensor", (1,), np.dtype(bool)))
    task: Key = ("task",) if ("task",) not in fields else ("source_task",)
    if tasks:
        fields[task] = FieldSpec("text", (), None)
    extra = sorted(names - {feature.name for feature in info.features})
    if extra:
        settler.notes.append(f"columns that info.json does not declare are not read: {some(extra)}")
    keys = {name: places[name] for name in read_as if name not in ends}
    return StepFields(fields, read_as, keys, ends, task, tuple(settler.notes))


def _named(spec: FieldSpec, names: tuple[str, ...]) -> FieldSpec:
    """A field with the names of its numbers, where there is one for each; else they name its axes."""
    numbers = math.prod(spec.shape)
    if spec.kind != "tensor" or len(spec.shape) > 1 or len(names) != numbers:
        return spec
    return replace(spec, names=names)


class _Settler:
    """Compares what is declared with what is found, feature by feature."""

    def __init__(
        self,
        info: LeRobotInfo,
        video_info: Callable[[str], VideoInfo | None],
        read_frame: Callable[[str], bytes],
    ) -> None:
        self.notes: list[str] = []
        self._info = info
        self._video_info = video_info
        self._read_frame = read_frame

    def spec(self, feature: Feature, column: Any) -> FieldSpec | None:
        """What a feature holds; ``None`` where it is of a kind that is not read."""
        if feature.dtype == "video":
            return self._video(feature)
        if feature.dtype == "image":
            return self._image(feature, column)
        text = feature.dtype in ("string", "str", "large_string")
        if column is None:
            if text:
                return FieldSpec("text", (), None)
            if feature.dtype in NUMBER_DTYPES:
                return FieldSpec("tensor", feature.shape or (), np.dtype(feature.dtype))
            self.notes.append(f"{feature.name} is not read: its dtype is {feature.dtype!r:.40}")
            return None
        found = columns.column_type(column.type)
        if found.kind == "text":
            if not text:
                self._tell(feature, "dtype", feature.dtype, column.type)
            return FieldSpec("text", (), None)
        if found.kind != "number" or found.dtype is None:
            self.notes.append(f"{feature.name} is not read: a column of {column.type}")
            return None
        dtype = found.dtype
        if feature.dtype in NUMBER_DTYPES:
            declared = np.dtype(feature.dtype)
            if declared == dtype or declared.kind == "f" or dtype.kind != "f":
                dtype = declared  # else whole numbers are declared, and there are fractions
        if found.dtype.name != feature.dtype:
            self._tell(feature, "dtype", feature.dtype, found.dtype)
        return FieldSpec("tensor", self._shape(feature, column), dtype)

    def _tell(self, feature: Feature, what: str, declared: Any, found: Any) -> None:
        self.notes.append(declared_and_found(feature.name, what, declared, found))

    def _shape(self, feature: Feature, column: Any) -> tuple[int, ...]:
        """The declared shape, unless values have another number of entries."""
        found = columns.found_shape(column)
        if feature.shape is None:
            return found
        if math.prod(found) == math.prod(feature.shape):
            return feature.shape
        self._tell(feature, "shape", feature.shape, found)
        return found

    def _video(self, feature: Feature) -> FieldSpec:
        spec = image_spec(feature)
        info = self._video_info(feature.name)
        if info is None:
            return spec
        if feature.codec is not None and _CODECS.get(feature.codec, feature.codec) != info.codec:
            self._tell(feature, "codec", feature.codec, info.codec)
        fps = self._info.fps
        if fps and info.fps and abs(info.fps / fps - 1) > RATE_TOLERANCE:
            self._tell(feature, "fps", fps, f"{info.fps:g}")
        # One channel may be wanted of a coloured video, three of a grey one; anything else is a mistake.
        channels = spec.shape[2] if spec.shape[2] in (1, 3) else info.channels
        found = (info.height, info.width, channels)
        if spec.shape not in (found, (-1, -1, -1)):
            self._tell(feature, "shape", spec.shape, found)
        return FieldSpec("image", found, info.dtype if channels == info.channels else np.dtype(np.uint8))

    def _image(self, feature: Feature, column: Any) -> FieldSpec | None:
        spec = image_spec(feature)
        if column is None:
            return spec
        if columns.column_type(column.type).kind != "image":
            self._tell(feature, "dtype", "image", column.type)
            return None
        try:
            frame = columns.frame_bytes(column, self._read_frame)[0]
            found = frame_spec(frame, feature.name)
        except (DataFormatError, OSError):
            return spec  # reading it says what is wrong
        height, width, channels = found.shape
        if found.dtype == np.uint8 and spec.shape[2] in (1, 3):
            channels = spec.shape[2]  # grey may be wanted of colour, and no alpha
        if spec.shape not in ((height, width, channels), (-1, -1, -1)):
            self._tell(feature, "shape", spec.shape, (height, width, channels))
        return FieldSpec("image", (height, width, channels), found.dtype)
