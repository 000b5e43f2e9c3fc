"""One open video file: frames by their presentation times, decoded forward.

The container's timestamps are the truth, not a count of frames: a file may lack frames, start late, or hold
them at uneven times. After a jump nothing is shown that depends on frames before the keyframe jumped to
(open groups of pictures), so that a frame is the same however it was reached.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import IO, Any, Final

import numpy as np
import numpy.typing as npt

from replaybank.datasets.openx.sources.files import is_url, open_binary
from replaybank.datasets.openx.sources.images import MAX_FRAME_PIXELS
from replaybank.errors import DataFormatError, UnsupportedFeatureError

FORMATS: Final = "mov,mp4,m4a,3gp,3g2,mj2,matroska,webm,avi"
"""Containers that are opened. A playlist that calls itself a video could name any other file or host."""
FORWARD_FRAMES: Final = 64
"""A frame this many frame periods ahead is reached by decoding on; one beyond that by a jump."""
CLOCK_SLACK: Final = 1e-4
"""Seconds by which float32 timestamps and rounded presentation times may differ from what they mean."""
_IO_BYTES: Final = 1 << 20
"""Of one read behind a URL."""


@dataclass(frozen=True)
class VideoInfo:
    """What a video file says of itself.

    Args:
        codec: ``"av1"``, ``"h264"``, ``"hevc"``, ...
        height: of the frames as they are shown, pixels.
        width: of the frames as they are shown, pixels.
        channels: 1 for grey, else 3.
        dtype: uint16 for grey of more than eight bits, else uint8.
        fps: mean frame rate, ``None`` if the file does not say.
        frames: number of frames, 0 if the file does not say.
    """

    codec: str
    height: int
    width: int
    channels: int
    dtype: np.dtype[Any]
    fps: float | None
    frames: int


class VideoReader:
    """Reads the first video stream of a file. Not thread-safe; holds two decoded frames at most.

    Times are in seconds from the start that the stream declares.

    Args:
        path: file or URL.
        threads: of the decoder; 0: as many as there are cores.

    Raises:
        OSError: the file cannot be opened.
        DataFormatError: it is no video that can be read.
        ImportError: PyAV is not installed.
    """

    def __init__(self, path: str, threads: int = 0) -> None:
        self.path = path
        self._threads = threads
        self._file: IO[bytes] | None = None
        self._container: Any = None
        self._info: VideoInfo | None = None
        try:
            self._open()
        except BaseException:
            self.close()
            raise

    def _open(self) -> None:
        av = _av()
        self.close()
        how: dict[str, Any] = {
            "options": {"format_whitelist": FORMATS, "protocol_whitelist": "file"},
            "metadata_errors": "replace",  # titles and the like, which nobody asked for
        }
        try:
            if is_url(self.path):
                self._file = open_binary(self.path)
                self._container = av.open(self._file, "r", buffer_size=_IO_BYTES, **how)
            else:  # the prefix keeps a colon in a name from being read as a protocol
                self._container = av.open(f"file:{os.path.abspath(self.path)}", "r", **how)
            if not self._container.streams.video:
                raise DataFormatError(f"{self.path} has no video stream")
            self._stream: Any = self._container.streams.video[0]
            context = self._stream.codec_context
            if context is None:
                raise UnsupportedFeatureError(f"{self.path}: there is no decoder for its video stream")
            context.thread_type = "AUTO"
            context.thread_count = self._threads
            context.options = {"max_pixels": str(MAX_FRAME_PIXELS)}
            self._check_size()
        except av.error.FFmpegError as error:
            raise self._as_ours(error, "is not a video that can be read") from error
        self._tick = float(self._stream.time_base or 0) or 1e-3
        self._start = self._stream.start_time or 0
        self._frames: Iterator[Any] = self._decoded(self._container.demux(self._stream), None)
        self._current: Any = None
        self._ahead: Any = None
        self._begun = False

    @property
    def frames(self) -> int:
        """Number of frames, 0 if the file does not say. O(1)."""
        return int(self._stream.frames or 0)

    @property
    def info(self) -> VideoInfo:
        """What the file says of itself. Decodes a frame, the first time.

        Raises:
            DataFormatError: the file is damaged, or claims more than any camera gives.
        """
        if self._info is None:
            try:
                self._info = self._describe()
            except _av().error.FFmpegError as error:
                raise self._as_ours(error, "cannot be decoded") from error
        return self._info

    def _describe(self) -> VideoInfo:
        context = self._stream.codec_context
        height, width = self._check_size()
        bits = max((part.bits for part in context.format.components), default=8) if context.format else 8
        grey = (context.pix_fmt or "").startswith("gray")
        if self._peek() is None and self._current is None:
            raise DataFormatError(f"{self.path} has no frames")
        if self._quarter_turns(self._current or self._ahead) % 2:
            height, width = width, height
        rate = self._stream.average_rate
        return VideoInfo(
            codec=str(getattr(context.codec, "canonical_name", context.codec.name)),
            height=height,
            width=width,
            channels=1 if grey else 3,
            dtype=np.dtype(np.uint16 if grey and bits > 8 else np.uint8),
            fps=float(rate) if rate else None,
            frames=self.frames,
        )

    def _check_size(self) -> tuple[int, int]:
        context = self._stream.codec_context
        height, width = int(context.height or 0), int(context.width or 0)
        if not 0 < height * width <= MAX_FRAME_PIXELS:
            raise DataFormatError(
                f"{self.path} claims {height} x {width} pixels; 1 to {MAX_FRAME_PIXELS} are allowed"
            )
        return height, width

    def _quarter_turns(self, frame: Any) -> int:
        """Quarter turns, counterclockwise, by which a frame is to be turned."""
        degrees = round(getattr(frame, "rotation", 0) or 0)
        turns, rest = divmod(degrees, 90)
        if rest:
            raise UnsupportedFeatureError(
                f"{self.path} is to be shown turned by {degrees} degrees; only quarter turns can be"
            )
        return turns % 4

    @property
    def position(self) -> float | None:
        """Time of the frame given last, ``None`` before the first one."""
        return None if self._current is None else self._time(self._current)

    def read(
        self,
        times: Sequence[float],
        out: npt.NDArray[Any],
        *,
        period: float,
        where: str,
        first: int = 0,
    ) -> None:
        """Decode the frames shown at ``times`` into ``out``.

        O(frames from the last one given to the last one wanted); after a jump, from the keyframe before.

        Args:
            times: ascending. Of each the nearest frame is taken, half a period away at most.
            out: ``[n, H, W, C]``, C-contiguous, of the dtype that is wanted.
            period: seconds from frame to frame.
            where: named in messages, before the step.
            first: step of the first time, for messages.

        Raises:
            DataFormatError: there is no frame within half a period, or it cannot be decoded, or it is of
                another size than ``out`` has.
        """
        self._slack = min(max(CLOCK_SLACK, self._tick), period / 8)
        step = first
        try:
            for step, (time, target) in enumerate(zip(times, out, strict=True), first):
                if step == first:
                    self._approach(time, period)
                frame = self._nearest(time)
                if frame is None or abs(self._time(frame) - time) > period / 2 + self._slack:
                    raise DataFormatError(self._no_frame(frame, time))
                self._convert(frame, target)
        except DataFormatError as error:
            raise type(error)(f"{where}, step {step}: {error}") from error
        except _av().error.FFmpegError as error:
            reason = self._as_ours(error, f"cannot be decoded near {times[step - first]:.3f} s")
            raise DataFormatError(f"{where}, step {step}: {reason}") from error

    def _approach(self, time: float, period: float) -> None:
        """Decode on where that leads to ``time`` soon, else jump."""
        position = self.position
        if position is None and not self._begun:
            position = 0.0 if self._ahead is None else self._time(self._ahead)
            time = max(time, position)  # reading begins here, wherever that is
        if position is None or not -self._slack <= time - position <= FORWARD_FRAMES * period:
            self._jump(time)

    def _jump(self, time: float) -> None:
        """To the last keyframe shown at or before ``time``, whatever the container's index says of it."""
        back = 0.0
        while time - back >= 0:
            at = self._start + round((time - back) / self._tick)
            try:
                self._container.seek(at, stream=self._stream, backward=True)
            except _av().error.FFmpegError:  # not every container can: from the start, then
                break
            packets = self._container.demux(self._stream)
            packet = next(packets, None)
            if packet is not None and packet.is_keyframe and packet.pts is not None:
                shown = (packet.pts - self._start) * self._tick
                if shown <= time + self._slack:
                    self._frames = self._decoded(packets, packet, shown - self._slack)
                    self._current = self._ahead = None
                    self._begun = True
                    return
            back = max(1.0, 2 * back)
        self._open()
        self._begun = True

    def _decoded(self, packets: Iterator[Any], first: Any, valid_from: float = -np.inf) -> Iterator[Any]:
        """Frames in the order they are shown in, those before ``valid_from`` left out."""
        while True:
            packet = first if first is not None else next(packets, None)
            first = None
            if packet is None:
                return
            if packet.is_corrupt:
                raise DataFormatError(f"{self.path} is cut short or damaged at byte {packet.pos}")
            for frame in packet.decode():
                if frame.pts is None:
                    raise DataFormatError(f"{self.path} has frames without presentation times")
                if self._time(frame) < valid_from:
                    continue
                if frame.is_corrupt:
                    raise DataFormatError(f"{self.path}: the frame at {self._time(frame):.3f} s is damaged")
                yield frame

    def _nearest(self, time: float) -> Any:
        """The frame nearest to ``time``, which does not lie before that of the last call."""
        while self._current is None or self._time(self._current) < time - self._slack:
            ahead = self._peek()
            if ahead is None:
                break
            if self._current is not None:
                before, after = self._time(self._current), self._time(ahead)
                if before < after and abs(after - time) >= abs(before - time):
                    break
            self._current, self._ahead = ahead, None
            self._begun = True
        return self._current

    def _peek(self) -> Any:
        if self._ahead is None:
            self._ahead = next(self._frames, None)
        return self._ahead

    def _time(self, frame: Any) -> float:
        return float((frame.pts - self._start) * self._tick)

    def _no_frame(self, frame: Any, time: float) -> str:
        text = f"{self.path} has no frame at {time:.4f} s"
        if frame is None:
            return f"{text}: it has none at all from there on"
        if self._ahead is None and self._peek() is None:
            return f"{text}: it ends at {self._time(frame):.4f} s" + (
                f" after {self.frames} frames" if self.frames else ""
            )
        return f"{text}: the nearest one is at {self._time(frame):.4f} s"

    def _convert(self, frame: Any, out: npt.NDArray[Any]) -> None:
        height, width, channels = out.shape
        turns = self._quarter_turns(frame)
        shown = (frame.height, frame.width) if turns % 2 == 0 else (frame.width, frame.height)
        if shown != (height, width):
            raise DataFormatError(
                f"the frame of {self.path} at {self._time(frame):.4f} s has {shown[0]} x {shown[1]} pixels, "
                f"expected {height} x {width}"
            )
        if out.dtype == np.uint16:
            if not frame.format.name.startswith("gray") or frame.format.components[0].bits <= 8:
                raise DataFormatError(f"{self.path} holds {frame.format.name}, not 16-bit grey")
            big = frame.format.name.endswith("be")
            pixels = _plane(frame, np.dtype(">u2" if big else "<u2"), 1)
        else:
            converted = frame.reformat(format="rgb24" if channels == 3 else "gray")
            pixels = _plane(converted, np.dtype(np.uint8), channels)
        out[...] = np.rot90(pixels, turns) if turns else pixels

    def _as_ours(self, error: Any, what: str) -> Exception:
        if isinstance(error, OSError) and error.errno and not isinstance(error, ValueError):
            if isinstance(error, FileNotFoundError):
                return FileNotFoundError(error.errno, "there is no such video", self.path)
            return OSError(error.errno, os.strerror(error.errno), self.path)
        return DataFormatError(f"{self.path} {what}: {getattr(error, 'strerror', None) or error}")

    def close(self) -> None:
        """Close the file. Does nothing the second time."""
        container, self._container = self._container, None
        file, self._file = self._file, None
        self._frames = iter(())
        self._current = self._ahead = self._stream = None
        if container is not None:
            container.close()
        if file is not None:
            file.close()


def _plane(frame: Any, dtype: np.dtype[Any], channels: int) -> npt.NDArray[Any]:
    """The pixels of a packed frame, ``[H, W, C]``, without a copy."""
    plane = frame.planes[0]
    rows = np.frombuffer(plane, dtype).reshape(-1, plane.line_size // dtype.itemsize)
    return rows[: frame.height, : frame.width * channels].reshape(frame.height, frame.width, channels)


def _av() -> Any:
    try:
        import av
    except ImportError as error:
        raise ImportError("videos need PyAV: pip install 'replaybank[openx]'") from error
    return av
