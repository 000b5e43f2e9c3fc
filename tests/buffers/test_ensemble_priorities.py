"""Priorities and marks of an ensemble's batches reach the buffers they are for."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tensordict import TensorDict

from buffers.ensembles import parts_of, prioritized, seeded, steps
from replaybank.buffers import (
    PrioritizedReplayBuffer,
    TensorDictPrioritizedReplayBuffer,
)
from replaybank.storages import LazyTensorStorage


@pytest.mark.parametrize("form", ["whole", "flat", "row", "mask", "one", "reshaped"])
def test_c53_priorities_reach_the_buffer_their_items_came_from(form: str) -> None:
    """C53 through ``update_tensordict_priority``, whatever was done to the sample."""
    ensemble = seeded(
        *prioritized(5, 8), *parts_of(6), p=[1.0, 2.0, 1.0], num_buffer_sampled=4, batch_size=24
    )
    sample = ensemble.sample()
    sample["td_error"] = 10.0 * sample["index", "buffer_ids"] + sample["n"] + 2
    given = {
        "whole": lambda: sample,
        "flat": lambda: sample.reshape(-1),
        "row": lambda: sample[1],
        "mask": lambda: sample[sample["n"] > 2],
        "one": lambda: sample[2, 3],
        "reshaped": lambda: sample.reshape(6, 4),
    }[form]()
    ensemble.update_tensordict_priority(given)
    flat = given.reshape(-1)
    new = {(int(b), int(n)) for b, n in zip(flat["index", "buffer_ids"], flat["n"], strict=True)}
    for number in range(2):
        expected = [10.0 * number + n + 2 if (number, n) in new else 1.0 for n in range(5 + 3 * number)]
        assert ensemble[number].sampler.weights.tolist() == expected


@pytest.mark.parametrize("form", ["info", "sample", "flat", "number", "list"])
def test_c53_priorities_by_index_reach_the_buffer(form: str) -> None:
    """C53 through ``update_priority``."""
    ensemble = seeded(*prioritized(5, 8), sample_from_all=True, batch_size=8)
    sample, info = ensemble.sample(return_info=True)
    priority: Any = sample["n"] + 2.0
    index = info["index"] if form in ("info", "number", "list") else sample["index"]
    if form == "flat":
        index, priority = sample.reshape(-1)["index"], priority.reshape(-1)
    if form == "number":
        priority = 7.0
    if form == "list":
        priority = priority.tolist()[0] + priority.tolist()[1]
    ensemble.update_priority(index, priority)
    for number in range(2):
        weights = ensemble[number].sampler.weights
        for n in range(len(weights)):
            drawn = n in sample["n"][number].tolist()
            assert weights[n] == ((7.0 if form == "number" else n + 2.0) if drawn else 1.0)


def test_c53_priorities_of_slices_columns_and_trajectories_reach_the_buffer() -> None:
    """C53 where an index has more than one number, and where an item has many steps."""
    columns: Any = TensorDictPrioritizedReplayBuffer(
        alpha=1.0, beta=1.0, eps=0.0, storage=LazyTensorStorage(12, ndim=2)
    )
    columns.extend(steps(1, 12).view(2, 6))
    ensemble = seeded(*prioritized(6), columns, sample_from_all=True, batch_size=64)
    sample, info = ensemble.sample(return_info=True)
    sample["td_error"] = sample["n"] + 2.0
    ensemble.update_tensordict_priority(sample)
    assert ensemble[0].sampler.weights.tolist() == [2, 3, 4, 5, 6, 7]
    assert columns.sampler.weights.view(6, 2).T.flatten().tolist() == [n + 2 for n in range(12)]
    ensemble.update_priority(info["index"], 1.0, generation=info["_generation"])
    assert columns.sampler.weights.tolist() == [1.0] * 12
    runs: list[Any] = []
    for number in range(2):
        buffer = TensorDictPrioritizedReplayBuffer(
            alpha=1.0, beta=1.0, eps=0.0, storage=LazyTensorStorage(4), reduction="max"
        )
        buffer.extend(TensorDict({"n": torch.arange(12).view(4, 3) + 100 * number}, [4, 3]))
        runs.append(buffer)
    ensemble = seeded(*runs, sample_from_all=True, batch_size=64)
    sample = ensemble.sample()
    assert sample.batch_size == (2, 32, 3)
    assert sample["index", "buffer_ids"].shape == (2, 32, 3)
    sample["td_error"] = sample["n"].float()
    ensemble.update_tensordict_priority(sample)
    assert runs[0].sampler.weights.tolist() == [2, 5, 8, 11]
    assert runs[1].sampler.weights.tolist() == [102, 105, 108, 111]


def test_stale_priorities_are_not_given_to_new_items_of_a_buffer() -> None:
    ensemble = seeded(*prioritized(20, 20), sample_from_all=True, batch_size=400)
    sample = ensemble.sample()
    ensemble[1].extend(steps(1, 7, start=100))  # over slots 0 to 6
    sample["td_error"] = torch.full((2, 200), 5.0)
    ensemble.update_tensordict_priority(sample)
    assert ensemble[0].sampler.weights.tolist() == [5.0] * 20
    assert ensemble[1].sampler.weights.tolist() == [1.0] * 7 + [5.0] * 13


def test_items_overwritten_since_are_left_alone_when_items_are_marked() -> None:
    plain = parts_of(20, kind=PrioritizedReplayBuffer, alpha=1.0, beta=1.0, eps=0.0)
    ensemble = seeded(*plain, *parts_of(20), sample_from_all=True, batch_size=800)
    sample, info = ensemble.sample(return_info=True)
    plain[0].update_priority(range(20), 9.0)
    plain[0].extend(steps(0, 5, start=100))
    plain[0].update_priority(range(20), 2.0)
    ensemble.mark_update(info["index"], generation=info["_generation"])
    assert plain[0].sampler.weights.tolist() == [2.0] * 5 + [9.0] * 15
    plain[0].update_priority(range(20), 2.0)
    ensemble.update_tensordict_priority(sample)  # it has no priorities
    assert plain[0].sampler.weights.tolist() == [2.0] * 5 + [9.0] * 15


def test_each_buffer_has_its_own_priority_key() -> None:
    keyed = prioritized(5, priority_key="mine")
    plain = parts_of(5, kind=PrioritizedReplayBuffer, alpha=1.0, beta=1.0, eps=0.0)
    ensemble = seeded(*keyed, *plain, *parts_of(5), sample_from_all=True, batch_size=300)
    sample = ensemble.sample()
    sample["mine"] = torch.full((3, 100), 3.0)
    sample["td_error"] = torch.full((3, 100, 2), 4.0)
    ensemble.update_tensordict_priority(sample)
    assert keyed[0].sampler.weights.tolist() == [3.0] * 5
    assert plain[0].sampler.weights.tolist() == [4.0] * 5
    ensemble.update_tensordict_priority(sample.exclude("mine", "td_error"))  # the default weight again
    assert keyed[0].sampler.weights.tolist() == [3.0] * 5
    assert plain[0].sampler.weights.tolist() == [4.0] * 5
    plain[0].update_priority(0, 1.0)
    ensemble.mark_update(sample["index"])
    assert plain[0].sampler.weights.tolist() == [4.0] * 5


def test_priorities_that_belong_nowhere_are_refused_and_change_nothing() -> None:
    ensemble = seeded(*prioritized(5, 5), batch_size=4)
    index = {"buffer_ids": torch.tensor([0, 1]), "index": torch.tensor([[0, 1], [2, 3]])}
    for priority in ([1.0, 2.0, 3.0, -1.0], [5.0, 5.0, 5.0, float("nan")], float("inf")):
        with pytest.raises(ValueError, match="finite numbers of at least 0"):
            ensemble.update_priority(index, priority)
    with pytest.raises(RuntimeError, match="3 priorities were given for 4 items"):
        ensemble.update_priority(index, [1.0, 2.0, 3.0])
    with pytest.raises(IndexError, match="no buffer 2: the ensemble has 2"):
        ensemble.update_priority({**index, "buffer_ids": torch.tensor([0, 2])}, 5.0)
    for place in (5, 19, -2):
        wrong = {**index, "index": torch.tensor([[0, 1], [2, place]])}
        with pytest.raises(IndexError, match=rf"{place}\b.*holds \[5\]"):
            ensemble.update_priority(wrong, 5.0)
    with pytest.raises(TypeError, match="'buffer_ids' and 'index', got a Tensor"):
        ensemble.update_priority(torch.tensor([1]), 5.0)
    with pytest.raises(KeyError, match="no entry 'index'"):
        ensemble.update_tensordict_priority(TensorDict({"td_error": torch.ones(3)}, [3]))
    with pytest.raises(TypeError, match="does not say which buffer"):
        ensemble.update_tensordict_priority(TensorDict({"index": torch.arange(3)}, [3]))
    for buffer in ensemble.buffers:
        sampler: Any = buffer.sampler
        assert sampler.weights.tolist() == [1.0] * 5
    ensemble.update_priority({**index, "index": torch.tensor([[0, -1], [2, -1]])}, 5.0)  # -1: not stored
    assert ensemble[0].sampler.weights.tolist() == [5.0, 1.0, 1.0, 1.0, 1.0]


def test_an_ensemble_without_priorities_says_so() -> None:
    ensemble = seeded(*parts_of(4, 4), batch_size=4)
    sample = ensemble.sample()
    with pytest.warns(UserWarning, match="no priorities"):
        ensemble.update_priority(sample["index"], 1.0)
    ensemble.update_tensordict_priority(sample)
