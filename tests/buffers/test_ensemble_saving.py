"""States, copies and files of an ensemble, and another process."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch

from buffers.ensembles import check, parts_of, passes, prioritized, seeded, steps
from buffers.test_processes import in_child
from replaybank.buffers import (
    ReplayBuffer,
    ReplayBufferEnsemble,
    TensorDictPrioritizedReplayBuffer,
    TensorDictReplayBuffer,
)
from replaybank.samplers import (
    SamplerWithoutReplacement,
)
from replaybank.storages import LazyTensorStorage, ListStorage


def mixed(seed: int = 0, **kwargs: Any) -> Any:
    buffers = [*prioritized(9), *passes(7), *parts_of(5)]
    return seeded(*buffers, seed=seed, batch_size=6, **kwargs)


@pytest.mark.parametrize("way", ["state", "disk", "pickle", "copy"])
def test_an_ensemble_goes_on_as_the_one_it_was_saved_from(way: str, tmp_path: Path) -> None:
    ensemble = mixed(p=[1.0, 1.0, 2.0], num_buffer_sampled=2)
    sample = ensemble.sample()
    sample["td_error"] = torch.rand(2, 3)
    ensemble.update_tensordict_priority(sample)
    other: Any
    if way in ("pickle", "copy"):
        other = pickle.loads(pickle.dumps(ensemble)) if way == "pickle" else copy.deepcopy(ensemble)
    else:
        kinds = [*prioritized(0), *passes(0), *parts_of(0)]
        other = ReplayBufferEnsemble(*kinds, batch_size=6)
        if way == "state":
            other.load_state_dict(ensemble.state_dict())
        else:
            ensemble.dumps(tmp_path)
            other.loads(tmp_path)
    for _ in range(5):
        mine, theirs = ensemble.sample(), other.sample()
        assert torch.equal(mine["n"], theirs["n"])
        assert torch.equal(mine["part"], theirs["part"])
    assert other.sampler.ran_out == ensemble.sampler.ran_out
    other[2].extend(steps(2, 3))
    assert (len(other), len(ensemble)) == (24, 21)
    assert other.storage[1] is other[1].storage
    for buffer in other.buffers:
        assert buffer.generator is other.generator


def test_copies_of_buffers_with_generators_of_their_own_keep_them() -> None:
    buffers = [
        TensorDictReplayBuffer(storage=LazyTensorStorage(9), generator=torch.Generator().manual_seed(k))
        for k in range(2)
    ]
    ensemble = ReplayBufferEnsemble(*buffers, sample_from_all=True, batch_size=8)
    for number, buffer in enumerate(buffers):
        buffer.extend(steps(number, 9))
    other = pickle.loads(pickle.dumps(ensemble))
    assert other.generator is None
    assert other[0].generator is not other[1].generator
    assert other[0].sampler.generator is other[0].generator
    for _ in range(3):
        assert torch.equal(ensemble.sample()["n"], other.sample()["n"])


def test_transforms_and_batches_drawn_ahead_by_buffers_are_saved_too(tmp_path: Path) -> None:
    def make() -> ReplayBufferEnsemble:
        scale = torch.nn.Module()
        scale.register_buffer("by", torch.tensor(1.0))
        scale.forward = lambda td: td.set("m", td["n"] * scale.by)
        part = TensorDictReplayBuffer(
            storage=LazyTensorStorage(9),
            transform=scale,
            batch_size=2,
            prefetch=2,
            sampler=SamplerWithoutReplacement(shuffle=False),
        )
        return ReplayBufferEnsemble(part, *parts_of(3), sample_from_all=True, batch_size=4)

    ensemble, other = make(), make()
    ensemble[0].transform[0].by.fill_(5.0)
    ensemble[0].extend(steps(0, 9))
    assert ensemble[0].sample()["n"].tolist() == [0, 1]
    ensemble.dumps(tmp_path)
    other.loads(tmp_path)
    assert other[0].sample()["m"].tolist() == [10.0, 15.0]
    assert ensemble[0].sample()["m"].tolist() == [10.0, 15.0]
    for made in (ensemble, other):
        made[0].close()


def test_a_load_that_fails_at_the_last_buffer_changes_none(tmp_path: Path) -> None:
    """All or nothing over buffers, sampler and generator, from memory and from disk."""
    good = mixed()
    small = seeded(
        *prioritized(9), *passes(7), TensorDictReplayBuffer(storage=LazyTensorStorage(2)), batch_size=6
    )
    small[2].extend(steps(2, 2))
    small.sample()
    before = [buffer.state_dict() for buffer in small.buffers]
    expected = copy.deepcopy(small).sample()
    state = good.state_dict()
    with pytest.raises(ValueError, match="2") as refused:
        small.load_state_dict(state)
    assert "buffer 2 of the ensemble" in " ".join(refused.value.__notes__)
    good.dumps(tmp_path)
    with pytest.raises(ValueError, match="2"):
        small.loads(tmp_path)
    for buffer, saved in zip(small.buffers, before, strict=True):
        now = buffer.state_dict()
        assert now["writer"] == saved["writer"]
        assert torch.equal(buffer[:]["n"], torch.arange(len(buffer)))
    assert torch.equal(small.sample()["n"], expected["n"])


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda state: state.pop("drawing"), "lacks .'drawing'"),
        (lambda state: state.update(buffers={}), "'buffers' is a dict"),
        (lambda state: state["buffers"].pop(), "of 2 buffers, the ensemble has 3"),
        (lambda state: state["drawing"].update(p=torch.tensor([1.0])), "p of shape"),
        (lambda state: state["drawing"].update(num_buffer_sampled=-1), "num_buffer_sampled"),
        (lambda state: state["drawing"].pop("spent"), "spent"),
        (lambda state: state["drawing"].update(parts=2), "of 2 samplers"),
        (lambda state: state.update(generator=torch.zeros(3, dtype=torch.uint8)), "generator"),
        (lambda state: state["buffers"][0].pop("sampler"), "lacks"),
        (lambda state: state["buffers"].reverse(), "RandomSampler"),
        (lambda state: state.update(transforms={"0": {}}), "transform 0"),
    ],
)
def test_a_damaged_state_is_refused_and_changes_nothing(change: Any, words: str) -> None:
    ensemble = mixed(seed=1, p=[1.0, 2.0, 3.0])
    state = mixed(num_buffer_sampled=2).state_dict()
    change(state)
    expected = copy.deepcopy(ensemble).sample()
    with pytest.raises(ValueError, match=words):
        ensemble.load_state_dict(state)
    assert torch.equal(ensemble.sample()["n"], expected["n"])
    with pytest.raises(TypeError, match="got a list"):
        ensemble.load_state_dict([])


def test_a_state_of_an_ensemble_is_no_state_of_a_buffer_and_the_other_way_round() -> None:
    ensemble, buffer = mixed(), parts_of(4)[0]
    with pytest.raises(ValueError, match="no state of a buffer"):
        buffer.load_state_dict(ensemble.state_dict())
    with pytest.raises(ValueError, match="no state of an ensemble"):
        ensemble.load_state_dict(buffer.state_dict())


def test_hooks_of_buffers_and_of_the_ensemble_change_states_on_their_way(tmp_path: Path) -> None:
    seen: list[str] = []
    ensemble = seeded(*parts_of(3, 3), batch_size=2)

    def hook(name: str) -> Any:
        def call(state: Any) -> Any:
            seen.append(f"{name} {'storages' in state}")
            return state

        return call

    ensemble[1].register_save_hook(hook("part saves"))
    ensemble.register_save_hook(hook("all save"))
    ensemble[1].register_load_hook(hook("part loads"))
    ensemble.register_load_hook(hook("all load"))
    ensemble.save(tmp_path)
    ensemble.load(tmp_path)
    assert seen == ["part saves False", "all save True", "all load True", "part loads False"]
    ensemble.register_save_hook(lambda state: None)
    with pytest.raises(TypeError, match="save hook"):
        ensemble.save(tmp_path)


def test_objects_ask_for_pickling_to_be_allowed(tmp_path: Path) -> None:
    objects = [ReplayBuffer(storage=ListStorage(5)) for _ in range(2)]
    objects[1].extend([{1, 2}, {3}])
    objects[0].extend([1, 2])
    ensemble = ReplayBufferEnsemble(*objects)
    with pytest.raises(TypeError, match="allow_pickle"):
        ensemble.dumps(tmp_path)
    ensemble.dumps(tmp_path, allow_pickle=True)
    other = ReplayBufferEnsemble(*(ReplayBuffer(storage=ListStorage(5)) for _ in range(2)))
    other.loads(tmp_path, allow_pickle=True)
    assert other[1][:] == [{1, 2}, {3}]


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_shared_ensemble_is_used_by_a_forked_process() -> None:
    buffers = [
        TensorDictPrioritizedReplayBuffer(
            alpha=1.0, beta=1.0, eps=0.0, storage=LazyTensorStorage(20, shared_init=True), shared=True
        )
        for _ in range(2)
    ]
    for number, buffer in enumerate(buffers):
        buffer.extend(steps(number, 4))
    ensemble = seeded(*buffers, sample_from_all=True, batch_size=64, shared=True)

    def work() -> None:
        ensemble[1].extend(steps(1, 4, start=4))
        sample = ensemble.sample()
        check(sample)
        sample["td_error"] = sample["n"] + 2.0
        ensemble.update_tensordict_priority(sample)

    in_child(work)
    assert len(ensemble) == 12
    check(ensemble.sample())
    assert ensemble[0].sampler.weights.tolist() == [2, 3, 4, 5]


def test_the_repr_shows_buffers_and_how_they_are_drawn() -> None:
    text = repr(seeded(*parts_of(3, 4), p=[1.0, 3.0], batch_size=2, transform=abs))
    assert text.count("TensorDictReplayBuffer(") == 2
    for words in ("p=[0.25, 0.75]", "batch_size=2", "items=7", "abs"):
        assert words in text
