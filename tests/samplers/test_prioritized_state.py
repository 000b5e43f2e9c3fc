"""States of a prioritized sampler, and storages that are exchanged."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from tensordict import TensorDict

from replaybank.buffers.replay_buffer import ReplayBuffer
from replaybank.buffers.tensordict import TensorDictReplayBuffer
from replaybank.samplers.prioritized import PrioritizedSampler
from replaybank.storages import LazyTensorStorage
from replaybank.storages.list import ListStorage
from samplers.prioritized import extend, filled, make, numbers


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
