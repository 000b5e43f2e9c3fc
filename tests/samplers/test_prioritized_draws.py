"""What a prioritized sampler draws, and how often."""

from __future__ import annotations

import functools
import math
from collections.abc import Hashable

import pytest
import torch
from torch import Tensor

from reference.chi_square import assert_fits
from replaybank.samplers import priorities
from replaybank.samplers.prioritized import PrioritizedSampler
from replaybank.weights.sum_tree import SumTree
from samplers.prioritized import extend, filled, make, numbers, w


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
