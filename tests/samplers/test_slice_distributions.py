"""Slices of several columns, partly filled, exactly full and wrapped, come as often as they should.

One in a million seeds would fail by chance (``reference/chi_square.py``); the seeds are fixed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable
from itertools import pairwise
from typing import Any

import pytest
import torch

from reference.chi_square import assert_fits
from reference.storage import PlainStorage
from replaybank.samplers import SamplerEnsemble
from replaybank.samplers.random import RandomSampler
from replaybank.samplers.slice import SliceSampler
from replaybank.samplers.slice_without_replacement import SliceSamplerWithoutReplacement
from replaybank.storages import StorageEnsemble, TensorStorage

ROWS, LENGTH = 12, 2

Start = tuple[int, ...]


def stored(state: str, columns: tuple[int, ...]) -> PlainStorage:
    """Trajectories that end at random, in every column elsewhere."""
    storage, generator = PlainStorage(ROWS, columns), torch.Generator().manual_seed(5)
    for count in {"partly filled": [9], "exactly full": [12], "wrapped": [12, 5]}[state]:
        done = torch.rand((count, *columns, 1), generator=generator) < 0.25
        storage.extend({("next", "done"): done})
    return storage


def trajectories(storage: PlainStorage) -> list[list[Start]]:
    """The slots of each trajectory, in the order in which they were written."""
    length, width = storage.log.length, torch.Size(storage.columns).numel()
    first = storage.log.cursor if length == ROWS else 0
    done = storage.leaves["next", "done"].reshape(ROWS, width)
    found: list[list[Start]] = []
    for column in range(width):
        places = torch.unravel_index(torch.tensor(column), storage.columns) if storage.columns else ()
        current: list[Start] = []
        for k in range(length):
            row = (first + k) % length
            current.append((row, *map(int, places)))
            if done[row, column] or k == length - 1:
                found.append(current)
                current = []
    return found


@pytest.mark.parametrize("state", ["partly filled", "exactly full", "wrapped"])
@pytest.mark.parametrize("columns", [(), (2,), (2, 2)])
@pytest.mark.parametrize("once_each", [False, True])
def test_trajectories_of_all_columns_are_uniform_and_then_their_starts_are(
    state: str, columns: tuple[int, ...], once_each: bool
) -> None:
    storage = stored(state, columns)
    eligible = [slots for slots in trajectories(storage) if len(slots) >= LENGTH]
    assert len(eligible) > 1
    kind: Any = SliceSamplerWithoutReplacement if once_each else SliceSampler
    sampler = kind(slice_len=LENGTH)
    sampler.generator = torch.Generator().manual_seed(0)
    starts: list[Start] = []
    for _ in range(3000 if once_each else 3):
        where, _ = sampler.sample(storage, LENGTH * (len(eligible) if once_each else 8000))
        places = list(zip(*(part.tolist() for part in where), strict=True))
        starts += places[::LENGTH]
        pairs = set(zip(places[::LENGTH], places[1::LENGTH], strict=True))
        assert pairs <= {(a, b) for slots in eligible for a, b in pairwise(slots)}
    share = 1 / len(eligible)
    chances: dict[Hashable, float] = {
        slot: share / (len(slots) - 1) for slots in eligible for slot in slots[:-1]
    }
    if not once_each:
        assert_fits(starts, chances)
        return
    counts = Counter(starts)
    for slots in eligible:  # exactly once a pass, from a uniform start
        drawn = [slot for slot in slots[:-1] for _ in range(counts[slot])]
        assert len(drawn) == 3000
        if len(slots) > 2:
            assert_fits(drawn, dict.fromkeys(slots[:-1], 1 / (len(slots) - 1)))


@pytest.mark.parametrize("columns", [(), (3,)])
def test_an_ensemble_draws_parts_by_p_and_items_of_all_columns_alike(columns: tuple[int, ...]) -> None:
    rows = (4, 7)
    storage = StorageEnsemble(
        *(TensorStorage({"x": torch.zeros(n, *columns)}, ndim=1 + len(columns)) for n in rows)
    )
    sampler = SamplerEnsemble(RandomSampler(), RandomSampler(), p=[1.0, 3.0], num_buffer_sampled=2000)
    sampler.generator = torch.Generator().manual_seed(0)
    index, _ = sampler.sample(storage, 2000 * 20)
    ids = index["buffer_ids"].tolist()
    assert_fits(ids, {0: 0.25, 1: 0.75})
    for part, n in enumerate(rows):
        items = index["index"][index["buffer_ids"] == part].reshape(-1, 1 + len(columns)).tolist()
        every = [(row, *rest) for row in range(n) for rest in ([(c,) for c in range(3)] if columns else [()])]
        assert_fits([tuple(item) for item in items], dict.fromkeys(every, 1 / len(every)))
