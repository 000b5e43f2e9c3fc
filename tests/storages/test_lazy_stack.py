"""TensorDicts of differing shapes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tensordict import LazyStackedTensorDict, TensorDict

from replaybank import ReplayBuffer
from replaybank.storages import LazyStackStorage
from replaybank.writers import RoundRobinWriter


def _item(steps: int, width: int = 2) -> TensorDict:
    return TensorDict({"x": torch.full((steps, width), float(steps))}, [steps])


def _filled(*lengths: int, **kwargs: Any) -> LazyStackStorage:
    storage = LazyStackStorage(len(lengths), **kwargs)
    writer = RoundRobinWriter()
    writer.register_storage(storage)
    writer.extend([_item(length) for length in lengths])
    return storage


def test_items_of_differing_shapes_come_as_one_lazy_stack() -> None:
    storage = _filled(3, 1, 2)
    for index in ([2, 0], torch.tensor([2, 0]), slice(2, None, -2)):
        batch = storage[index]
        assert isinstance(batch, LazyStackedTensorDict)
        assert [part["x"].tolist() for part in batch.unbind(0)] == [[[2, 2]] * 2, [[3, 3]] * 3]
    assert storage[1].batch_size == (1,)
    assert len(storage[:]) == 3


@pytest.mark.parametrize(("stack_dim", "shape"), [(0, (3, 4)), (1, (4, 3)), (-1, (4, 3)), (-2, (3, 4))])
def test_the_stack_counts_items_along_the_dimension_asked_for(stack_dim: int, shape: tuple[int, ...]) -> None:
    assert _filled(4, 4, 4, stack_dim=stack_dim)[:].batch_size == shape


def test_setting_an_entry_of_a_stack_leaves_the_stored_items_alone() -> None:
    storage = _filled(3, 1)
    for part in storage[:].unbind(0):
        part.set("new", part["x"])
    assert "new" not in set(storage[0].keys())


def test_a_buffer_samples_lazy_stacks() -> None:
    buffer = ReplayBuffer(storage=LazyStackStorage(10), batch_size=6)
    buffer.extend([_item(1), _item(2)])
    batch = buffer.sample()
    assert {int(part["x"][0, 0]) for part in batch.unbind(0)} <= {1, 2}
    assert len(batch) == 6


def test_what_is_no_tensordict_or_has_no_such_dimension_is_refused() -> None:
    storage = LazyStackStorage(3, stack_dim=2)
    with pytest.raises(TypeError, match="TensorDicts, got Tensor"):
        storage.set(0, torch.ones(2))
    with pytest.raises(ValueError, match="stack_dim=2"):
        storage.set(0, _item(2))
    assert len(storage) == 0
