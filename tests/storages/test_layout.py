"""Rows: where leaves lie, that NumPy can read them, and that no description from a file is trusted."""

from __future__ import annotations

import copy
import json
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from replaybank.storages.layout import DTYPES, SMALL_BYTES, LeafSpec, RowLayout, field_name

HALF_CHEETAH = [
    LeafSpec(("observation",), torch.float32, (17,)),
    LeafSpec(("action",), torch.float32, (6,)),
    LeafSpec(("next", "observation"), torch.float32, (17,)),
    LeafSpec(("next", "reward"), torch.float32, (1,)),
    LeafSpec(("next", "done"), torch.bool, (1,)),
]

dtypes = st.sampled_from(sorted(DTYPES.values(), key=str))
shapes = st.lists(st.integers(0, 9), max_size=3).map(tuple)
leaf_lists = st.lists(st.tuples(dtypes, shapes), min_size=1, max_size=8).map(
    lambda leaves: [LeafSpec((str(i),), dtype, shape) for i, (dtype, shape) in enumerate(leaves)]
)


def test_a_half_cheetah_step_takes_three_cache_lines() -> None:
    layout = RowLayout.plan(HALF_CHEETAH)
    assert layout.offsets == (0, 68, 92, 160, 164)
    assert layout.row_bytes == layout.item_bytes == 192


@pytest.mark.parametrize(
    ("sizes", "row_bytes"),
    [((1, 1), 2), ((2, 1), 4), ((8, 8), 16), ((16, 1), 32), ((31, 1), 32), ((32, 1), 64), ((64, 1), 128)],
)
def test_short_rows_take_a_power_of_two_and_longer_ones_whole_lines(
    sizes: tuple[int, ...], row_bytes: int
) -> None:
    leaves = [LeafSpec((str(i),), torch.uint8, (size,)) for i, size in enumerate(sizes)]
    assert RowLayout.plan(leaves).row_bytes == row_bytes


def test_large_leaves_and_a_lone_small_one_are_columns() -> None:
    large = LeafSpec(("pixels",), torch.uint8, (SMALL_BYTES + 1,))
    small = LeafSpec(("done",), torch.bool, ())
    layout = RowLayout.plan([large, small])
    assert layout.offsets == (None, None)
    assert layout.row_bytes == 0
    assert RowLayout.plan([large, small, LeafSpec(("x",), torch.bool, ())]).columns == (0,)


@settings(max_examples=100, deadline=None)
@given(leaf_lists)
def test_leaves_are_aligned_do_not_overlap_and_survive_json(leaves: list[LeafSpec]) -> None:
    layout = RowLayout.plan(leaves)
    assert RowLayout.from_json(json.loads(json.dumps(layout.to_json()))) == layout
    used: set[int] = set()
    for leaf, offset in zip(layout.leaves, layout.offsets, strict=True):
        if offset is not None:
            assert offset % leaf.dtype.itemsize == 0
            assert layout.row_bytes % leaf.dtype.itemsize == 0
            bytes_of_leaf = set(range(offset, offset + leaf.bytes))
            assert not used & bytes_of_leaf
            used |= bytes_of_leaf
    assert layout.row_bytes == 0 or max(used) < layout.row_bytes
    assert layout.row_bytes % 64 == 0 or layout.row_bytes in (1, 2, 4, 8, 16, 32)


@settings(max_examples=60, deadline=None)
@given(leaf_lists, st.integers(1, 5))
def test_views_and_numpy_see_the_same_values(leaves: list[LeafSpec], items: int) -> None:
    layout = RowLayout.plan(leaves)
    if not layout.row_bytes:
        return
    rows = torch.randint(0, 2, (items * layout.row_bytes,), dtype=torch.uint8)
    views = layout.views(rows, items)
    records = rows.numpy().view(layout.numpy_dtype())
    assert len(records) == items
    for number, view in views.items():
        leaf = layout.leaves[number]
        assert view.shape == (items, *leaf.shape)
        assert view.dtype == leaf.dtype
        seen = np.ascontiguousarray(records[field_name(leaf.key)])
        dense = view.clone(memory_format=torch.contiguous_format).reshape(-1)
        assert seen.tobytes() == dense.view(torch.uint8).numpy().tobytes()


def test_a_view_writes_into_its_row() -> None:
    layout = RowLayout.plan(HALF_CHEETAH)
    rows = torch.zeros(3 * 192, dtype=torch.uint8)
    layout.views(rows, 3)[3][1] = 1.0
    assert rows.view(torch.float32).nonzero().tolist() == [[(192 + 160) // 4]]


def test_views_refuse_a_buffer_that_is_too_small() -> None:
    with pytest.raises(ValueError, match="192"):
        RowLayout.plan(HALF_CHEETAH).views(torch.zeros(191, dtype=torch.uint8), 1)


def test_field_names_are_distinct_for_distinct_keys() -> None:
    keys = [("a", "b"), ("a/b",), ("a~1b",), ("a~b",), ("a", "b", "")]
    assert len({field_name(key) for key in keys}) == len(keys)


def _described() -> dict[str, Any]:
    return RowLayout.plan(HALF_CHEETAH).to_json()


@pytest.mark.parametrize(
    ("path", "value", "match"),
    [
        (("format",), "other", "Not a row layout"),
        (("version",), 99, "version 99"),
        (("row_bytes",), -1, "row_bytes"),
        (("row_bytes",), 1.5, "row_bytes"),
        (("row_bytes",), True, "row_bytes"),
        (("row_bytes",), 2**63, "row_bytes"),
        (("row_bytes",), 164, "ends? at byte 165"),
        (("row_bytes",), 190, "not aligned"),
        (("leaves",), {}, "lists its leaves"),
        (("leaves", 0), 3, "described by an object"),
        (("leaves", 0, "key"), "observation", "list of strings"),
        (("leaves", 0, "key"), ["action"], "same key"),
        (("leaves", 0, "dtype"), "os.system", "unknown dtype"),
        (("leaves", 0, "dtype"), ["float32"], "unknown dtype"),
        (("leaves", 0, "shape"), [18], "overlaps"),
        (("leaves", 0, "shape"), [2**40, 2**40], "would take"),
        (("leaves", 0, "shape"), [-17], "size"),
        (("leaves", 0, "shape"), [0], "is empty"),
        (("leaves", 0, "shape"), [1] * 65, "at most 64"),
        (("leaves", 0, "offset"), 4, "overlaps"),
        (("leaves", 4, "offset"), 192, "end at byte 193"),
        (("leaves", 0, "offset"), "0", "offset"),
        (("leaves", 3, "offset"), 165, "overlaps|aligned"),
    ],
)
def test_a_description_that_lies_is_refused(path: tuple[Any, ...], value: Any, match: str) -> None:
    described = copy.deepcopy(_described())
    place: Any = described
    for part in path[:-1]:
        place = place[part]
    place[path[-1]] = value
    with pytest.raises(ValueError, match=match):
        RowLayout.from_json(described)


@pytest.mark.parametrize("value", [None, [], "x", 3, {}])
def test_what_is_no_description_is_refused(value: Any) -> None:
    with pytest.raises(ValueError, match="Not a row layout"):
        RowLayout.from_json(value)
