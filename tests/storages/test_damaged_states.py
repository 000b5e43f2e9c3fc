"""States that lie: what kernels would believe is refused, and nothing is changed."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from replaybank.errors import DataFormatError
from replaybank.storages import LazyMemmapStorage, LazyTensorStorage, ListStorage, Storage, TensorStorage
from replaybank.storages.layout import LeafSpec, RowLayout
from replaybank.storages.leaf_table import LeafTable

EPOCH, TOTAL, CURSOR, LENGTH, CONTINUES, TOUCHES = 0, 1, 2, 3, 5, 13


def _state() -> dict[str, Any]:
    storage = LazyTensorStorage(4)
    storage.set(range(3), {"x": torch.arange(3), "y": torch.ones(3, 2)})
    return storage.state_dict()


def _header(place: int, value: int) -> Callable[[dict[str, Any]], None]:
    def change(state: dict[str, Any]) -> None:
        state["log"]["header"][place] = value

    return change


def _set(*path: Any, value: Any) -> Callable[[dict[str, Any]], None]:
    def change(state: dict[str, Any]) -> None:
        inner: Any = state
        for part in path[:-1]:
            inner = inner[part]
        inner[path[-1]] = value

    return change


def _long_data(state: dict[str, Any]) -> None:
    state["log"]["header"][LENGTH] = state["log"]["header"][TOTAL] = 1000
    state["data"] = [torch.zeros(1000, dtype=torch.int64), torch.zeros(1000, 2)]


def _remove(name: str) -> Callable[[dict[str, Any]], None]:
    return lambda state: state.pop(name)


DAMAGE: dict[str, Callable[[dict[str, Any]], None]] = {
    "more rows than there is room for": _long_data,
    "length beyond the data": _header(LENGTH, 4),
    "negative length": _header(LENGTH, -1),
    "cursor far out": _header(CURSOR, 10**9),
    "negative cursor": _header(CURSOR, -1),
    "cursor behind rows never written": _header(LENGTH, 2),
    "total below length": _header(TOTAL, -(2**63)),
    "total too large": _header(TOTAL, 2**63 - 1),
    "touches below 0": _header(TOUCHES, -1),
    "epoch too large": _header(EPOCH, 2**63 - 1),
    "negative epoch": _header(EPOCH, -1),
    "flag that is none": _header(CONTINUES, 7),
    "short header": _set("log", "header", value=torch.zeros(3, dtype=torch.int64)),
    "float header": _set("log", "header", value=torch.zeros(16)),
    "header that is a list": _set("log", "header", value=[0] * 16),
    "cuts of another dtype": _set("log", "cut", value=torch.zeros(4)),
    "cuts of another shape": _set("log", "cut", value=torch.zeros(2, 2, dtype=torch.bool)),
    "cuts that are neither": _set(
        "log", "cut", value=torch.full((4,), 255, dtype=torch.uint8).view(torch.bool)
    ),
    "no cuts at all": _set("log", "cut", value=torch.zeros(4, dtype=torch.bool)),
    "no log": _remove("log"),
    "log that is none": _set("log", value=3),
    "no data": _remove("data"),
    "data of too few leaves": _set("data", value=[torch.arange(3)]),
    "data of differing length": _set("data", value=[torch.arange(3), torch.ones(2, 2)]),
    "data of another shape": _set("data", value=[torch.arange(3), torch.ones(3, 3)]),
    "data that is a number": _set("data", value=[torch.arange(3), 3]),
    "data without dimensions": _set("data", value=[torch.tensor(3), torch.tensor(3)]),
    "no columns": _remove("columns"),
    "columns that are not there": _set("columns", value=[2]),
    "columns that overflow": _set("columns", value=[2**62, 2**62]),
    "no leaves": _remove("leaves"),
    "leaf without a shape": _set("leaves", 0, value={"key": ["x"], "dtype": "int64"}),
    "no flag": _remove("initialized"),
}
STRUCTURES: list[Any] = [
    None,
    {"kind": "dict", "parts": [3]},
    {"kind": "dict", "parts": [["x", 0], ["x", 1]]},
    {"kind": "dict", "parts": [["x", 0], [["y"], 1]]},
    {"kind": "tensordict", "parts": [["x", 0], ["y", 1]]},
    {"kind": "tensordict", "extra": ["a"], "class": None, "parts": [["x", 0], ["y", 1]]},
    {"kind": "dict", "parts": [["x", 0], ["y", 7]]},
    {"kind": "what", "parts": [["x", 0], ["y", 1]]},
]
MAKERS: dict[str, Callable[[], Storage]] = {
    "new": lambda: LazyTensorStorage(4),
    "on disk": lambda: LazyMemmapStorage(4),
    "given": lambda: TensorStorage({"x": torch.arange(4) + 10, "y": torch.zeros(4, 2)}),
}


def _seen(storage: Storage) -> Any:
    log = storage.log
    state = (log.state.tolist(), log.cut.tolist(), storage.initialized, storage.columns, len(storage))
    return copy.deepcopy((state, storage[:]["x"].tolist() if storage.initialized else None))


@pytest.mark.parametrize("make", MAKERS.values(), ids=list(MAKERS))
@pytest.mark.parametrize("damage", DAMAGE.values(), ids=list(DAMAGE))
def test_a_damaged_state_is_refused_and_changes_nothing(
    make: Callable[[], Storage], damage: Callable[[dict[str, Any]], None]
) -> None:
    storage, state = make(), _state()
    damage(state)
    before = _seen(storage)
    with pytest.raises(ValueError, match=r"\w"):
        storage.load_state_dict(state)
    assert _seen(storage) == before
    storage.load_state_dict(_state())
    assert storage[:]["x"].tolist() == [0, 1, 2]


@pytest.mark.parametrize("structure", STRUCTURES)
def test_a_damaged_description_of_items_is_refused_and_leaves_the_storage_as_new(structure: Any) -> None:
    storage, state = LazyTensorStorage(4), _state()
    state["structure"] = structure
    with pytest.raises(ValueError, match=r"\w"):
        storage.load_state_dict(state)
    assert not storage.initialized
    storage.set(range(1), torch.arange(1))
    assert storage[:].tolist() == [0]


def test_a_refused_state_leaves_no_files_behind(tmp_path: Path) -> None:
    storage, state = LazyMemmapStorage(4, scratch_dir=tmp_path), _state()
    state["data"][1] = state["data"][1].to(torch.int64)
    with pytest.raises(TypeError, match="dtype"):
        storage.load_state_dict(state)
    assert list(tmp_path.iterdir()) == []
    storage.load_state_dict(_state())
    assert storage[:]["x"].tolist() == [0, 1, 2]


@pytest.mark.parametrize("damage", ["items", "log"])
def test_a_damaged_state_of_a_list_is_refused(damage: str) -> None:
    storage = ListStorage(4)
    storage.set(range(2), ["a", "b"])
    state = storage.state_dict()
    values: list[Any] = [None, 3, [], {}]
    for value in values:
        with pytest.raises(DataFormatError, match="damaged"):
            storage.load_state_dict({**state, damage: value})
    assert storage[:] == ["a", "b"]


def test_what_a_kernel_refuses_is_an_error() -> None:
    table = LeafTable(
        RowLayout([LeafSpec((), torch.int64, ())], [None], 0),
        (4,),
        [torch.arange(4)],
        torch.device("cpu"),
        given=True,
    )
    with pytest.raises(IndexError, match="9 items from 2 on"):
        table.scatter_run(2, 9, [torch.arange(9)])
    with pytest.raises(IndexError, match="9 items from 2 on"):
        table.gather_run(2, 9, (9,))


def test_a_full_list_that_is_loaded_into_an_unbounded_one_begins_with_its_oldest_item() -> None:
    full, unbounded = ListStorage(3), ListStorage()
    full.set(range(3), [0, 1, 2])
    full.set(range(1), [3])
    unbounded.load_state_dict(full.state_dict())
    assert unbounded[:] == [1, 2, 3]
    unbounded.set(range(3, 6), [4, 5, 6])
    assert unbounded[:] == [1, 2, 3, 4, 5, 6]
    assert unbounded.log.is_cut(0)
