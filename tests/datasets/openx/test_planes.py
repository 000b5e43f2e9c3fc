"""Frames where they are wanted: the same as decoded and turned by NumPy, nothing beside them touched."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from replaybank.datasets.openx import planes
from replaybank.datasets.openx.corrections import FirstImages, SwappedImages
from replaybank.datasets.openx.planes import decode_planes
from replaybank.datasets.openx.sources.base import FieldSpec, Images
from replaybank.datasets.openx.sources.images import EncodedImages, encode_frame


class Plain:
    """Images of somebody else's, which only decode into arrays of their own."""

    def __init__(self, pixels: npt.NDArray[Any]) -> None:
        self.pixels = pixels

    def __len__(self) -> int:
        return len(self.pixels)

    def encoded(self, start: int = 0, stop: int | None = None) -> list[bytes]:
        return [encode_frame(frame, "png") for frame in self.pixels[start:stop]]

    def decode(self, start: int = 0, stop: int | None = None) -> npt.NDArray[Any]:
        return self.pixels[start:stop]


def encoded(pixels: npt.NDArray[Any], form: str) -> EncodedImages:
    frames = [encode_frame(frame, form) for frame in pixels]
    ends = np.cumsum([len(frame) for frame in frames])
    spans = np.stack([ends - [len(frame) for frame in frames], [len(frame) for frame in frames]], 1)
    return EncodedImages(b"".join(frames), spans, FieldSpec("image", pixels.shape[1:], pixels.dtype), "here")


def pixels_of(count: int, channels: int = 3) -> npt.NDArray[np.uint8]:
    return np.random.default_rng(count).integers(0, 256, (count, 9, 14, channels), dtype=np.uint8)


IMAGES: list[Images] = [
    Plain(pixels_of(7)),
    encoded(pixels_of(7), "jpeg"),
    encoded(pixels_of(7), "png"),
    encoded(pixels_of(7, 1), "png"),
    SwappedImages(encoded(pixels_of(7), "jpeg")),
    FirstImages(encoded(pixels_of(8), "jpeg"), 7),
]


@given(
    images=st.sampled_from(IMAGES),
    start=st.integers(0, 6),
    count=st.integers(1, 7),
    following=st.sampled_from([None, 0, -1]),
    group=st.sampled_from([1, 2 * 9 * 14 * 3, 1 << 18]),
    least=st.sampled_from([1, 1 << 18]),
)
def test_every_frame_is_in_its_places(
    images: Images, start: int, count: int, following: int | None, group: int, least: int
) -> None:
    wanted = images.decode().transpose(0, 3, 1, 2)
    count = min(count, 7 - start - (following == 0))
    if count < 1:
        return
    room = np.full((2 + 2 * count, *wanted.shape[1:]), 77, wanted.dtype)
    out = room[1 : 1 + count]
    after = None if following is None else room[2 + count : 2 + 2 * count + following]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(planes, "GROUP_BYTES", group)
        patch.setattr(planes, "PASSING_BYTES", least)
        decode_planes(images, start, out, after, check=lambda shape: None)
    assert np.array_equal(out, wanted[start : start + count])
    if after is not None:
        assert np.array_equal(after, wanted[start + 1 : start + 1 + len(after)])
    rest = 0 if after is None else len(after)
    assert (room[0] == 77).all()
    assert (room[1 + count] == 77).all()
    assert (room[2 + count + rest :] == 77).all()


def test_a_shape_is_looked_at_before_anything_is_written() -> None:
    out = np.full((2, 3, 5, 5), 77, np.uint8)

    def check(shape: tuple[int, ...]) -> None:
        raise LookupError(shape)

    with pytest.raises(LookupError, match=r"3, 9, 14"):
        decode_planes(IMAGES[1], 0, out, check=check)
    assert (out == 77).all()
