"""From the steps of a hub episode, each a dict of whatever its writer had, to columns."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from replaybank.datasets.openx.sources.base import Column, FieldSpec, Key
from replaybank.datasets.openx.sources.images import decode_frames, encode_frame, frame_spec, image_format
from replaybank.errors import DataFormatError, UnsupportedFeatureError

MAX_FIELDS: Final = 4096
"""Of one step; dicts that are referred to again and again could stand for any number."""
MAX_LIST: Final = 1 << 20
"""Numbers in a list of one step; long ones are arrays."""
MIN_IMAGE_SIDE: Final = 8
"""Pixels: a smaller array of bytes is no camera's."""
NUMBERS_ROOM: Final = 64 << 20
NUMBERS_ROOM_PER_BYTE: Final = 8
"""Bytes that the numbers of an episode may take, by themselves and times those of its pickle: an array that
every step refers to is there once in the pickle, and once a step in a column."""

Frame = bytes | npt.NDArray[Any] | None


@dataclass(frozen=True)
class RawEpisode:
    """The values of every field over the steps, None where a step lacks one; and the episode's own."""

    steps: Mapping[Key, list[Any]]
    length: int
    metadata: Mapping[Key, Any]
    size: int
    """Bytes of its pickle."""


class LooseImages:
    """Frames of one camera, each encoded, an array, or not there (black). Immutable.

    Args:
        frames: one a step.
        spec: shape ``(H, W, C)`` and dtype of every frame.
        where: member and field, for messages.
    """

    def __init__(self, frames: Sequence[Frame], spec: FieldSpec, where: str) -> None:
        self._frames = frames
        self._spec = spec
        self._where = where

    def __len__(self) -> int:
        return len(self._frames)

    def encoded(self, start: int = 0, stop: int | None = None) -> list[bytes]:
        """Frames ``start`` to ``stop`` as they are stored; those not encoded, as PNG. O(their bytes)."""
        return [
            frame if isinstance(frame, bytes) else encode_frame(self._pixels(frame, number), "png")
            for number, frame in enumerate(self._frames[start:stop], start)
        ]

    def decode(self, start: int = 0, stop: int | None = None) -> npt.NDArray[Any]:
        """Frames ``start`` to ``stop``, ``[n, H, W, C]``, RGB.

        Raises:
            DataFormatError: a frame cannot be decoded, or is not of the field's shape and dtype.
            ImportError: the decoder is not installed.
        """
        return self.decode_into(None, start, stop)

    def decode_into(
        self, room: npt.NDArray[Any] | None, start: int = 0, stop: int | None = None
    ) -> npt.NDArray[Any]:
        """The same, in ``room`` where that is an array of the result's shape and dtype."""
        frames = self._frames[start:stop]
        encoded = [memoryview(frame) for frame in frames if isinstance(frame, bytes)]
        if len(encoded) == len(frames):
            return decode_frames(encoded, self._spec, self._where, start, room)
        out: npt.NDArray[Any] = np.empty((len(frames), *self._spec.shape), self._spec.dtype)
        for i, frame in enumerate(frames):
            if isinstance(frame, bytes):
                out[i] = decode_frames([memoryview(frame)], self._spec, self._where, start + i)[0]
            else:
                out[i] = self._pixels(frame, start + i)
        return out

    def _pixels(self, frame: npt.NDArray[Any] | None, number: int) -> npt.NDArray[Any]:
        if frame is None:
            return np.zeros(self._spec.shape, self._spec.dtype)
        if frame.shape != self._spec.shape or frame.dtype != self._spec.dtype:
            raise DataFormatError(
                f"{self._where}: frame {number} is {frame.dtype} of shape {frame.shape}, the dataset has "
                f"{self._spec.dtype} of shape {self._spec.shape}"
            )
        return frame


def raw_episode(content: Any, size: int) -> RawEpisode:
    """Sort an unpickled episode by field. O(values).

    Args:
        content: what :func:`~.safe_pickle.loads` gave.
        size: bytes of its pickle.

    Raises:
        DataFormatError: it is no episode.
    """
    if not isinstance(content, dict) or not isinstance(content.get("steps"), (list, tuple)):
        keys = f" with the keys {_names(content)}" if isinstance(content, dict) else ""
        raise DataFormatError(
            f"an episode is a dict with a list of 'steps', this is a {type(content).__name__}{keys}"
        )
    steps = content["steps"]
    if not steps:
        raise DataFormatError("the episode has no steps")
    columns: dict[Key, list[Any]] = {}
    values = 0
    for number, step in enumerate(steps):
        if not isinstance(step, dict):
            raise DataFormatError(f"step {number} is a {type(step).__name__}, not a dict")
        for key, value in _flat(step):
            if key not in columns:
                if (len(columns) + 1) * len(steps) > size + MAX_FIELDS:
                    raise DataFormatError(_too_many(size))
                columns[key] = [None] * len(steps)
            columns[key][number] = value
            values += 1
        if values > size:
            raise DataFormatError(_too_many(size))
    rest = {key: value for key, value in content.items() if key != "steps"}
    return RawEpisode(columns, len(steps), dict(_flat(rest)), size)


def _too_many(size: int) -> str:
    return f"the steps hold more values than {size} bytes can stand for"


def _flat(tree: Mapping[Any, Any]) -> Iterable[tuple[Key, Any]]:
    """Leaves of nested dicts by their paths, in order."""
    waiting: list[tuple[Key, Any]] = [((), tree)]
    count = 0
    while waiting:
        path, value = waiting.pop()
        if isinstance(value, dict) and not (path and _is_image_dict(value)):
            inner = [((*path, _name(key)), item) for key, item in value.items()]
            waiting.extend(reversed(inner))
            count += len(inner)
            if count > MAX_FIELDS:
                raise DataFormatError(f"a step has more than {MAX_FIELDS} fields")
        else:
            yield path, value


def _is_image_dict(value: dict[Any, Any]) -> bool:
    return "bytes" in value and value.keys() <= {"bytes", "path"}


def _name(key: str | bytes) -> str:
    return key.decode("utf-8", "backslashreplace") if isinstance(key, bytes) else key


def _names(content: dict[Any, Any]) -> str:
    return ", ".join(repr(_name(key))[:40] for key in list(content)[:8]) or "none"


# --- what a field is -----------------------------------------------------------------------------------


def field_spec(key: Key, values: Sequence[Any], where: str) -> FieldSpec | None:
    """What a field is, by its first value that says so; None where no step has it.

    Raises:
        UnsupportedFeatureError: it is nothing that is read.
        DataFormatError: its first frame is broken.
    """
    empty = False
    for value in values:
        value = _plain(value)
        if value is None:
            continue
        if isinstance(value, (str, bytes)):
            if isinstance(value, bytes) and image_format(value) is not None:
                return frame_spec(value, f"{where}: {_shown(key)}")
            if not value:
                empty = True
                continue
            return FieldSpec("text", (), None)
        array = _numbers(key, value, where)
        return FieldSpec("image" if _is_picture(array) else "tensor", array.shape, array.dtype)
    return FieldSpec("text", (), None) if empty else None


def _plain(value: Any) -> Any:
    """One value without its wrapping: a dict of bytes and path, an array of one text."""
    if isinstance(value, dict):
        value = value["bytes"]
    if isinstance(value, np.ndarray) and value.dtype.kind in "SU" and value.size == 1:
        value = value.reshape(-1)[0]
    if isinstance(value, np.bytes_):
        return bytes(value)
    return str(value) if isinstance(value, np.str_) else value


def _is_picture(array: npt.NDArray[Any]) -> bool:
    if array.ndim != 3 or min(array.shape[:2]) < MIN_IMAGE_SIDE:
        return False
    channels = (1, 3, 4) if array.dtype == np.uint8 else (1,)
    return array.dtype in (np.uint8, np.uint16, np.float32) and array.shape[2] in channels


def _numbers(key: Key, value: Any, where: str) -> npt.NDArray[Any]:
    if isinstance(value, (list, tuple)) and _count(value, {}) > MAX_LIST:
        raise DataFormatError(f"{where}: {_shown(key)} is a list of more than {MAX_LIST} numbers")
    try:
        array = np.asarray(value)
    except (ValueError, OverflowError) as error:
        raise DataFormatError(f"{where}: {_shown(key)} is a list of unequal parts: {error}") from error
    if array.dtype.kind not in "biufc":
        what = "texts in an array" if array.dtype.kind in "SU" else type(value).__name__
        raise UnsupportedFeatureError(
            f"{where}: {_shown(key)} holds {what}; numbers, one text a step, and images are read"
        )
    return array


def _count(value: Any, known: dict[int, int]) -> int:
    """Leaves of nested lists. O(lists): one that is referred to twice counts twice, and is looked at once."""
    if not isinstance(value, (list, tuple)):
        return 1
    if id(value) not in known:
        known[id(value)] = 1 + sum(_count(item, known) for item in value)
    return known[id(value)]


# --- columns -------------------------------------------------------------------------------------------


def columns_of(
    raw: RawEpisode, fields: Mapping[Key, FieldSpec], where: str
) -> tuple[dict[Key, Column], frozenset[Key], Counter[str]]:
    """The columns of an episode, the fields that it lacks, and what was put right. O(values).

    Args:
        raw: the episode.
        fields: what the dataset has.
        where: member, for messages.

    Raises:
        DataFormatError: a value is of another kind, shape or dtype than the dataset's.
    """
    steps: dict[Key, Column] = {}
    missing = []
    faults: Counter[str] = Counter()
    room = NUMBERS_ROOM + NUMBERS_ROOM_PER_BYTE * raw.size
    for key, spec in fields.items():
        values = [_plain(value) for value in raw.steps.get(key, ())]
        if spec.kind == "image":
            values = [None if isinstance(value, bytes) and not value else value for value in values]
        absent = sum(value is None for value in values)
        if absent == len(values):
            missing.append(key)
            continue
        if absent:
            faults[f"{'/'.join(key)} is missing in some steps of an episode"] += absent
        place = f"{where}: {_shown(key)}"
        if spec.kind == "text":
            steps[key] = _texts(values, place)
        elif spec.kind == "image":
            steps[key] = LooseImages(_frames(values, place), spec, place)
        else:
            assert spec.dtype is not None
            room -= len(values) * math.prod(spec.shape) * spec.dtype.itemsize
            if room < 0:
                raise DataFormatError(f"{place}: more numbers than the bytes of the pickle can stand for")
            steps[key] = _tensor(key, values, spec, where)
    for key in raw.steps.keys() - fields.keys():
        if all(_plain(value) is None for value in raw.steps[key]):
            continue
        faults[f"{'/'.join(key)} is not in the dataset's first episodes and is left out"] += 1
    return steps, frozenset(missing), faults


def _texts(values: list[Any], place: str) -> list[str]:
    # Most steps repeat one instruction: equal strings become one object.
    known: dict[Any, str] = {None: ""}
    texts = []
    for number, value in enumerate(values):
        if not (value is None or isinstance(value, (str, bytes))):
            raise DataFormatError(
                f"{place}: step {number} has {type(value).__name__}, the dataset has text there"
            )
        text = known.get(value)
        if text is None:
            text = value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else str(value)
            known[value] = text
        texts.append(text)
    return texts


def _frames(values: list[Any], place: str) -> Sequence[Frame]:
    for number, value in enumerate(values):
        if not (value is None or isinstance(value, (bytes, np.ndarray))):
            raise DataFormatError(
                f"{place}: step {number} has {type(value).__name__}, the dataset has images there"
            )
    return values


def _tensor(key: Key, values: list[Any], spec: FieldSpec, where: str) -> npt.NDArray[Any]:
    out: npt.NDArray[Any] = np.zeros((len(values), *spec.shape), spec.dtype)
    for number, value in enumerate(values):
        if value is None:
            continue
        if isinstance(value, (str, bytes)):
            raise DataFormatError(f"{where}: {_shown(key)}: step {number} has text, the dataset has numbers")
        array = value if isinstance(value, (np.ndarray, np.generic)) else _numbers(key, value, where)
        if array.shape != spec.shape:
            raise DataFormatError(
                f"{where}: {_shown(key)}: step {number} has shape {array.shape}, the dataset has {spec.shape}"
            )
        if array.dtype != spec.dtype and not np.can_cast(array.dtype, out.dtype, "same_kind"):
            raise DataFormatError(
                f"{where}: {_shown(key)}: step {number} has {array.dtype}, the dataset has {spec.dtype}"
            )
        out[number] = array
    return out


def plain_metadata(values: Mapping[Key, Any]) -> dict[Key, Any]:
    """Values of a whole episode: numbers, arrays and texts; images and whatever else are left out."""
    found: dict[Key, Any] = {}
    for key, value in values.items():
        value = _plain(value)
        if isinstance(value, bytes) and image_format(value) is None:
            found[key] = value.decode("utf-8", "backslashreplace")
        elif isinstance(value, (str, bool, int, float, np.generic)) or (
            isinstance(value, np.ndarray) and value.dtype.kind in "biuf" and not _is_picture(value)
        ):
            found[key] = value
    return found


def _shown(key: Key) -> str:
    return f"'{'/'.join(key)}'"
