from __future__ import annotations

import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from depth import examples
from reference.history import History
from reference.storage import PlainStorage
from reference.trajectory_index import Found, n_windows
from replaybank.storages import LazyTensorStorage
from replaybank.storages.log_header import HEADER
from replaybank.storages.write_log import RING
from replaybank.trajectories.index import Slices, TrajectoryIndex
from replaybank.trajectories.signals import ChangeSignal, DoneSignal, EndSignal


def as_list(slices: Slices) -> list[Found]:
    return [(column, first, steps) for column, first, steps in slices.runs.T.tolist()]


def check_index(index: TrajectoryIndex, every: list[Found], min_length: int) -> None:
    eligible = [found for found in every if found[2] >= min_length]
    assert as_list(index.eligible()) == eligible
    assert (index.n_trajectories, index.n_eligible) == (len(every), len(eligible))
    lengths = [steps for _, _, steps in every] or [0]
    assert index.length_range() == (min(lengths), max(lengths))


@settings(max_examples=examples(1500), deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_after_any_history_the_index_agrees_with_the_slots_themselves(seed: int) -> None:
    history = History(seed)
    index = TrajectoryIndex(history.signal)
    min_length = 1
    for _ in range(history.random.randint(1, 40)):
        history.step()
        if history.random.random() < 0.5:
            if history.random.random() < 0.3:
                min_length = history.random.choice([1, 2, 3, 10, 64, 100])
            index.sync(history.storage, min_length)
            check_index(index, history.trajectories(), min_length)


@settings(max_examples=examples(1500), deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_every_drawn_slice_is_consecutive_and_in_one_trajectory(seed: int) -> None:
    history = History(seed)
    index = TrajectoryIndex(history.signal)
    generator = torch.Generator().manual_seed(seed)
    for _ in range(history.random.randint(1, 10)):
        history.step()
        every = history.trajectories()
        slice_len = history.random.choice([1, 2, 3, 8])
        left, right = history.random.randrange(slice_len), history.random.randrange(slice_len)
        min_length = slice_len if history.random.random() < 0.5 else 1
        index.sync(history.storage, min_length)
        slices = index.draw(20, slice_len, left=left, right=right, generator=generator)
        eligible = [found for found in every if found[2] >= min_length]
        if not eligible:
            assert slices.total == 0
            continue
        length = history.log.length
        allowed = {
            (column, (first + offset) % length, kept)
            for column, first, steps in eligible
            for offset, kept in n_windows(steps, slice_len, left, right)
        }
        assert set(as_list(slices)) <= allowed
        time, column, ends = index.expand(slices)
        expected = [
            (slot % length, place, k == steps - 1)
            for place, first, steps in as_list(slices)
            for k, slot in enumerate(range(first, first + steps))
        ]
        places = torch.zeros_like(time) if column is None else column
        assert (column is None) == (history.n_columns == 1)
        assert list(zip(time.tolist(), places.tolist(), ends[:, 0].tolist(), strict=True)) == expected


def ends_at(count: int, *places: int) -> dict[tuple[str, ...], Tensor]:
    done = torch.zeros(count, dtype=torch.bool)
    done[list(places)] = True
    return {("done",): done}


def test_each_written_step_is_read_once_however_often_one_looks() -> None:
    for signal in (DoneSignal(("done",)), ChangeSignal(("done",))):
        storage, index, written = PlainStorage(50), TrajectoryIndex(signal), 0
        generator = random.Random(0)
        for _ in range(200):
            count = generator.randint(1, 20)
            storage.extend(ends_at(count, generator.randrange(count)))
            written += count
            for _ in range(generator.randint(1, 2)):
                index.sync(storage, 3)
            assert index.signals_read == written


def test_several_columns_are_read_once_each() -> None:
    storage, index = PlainStorage(10, (3,)), TrajectoryIndex(DoneSignal(("done",)))
    for _ in range(7):
        storage.extend({("done",): torch.zeros(4, 3, 1, dtype=torch.bool)})
        index.sync(storage)
    assert index.signals_read == 7 * 4 * 3


def test_an_index_that_fell_behind_the_log_is_right_again() -> None:
    storage, index = PlainStorage(100), TrajectoryIndex(DoneSignal(("done",)))
    storage.extend(ends_at(100, 9, 49))
    index.sync(storage)
    for k in range(RING + 5):
        storage.replace(torch.tensor([20]), {("done",): torch.tensor([k % 2 == 0])})
    storage.replace(torch.tensor([30]), {("done",): torch.tensor([True])})
    index.sync(storage)
    assert as_list(index.eligible()) == [(0, 0, 10), (0, 10, 11), (0, 21, 10), (0, 31, 19), (0, 50, 50)]


def test_another_storage_is_read_from_its_start() -> None:
    index = TrajectoryIndex(DoneSignal(("done",)))
    for rows, place in ((10, 3), (20, 8)):
        storage = PlainStorage(rows)
        storage.extend(ends_at(rows, place))
        index.sync(storage)
        assert as_list(index.eligible()) == [(0, 0, place + 1), (0, place + 1, rows - place - 1)]


def test_a_read_that_fails_leaves_nothing_half_done() -> None:
    storage, index = PlainStorage(10), TrajectoryIndex(DoneSignal(("done",)))
    storage.extend(ends_at(5, 2))
    index.sync(storage)
    storage.extend(ends_at(4, 0))
    kept = storage.leaves.pop(("done",))
    with pytest.raises(KeyError):
        index.sync(storage)
    storage.leaves["done",] = kept
    index.sync(storage)
    assert as_list(index.eligible()) == [(0, 0, 3), (0, 3, 3), (0, 6, 3)]


def test_ranks_choose_trajectories_and_a_rank_too_high_is_an_index_error() -> None:
    index = TrajectoryIndex.of_flags(torch.tensor([[False], [True], [False], [True], [True]]))
    assert as_list(index.eligible(torch.tensor([2, 0]))) == [(0, 4, 1), (0, 0, 2)]
    with pytest.raises(IndexError, match="Trajectory 3 is out of range: 3 trajectories"):
        index.eligible(torch.tensor([0, 3]))


@pytest.mark.parametrize("signal", [DoneSignal(("a",)), ChangeSignal(("a",))])
def test_signals_are_equal_if_they_read_the_same_leaf_the_same_way(signal: EndSignal) -> None:
    assert signal == type(signal)(("a",))
    assert hash(signal) == hash(type(signal)(("a",)))
    assert signal not in (type(signal)(("b",)), "a", DoneSignal(("b",)))
    assert DoneSignal(("a",)) != ChangeSignal(("a",))
    assert "('a',)" in repr(signal)


def test_minus_zero_and_zero_are_one_identity() -> None:
    storage, index = PlainStorage(4), TrajectoryIndex(ChangeSignal(("id",)))
    storage.extend({("id",): torch.tensor([0.0, -0.0, 1.0, 1.0])})
    index.sync(storage)
    assert as_list(index.eligible()) == [(0, 0, 2), (0, 2, 2)]


@pytest.mark.parametrize("columns", [(), (2,), (70,)])
@pytest.mark.parametrize("by_write", [False, True])
def test_any_byte_but_0_is_an_end(columns: tuple[int, ...], by_write: bool) -> None:
    rows = 100
    generator = torch.Generator().manual_seed(0)
    raw = torch.randint(0, 256, (rows, *columns), dtype=torch.uint8, generator=generator)
    raw[torch.rand(raw.shape, generator=generator) < 0.7] = 0
    found = []
    for flags in (raw.view(torch.bool), raw != 0):
        storage = PlainStorage(rows + 5, columns)
        index = TrajectoryIndex(DoneSignal(("done",)))
        for part in flags.split(7) if by_write else [flags]:
            storage.extend({("done",): part})
            index.sync(storage)
        found.append(as_list(index.eligible()))
    assert found[0] == found[1]
    assert len(found[0]) > 10


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float16, torch.float64, torch.complex64])
def test_identities_of_every_float_are_compared_nan_and_zeros_too(dtype: torch.dtype) -> None:
    ids = torch.tensor([0.0, -0.0, 1.0, torch.nan, torch.nan, 2.0]).to(dtype)
    storage = PlainStorage(6)
    storage.extend({("id",): ids})
    index = TrajectoryIndex(ChangeSignal(("id",)))
    index.sync(storage)
    assert as_list(index.eligible()) == [(0, 0, 2), (0, 2, 1), (0, 3, 2), (0, 5, 1)]


LENGTH, CURSOR, EVENTS = 3, 2, 4
"""Places in the log's header."""


@pytest.mark.parametrize("signal", [DoneSignal(("done",)), ChangeSignal(("done",))])
@pytest.mark.parametrize("place", [LENGTH, CURSOR, EVENTS])
@pytest.mark.parametrize("value", [10**6, -1, -(2**63), 2**63 - 1, 5])
def test_a_log_that_says_what_cannot_be_is_an_error_and_no_memory_is_touched(
    signal: EndSignal, place: int, value: int
) -> None:
    storage = PlainStorage(4)
    index = TrajectoryIndex(signal)
    storage.extend({("done",): torch.tensor([True, False, True])})
    index.sync(storage)
    storage.log.state[place] = value
    storage.log.state[0] += place == LENGTH  # another epoch: all is read anew
    for _ in range(2):
        try:
            index.sync(storage)
        except RuntimeError:
            pass
        else:
            assert 0 <= index.length <= 4
            every = as_list(index.eligible())
            assert all(0 <= first < 4 and 1 <= steps <= 4 for _, first, steps in every)
    if place == LENGTH:
        with pytest.raises(RuntimeError, match="write log of the storage is damaged"):
            index.sync(storage)


def test_events_of_rows_that_are_not_valid_are_an_error() -> None:
    storage = PlainStorage(8)
    index = TrajectoryIndex(DoneSignal(("done",)))
    storage.extend({("done",): torch.zeros(4, dtype=torch.bool)})
    index.sync(storage)
    storage.log.touch(torch.tensor([1]))
    ring = storage.log.state[HEADER:].view(-1, 3)
    for start, count in ((6, 1), (0, 8), (3, 2)):
        ring[1, 1], ring[1, 2] = start, count
        with pytest.raises(RuntimeError, match="damaged"):
            TrajectoryIndex._take(
                index, DoneSignal(("done",)), storage, storage.log, start, count, appended=False
            )


def test_a_mask_too_small_for_the_valid_rows_is_refused() -> None:
    storage = PlainStorage(4)
    index = TrajectoryIndex(DoneSignal(("done",)))
    storage.extend({("done",): torch.zeros(4, dtype=torch.bool)})
    index.sync(storage)
    with pytest.raises(ValueError, match="A mask of 3 slots was given for 4 rows of 1 columns"):
        index.starts(torch.zeros(3, dtype=torch.bool), 1, first_steps=True, start=0, count=4)


@pytest.mark.parametrize("shape", [(), (1,), (3,)])
@pytest.mark.parametrize("dtype", [torch.bool, torch.int64, torch.int32, torch.uint8])
def test_values_used_where_they_are_stored_give_the_index_of_values_that_were_copied(
    dtype: torch.dtype, shape: tuple[int, ...]
) -> None:
    if dtype is torch.bool and shape == (3,):
        pytest.skip("an end is one bool a step")
    kind = DoneSignal if dtype is torch.bool else ChangeSignal
    generator = torch.Generator().manual_seed(3)
    storage = LazyTensorStorage(37)
    in_place, copied = TrajectoryIndex(kind(("done",))), TrajectoryIndex(kind(("done",)))
    copied.signal.usable = lambda _: False  # type: ignore[method-assign, union-attr]
    cursor = 0
    for _ in range(200):
        count = int(torch.randint(1, 38, (), generator=generator))
        done = (torch.rand(count, *shape, generator=generator) < 0.2).to(dtype)
        storage.set(torch.arange(cursor, cursor + count) % 37, {"done": done, "other": torch.zeros(count, 3)})
        cursor = (cursor + count) % 37
        if count % 3 == 0:
            row = int(torch.randint(len(storage), (), generator=generator))
            storage[row] = {"done": done[0], "other": torch.ones(3)}
        in_place.sync(storage, 2)
        copied.sync(storage, 2)
        assert in_place.signal is not None
        assert in_place.signal.in_place(storage) is not None
        assert torch.equal(in_place.last_words, copied.last_words)
        assert torch.equal(in_place.eligible_words, copied.eligible_words)
        assert in_place.signals_read <= copied.signals_read
