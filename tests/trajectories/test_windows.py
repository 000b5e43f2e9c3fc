"""The kernels for steps around given ones do what their plain twins do."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from depth import examples
from reference import slices as twin
from reference.history import History
from replaybank.storages.layout import LeafPlace
from replaybank.trajectories.index import TrajectoryIndex
from replaybank.trajectories.windows import (
    choose,
    discounted_sums,
    first_steps,
    lengthen,
    returns,
    windows,
)


@settings(max_examples=examples(120), deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_steps_around_some_are_those_of_the_twin(seed: int) -> None:
    history = History(seed)
    chance, n_columns = history.random, history.n_columns
    index = TrajectoryIndex(history.signal)
    for _ in range(chance.randint(1, 6)):
        history.step()
        index.sync(history.storage)
        every, length = history.trajectories(), history.log.length
        if not length:
            continue
        items = [chance.randrange(length * n_columns) for _ in range(8)]
        back, ahead = chance.randint(0, 4), chance.randint(0, 4)
        found = windows(index, torch.tensor(items), back, ahead)
        expected = [twin.around(every, length, n_columns, item, back, ahead) for item in items]
        assert found.slots.tolist() == [slots for slots, _, _ in expected]
        assert found.before.tolist() == [before for _, before, _ in expected]
        assert found.left.tolist() == [left for _, _, left in expected]

        randoms = torch.empty(8, dtype=torch.int64).random_(generator=torch.Generator().manual_seed(seed))
        for which in ("future", "final", "episode"):
            chosen = choose(index, torch.tensor(items), which, randoms)
            assert chosen.tolist() == [
                twin.choice(every, length, n_columns, item, which, number)
                for item, number in zip(items, randoms.tolist(), strict=True)
            ]

        ends = [chance.random() < 0.5 for _ in items]
        made = lengthen(index, torch.tensor(items), torch.tensor(ends), back)
        slots, source, padded = [], [], []
        for k, item in enumerate(items):
            if k == 0 or ends[k - 1]:
                before, there, _ = twin.around(every, length, n_columns, item, back, 0)
                slots += before[:back]
                source += [k] * back
                padded += [by > there for by in range(back, 0, -1)]
            slots, source, padded = [*slots, item], [*source, k], [*padded, False]
        assert made.slots.tolist() == slots
        assert made.source.tolist() == source
        assert made.padded.tolist() == padded


@settings(max_examples=examples(60), deadline=None)
@given(st.integers(0, 2**32 - 1), st.sampled_from([torch.float32, torch.float64]), st.integers(1, 40))
def test_returns_are_those_of_a_loop_however_long_they_are(seed: int, dtype: Any, most: int) -> None:
    history = History(seed)
    history.step()
    index = TrajectoryIndex(history.signal)
    index.sync(history.storage)
    every, length, n_columns = history.trajectories(), history.log.length, history.n_columns
    if not length:
        return
    chance, gamma = history.random, history.random.choice([0.0, 0.5, 0.99, 1.0])
    rewards = torch.tensor(
        [[chance.uniform(-1, 1) for _ in range(2)] for _ in range(length * n_columns)], dtype=dtype
    )
    place = LeafPlace(rewards.data_ptr(), 2 * dtype.itemsize, 2 * dtype.itemsize, dtype, (2,))
    items = [chance.randrange(length * n_columns) for _ in range(8)]
    powers = torch.pow(torch.tensor(gamma, dtype=torch.float64), torch.arange(min(most, 16) + 1))
    found = returns(index, torch.tensor(items), most, place, gamma, powers)
    for k, item in enumerate(items):
        slots, _, left = twin.around(every, length, n_columns, item, 0, most - 1)
        expected = sum(gamma**j * rewards[slots[j]].double() for j in range(left))
        assert torch.allclose(found.sums[k].double(), torch.as_tensor(expected), atol=1e-5)
        assert int(found.steps[k]) == left
        assert int(found.last[k]) == slots[left - 1]
        assert float(found.discounts[k]) == pytest.approx(gamma**left, rel=1e-6)


def test_sums_leave_out_what_is_behind_the_last_step() -> None:
    values = torch.tensor([[[1.0, 2.0], [3.0, float("nan")]], [[5.0, 6.0], [float("inf"), 8.0]]])
    powers = torch.tensor([1.0, 0.5, 0.25], dtype=torch.float64)
    assert discounted_sums(values, torch.tensor([1, 1]), powers).tolist() == [[1.0, 2.0], [5.0, 6.0]]
    assert discounted_sums(values, torch.tensor([0, 2]), powers)[0].tolist() == [0.0, 0.0]
    assert discounted_sums(values[:0], torch.tensor([], dtype=torch.int64), powers).shape == (0, 2)


def test_the_first_steps_of_slices_are_counted_from_the_end_of_the_slice_before() -> None:
    chance = random.Random(0)
    for _ in range(50):
        ends = [chance.random() < 0.4 for _ in range(12)]
        n = chance.randint(1, 4)
        expected, since = [], 0
        for end in ends:
            expected.append([since < n])
            since = 0 if end else since + 1
        assert first_steps(torch.tensor(ends), n).tolist() == expected


def test_slots_that_are_not_there_are_named() -> None:
    index = TrajectoryIndex.of_flags(torch.tensor([[False], [True], [True]]))
    for bad in (-1, 3):
        items, ends = torch.tensor([0, bad]), torch.tensor([False, True])
        with pytest.raises(IndexError, match=f"Slot {bad} is out of range"):
            windows(index, items, 1, 1)
        with pytest.raises(IndexError, match=f"Slot {bad} is out of range"):
            choose(index, items, "episode", items)
        for flags in (ends, ~ends):
            with pytest.raises(IndexError, match=f"Slot {bad} is out of range"):
                lengthen(index, items, flags, 2)
