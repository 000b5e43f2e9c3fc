from __future__ import annotations

import builtins
import io
import struct
import tracemalloc
import zlib
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image

from replaybank.datasets.openx.sources.base import FieldSpec
from replaybank.datasets.openx.sources.images import EncodedImages, decode_frames, encode_frame, image_format
from replaybank.errors import DataFormatError


def images(frames: list[bytes], shape: tuple[int, ...], dtype: str = "uint8") -> EncodedImages:
    """Frames that lie in one payload, with other bytes between them."""
    payload = b""
    spans = []
    for frame in frames:
        payload += b"??"
        spans.append((len(payload), len(frame)))
        payload += frame
    array = np.array(spans, dtype=np.int64).reshape(-1, 2)
    return EncodedImages(
        payload, array, FieldSpec("image", shape, np.dtype(dtype)), "shard, record 3: 'wrist'"
    )


def pixels(shape: tuple[int, ...], dtype: str = "uint8", seed: int = 0) -> npt.NDArray[Any]:
    draw = np.random.default_rng(seed)
    if dtype == "float32":
        return draw.normal(size=shape).astype(dtype)
    return draw.integers(0, np.iinfo(dtype).max, shape, dtype, endpoint=True)


def smooth(shape: tuple[int, int, int]) -> npt.NDArray[np.uint8]:
    return np.broadcast_to(np.linspace(0, 200, shape[1])[None, :, None], shape).astype(np.uint8)


@pytest.mark.parametrize(
    ("channels", "dtype"), [(1, "uint8"), (3, "uint8"), (4, "uint8"), (1, "uint16"), (1, "float32")]
)
@pytest.mark.parametrize("declared", [True, False])
def test_png_frames_come_back_as_they_were(channels: int, dtype: str, declared: bool) -> None:
    frames = pixels((3, 5, 7, channels), dtype)
    encoded = [encode_frame(frame, "png") for frame in frames]
    found = images(encoded, (5, 7, channels) if declared else (-1, -1, -1), dtype)
    assert len(found) == 3
    assert list(found) == encoded == found.encoded()
    decoded = found.decode()
    assert decoded.dtype == dtype
    np.testing.assert_array_equal(decoded, frames)


@pytest.mark.parametrize("channels", [1, 3])
def test_jpeg_frames_come_back_nearly_and_in_rgb(channels: int) -> None:
    frame = smooth((16, 24, channels)).copy()
    frame[..., 0] //= 2  # red is the darker one
    encoded = encode_frame(frame, "jpeg")
    assert image_format(encoded) == "jpeg"
    decoded = images([encoded, encoded], (16, 24, channels)).decode()
    assert decoded.shape == (2, 16, 24, channels)
    assert np.abs(decoded.astype(int) - frame).max() <= 6
    np.testing.assert_array_equal(decoded[0], decoded[1])


def test_the_format_is_told_by_the_first_bytes_frame_by_frame() -> None:
    frame = smooth((8, 8, 3))
    found = images([encode_frame(frame, "png"), encode_frame(frame, "jpeg")], (8, 8, 3)).decode()
    np.testing.assert_array_equal(found[0], frame)
    assert np.abs(found[1].astype(int) - frame).max() <= 6


def test_gray_and_palette_frames_become_the_declared_colour() -> None:
    gray = pixels((4, 4, 1))
    file = io.BytesIO()
    Image.fromarray(gray[:, :, 0]).convert("P").save(file, "PNG")
    for frame in (encode_frame(gray, "png"), file.getvalue()):
        np.testing.assert_array_equal(images([frame], (4, 4, 3)).decode()[0], np.repeat(gray, 3, axis=2))
    gray_jpeg = encode_frame(smooth((8, 8, 1)), "jpeg")
    assert images([gray_jpeg], (8, 8, 3)).decode().shape == (1, 8, 8, 3)


def test_no_frames_give_an_empty_array() -> None:
    assert images([], (4, 5, 3)).decode().shape == (0, 4, 5, 3)


def test_a_frame_of_another_shape_is_named() -> None:
    good, other = encode_frame(smooth((8, 8, 3)), "jpeg"), encode_frame(smooth((8, 9, 3)), "jpeg")
    with pytest.raises(DataFormatError, match="record 3: 'wrist': frame 1 has 8 x 9 pixels, expected 8 x 8"):
        images([good, other], (8, 8, 3)).decode()
    with pytest.raises(DataFormatError, match="frame 1 has 8 x 9 pixels, expected 8 x 8"):
        images([good, other], (-1, -1, 3)).decode()
    with pytest.raises(DataFormatError, match="frame 0 has 8 x 8 pixels, expected 16 x 8"):
        images([good], (16, 8, 3)).decode()
    # As many bytes, fewer bytes, and one that claims far more.
    turned, smaller = encode_frame(smooth((4, 16, 3)), "jpeg"), encode_frame(smooth((4, 4, 3)), "jpeg")
    for bad, shape in ((turned, "4 x 16"), (smaller, "4 x 4"), (jpeg_claiming(60, 60_000), "60 x 60000")):
        with pytest.raises(DataFormatError, match=f"frame 1 has {shape} pixels, expected 8 x 8"):
            images([good, bad], (8, 8, 3)).decode()


@pytest.mark.parametrize("kind", ["jpeg", "png"])
def test_a_frame_without_all_of_its_pixels_is_named_wherever_it_is_cut(kind: str) -> None:
    good = encode_frame(pixels((16, 16, 3)), kind)
    # Behind the pixels are a PNG's checksums and closing chunk (24 bytes), and a JPEG's closing mark.
    for size in range(len(good) - 24):
        with pytest.raises(DataFormatError, match="frame 1 "):
            images([good, good[:size]], (16, 16, 3)).decode()


def test_bytes_that_are_no_image_are_shown() -> None:
    with pytest.raises(
        DataFormatError, match="frame 0 is neither JPEG nor PNG: its 6 bytes start with b'GIF89a'"
    ):
        images([b"GIF89a"], (4, 4, 3)).decode()


def png_claiming(height: int, width: int) -> bytes:
    header = b"IHDR" + struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + struct.pack(">I", 13)
        + header
        + struct.pack(">I", zlib.crc32(header))
        + b"\0" * 99
    )


def jpeg_claiming(height: int, width: int) -> bytes:
    real = encode_frame(smooth((8, 8, 3)), "jpeg")
    at = real.index(b"\xff\xc0") + 5
    return real[:at] + struct.pack(">HH", height, width) + real[at + 4 :]


@pytest.mark.parametrize("frame", [png_claiming(60_000, 60_000), jpeg_claiming(60_000, 60_000)])
@pytest.mark.parametrize("shape", [(8, 8, 3), (-1, -1, 3), (60_000, 60_000, 3)])
def test_a_decompression_bomb_is_refused_before_anything_is_allocated(
    frame: bytes, shape: tuple[int, ...]
) -> None:
    tracemalloc.start()
    with pytest.raises(
        DataFormatError, match="frame 0 claims 60000 x 60000 pixels; 1 to 67108864 are allowed"
    ):
        images([frame], shape).decode()
    assert tracemalloc.get_traced_memory()[1] < 1_000_000
    tracemalloc.stop()


@pytest.mark.parametrize(
    ("frame", "shape", "dtype"),
    [
        (encode_frame(pixels((4, 4, 1), "uint16"), "png"), (4, 4, 1), "uint8"),
        (encode_frame(pixels((4, 4, 1)), "png"), (4, 4, 1), "uint16"),
        (encode_frame(smooth((4, 4, 1)), "jpeg"), (4, 4, 1), "uint16"),
        (encode_frame(pixels((4, 4, 3)), "png"), (4, 4, 1), "float32"),
        (encode_frame(smooth((4, 4, 3)), "jpeg"), (4, 4, 4), "uint8"),
    ],
)
def test_a_frame_of_another_depth_than_declared_is_refused(
    frame: bytes, shape: tuple[int, ...], dtype: str
) -> None:
    with pytest.raises(DataFormatError, match=f"frame 0 is a .* which does not give {dtype} with"):
        images([frame], shape, dtype).decode()


def test_pixels_that_a_format_cannot_hold_are_refused() -> None:
    with pytest.raises(ValueError, match="jpeg cannot hold frames of uint8 with 4 channels"):
        encode_frame(pixels((4, 4, 4)), "jpeg")
    with pytest.raises(ValueError, match="png cannot hold frames of uint16 with 3 channels"):
        encode_frame(pixels((4, 4, 3), "uint16"), "png")


@pytest.mark.parametrize(("module", "kind"), [("simplejpeg", "jpeg"), ("PIL", "png")])
def test_a_decoder_that_is_not_installed_is_asked_for(
    module: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    frame = memoryview(encode_frame(smooth((8, 8, 3)), kind))
    real = builtins.__import__

    def without(name: str, *rest: Any, **more: Any) -> Any:
        if name == module:
            raise ImportError(name)
        return real(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ImportError, match=r"pip install 'replaybank\[openx\]'"):
        decode_frames([frame], FieldSpec("image", (8, 8, 3), np.dtype("uint8")), "here")


def test_a_part_of_the_frames_is_that_part_of_all_of_them() -> None:
    frames = [encode_frame(np.full((4, 5, 3), shade, np.uint8), "png") for shade in range(6)]
    everything = images(frames, (4, 5, 3)).decode()
    for start in range(7):
        for stop in (*range(start, 7), None):
            np.testing.assert_array_equal(
                images(frames, (4, 5, 3)).decode(start, stop), everything[start:stop]
            )


def test_a_bad_frame_in_a_part_is_numbered_from_the_start_of_the_episode() -> None:
    good = encode_frame(np.zeros((4, 5, 3), np.uint8), "png")
    with pytest.raises(DataFormatError, match="frame 4 is neither JPEG nor PNG"):
        images([good] * 4 + [b"GIF89a"], (4, 5, 3)).decode(3, 5)
