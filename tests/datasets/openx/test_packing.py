"""Rows of an episode: what NumPy's structured arrays would hold, zero between the leaves."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from replaybank.datasets.openx.packing import RowPacker
from replaybank.storages.layout import LeafSpec, RowLayout, field_name

DTYPES = [torch.uint8, torch.bool, torch.int32, torch.int64, torch.float16, torch.float32, torch.float64]
SHAPES: list[tuple[int, ...]] = [(), (1,), (3,), (2, 2), (0,)]


@given(
    leaves=st.lists(st.tuples(st.sampled_from(DTYPES), st.sampled_from(SHAPES)), min_size=1, max_size=8),
    length=st.integers(1, 70),
    how=st.sampled_from(["plain", "strided", "constant", "wider"]),
)
def test_rows_are_those_of_a_structured_array(
    leaves: list[tuple[torch.dtype, tuple[int, ...]]], length: int, how: str
) -> None:
    layout = RowLayout.plan([LeafSpec((f"x{k}",), dtype, shape) for k, (dtype, shape) in enumerate(leaves)])
    inside = [leaf for leaf, at in zip(layout.leaves, layout.offsets, strict=True) if at is not None]
    rng = np.random.default_rng(length)
    columns: list[npt.NDArray[Any]] = []
    for leaf in inside:
        kind = torch.empty(0, dtype=leaf.dtype).numpy().dtype
        values = rng.integers(0, 2, (2 * length, *leaf.shape)).astype(kind)
        if how == "strided":
            columns.append(values[::2])
        elif how == "constant":
            columns.append(np.broadcast_to(np.ones((), kind), (length, *leaf.shape)))
        else:
            columns.append(values[:length].astype(np.float64) if how == "wider" else values[:length])
    if not layout.row_bytes:
        return
    wanted = np.zeros(length, layout.numpy_dtype())
    for leaf, column in zip(inside, columns, strict=True):
        wanted[field_name(leaf.key)] = column
    packer = RowPacker(layout)
    assert packer.pack(columns, length).tobytes() == wanted.tobytes()
    assert packer.pack([column[:1] for column in columns], 1).tobytes() == wanted[:1].tobytes()


def test_a_column_of_another_shape_is_refused() -> None:
    layout = RowLayout.plan([LeafSpec((name,), torch.float32, (2,)) for name in ("x", "y")])
    columns = [np.zeros((3, 2), np.float32), np.zeros((3, 1), np.float32)]
    with pytest.raises(ValueError, match=r"shape \(3, 1\), expected \(3, 2\)"):
        RowPacker(layout).pack(columns, 3)
