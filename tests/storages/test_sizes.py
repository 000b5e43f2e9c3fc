"""Sizes that users give, and states that are views."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tensordict import TensorDict

from replaybank.storages import (
    LazyMemmapStorage,
    LazyTensorStorage,
    ListStorage,
    Storage,
    StorageEnsemble,
    TensorStorage,
    capacity,
)

MAKERS: dict[str, Callable[[Any], Storage]] = {
    "list": ListStorage,
    "lazy": LazyTensorStorage,
    "memmap": LazyMemmapStorage,
    "given": lambda size: TensorStorage(torch.arange(3), size),
    "ndim": lambda ndim: LazyTensorStorage(3, ndim=ndim),
    "ndim of given": lambda ndim: TensorStorage(torch.zeros(2, 2, 2, 2), ndim=ndim),
}
each_maker = pytest.mark.parametrize("make", MAKERS.values(), ids=list(MAKERS))


@each_maker
@pytest.mark.parametrize(
    "size", [2.5, 3.0, 1e6, "5", True, np.bool_(True), np.float64(3), [3], torch.tensor(2.5)]
)
def test_a_size_that_is_no_whole_number_is_refused(make: Callable[[Any], Storage], size: Any) -> None:
    with pytest.raises(TypeError, match="is a whole number, got"):
        make(size)


@each_maker
@pytest.mark.parametrize("size", [0, -1, np.int64(-3)])
def test_a_size_below_one_is_refused(make: Callable[[Any], Storage], size: Any) -> None:
    with pytest.raises(ValueError, match="at least 1, got"):
        make(size)


@each_maker
@pytest.mark.parametrize("size", [np.int64(3), np.uint8(3), torch.tensor(3)], ids=repr)
def test_whole_numbers_of_any_type_are_sizes(make: Callable[[Any], Storage], size: Any) -> None:
    storage = make(size)
    assert type(storage.max_size) is int
    assert type(storage.ndim) is int
    assert 3 in (storage.max_size, storage.ndim)


def test_a_numpy_size_is_written_into_the_layout_of_the_files(tmp_path: Path) -> None:
    storage = LazyMemmapStorage(np.int64(3), scratch_dir=tmp_path)  # type: ignore[arg-type]
    storage.set(range(1), torch.arange(1))
    assert json.loads((tmp_path / "layout.json").read_text())["dims"] == [3]


@pytest.mark.parametrize("make", [ListStorage, LazyTensorStorage, LazyMemmapStorage])
def test_too_many_items_for_memory_are_refused_with_advice_that_helps(
    make: Callable[[int], Storage], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(capacity, "available_memory", lambda: 1 << 30)
    with pytest.raises(MemoryError, match="Ask for fewer items") as error:
        make(10**13)
    assert "LazyMemmapStorage" not in str(error.value)


def _bad_list_first() -> list[Any]:
    return [{"a": torch.ones(2)}, {"a": torch.ones(3)}]


def _bad_list_later() -> list[Any]:
    return [{"a": torch.tensor(1.0)}, {"a": torch.tensor(2.0), "b": torch.tensor(3.0)}]


def test_a_list_that_fails_later_on_leaves_a_new_storage_new(tmp_path: Path) -> None:
    for storage in (
        LazyTensorStorage(4),
        LazyMemmapStorage(4, scratch_dir=tmp_path),
        LazyTensorStorage(4, ndim=2),
    ):
        items = _bad_list_first()
        with pytest.raises(ValueError, match="shape"):
            storage.set(range(2), items)
        assert (storage.initialized, storage.columns, len(storage), storage.log.rows) == (
            False, (), 0, 4 if storage.ndim == 1 else 1
        )  # fmt: skip
        if isinstance(storage, LazyMemmapStorage):
            assert list(tmp_path.iterdir()) == []
        data = {"z": torch.arange(3)} if storage.ndim == 1 else {"z": torch.arange(3)[:, None]}
        storage.set(range(3), data)
        assert storage[:]["z"].flatten().tolist() == [0, 1, 2]


@pytest.mark.filterwarnings("ignore:New keys")
@pytest.mark.parametrize("written", [False, True])
def test_a_list_of_items_with_other_keys_names_them_and_widens_nothing(written: bool) -> None:
    storage = LazyTensorStorage(4)
    if written:
        storage.set(range(1), {"a": torch.zeros(1)})
    with pytest.raises(ValueError, match=r"item 1 has \[\('a',\), \('b',\)\], item 0 has \[\('a',\)\] only"):
        storage.set(range(2), _bad_list_later())
    assert storage.leaf_keys() == ([("a",)] if written else [])
    assert len(storage) == written


@pytest.mark.filterwarnings("ignore:New keys")
def test_a_list_whose_items_all_have_a_new_key_widens_the_storage() -> None:
    storage = LazyTensorStorage(4)
    storage.set(range(1), {"a": torch.zeros(1)})
    storage.set(range(1, 3), [{"a": torch.tensor(1.0), "b": torch.tensor(k)} for k in (5, 6)])
    assert storage[:]["b"].tolist() == [0, 5, 6]


@pytest.mark.parametrize("make", [LazyTensorStorage, LazyMemmapStorage])
@pytest.mark.parametrize("ndim", [1, 2])
def test_a_state_without_copies_is_of_the_same_values_and_shares_the_memory(
    make: Callable[..., Storage], ndim: int
) -> None:
    storage = make(12, ndim=ndim)
    lead = (3, 2)[:ndim]
    storage.set(range(3), TensorDict({"x": torch.rand(lead), "y": torch.rand(*lead, 400)}, lead))
    state, views = storage.state_dict(), storage.state_dict(copy=False)
    for copied, view in zip(state["data"], views["data"], strict=True):
        assert torch.equal(copied, view)
    storage[0] = TensorDict({"x": torch.zeros(lead[1:]), "y": torch.zeros(*lead[1:], 400)}, lead[1:])
    for copied, view in zip(state["data"], views["data"], strict=True):
        assert view[0].sum() == 0 < copied[0].sum()
    again = make(12, ndim=ndim)
    again.load_state_dict(views)
    assert torch.equal(again[:]["y"], storage[:]["y"])


def test_states_of_lists_and_ensembles_without_copies_hold_the_items_themselves() -> None:
    storage = ListStorage(3)
    item = [1]
    storage.set(range(1), [item])
    ensemble = StorageEnsemble(storage, TensorStorage(torch.arange(2)))
    assert ensemble.state_dict()["storages"][0]["items"][0] is not item
    views = ensemble.state_dict(copy=False)["storages"]
    assert views[0]["items"][0] is item
    assert views[1]["data"][0].data_ptr() == ensemble.storages[1].read_leaf((), slice(None)).data_ptr()
