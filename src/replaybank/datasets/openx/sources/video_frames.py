"""The frames of one camera over an episode, in a video, and the few videos that are open at a time."""

from __future__ import annotations

import os
import threading
import warnings
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from replaybank.datasets.openx.sources.base import FieldSpec
from replaybank.datasets.openx.sources.images import encode_frame
from replaybank.datasets.openx.sources.video import FORWARD_FRAMES, VideoInfo, VideoReader

OPEN_VIDEOS: Final = max(8, 2 * (os.cpu_count() or 1))
"""Videos kept open while nobody reads them: as many as cores that decode, and some cameras more."""
JPEG_QUALITY: Final = 95
"""Of video frames that are wanted encoded: a video has no single frames to hand out."""
_ENCODE_FRAMES: Final = 8
"""Decoded at a time on the way to JPEG."""


class OpenVideos:
    """Videos open for reading, with their positions: who reads on where another stopped need not jump.

    Thread-safe: a reader belongs to one call at a time. Pickles as an empty one. Decoders have threads, which
    do not survive a fork, so whatever is idle then is closed first.

    Args:
        threads: of each decoder; 0: as many as there are cores.
        limit: readers kept open while idle.
    """

    def __init__(self, threads: int = 0, limit: int = OPEN_VIDEOS) -> None:
        self.threads = threads
        self.limit = limit
        self._idle: list[VideoReader] = []  # the one used last is the last
        self._lock = threading.Lock()
        _ALL.add(self)

    @contextmanager
    def reader(self, path: str, time: float, period: float, *, last: bool = False) -> Iterator[VideoReader]:
        """A reader of ``path``, best one that is shortly before ``time``; closed after an error.

        Args:
            path: file or URL.
            time: seconds; where reading will start.
            period: seconds from frame to frame.
            last: nothing will be read behind it: close it afterwards.
        """
        reader = self._take(path, time, period) or VideoReader(path, self.threads)
        try:
            yield reader
        except BaseException:
            reader.close()
            raise
        if last:
            reader.close()
        else:
            self._give(reader)

    def _take(self, path: str, time: float, period: float) -> VideoReader | None:
        with self._lock:
            same = [reader for reader in self._idle if reader.path == path]
            near = [
                reader
                for reader in same
                if -period / 2 <= time - (reader.position or 0.0) <= FORWARD_FRAMES * period
            ]
            # One reader that waits elsewhere in the file may be wanted there; of two, one can jump.
            chosen = near[-1] if near else same[0] if len(same) > 1 else None
            if chosen is not None:
                self._idle.remove(chosen)
            return chosen

    def _give(self, reader: VideoReader) -> None:
        with self._lock:
            self._idle.append(reader)
            dropped = self._idle[: -self.limit] if self.limit else list(self._idle)
            self._idle = self._idle[len(dropped) :]
        for old in dropped:
            old.close()

    def close(self) -> None:
        """Close what is idle."""
        with self._lock:
            idle, self._idle = self._idle, []
        for reader in idle:
            reader.close()

    def __reduce__(self) -> tuple[type[OpenVideos], tuple[int, int]]:
        return type(self), (self.threads, self.limit)


_ALL: weakref.WeakSet[OpenVideos] = weakref.WeakSet()


def _close_all() -> None:
    for videos in list(_ALL):
        videos.close()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_close_all)


class VideoFrames:
    """The frames of one camera over an episode; nothing is decoded until asked for.

    Asked for one part after the other they are decoded once, forward. Thread-safe. Pickles as a path.

    Args:
        videos: where open videos are kept.
        path: of the video, which may hold other episodes too.
        times: float64 ``[T]``, ascending: seconds at which the frames are shown.
        period: seconds from frame to frame.
        spec: shape ``(H, W, C)`` and dtype of a frame.
        where: dataset, episode and camera, for messages.
        last: the video ends with this episode, as far as anyone will read it.
    """

    def __init__(
        self,
        videos: OpenVideos,
        path: str,
        times: npt.NDArray[np.float64],
        period: float,
        spec: FieldSpec,
        where: str,
        *,
        last: bool = False,
    ) -> None:
        self._videos = videos
        self.path = path
        self._times = times
        self._period = period
        self._spec = spec
        self._where = where
        self._last = last

    def __len__(self) -> int:
        return len(self._times)

    @property
    def nbytes(self) -> int:
        """Bytes of memory: the frames are in the file."""
        return int(self._times.nbytes)

    def info(self) -> VideoInfo:
        """What the file says of itself. Opens it, and decodes its first frame.

        Raises:
            DataFormatError: it is damaged.
            OSError: it cannot be read.
        """
        with self._videos.reader(self.path, -1.0, self._period, last=True) as reader:
            return reader.info

    def count(self) -> int:
        """Number of frames that the file says it has, of all episodes in it; 0 if it does not say. Opens it.

        Raises:
            DataFormatError: it is no video.
            OSError: it cannot be read.
        """
        with self._videos.reader(self.path, -1.0, self._period, last=True) as reader:
            return reader.frames

    def decode(self, start: int = 0, stop: int | None = None) -> npt.NDArray[Any]:
        """Frames ``start`` to ``stop``, ``[n, H, W, C]``; colour is RGB.

        O(frames) where the last call ended at ``start``; else also from the keyframe before.

        Args:
            start: first frame.
            stop: the frame to stop before; by default all frames from ``start`` on.

        Raises:
            DataFormatError: a frame cannot be decoded, is not of the declared shape, or the video has none at
                its time; names dataset, episode, camera, step, file and time.
            OSError: the file cannot be read.
        """
        return self.decode_into(None, start, stop)

    def decode_into(
        self, room: npt.NDArray[Any] | None, start: int = 0, stop: int | None = None
    ) -> npt.NDArray[Any]:
        """The same, in ``room`` where that is an array of the result's shape and dtype."""
        start, stop, _ = slice(start, stop).indices(len(self))
        times = self._times[start:stop].tolist()
        dtype = np.dtype(np.uint8) if self._spec.dtype is None else self._spec.dtype
        height, width, channels = self._spec.shape
        if not times:
            return np.empty((0, max(height, 0), max(width, 0), max(channels, 0)), dtype)
        last = self._last and stop == len(self)
        with self._videos.reader(self.path, times[0], self._period, last=last) as reader:
            if min(height, width, channels) < 0:
                found = (reader.info.height, reader.info.width, reader.info.channels)
                height, width, channels = (
                    f if size < 0 else size for size, f in zip(self._spec.shape, found, strict=True)
                )
            out: npt.NDArray[Any]
            if (
                room is not None
                and room.shape == (len(times), height, width, channels)
                and room.dtype == dtype
            ):
                out = room
            else:
                out = np.empty((len(times), height, width, channels), dtype)
            reader.read(times, out, period=self._period, where=self._where, first=start)
        return out

    def encoded(self, start: int = 0, stop: int | None = None) -> list[bytes]:
        """Frames ``start`` to ``stop``, each encoded anew: JPEG of quality 95, 16-bit grey as PNG. O(frames).

        Warns once that this loses quality: a video has no single frames to hand out.
        """
        warnings.warn(
            "a video has no single encoded frames: they are decoded and encoded anew, as JPEG of quality "
            f"{JPEG_QUALITY} (16-bit grey as PNG)",
            stacklevel=2,
        )
        frames: list[bytes] = []
        first, last, _ = slice(start, stop).indices(len(self))
        for at in range(first, last, _ENCODE_FRAMES):
            part = self.decode(at, min(at + _ENCODE_FRAMES, last))
            frames.extend(encode_frame(frame, "jpeg", JPEG_QUALITY) for frame in part)
        return frames
