"""What samplers are told: taken in every form that means it, refused in all others, where it is said."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from replaybank.samplers import (
    ConsumingSampler,
    LinearScheduler,
    PrioritizedSampler,
    PrioritizedSliceSampler,
    RandomSampler,
    SamplerEnsemble,
    SamplerWithoutReplacement,
    SliceSampler,
    SliceSamplerWithoutReplacement,
    StalenessAwareSampler,
    StepScheduler,
)
from replaybank.storages import StorageEnsemble, TensorStorage

Maker = Callable[[Any], Any]


def prioritized(**options: Any) -> PrioritizedSampler:
    return PrioritizedSampler(**{"max_capacity": 10, "alpha": 0.6, "beta": 0.4, **options})


SIZES: dict[str, Maker] = {
    "SliceSampler.slice_len": lambda n: SliceSampler(slice_len=n),
    "SliceSampler.num_slices": lambda n: SliceSampler(num_slices=n),
    "SliceSamplerWithoutReplacement.slice_len": lambda n: SliceSamplerWithoutReplacement(slice_len=n),
    "SliceSamplerWithoutReplacement.num_slices": lambda n: SliceSamplerWithoutReplacement(num_slices=n),
    "PrioritizedSliceSampler.slice_len": lambda n: PrioritizedSliceSampler(9, 1.0, 1.0, slice_len=n),
    "PrioritizedSliceSampler.max_capacity": lambda n: PrioritizedSliceSampler(n, 1.0, 1.0, slice_len=1),
    "PrioritizedSampler.max_capacity": lambda n: prioritized(max_capacity=n),
    "ConsumingSampler.max_times_sampled": ConsumingSampler,
    "StalenessAwareSampler.max_staleness": StalenessAwareSampler,
    "SamplerEnsemble.num_buffer_sampled": lambda n: SamplerEnsemble(RandomSampler(), num_buffer_sampled=n),
    "LinearScheduler.num_steps": lambda n: LinearScheduler(prioritized(), "beta", 1.0, n),
    "StepScheduler.n_steps": lambda n: StepScheduler(prioritized(), "beta", n_steps=n),
}
NUMBERS: dict[str, Maker] = {
    "PrioritizedSampler.alpha": lambda x: prioritized(alpha=x),
    "PrioritizedSampler.beta": lambda x: prioritized(beta=x),
    "PrioritizedSampler.eps": lambda x: prioritized(eps=x),
    "StalenessAwareSampler.decay": lambda x: StalenessAwareSampler(decay=x),
}


@pytest.mark.parametrize("name", SIZES)
@pytest.mark.parametrize("given", [3, np.int64(3), np.uint8(3), torch.tensor(3)])
def test_every_form_of_a_whole_number_is_a_size_and_kept_as_an_int(name: str, given: Any) -> None:
    kept = getattr(SIZES[name](given), name.partition(".")[2])
    assert kept == 3
    assert type(kept) is int


@pytest.mark.parametrize("name", SIZES)
@pytest.mark.parametrize(
    "given", [2.0, 1.5, "2", True, np.bool_(True), np.float64(2), [2], torch.tensor(2.0)]
)
def test_a_size_that_is_no_whole_number_is_refused_by_name(name: str, given: Any) -> None:
    with pytest.raises(TypeError, match=f"{name.partition('.')[2]}=.*give an int"):
        SIZES[name](given)


@pytest.mark.parametrize("name", SIZES)
def test_a_negative_size_is_refused_by_name(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name.partition('.')[2]}=-1: give at least"):
        SIZES[name](-1)


@pytest.mark.parametrize("name", NUMBERS)
@pytest.mark.parametrize("given", ["0.5", True, None, [0.5]])
def test_an_exponent_that_is_no_number_is_refused_by_name(name: str, given: Any) -> None:
    with pytest.raises(TypeError, match=f"{name.partition('.')[2]}=.*give a number"):
        NUMBERS[name](given)


@pytest.mark.parametrize("make", [SliceSampler, SliceSamplerWithoutReplacement])
def test_keys_may_be_lists_and_nothing_but_strings_and_paths(make: Callable[..., Any]) -> None:
    sampler = make(slice_len=2, end_key=["next", "done"], truncated_key=["next", "truncated"])
    assert sampler.end_key == ("next", "done")
    assert sampler.truncated_key == ("next", "truncated")
    for name in ("end_key", "traj_key", "truncated_key"):
        for wrong in (3, (), ("next", 1), {"a": 1}):
            with pytest.raises(TypeError, match=f"{name}=.*give a string"):
                make(slice_len=2, **{name: wrong})
    for name in ("ends", "trajectories"):
        with pytest.raises(TypeError, match=f"{name} is a list: give a tensor"):
            make(slice_len=2, **{name: [True, False]})


@pytest.mark.parametrize("given", [np.int64(1), (np.int64(1), np.int64(1)), [1, 1], 1])
def test_a_span_may_be_any_whole_number(given: Any) -> None:
    assert SliceSampler(slice_len=3, span=given).span == (1, 1)


@pytest.mark.parametrize("given", [np.bool_(True), (True, np.bool_(True))])
def test_a_span_may_be_any_bool(given: Any) -> None:
    assert SliceSampler(slice_len=3, span=given).span == (True, True)


@pytest.mark.parametrize("given", [1.0, "1", (1, 2, 3), (1.0, 1), None])
def test_another_span_is_refused(given: Any) -> None:
    with pytest.raises(TypeError, match="span="):
        SliceSampler(slice_len=3, span=given)


BATCHES: list[Any] = [
    RandomSampler(),
    SamplerWithoutReplacement(),
    PrioritizedSampler(4, 1.0, 1.0),
    ConsumingSampler(9),
    StalenessAwareSampler(),
    SliceSampler(slice_len=2),
    SliceSamplerWithoutReplacement(slice_len=2),
    PrioritizedSliceSampler(4, 1.0, 1.0, slice_len=2),
    SamplerEnsemble(RandomSampler(), RandomSampler()),
]


@pytest.mark.parametrize("sampler", BATCHES, ids=lambda sampler: type(sampler).__name__)
def test_without_a_buffer_a_batch_size_is_checked_too(sampler: Any) -> None:
    storage: Any = TensorStorage({"episode": torch.zeros(4, dtype=torch.int64)})
    if isinstance(sampler, SamplerEnsemble):
        storage = StorageEnsemble(storage, storage)
    for given in (2, np.int64(2), torch.tensor(2)):
        index, _ = sampler.sample(storage, given)
        part = index["index"] if isinstance(sampler, SamplerEnsemble) else index
        assert torch.as_tensor(part[0] if isinstance(part, tuple) else part).numel() == 2
    for bad in (2.0, "2", None, True):
        with pytest.raises(TypeError, match=f"batch_size={re.escape(repr(bad))}: give an int"):
            sampler.sample(storage, bad)
    with pytest.raises(ValueError, match="batch_size=-1"):
        sampler.sample(storage, -1)


@pytest.mark.parametrize("p", ["ab", {}, [1, None], object()])
def test_probabilities_that_are_no_numbers_are_refused(p: Any) -> None:
    with pytest.raises(TypeError, match="give one number a sampler"):
        SamplerEnsemble(RandomSampler(), RandomSampler(), p=p)
