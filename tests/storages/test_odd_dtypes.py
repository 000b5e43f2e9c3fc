"""Numbers that int64 does not hold, dtypes that torch's indexing does not know, and strides of one item."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from replaybank.storages import LazyTensorStorage, ListStorage, Storage, TensorStorage

HUGE = 2**64 - 1


def _storages() -> list[Storage]:
    lazy, items, wide = LazyTensorStorage(3), ListStorage(3), LazyTensorStorage(6, ndim=2)
    lazy.set(range(3), torch.arange(3))
    items.set(range(3), [0, 1, 2])
    wide.set(range(3), torch.arange(6).view(3, 2))
    return [lazy, items, wide, TensorStorage(torch.arange(6)[::2])]


INDICES: list[Any] = [
    np.array([HUGE], np.uint64),
    np.uint64(HUGE),
    [HUGE],
    torch.tensor([HUGE], dtype=torch.uint64),
    torch.tensor(HUGE, dtype=torch.uint64),
    np.array([1, 2**63], np.uint64),
]


@pytest.mark.parametrize("storage", _storages(), ids=lambda storage: type(storage).__name__)
@pytest.mark.parametrize("index", INDICES, ids=str)
def test_an_index_too_large_for_int64_is_out_of_range(storage: Storage, index: Any) -> None:
    with pytest.raises(IndexError, match="out of range"):
        storage[index]
    with pytest.raises(IndexError, match="out of range"):
        storage[index] = storage[0] if np.ndim(index) == 0 else storage[[0] * len(index)]
    if not isinstance(index, list):
        assert not np.asarray(storage.contains(index)).reshape(-1)[-1]


def test_small_unsigned_indices_are_taken() -> None:
    for storage in _storages()[:2]:
        expected = [storage[2], storage[0]]
        assert list(storage[np.array([2, 0], np.uint64)]) == expected
        assert list(storage[torch.tensor([2, 0], dtype=torch.uint64)]) == expected


@pytest.mark.parametrize("lead", [(), (1,), (1, 1)])
def test_a_batch_of_one_is_as_contiguous_as_any(lead: tuple[int, ...]) -> None:
    storage = LazyTensorStorage(3)
    storage.set(range(3), {"x": torch.arange(3.0), "y": torch.arange(3.0)[:, None], "z": torch.ones(3, 1, 1)})
    batch = storage[torch.zeros(lead, dtype=torch.int64)]
    for leaf in batch.values():
        assert 0 not in leaf.stride()
        if leaf.ndim:
            assert leaf.view(torch.uint8).numel() == 4


UNSIGNED = [torch.uint16, torch.uint32, torch.uint64, torch.float8_e4m3fn, torch.float8_e5m2]


@pytest.mark.parametrize("dtype", UNSIGNED)
def test_leaves_that_lie_apart_take_every_dtype(dtype: torch.dtype) -> None:
    apart = torch.arange(24).view(4, 6)[:, ::2]
    odd = torch.arange(8, dtype=torch.uint8).repeat(dtype.itemsize).view(dtype).view(4, 2)
    storage = TensorStorage({"a": apart.clone().t().contiguous().t(), "b": odd.clone(), "c": torch.arange(4)})
    new = {"a": -apart, "b": odd.view(torch.uint8).flip(0).view(dtype).view(4, 2), "c": -torch.arange(4)}

    def same(got: Any, row: int, source: Any) -> None:
        for key, value in got.items():
            assert torch.equal(
                value.view(torch.uint8), source[key][row : row + 1].contiguous().view(torch.uint8)
            )

    storage[[1]] = {key: value[1:2].contiguous() for key, value in new.items()}
    same(storage[[1]], 1, new)
    same(storage[0:1], 0, {"a": apart, "b": odd, "c": torch.arange(4)})
    storage[2:3] = {key: value[2:3].contiguous() for key, value in new.items()}
    same(storage[torch.tensor([2])], 2, new)
    assert storage.read_leaf(("b",), torch.tensor([3, 0])).dtype is dtype
    again = TensorStorage(
        {"a": torch.zeros_like(apart), "b": torch.zeros_like(odd), "c": torch.zeros(4).long()}
    )
    again.load_state_dict(storage.state_dict())
    same(again[[1]], 1, new)


@pytest.mark.parametrize("dtype", UNSIGNED)
def test_a_leaf_of_any_dtype_is_read_row_by_row(dtype: torch.dtype) -> None:
    storage = LazyTensorStorage(4)
    ids = torch.arange(4 * dtype.itemsize, dtype=torch.uint8).view(dtype)
    storage.set(range(4), {"x": ids, "y": torch.arange(4)})
    got = storage.read_leaf(("x",), torch.tensor([3, 1]))
    assert torch.equal(got.view(torch.uint8), ids.view(torch.uint8).view(4, -1)[[3, 1]].flatten())
