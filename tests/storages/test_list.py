"""Lists of any objects."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from tensordict import TensorDict

from replaybank.storages import ListStorage
from replaybank.writers import RoundRobinWriter


def _writer(storage: ListStorage) -> RoundRobinWriter:
    writer = RoundRobinWriter()
    writer.register_storage(storage)
    return writer


def test_objects_are_kept_as_they_are() -> None:
    storage = ListStorage(5)
    items: list[Any] = ["text", {"a": [1]}, object(), None, (1, 2)]
    _writer(storage).extend(items)
    assert all(storage[i] is items[i] for i in range(5))
    assert storage[[0, -1]] == ["text", (1, 2)]


def test_a_list_without_a_size_grows_and_its_log_never_wraps() -> None:
    storage = ListStorage()
    writer = _writer(storage)
    mark = storage.log.mark()
    assert writer.extend(list(range(1023))).tolist() == list(range(1023))
    for number in range(1023, 1030):
        assert writer.add(number) == number
    writer.extend(list(range(1030, 5000)))
    assert storage[:] == list(range(5000))
    assert storage.log.changes(mark).runs == [(0, 5000)]
    assert torch.nonzero(storage.log.cut[:5001]).flatten().tolist() == [0, 5000]
    assert storage.max_size > 2**62
    other = ListStorage()
    other.load_state_dict(storage.state_dict())
    assert other[:] == list(range(5000))
    assert _writer(other).add("more") == 5000


def test_what_can_be_counted_is_taken_apart_along_its_first_dimension() -> None:
    storage = ListStorage(10)
    writer = _writer(storage)
    writer.extend(torch.arange(3))
    writer.extend(TensorDict({"a": torch.arange(2)}, [2]))
    writer.extend((1, 2))
    assert storage[2] == torch.tensor(2)
    assert storage[4]["a"] == 1
    assert storage[5:] == [1, 2]


@pytest.mark.parametrize("data", ["text", {"a": 1}, 3, None])
def test_what_is_no_sequence_of_items_is_refused(data: Any) -> None:
    with pytest.raises(TypeError, match="add"):
        _writer(ListStorage(5)).extend(data)


def test_items_are_replaced_in_their_places() -> None:
    storage = ListStorage(5)
    _writer(storage).extend(list("abcd"))
    storage[1] = "x"
    storage[[0, -1]] = ["y", "z"]
    assert storage[:] == ["y", "x", "c", "z"]
    with pytest.raises(ValueError, match="1 items for 2 places"):
        storage[[0, 1]] = ["only one"]
    with pytest.raises(IndexError, match="4"):
        storage[[0, 4]] = ["a", "b"]
    assert storage[:] == ["y", "x", "c", "z"]


def test_tensors_are_moved_to_the_device_asked_for() -> None:
    storage = ListStorage(5, device="meta")
    _writer(storage).extend([torch.ones(2), "text"])
    assert storage[0].device.type == "meta"
    assert storage[1] == "text"


def test_a_saved_list_of_tensors_is_loaded(tmp_path: Path) -> None:
    storage = ListStorage(5)
    _writer(storage).extend([{"a": torch.ones(2)}, {"a": torch.zeros(3)}])
    storage.dumps(tmp_path)
    other = ListStorage(5)
    other.loads(tmp_path)
    assert other[1]["a"].shape == (3,)
    assert pickle.loads(pickle.dumps(storage))[0]["a"].tolist() == [1, 1]


def test_a_state_with_more_items_than_there_is_room_for_is_refused() -> None:
    full = ListStorage(5)
    full.set(range(5), list(range(5)))
    with pytest.raises(ValueError, match="5 rows, this storage has room for 4"):
        ListStorage(4).load_state_dict(full.state_dict())
