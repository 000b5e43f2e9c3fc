"""Encoded camera frames: told apart by their first bytes, checked by their headers, decoded on request."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from typing import Any, Final, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from replaybank.datasets.openx.sources.base import FieldSpec
from replaybank.errors import DataFormatError
from replaybank.storages.frames import jpegs_into

MAX_FRAME_PIXELS: Final = 1 << 26
"""No robot camera comes near (8192 x 8192); a header that claims more is a bomb, whatever the schema says."""

JPEG_START: Final = b"\xff\xd8\xff"
PNG_START: Final = b"\x89PNG\r\n\x1a\n"
JPEG_COLORSPACES: Final = {1: "GRAY", 3: "RGB"}
PNG_MODES: Final = {1: "L", 3: "RGB", 4: "RGBA"}
PNG_HEADER_SIZE: Final = 26
_PNG_GRAYSCALE: Final = 0
PIXEL_FLOAT_BYTES: Final = 4
"""A float32 depth value lies bit-cast in the four 8-bit channels of an RGBA pixel."""


def image_format(frame: bytes | memoryview) -> Literal["jpeg", "png"] | None:
    r"""What a frame is, by its first bytes.

    >>> image_format(b"\xff\xd8\xff\xe0"), image_format(b"GIF89a")
    ('jpeg', None)
    """
    if frame[:3] == JPEG_START:
        return "jpeg"
    return "png" if frame[:8] == PNG_START else None


def frame_spec(frame: bytes, where: str) -> FieldSpec:
    """What one frame is, by its header: its shape ``(H, W, C)`` and its dtype. O(1) for PNG and JPEG alike.

    Raises:
        DataFormatError: it is neither JPEG nor PNG, or its header is broken.
        ImportError: the decoder is not installed.
    """
    head = _header(memoryview(frame), where)
    dtype = np.dtype(np.uint16 if head.bits > 8 else np.uint8)
    return FieldSpec("image", (head.height, head.width, head.stored_channels), dtype)


class EncodedImages:
    """The frames of one camera over an episode, as byte ranges of the payload they came in.

    Holds the whole payload for as long as it lives. Immutable, so safe to share between threads.

    Args:
        payload: the bytes that the frames lie in.
        spans: int64 ``[T, 2]``: offset and length of each frame.
        spec: declared shape ``(H, W, C)``, -1 where unknown, and dtype.
        where: dataset, episode and key, for messages.
    """

    def __init__(self, payload: bytes, spans: npt.NDArray[np.int64], spec: FieldSpec, where: str) -> None:
        self._payload = payload
        self._spans = spans
        self._spec = spec
        self._where = where

    def __len__(self) -> int:
        return len(self._spans)

    @property
    def nbytes(self) -> int:
        """Bytes of the frames as they are stored."""
        return int(self._spans[:, 1].sum())

    def __iter__(self) -> Iterator[bytes]:
        return iter(self.encoded())

    def encoded(self, start: int = 0, stop: int | None = None) -> list[bytes]:
        """Frames ``start`` to ``stop`` as they are stored, one ``bytes`` a step. O(their bytes)."""
        return [self._payload[at : at + size] for at, size in self._spans[start:stop].tolist()]

    def spans(self) -> tuple[bytes, npt.NDArray[np.int64]]:
        """The payload, and where the frames lie in it. O(1)."""
        return self._payload, self._spans

    def decode(self, start: int = 0, stop: int | None = None) -> npt.NDArray[Any]:
        """Frames ``start`` to ``stop``, ``[n, H, W, C]`` in the declared dtype; colour is RGB.

        Args:
            start: first frame.
            stop: the frame to stop before; by default all frames from ``start`` on.

        Raises:
            DataFormatError: a frame cannot be decoded, or is not of the declared shape or dtype.
            ImportError: the decoder is not installed.
        """
        return self.decode_into(None, start, stop)

    def decode_into(
        self, room: npt.NDArray[Any] | None, start: int = 0, stop: int | None = None
    ) -> npt.NDArray[Any]:
        """The same, in ``room`` where that is an array of the result's shape and dtype."""
        view = memoryview(self._payload)
        frames = [view[at : at + size] for at, size in self._spans[start:stop].tolist()]
        return decode_frames(frames, self._spec, self._where, start, room)


def decode_frames(
    frames: Sequence[bytes | memoryview],
    spec: FieldSpec,
    where: str,
    start: int = 0,
    room: npt.NDArray[Any] | None = None,
) -> npt.NDArray[Any]:
    """Decode frames into one array, ``[T, H, W, C]``; headers are checked before anything is allocated.

    Args:
        frames: JPEG or PNG each, told apart by the first bytes.
        spec: declared shape, -1 where unknown (then the first frame's), and dtype.
        where: named in messages, before the frame's number.
        start: number of the first of these frames in its episode.
        room: taken for the array where it is contiguous and has its shape and dtype; by default a new one.

    Raises:
        DataFormatError: a frame is unreadable, or not of the declared shape and dtype.
        ImportError: the decoder is not installed.
    """
    dtype = np.dtype(np.uint8) if spec.dtype is None else spec.dtype
    shape = spec.shape if len(spec.shape) == 3 else (-1, -1, -1)
    if not frames:
        return np.empty((0, *(max(size, 0) for size in shape)), dtype=dtype)
    if room is not None and room.shape == (len(frames), *shape) and room.dtype == dtype:
        out, expected = room, shape  # all is declared, and nothing to be allocated
    else:
        place = f"{where}: frame {start}"
        first = _header(frames[0], place)
        known = (first.height, first.width, first.channels(dtype))
        height, width, channels = (known[i] if size < 0 else size for i, size in enumerate(shape))
        expected = (height, width, channels)
        _check(first, expected, dtype, place)
        if room is not None and room.shape == (len(frames), *expected) and room.dtype == dtype:
            out = room
        else:
            out = np.empty((len(frames), *expected), dtype=dtype)
    color = jpeg_color(expected, dtype)
    number = 0
    while number < len(frames):
        if color is not None and image_format(frames[number]) == "jpeg":
            number = jpegs_into(frames, out, color, number)
        if number < len(frames):  # no JPEG, or something is wrong with it
            _decode_checked(frames[number], out[number], expected, dtype, f"{where}: frame {start + number}")
            number += 1
    return out


def jpeg_color(shape: tuple[int, ...], dtype: np.dtype[Any]) -> str | None:
    """What a JPEG gives frames ``(H, W, C)`` of this shape and dtype as; None where it cannot, or may not."""
    height, width, channels = shape
    good = dtype == np.uint8 and height * width <= MAX_FRAME_PIXELS
    return JPEG_COLORSPACES.get(channels) if good else None


def _decode_checked(
    frame: bytes | memoryview,
    out: npt.NDArray[Any],
    expected: tuple[int, int, int],
    dtype: np.dtype[Any],
    place: str,
) -> None:
    """Decode one frame, its header checked first.

    Raises:
        DataFormatError: it is unreadable, or not of the expected shape and dtype.
    """
    head = _header(frame, place)
    _check(head, expected, dtype, place)
    try:
        if head.format == "jpeg":
            _decode_jpeg(frame, out)
        else:
            out[...] = _decode_png(frame, expected[2], dtype)
    except (ValueError, OSError, SyntaxError, EOFError) as error:
        raise DataFormatError(f"{place} cannot be decoded: {error}") from error


def check_headers(frames: Sequence[bytes], spec: FieldSpec, where: str, start: int = 0) -> None:
    """Check what frames say of themselves, without decoding them. O(frames).

    Args:
        frames: JPEG or PNG each; one of no bytes is none.
        spec: their shape ``(H, W, C)`` and dtype.
        where: named in messages, before the frame's number.
        start: number of the first of these frames in its episode.

    Raises:
        DataFormatError: a frame is neither, or not of that shape and dtype.
    """
    height, width, channels = spec.shape
    dtype = np.dtype(np.uint8) if spec.dtype is None else spec.dtype
    for number, frame in enumerate(frames, start):
        if frame:
            place = f"{where}: frame {number}"
            _check(_header(memoryview(frame), place), (height, width, channels), dtype, place)


class _Header(NamedTuple):
    """What a frame says of itself before it is decoded."""

    format: Literal["jpeg", "png"]
    height: int
    width: int
    bits: int
    stored_channels: int

    def channels(self, dtype: np.dtype[Any]) -> int:
        return 1 if dtype == np.float32 else self.stored_channels


def _header(frame: bytes | memoryview, place: str) -> _Header:
    kind = image_format(frame)
    if kind is None:
        raise DataFormatError(
            f"{place} is neither JPEG nor PNG: its {len(frame)} bytes start with {bytes(frame[:8])!r}"
        )
    head = _jpeg_header(frame, place) if kind == "jpeg" else _png_header(frame, place)
    if head.height * head.width > MAX_FRAME_PIXELS or not head.height or not head.width:
        raise DataFormatError(
            f"{place} claims {head.height} x {head.width} pixels; 1 to {MAX_FRAME_PIXELS} are allowed"
        )
    return head


def _jpeg_header(frame: bytes | memoryview, place: str) -> _Header:
    try:
        height, width, colorspace, _ = _simplejpeg().decode_jpeg_header(frame)
    except ValueError as error:
        raise DataFormatError(f"{place} cannot be decoded: {error}") from error
    return _Header("jpeg", height, width, 8, 1 if colorspace.lower() == "gray" else 3)


def _png_header(frame: bytes | memoryview, place: str) -> _Header:
    if len(frame) < PNG_HEADER_SIZE or bytes(frame[12:16]) != b"IHDR":
        raise DataFormatError(f"{place} cannot be decoded: a PNG of {len(frame)} bytes without a header")
    width, height = (int.from_bytes(frame[at : at + 4], "big") for at in (16, 20))
    bits, color_type = frame[24], frame[25]
    channels = {0: 1, 2: 3, 3: 3, 4: 1, 6: 4}.get(color_type, 3)  # an alpha beside grey is dropped
    return _Header("png", height, width, bits, channels)


def _check(head: _Header, declared: tuple[int, int, int], dtype: np.dtype[Any], place: str) -> None:
    if (head.height, head.width) != declared[:2]:
        raise DataFormatError(
            f"{place} has {head.height} x {head.width} pixels, expected {declared[0]} x {declared[1]}"
        )
    channels = declared[2]
    if dtype == np.float32:
        good = head.format == "png" and head.bits == 8 and head.stored_channels == 4 and channels == 1
    elif dtype == np.uint16:
        good = head.format == "png" and head.bits == 16 and head.stored_channels == channels == 1
    else:
        known = JPEG_COLORSPACES if head.format == "jpeg" else PNG_MODES
        good = dtype == np.uint8 and head.bits <= 8 and channels in known
    if not good:
        raise DataFormatError(
            f"{place} is a {head.format.upper()} of {head.stored_channels} channels of {head.bits} bits, "
            f"which does not give {dtype} with {channels} channels"
        )


def _decode_jpeg(frame: bytes | memoryview, out: npt.NDArray[Any]) -> npt.NDArray[Any]:
    colorspace = JPEG_COLORSPACES[out.shape[2]]
    decoded: npt.NDArray[Any] = _simplejpeg().decode_jpeg(frame, colorspace=colorspace, buffer=out)
    return decoded


def _decode_png(frame: bytes | memoryview, channels: int, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    with _pillow().open(io.BytesIO(frame), formats=("PNG",)) as image:
        if dtype == np.uint16:
            return np.asarray(image).astype(np.uint16).reshape(image.height, image.width, 1)
        mode = "RGBA" if dtype == np.float32 else PNG_MODES[channels]
        pixels = np.asarray(image if image.mode == mode else image.convert(mode))
        if dtype == np.float32:
            return np.ascontiguousarray(pixels).view("<f4")
        return pixels.reshape(image.height, image.width, channels)


def encode_frame(pixels: npt.NDArray[Any], image_format: str, quality: int = 95) -> bytes:
    """Encode one frame.

    Args:
        pixels: ``[H, W, C]``: uint8 of 1, 3 (or, as PNG, 4) channels; uint16 or float32 of one channel,
            which are always PNG.
        image_format: ``"jpeg"`` or ``"png"``.
        quality: of a JPEG, 1 to 100.

    Raises:
        ValueError: the format cannot hold such pixels.
        ImportError: the encoder is not installed.
    """
    channels = pixels.shape[2]
    pixels = np.ascontiguousarray(pixels)
    if pixels.dtype == np.uint8 and image_format == "jpeg" and channels in JPEG_COLORSPACES:
        encoded: bytes = _simplejpeg().encode_jpeg(
            pixels,
            quality=quality,
            colorspace=JPEG_COLORSPACES[channels],
            colorsubsampling="420" if channels == 3 else "Gray",
        )
        return encoded
    if pixels.dtype == np.float32 and channels == 1:
        return _png(pixels.astype("<f4").view(np.uint8))
    if pixels.dtype == np.uint16 and channels == 1:
        return _png(pixels[:, :, 0])
    if pixels.dtype == np.uint8 and image_format == "png" and channels in PNG_MODES:
        return _png(pixels if channels > 1 else pixels[:, :, 0])
    raise ValueError(f"{image_format} cannot hold frames of {pixels.dtype} with {channels} channels")


def _png(pixels: npt.NDArray[Any]) -> bytes:
    file = io.BytesIO()
    _pillow().fromarray(pixels).save(file, "PNG")
    return file.getvalue()


def _simplejpeg() -> Any:
    try:
        import simplejpeg
    except ImportError as error:
        raise ImportError("JPEG frames need simplejpeg: pip install 'replaybank[openx]'") from error
    return simplejpeg


def _pillow() -> Any:
    try:
        from PIL import Image
    except ImportError as error:
        raise ImportError("PNG frames need Pillow: pip install 'replaybank[openx]'") from error
    return Image
