"""The names that a TensorDict gives its dimensions."""

from __future__ import annotations

import pickle
from collections.abc import Callable

import pytest
import torch
from tensordict import TensorDict

from replaybank import LazyMemmapStorage, LazyTensorStorage, ListStorage, Storage, TensorDictReplayBuffer


@pytest.mark.parametrize("make", [LazyTensorStorage, LazyMemmapStorage, ListStorage])
def test_names_of_dimensions_behind_the_items_are_kept(make: Callable[[int], Storage]) -> None:
    def data() -> TensorDict:
        inner = TensorDict({"b": torch.zeros(2, 3)}, [2, 3])
        return TensorDict({"a": torch.zeros(2, 3, 4), "in": inner}, [2, 3], names=["item", "time"])

    storage = make(5)
    if isinstance(storage, ListStorage):
        storage.set(range(2), list(data().unbind(0)))
    else:
        storage.set(range(2), data())
    assert storage.get(1).names == ["time"]
    if isinstance(storage, ListStorage):
        return
    other = make(5)
    other.load_state_dict(storage.state_dict())
    for one in (storage, other, pickle.loads(pickle.dumps(storage))):
        assert one.get([0, 1]).names == one.get(slice(None)).names == [None, "time"]
        assert one.get(1)["in"].names == ["time"]
    state = storage.state_dict()
    state["structure"]["names"] = ["time", "space"]
    with pytest.raises(ValueError, match="names"):
        make(5).load_state_dict(state)
    del state["structure"]["names"]  # as states were before names were kept
    older = make(5)
    older.load_state_dict(state)
    assert older.get(1).names == [None]


def test_the_writer_of_places_keeps_names() -> None:
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(4), batch_size=2)
    data = TensorDict({"a": torch.zeros(3, 5)}, [3, 5])
    data.names = [None, "time"]
    buffer.extend(data)
    assert buffer.sample().names == buffer[:].names == [None, "time"]
