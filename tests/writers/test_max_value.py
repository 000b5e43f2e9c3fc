"""Keeping the best items."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tensordict import TensorDict
from torch import Tensor

from contracts import Frame
from replaybank import ReplayBuffer, TensorDictReplayBuffer
from replaybank.samplers import RandomSampler
from replaybank.storages import LazyTensorStorage, ListStorage, Storage, TensorStorage
from replaybank.writers import TensorDictMaxValueWriter


def _writer(storage: Storage, **kwargs: Any) -> TensorDictMaxValueWriter:
    writer = TensorDictMaxValueWriter(**{"rank_key": "r", **kwargs})
    writer.register_storage(storage)
    return writer


def _data(*ranks: float) -> TensorDict:
    values = {"r": torch.tensor(ranks, dtype=torch.float32), "n": torch.arange(len(ranks))}
    return TensorDict(values, [len(ranks)])


class _Twin:
    """The same, searching all that is there for each item."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.items: list[tuple[float, int]] = []  # rank and age a slot
        self.age = 0

    def extend(self, ranks: list[float]) -> list[int]:
        out: list[int] = []
        for rank in ranks:
            self.age += 1
            slot = -1
            if len(self.items) < self.capacity:
                slot = len(self.items)
                self.items.append((rank, self.age))
            else:
                worst = min(range(self.capacity), key=lambda s: (self.items[s][0], -self.items[s][1]))
                if rank > self.items[worst][0]:
                    slot = worst
                    self.items[worst] = (rank, self.age)
            out = [-1 if slot >= 0 and other == slot else other for other in out] + [slot]
        return out


@settings(max_examples=60, deadline=None)
@given(
    capacity=st.integers(1, 6),
    batches=st.lists(st.lists(st.integers(0, 6).map(float), max_size=9), max_size=6),
    reload=st.booleans(),
    as_list=st.booleans(),
)
def test_the_best_are_kept_and_of_equal_ones_the_older(
    capacity: int, batches: list[list[float]], reload: bool, as_list: bool
) -> None:
    def storage() -> Storage:
        return ListStorage(capacity) if as_list else LazyTensorStorage(capacity)

    writer, twin = _writer(storage()), _Twin(capacity)
    kept = 0
    for ranks in batches:
        data = _data(*ranks)
        if len(ranks) == 1:
            slot = writer.add(data[0])
            index = [-1 if slot is None else slot]
        else:
            found = writer.extend([item.clone() for item in data.unbind(0)] if as_list else data)
            assert found.dtype == torch.int64
            index = found.tolist()
        assert index == twin.extend(ranks)
        kept += sum(place >= 0 for place in index)
        assert writer.write_count == kept
        if len(writer.storage):
            assert [float(writer.storage[s]["r"]) for s in range(len(twin.items))] == [
                r for r, _ in twin.items
            ]
            assert [int(writer.storage[s]["index"]) for s in range(len(twin.items))] == [
                *range(len(twin.items))
            ]
        if reload:
            other = _writer(storage())
            other.storage.load_state_dict(writer.storage.state_dict())
            other.load_state_dict(writer.state_dict())
            writer = other


@pytest.mark.parametrize("reduction", ["sum", "max", "min", "mean", "median"])
def test_a_trajectory_is_ranked_by_all_its_steps(reduction: str) -> None:
    writer = TensorDictMaxValueWriter(reduction=reduction)
    writer.register_storage(ListStorage(1))
    rewards: dict[str, list[float]] = {
        "sum": [1.0, 2.0],  # 3 beats 2.5
        "max": [9.0, -9.0],
        "min": [1.0, 1.5],
        "mean": [2.0, 4.0],
        "median": [0.0, 2.0, 7.0],
    }
    low = TensorDict({"next": TensorDict({"reward": torch.full((2, 1), 0.5)}, [2])}, [2])
    steps = torch.tensor(rewards[reduction]).view(-1, 1)
    high = TensorDict({"next": TensorDict({"reward": steps}, [len(steps)])}, [len(steps)])
    assert writer.add(low) == 0
    assert writer.add(high) == 0
    assert writer.add(low) is None
    assert writer.storage[0]["next", "reward"].tolist() == steps.tolist()


def test_whole_trajectories_in_a_tensor_storage_have_their_place_at_every_step() -> None:
    writer = TensorDictMaxValueWriter(rank_key="r")
    writer.register_storage(LazyTensorStorage(2))
    data = TensorDict({"r": torch.tensor([[1.0, 1.0], [5.0, 0.0], [2.0, 2.0]])}, [3, 2])
    assert writer.extend(data).tolist() == [-1, 1, 0]
    assert writer.storage[:]["r"].tolist() == [[2.0, 2.0], [5.0, 0.0]]
    assert writer.storage[:]["index"].tolist() == [[0, 0], [1, 1]]
    assert "index" not in set(data.keys())


@pytest.mark.parametrize("empty", [[], _data()])
def test_c61_writing_nothing_gives_an_empty_index(empty: Any) -> None:
    writer = _writer(LazyTensorStorage(2))
    index = writer.extend(empty)
    assert (index.shape, index.dtype, writer.write_count) == ((0,), torch.int64, 0)


def test_c61_a_batch_of_which_nothing_is_kept_changes_nothing() -> None:
    writer = _writer(LazyTensorStorage(2))
    writer.extend(_data(5, 6))
    mark = writer.storage.log.mark()
    assert writer.extend(_data(1, 5, 2)).tolist() == [-1, -1, -1]
    assert writer.add(_data(5)[0]) is None
    assert writer.storage.log.mark() == mark
    assert writer.storage[:]["r"].tolist() == [5, 6]


def test_c67_a_saved_writer_goes_on_as_if_nothing_had_happened(tmp_path: Path) -> None:
    def fresh() -> ReplayBuffer:
        return ReplayBuffer(
            storage=LazyTensorStorage(3), writer=TensorDictMaxValueWriter(rank_key="r"), batch_size=2
        )

    kept, saved = fresh(), fresh()
    for buffer in (kept, saved):
        buffer.extend(_data(3, 1, 2, 2))
    saved.dumps(tmp_path)
    loaded = fresh()
    loaded.loads(tmp_path)
    for data in (_data(2, 2.5), _data(9)):
        assert kept.extend(data).tolist() == loaded.extend(data).tolist()
    assert kept.add(_data(2.5)[0]) is loaded.add(_data(2.5)[0]) is None
    assert torch.equal(kept[:]["r"], loaded[:]["r"])
    empty = fresh()
    fresh().dumps(tmp_path)
    empty.loads(tmp_path)
    assert empty.extend(_data(1)).tolist() == [0]


def test_what_others_write_to_the_storage_is_ranked() -> None:
    storage = LazyTensorStorage(3)
    first, second = _writer(storage), _writer(storage)
    first.extend(_data(1, 2, 3))
    assert second.add(_data(5)[0]) == 0
    assert first.add(_data(1.5)[0]) is None
    storage[2] = TensorDict({"r": 0.0, "n": 0, "index": 2})
    assert first.add(_data(1)[0]) == 2
    assert second.add(_data(1)[0]) is None


def test_data_that_was_given_is_ranked() -> None:
    writer = _writer(TensorStorage(TensorDict({"r": torch.tensor([4.0, 1.0])}, [2])))
    assert writer.add(TensorDict({"r": torch.tensor(2.0)})) == 1
    assert writer.add(TensorDict({"r": torch.tensor(2.0)})) is None


def test_an_emptied_storage_takes_anything_again() -> None:
    buffer = ReplayBuffer(storage=LazyTensorStorage(2), writer=TensorDictMaxValueWriter(rank_key="r"))
    buffer.extend(_data(5, 6))
    buffer.empty()
    assert buffer.write_count == 0
    assert buffer.extend(_data(1, 0)).tolist() == [0, 1]


def test_a_tensorclass_is_kept_without_a_place() -> None:
    writer = _writer(LazyTensorStorage(2), rank_key="number")
    cls: Any = Frame
    data = cls(torch.tensor([4, 1, 3]), torch.ones(3, dtype=torch.bool), batch_size=[3])
    assert writer.extend(data).tolist() == [0, -1, 1]
    assert writer.storage[:].number.tolist() == [4, 3]


def test_more_dimensions_than_one_are_refused() -> None:
    with pytest.raises(ValueError, match="ndim=2"):
        _writer(LazyTensorStorage(4, ndim=2))


@pytest.mark.parametrize("data", [torch.ones(2), {"r": torch.ones(2)}, [torch.ones(2)]])
def test_what_is_no_tensordict_is_refused(data: Any) -> None:
    with pytest.raises(RuntimeError, match="TensorDict"):
        _writer(LazyTensorStorage(4)).extend(data)
    with pytest.raises(RuntimeError, match="TensorDict"):
        _writer(LazyTensorStorage(4)).add(data[0] if isinstance(data, Tensor) else data)


def test_a_missing_rank_a_nan_and_an_unknown_reduction_are_refused() -> None:
    writer = _writer(LazyTensorStorage(4))
    with pytest.raises(KeyError, match=r"rank key \('r',\).*'x'"):
        writer.extend(TensorDict({"x": torch.ones(2)}, [2]))
    with pytest.raises(ValueError, match="item 1 is NaN"):
        writer.extend(_data(1, float("nan")))
    with pytest.raises(ValueError, match="add"):
        writer.extend(_data(1)[0])
    assert writer.write_count == 0
    with pytest.raises(ValueError, match=r"'product'.*sum"):
        TensorDictMaxValueWriter(reduction="product")


def test_what_was_not_kept_gets_no_priority() -> None:
    class Told(RandomSampler):
        def __init__(self) -> None:
            self.told: list[Any] = []

        def extend(self, index: Any) -> None:
            self.told.append(index.tolist())

        def update_priority(self, index: Any, priority: Any, *, storage: Any = None) -> None:
            self.told.append((index.tolist(), priority.tolist()))

    sampler = Told()
    buffer = TensorDictReplayBuffer(
        storage=LazyTensorStorage(2),
        writer=TensorDictMaxValueWriter(rank_key="r"),
        sampler=sampler,
        priority_key="r",
    )
    buffer.extend(_data(1, 5, 3, 0))
    buffer.extend(_data(1))
    assert sampler.told == [[1, 0], ([1, 0], [5.0, 3.0])]
