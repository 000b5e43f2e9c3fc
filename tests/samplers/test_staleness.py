from __future__ import annotations

import math
import pickle
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from reference.chi_square import assert_fits
from reference.storage import PlainStorage
from reference.write_log import SlotLog
from replaybank.samplers.staleness import StalenessAwareSampler
from replaybank.storages import LazyTensorStorage


def grow(storage: PlainStorage, count: int) -> None:
    storage.extend({("x",): torch.ones(count, *storage.columns)})


def filled(rows: int, written: int, columns: tuple[int, ...] = ()) -> PlainStorage:
    storage = PlainStorage(rows, columns)
    for start in range(0, written, 3):
        grow(storage, min(3, written - start))
    return storage


def sampler_of(limit: int | None = None, seed: int = 0, **options: Any) -> StalenessAwareSampler:
    sampler = StalenessAwareSampler(limit, **options)
    sampler.generator = torch.Generator().manual_seed(seed)
    return sampler


def draw(sampler: StalenessAwareSampler, storage: PlainStorage, size: int) -> list[Any]:
    index, info = sampler.sample(storage, size)
    assert info == {}
    if isinstance(index, Tensor):
        assert index.dtype == torch.int64
        return index.tolist()
    assert all(part.dtype == torch.int64 for part in index)
    return list(zip(*(part.tolist() for part in index), strict=True))


def chances(ages: dict[Any, int], limit: int | None, decay: float) -> dict[Any, float]:
    weights = {item: (1 + age) ** -decay for item, age in ages.items() if limit is None or age <= limit}
    return {item: weight / sum(weights.values()) for item, weight in weights.items()}


@pytest.mark.parametrize("limit", [None, 0, 3])
@pytest.mark.parametrize("decay", [0.0, 1.0, 2.5])
@pytest.mark.parametrize(("rows", "written"), [(12, 7), (8, 8), (8, 21)])
def test_items_are_drawn_by_age(rows: int, written: int, decay: float, limit: int | None) -> None:
    storage, sampler = filled(rows, written), sampler_of(limit, decay=decay)
    ages = {k % rows: written - 1 - k for k in range(max(0, written - rows), written)}
    if limit == 0:
        assert set(draw(sampler, storage, 100)) == {(written - 1) % rows}
    else:
        assert_fits(draw(sampler, storage, 30_000), chances(ages, limit, decay))


@pytest.mark.parametrize("columns", [(1,), (3,), (2, 2)])
def test_all_columns_of_a_row_have_one_age(columns: tuple[int, ...]) -> None:
    storage, sampler = filled(4, 6, columns), sampler_of()
    ages: dict[Any, int] = {
        (row, *place): age
        for age, row in enumerate([1, 0, 3, 2])
        for place in torch.ones(columns).nonzero().tolist()
    }
    assert_fits(draw(sampler, storage, 30_000), chances(ages, None, 1.0))


def test_ages_grow_with_what_is_written() -> None:
    storage, sampler = filled(20, 10), sampler_of(2)
    for written in range(10, 50):
        newest = {(written - 1 - k) % 20 for k in range(3)}
        assert set(draw(sampler, storage, 200)) == newest
        grow(storage, 1)


def test_content_replaced_in_its_place_keeps_its_age() -> None:
    storage, sampler = filled(10, 10), sampler_of(2)
    draw(sampler, storage, 1)
    storage.replace(torch.tensor([0, 5]), {("x",): torch.zeros(2)})
    assert set(draw(sampler, storage, 200)) == {7, 8, 9}


def test_rows_written_elsewhere_are_new_there() -> None:
    storage, sampler = filled(10, 10), sampler_of(3, decay=1.0)
    draw(sampler, storage, 1)
    storage.write(4, {("x",): torch.zeros(2)}, set_cursor=False)
    assert_fits(draw(sampler, storage, 20_000), chances({5: 0, 4: 1, 9: 2, 8: 3}, None, 1.0))
    grow(storage, 1)
    assert_fits(draw(sampler, storage, 20_000), chances({0: 0, 5: 1, 4: 2, 9: 3}, None, 1.0))
    storage.log.clear()
    grow(storage, 2)
    assert_fits(draw(sampler, storage, 20_000), {1: 2 / 3, 0: 1 / 3})


def test_arguments_can_be_set_and_are_checked() -> None:
    storage, sampler = filled(10, 10), sampler_of()
    draw(sampler, storage, 10)
    sampler.max_staleness = 1
    assert set(draw(sampler, storage, 200)) == {8, 9}
    sampler.max_staleness, sampler.decay = None, 1000.0
    assert set(draw(sampler, storage, 200)) == {9}
    sampler.decay = 0
    assert_fits(draw(sampler, storage, 20_000), dict.fromkeys(range(10), 0.1))
    assert repr(sampler) == "StalenessAwareSampler(max_staleness=None, decay=0.0)"
    with pytest.raises(ValueError, match="max_staleness=-1"):
        StalenessAwareSampler(-1)
    for decay in (-0.5, math.nan, math.inf):
        with pytest.raises(ValueError, match=f"decay={decay}"):
            StalenessAwareSampler(decay=decay)


ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("sample"), st.integers(0, 9), st.just(0)),
        st.tuples(st.sampled_from(["write", "put"]), st.integers(1, 9), st.integers(0, 20)),
        st.tuples(st.sampled_from(["empty", "pickle", "state", "replace"]), st.just(0), st.integers(0, 20)),
    ),
    max_size=30,
)


@settings(max_examples=1000, deadline=None)
@given(actions=ACTIONS, rows=st.integers(1, 12), limit=st.integers(0, 15))
def test_any_history_agrees_with_write_stamps(
    actions: list[tuple[str, int, int]], rows: int, limit: int
) -> None:
    storage, log = PlainStorage(rows), SlotLog(rows)
    # So strong a decay, and so many draws, that the newest is missed once in 10^6 examples.
    sampler, strong = sampler_of(limit, decay=0.0), sampler_of(limit, seed=1, decay=60.0)
    for action, number, at in actions:
        if action in ("write", "put"):
            count, regular = min(number, rows), action == "write"
            start = storage.log.cursor if regular else at % (storage.log.length + 1) % rows
            storage.write(start, {("x",): torch.ones(count)}, set_cursor=regular)
            log.append(start, count, set_cursor=regular)
        elif action == "empty":
            storage.log.clear()
            log.clear()
        elif action == "replace" and len(storage):
            storage.replace(torch.tensor([at % storage.log.length]), {("x",): torch.zeros(1)})
        elif action in ("pickle", "state"):
            sampler, strong = copied(sampler, action), copied(strong, action)
        if len(storage):
            # Looks after every write: before the first look, order is told from the cursor.
            stamps = {row: stamp for row, stamp in enumerate(log.stamp) if stamp is not None}
            newest = max(stamps.values())
            allowed = {row for row, stamp in stamps.items() if newest - stamp <= limit}
            found = set(draw(sampler, storage, 200))
            assert found <= allowed
            assert len(allowed) > 6 or found == allowed
            assert set(draw(strong, storage, 2)) == {row for row, stamp in stamps.items() if stamp == newest}


def copied(sampler: StalenessAwareSampler, way: str) -> StalenessAwareSampler:
    generator, sampler.generator = sampler.generator, None
    other: StalenessAwareSampler = (
        pickle.loads(pickle.dumps(sampler)) if way == "pickle" else StalenessAwareSampler()
    )
    if way == "state":
        other.load_state_dict(sampler.state_dict())
    other.generator = generator
    return other


def test_a_reloaded_storage_keeps_its_ages() -> None:
    storage, loaded = LazyTensorStorage(10), LazyTensorStorage(10)
    for start in range(0, 14, 2):
        storage.write(storage.log.cursor, storage.prepare(torch.arange(start, start + 2)))
    sampler, other = sampler_of(2), StalenessAwareSampler()
    sampler.sample(storage, 5)
    loaded.load_state_dict(storage.state_dict())
    other.load_state_dict(sampler.state_dict())
    for same in (other, StalenessAwareSampler(2)):
        index, _ = same.sample(loaded, 200)
        assert isinstance(index, Tensor)
        assert set(loaded[index].tolist()) == {11, 12, 13}
