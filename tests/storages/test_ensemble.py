from __future__ import annotations

from typing import Any

import pytest
import torch
from tensordict import TensorDict

from replaybank.storages import LazyTensorStorage, TensorStorage
from replaybank.storages.ensemble import StorageEnsemble, stacked
from replaybank.storages.list import ListStorage


def where(ids: list[int], *rows: list[Any]) -> TensorDict:
    index = stacked([torch.tensor(row) for row in rows])
    return TensorDict({"buffer_ids": torch.tensor(ids), "index": index}, batch_size=[len(ids)])


def test_items_come_from_the_parts_that_the_index_names() -> None:
    ensemble = StorageEnsemble(*(TensorStorage(torch.arange(5) + 10 * k) for k in range(3)))
    assert ensemble.get(where([2, 0, 2], [1, 1], [4, 0], [0, 3])).tolist() == [[21, 21], [4, 0], [20, 23]]
    assert ensemble[where([1], [2])].tolist() == [[12]]
    assert len(ensemble) == ensemble.max_size == 15


def test_parts_of_other_dimensions_are_read_by_padded_indices() -> None:
    grid = torch.arange(12).reshape(4, 3)
    ensemble = StorageEnsemble(TensorStorage(torch.arange(5)), TensorStorage(grid, ndim=2))
    got = ensemble.get(where([1, 0], [[2, 1], [3, 2]], [[4, 0], [1, 0]]))
    assert got.tolist() == [[7, 11], [4, 1]]


def test_batches_of_differing_lengths_are_nested_or_lazily_stacked() -> None:
    data = TensorDict({"x": torch.arange(5)}, batch_size=[5])
    tensors = StorageEnsemble(TensorStorage(torch.arange(5)), TensorStorage(torch.arange(5) * 10))
    assert [part.tolist() for part in tensors.get(where([0, 1], [1], [2, 3])).unbind()] == [[1], [20, 30]]
    dicts = StorageEnsemble(TensorStorage(data), TensorStorage(data))
    assert [part["x"].tolist() for part in dicts.get(where([0, 1], [1], [2, 3])).unbind(0)] == [[1], [2, 3]]
    assert dicts.get(where([0, 1], [1], [3]))["x"].tolist() == [[1], [3]]


def test_objects_come_as_a_list_a_part_and_mappings_entry_by_entry() -> None:
    objects = ListStorage(4)
    objects.write(0, objects.prepare(["a", "b", "c"]))
    assert StorageEnsemble(objects, objects).get(where([0, 1], [2], [0])) == [["c"], ["a"]]
    tree = TensorStorage({"x": torch.arange(4), "y": torch.zeros(4, 2)})
    got = StorageEnsemble(tree, tree).get(where([0, 1], [2, 3], [0, 1]))
    assert got["x"].tolist() == [[2, 3], [0, 1]]
    assert got["y"].shape == (2, 2, 2)


def test_other_indices_parts_and_writes_are_refused() -> None:
    ensemble = StorageEnsemble(TensorStorage(torch.arange(5)))
    with pytest.raises(TypeError, match=r"'buffer_ids' and 'index'.*got int"):
        ensemble.get(0)
    with pytest.raises(IndexError, match="no part 1: the ensemble has 1"):
        ensemble.get(where([1], [0]))
    with pytest.raises(RuntimeError, match="not written to"):
        ensemble.set(0, torch.tensor(1))
    with pytest.raises(RuntimeError, match="not written to"):
        ensemble[0] = torch.tensor(1)
    with pytest.raises(ValueError, match="at least one storage"):
        StorageEnsemble()


def test_states_are_those_of_the_parts() -> None:
    parts = [LazyTensorStorage(4), LazyTensorStorage(4)]
    for k, part in enumerate(parts):
        part.write(0, part.prepare(torch.full((3,), k)))
    loaded = StorageEnsemble(LazyTensorStorage(4), LazyTensorStorage(4))
    loaded.load_state_dict(StorageEnsemble(*parts).state_dict())
    assert loaded.get(where([1, 0], [0], [2])).tolist() == [[1], [0]]
    with pytest.raises(ValueError, match="of 2 storages, the ensemble has 1"):
        StorageEnsemble(LazyTensorStorage(4)).load_state_dict(loaded.state_dict())
    loaded.empty()
    assert len(loaded) == 0
    assert "LazyTensorStorage" in repr(loaded)


def test_parts_are_chosen_as_from_a_list_and_items_behind_them() -> None:
    first, second = TensorStorage(torch.arange(5)), TensorStorage(torch.arange(5) * 10)
    ensemble = StorageEnsemble(first, second)
    assert ensemble[0] is ensemble[-2] is ensemble[torch.tensor(0)] is first
    for index, expected in (
        (slice(1, None), [second]),
        ([1, 0], [second, first]),
        (torch.tensor([True, False]), [first]),
        (..., [first, second]),
    ):
        assert list(ensemble[index].storages) == expected
    assert ensemble[1, 2] == 20
    assert ensemble[:, :2].tolist() == [[0, 1], [0, 10]]
    assert ensemble[..., torch.tensor([4, 0])].tolist() == [[4, 0], [40, 0]]
    assert ensemble[[1], -1:].tolist() == [[40]]
    for wrong, error in (
        (2, IndexError),
        ([], ValueError),
        (0.5, TypeError),
        ((), TypeError),
        ((0, 9), IndexError),
    ):
        with pytest.raises(error):
            ensemble[wrong]


def test_each_part_has_its_transform() -> None:
    ensemble = StorageEnsemble(
        TensorStorage(torch.arange(5)), TensorStorage(torch.arange(5)), transforms=[None, lambda data: -data]
    )
    where = {"buffer_ids": torch.tensor([1, 0]), "index": torch.tensor([[1, 2], [3, 4]])}
    assert ensemble.get(where).tolist() == [[-1, -2], [3, 4]]
    assert ensemble[:, 1:3].tolist() == [[1, 2], [-1, -2]]
    assert ensemble[[1]][:, 1:3].tolist() == [[-1, -2]]
    assert ensemble[1, 3] == -3
    with pytest.raises(ValueError, match="1 transforms for 2"):
        StorageEnsemble(TensorStorage(torch.arange(5)), TensorStorage(torch.arange(5)), transforms=[None])


def test_a_state_that_one_part_refuses_changes_none() -> None:
    parts: list[Any] = [LazyTensorStorage(4), ListStorage(4), LazyTensorStorage(2)]
    ensemble = StorageEnsemble(*parts)
    parts[1].write(0, parts[1].prepare(["a", "b"]))
    parts[2].write(0, parts[2].prepare(torch.tensor([7.0])))
    other: list[Any] = [LazyTensorStorage(4), ListStorage(4), LazyTensorStorage(4)]
    for part in other:
        part.write(0, part.prepare(torch.arange(4.0)))
    assert not ensemble.initialized
    with pytest.raises(ValueError, match="2"):
        ensemble.load_state_dict(StorageEnsemble(*other).state_dict())
    assert [len(part) for part in parts] == [0, 2, 1]
    assert (parts[0].initialized, parts[1][:], parts[2][:].tolist()) == (False, ["a", "b"], [7.0])
    parts[0].write(0, parts[0].prepare(torch.tensor([1, 2])))
    assert ensemble.initialized
    assert parts[0][:].tolist() == [1, 2]


def test_tensordicts_of_differing_leaf_shapes_are_stacked_lazily() -> None:
    wide = TensorStorage(TensorDict({"x": torch.zeros(5, 3)}, batch_size=[5]))
    slim = TensorStorage(TensorDict({"x": torch.zeros(5, 2)}, batch_size=[5]))
    got = StorageEnsemble(wide, slim).get(where([0, 1], [1, 2], [3, 4]))
    assert got.batch_size == (2, 2)
    assert [part["x"].shape for part in got.unbind(0)] == [(2, 3), (2, 2)]
