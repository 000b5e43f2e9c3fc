"""Images as JPEG or PNG bytes: encoding, decoding, and what a saved state holds of them."""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from replaybank.storages.layout import LeafSpec
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
        shape = (*out.shape[1:], out.shape[0]) if self.channels_first else out.shape
        direct = out.flags.c_contiguous and not self.channels_first
        pixels = _decode(content, shape, out if direct else None)
        if not direct:
            out[...] = pixels.transpose(2, 0, 1) if self.channels_first else pixels
        elif pixels is not out:
            out[...] = pixels

    def decode_all(self, read: Callable[[int], bytes], out: Tensor) -> None:
        """Images ``out[k]`` of the bytes ``read(k)``, in several threads where there is enough to do.

        Args:
            read: gives the bytes of the k-th image.
            out: uint8 ``[n, ...]``; written.
        """
        pixels: Pixels = out.numpy()
        share_out(len(out), out[0].numel() if len(out) else 0, lambda k: self.decode(read(k), pixels[k]))

    def encode_all(self, images: Tensor) -> list[bytes]:
        """Images ``[k, ...]`` as bytes, in several threads where there is enough to do.

        Args:
            images: uint8.
        """
        pixels: Pixels = images.numpy()
        found: list[bytes] = [b""] * len(images)

        def encode(k: int) -> None:
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


def _decode(content: bytes, shape: tuple[int, ...], out: Pixels | None) -> Pixels:
    """An image ``[H, W, C]``, in ``out`` where the decoder can write there."""
    try:
        if content[:3] == _JPEG_START:
            return _decode_jpeg(content, shape, out)
        if content[:8] == _PNG_START:
            return _decode_png(content, shape)
    except (OSError, SyntaxError, EOFError) as error:
        raise ValueError(f"A stored image cannot be decoded: {error}") from error
    raise ValueError(f"A stored image is neither JPEG nor PNG: it starts with {content[:8]!r}.")


def _decode_jpeg(content: bytes, shape: tuple[int, ...], out: Pixels | None) -> Pixels:
    codec, color = _simplejpeg(), _JPEG_COLORS.get(shape[2])
    if color is None:
        raise ValueError(f"A stored image is a JPEG, which has no {shape[2]} channels.")
    if out is None:
        out = np.empty(shape, dtype=np.uint8)
    try:
        # It reads the header before it writes, and never beyond the buffer; a smaller image leaves the rest.
        found = codec.decode_jpeg(content, colorspace=color, buffer=out).shape
    except ValueError:
        found = (*codec.decode_jpeg_header(content)[:2], shape[2])
        if found == tuple(shape):
            raise
    if tuple(found) != tuple(shape):
        raise ValueError(f"A stored image has {found[0]} x {found[1]} pixels, expected {list(shape)}.")
    return out


def _decode_png(content: bytes, shape: tuple[int, ...]) -> Pixels:
    with _pillow().open(io.BytesIO(content), formats=("PNG",)) as image:
        # The size is in the header: a bomb is refused before it is unpacked.
        if (image.height, image.width) != tuple(shape[:2]) or image.mode != _PNG_MODES.get(shape[2]):
            raise ValueError(
                f"A stored image has {image.height} x {image.width} {image.mode} pixels, "
                f"expected {list(shape)}."
            )
        return np.asarray(image, dtype=np.uint8).reshape(shape)


def share_out(count: int, size: int, work: Callable[[int], None]) -> None:
    """``work(k)`` for every k, in several threads where there is enough to do.

    Args:
        count: how many there are.
        size: bytes of pixels of one.
        work: must let others run, as decoders do.
    """
    threads = min(torch.get_num_threads(), count)
    if threads < 2 or count * size < THREADED_PIXELS:
        for k in range(count):
            work(k)
        return

    def part(first: int) -> None:
        for k in range(first, count, threads):
            work(k)

    futures = [_pool(threads).submit(partial(part, first)) for first in range(1, threads)]
    part(0)
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
