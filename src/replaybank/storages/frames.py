"""Images as JPEG or PNG bytes: encoding, decoding, and what a saved state holds of them."""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from replaybank.storages.channels import put
from replaybank.storages.layout import LeafSpec
from replaybank.storages.room import GROUP_BYTES, room_for
from replaybank.storages.structure import show

Pixels = npt.NDArray[np.uint8]

_JPEG_COLORS = {1: "GRAY", 3: "RGB"}
_PNG_MODES = {1: "L", 3: "RGB", 4: "RGBA"}
_JPEG_START, _PNG_START = b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n"

THREADED_PIXELS = 1 << 16
"""Bytes of pixels from which on frames are shared out over threads: a thousand microseconds of decoding,
beside some twenty for handing them out."""


@dataclass(frozen=True)
class EncodedFrames:
    """How an entry of images is kept: as JPEG or PNG bytes, decoded when it is sampled.

    For ``LazyTensorStorage(N, encoded={"pixels": EncodedFrames("jpeg")})`` and ``LazyMemmapStorage``. Images
    are uint8, ``[H, W, C]`` an item. What is read of a PNG is what was written; a JPEG changes pixels a
    little, takes a tenth of the room or less, and decodes several times faster. Needs simplejpeg or Pillow
    (the extra ``replaybank[images]``).

    Immutable, so safe in any thread.

    Args:
        format: ``"jpeg"`` (1 or 3 channels) or ``"png"`` (1, 3 or 4).
        quality: of a JPEG, 1 to 100.
        channels_first: images are ``[C, H, W]``.

    Raises:
        ValueError: another format or quality.
        ImportError: the encoder is not installed.

    Example:
        >>> from replaybank.storages import LazyTensorStorage
        >>> storage = LazyTensorStorage(100, encoded={"pixels": EncodedFrames("png")})
        >>> storage.set(range(2), {"pixels": torch.zeros(2, 64, 64, 3, dtype=torch.uint8)})
        >>> storage[0]["pixels"].shape
        torch.Size([64, 64, 3])
    """

    format: Literal["jpeg", "png"] = "jpeg"
    quality: int = 95
    channels_first: bool = False

    def __post_init__(self) -> None:
        if self.format not in ("jpeg", "png"):
            raise ValueError(f"format={self.format!r}: give 'jpeg' or 'png'.")
        if not 1 <= self.quality <= 100:
            raise ValueError(f"quality={self.quality}: give 1 to 100.")
        _simplejpeg() if self.format == "jpeg" else _pillow()

    def check(self, leaf: LeafSpec) -> None:
        """Raise ValueError unless images of this leaf can be encoded.

        Args:
            leaf: key, dtype and shape of an entry.
        """
        allowed = sorted(_JPEG_COLORS if self.format == "jpeg" else _PNG_MODES)
        shape = leaf.shape
        if (
            leaf.dtype != torch.uint8
            or len(shape) != 3
            or _channels(shape, self) not in allowed
            or 0 in shape
        ):
            form = "[C, H, W]" if self.channels_first else "[H, W, C]"
            raise ValueError(
                f"{show(leaf.key)} is to be kept as {self.format.upper()}: that takes uint8 images {form} "
                f"with {allowed} channels, got {leaf.dtype} {list(shape)}. Nothing has been written."
            )

    def encode(self, image: Pixels) -> bytes:
        """One image ``[H, W, C]`` (or ``[C, H, W]``) as bytes.

        Args:
            image: uint8, C-contiguous or not.

        Example:
            >>> image = np.arange(48, dtype=np.uint8).reshape(4, 4, 3)
            >>> kept, again = EncodedFrames("png"), np.empty_like(image)
            >>> kept.decode(kept.encode(image), again)
            >>> bool((again == image).all())
            True
        """
        pixels = np.ascontiguousarray(image.transpose(1, 2, 0) if self.channels_first else image)
        channels = pixels.shape[2]
        if self.format == "jpeg":
            content: bytes = _simplejpeg().encode_jpeg(
                pixels,
                quality=self.quality,
                colorspace=_JPEG_COLORS[channels],
                colorsubsampling="420" if channels == 3 else "Gray",
            )
            return content
        file = io.BytesIO()
        _pillow().fromarray(pixels if channels > 1 else pixels[..., 0]).save(file, "PNG", compress_level=3)
        return file.getvalue()

    def decode(self, content: bytes, out: Pixels) -> None:
        """Bytes of either format into an image of the shape that was encoded.

        Args:
            content: a JPEG or PNG.
            out: uint8, of the shape that was encoded; written.

        Raises:
            ValueError: they are no such image.
        """
        if out.flags.c_contiguous and not self.channels_first:
            _decode(content, out)
            return
        pixels = np.empty(_pixels_of(out.shape, self), np.uint8)
        _decode(content, pixels)
        out[...] = pixels.transpose(2, 0, 1) if self.channels_first else pixels

    def decode_all(self, read: Callable[[int], bytes], out: Tensor) -> None:
        """Images ``out[k]`` of the bytes ``read(k)``, in several threads where there is enough to do.

        Args:
            read: gives the bytes of the k-th image.
            out: uint8 ``[n, ...]``, contiguous; written.

        Raises:
            ValueError: one is no such image.
        """
        if not len(out):
            return
        images: Pixels = out.numpy()
        shape, size = _pixels_of(images.shape[1:], self), images[0].nbytes
        group = max(1, GROUP_BYTES // size)

        def decode(start: int, stop: int) -> None:
            for first in range(start, stop, group):
                last = min(first + group, stop)
                contents = [read(k) for k in range(first, last)]
                if not self.channels_first:
                    _decode_run(contents, images[first:last])
                    continue
                pixels = room_for("pixels", (last - first, *shape), images.dtype)
                _decode_run(contents, pixels)
                put(pixels, images, first)

        share_out(len(images), size, decode)

    def encode_all(self, images: Tensor) -> list[bytes]:
        """Images ``[k, ...]`` as bytes, in several threads where there is enough to do.

        Args:
            images: uint8.
        """
        pixels: Pixels = images.numpy()
        found: list[bytes] = [b""] * len(images)

        def encode(start: int, stop: int) -> None:
            for k in range(start, stop):
                found[k] = self.encode(pixels[k])

        share_out(len(images), images[0].numel() if len(images) else 0, encode)
        return found


def decoded_again(
    leaves: list[Tensor | None], state: Sequence[Mapping[str, Any]], dims: tuple[int, ...]
) -> None:
    """Put the images of a dump among its leaves. O(items * pixels).

    Raises:
        ValueError: the dump is damaged.
    """
    for entry in state:
        frames, contents = frames_of(entry, torch.Size(dims).numel())
        out = torch.empty((len(contents), *entry["shape"]), dtype=torch.uint8)
        frames.decode_all(contents.__getitem__, out)
        leaves[entry["leaf"]] = out.view(*dims, *entry["shape"])


def frames_of(entry: Mapping[str, Any], count: int) -> tuple[EncodedFrames, list[bytes]]:
    """How the images of a dump were kept, and their bytes.

    Raises:
        ValueError: the dump is damaged.
    """
    sizes, content = entry["sizes"].tolist(), entry["content"]
    if len(sizes) != count or min(sizes, default=1) < 1 or sum(sizes) != content.numel():
        raise ValueError("The state is damaged: its encoded images do not match its items.")
    whole, ends = memoryview(content.numpy()), np.cumsum([0, *sizes]).tolist()
    contents = [bytes(whole[a:b]) for a, b in pairwise(ends)]
    return EncodedFrames(entry["format"], entry["quality"], entry["channels_first"]), contents


def _channels(shape: tuple[int, ...], frames: EncodedFrames) -> int:
    return shape[0] if frames.channels_first else shape[-1]


def _pixels_of(shape: tuple[int, ...], frames: EncodedFrames) -> tuple[int, ...]:
    """The shape ``(H, W, C)`` of an image."""
    return (*shape[1:], shape[0]) if frames.channels_first else shape


def jpegs_into(
    contents: Sequence[bytes | memoryview], out: npt.NDArray[Any], color: str, start: int = 0
) -> int:
    """Decode JPEGs from the ``start``-th on; the number of the first that is none of that shape, or of all.

    Nothing is looked at before: the decoder takes nothing but JPEG, reads the header before it writes, and
    never goes beyond the image that it is given; only a smaller one leaves the rest
    (``test_encoded.py::test_the_decoder_takes_jpegs_of_the_very_size_only``). Looking at each header would
    cost a tenth of a small image's time. O(pixels).

    Args:
        contents: the bytes of images.
        out: ``[n, H, W, C]``, contiguous; written.
        color: what the channels are, as the decoder calls it.
        start: number of the first image to decode.

    Raises:
        ImportError: simplejpeg is not installed.
    """
    decode, shape = _simplejpeg().decode_jpeg, out.shape[1:]
    for number in range(start, len(contents)):
        try:
            if decode(contents[number], color, buffer=out[number]).shape != shape:
                return number
        except ValueError:
            return number
    return len(contents)


def _decode_run(contents: Sequence[bytes], out: Pixels) -> None:
    """Images into ``out``, ``[n, H, W, C]``, contiguous.

    Raises:
        ValueError: one is no such image.
    """
    color = _JPEG_COLORS.get(out.shape[3])
    number = 0
    while number < len(contents):
        if color is not None and contents[number][:3] == _JPEG_START:
            number = jpegs_into(contents, out, color, number)
        if number < len(contents):
            _decode(contents[number], out[number])
            number += 1


def _decode(content: bytes, out: Pixels) -> None:
    """An image into ``out``, ``[H, W, C]``, contiguous.

    Raises:
        ValueError: it is no such image.
    """
    try:
        if content[:3] == _JPEG_START:
            _decode_jpeg(content, out)
        elif content[:8] == _PNG_START:
            out[...] = _decode_png(content, out.shape)
        else:
            raise ValueError(f"A stored image is neither JPEG nor PNG: it starts with {content[:8]!r}.")
    except (OSError, SyntaxError, EOFError) as error:
        raise ValueError(f"A stored image cannot be decoded: {error}") from error


def _decode_jpeg(content: bytes, out: Pixels) -> None:
    codec, shape = _simplejpeg(), out.shape
    color = _JPEG_COLORS.get(shape[2])
    if color is None:
        raise ValueError(f"A stored image is a JPEG, which has no {shape[2]} channels.")
    try:
        # It reads the header before it writes, and never beyond the buffer; a smaller image leaves the rest.
        found = codec.decode_jpeg(content, colorspace=color, buffer=out).shape
    except ValueError:
        found = (*codec.decode_jpeg_header(content)[:2], shape[2])
        if found == shape:
            raise
    if found != shape:
        raise ValueError(f"A stored image has {found[0]} x {found[1]} pixels, expected {list(shape)}.")


def _decode_png(content: bytes, shape: tuple[int, ...]) -> Pixels:
    with _pillow().open(io.BytesIO(content), formats=("PNG",)) as image:
        # The size is in the header: a bomb is refused before it is unpacked.
        if (image.height, image.width) != tuple(shape[:2]) or image.mode != _PNG_MODES.get(shape[2]):
            raise ValueError(
                f"A stored image has {image.height} x {image.width} {image.mode} pixels, "
                f"expected {list(shape)}."
            )
        return np.asarray(image, dtype=np.uint8).reshape(shape)


def share_out(count: int, size: int, work: Callable[[int, int], None]) -> None:
    """``work(start, stop)`` for parts of ``range(count)``, in several threads where there is enough to do.

    Args:
        count: how many there are.
        size: bytes of pixels of one.
        work: must let others run, as decoders do.
    """
    threads = min(torch.get_num_threads(), count)
    if threads < 2 or count * size < THREADED_PIXELS:
        work(0, count)
        return
    ends = [count * k // threads for k in range(threads + 1)]
    futures = [_pool(threads).submit(work, *part) for part in pairwise(ends[1:])]
    work(0, ends[1])
    for future in futures:
        future.result()


_pools: dict[tuple[int, int], ThreadPoolExecutor] = {}


def _pool(threads: int) -> ThreadPoolExecutor:
    """Threads that wait for images, a pool for all storages; a forked child makes its own."""
    key = (os.getpid(), threads)
    pool = _pools.get(key)
    if pool is None:
        pool = _pools[key] = ThreadPoolExecutor(threads, thread_name_prefix="replaybank-frames")
    return pool


def _simplejpeg() -> Any:
    try:
        import simplejpeg
    except ImportError as error:
        raise ImportError("JPEG images need simplejpeg: pip install 'replaybank[images]'") from error
    return simplejpeg


def _pillow() -> Any:
    try:
        from PIL import Image
    except ImportError as error:
        raise ImportError("PNG images need Pillow: pip install 'replaybank[images]'") from error
    return Image
