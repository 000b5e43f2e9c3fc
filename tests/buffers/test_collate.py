"""Batches out of lists of items, and the time dimension to the front and back."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from tensordict import LazyStackedTensorDict, TensorDict

from replaybank.buffers.collate import collate, time_back, time_to_front


class Pair(NamedTuple):
    x: Any
    y: Any


def test_tensordicts_are_stacked() -> None:
    batch = collate([TensorDict(a=torch.tensor(i)) for i in range(3)])
    assert type(batch) is TensorDict
    assert batch["a"].tolist() == [0, 1, 2]


@pytest.mark.parametrize("batch_size", [[], None])
def test_tensordicts_of_differing_shapes_are_stacked_lazily(batch_size: list[int] | None) -> None:
    items = [
        TensorDict({"a": torch.ones(n)}, batch_size=[n] if batch_size is None else batch_size) for n in (2, 3)
    ]
    batch = collate(items)
    assert isinstance(batch, LazyStackedTensorDict)
    assert batch[1]["a"].shape == (3,)


def test_tensors_arrays_numbers_and_their_trees_become_tensors() -> None:
    assert collate([torch.ones(2), torch.zeros(2)]).tolist() == [[1, 1], [0, 0]]
    assert collate([np.float16(1), np.float16(2)]).dtype == torch.float16
    assert collate([np.array([True]), np.array([False])]).tolist() == [[True], [False]]
    assert collate([True, False]).dtype == torch.bool
    pair = collate([Pair(1, {"z": torch.tensor(2)}), Pair(3, {"z": torch.tensor(4)})])
    assert isinstance(pair, Pair)
    assert pair.x.tolist() == [1, 3]
    assert pair.y["z"].tolist() == [2, 4]


@pytest.mark.parametrize(
    "items", [["a", "b"], [(1, 2), (3,)], [{"a": 1}, {"b": 2}], [None], [], [np.array("a")]]
)
def test_a_list_of_anything_else_stays_a_list(items: list[Any]) -> None:
    assert collate(items) == items


def test_what_is_a_batch_already_is_given_back() -> None:
    batch = torch.ones(3)
    assert collate(batch) is batch


def test_tensors_of_differing_shapes_say_what_to_do() -> None:
    with pytest.raises(RuntimeError, match=r"\[\(2,\), \(3,\)\] cannot be stacked .* collate_fn"):
        collate([torch.ones(2), torch.ones(3)])


@pytest.mark.parametrize("dim", [1, 2])
def test_time_goes_to_the_front_and_back(dim: int) -> None:
    tensor = torch.arange(120).reshape(2, 3, 4, 5)
    td = TensorDict({"a": tensor, "n": {"b": tensor[..., 0]}}, batch_size=[2, 3, 4])
    moved = time_to_front(td, dim)
    assert torch.equal(moved["a"], tensor.movedim(dim, 0))
    assert torch.equal(moved["n", "b"], tensor[..., 0].movedim(dim, 0))
    assert bool((time_back(moved, dim) == td).all())
    tree = time_to_front((tensor, {"b": tensor.numpy()}), dim)
    assert torch.equal(tree[0], tensor.movedim(dim, 0))
    assert np.array_equal(tree[1]["b"], np.moveaxis(tensor.numpy(), dim, 0))
    assert torch.equal(time_back(tree, dim)[0], tensor)


def test_a_list_of_columns_is_stacked_first() -> None:
    columns = [TensorDict({"a": torch.arange(3) + 10 * i}, batch_size=3) for i in range(2)]
    assert time_to_front(columns, 1)["a"].tolist() == [[0, 10], [1, 11], [2, 12]]


def test_data_without_the_time_dimension_is_refused() -> None:
    with pytest.raises(ValueError, match=r"dim_extend=1 .* batch shape is \[3\]"):
        time_to_front(TensorDict(batch_size=[3]), 1)
    with pytest.raises(ValueError, match="dim_extend=1"):
        time_to_front(torch.ones(3), 1)


@pytest.mark.parametrize(
    "items",
    [
        [1, "a"],
        [torch.tensor(1), 2],
        [np.zeros(2), None],
        [TensorDict({}, []), "x"],
        [1, (torch.tensor(1), 2)],
    ],
    ids=["number", "tensor", "array", "tensordict", "tuple"],
)
def test_items_of_more_than_one_kind_stay_a_list(items: list[Any]) -> None:
    assert collate(items) is items
