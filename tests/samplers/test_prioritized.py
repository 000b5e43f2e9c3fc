from __future__ import annotations

import copy
import functools
import math
import pickle
import threading
from collections.abc import Hashable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.multiprocessing as mp
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from tensordict import TensorDict
from torch import Tensor

from patience import PATIENCE
from reference.chi_square import assert_fits
from reference.storage import PlainStorage
from replaybank.buffers.replay_buffer import ReplayBuffer
from replaybank.buffers.tensordict import TensorDictReplayBuffer
from replaybank.samplers import priorities
from replaybank.samplers.prioritized import PrioritizedSampler
from replaybank.samplers.random import RandomSampler
from replaybank.storages import LazyTensorStorage, TensorStorage
from replaybank.storages.list import ListStorage
from replaybank.weights.sum_tree import SumTree


def w(priority: float, alpha: float, eps: float = 1e-8) -> float:
    return float((priority + eps) ** alpha)


def make(
    capacity: int = 100, alpha: Any = 1.0, beta: Any = 1.0, seed: int = 0, **options: Any
) -> PrioritizedSampler:
    sampler = PrioritizedSampler(capacity, alpha, beta, **options)
    sampler.generator = torch.Generator().manual_seed(seed)
    return sampler


def filled(n: int, rows: int | None = None, columns: tuple[int, ...] = ()) -> PlainStorage:
    storage = PlainStorage(rows or n, columns)
    extend(storage, n)
    return storage


def extend(storage: PlainStorage, n: int) -> None:
    storage.extend({("x",): torch.zeros(n, *storage.columns)})


def numbers(storage: PlainStorage, index: Any) -> list[int]:
    parts = index if isinstance(index, tuple) else (index,)
    flat = torch.zeros_like(parts[0])
    for part, size in zip(parts, storage.shape, strict=True):
        flat = flat * size + part
    return [int(k) for k in flat]


# ---- new items


def test_a_new_item_weighs_what_the_largest_priority_weighs() -> None:  # C01
    storage, sampler = filled(3, rows=10), make(alpha=0.5)
    sampler.update_priority(torch.arange(3), torch.tensor([1.0, 16.0, 4.0]), storage=storage)
    extend(storage, 1)
    sampler.sample(storage, 1)
    assert sampler.weights[3].item() == pytest.approx(4.0)
    assert sampler.default_priority == pytest.approx(4.0)
    assert sampler.max_priority == 16.0
    sampler.update_priority(1, 2.0)  # lowered: the largest seen so far still counts
    extend(storage, 1)
    assert sampler.weights.tolist() == pytest.approx([1.0, math.sqrt(2), 2.0, 4.0, 4.0])


def test_without_priorities_new_items_weigh_what_1_weighs() -> None:
    sampler, storage = make(alpha=0.5, eps=3.0), filled(4)
    sampler.sample(storage, 1)
    assert sampler.weights.tolist() == [2.0] * 4
    assert sampler.max_priority == 1.0


def test_within_the_buffer_the_largest_of_the_items_there_counts() -> None:  # C02
    storage, sampler = filled(4), make(alpha=0.7, max_priority_within_buffer=True)
    sampler.update_priority([0, 1, 2, 3], [1.0, 100.0, 2.0, 3.0], storage=storage)
    assert sampler.max_priority == pytest.approx(100.0)
    extend(storage, 1)  # into slot 0
    sampler.extend(torch.tensor([0]))
    assert sampler.weights[0].item() == pytest.approx(25.12, abs=0.01)
    extend(storage, 1)  # over the holder: what slot 0 inherited counts
    sampler.extend(torch.tensor([1]))
    assert sampler.weights[1].item() == pytest.approx(25.12, abs=0.01)
    sampler.update_priority([0, 1], [1.0, 1.0], storage=storage)  # lowered
    assert sampler.max_priority == pytest.approx(3.0)
    extend(storage, 2)  # slots 2 and 3: the 3 goes with them
    sampler.extend(torch.tensor([2, 3]))
    assert sampler.weights[2:].tolist() == pytest.approx([1.0, 1.0])


def test_one_large_write_clears_what_it_replaces_before_it_asks_for_the_maximum() -> None:
    storage, sampler = filled(4), make(max_priority_within_buffer=True)
    sampler.update_priority(torch.arange(4), torch.tensor([50.0, 60.0, 2.0, 3.0]), storage=storage)
    extend(storage, 2)
    sampler.extend(torch.tensor([0, 1]))
    assert sampler.weights.tolist() == pytest.approx([3.0, 3.0, 2.0, 3.0])
    extend(storage, 4)
    sampler.extend(torch.tensor([2, 3, 0, 1]))
    assert sampler.weights.tolist() == pytest.approx([1.0] * 4)


def test_an_item_replaced_in_its_place_keeps_its_priority() -> None:
    storage, sampler = filled(4), make(eps=0.0)
    sampler.update_priority(torch.arange(4), torch.tensor([1.0, 2.0, 3.0, 4.0]), storage=storage)
    storage.replace(torch.tensor([1]), {("x",): torch.ones(1)})
    sampler.sample(storage, 2)
    assert sampler.weights.tolist() == [1.0, 2.0, 3.0, 4.0]


def test_a_sampler_put_on_a_storage_that_holds_data_counts_all_items() -> None:  # C18
    storage, sampler = filled(7, rows=10), make(capacity=10)
    drawn, info = sampler.sample(storage, 4000)
    assert set(numbers(storage, drawn)) == set(range(7))
    assert info["priority_weight"].tolist() == [1.0] * 4000


def test_an_update_on_a_storage_never_sampled_keeps_what_was_given() -> None:
    storage, sampler = filled(4), make(capacity=4, eps=0.0)
    sampler.extend(torch.arange(2))
    sampler.update_priority(torch.tensor([0, 1]), torch.tensor([5.0, 0.0]))
    sampler.sample(storage, 1)
    assert sampler.weights.tolist() == [5.0, 0.0, 5.0, 5.0]


def test_a_mark_of_update_gives_the_weight_of_new_items() -> None:
    storage, sampler = filled(4), make(eps=0.0)
    sampler.update_priority(torch.arange(4), torch.tensor([1.0, 2.0, 3.0, 9.0]), storage=storage)
    sampler.mark_update(torch.tensor([0, -1, 2]), storage=storage)
    assert sampler.weights.tolist() == [9.0, 2.0, 9.0, 9.0]


# ---- updates

AWKWARD: list[Any] = [
    torch.tensor([1.0, 4.0], dtype=torch.float64),
    torch.tensor([1.0, 4.0], dtype=torch.float16),
    torch.tensor([1, 4]),
    torch.tensor([[1.0], [4.0]], requires_grad=True),
    [1.0, 4.0],
    np.array([1.0, 4.0]),
    np.array([1, 4], np.int32),
    torch.tensor([9.0, 1.0, 9.0, 4.0])[1::2],
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("priority", AWKWARD, ids=lambda p: f"{type(p).__name__} {getattr(p, 'dtype', '')}")
def test_priorities_come_in_any_form(dtype: torch.dtype, priority: Any) -> None:  # C03
    storage, sampler = filled(3), make(alpha=0.5, eps=0.0, dtype=dtype)
    sampler.update_priority(torch.tensor([0, 2]), priority, storage=storage)
    assert sampler.weights.tolist() == pytest.approx([1.0, 1.0, 2.0])
    assert sampler.sample(storage, 2)[1]["priority_weight"].dtype == dtype


@pytest.mark.parametrize("priority", [torch.tensor(4.0), 4, 4.0, np.float32(4)])
@pytest.mark.parametrize(
    "index", [1, torch.tensor(1), torch.tensor([1]), np.int64(1), [1], np.array([1], np.int32)]
)
def test_one_number_does_for_one_item_in_any_form(priority: Any, index: Any) -> None:
    storage, sampler = filled(3), make(eps=0.0)
    sampler.update_priority(index, priority, storage=storage)
    assert sampler.weights.tolist() == [1.0, 4.0, 1.0]
    sampler.update_priority([0, 1, 2], priority)
    assert sampler.weights.tolist() == [4.0, 4.0, 4.0]


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, -1.0])
def test_a_bad_priority_among_good_ones_changes_nothing(bad: float) -> None:  # C04
    storage, sampler = filled(256), make(capacity=256)
    priorities = torch.rand(256)
    priorities[77] = bad
    with pytest.raises(ValueError, match="position 77, for item 77"):
        sampler.update_priority(torch.arange(256), priorities, storage=storage)
    assert sampler.weights.tolist() == pytest.approx([1.0] * 256)
    sampler.sample(storage, 10)


@pytest.mark.parametrize("bad", [4, -2, 10, 10**12])
def test_an_index_out_of_range_changes_nothing(bad: int) -> None:  # C12
    storage, sampler = filled(4, rows=10), make(capacity=10)
    with pytest.raises(IndexError, match=str(bad)):
        sampler.update_priority(torch.tensor([0, bad]), 5.0, storage=storage)
    assert sampler.weights.tolist() == pytest.approx([1.0] * 4)


def test_of_repeated_indices_the_last_wins_and_minus_one_is_skipped() -> None:
    storage, sampler = filled(4), make(eps=0.0)
    sampler.update_priority(torch.tensor([1, -1, 1, 0]), torch.tensor([5.0, 99.0, 6.0, 7.0]), storage=storage)
    assert sampler.weights.tolist() == [7.0, 6.0, 1.0, 1.0]
    assert sampler.max_priority == 7.0
    sampler.update_priority(-1, 50.0)
    sampler.update_priority(torch.tensor([], dtype=torch.int64), torch.tensor([]))
    assert sampler.max_priority == 7.0


def test_shapes_that_do_not_fit_are_named() -> None:
    storage, sampler = filled(4), make()
    with pytest.raises(RuntimeError, match=r"shape \(3,\).*shape \(2,\)"):
        sampler.update_priority(torch.tensor([0, 1]), torch.ones(3), storage=storage)
    with pytest.raises(RuntimeError, match="pass storage="):
        sampler.update_priority(torch.tensor([[0], [1]]), torch.ones(2))
    with pytest.raises(RuntimeError, match="of 1 dimensions"):
        sampler.update_priority(torch.tensor([[0, 1]]), torch.ones(1), storage=storage)
    with pytest.raises(TypeError, match="give integers"):
        sampler.update_priority(torch.tensor([0.5]), 1.0, storage=storage)
    sampler.update_priority(torch.tensor([[0], [1]]), torch.ones(2, 1), storage=storage)


def test_several_dimensions_are_updated_by_rows_of_indices() -> None:
    storage, sampler = filled(3, columns=(2, 2)), make(capacity=12, eps=0.0)
    sampler.update_priority(
        torch.tensor([[1, 0, 1], [2, 1, 1], [-1, -1, -1]]), torch.tensor([5.0, 7.0, 9.0]), storage=storage
    )
    assert sampler.weights.tolist() == [1.0] * 5 + [5.0] + [1.0] * 5 + [7.0]
    sampler.update_priority((torch.tensor([0]), torch.tensor([1]), torch.tensor([0])), 3.0, storage=storage)
    assert sampler.weights[2] == 3.0
    for bad in ([3, 0, 0], [0, 2, 0], [0, -1, 0], [-2, 0, 0]):
        with pytest.raises(IndexError, match="out of range"):
            sampler.update_priority(torch.tensor([bad]), 1.0, storage=storage)


# ---- what is drawn


def test_items_without_weight_never_come() -> None:  # C05
    storage, sampler = filled(4), make(eps=0.0)
    sampler.update_priority(torch.arange(4), torch.tensor([0.0, 0.0, 2.0, 2.0]), storage=storage)
    index, info = sampler.sample(storage, 1000)
    assert set(numbers(storage, index)) == {2, 3}
    assert info["priority_weight"].tolist() == [1.0] * 1000


def test_all_weights_zero_is_an_error_that_says_so() -> None:  # C06
    storage, sampler = filled(4), make(eps=0.0)
    sampler.update_priority(torch.arange(4), 0.0, storage=storage)
    with pytest.raises(RuntimeError, match="All weights are 0"):
        sampler.sample(storage, 3)


def test_equal_weights_are_drawn_about_equally_often() -> None:  # C08
    storage, sampler = filled(4096), make(capacity=4096)
    index, _ = sampler.sample(storage, 10**6)
    assert_fits(numbers(storage, index), dict.fromkeys(range(4096), 1 / 4096))


def test_half_of_a_million_without_weight_never_comes() -> None:  # C09
    n = 10**6
    storage, sampler = filled(n), make(capacity=n, eps=0.0)
    heavy = torch.rand(n, generator=torch.Generator().manual_seed(0)) < 0.5
    sampler.update_priority(torch.arange(n), heavy * 1e6, storage=storage)
    index, _ = sampler.sample(storage, n)
    assert isinstance(index, Tensor)
    assert bool(heavy[index].all())


def test_sums_do_not_drift_over_fifteen_orders_of_magnitude() -> None:  # C10
    storage, sampler = filled(1000), make(capacity=1000, eps=0.0)
    generator = torch.Generator().manual_seed(0)
    for _ in range(50):
        sampler.update_priority(
            torch.randint(1000, (500,), generator=generator),
            10 ** (torch.rand(500, generator=generator) * 15 - 6),
            storage=storage,
        )
    sampler.update_priority(torch.arange(1000), 1e-6)
    total = float(sampler.weights.double().sum())
    assert total == pytest.approx(1000 * 1e-6, rel=1e-6)
    index, _ = sampler.sample(storage, 100_000)
    assert_fits(numbers(storage, index), dict.fromkeys(range(1000), 0.001))


@pytest.mark.parametrize("columns", [(), (3,), (2, 2)])
@pytest.mark.parametrize("state", ["partly filled", "exactly full", "wrapped"])
@pytest.mark.parametrize("stratified", [False, True])
def test_draws_are_in_proportion_to_weights(columns: tuple[int, ...], state: str, stratified: bool) -> None:
    storage = filled(8 if state == "partly filled" else 10, rows=10, columns=columns)
    if state == "wrapped":
        extend(storage, 10)
        extend(storage, 3)
    n = len(storage)
    sampler = make(capacity=10 * math.prod(columns), alpha=0.7, beta=0.5, stratified=stratified)
    priority = torch.rand(n, generator=torch.Generator().manual_seed(4)) + 0.05
    sampler.update_priority(torch.arange(n), priority, storage=storage)
    index, info = sampler.sample(storage, 50_000)
    weights = [w(float(p), 0.7) for p in priority]
    drawn = numbers(storage, index)
    counts: dict[Hashable, float] = {k: weights[k] / sum(weights) for k in range(n)}
    if stratified:
        assert drawn == sorted(drawn)
        for k in range(n):
            assert abs(drawn.count(k) - 50_000 * counts[k]) <= 2
    else:
        assert_fits(drawn, counts)
    expected = [(weights[k] / min(weights)) ** -0.5 for k in drawn]
    torch.testing.assert_close(info["priority_weight"], torch.tensor(expected), rtol=1e-5, atol=0)


def test_the_smallest_weight_is_that_of_the_items_there() -> None:
    storage, sampler = filled(2), make(eps=0.0)
    sampler.update_priority([0, 1], [1e-3, 4.0], storage=storage)
    extend(storage, 1)  # the lightest is gone
    _, info = sampler.sample(storage, 100)
    assert set(info["priority_weight"].tolist()) == {1.0}


def test_the_global_generator_gives_the_same_twice() -> None:  # C13
    storage, sampler = filled(50), PrioritizedSampler(50, 0.6, 0.4)
    sampler.update_priority(torch.arange(50), torch.arange(50), storage=storage)
    drawn = []
    for _ in range(2):
        torch.manual_seed(0)
        drawn.append(numbers(storage, sampler.sample(storage, 20)[0]))
    assert drawn[0] == drawn[1]


@pytest.mark.parametrize("rows", [1, 5])
def test_one_item_is_sampled(rows: int) -> None:  # C19
    storage, sampler = filled(1, rows=rows), make(capacity=rows)
    index, info = sampler.sample(storage, 3)
    assert numbers(storage, index) == [0, 0, 0]
    assert info["priority_weight"].tolist() == [1.0] * 3


@pytest.mark.parametrize("stratified", [False, True])
def test_on_a_device_without_kernels_the_same_items_are_drawn(
    monkeypatch: pytest.MonkeyPatch, stratified: bool
) -> None:
    drawn = []
    for tree in (SumTree, functools.partial(SumTree, native=False)):
        monkeypatch.setattr(priorities, "SumTree", tree)
        storage, sampler = filled(60, rows=100), make(alpha=0.6, beta=0.4, stratified=stratified)
        sampler.update_priority(torch.arange(60), torch.arange(60) % 7, storage=storage)
        extend(storage, 70)
        sampler.alpha = 0.7
        index, info = sampler.sample(storage, 500)
        drawn.append((numbers(storage, index), info["priority_weight"], sampler.weights, sampler.top_k(9)[1]))
    assert drawn[0][0] == drawn[1][0]
    for native, torch_ops in zip(drawn[0][1:], drawn[1][1:], strict=True):
        torch.testing.assert_close(native, torch_ops, rtol=3e-7, atol=0)


# ---- alpha, beta and the rest of the constructor


def test_another_alpha_reweights_what_is_stored() -> None:  # C14
    storage, sampler = filled(4, rows=6), make(eps=0.0)
    sampler.update_priority(torch.arange(4), torch.tensor([0.0, 1.0, 4.0, 16.0]), storage=storage)
    sampler.alpha = 0.5
    assert sampler.weights.tolist() == [0.0, 1.0, 2.0, 4.0]
    extend(storage, 1)
    assert sampler.weights.tolist() == [0.0, 1.0, 2.0, 4.0, 4.0]
    sampler.alpha = 0
    assert sampler.weights.tolist() == [1.0] * 5
    sampler.alpha = 0.5  # nobody knows what they were: they count with the maximum
    assert sampler.weights.tolist() == [4.0] * 5


def test_alpha_and_beta_may_be_tensors_that_change_in_place() -> None:
    alpha, beta = torch.tensor(1.0), torch.tensor(1.0)
    storage, sampler = filled(2), make(alpha=alpha, beta=beta, eps=0.0)
    sampler.update_priority([0, 1], [1.0, 16.0], storage=storage)
    alpha.fill_(0.5)
    beta.fill_(2.0)
    _, info = sampler.sample(storage, 200)
    assert set(info["priority_weight"].tolist()) == {1.0, 0.0625}
    assert sampler.weights.tolist() == [1.0, 4.0]
    assert sampler.alpha is alpha
    assert sampler.beta is beta


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"alpha": -0.5}, ValueError, r"alpha=-0\.5"),
        ({"beta": -1}, ValueError, r"beta=-1"),
        ({"alpha": math.nan}, ValueError, "alpha=nan"),
        ({"eps": -1e-3}, ValueError, r"eps=-0\.001"),
        ({"dtype": torch.float16}, NotImplementedError, r"torch\.float16"),
        ({"dtype": torch.int64}, NotImplementedError, r"torch\.int64"),
        ({"reduction": "sum"}, ValueError, "'sum'"),
        ({"max_capacity": 0}, ValueError, "max_capacity=0"),
    ],
)
def test_what_cannot_be_is_refused_with_its_value(
    options: dict[str, Any], error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        PrioritizedSampler(**{"max_capacity": 4, "alpha": 0.5, "beta": 0.5, **options})
    sampler = make()
    for name in ("alpha", "beta"):
        with pytest.raises(ValueError, match=name):
            setattr(sampler, name, -1.0)


def test_what_was_given_can_be_read() -> None:
    sampler = PrioritizedSampler(7, 0.6, 0.4, 1e-6, torch.float64, "mean", True)
    assert (sampler.max_capacity, sampler.max_size, sampler.alpha, sampler.beta, sampler.eps) == (
        7,
        7,
        0.6,
        0.4,
        1e-6,
    )
    assert (sampler.dtype, sampler.reduction, sampler.max_priority_within_buffer) == (
        torch.float64,
        "mean",
        True,
    )
    assert repr(sampler) == "PrioritizedSampler(max_capacity=7, alpha=0.6, beta=0.4, eps=1e-06)"


def test_priorities_can_be_looked_at() -> None:
    storage, sampler = filled(5), make(alpha=0.5, eps=0.0)
    sampler.update_priority(torch.arange(5), torch.tensor([3.0, 0.0, 9.0, 3.0, 1.0]), storage=storage)
    assert sampler.priorities([2, 0]).tolist() == pytest.approx([9.0, 3.0])
    assert sampler.priorities(torch.tensor([[2]]), storage=storage).tolist() == pytest.approx([9.0])
    values, index = sampler.top_k(3)
    assert index.tolist() == [2, 0, 3]
    assert values.tolist() == pytest.approx([9.0, 3.0, 3.0])
    assert sampler.top_k(100)[1].tolist() == [2, 0, 3, 4]


# ---- room


def test_a_write_that_would_outgrow_the_sampler_is_refused_before_it_happens() -> None:  # C11
    buffer = ReplayBuffer(
        storage=LazyTensorStorage(100_000), sampler=PrioritizedSampler(4, 0.6, 0.4), batch_size=2
    )
    buffer.extend(torch.zeros(4))
    with pytest.raises(ValueError, match=r"max_capacity=4 and the storage 5 items"):
        buffer.add(torch.zeros(()))
    fresh = ReplayBuffer(
        storage=LazyTensorStorage(100_000), sampler=PrioritizedSampler(4, 0.6, 0.4), batch_size=2
    )
    with pytest.raises(ValueError, match=r"max_capacity=4 and the storage 5 items"):
        fresh.extend(torch.zeros(5))
    assert (len(buffer), len(fresh)) == (4, 0)
    assert buffer.sample().shape == (2,)


def test_a_sampler_smaller_than_what_is_stored_is_refused_when_they_are_put_together() -> None:
    storage = TensorStorage(torch.zeros(10))
    with pytest.raises(ValueError, match="max_capacity=4 and the storage 10 items"):
        ReplayBuffer(storage=storage, sampler=PrioritizedSampler(4, 0.6, 0.4))
    buffer = ReplayBuffer(storage=storage, sampler=RandomSampler(), batch_size=2)
    with pytest.raises(ValueError, match="max_capacity=4 and the storage 10 items"):
        buffer.set_sampler(PrioritizedSampler(4, 0.6, 0.4))
    assert isinstance(buffer.sampler, RandomSampler)
    with pytest.raises(ValueError, match="max_capacity=4 and the storage 10 items"):
        PrioritizedSampler(4, 0.6, 0.4).sample(storage, 2)


def test_a_sampler_as_large_as_was_asked_for_grows_with_the_rounding_to_whole_rows() -> None:
    buffer = TensorDictReplayBuffer(
        storage=LazyTensorStorage(10, ndim=2), sampler=PrioritizedSampler(10, 0.6, 0.4), batch_size=4
    )
    buffer.extend(TensorDict({"x": torch.zeros(4, 5)}, [4, 5]))
    assert buffer.storage.max_size == 12
    assert len(buffer) == 12
    buffer.sample()
    sampler = buffer.sampler
    assert isinstance(sampler, PrioritizedSampler)
    assert sampler.max_capacity == 12
    assert sampler.weights.shape == (12,)


# ---- overwritten items


def test_a_priority_for_an_overwritten_item_is_not_given_to_the_new_one() -> None:  # C17
    buffer = TensorDictReplayBuffer(
        storage=LazyTensorStorage(20), sampler=make(capacity=20, eps=0.0), batch_size=200
    )
    buffer.extend(TensorDict({"x": torch.arange(20)}, [20]))
    sample = buffer.sample()
    buffer.extend(TensorDict({"x": torch.arange(10)}, [10]))
    sample["td_error"] = torch.full((200,), 5.0)
    buffer.update_tensordict_priority(sample)
    assert isinstance(buffer.sampler, PrioritizedSampler)
    assert buffer.sampler.weights.tolist() == [1.0] * 10 + [5.0] * 10
    buffer.extend(sample.select("x", "_generation"))  # what it was sampled as does not stay with it
    assert "_generation" not in buffer.storage[:].keys()  # noqa: SIM118


def test_stamps_of_several_samples_are_told_apart() -> None:
    storage, sampler = filled(6), make(capacity=6, eps=0.0)
    stamps = []
    for _ in range(3):
        stamps.append(int(sampler.sample(storage, 1)[1]["_generation"]))
        extend(storage, 2)
    # Slots 0 and 1 were written after the first sample, 2 and 3 after the second, 4 and 5 after the third.
    generation = torch.tensor([stamps[0], stamps[1], stamps[2]] * 3)
    sampler.update_priority(
        torch.tensor([0, 0, 0, 2, 2, 2, 4, 4, 4]),
        torch.tensor([1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0]),
        storage=storage,
        generation=generation,
    )
    assert sampler.weights.tolist() == [3.0, 1.0, 6.0, 1.0, 1.0, 1.0]
    assert sampler.max_priority == 6.0
    sampler.update_priority([0, 2], [1.0, 1.0], storage=storage, generation=[storage.log.total] * 2)
    for _ in range(3):
        extend(storage, 6)
    now = storage.log.total
    sampler.update_priority([0, 1], [7.0, 8.0], storage=storage, generation=[now, now - 5])
    assert sampler.weights.tolist()[:2] == [7.0, 6.0]
    with pytest.raises(RuntimeError, match="3 generations for 2 items"):
        sampler.update_priority([0, 1], 1.0, storage=storage, generation=[1, 2, 3])


def test_a_stamp_too_old_to_be_judged_changes_nothing() -> None:
    storage, sampler = filled(10), make(capacity=10, eps=0.0)
    stamp = sampler.sample(storage, 1)[1]["_generation"]
    for k in range(5000):
        storage.write(3 if k % 2 else 7, {("x",): torch.zeros(1)})
    sampler.update_priority(torch.tensor([0]), 5.0, storage=storage, generation=stamp)
    assert sampler.weights[0] == 1.0


# ---- other buffers and processes


def test_what_another_buffer_writes_counts_at_the_next_sample() -> None:  # C44
    storage = LazyTensorStorage(10)
    first = ReplayBuffer(storage=storage, sampler=make(capacity=10, eps=0.0), batch_size=500)
    second = ReplayBuffer(storage=storage, sampler=make(capacity=10, eps=0.0), batch_size=500)
    first.extend(torch.arange(4.0))
    first.update_priority(torch.arange(4), torch.tensor([1.0, 1.0, 1.0, 2.0]))
    second.extend(torch.arange(4.0, 7.0))
    assert set(first.sample().tolist()) == set(range(7))
    assert set(second.sample().tolist()) == set(range(7))
    for buffer, expected in ((first, [1.0, 1.0, 1.0, 2.0, 2.0, 2.0, 2.0]), (second, [1.0] * 7)):
        assert isinstance(buffer.sampler, PrioritizedSampler)
        assert buffer.sampler.weights.tolist() == expected
    second.empty()
    second.extend(torch.arange(20.0, 22.0))
    assert set(first.sample().tolist()) == {20.0, 21.0}


def _write_and_update(buffer: ReplayBuffer) -> None:
    buffer.extend(torch.arange(4.0, 8.0))
    buffer.update_priority(torch.tensor([0, 4]), torch.tensor([3.0, 9.0]))


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_processes_share_a_prioritized_buffer(method: str) -> None:  # C44
    buffer = ReplayBuffer(
        storage=LazyTensorStorage(10, shared_init=True),
        sampler=PrioritizedSampler(10, 1.0, 1.0, eps=0.0),
        batch_size=500,
        shared=True,
    )
    buffer.extend(torch.arange(4.0))
    buffer.update_priority(torch.arange(4), torch.tensor([1.0, 2.0, 2.0, 2.0]))
    process = mp.get_context(method).Process(target=_write_and_update, args=(buffer,))  # type: ignore[attr-defined]
    process.start()
    process.join(PATIENCE)
    process.kill()
    assert process.exitcode == 0
    assert isinstance(buffer.sampler, PrioritizedSampler)
    assert buffer.sampler.weights.tolist() == [3.0, 2.0, 2.0, 2.0, 9.0, 2.0, 2.0, 2.0]
    assert set(buffer.sample().tolist()) == set(range(8))
    buffer.add(torch.tensor(8.0))
    assert buffer.sampler.weights.tolist()[8:] == [9.0]


def test_threads_that_update_lose_nothing() -> None:
    storage, sampler = filled(400), make(capacity=400, eps=0.0)
    errors: list[BaseException] = []

    def work(thread: int) -> None:
        try:
            mine = torch.arange(thread, 400, 4)
            for k in range(200):
                sampler.update_priority(mine, float(k + thread + 1), storage=storage)
                sampler.sample(storage, 8)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    assert sampler.weights.tolist() == [200.0 + k % 4 for k in range(400)]
    assert sampler._table.tree.total == sum(200.0 + k % 4 for k in range(400))


# ---- state


def test_a_sampler_that_has_seen_nothing_can_be_saved(tmp_path: Path) -> None:  # C15
    sampler, other = make(capacity=4), PrioritizedSampler(4, 0.1, 0.2)
    sampler.dumps(tmp_path)
    other.loads(tmp_path)
    assert (other.alpha, other.beta) == (1.0, 1.0)
    assert sorted(set(numbers(filled(4), other.sample(filled(4), 100)[0]))) == [0, 1, 2, 3]


def test_a_state_can_be_loaded_twice() -> None:  # C16
    storage, sampler = filled(4, rows=8), make(capacity=8, eps=0.0)
    sampler.update_priority(torch.arange(4), torch.tensor([1.0, 2.0, 3.0, 4.0]), storage=storage)
    state = sampler.state_dict()
    known = copy.deepcopy(state)
    other = PrioritizedSampler(8, 0.1, 0.2)
    for _ in range(2):
        other.load_state_dict(state)
        other.sample(storage, 3)
        assert other.weights.tolist() == [1.0, 2.0, 3.0, 4.0]
        assert (other.alpha, other.beta, other.eps, other.max_priority) == (1.0, 1.0, 0.0, 4.0)
        other.update_priority([0, 1], [9.0, 8.0])
        other.beta = 0.3
    assert state.keys() == known.keys()
    assert torch.equal(state["weights"], known["weights"])


def test_what_was_written_after_a_state_was_taken_is_new() -> None:
    storage, sampler = filled(4, rows=8), make(capacity=8, eps=0.0)
    sampler.update_priority(torch.arange(4), torch.tensor([1.0, 2.0, 3.0, 4.0]), storage=storage)
    state = sampler.state_dict()
    extend(storage, 6)
    sampler.update_priority(torch.arange(8), 7.0, storage=storage)
    sampler.load_state_dict(state)
    sampler.sample(storage, 1)
    assert sampler.weights.tolist() == [4.0, 4.0, 3.0, 4.0, 4.0, 4.0, 4.0, 4.0]


@pytest.mark.parametrize("ndim", [1, 2])
def test_a_buffer_goes_on_after_loading(tmp_path: Path, ndim: int) -> None:
    def buffer() -> TensorDictReplayBuffer:
        return TensorDictReplayBuffer(
            storage=LazyTensorStorage(12, ndim=ndim),
            sampler=PrioritizedSampler(12, 0.7, 0.5),
            batch_size=16,
            generator=torch.Generator().manual_seed(0),
        )

    shape = [10] if ndim == 1 else [3, 6]
    first = buffer()
    for k in range(2):
        first.extend(TensorDict({"x": torch.rand(shape), "td_error": torch.rand(shape) + k}, shape))
    first.sample()
    first.dumps(tmp_path)
    second = buffer()
    second.loads(tmp_path)
    for _ in range(3):
        assert (first.sample() == second.sample()).all()
        for either in (first, second):
            either.extend(TensorDict({"x": torch.ones(shape), "td_error": torch.ones(shape)}, shape))


def test_a_pickled_sampler_goes_on_with_its_storage() -> None:
    storage, sampler = filled(4, rows=8), make(capacity=8, eps=0.0)
    sampler.generator = None
    sampler.update_priority(torch.arange(4), torch.tensor([1.0, 2.0, 3.0, 4.0]), storage=storage)
    ways: list[Any] = [copy.deepcopy, lambda s: pickle.loads(pickle.dumps(s))]
    for again in ways:
        other = again(sampler)
        other.sample(storage, 1)
        assert other.weights.tolist() == [1.0, 2.0, 3.0, 4.0]
        other.update_priority(0, 77.0)
        assert sampler.weights[0] == 1.0


def test_an_emptied_sampler_has_forgotten_everything() -> None:
    storage, sampler = filled(4), make(eps=0.0)
    sampler.update_priority(torch.arange(4), 9.0, storage=storage)
    storage.log.clear()
    sampler.empty()
    assert sampler.max_priority == 1.0
    with pytest.raises(RuntimeError, match=r"^Cannot sample from an empty storage\.$"):
        sampler.sample(storage, 1)
    extend(storage, 2)
    index, _ = sampler.sample(storage, 100)
    assert set(numbers(storage, index)) == {0, 1}
    assert sampler.weights.tolist() == [1.0, 1.0]


def test_another_storage_is_another_start() -> None:
    sampler = make(eps=0.0)
    sampler.update_priority(torch.arange(4), 9.0, storage=filled(4))
    sampler.sample(filled(3), 1)
    assert sampler.weights.tolist() == [1.0] * 3


def test_a_sampler_takes_5_1_bytes_an_item() -> None:
    assert make(capacity=10**7)._table.tree.nbytes <= 5.1e7


def test_items_of_a_list_storage_are_sampled_by_priority() -> None:
    buffer = ReplayBuffer(storage=ListStorage(10), sampler=make(capacity=10, eps=0.0), batch_size=50)
    buffer.extend(["a", "b", "c"])
    buffer.update_priority([0, 1, 2], [0.0, 1.0, 1.0])
    assert set(buffer.sample()) == {"b", "c"}


# ---- everything together, against a plain model


class Model(RuleBasedStateMachine):
    """A storage, a sampler and what a user does to them, beside a list of weights."""

    @initialize(
        rows=st.integers(1, 9),
        columns=st.sampled_from([(), (1,), (3,)]),
        within=st.booleans(),
        alpha=st.sampled_from([0.5, 1.0]),
    )
    def begin(self, rows: int, columns: tuple[int, ...], within: bool, alpha: float) -> None:
        self.storage = PlainStorage(rows, columns)
        self.width = math.prod(columns)
        self.alpha, self.within = alpha, within
        self.sampler = make(
            rows * self.width, alpha, eps=0.0, max_priority_within_buffer=within, dtype=torch.float64
        )
        self.sampler.register_storage(self.storage)
        self.raw: list[float | None] = [None] * (rows * self.width)
        self.largest = -1.0

    def default(self) -> float:
        if self.within:
            there = [p for p in self.raw if p is not None]
            return max(there) if there and max(there) > 0 else 1.0
        return self.largest if self.largest >= 0 else 1.0

    @rule(count=st.integers(1, 12))
    def write(self, count: int) -> None:
        rows, start = self.storage.rows, self.storage.log.cursor
        count = min(count, rows)
        extend(self.storage, count)
        written = [(start + k) % rows * self.width + c for k in range(count) for c in range(self.width)]
        for k in written:
            self.raw[k] = None
        new = self.default()
        for k in written:
            self.raw[k] = new
        self.sampler.extend(torch.tensor(written).reshape(-1, *([1] if self.width > 1 else [])))

    @precondition(lambda self: len(self.storage) > 0)
    @rule(data=st.data())
    def update(self, data: st.DataObject) -> None:
        n = len(self.storage)
        count = data.draw(st.integers(1, 5))
        index = data.draw(st.lists(st.integers(-1, n - 1), min_size=count, max_size=count))
        priority = data.draw(
            st.lists(st.sampled_from([0.0, 0.25, 1.0, 4.0, 9.0]), min_size=count, max_size=count)
        )
        self.sampler.update_priority(index, priority, storage=self.storage)
        for k, p in zip(index, priority, strict=True):
            if k >= 0:
                self.raw[k] = p
                self.largest = max(self.largest, p)

    @precondition(lambda self: len(self.storage) > 0)
    @rule(row=st.integers(0, 8))
    def replace(self, row: int) -> None:
        self.storage.replace(
            torch.tensor([row % self.storage.log.length]), {("x",): torch.ones(1, *self.storage.columns)}
        )

    @rule()
    def empty(self) -> None:
        self.storage.log.clear()
        self.sampler.empty()
        self.raw = [None] * len(self.raw)
        self.largest = -1.0

    @rule(way=st.sampled_from(["state", "pickle"]))
    def save_and_load(self, way: str) -> None:
        if way == "state":
            other = PrioritizedSampler(
                self.sampler.max_capacity,
                0.3,
                0.3,
                dtype=torch.float64,
                max_priority_within_buffer=self.within,
            )
            other.load_state_dict(self.sampler.state_dict())
        else:
            self.sampler.generator = None
            other = pickle.loads(pickle.dumps(self.sampler))
        self.sampler = other
        self.sampler.register_storage(self.storage)

    @rule(alpha=st.sampled_from([0.5, 1.0, 2.0]))
    def reweight(self, alpha: float) -> None:
        self.sampler.alpha = self.alpha = alpha

    @precondition(lambda self: len(self.storage) > 0)
    @rule()
    def sample(self) -> None:
        weights = [(p or 0.0) ** self.alpha for p in self.raw]
        if not any(weights):
            with pytest.raises(RuntimeError, match="All weights are 0"):
                self.sampler.sample(self.storage, 5)
            return
        index, info = self.sampler.sample(self.storage, 5)
        least = min(weight for weight in weights if weight)
        for k, importance in zip(numbers(self.storage, index), info["priority_weight"].tolist(), strict=True):
            assert weights[k] > 0
            assert importance == pytest.approx(least / weights[k])

    @invariant()
    def weights_are_those_of_the_model(self) -> None:
        if not hasattr(self, "storage") or not len(self.storage):
            return
        self.sampler._table.follow(self.storage)
        expected = [(p or 0.0) ** self.alpha for p in self.raw[: len(self.storage)]]
        assert self.sampler.weights.tolist() == pytest.approx(expected)
        assert not self.sampler._table.tree.leaves[len(self.storage) :].any()


Model.TestCase.settings = settings(max_examples=150, stateful_step_count=20, deadline=None)
TestAnyHistoryAgreesWithAPlainModel = Model.TestCase
