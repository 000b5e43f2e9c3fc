"""Channels first: every pixel of every channel in its place, whatever the size."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from replaybank import _native
from replaybank.storages.channels import channels_first

BEST = _native.tree_simd()


@pytest.fixture(params=[level for level in (0, 2) if level <= BEST], autouse=True, scope="module")
def simd(request: pytest.FixtureRequest) -> Iterator[None]:
    _native.tree_simd(request.param)
    yield
    _native.tree_simd(BEST)


@given(
    shape=st.tuples(st.integers(0, 3), st.integers(1, 9), st.integers(1, 75), st.integers(1, 4)),
    dtype=st.sampled_from(["uint8", "uint16", "float32"]),
    spread=st.booleans(),
    at=st.integers(0, 33),
)
def test_every_byte_is_where_numpy_would_put_it(
    shape: tuple[int, int, int, int], dtype: str, spread: bool, at: int
) -> None:
    size = int(np.prod(shape)) * (2 if spread else 1)
    flat = np.random.default_rng(size + at).integers(0, 256, at + size).astype(dtype)[at:]
    frames = flat[::2].reshape(shape) if spread else flat.reshape(shape)
    wanted = frames.transpose(0, 3, 1, 2)
    found = channels_first(frames)
    assert found.flags.c_contiguous
    assert found.dtype == frames.dtype
    assert np.array_equal(found, wanted)
    room = np.full(wanted.size + 2 * 64, 77, dtype)
    out = room[64 : 64 + wanted.size].reshape(wanted.shape)
    assert channels_first(frames, out) is out
    assert np.array_equal(out, wanted)
    beside = np.concatenate([room[:64], room[64 + wanted.size :]])
    assert (beside == 77).all()


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
