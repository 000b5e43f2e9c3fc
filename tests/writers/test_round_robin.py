"""Writing in a circle, and telling where."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tensordict import TensorDict

from replaybank.errors import DataFormatError
from replaybank.storages import LazyTensorStorage, ListStorage, TensorStorage
from replaybank.writers import (
    ImmutableDatasetWriter,
    RoundRobinWriter,
    TensorDictMaxValueWriter,
    TensorDictRoundRobinWriter,
)


def _registered(writer: Any, storage: Any) -> Any:
    writer.register_storage(storage)
    return writer


def test_two_writers_on_one_storage_agree() -> None:
    storage = LazyTensorStorage(5)
    first, second = (_registered(RoundRobinWriter(), storage) for _ in range(2))
    first.extend(torch.arange(3))
    assert second.cursor == second.write_count == 3
    assert second.add(torch.tensor(3)) == 3
    assert first.extend(torch.arange(4, 6)).tolist() == [4, 0]


def test_add_writes_one_time_row_of_all_columns() -> None:
    writer = _registered(RoundRobinWriter(), LazyTensorStorage(6, ndim=2))
    assert writer.add(torch.tensor([1.0, 2.0])).tolist() == [[0, 0], [0, 1]]
    assert writer.add(torch.tensor([3.0, 4.0])).tolist() == [[1, 0], [1, 1]]
    assert writer.write_count == 2
    assert writer.storage[:].tolist() == [[1, 2], [3, 4]]


def test_extend_of_more_dimensions_gives_time_major_places_that_can_be_read() -> None:
    writer = _registered(RoundRobinWriter(), LazyTensorStorage(6, ndim=2))
    index = writer.extend(torch.arange(8.0).view(4, 2))
    assert index.tolist() == [[t % 3, c] for t in range(4) for c in range(2)]
    assert writer.storage[tuple(index[2:].T)].tolist() == [2, 3, 4, 5, 6, 7]


def test_emptying_starts_the_count_again_if_wanted() -> None:
    writer = _registered(RoundRobinWriter(), ListStorage(5))
    writer.extend([1, 2, 3])
    writer.storage.empty()
    writer.empty(empty_write_count=False)
    assert (writer.cursor, writer.write_count) == (0, 3)
    writer.empty()
    assert writer.write_count == 0
    writer.add(4)
    assert writer.write_count == 1
    other = _registered(RoundRobinWriter(), writer.storage)
    other.load_state_dict(writer.state_dict())
    assert other.write_count == 1


def test_a_writer_without_a_storage_says_so() -> None:
    assert "no storage" in repr(RoundRobinWriter())
    with pytest.raises(RuntimeError, match="register_storage"):
        RoundRobinWriter().add(1)


def test_the_place_is_stored_in_the_data_and_the_data_is_not_changed() -> None:
    writer = _registered(TensorDictRoundRobinWriter(), LazyTensorStorage(4))
    data = TensorDict({"a": torch.arange(3), "n": {"b": torch.ones(3, 2)}}, [3])
    assert writer.extend(data).tolist() == [0, 1, 2]
    assert writer.extend(data).tolist() == [3, 0, 1]
    assert writer.add(data[0]) == 2
    assert "index" not in data.keys()  # noqa: SIM118
    assert writer.storage[:]["index"].tolist() == [0, 1, 2, 3]
    assert writer.storage[:]["a"].tolist() == [1, 2, 0, 0]


def test_places_of_more_dimensions_are_stored_as_one_row_an_item() -> None:
    writer = _registered(TensorDictRoundRobinWriter(), LazyTensorStorage(8, ndim=2))
    data = TensorDict({"a": torch.arange(6).view(3, 2)}, [3, 2])
    index = writer.extend(data)
    writer.add(data[0])
    stored = writer.storage[:]["index"]
    assert stored.shape == (4, 2, 2)
    assert torch.equal(stored[:3].reshape(-1, 2), index)
    assert stored[3].tolist() == [[3, 0], [3, 1]]


def test_lists_of_tensordicts_get_their_places_too() -> None:
    writer = _registered(TensorDictRoundRobinWriter(), ListStorage(4))
    items = [TensorDict({"a": torch.ones(n)}, []) for n in (1, 2, 3)]
    writer.extend(items)
    assert [int(item["index"]) for item in writer.storage[:]] == [0, 1, 2]
    assert writer.extend([]).shape == (0,)


def test_an_index_that_comes_with_the_data_is_replaced() -> None:
    writer = _registered(TensorDictRoundRobinWriter(), LazyTensorStorage(4))
    writer.extend(TensorDict({"index": torch.tensor([7, 7])}, [2]))
    assert writer.storage[:]["index"].tolist() == [0, 1]


@pytest.mark.parametrize("data", [torch.ones(2), {"a": torch.ones(2)}, [torch.ones(2)]])
def test_what_is_no_tensordict_is_refused(data: Any) -> None:
    with pytest.raises(TypeError, match="TensorDict"):
        _registered(TensorDictRoundRobinWriter(), LazyTensorStorage(4)).extend(data)


def test_a_tensordict_without_a_batch_goes_to_add() -> None:
    with pytest.raises(ValueError, match="add"):
        _registered(TensorDictRoundRobinWriter(), LazyTensorStorage(4)).extend(
            TensorDict({"a": torch.ones(2)})
        )


def test_a_dataset_cannot_be_written_to() -> None:
    writer = _registered(ImmutableDatasetWriter(), TensorStorage(torch.arange(4)))
    for write in (writer.add, writer.extend):
        with pytest.raises(RuntimeError, match=r"read-only.*buffer of your own"):
            write(torch.arange(1))
    assert writer.storage[:].tolist() == [0, 1, 2, 3]
    assert "ImmutableDatasetWriter" in repr(writer)


@pytest.mark.parametrize(("capacity", "width", "rows"), [(10, 4, 5), (10, 4, 3), (10, 3, 4), (12, 4, 7)])
def test_the_first_batch_is_stored_with_the_places_at_which_it_comes_to_lie(
    capacity: int, width: int, rows: int
) -> None:
    writer = TensorDictRoundRobinWriter()
    writer.register_storage(LazyTensorStorage(capacity, ndim=2))
    ids = torch.arange(rows * width).view(rows, width)
    index = writer.extend(TensorDict({"x": ids}, [rows, width]))
    stored = writer.storage[:]
    time, column = stored["index"].unbind(-1)
    assert torch.equal(writer.storage[time, column]["x"], stored["x"])
    assert torch.equal(time, torch.arange(len(stored))[:, None].expand_as(time))
    assert index.tolist() == [[t % -(-capacity // width), c] for t in range(rows) for c in range(width)]


@pytest.mark.parametrize("written", [False, True])
@pytest.mark.parametrize(
    "data", [TensorDict({}, [0]), torch.zeros(0, 3), torch.zeros(0), {"x": torch.zeros(0, 3)}, []], ids=repr
)
@pytest.mark.parametrize("ndim", [1, 2])
def test_an_empty_batch_is_no_write_whatever_it_lacks(ndim: int, data: Any, written: bool) -> None:
    tensors = isinstance(data, torch.Tensor)
    writer = TensorDictRoundRobinWriter() if isinstance(data, TensorDict) else RoundRobinWriter()
    writer.register_storage(LazyTensorStorage(6, ndim=ndim))
    first = torch.zeros(1, 3)[:, : 3 if ndim == 2 else None]
    items: Any = first if tensors else {"x": first}
    if written:
        writer.extend(
            TensorDict(items, [1] if ndim == 1 else [1, 3]) if isinstance(data, TensorDict) else items
        )
    index = writer.extend(data)
    assert index.shape == ((0,) if ndim == 1 else (0, 2))
    assert index.dtype == torch.int64
    assert writer.write_count == written


@pytest.mark.parametrize(
    "state", [{}, *({"write_count": value} for value in ("3", True, -1, 1 << 63)), {"items": []}]
)
def test_a_damaged_state_of_a_writer_is_refused(state: dict[str, Any]) -> None:
    writer = _registered(RoundRobinWriter(), LazyTensorStorage(4))
    writer.extend(torch.arange(3))
    with pytest.raises(DataFormatError, match="damaged"):
        writer.load_state_dict(state)
    assert writer.write_count == 3


def test_items_that_are_there_without_their_place_stay_as_they_are() -> None:
    """A column of places would be wrong for what was stored before it."""
    storage = TensorStorage(TensorDict({"x": torch.arange(4)}, [4]))
    writers: list[Any] = [TensorDictRoundRobinWriter(), TensorDictMaxValueWriter("x")]
    for writer in writers:
        writer.register_storage(storage)
        writer.extend(TensorDict({"x": torch.tensor([7, 8])}, [2]))
        writer.add(TensorDict({"x": torch.tensor(9)}, []))
        assert list(storage[:].keys()) == ["x"]
    assert storage[:]["x"].tolist() == [9, 8, 9, 8]
