"""Buffers that bring a prioritized sampler along."""

from __future__ import annotations

import copy
import inspect
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tensordict import TensorDict

from buffers.test_processes import in_child
from reference.chi_square import assert_fits
from replaybank.buffers import (
    PrioritizedReplayBuffer,
    ReplayBuffer,
    TensorDictPrioritizedReplayBuffer,
    TensorDictReplayBuffer,
)
from replaybank.samplers import PrioritizedSampler, PrioritizedSliceSampler
from replaybank.storages import LazyMemmapStorage, LazyTensorStorage, ListStorage, TensorStorage
from replaybank.writers import RoundRobinWriter, TensorDictRoundRobinWriter

KINDS: list[Any] = [PrioritizedReplayBuffer, TensorDictPrioritizedReplayBuffer]


def steps(start: int, count: int, **more: torch.Tensor) -> TensorDict:
    return TensorDict({"n": torch.arange(start, start + count), **more}, batch_size=count)


def made(kind: Any = TensorDictPrioritizedReplayBuffer, **kwargs: Any) -> Any:
    given = {"alpha": 1.0, "beta": 1.0, "eps": 0.0, "batch_size": 4, **kwargs}
    return kind(generator=torch.Generator().manual_seed(0), **given)


# --- construction ----------------------------------------------------------------------------------------


def test_arguments_have_the_names_order_and_defaults_that_users_know() -> None:
    plain = inspect.signature(PrioritizedReplayBuffer).parameters
    assert list(plain) == [
        *("alpha", "beta", "eps", "dtype", "storage", "collate_fn", "pin_memory", "prefetch", "transform"),
        *("batch_size", "dim_extend", "kwargs"),
    ]
    dicts = inspect.signature(TensorDictPrioritizedReplayBuffer).parameters
    assert list(dicts)[:14] == [
        *("alpha", "beta", "priority_key", "eps", "storage", "collate_fn", "pin_memory", "prefetch"),
        *("transform", "reduction", "batch_size", "dim_extend", "generator", "shared"),
    ]
    assert (plain["eps"].default, plain["dtype"].default) == (1e-8, torch.float32)
    assert (dicts["eps"].default, dicts["priority_key"].default) == (1e-8, "td_error")
    assert dicts["reduction"].default == "max"
    for parameters in (plain, dicts):
        assert all(
            parameter.kind is not inspect.Parameter.POSITIONAL_OR_KEYWORD for parameter in parameters.values()
        )


@pytest.mark.parametrize("kind", KINDS)
def test_the_default_is_a_list_of_a_thousand_with_a_sampler_of_its_size(kind: Any) -> None:
    buffer = kind(alpha=0.7, beta=0.9)
    assert type(buffer.storage) is ListStorage
    assert buffer.storage.max_size == buffer.sampler.max_capacity == 1000
    assert type(buffer.sampler) is PrioritizedSampler
    assert (buffer.sampler.alpha, buffer.sampler.beta, buffer.sampler.eps) == (0.7, 0.9, 1e-8)
    assert buffer.sampler.dtype is torch.float32
    assert buffer.batch_size is None
    assert isinstance(buffer, ReplayBuffer)
    assert isinstance(buffer, TensorDictReplayBuffer) == (kind is TensorDictPrioritizedReplayBuffer)
    writer = RoundRobinWriter if kind is PrioritizedReplayBuffer else TensorDictRoundRobinWriter
    assert type(buffer.writer) is writer
    assert "PrioritizedSampler(max_capacity=1000" in repr(buffer)


@pytest.mark.parametrize("kind", KINDS)
def test_wrong_exponents_dtypes_and_samplers_are_refused_at_once(kind: Any) -> None:
    for delayed in (False, True):
        with pytest.raises(ValueError, match=r"alpha.*-1"):
            kind(alpha=-1, beta=1, delayed_init=delayed)
        with pytest.raises(ValueError, match=r"beta.*-0\.5"):
            kind(alpha=1, beta=-0.5, delayed_init=delayed)
    with pytest.raises(NotImplementedError, match="float16"):
        kind(alpha=1, beta=1, dtype=torch.float16)
    with pytest.raises(TypeError, match="makes its own sampler") as refused:
        kind(alpha=1, beta=1, sampler=PrioritizedSampler(10, 1, 1))
    assert kind.__name__.replace("Prioritized", "") + "(sampler=...)" in str(refused.value)
    with pytest.raises(TypeError, match="storages"):
        kind(alpha=1, beta=1, storages=1)
    with pytest.raises(ValueError, match="reduction='product'"):
        TensorDictPrioritizedReplayBuffer(alpha=1, beta=1, reduction="product")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("storage", "capacity", "full"),
    [
        (lambda: ListStorage(7), 7, 7),
        (LazyTensorStorage(7), 7, 7),
        (lambda: LazyMemmapStorage(7), 7, 7),
        (lambda: LazyTensorStorage(7, ndim=2), 7, 9),
        (lambda: TensorStorage(TensorDict({"n": torch.arange(7)}, [7])), 7, 7),
    ],
    ids=["list", "tensor", "memmap", "columns", "given"],
)
def test_the_sampler_has_room_for_what_its_storage_has(
    kind: Any, storage: Any, capacity: int, full: int
) -> None:
    """A storage with columns is rounded up to whole rows, which it knows at the first write."""
    buffer = made(kind, storage=copy.deepcopy(storage))
    assert buffer.sampler.max_capacity == capacity
    for start in (0, 9):
        data = steps(start, 9)
        buffer.extend(data.view(3, 3) if buffer.storage.ndim == 2 else data)
    buffer.sample()
    assert len(buffer) == buffer.sampler.max_capacity == full
    assert buffer.sampler.weights.tolist() == [1.0] * full


def test_a_list_without_end_is_followed_as_it_grows() -> None:
    buffer = made(PrioritizedReplayBuffer, storage=ListStorage(), batch_size=200)
    for start in range(0, 5000, 500):
        buffer.extend([torch.tensor(number) for number in range(start, start + 500)])
        buffer.update_priority(range(start, start + 500), 0.0)
        buffer.update_priority(start + 7, 3.0)
    assert buffer.sampler.weights.nonzero().flatten().tolist() == list(range(7, 5000, 500))
    assert set(buffer.sample().tolist()) == set(range(7, 5000, 500))


def test_a_larger_storage_makes_a_larger_sampler() -> None:
    buffer = made(storage=LazyTensorStorage(4))
    buffer.extend(steps(0, 4, td_error=torch.arange(4.0)))
    buffer.set_storage(LazyTensorStorage(50))
    buffer.extend(steps(0, 50, td_error=torch.arange(50.0)))
    assert buffer.sampler.weights.tolist() == list(range(50))
    fixed = TensorDictReplayBuffer(storage=LazyTensorStorage(4), sampler=PrioritizedSampler(4, 1.0, 1.0))
    big = LazyTensorStorage(50)
    big.set(range(50), steps(0, 50))
    with pytest.raises(ValueError, match="max_capacity=4 and the storage 50 items"):
        fixed.set_storage(big)


def test_slices_by_priority_follow_the_size_of_their_storage_too() -> None:
    sampler = PrioritizedSliceSampler(None, 1.0, 1.0, slice_len=2, traj_key="episode")
    buffer = TensorDictReplayBuffer(
        storage=LazyTensorStorage(5000, ndim=2), sampler=sampler, batch_size=4, priority_key="p"
    )
    episode = torch.arange(6).view(2, 3, 1).expand(2, 3, 400).reshape(2, 1200)
    buffer.extend(TensorDict({"episode": episode, "p": torch.ones(2, 1200)}, [2, 1200]))
    batch = buffer.sample()
    assert torch.equal(batch["episode"][0::2], batch["episode"][1::2])
    assert sampler.max_capacity == 5000


# --- sampling --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_items_come_in_proportion_to_their_priorities(kind: Any) -> None:
    """Chi-square with a false-alarm rate of 1e-6, seed fixed."""
    buffer = made(kind, alpha=0.5, beta=1.0, storage=LazyTensorStorage(10), batch_size=5000)
    buffer.extend(steps(0, 10))
    priorities = torch.arange(1.0, 11.0).square()
    buffer.update_priority(torch.arange(10), priorities)
    sample, info = buffer.sample(return_info=True)
    assert_fits(sample["n"].tolist(), {n: (n + 1) / 55 for n in range(10)})
    weight = sample["priority_weight"] if "priority_weight" in sample.keys() else info["priority_weight"]  # noqa: SIM118
    torch.testing.assert_close(weight, 1 / (sample["n"] + 1).float())


@pytest.mark.parametrize(
    "storage", [lambda: ListStorage(6), lambda: LazyTensorStorage(6)], ids=["list", "tensor"]
)
def test_c17_a_stale_priority_is_not_given_to_the_new_item_in_its_slot(storage: Any) -> None:
    """C17: sample, ten writes that overwrite what was sampled, then the priorities come back."""
    buffer = made(storage=storage, batch_size=60)
    buffer.extend(steps(0, 6))
    sample = buffer.sample()
    assert set(sample["index"].tolist()) == set(range(6))
    for number in range(10):  # ten writes to six slots: all are overwritten, four of them twice
        buffer.add(steps(100 + number, 1)[0])
    sample["td_error"] = torch.full((60,), 9.0)
    buffer.update_tensordict_priority(sample)
    assert buffer.sampler.weights.tolist() == [1.0] * 6
    again = buffer.sample()
    again["td_error"] = again["n"].float()
    buffer.update_tensordict_priority(again)
    assert buffer.sampler.weights.tolist() == [106, 107, 108, 109, 104, 105]


def test_c17_half_of_a_sample_is_stale_also_in_columns_and_drawn_ahead() -> None:
    """C17 where only some of the sampled slots are overwritten, in a 2-d storage and with prefetch."""
    buffer = made(storage=LazyTensorStorage(12, ndim=2), batch_size=200, prefetch=2)
    buffer.extend(steps(0, 12).view(2, 6))  # two columns of six steps
    sample = buffer.sample()
    buffer.extend(steps(100, 6).view(2, 3))  # the first three rows of both
    sample["td_error"] = torch.full((200,), 5.0)
    buffer.update_tensordict_priority(sample)
    assert buffer.sampler.weights.view(6, 2).tolist() == [[1.0, 1.0]] * 3 + [[5.0, 5.0]] * 3
    buffer.close()


def test_c17_a_plain_buffer_hands_the_stamps_through_by_hand() -> None:
    """C17 with ``update_priority(..., generation=)``."""
    buffer = made(PrioritizedReplayBuffer, storage=ListStorage(3), batch_size=30)
    buffer.extend(["a", "b", "c"])
    _, info = buffer.sample(return_info=True)
    buffer.add("d")
    buffer.update_priority(info["index"], torch.full((30,), 4.0), generation=info["_generation"])
    assert buffer.sampler.weights.tolist() == [1.0, 4.0, 4.0]


def test_new_items_have_the_largest_priority_and_given_ones_their_own() -> None:
    buffer = made(storage=LazyTensorStorage(8))
    buffer.extend(steps(0, 2, td_error=torch.tensor([3.0, 7.0])))
    buffer.extend(steps(2, 2).set("td_error", torch.tensor([1.0, 2.0])), update_priority=False)
    buffer.add(steps(4, 1, td_error=torch.tensor([0.5]))[0])
    assert buffer.sampler.weights.tolist() == [3.0, 7.0, 7.0, 7.0, 0.5]


@pytest.mark.parametrize(
    ("reduction", "expected"), [("max", 4.0), ("min", 1.0), ("mean", 2.5), ("median", 2.0)]
)
def test_a_stored_trajectory_has_one_priority_of_its_steps(reduction: str, expected: float) -> None:
    buffer = made(storage=LazyTensorStorage(5), reduction=reduction, batch_size=8)
    values = torch.tensor([4.0, 1.0, 2.0, 3.0])
    data = TensorDict({"td_error": values.expand(3, 4), "n": torch.arange(12).view(3, 4)}, [3, 4])
    buffer.extend(data)
    assert buffer.sampler.weights.tolist() == [expected] * 3
    sample = buffer.sample()
    sample["td_error"] = values.expand(8, 4) * 2
    buffer.update_tensordict_priority(sample)
    drawn = sample["index"][:, 0].unique()
    assert buffer.sampler.weights[drawn].tolist() == [2 * expected] * len(drawn)


def test_exponents_can_be_annealed_through_the_buffer() -> None:
    buffer = made(storage=LazyTensorStorage(4))
    buffer.extend(steps(0, 2, td_error=torch.tensor([1.0, 4.0])))
    buffer.sampler.alpha = 0.5
    buffer.sampler.beta = 0.25
    assert buffer.sampler.weights.tolist() == [1.0, 2.0]
    sample = buffer.sample()
    torch.testing.assert_close(
        sample["priority_weight"], torch.tensor([1.0, 2.0]).pow(-0.25)[sample["index"]]
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_weights_are_of_the_dtype_asked_for(dtype: torch.dtype) -> None:
    for kind in KINDS:
        buffer = made(kind, storage=LazyTensorStorage(4), dtype=dtype)
        buffer.extend(steps(0, 4))
        assert buffer.sample(return_info=True)[1]["priority_weight"].dtype is dtype


@given(st.data())
def test_a_buffer_agrees_with_a_dictionary_of_priorities(data: st.DataObject) -> None:
    """Random adds, extends, updates and replacements against what each slot should count."""
    capacity = data.draw(st.integers(1, 7))
    buffer = made(storage=ListStorage(capacity), batch_size=3)
    model: dict[int, float] = {}
    cursor, largest = 0, None
    for number in range(data.draw(st.integers(1, 12))):
        action = data.draw(st.sampled_from(["add", "extend", "with", "update", "replace"]))
        if action in ("add", "extend", "with"):
            count = 1 if action == "add" else data.draw(st.integers(1, 9))
            item = steps(number, count)
            given = torch.tensor(data.draw(st.lists(st.integers(0, 9), min_size=count, max_size=count)))
            if action == "with":
                item["td_error"] = given
            fresh = 1.0 if largest is None else largest
            buffer.add(item[0]) if action == "add" else buffer.extend(item)
            for k in range(count):
                model[(cursor + k) % capacity] = fresh
            if action == "with":
                for k in range(count):
                    model[(cursor + k) % capacity] = float(given[k])
                largest = max(-1.0 if largest is None else largest, float(given.max()))
            cursor = (cursor + count) % capacity
        elif model:
            slot = data.draw(st.sampled_from(sorted(model)))
            if action == "replace":
                buffer[slot] = steps(99, 1)[0]
            else:
                value = float(data.draw(st.integers(0, 9)))
                buffer.update_priority(slot, value)
                model[slot] = value
                largest = max(-1.0 if largest is None else largest, value)
        assert buffer.sampler.weights.tolist() == [model[slot] for slot in sorted(model)]


# --- state and processes ---------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("way", ["state", "disk", "pickle", "copy"])
def test_a_buffer_goes_on_with_its_priorities_and_draws(kind: Any, way: str, tmp_path: Path) -> None:
    buffer = made(kind, storage=LazyTensorStorage(20), alpha=0.8)
    buffer.extend(steps(0, 26))
    buffer.update_priority(range(20), torch.arange(20.0))
    buffer.sample()
    other: Any
    if way in ("pickle", "copy"):
        other = pickle.loads(pickle.dumps(buffer)) if way == "pickle" else copy.deepcopy(buffer)
    else:
        other = kind(alpha=0.1, beta=0.1, storage=LazyTensorStorage(20), batch_size=4)
        if way == "state":
            other.load_state_dict(buffer.state_dict())
        else:
            buffer.dumps(tmp_path)
            other.loads(tmp_path)
    assert (other.sampler.alpha, other.sampler.beta, other.sampler.eps) == (0.8, 1.0, 0.0)
    assert other.sampler.weights.tolist() == buffer.sampler.weights.tolist()
    for _ in range(3):
        assert torch.equal(buffer.sample()["n"], other.sample()["n"])
    other.extend(steps(50, 3))
    assert other.sampler.weights[6:9].tolist() == pytest.approx([19**0.8] * 3)


def test_an_emptied_buffer_forgets_its_priorities() -> None:
    buffer = made(storage=LazyTensorStorage(5))
    buffer.extend(steps(0, 5))
    buffer.update_priority(range(5), 9.0)
    buffer.empty()
    buffer.extend(steps(0, 2))
    assert buffer.sampler.weights.tolist() == [1.0, 1.0]


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize("ndim", [1, 2])
def test_processes_share_priorities_also_where_the_storage_was_rounded_up(ndim: int) -> None:
    """With columns the sampler's memory is shared with the first write, when its size is known."""
    shape: Callable[[TensorDict], Any] = (lambda td: td) if ndim == 1 else (lambda td: td.view(3, -1))
    buffer = made(storage=LazyTensorStorage(10, ndim=ndim, shared_init=True), shared=True, batch_size=64)
    buffer.extend(shape(steps(0, 6)))
    size = buffer.storage.max_size
    assert buffer.sampler.max_capacity == size == (10 if ndim == 1 else 12)

    def work() -> None:
        buffer.extend(shape(steps(6, 6)))
        sample = buffer.sample()
        sample["td_error"] = sample["n"].float()
        buffer.update_tensordict_priority(sample)

    in_child(work)
    assert len(buffer) == size
    weights = dict(
        zip(buffer.storage[:]["n"].flatten().tolist(), buffer.sampler.weights.tolist(), strict=True)
    )
    assert sum(weight == n for n, weight in weights.items()) >= size - 2
    assert set(buffer.sample()["n"].tolist()) <= set(weights)
