"""Frames that are kept encoded: what is written is what slices give, and each header counts."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from replaybank import _native
from replaybank.datasets.openx.corrections import FirstImages, SwappedImages
from replaybank.datasets.openx.kept_frames import header_bytes, kept_frames
from replaybank.datasets.openx.sources import images as sources_images
from replaybank.datasets.openx.sources.base import FieldSpec, Images
from replaybank.datasets.openx.sources.images import EncodedImages, encode_frame
from replaybank.datasets.openx.ted import Leaf
from replaybank.errors import DataFormatError
from replaybank.storages.channels import address_of

LEAF = Leaf(("image",), ("image",), "image", np.dtype(np.uint8), (3, 16, 24))
SPEC = FieldSpec("image", (16, 24, 3), np.dtype(np.uint8))


def jpeg(number: int, *, quality: int = 90, optimize: bool = False, height: int = 16) -> bytes:
    pixels = np.random.default_rng(number).integers(0, 256, (height, 24, 3), np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "JPEG", quality=quality, optimize=optimize)
    return file.getvalue()


def png(number: int) -> bytes:
    return encode_frame(np.random.default_rng(number).integers(0, 256, (16, 24, 3), np.uint8), "png")


def lying(frames: list[bytes]) -> EncodedImages:
    """The frames in one payload, something between them."""
    payload = b""
    spans: list[tuple[int, int]] = []
    for frame in frames:
        payload += b"?" * (len(spans) % 3)
        spans.append((len(payload), len(frame)))
        payload += frame
    return EncodedImages(payload, np.array(spans, np.int64).reshape(-1, 2), SPEC, "x")


class Loose:
    """The same frames, but they do not say where they lie."""

    def __init__(self, images: Images) -> None:
        self.images = images

    def __len__(self) -> int:
        return len(self.images)

    def encoded(self, start: int = 0, stop: int | None = None) -> Any:
        return self.images.encoded(start, stop)

    def decode(self, start: int = 0, stop: int | None = None) -> npt.NDArray[Any]:
        return self.images.decode(start, stop)


def kept(images: Images) -> tuple[list[int], bytes]:
    sizes, contents = [], b""
    for part in kept_frames(images, LEAF, "arm: episode 3"):
        sizes += part.sizes.tolist()
        contents += bytes(part.content)
    return sizes, contents


def mixed(number: int) -> bytes:
    return (jpeg(number), png(number), b"")[number % 3]


CASES: dict[str, Callable[[int], bytes]] = {
    "alike": jpeg,
    "each another": lambda number: jpeg(number, quality=50 + number, optimize=True),
    "png": png,
    "mixed": mixed,
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("chunk", [1, 3000, 1 << 19])
def test_frames_are_kept_as_they_are_however_many_at_a_time(
    case: str, chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("replaybank.datasets.openx.kept_frames.FRAME_CHUNK_BYTES", chunk)
    frames = [CASES[case](number) for number in range(20)]
    whole = lying(frames)
    assert kept(whole) == kept(Loose(whole)) == (list(map(len, frames)), b"".join(frames))
    assert kept(SwappedImages(whole)) == kept(whole)
    assert kept(FirstImages(whole, 7)) == kept(lying(frames[:7]))
    assert kept(FirstImages(Loose(whole), 7)) == kept(lying(frames[:7]))


def test_frames_of_which_each_second_one_is_wanted_are_kept() -> None:
    frames = [jpeg(number) for number in range(9)]
    payload, spans = lying(frames).spans()
    assert kept(EncodedImages(payload, spans[1::2], SPEC, "x")) == kept(lying(frames[1::2]))


def damaged() -> dict[str, bytes]:
    good = jpeg(0)
    at = good.index(b"\xff\xc4")
    return {
        "another height": jpeg(0, height=17),
        "no image": b"GIF89a" + good[6:],
        "a broken table": good[: at + 4] + b"\xff" * 18 + good[at + 22 :],
        "cut in its header": good[:100],
        "four bytes": good[:4],
    }


@pytest.mark.parametrize("which", damaged())
@pytest.mark.parametrize("at", [0, 1, 11, 19])
def test_a_frame_that_says_something_else_is_found_wherever_it_is(which: str, at: int) -> None:
    frames = [jpeg(number) for number in range(20)]
    frames[at] = damaged()[which]
    with pytest.raises(DataFormatError) as plain:
        kept(Loose(lying(frames)))
    with pytest.raises(DataFormatError) as found:
        kept(lying(frames))
    assert str(found.value) == str(plain.value)
    assert f"frame {at}" in str(found.value)


def test_one_header_is_read_for_all_that_are_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    read = []
    real = sources_images._header

    def header(frame: memoryview, place: str) -> Any:
        read.append(place)
        return real(frame, place)

    monkeypatch.setattr(sources_images, "_header", header)
    kept(lying([jpeg(number) for number in range(500)]))
    assert len(read) == 1
    kept(lying([jpeg(number, quality=80 + number % 2) for number in range(20)]))
    assert len(read) == 21  # each differs from the one before: nothing is taken for granted


def test_a_jpeg_says_nothing_of_itself_behind_what_is_compared() -> None:
    frame = jpeg(1)
    known = header_bytes(frame)
    assert known is not None
    assert frame.startswith(known)
    assert frame[len(known) - 14 : len(known) - 12] == b"\xff\xda"  # the scan's own header: twelve bytes more
    for end in range(len(frame)):
        assert header_bytes(frame[:end]) == (known if end >= len(known) else None)
    spec = sources_images.frame_spec(known + b"anything", "x")
    assert spec == sources_images.frame_spec(frame, "x")


@given(
    data=st.binary(max_size=60),
    spans=st.lists(st.tuples(st.integers(-3, 70), st.integers(-3, 70)), max_size=6),
    prefix=st.binary(max_size=3),
    less=st.integers(0, 2),
)
def test_spans_are_slices_and_nothing_outside_is_touched(
    data: bytes, spans: list[tuple[int, int]], prefix: bytes, less: int
) -> None:
    table = np.array(spans, np.int64).reshape(-1, 2)
    inside = [at >= 0 and size >= 0 and at + size <= len(data) for at, size in spans]
    slices = [data[at : at + size] if good else None for (at, size), good in zip(spans, inside, strict=True)]
    alike = [piece is not None and piece.startswith(prefix) for piece in slices]
    found = _native.spans_starting(data, address_of(table), len(table), prefix)
    assert found == (alike.index(False) if False in alike else len(alike))
    wanted = b"".join(piece for piece in slices if piece is not None)
    out = np.full(len(wanted) + 1, 7, np.uint8)
    room = max(len(wanted) - less, 0)
    joined = _native.join_spans(data, address_of(table), len(table), address_of(out), room)
    if all(inside) and room == len(wanted):
        assert (joined, out[:-1].tobytes()) == (len(wanted), wanted)
    else:
        assert joined == -1
    assert (out[room:] == 7).all()
