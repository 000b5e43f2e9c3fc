from __future__ import annotations

import pickle
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from depth import examples
from reference.chi_square import assert_fits
from reference.storage import PlainStorage
from replaybank.buffers.replay_buffer import ReplayBuffer
from replaybank.samplers.consuming import ConsumingSampler
from replaybank.storages import LazyTensorStorage


def grow(storage: PlainStorage, count: int) -> None:
    storage.extend({("x",): torch.ones(count, *storage.columns)})


def filled(rows: int, written: int, columns: tuple[int, ...] = ()) -> PlainStorage:
    storage = PlainStorage(rows, columns)
    for start in range(0, written, 3):
        grow(storage, min(3, written - start))
    return storage


def sampler_of(times: int = 1, seed: int = 0) -> ConsumingSampler:
    sampler = ConsumingSampler(times)
    sampler.generator = torch.Generator().manual_seed(seed)
    return sampler


def draw(sampler: ConsumingSampler, storage: PlainStorage, size: int) -> list[int]:
    """The items of a batch, numbered time-major over the capacity."""
    index, info = sampler.sample(storage, size)
    assert info == {}
    if not storage.columns:
        assert isinstance(index, Tensor)
        assert index.dtype == torch.int64
        return index.tolist()
    assert isinstance(index, tuple)
    assert all(part.dtype == torch.int64 for part in index)
    shape = (storage.rows, *storage.columns)
    numbers: Tensor = torch.arange(torch.Size(shape).numel()).reshape(shape)[index]
    return list(map(int, numbers))


@pytest.mark.parametrize("times", [1, 3])
@pytest.mark.parametrize("columns", [(), (1,), (2, 2)])
def test_every_item_comes_so_many_times_and_then_never_again(times: int, columns: tuple[int, ...]) -> None:
    storage, sampler = filled(7, 9, columns), sampler_of(times)
    seen: list[int] = []
    while not sampler.ran_out:
        batch = draw(sampler, storage, 4)
        assert 0 < len(set(batch)) == len(batch) <= 4
        seen += batch
    assert sorted(seen) == sorted(list(range(len(storage))) * times)
    with pytest.raises(RuntimeError, match=rf"All {len(storage)} items are used up.*={times}"):
        sampler.sample(storage, 4)
    assert sampler.ran_out
    assert sampler.count_left(storage) == 0


def test_items_written_to_used_up_slots_come_as_often_again() -> None:
    storage, sampler = filled(6, 6), sampler_of(2)
    while not sampler.ran_out:
        draw(sampler, storage, 6)
    grow(storage, 2)
    assert sampler.count_left(storage) == 2
    assert sorted(draw(sampler, storage, 6)) == [0, 1]
    assert not sampler.ran_out
    grow(storage, 1)
    assert sorted(draw(sampler, storage, 6)) == [0, 1, 2]
    assert sorted(draw(sampler, storage, 6)) == [2]
    assert sampler.ran_out


def test_content_replaced_in_its_place_is_the_same_item() -> None:
    storage, sampler = filled(6, 6), sampler_of()
    used = draw(sampler, storage, 2)
    storage.replace(torch.tensor(used), {("x",): torch.zeros(2)})
    assert not set(draw(sampler, storage, 6)) & set(used)


def test_an_emptied_sampler_and_an_emptied_storage_begin_anew() -> None:
    storage, sampler = filled(6, 6), sampler_of()
    draw(sampler, storage, 6)
    sampler.empty()
    assert not sampler.ran_out
    assert sorted(draw(sampler, storage, 6)) == list(range(6))
    storage.log.clear()
    grow(storage, 4)
    assert sorted(draw(sampler, storage, 6)) == list(range(4))


def test_how_often_can_be_set_for_items_written_later() -> None:
    storage, sampler = filled(10, 3), sampler_of()
    draw(sampler, storage, 3)
    sampler.max_times_sampled = 2
    grow(storage, 1)
    assert draw(sampler, storage, 4) == draw(sampler, storage, 4) == [3]
    for value in (0, -1):
        with pytest.raises(ValueError, match=f"max_times_sampled={value}: give at least 1"):
            ConsumingSampler(value)
    with pytest.raises(ValueError, match="batch_size=-1"):
        sampler.sample(storage, -1)


# ---- distribution


@pytest.mark.parametrize(("rows", "written"), [(6, 4), (4, 4), (4, 7)])
def test_every_order_of_a_batch_is_equally_likely(rows: int, written: int) -> None:
    storage, sampler = filled(rows, written), sampler_of(seed=1)
    drawn = []
    for _ in range(6000):
        sampler.empty()
        drawn.append((*draw(sampler, storage, 1), *draw(sampler, storage, 2), *draw(sampler, storage, 1)))
    orders = list(permutations(range(4)))
    assert_fits(drawn, dict.fromkeys(orders, 1 / len(orders)))


@pytest.mark.parametrize("columns", [(), (4,)])
def test_small_batches_of_many_items_are_uniform(columns: tuple[int, ...]) -> None:
    n = 40
    rows = n // torch.Size(columns).numel()
    storage, sampler = filled(rows, rows + 3, columns), sampler_of(times=10**9, seed=2)
    pairs = []
    for _ in range(8000):
        first, second, third = draw(sampler, storage, 3)
        pairs += [(0, first), (1, second), (2, third)]
        assert len({first, second, third}) == 3
    # Draws of one batch exclude each other, which makes counts vary less: no more false alarms.
    assert_fits(pairs, {(place, item): 1 / 3 / n for place in range(3) for item in range(n)})


# ---- against a model

ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("sample"), st.integers(0, 9), st.just(0)),
        st.tuples(st.sampled_from(["write", "put"]), st.integers(1, 9), st.integers(0, 20)),
        st.tuples(st.sampled_from(["empty", "pickle", "state", "replace", "reload"]), st.just(0), st.just(0)),
    ),
    max_size=40,
)


@settings(max_examples=examples(800), deadline=None)
@given(
    actions=ACTIONS,
    rows=st.integers(1, 12),
    columns=st.sampled_from([(), (1,), (3,)]),
    times=st.integers(1, 3),
)
def test_any_history_agrees_with_counts(
    actions: list[tuple[str, int, int]], rows: int, columns: tuple[int, ...], times: int
) -> None:
    storage, sampler = PlainStorage(rows, columns), sampler_of(times)
    width = torch.Size(columns).numel()
    left: dict[int, int] = {}
    irregular = False
    for action, number, at in actions:
        if action in ("write", "put"):
            count = min(number, rows)
            start = storage.log.cursor
            if action == "put":
                start = at % (storage.log.length + 1) % rows
                irregular = True
            storage.write(start, {("x",): torch.ones(count, *columns)}, set_cursor=action == "write")
            for k in range(count):
                for column in range(width):
                    left[(start + k) % rows * width + column] = times
        elif action == "empty":
            storage.log.clear()
            left = {}
        elif action == "replace" and len(storage):
            storage.replace(torch.tensor([at % storage.log.length]), {("x",): torch.zeros(1, *columns)})
        elif action == "reload" and not irregular:
            sampler = round_trip(sampler, "state")
            storage.log.load_state_dict(storage.log.state_dict())
        elif action in ("pickle", "state"):
            sampler = round_trip(sampler, action)
        elif action == "sample" and len(storage):
            there = {item for item, uses in left.items() if uses}
            assert sampler.count_left(storage) == len(there)
            if not there:
                with pytest.raises(RuntimeError, match="used up"):
                    sampler.sample(storage, number)
                continue
            items = draw(sampler, storage, number)
            assert len(items) == len(set(items)) == min(number, len(there))
            assert set(items) <= there
            for item in items:
                left[item] -= 1
            assert sampler.ran_out == (not any(left.values()))


def round_trip(sampler: ConsumingSampler, way: str) -> ConsumingSampler:
    generator, sampler.generator = sampler.generator, None
    other: ConsumingSampler = pickle.loads(pickle.dumps(sampler)) if way == "pickle" else ConsumingSampler()
    if way == "state":
        other.load_state_dict(sampler.state_dict())
    other.generator = generator
    return other


# ---- state


@pytest.mark.parametrize(
    "change",
    [
        {"available": torch.tensor([0, 10], dtype=torch.int32)},
        {"available": torch.tensor([1, 1], dtype=torch.int32)},
        {"uses": torch.tensor([1])},
    ],
)
def test_a_state_that_contradicts_itself_is_refused(change: dict[str, Any]) -> None:
    storage, sampler = filled(10, 10), sampler_of()
    draw(sampler, storage, 8)
    state = {**sampler.state_dict(), **change}
    with pytest.raises(ValueError, match="The state"):
        sampler.load_state_dict(state)
    assert len(draw(sampler, storage, 8)) == 2


def buffer_of(n: int) -> ReplayBuffer:
    buffer = ReplayBuffer(
        storage=LazyTensorStorage(20),
        sampler=ConsumingSampler(2),
        batch_size=4,
        generator=torch.Generator().manual_seed(0),
    )
    buffer.extend(torch.arange(n))
    return buffer


def test_a_buffer_that_was_loaded_does_not_give_used_up_items(tmp_path: Path) -> None:
    buffer, other = buffer_of(10), buffer_of(3)
    first = [buffer.sample().tolist() for _ in range(3)]
    buffer.dumps(tmp_path)
    other.loads(tmp_path)
    other.extend(torch.arange(10, 12))
    rest = [batch.tolist() for batch in other]
    items = [item for batch in first + rest for item in batch]
    assert sorted(items) == sorted([*range(12), *range(12)])


def test_iterating_ends_when_all_is_used_up_and_goes_on_after_writing() -> None:
    buffer = buffer_of(10)
    assert sorted(i for batch in buffer for i in batch.tolist()) == sorted([*range(10), *range(10)])
    buffer.extend(torch.arange(10, 13))
    assert sorted(i for batch in buffer for i in batch.tolist()) == [10, 10, 11, 11, 12, 12]
