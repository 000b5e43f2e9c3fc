"""Channels first: every pixel of every channel in its places, whatever the size, and nothing beside them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reference import channels as reference
from replaybank import _native
from replaybank.storages.channels import channels_first, put, put_each

BEST = _native.tree_simd()
BESIDE = 77


@pytest.fixture(params=[level for level in (0, 2, 5) if level <= BEST], autouse=True, scope="module")
def simd(request: pytest.FixtureRequest) -> Iterator[None]:
    _native.tree_simd(request.param)
    yield
    _native.tree_simd(BEST)


class Room:
    """Arrays in the midst of memory that must stay as it is."""

    def __init__(self, shape: tuple[int, ...], dtype: str, at: int) -> None:
        size = int(np.prod(shape)) * np.dtype(dtype).itemsize
        self._whole = np.full(size + 256 + at, BESIDE, np.uint8)
        self._inside = slice(128 + at, 128 + at + size)
        self.array: npt.NDArray[Any] = self._whole[self._inside].view(dtype).reshape(shape)

    def beside_is_untouched(self) -> bool:
        beside = self._whole.copy()
        beside[self._inside] = BESIDE
        return bool((beside == BESIDE).all())


def frames_of(shape: tuple[int, ...], dtype: str, at: int = 0) -> npt.NDArray[Any]:
    room = Room(shape, dtype, at).array
    room[...] = np.random.default_rng(room.size + at).integers(0, 256, shape)
    return room


@given(
    shape=st.tuples(st.integers(0, 3), st.integers(1, 9), st.integers(1, 75), st.integers(1, 4)),
    dtype=st.sampled_from(["uint8", "uint16", "float32", "float64", "complex128", "datetime64[s]"]),
    spread=st.booleans(),
    at=st.integers(0, 33),
)
def test_every_byte_is_where_numpy_would_put_it(
    shape: tuple[int, int, int, int], dtype: str, spread: bool, at: int
) -> None:
    frames = frames_of((*shape[:3], shape[3] * (2 if spread else 1)), "uint8", at).astype(dtype)
    frames = frames[..., ::2] if spread else frames
    wanted = frames.transpose(0, 3, 1, 2)
    found = channels_first(frames)
    assert found.flags.c_contiguous
    assert found.dtype == frames.dtype
    assert np.array_equal(found, wanted)
    room = Room(wanted.shape, dtype, at)
    assert channels_first(frames, room.array) is room.array
    assert np.array_equal(room.array, wanted)
    assert room.beside_is_untouched()


@pytest.mark.parametrize("passing", [False, True])
@pytest.mark.parametrize("swapped", [False, True])
def test_every_number_of_pixels_goes_to_both_places(swapped: bool, passing: bool) -> None:
    """All that is left of vectors of 32 and 64 at the ends, of blocks of 1024, and at any beginning."""
    for width in [*range(1, 201), 1023, 1024, 1025, 1087, 1088, 1089, 2049]:
        frames = frames_of((2, 1, width, 3), "uint8", width % 65)
        rooms = [Room((2, 3, 1, width), "uint8", at) for at in (width * 7 % 64, width * 5 % 64)]
        out, after = (room.array for room in rooms)
        put(frames, out, 0, after, 0, swapped=swapped, passing=passing)
        wanted = [reference.planes(frame, swapped=swapped) for frame in frames]
        assert np.array_equal(out, wanted), width
        assert np.array_equal(after, wanted), width
        assert all(room.beside_is_untouched() for room in rooms), width


@given(
    counts=st.tuples(st.integers(0, 5), st.integers(0, 5), st.integers(0, 5)),
    begins=st.tuples(st.integers(-3, 6), st.integers(-3, 6)),
    size=st.tuples(st.integers(1, 5), st.integers(1, 80), st.integers(1, 4)),
    dtype=st.sampled_from(["uint8", "uint16", "float32"]),
    swapped=st.booleans(),
    passing=st.booleans(),
    one=st.booleans(),
    converted=st.booleans(),
)
def test_frames_go_where_there_are_places_for_them(
    counts: tuple[int, int, int],
    begins: tuple[int, int],
    size: tuple[int, int, int],
    dtype: str,
    swapped: bool,
    passing: bool,
    one: bool,
    converted: bool,
) -> None:
    height, width, channels = size
    kind = "float64" if converted else dtype
    frames = frames_of((counts[0], *size), dtype)
    rooms = [Room((count, channels, height, width), kind, 8 * at) for at, count in enumerate(counts[1:])]
    wanted = [room.array.copy() for room in rooms]
    out, after = rooms[0].array, None if one else rooms[1].array
    put(frames, out, begins[0], after, begins[1], swapped=swapped, passing=passing)
    reference.split(frames, wanted[0], begins[0], None if one else wanted[1], begins[1], swapped=swapped)
    for room, expected in zip(rooms, wanted, strict=True):
        assert np.array_equal(room.array, expected)
        assert room.beside_is_untouched()


@given(data=st.data())
def test_each_frame_goes_to_all_its_places(data: st.DataObject) -> None:
    size = data.draw(st.tuples(st.integers(1, 4), st.integers(1, 80), st.sampled_from([1, 3, 4])))
    dtype = data.draw(st.sampled_from(["uint8", "uint16", "float32"]))
    counts = data.draw(st.tuples(st.integers(0, 5), st.integers(0, 5)))
    takers = data.draw(st.lists(st.integers(0, 3), min_size=sum(counts), max_size=sum(counts)))
    first, swapped = data.draw(st.integers(0, 2)), data.draw(st.booleans())
    places = np.array(sorted(range(sum(counts)), key=lambda i: takers[i]), np.int64)
    ends = np.array([0, *(sum(taker < k for taker in takers) for k in range(1, 5))], np.int64)
    frames = frames_of((4 - first, *size), dtype)
    rooms = [Room((count, size[2], *size[:2]), dtype, 4 * at) for at, count in enumerate(counts)]
    wanted = [room.array.copy() for room in rooms]
    put_each(
        frames, ends, first, places, rooms[0].array, rooms[1].array, swapped=swapped, passing=bool(first)
    )
    reference.scatter(frames, ends, first, places, wanted, swapped=swapped)
    for room, expected in zip(rooms, wanted, strict=True):
        assert np.array_equal(room.array, expected)
        assert room.beside_is_untouched()


@pytest.mark.parametrize(
    "out",
    [
        np.zeros((1, 3, 2, 4), np.uint8),
        np.zeros((1, 3, 4, 2), np.int8),
        np.zeros((1, 3, 4, 4), np.uint8)[..., ::2],
    ],
)
def test_results_go_only_where_they_fit(out: npt.NDArray[Any]) -> None:
    with pytest.raises(ValueError, match="out must be a contiguous array of uint8"):
        channels_first(np.zeros((1, 4, 2, 3), np.uint8), out)
    assert not out.any()


def test_results_that_lie_where_the_frames_do_are_refused() -> None:
    memory = np.arange(2 * 3 * 16, dtype=np.uint8)
    before = memory.copy()
    frames, same = memory[:48].reshape(1, 4, 4, 3), memory[:48].reshape(1, 3, 4, 4)
    last = memory[47:95].reshape(1, 3, 4, 4)
    beside, free = memory[48:96].reshape(1, 3, 4, 4), np.zeros((1, 3, 4, 4), np.uint8)
    for out, after in ((same, None), (last, None), (free, last), (beside, beside), (beside, last)):
        with pytest.raises(ValueError, match="share no memory"):
            put(frames, out, 0, after)
        with pytest.raises(ValueError, match="share no memory"):
            put_each(frames, np.array([0, 1]), 0, np.array([0]), out, after)
    with pytest.raises(ValueError, match="share no memory"):
        channels_first(frames, same)
    assert np.array_equal(memory, before)
    assert not free.any()


FITS = np.zeros((2, 3, 4, 5), np.uint8)


@pytest.mark.parametrize(
    "other",
    [
        np.zeros((2, 3, 5, 4), np.uint8),
        np.zeros((2, 4, 4, 5), np.uint8),
        np.zeros((2, 3, 4, 5), np.uint16),
        np.zeros((2, 3, 4, 10), np.uint8)[..., ::2],
        np.zeros((6, 4, 5), np.uint8),
        np.broadcast_to(np.uint8(0), (2, 3, 4, 5)),
        np.frombuffer(bytes(120), np.uint8).reshape(2, 3, 4, 5),
    ],
)
def test_places_of_another_shape_or_that_cannot_be_written_are_refused(other: npt.NDArray[Any]) -> None:
    frames = np.ones((2, 4, 5, 3), np.uint8)
    ends, places = np.arange(3), np.arange(2)
    if other.dtype == np.uint8:  # those of another dtype are converted
        with pytest.raises(ValueError, match="cannot be put into"):
            put(frames, other)
    with pytest.raises(ValueError, match="cannot be put into"):
        put(frames, FITS, 0, other)
    for rooms in ((other,), (other, FITS), (FITS, other)):
        with pytest.raises(ValueError, match="cannot be put into"):
            put_each(frames, ends, 0, places, *rooms)
    assert not FITS.any()
    assert not other.any()


@pytest.mark.parametrize(
    ("ends", "places", "first"),
    [
        ([0, 1], [0, 1], 0),
        ([0, 1, 2], [0, 1], 1),
        ([0, 1, 2], [0, 1], -1),
        ([0, 1, 3], [0, 1], 0),
        ([-1, 1, 2], [0, 1], 0),
        ([1, 0, 2], [0, 1], 0),
        ([0, 3, 2], [0, 1], 0),
        ([0, 1, 2], [0, 4], 0),
        ([0, 1, 2], [-1, 1], 0),
        ([0, 1, 1 << 62], [0, 1], 0),
        ([[0, 1, 2]], [0, 1], 0),
        (np.arange(3, dtype=np.int32), [0, 1], 0),
        (np.arange(6)[::2], [0, 1], 0),
        (np.arange(3), np.arange(2, dtype=np.int32), 0),
    ],
)
def test_places_that_are_none_are_refused(ends: Any, places: Any, first: int) -> None:
    frames, after = np.ones((2, 4, 5, 3), np.uint8), np.zeros((2, 3, 4, 5), np.uint8)
    with pytest.raises(ValueError, match="cannot be put into"):
        put_each(frames, np.asarray(ends), first, np.asarray(places), FITS, after)
    assert not FITS.any()
    assert not after.any()


@pytest.mark.parametrize("shape", [(), (2,), (2, 4, 5), (1, 2, 4, 5, 3)])
def test_frames_of_other_dimensions_are_refused(shape: tuple[int, ...]) -> None:
    frames = np.ones(shape, np.uint8)
    for ends, places in ((np.arange(3), np.arange(2)), (np.array(0), np.array(0))):
        with pytest.raises(ValueError, match="cannot be put into"):
            put_each(frames, ends, 0, places, FITS)
    assert not FITS.any()
