"""The kernels that draw, cut and lay out slices do what their plain twins do, for the same random numbers."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from depth import examples
from reference import slices as twin
from reference.history import History
from reference.trajectory_index import Found
from replaybank import _native
from replaybank.trajectories.index import Slices, TrajectoryIndex, repeat


def as_list(slices: Slices) -> list[Found]:
    return [(column, first, steps) for column, first, steps in slices.runs.T.tolist()]


def randoms_of(count: int, seed: int) -> list[int]:
    found: list[int] = (
        torch.empty(count, dtype=torch.int64).random_(generator=torch.Generator().manual_seed(seed)).tolist()
    )
    return found


@settings(max_examples=examples(400), deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_the_same_random_numbers_give_the_slices_of_the_twin(seed: int) -> None:
    history = History(seed)
    random = history.random
    index = TrajectoryIndex(history.signal)
    for _ in range(random.randint(1, 8)):
        history.step()
        every, length = history.trajectories(), history.log.length
        slice_len = random.choice([1, 2, 3, 8])
        left, right = random.randrange(slice_len), random.randrange(slice_len)
        least = slice_len if random.random() < 0.5 else 1
        index.sync(history.storage, least)
        eligible = [found for found in every if found[2] >= least]
        drawn = index.draw(
            12, slice_len, left=left, right=right, generator=torch.Generator().manual_seed(seed)
        )
        expected = twin.draw(eligible, randoms_of(24, seed), slice_len, left, right, length)
        assert drawn.total == sum(steps for _, _, steps in expected)
        if not eligible:
            continue
        assert as_list(drawn) == expected

        ranks = torch.tensor([random.randrange(len(eligible)) for _ in range(5)])
        cut = index.slices_of(ranks, slice_len, generator=torch.Generator().manual_seed(seed))
        assert as_list(cut) == [
            twin.window(eligible[rank], number, slice_len, 0, 0, length)
            for rank, number in zip(ranks.tolist(), randoms_of(5, seed), strict=True)
        ]

        for dtype in (torch.float32, torch.float64, torch.int64):
            values = torch.arange(5).to(dtype)
            assert repeat(values, cut).tolist() == [
                float(k) for k, (_, _, steps) in enumerate(as_list(cut)) for _ in range(steps)
            ]


@settings(max_examples=examples(400), deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_starts_and_spans_are_those_of_the_twin(seed: int) -> None:
    history = History(seed)
    random, n_columns = history.random, history.n_columns
    index = TrajectoryIndex(history.signal)
    for _ in range(random.randint(1, 8)):
        history.step()
        index.sync(history.storage)
        every, length = history.trajectories(), history.log.length
        if not length:
            continue
        needed, first_steps = random.randint(1, 5), random.random() < 0.5
        expected = twin.starts(every, length, n_columns, needed, first_steps)
        mask = torch.zeros(length * n_columns, dtype=torch.bool)
        index.starts(mask, needed, first_steps=first_steps, start=0, count=length)
        assert mask.tolist() == expected

        start, count = random.randrange(length), random.randint(1, length)
        part = torch.tensor([not right for right in expected])
        index.starts(part, needed, first_steps=first_steps, start=start, count=count)
        looked = {(start + k) % length for k in range(count)}
        assert part.tolist() == [
            right if item // n_columns in looked else not right for item, right in enumerate(expected)
        ]

        items = [random.randrange(length * n_columns) for _ in range(6)]
        found = index.slices_from(torch.tensor(items), needed)
        assert as_list(found) == twin.spans(every, length, n_columns, items, needed)
        for bad in (-1, length * n_columns):
            with pytest.raises(IndexError, match=f"Slot {bad} is out of range"):
                index.slices_from(torch.tensor([items[0], bad]), needed)
            with pytest.raises(IndexError, match=f"Slot {bad} is out of range"):
                index.places_of(torch.tensor([items[0], bad]))
        before, left = index.places_of(torch.tensor(items)).tolist()
        assert list(zip(before, left, strict=True)) == twin.places(every, length, n_columns, items)


@given(numbers=st.lists(st.sampled_from([0, 7, -1, 2**62]), max_size=9), value=st.sampled_from([0, 7]))
def test_all_are_says_whether_all_numbers_are_one(numbers: list[int], value: int) -> None:
    given_numbers = torch.tensor(numbers, dtype=torch.int64)
    assert _native.all_are(given_numbers.data_ptr(), len(numbers), value) == all(n == value for n in numbers)
