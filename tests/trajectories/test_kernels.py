"""Kernels of the trajectory index beside NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reference.trajectory_index import changes_in_place
from replaybank import _native

BYTES = (1, 2, 4, 8)


def spread(values: npt.NDArray[Any], step: int, offset: int) -> npt.NDArray[np.uint8]:
    """Bytes in which value k lies at ``offset + k * step``."""
    room = np.full(len(values) * step, 7, np.uint8)
    for k, value in enumerate(values):
        room[offset + k * step : offset + k * step + value.itemsize] = np.frombuffer(
            value.tobytes(), np.uint8
        )
    return room


@pytest.mark.parametrize("size", BYTES)
@given(data=st.data())
def test_changes_are_found_where_identities_are_stored(size: int, data: st.DataObject) -> None:
    rows = data.draw(st.integers(1, 12))
    values = np.array(data.draw(st.lists(st.integers(0, 2), min_size=rows, max_size=rows)), f"i{size}")
    start, count = data.draw(st.integers(0, rows - 1)), data.draw(st.integers(1, rows))
    goes_on = data.draw(st.booleans())
    step, offset = size + data.draw(st.integers(0, 9)), 0
    room, flags = spread(values, step, offset), np.full(count + 1, 9, np.uint8)
    _native.trajectory_changes_in_place(
        room.ctypes.data, step, size, rows, start, count, goes_on, flags.ctypes.data
    )
    expected = changes_in_place(values.astype(np.int64), start, count, goes_on=goes_on)
    assert flags.tolist() == expected.astype(int).tolist()


@pytest.mark.parametrize("size", [*BYTES, 3])
@given(count=st.integers(0, 20), gap=st.integers(0, 9))
def test_values_that_lie_apart_are_copied_side_by_side(size: int, count: int, gap: int) -> None:
    source = np.arange(count * (size + gap) + 1, dtype=np.uint8)
    target = np.full(count * size + 1, 255, np.uint8)
    _native.copy_spread(source.ctypes.data, size + gap, size, count, target.ctypes.data)
    expected = source[: count * (size + gap)].reshape(count, size + gap)[:, :size].reshape(-1)
    assert target.tolist() == [*expected.tolist(), 255]


@given(flags=st.lists(st.tuples(st.sampled_from((0, 1, 2, 255)), st.sampled_from((0, 1, 128)))))
def test_either_of_two_flags_sets_the_third(flags: list[tuple[int, int]]) -> None:
    left = np.array([a for a, _ in flags] + [1], np.uint8)
    right = np.array([b for _, b in flags] + [1], np.uint8)
    out = np.full(len(flags) + 1, 9, np.uint8)
    _native.slice_either(left.ctypes.data, right.ctypes.data, len(flags), out.ctypes.data)
    assert out.tolist() == [int(bool(a or b)) for a, b in flags] + [9]
