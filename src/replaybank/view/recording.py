"""An episode as a Rerun recording (https://rerun.io)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from replaybank.datasets.openx.sources.images import encode_frame, image_format
from replaybank.progress import Bar
from replaybank.view.episode import Camera, Key, RecordedEpisode

if TYPE_CHECKING:
    import rerun as rr

STEP, TIME = "step", "time"
"""Names of the timelines: the number of the step, and seconds from the first one."""
MOST_SERIES = 64
"""Numbers of an entry that are drawn as curves: joints are, embeddings are not."""
JPEG_QUALITY = 95
"""Of frames that are compressed for the recording."""
FACTS, EVENTS = "episode", "ends"
"""Entities of what is known of the episode, and of its ends."""

_ENDS: Mapping[Key, str] = {("next", "terminated"): "terminated", ("next", "truncated"): "truncated"}
_DONE: Key = ("next", "done")
_COLORS = {1: "L", 3: "RGB", 4: "RGBA"}


def rerun() -> Any:
    """The package that makes recordings.

    Raises:
        ImportError: it is not installed; says how.
    """
    try:
        import rerun as rr
    except ImportError as error:
        raise ImportError("Looking at episodes needs Rerun: pip install 'replaybank[view]'") from error
    return rr


def record(
    episode: RecordedEpisode,
    recording: rr.RecordingStream,
    cameras: Sequence[Key] | None = None,
    *,
    compress: bool = False,
    progress: bool | None = None,
) -> list[Key]:
    """Write an episode into a recording: numbers as curves, frames as images, texts, ends as events.

    Frames go in as the JPEG or PNG that they are stored as; those of a video as JPEG; pixels as they are.

    Args:
        episode: what is written.
        recording: open to a file or a viewer.
        cameras: those that are written; None: all.
        compress: write pixels as JPEG too: smaller, and no longer exact.
        progress: show a bar if it takes long; by default where the error output is a terminal.

    Returns:
        The entries that were left out: too many numbers for curves.
    """
    rr = rerun()
    timelines = _Timelines(episode)
    left_out = []
    for key, values in episode.numbers.items():
        if not _record_numbers(recording, key, values, episode.names.get(key), timelines):
            left_out.append(key)
    for key, texts in episode.texts.items():
        _record_texts(recording, key, texts, timelines)
    _record_ends(recording, episode, timelines)
    facts = "\n".join(f"{name}: {value}" for name, value in episode.facts.items())
    title = f"{episode.name}, episode {episode.number}: {episode.length} steps"
    recording.log(FACTS, rr.TextDocument(sayable(f"{title}\n{facts}")), static=True)
    chosen = list(episode.cameras) if cameras is None else cameras
    with Bar("Recording", "frame", len(chosen) * episode.length, show=progress) as bar:
        for key in chosen:
            _record_camera(recording, key, episode.cameras[key], timelines, bar, compress=compress)
    return left_out


def smaller_as_jpeg(camera: Camera) -> bool:
    """Whether the frames of a camera come as pixels that could be compressed. Reads a few of them."""
    _, frames = next(iter(camera.parts()), (0, ()))
    return isinstance(frames, np.ndarray) and not camera.lossy and _is_photo(frames)


def _is_photo(frames: npt.NDArray[Any]) -> bool:
    return frames.dtype == np.uint8 and frames.shape[-1] in (1, 3)


def entity(key: Key) -> str:
    """The entity that an entry becomes."""
    return str(rerun().new_entity_path([sayable(part) for part in key]))


class _Timelines:
    """When steps are, on all timelines that the recording has."""

    def __init__(self, episode: RecordedEpisode) -> None:
        self._seconds = episode.seconds
        self._steps = np.arange(episode.length)

    def of(self, steps: npt.NDArray[np.intp] | slice) -> list[Any]:
        """The time columns of some steps."""
        rr = rerun()
        columns = [rr.TimeColumn(STEP, sequence=self._steps[steps])]
        if self._seconds is not None:
            columns.append(rr.TimeColumn(TIME, duration=self._seconds[steps]))
        return columns


def _record_numbers(
    recording: rr.RecordingStream,
    key: Key,
    values: npt.NDArray[Any],
    names: Sequence[str] | None,
    timelines: _Timelines,
) -> bool:
    """Numbers as curves; False if they are too many."""
    rr = rerun()
    width = int(np.prod(values.shape[1:]))
    if not 1 <= width <= MOST_SERIES or values.dtype.kind not in "biuf":
        return False
    flat = values.reshape(len(values), width).astype(np.float64)
    path = entity(key)
    recording.send_columns(path, timelines.of(slice(None)), rr.Scalars.columns(scalars=flat))
    if names is None or len(names) != width:
        names = [",".join(map(str, index)) for index in np.ndindex(values.shape[1:])]
    if width == 1:
        names = [key[-1]]
    recording.log(path, rr.SeriesLines(names=[sayable(name) for name in names]), static=True)
    return True


def _record_texts(
    recording: rr.RecordingStream, key: Key, texts: Sequence[str], timelines: _Timelines
) -> None:
    """Each text where it begins: a text stays until there is another."""
    rr = rerun()
    texts = [sayable(text) for text in texts]
    steps = [step for step, text in enumerate(texts) if step == 0 or text != texts[step - 1]]
    columns = rr.TextDocument.columns(text=[texts[step] for step in steps])
    recording.send_columns(entity(key), timelines.of(np.array(steps)), columns)


def sayable(text: str) -> str:
    r"""Text without halves of letters, which Rerun does not take; it would leave out all texts with one.

    >>> sayable("a\ud800")
    'a?'
    """
    return text.encode("utf-8", "replace").decode()


def _record_ends(recording: rr.RecordingStream, episode: RecordedEpisode, timelines: _Timelines) -> None:
    rr = rerun()
    flags = {
        key: np.atleast_1d(episode.numbers[key].reshape(episode.length, -1).any(1))
        for key in (*_ENDS, _DONE)
        if key in episode.numbers
    }
    steps, texts = [], []
    for step in range(episode.length):
        said = [name for key, name in _ENDS.items() if key in flags and flags[key][step]]
        if not said and _DONE in flags and flags[_DONE][step]:
            said = ["done"]
        if not said and step == episode.length - 1:
            said = ["the last step that is there; no end is set"]
        if said:
            steps.append(step)
            texts.append(" and ".join(said))
    if steps:
        recording.send_columns(EVENTS, timelines.of(np.array(steps)), rr.TextLog.columns(text=texts))


def _record_camera(
    recording: rr.RecordingStream,
    key: Key,
    camera: Camera,
    timelines: _Timelines,
    bar: Bar,
    *,
    compress: bool,
) -> None:
    path = entity(key)
    for start, frames in camera.parts():
        if isinstance(frames, np.ndarray):
            steps = np.arange(start, start + len(frames))
            _record_pixels(recording, path, frames, timelines.of(steps), camera, compress)
            bar.update(len(frames))
            continue
        there = [step for step, content in enumerate(frames) if content]
        if there:
            columns = _encoded([frames[step] for step in there], depth=camera.depth)
            recording.send_columns(path, timelines.of(np.array(there) + start), columns)
        bar.update(len(frames))


def _encoded(contents: Sequence[bytes], *, depth: bool) -> Any:
    rr = rerun()
    kinds = [f"image/{image_format(content) or 'unknown'}" for content in contents]
    kind = rr.EncodedDepthImage if depth else rr.EncodedImage
    return kind.columns(blob=list(contents), media_type=kinds)


def _record_pixels(
    recording: rr.RecordingStream,
    path: str,
    frames: npt.NDArray[Any],
    times: list[Any],
    camera: Camera,
    compress: bool,
) -> None:
    rr = rerun()
    channels = frames.shape[-1]
    if _is_photo(frames) and (compress or camera.lossy):
        contents = [encode_frame(frame, "jpeg", JPEG_QUALITY) for frame in frames]
        recording.send_columns(path, times, _encoded(contents, depth=False))
        return
    if not camera.depth and channels not in _COLORS:
        frames, channels = frames[..., :1], 1
    dtype = rr.ChannelDatatype.from_np_dtype(frames.dtype)
    height, width = frames.shape[1:3]
    form = rr.components.ImageFormat(
        width=width,
        height=height,
        color_model=None if camera.depth else _COLORS[channels],
        channel_datatype=dtype,
    )
    kind = rr.DepthImage if camera.depth else rr.Image
    recording.log(path, kind.from_fields(format=form), static=True)
    rows = np.ascontiguousarray(frames).reshape(len(frames), -1).view(np.uint8)
    recording.send_columns(path, times, kind.columns(buffer=rows))
