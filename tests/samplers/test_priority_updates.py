"""Updating priorities, by whatever names items, of items that may be gone."""

from __future__ import annotations

import pickle
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tensordict import TensorDict

from reference.storage import PlainStorage
from replaybank.buffers.tensordict import TensorDictReplayBuffer
from replaybank.samplers.base import Sampler
from replaybank.samplers.ensemble import SamplerEnsemble
from replaybank.samplers.prioritized import PrioritizedSampler
from replaybank.samplers.prioritized_slice import PrioritizedSliceSampler
from replaybank.samplers.random import RandomSampler
from replaybank.storages import LazyTensorStorage, StorageEnsemble, TensorStorage

KINDS: list[Any] = [
    pytest.param(PrioritizedSampler, id="items"),
    pytest.param(
        lambda *args, **kwargs: PrioritizedSliceSampler(*args, **kwargs, slice_len=2),
        id="slices of trajectories",
    ),
]


def steps(first: int, count: int, **more: Any) -> TensorDict:
    number = torch.arange(first, first + count)
    return TensorDict({"number": number, "episode": number // 5, **more}, [count])


def buffer_of(
    make: Callable[..., Sampler] = PrioritizedSampler, rows: int = 20, alpha: Any = 1.0, **options: Any
) -> TensorDictReplayBuffer:
    return TensorDictReplayBuffer(
        storage=LazyTensorStorage(rows),
        sampler=make(rows, alpha, 1.0, eps=0.0, **options),
        batch_size=40,
        generator=torch.Generator().manual_seed(0),
    )


def weights(buffer: TensorDictReplayBuffer) -> list[float]:
    assert isinstance(buffer.sampler, PrioritizedSampler)
    found: list[float] = buffer.sampler.weights.tolist()
    return found


# ---- what names items


@pytest.mark.parametrize("make", KINDS)
@pytest.mark.parametrize(
    ("index", "items"),
    [
        (slice(1, 3), [1, 2]),
        (slice(None), [0, 1, 2, 3, 4, 5]),
        (slice(-2, None), [4, 5]),
        (slice(4, 0, -2), [4, 2]),
        (slice(5, 2), []),
        (slice(3, 100), [3, 4, 5]),
        (range(2, 4), [2, 3]),
        (range(3, -1, -1), [3, 2, 1, 0]),
        (np.array([5, 1], np.uint8), [5, 1]),
        ((2, 0), [2, 0]),
    ],
)
def test_a_slice_or_a_range_names_items_too(make: Any, index: Any, items: list[int]) -> None:
    buffer = buffer_of(make)
    buffer.extend(steps(0, 6))
    expected = [1.0] * 6
    for k, item in enumerate(items):
        expected[item] = k + 2.0
    buffer.update_priority(index, torch.arange(len(items)) + 2.0)
    assert weights(buffer) == expected
    assert isinstance(buffer.sampler, PrioritizedSampler)
    assert buffer.sampler.priorities(index).tolist() == [expected[item] for item in items]
    buffer.mark_update(index)
    assert [weights(buffer)[item] for item in items] == [max(expected)] * len(items)


def test_a_slice_tells_a_sampler_of_new_items_before_it_knows_its_storage() -> None:
    storage, sampler = PlainStorage(4), PrioritizedSampler(4, 1.0, 1.0, eps=0.0)
    storage.extend({("x",): torch.zeros(4)})
    sampler.extend(slice(0, 2))
    sampler.update_priority(slice(0, 2), [5.0, 0.0])
    sampler.sample(storage, 1)
    assert sampler.weights.tolist() == [5.0, 0.0, 5.0, 5.0]


@pytest.mark.parametrize("index", [None, "a", True, [True], 1.0, [0.5], 1j])
def test_what_names_no_items_is_a_type_error(index: Any) -> None:
    buffer = buffer_of()
    buffer.extend(steps(0, 4))
    with pytest.raises(TypeError, match="give integers"):
        buffer.update_priority(index, 2.0)
    assert weights(buffer) == [1.0] * 4


@pytest.mark.parametrize("priority", [None, "a", True, [True], 1j, {"a": 1}, np.array([3], dtype=object)])
def test_what_is_no_number_is_a_type_error(priority: Any) -> None:
    buffer = buffer_of()
    buffer.extend(steps(0, 4))
    with pytest.raises(TypeError, match="Priorities of"):
        buffer.update_priority([1], priority)
    assert weights(buffer) == [1.0] * 4


@pytest.mark.parametrize("index", [-1, 6, 19, [0, 6]])
def test_only_priorities_of_stored_items_can_be_looked_at(index: Any) -> None:
    buffer = buffer_of()
    buffer.extend(steps(0, 6))
    assert isinstance(buffer.sampler, PrioritizedSampler)
    with pytest.raises(IndexError, match="there are 6 items"):
        buffer.sampler.priorities(index)
    with pytest.raises(ValueError, match="k=-1"):
        buffer.sampler.top_k(-1)


# ---- numbers


@pytest.mark.parametrize(
    "priority",
    [0.1, [0.1], (0.1,), np.float64(0.1), np.array([0.1]), torch.tensor([0.1], dtype=torch.float64)],
    ids=lambda p: type(p).__name__,
)
def test_a_float64_tree_keeps_all_digits_of_what_it_is_given(priority: Any) -> None:
    buffer = buffer_of(dtype=torch.float64)
    buffer.extend(steps(0, 2))
    buffer.update_priority([1], priority)
    assert weights(buffer) == [1.0, 0.1]


@pytest.mark.parametrize(
    "priority", [1e300, [1e300, 1e300], 1e-300, [1e-300, 1e-300], 2**70, np.uint64(2**63), 5e-324]
)
def test_huge_and_tiny_priorities_are_as_good_as_others_in_float64(priority: Any) -> None:
    buffer = buffer_of(dtype=torch.float64)
    buffer.extend(steps(0, 2))
    buffer.update_priority(slice(0, 2), priority)
    value = float(np.asarray(priority, dtype=np.float64).reshape(-1)[0])
    assert weights(buffer) == [value] * 2
    assert set(buffer.sample()["number"].tolist()) == {0, 1}
    assert buffer.sample()["priority_weight"].tolist() == [1.0] * 40


@pytest.mark.parametrize("priority", [1e39, [1e39], 2**200, np.float64(1e39)])
def test_a_priority_beyond_float32_is_refused_by_its_value(priority: Any) -> None:
    buffer = buffer_of()
    buffer.extend(steps(0, 2))
    with pytest.raises(ValueError, match=r"e\+\d\d \(position 0, for item 1\).*too large for torch\.float32"):
        buffer.update_priority([1], priority)
    assert weights(buffer) == [1.0, 1.0]


# ---- items that are not there any more


@pytest.mark.parametrize("make", KINDS)
@pytest.mark.parametrize("columns", [None, 3])
@pytest.mark.parametrize("refilled", [0, 3])
def test_a_sample_of_an_emptied_buffer_changes_no_priority(
    make: Any, columns: int | None, refilled: int
) -> None:
    def data(first: int, count: int) -> Any:
        one: Any = steps(first, count)
        return one if columns is None else torch.stack([one] * columns)

    buffer = (
        buffer_of(make)
        if columns is None
        else TensorDictReplayBuffer(
            storage=LazyTensorStorage(60, ndim=2), sampler=make(60, 1.0, 1.0, eps=0.0), batch_size=40
        )
    )
    buffer.extend(data(0, 20))
    sample = buffer.sample()
    buffer.empty()
    if refilled:
        buffer.extend(data(100, refilled))
    width = columns or 1
    for td_error in (torch.full((40,), 9.0), None):
        if td_error is not None:
            sample["td_error"] = td_error
        else:
            del sample["td_error"]
        buffer.update_tensordict_priority(sample)
        assert weights(buffer) == [1.0] * (refilled * width)
        assert buffer.sampler.max_priority == 1.0  # type: ignore[attr-defined]
    with pytest.raises(IndexError, match="out of range"):
        buffer.update_priority(sample["index"], 5.0)  # without stamps nobody can know


@pytest.mark.parametrize("make", KINDS)
def test_an_index_that_never_was_is_refused_with_stamps_too(make: Any) -> None:
    buffer = buffer_of(make)
    buffer.extend(steps(0, 10))
    for bad in (20, -2):
        with pytest.raises(IndexError, match=f"Index {bad}"):
            buffer.update_priority([0, bad], 5.0, generation=[10, 10])
    assert weights(buffer) == [1.0] * 10


@pytest.mark.parametrize("make", KINDS)
def test_without_a_priority_an_item_that_was_overwritten_keeps_its_own(make: Any) -> None:  # C17
    buffer = buffer_of(make)
    buffer.extend(steps(0, 20, td_error=torch.full((20,), 2.0)))
    buffer._batch_size = 1000
    sample = buffer.sample()
    assert set(sample["number"].tolist()) == set(range(20))
    buffer.extend(steps(20, 10, td_error=torch.full((10,), 0.5)))
    del sample["td_error"]
    buffer.update_priority(slice(10, 20), 1.0)
    buffer.update_tensordict_priority(sample)
    assert weights(buffer) == [0.5] * 10 + [2.0] * 10


def test_a_sampler_of_ones_own_need_not_know_of_stamps() -> None:
    class Own(PrioritizedSampler):
        marked: Any = None

        def mark_update(self, index: Any, *, storage: Any = None) -> None:  # type: ignore[override]
            self.marked = index

    buffer = buffer_of(Own)
    buffer.extend(steps(0, 4))
    sample = buffer.sample()
    buffer.update_tensordict_priority(sample)
    assert torch.equal(buffer.sampler.marked, sample["index"])  # type: ignore[attr-defined]


def test_marks_reach_the_parts_of_an_ensemble_with_their_stamps() -> None:
    storages = [TensorStorage(torch.zeros(4)) for _ in range(2)]
    prioritized = PrioritizedSampler(4, 1.0, 1.0, eps=0.0)
    ensemble = SamplerEnsemble(prioritized, RandomSampler(), sample_from_all=True)
    storage = StorageEnsemble(*storages)
    prioritized.update_priority([0, 1, 2, 3], [1.0, 2.0, 3.0, 4.0], storage=storages[0])
    index, info = ensemble.sample(storage, 80)
    storages[0].set(0, torch.ones(()))
    prioritized.update_priority([0], 0.5, storage=storages[0])
    ensemble.mark_update(index, storage=storage, generation=info["_generation"])
    assert prioritized.weights.tolist() == [0.5, 4.0, 4.0, 4.0]


# ---- alpha in a tensor


@pytest.mark.parametrize("make", KINDS)
def test_a_change_of_alpha_in_its_tensor_shows_wherever_one_looks(make: Any) -> None:
    looks: list[Callable[[Any], Any]] = [
        lambda sampler: sampler.weights.tolist() == [1.0, 2.0, 3.0, 4.0],
        lambda sampler: sampler.default_priority == 4.0,
        lambda sampler: sampler.state_dict()["weights"].tolist() == [1.0, 2.0, 3.0, 4.0],
        lambda sampler: sampler.state_dict()["alpha"] == 0.5,
        lambda sampler: sampler.priorities([1]).tolist() == [4.0],
        lambda sampler: sampler.top_k(1)[0].tolist() == [16.0],
        lambda sampler: sampler.max_priority == 16.0,
    ]
    for look in looks:
        alpha = torch.tensor(1.0)
        buffer = buffer_of(make, alpha=alpha)
        buffer.extend(steps(0, 4))
        buffer.update_priority(slice(0, 4), [1.0, 4.0, 9.0, 16.0])
        buffer.sample()
        alpha.fill_(0.5)
        assert look(buffer.sampler)
        sample = buffer.sample()  # and the starts of slices follow
        numbers = sample["number"]
        if make is not PrioritizedSampler:
            numbers = numbers.view(-1, 2)[:, :1].expand(-1, 2).reshape(-1)
        expected = 1 / (1 + numbers.double())
        torch.testing.assert_close(sample["priority_weight"].double(), expected, rtol=1e-6, atol=0)


@pytest.mark.parametrize("make", KINDS)
def test_a_priority_given_after_alpha_left_0_in_its_tensor_counts(make: Any) -> None:
    alpha = torch.tensor(0.0)
    buffer = buffer_of(make, alpha=alpha)
    buffer.extend(steps(0, 4))
    alpha.fill_(1.0)
    assert isinstance(buffer.sampler, PrioritizedSampler)
    buffer.sampler.update_priority(torch.arange(4), torch.tensor([1.0, 2.0, 3.0, 4.0]))
    assert weights(buffer) == [1.0, 2.0, 3.0, 4.0]


@pytest.mark.parametrize("given", [3.0, torch.tensor(3.0)])
@pytest.mark.parametrize("before", [1.0, 0.0])
def test_an_alpha_for_which_weights_are_too_large_is_refused(given: Any, before: float) -> None:
    buffer = buffer_of(alpha=before)
    buffer.extend(steps(0, 2))
    buffer.update_priority([0, 1], [2.0, 1e30])
    sampler: Any = buffer.sampler
    known = weights(buffer)
    with pytest.raises(ValueError, match=re.escape("alpha=3.0: the largest weight would be 1e+90")):
        sampler.alpha = given
    assert float(sampler.alpha) == before
    assert weights(buffer) == known
    buffer.sample()
    sampler.alpha = 0.5
    assert float(sampler.alpha) == 0.5


def test_an_alpha_that_asks_for_gradients_is_a_number_like_others() -> None:
    alpha = torch.tensor(0.5, requires_grad=True)
    sampler = buffer_of(alpha=alpha).sampler
    assert isinstance(sampler, PrioritizedSampler)
    assert sampler.alpha is alpha


# ---- states of another time


def test_of_a_state_older_than_its_reloaded_storage_what_was_written_since_is_new() -> None:
    for first, more, expected in (
        (10, 3, [*range(1, 11), 10, 10, 10]),
        (20, 3, [20, 20, 20, *range(4, 21)]),
        (18, 5, [18, 18, 18, *range(4, 19), 18, 18]),
        (20, 50, [20] * 20),
    ):
        buffer = buffer_of()
        buffer.extend(steps(0, first))
        buffer.update_priority(slice(None), torch.arange(first) + 1.0)
        state = buffer.sampler.state_dict()
        for k in range(more):
            buffer.extend(steps(first + k, 1))
        other = buffer_of()
        other.load_state_dict(buffer.state_dict())  # the log begins anew
        other.sampler.load_state_dict(state)
        other.sample()
        assert weights(other) == expected


def test_if_nobody_knows_what_is_new_all_items_are() -> None:
    storage, sampler = PlainStorage(8), PrioritizedSampler(8, 1.0, 1.0, eps=0.0)
    storage.extend({("x",): torch.zeros(6)})
    sampler.update_priority(slice(0, 6), torch.arange(6) + 1.0, storage=storage)
    state = sampler.state_dict()
    for k in range(5000):  # more writes apart than the log remembers, in no circle
        storage.write(0 if k % 2 else 3, {("x",): torch.zeros(1)})
    sampler.load_state_dict(state)
    sampler.sample(storage, 1)
    assert sampler.weights.tolist() == [6.0] * 6


def test_a_capacity_that_no_machine_has_is_refused_by_its_value() -> None:
    with pytest.raises(ValueError, match=f"max_capacity={2**70}: give at most"):
        PrioritizedSampler(2**70, 1.0, 1.0)


# ---- looking, when nothing was sampled yet


@pytest.mark.parametrize("make", KINDS)
def test_weights_are_those_of_the_stored_items_before_the_first_sample(make: Any, tmp_path: Path) -> None:
    buffer = TensorDictReplayBuffer(
        storage=LazyTensorStorage(60, ndim=2), sampler=make(60, 1.0, 1.0, eps=0.0), batch_size=4
    )
    data: Any = torch.stack([steps(0, 4)] * 3)
    buffer.extend(data)
    assert weights(buffer) == [1.0] * 12
    buffer.update_priority(3, 5.0)
    expected = [1.0] * 3 + [5.0] + [1.0] * 8
    buffer.dumps(tmp_path)
    other = TensorDictReplayBuffer(
        storage=LazyTensorStorage(60, ndim=2), sampler=make(60, 1.0, 1.0, eps=0.0), batch_size=4
    )
    other.loads(tmp_path)
    assert weights(other) == expected
    assert weights(pickle.loads(pickle.dumps(buffer))) == expected
    other.extend(data)
    assert weights(other) == expected + [5.0] * 12
    other.loads(tmp_path)
    other.empty()
    assert weights(other) == []


@pytest.mark.parametrize("make", KINDS)
def test_an_alpha_of_0_gives_no_weight_to_slots_that_were_never_written(make: Any) -> None:
    sampler = make(20, 1.0, 1.0, eps=0.0)
    storage = PlainStorage(20)
    storage.extend({("episode",): torch.zeros(6, dtype=torch.int64)})
    sampler.update_priority(slice(0, 6), torch.arange(6) + 1.0, storage=storage)
    sampler = pickle.loads(pickle.dumps(sampler))
    sampler.alpha = 0
    assert sampler.weights.tolist() == [1.0] * 6
    index, _ = sampler.sample(storage, 400)
    rows = index[0] if isinstance(index, tuple) else index
    assert set(rows.tolist()) == set(range(6))


def test_leaving_an_alpha_of_0_rounds_to_the_trees_dtype_only() -> None:
    buffer = buffer_of(alpha=0.0, dtype=torch.float64)
    buffer.extend(steps(0, 3))
    buffer.update_priority(0, 1.5)
    assert isinstance(buffer.sampler, PrioritizedSampler)
    buffer.sampler.alpha = 0.5
    assert weights(buffer) == [1.5**0.5] * 3


def test_the_largest_priority_within_the_buffer_is_not_that_of_an_item_another_buffer_overwrote() -> None:
    buffer = buffer_of(max_priority_within_buffer=True, rows=4)
    other = TensorDictReplayBuffer(storage=buffer.storage)
    buffer.extend(steps(0, 4))
    buffer.update_priority(slice(0, 4), [9.0, 3.0, 2.0, 1.0])
    other.extend(steps(4, 1))
    assert isinstance(buffer.sampler, PrioritizedSampler)
    assert buffer.sampler.max_priority == buffer.sampler.default_priority == 3.0
    assert weights(buffer) == [3.0, 3.0, 2.0, 1.0]
