"""A state is taken over wholly or not at all, and says what is wrong with it."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from tensordict import TensorDict
from torch import Tensor, nn

from replaybank import (
    LazyMemmapStorage,
    LazyTensorStorage,
    ListStorage,
    RandomSampler,
    ReplayBuffer,
    SamplerWithoutReplacement,
    SliceSampler,
    TensorDictReplayBuffer,
)
from replaybank.samplers import ConsumingSampler, PrioritizedSampler, StalenessAwareSampler

ODD: list[Any] = [None, True, -1, 2**40, 1.5, "x", [], {}, [1, 2], torch.zeros(2), (torch.zeros(1),)]


def steps(start: int, count: int) -> TensorDict:
    numbers = torch.arange(start, start + count)
    return TensorDict({"n": numbers, "episode": numbers // 4}, batch_size=count)


def new(sampler: Any = RandomSampler, storage: Any = LazyTensorStorage, **kwargs: Any) -> Any:
    kwargs = {"batch_size": 4, "generator": torch.Generator().manual_seed(0), **kwargs}
    return TensorDictReplayBuffer(storage=storage(12), sampler=sampler(), **kwargs)


def slices() -> SliceSampler:
    return SliceSampler(slice_len=2, traj_key="episode")


def prioritized() -> PrioritizedSampler:
    return PrioritizedSampler(12, 0.7, 0.5)


def consuming() -> ConsumingSampler:
    return ConsumingSampler(max_times_sampled=9)


class FailsToLoad(RandomSampler):
    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        if state_dict:
            raise RuntimeError("no")

    def state_dict(self) -> dict[str, Any]:
        return {}


@pytest.mark.parametrize("storage", [LazyTensorStorage, LazyMemmapStorage, ListStorage])
@pytest.mark.parametrize("items", [0, 3, 20])
def test_a_load_that_fails_half_way_changes_nothing(storage: Any, items: int, tmp_path: Path) -> None:
    saved = new(FailsToLoad, storage)
    saved.extend(steps(50, 7))
    saved._sampler.state_dict = lambda: {"bad": 1}
    saved.dumps(tmp_path)
    buffer, twin = new(FailsToLoad, storage), new(FailsToLoad, storage)
    for one in (buffer, twin):
        for start in range(0, items, 5):
            one.extend(steps(start, min(5, items - start)))
    loads: list[Callable[[], None]] = [
        lambda: buffer.loads(tmp_path),
        lambda: buffer.load_state_dict(saved.state_dict()),
    ]
    for load in loads:
        with pytest.raises(ValueError, match=r"sampler.*RuntimeError: no.*Nothing has been changed"):
            load()
        assert buffer.storage.initialized == twin.storage.initialized
        assert len(buffer) == len(twin)
        assert (buffer.write_count, buffer.writer.cursor) == (twin.write_count, twin.writer.cursor)
    for one in (buffer, twin):
        one.extend(TensorDict({"other": torch.arange(3)}, [3]) if items == 0 else steps(80, 3))
    assert [buffer.sample()[key].tolist() for key in ("index",)] == [twin.sample()["index"].tolist()]
    for mine, others in zip(buffer[:], twin[:], strict=True):
        assert bool((mine == others).all())


def test_all_parts_are_put_back_by_a_load_that_fails_at_the_last_one() -> None:
    layer: Any = nn.Linear(1, 1)
    frozen: Any = copy.deepcopy(layer)
    buffer = new(prioritized, transform=frozen.requires_grad_(False))
    buffer._transform._links[0].on_sampling = lambda data: data
    buffer.extend(steps(0, 8))
    buffer.update_priority(torch.arange(8), torch.arange(8.0))
    before = buffer.state_dict()
    other = new(prioritized, transform=layer, generator=torch.Generator().manual_seed(9))
    other.extend(steps(30, 12))
    state = other.state_dict()
    with pytest.raises(ValueError, match="batches drawn ahead"):
        buffer.load_state_dict({**state, "ahead": [{}]})
    after = buffer.state_dict()
    for part in ("sampler", "writer", "transforms", "generator"):
        assert same(before[part], after[part]), part
    assert buffer[:]["n"].tolist() == list(range(8))


def same(a: Any, b: Any) -> bool:
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    return bool(torch.equal(a, b)) if isinstance(a, Tensor) else bool(a == b)


def places(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield at
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in inner:
        yield from places(item, (*at, key))


def changed(state: Any, at: tuple[Any, ...], value: Any) -> Any:
    if not at:
        return value
    new = state.copy()
    new[at[0]] = changed(state[at[0]], at[1:], value)
    return new


@pytest.mark.parametrize(
    "sampler",
    [RandomSampler, slices, prioritized, SamplerWithoutReplacement, StalenessAwareSampler, consuming],
    ids=str,
)
def test_a_hostile_state_is_refused_with_nothing_changed_or_can_be_used(sampler: Callable[[], Any]) -> None:
    saved = new(sampler, prefetch=2)
    saved.extend(steps(0, 10))
    saved.sample()
    while len(saved._prefetcher._ready) < 2:
        pass
    saved.close()
    state = saved.state_dict()
    del state["storage"]["data"]  # what is stored is the storage's own to check: it stays as it was
    whole = saved.state_dict()
    buffer = new(sampler)
    buffer.extend(steps(50, 9))
    for at, value in itertools.product(places({**state, "storage": None}), ODD):
        if at[:1] in ((), ("storage",)):
            continue
        try:
            buffer.load_state_dict(changed(whole, at, value))
        except ValueError:
            assert len(buffer) == 9, (at, value)
            assert buffer.storage[0]["n"] == 50, (at, value)
        else:
            for _ in range(3):
                assert len(buffer.sample()) <= 4, (at, value)
            buffer = new(sampler)
            buffer.extend(steps(50, 9))


def test_a_state_of_another_sampler_is_refused_and_both_are_named() -> None:
    saved, buffer = new(RandomSampler), new(slices)
    for one in (saved, buffer):
        one.extend(steps(0, 8))
    with pytest.raises(ValueError, match=r"with a RandomSampler; this one has a SliceSampler"):
        buffer.load_state_dict(saved.state_dict())


def test_a_state_of_another_kind_of_storage_is_refused_and_both_are_named() -> None:
    saved, buffer = new(), new(storage=ListStorage)
    for one in (saved, buffer):
        one.extend(steps(0, 8))
    with pytest.raises(ValueError, match=r"storage does not fit.*LazyTensorStorage; here is a ListStorage"):
        buffer.load_state_dict(saved.state_dict())
    with pytest.raises(ValueError, match=r"storage does not fit.*ListStorage; here is a LazyTensorStorage"):
        saved.load_state_dict(buffer.state_dict())


def test_what_is_no_state_of_a_buffer_is_refused() -> None:
    buffer = new()
    buffer.extend(steps(0, 8))
    with pytest.raises(ValueError, match=r"no state of a buffer.*lacks \['storage', 'sampler'"):
        buffer.load_state_dict(buffer.storage.state_dict())
    with pytest.raises(TypeError, match="got a list"):
        buffer.load_state_dict([])


def test_a_state_saved_by_a_checkpointer_needs_one_to_be_loaded(tmp_path: Path) -> None:
    class Checkpointer:
        def dumps(self, storage: Any, path: Path) -> None:
            storage.dumps(path)

        def loads(self, storage: Any, path: Path) -> None:
            storage.loads(path)

    saved, buffer = new(checkpointer=Checkpointer()), new()
    saved.extend(steps(0, 8))
    saved.dumps(tmp_path)
    with pytest.raises(ValueError, match="the same checkpointer"):
        buffer.loads(tmp_path)
    other = new(checkpointer=Checkpointer())
    other.loads(tmp_path)
    assert other[:]["n"].tolist() == list(range(8))


def test_batches_drawn_ahead_need_a_batch_size() -> None:
    saved = new(prefetch=2)
    saved.extend(steps(0, 8))
    saved.sample()
    while not saved._prefetcher._ready:
        pass
    saved.close()
    buffer = new(batch_size=None)
    with pytest.raises(ValueError, match="batch_size of the saved one"):
        buffer.load_state_dict(saved.state_dict())
    assert not buffer.storage.initialized


def test_a_save_hook_that_returns_nothing_leaves_the_earlier_save(tmp_path: Path) -> None:
    buffer = new()
    buffer.extend(steps(0, 8))
    buffer.dumps(tmp_path)
    buffer.register_save_hook(lambda state: None)
    buffer.extend(steps(8, 2))
    with pytest.raises(TypeError, match=r"save hook .* returned a NoneType.*Nothing has been saved"):
        buffer.dumps(tmp_path)
    other = new()
    other.loads(tmp_path)
    assert other[:]["n"].tolist() == list(range(8))
    other.register_load_hook(lambda state: 3)
    with pytest.raises(TypeError, match=r"load hook .* returned a int.*Nothing has been loaded"):
        other.loads(tmp_path)
    assert other[:]["n"].tolist() == list(range(8))


def test_a_state_holds_copies_of_what_a_module_learns() -> None:
    layer = nn.Linear(1, 1)
    buffer = ReplayBuffer(transform=layer)
    before = layer.weight.item()
    state = buffer.state_dict()
    with torch.no_grad():
        layer.weight.fill_(7.0)
    assert state["transforms"]["0"]["weight"].item() == before


class Viewing(LazyTensorStorage):
    """Offers its tensors themselves, and notes whether it was asked for them."""

    asked: list[bool]

    def state_dict(self, *, copy: bool = True) -> dict[str, Any]:
        self.asked.append(copy)
        state = super().state_dict()
        if self.initialized and not copy:
            state["data"] = [self.read_leaf(key, slice(None)) for key in self.leaf_keys()]
        return state


def test_a_storage_that_gives_views_is_saved_without_copies_unless_hooks_may_change_them(
    tmp_path: Path,
) -> None:
    buffer, other = new(storage=Viewing), new()
    buffer.storage.asked = []
    buffer.extend(steps(0, 8))
    buffer.dumps(tmp_path)
    assert buffer.storage.asked == [False]
    other.loads(tmp_path)
    assert other[:]["n"].tolist() == list(range(8))

    def zero(state: dict[str, Any]) -> dict[str, Any]:
        for leaf in state["data"]:
            leaf.zero_()
        return state

    buffer.register_save_hook(zero)
    buffer.dumps(tmp_path)
    buffer.state_dict()
    assert buffer.storage.asked == [False, True, True]
    assert buffer[:]["n"].tolist() == list(range(8))
