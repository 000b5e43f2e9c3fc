"""Slices of the storages that users have; what slices come is tested in ``test_slice.py``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tensordict import TensorDict

from replaybank.samplers.base import SampledStorage
from replaybank.samplers.random import RandomSampler
from replaybank.samplers.slice import SliceSampler
from replaybank.storages import LazyTensorStorage, TensorStorage
from replaybank.storages.base import Storage
from replaybank.storages.list import ListStorage


def steps(start: int, count: int, columns: tuple[int, ...] = ()) -> TensorDict:
    """Steps ``start, ...`` of episodes of 7 steps; in column ``c`` they began ``c`` steps earlier."""
    column = torch.arange(torch.Size(columns).numel()).reshape(columns)
    number = (start + torch.arange(count)).reshape(count, *[1 for _ in columns]) + column
    done = (number % 7 == 6).unsqueeze(-1)
    return TensorDict(
        {
            "episode": number // 7 + 1000 * column,
            "step": number % 7,
            "observation": torch.rand(count, *columns, 3),
            "next": {"done": done, "terminated": done.clone(), "reward": torch.zeros(count, *columns, 1)},
        },
        batch_size=[count, *columns],
    )


def extend(storage: Storage, data: Any) -> None:
    storage.write(storage.log.cursor, storage.prepare(data))


def check(storage: Storage, sampler: SliceSampler, slice_len: int) -> int:
    """That every slice is consecutive steps of one episode in one column. Number of different ones."""
    accepted: SampledStorage = storage
    where, info = sampler.sample(accepted, 50 * slice_len)
    items = storage.get(where if len(where) > 1 else where[0])
    episode = items["episode"].view(50, slice_len)
    step = items["step"].view(50, slice_len)
    assert (episode == episode[:, :1]).all()
    assert (torch.diff(step) == 1).all()
    assert (info["next", "truncated"].view(50, slice_len).sum(1) == 1).all()
    assert torch.equal(info["next", "terminated"], items["next", "terminated"])
    assert torch.equal(info["next", "done"], items["next", "done"] | info["next", "truncated"])
    return len(set(zip(episode[:, 0].tolist(), step[:, 0].tolist(), strict=True)))


@pytest.mark.parametrize("columns", [(), (1,), (3,), (2, 2)])
@pytest.mark.parametrize("options", [{"traj_key": "episode"}, {"end_key": ("next", "done")}, {}])
def test_slices_of_a_lazy_tensor_storage_while_it_is_written(
    columns: tuple[int, ...], options: dict[str, Any]
) -> None:
    storage = LazyTensorStorage(50 * torch.Size(columns).numel(), ndim=1 + len(columns))
    sampler = SliceSampler(slice_len=4, **options)
    sampler.generator = torch.Generator().manual_seed(0)
    start = 0
    for count in (1, 12, 30, 7, 1, 1, 49, 50, 120, 13):
        extend(storage, steps(start, count, columns))
        start += count
        if start > 1:
            assert check(storage, sampler, 4) > 1


def test_slices_of_given_data_do_not_wrap_and_later_writes_join_nothing() -> None:
    storage = TensorStorage(steps(0, 20))
    sampler = SliceSampler(slice_len=3)
    check(storage, sampler, 3)
    extend(storage, steps(20, 4))
    for _ in range(5):
        check(storage, sampler, 3)


def test_replaced_items_and_emptied_storages_are_noticed() -> None:
    storage, sampler = LazyTensorStorage(40), SliceSampler(slice_len=3, end_key=("next", "done"))
    extend(storage, steps(0, 40))
    check(storage, sampler, 3)
    item = storage[9]
    item["next", "done"] = torch.tensor([True])
    storage[9] = item
    starts = sampler.sample(storage, 3000)[0][0].view(-1, 3)[:, 0].unique().tolist()
    assert not {8, 9} & set(starts)
    assert {7, 10, 11} <= set(starts)
    storage.empty()
    with pytest.raises(RuntimeError, match="empty storage"):
        sampler.sample(storage, 3)
    extend(storage, steps(0, 20))
    check(storage, sampler, 3)


def test_a_reloaded_wrapped_storage_keeps_its_write_head(tmp_path: Path) -> None:  # C37
    storage = LazyTensorStorage(30)
    for start in range(0, 50, 5):
        extend(storage, steps(start, 5))
    loaded, sampler = LazyTensorStorage(30), SliceSampler(slice_len=4)
    loaded.load_state_dict(storage.state_dict())
    check(loaded, sampler, 4)
    loaded.load_state_dict(storage.state_dict())
    extend(loaded, steps(50, 8))
    check(loaded, sampler, 4)


@pytest.mark.parametrize("item", [3, {"a": 1}, (torch.zeros(2), torch.zeros(3))])
def test_a_list_of_things_without_keys_gives_a_clear_error(item: Any) -> None:  # C43
    storage = ListStorage(5)
    extend(storage, [item] * 5)
    with pytest.raises(RuntimeError, match=r"^Could not get a tensordict out of the storage"):
        SliceSampler(slice_len=2).sample(storage, 4)
    where, info = SliceSampler(slice_len=2, ends=torch.tensor([0, 1, 0, 0, 1]).bool()).sample(storage, 4)
    assert len(where[0]) == len(info["next", "truncated"]) == 4


def test_a_tree_of_tensors_with_an_end_key_works() -> None:  # C43
    storage = TensorStorage({"x": torch.arange(6), "stop": torch.tensor([0, 0, 1, 0, 0, 1])})
    where, _ = SliceSampler(slice_len=3, end_key="stop").sample(storage, 30)
    assert set(map(tuple, where[0].view(-1, 3).tolist())) == {(0, 1, 2), (3, 4, 5)}


def test_a_bare_tensor_gives_a_clear_error() -> None:  # C43
    with pytest.raises(RuntimeError, match=r"^Could not get a tensordict out of the storage"):
        SliceSampler(slice_len=2).sample(TensorStorage(torch.arange(6)), 4)


@pytest.mark.parametrize("storage", [ListStorage(3), LazyTensorStorage(3), LazyTensorStorage(3, ndim=2)])
def test_an_empty_storage_is_an_error(storage: Storage) -> None:
    for sampler in (RandomSampler(), SliceSampler(slice_len=1)):
        with pytest.raises(RuntimeError, match=r"^Cannot sample from an empty storage\.$"):
            sampler.sample(storage, 2)


def test_random_items_of_several_columns() -> None:
    storage = LazyTensorStorage(30, ndim=2)
    extend(storage, steps(0, 4, (3,)))
    where, _ = RandomSampler().sample(storage, 500)
    items = storage.get(where)
    assert items.batch_size == torch.Size([500])
    assert torch.equal((items["step"] + items["episode"] % 1000 * 7), where[0] + where[1])


def test_a_list_of_tensordicts_says_which_storage_to_use() -> None:  # C43
    storage = ListStorage(5)
    extend(storage, steps(0, 5))
    with pytest.raises(RuntimeError, match=r"^Could not get a tensordict .* in a LazyTensorStorage"):
        SliceSampler(slice_len=2).sample(storage, 4)
