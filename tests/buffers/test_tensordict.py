"""The buffer for TensorDicts: index and info in the sample, priorities from the data."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import pytest
import torch
from tensordict import TensorDict

from buffers.doubles import InOrder, Remembers
from replaybank.buffers.tensordict import TensorDictReplayBuffer
from replaybank.samplers.random import RandomSampler
from replaybank.samplers.slice import SliceSampler
from replaybank.storages import LazyTensorStorage, TensorStorage
from replaybank.storages.list import ListStorage
from replaybank.writers.round_robin import RoundRobinWriter, TensorDictRoundRobinWriter


def steps(start: int, count: int, **more: torch.Tensor) -> TensorDict:
    return TensorDict({"n": torch.arange(start, start + count), **more}, batch_size=count)


def tensor_buffer(capacity: int = 10, ndim: int = 1, **kwargs: Any) -> TensorDictReplayBuffer:
    return TensorDictReplayBuffer(storage=LazyTensorStorage(capacity, ndim=ndim), **kwargs)


def test_arguments_have_the_names_and_defaults_that_users_know() -> None:
    parameters = inspect.signature(TensorDictReplayBuffer.__init__).parameters
    assert list(parameters) == ["self", "priority_key", "kwargs"]
    assert parameters["priority_key"].default == "td_error"
    names = ["self", "batch_size", "return_info", "include_info"]
    assert list(inspect.signature(TensorDictReplayBuffer.sample).parameters) == names
    buffer = TensorDictReplayBuffer(priority_key="p")
    assert buffer.priority_key == "p"
    assert type(buffer.writer) is TensorDictRoundRobinWriter
    assert type(buffer.storage) is ListStorage
    with pytest.raises(TypeError, match="storages"):
        TensorDictReplayBuffer(storages=1)


@pytest.mark.parametrize(
    "storage", [lambda: ListStorage(10), lambda: LazyTensorStorage(10)], ids=["list", "tensor"]
)
def test_the_sample_says_where_its_items_are(storage: Any) -> None:
    buffer = TensorDictReplayBuffer(storage=storage, batch_size=30)
    data = steps(0, 6)
    buffer.extend(data)
    assert "index" not in data.keys(), "what the user handed in is his"  # noqa: SIM118
    sample, info = buffer.sample(return_info=True)
    assert sample["index"].tolist() == sample["n"].tolist() == info["index"].tolist()


def test_a_tuple_of_indices_is_stacked_in_the_sample() -> None:
    buffer = tensor_buffer(12, ndim=2, batch_size=30)
    n = torch.arange(2)[:, None] * 100 + torch.arange(3)
    buffer.extend(TensorDict({"n": n}, batch_size=[2, 3]))
    sample, info = buffer.sample(return_info=True)
    assert sample["index"].shape == (30, 2)
    assert torch.equal(sample["index"], torch.stack(info["index"], -1))
    assert torch.equal(sample["index"][:, 1] * 100 + sample["index"][:, 0], sample["n"])


def test_slices_of_a_flat_storage_have_an_index_column() -> None:
    class Slices(RandomSampler):
        def sample(self, storage: Any, batch_size: int) -> tuple[Any, dict[Any, Any]]:
            truncated = torch.zeros(batch_size, 1, dtype=torch.bool)
            return (torch.arange(batch_size),), {("next", "truncated"): truncated}

    buffer = tensor_buffer(sampler=Slices(), batch_size=4)
    buffer.extend(steps(0, 6))
    sample = buffer.sample()
    assert sample["index"].tolist() == [[0], [1], [2], [3]]
    assert sample["next", "truncated"].shape == (4, 1)
    with pytest.warns(UserWarning, match="no priorities"):
        buffer.update_priority(buffer.sample(return_info=True)[1]["index"], torch.ones(4))


def test_the_samplers_info_is_in_the_sample_unless_unwanted() -> None:
    buffer = tensor_buffer(sampler=Remembers(), batch_size=4)
    buffer.extend(steps(0, 6))
    assert {"index", "priority_weight", "_generation"} <= set(buffer.sample().keys())
    for batch in buffer:
        assert "priority_weight" in batch.keys()  # noqa: SIM118
        break
    bare, info = buffer.sample(include_info=False, return_info=True)
    assert "priority_weight" not in bare.keys()  # noqa: SIM118
    assert "priority_weight" in info


def test_a_transform_that_breaks_the_batch_is_named() -> None:
    def flat(td: TensorDict) -> TensorDict:
        return td.reshape(2, -1)

    buffer = tensor_buffer(transform=flat, batch_size=6)
    buffer.extend(steps(0, 6))
    with pytest.raises(RuntimeError, match=r"transform 0, <function .*flat.*\[6\] and gave \[2, 3\]"):
        buffer.sample()
    assert buffer.sample(include_info=False).batch_size == (2, 3)


def test_items_of_several_steps_have_their_index_at_every_step() -> None:
    buffer = tensor_buffer(batch_size=5)
    buffer.extend(TensorDict({"n": torch.arange(4)[:, None].expand(4, 3)}, batch_size=[4, 3]))
    sample = buffer.sample()
    assert sample.batch_size == (5, 3)
    assert torch.equal(sample["index"], sample["n"])


def test_items_replaced_without_an_index_keep_theirs() -> None:
    buffer = tensor_buffer()
    buffer.extend(steps(0, 4))
    buffer[1:3] = steps(50, 2)
    buffer[0] = steps(60, 1)[0]
    assert buffer[:]["n"].tolist() == [60, 50, 51, 3]
    assert buffer[:]["index"].tolist() == [0, 1, 2, 3]


# --- priorities --------------------------------------------------------------------------------------------


def test_priorities_in_the_data_are_taken_over_on_writing() -> None:
    sampler = Remembers()
    buffer = tensor_buffer(sampler=sampler)
    buffer.extend(steps(0, 3, td_error=torch.tensor([0.5, 1.5, 2.5])))
    buffer.add(steps(3, 1, td_error=torch.tensor([3.5]))[0])
    assert sampler.priorities == {(0,): 0.5, (1,): 1.5, (2,): 2.5, (3,): 3.5}
    buffer.extend(steps(0, 3, td_error=torch.ones(3)), update_priority=False)
    assert len(sampler.priorities) == 4


def test_items_without_a_priority_are_left_with_the_default() -> None:
    sampler = Remembers()
    buffer = tensor_buffer(sampler=sampler, batch_size=3)
    buffer.extend(steps(0, 3))
    buffer.add(steps(3, 1)[0])
    assert sampler.priorities == {}
    sample = buffer.sample()
    buffer.update_tensordict_priority(sample)
    assert sampler.told[-1] == ("mark", sample["index"].tolist())


def test_another_entry_may_hold_the_priorities() -> None:
    sampler = Remembers()
    buffer = tensor_buffer(sampler=sampler, priority_key=("loss", "td"))
    buffer.extend(TensorDict({"loss": {"td": torch.tensor([2.0, 3.0])}}, batch_size=2))
    assert sampler.priorities == {(0,): 2.0, (1,): 3.0}


@pytest.mark.parametrize(
    ("reduction", "expected"), [("max", 5.0), ("min", 1.0), ("mean", 3.0), ("median", 3.0), ("sum", 9.0)]
)
def test_a_trajectorys_priorities_are_reduced_to_one(reduction: str, expected: float) -> None:
    sampler = Remembers(reduction)
    buffer = tensor_buffer(sampler=sampler, batch_size=2)
    data = TensorDict({"td_error": torch.tensor([[1.0, 5.0, 3.0]])}, batch_size=[1, 3])
    buffer.extend(data)
    assert sampler.priorities == {(0,): expected}
    with pytest.warns(UserWarning, match="becomes one item"):
        buffer.add(data[0])
    assert sampler.priorities == {(0,): expected, (1,): expected}
    sampler.priorities.clear()
    sample = buffer.sample()
    sample["td_error"] = sample["td_error"] * 10
    buffer.update_tensordict_priority(sample)
    assert set(sampler.priorities.values()) == {expected * 10}
    sampler.reduction = "prod"
    with pytest.raises(ValueError, match="reduction='prod'"):
        buffer.update_tensordict_priority(sample)


def test_columns_and_steps_have_priorities_of_their_own() -> None:
    sampler = Remembers()
    buffer = tensor_buffer(12, ndim=2, sampler=sampler, batch_size=4)
    error = torch.arange(6.0).reshape(2, 3)
    buffer.extend(TensorDict({"td_error": error[..., None]}, batch_size=[2, 3]))
    expected = {(t, e): float(error[e, t]) for t in range(3) for e in range(2)}
    assert sampler.priorities == expected
    buffer.add(TensorDict({"td_error": torch.tensor([[7.0], [8.0]])}, batch_size=[2]))
    assert sampler.priorities == {**expected, (3, 0): 7.0, (3, 1): 8.0}
    sample = buffer.sample()
    sample["td_error"] = torch.full((4, 1), -1.0)
    buffer.update_tensordict_priority(sample)
    assert sampler.told[-1] == ("priority", sample["_generation"].tolist())
    assert all(sampler.priorities[tuple(row)] == -1.0 for row in sample["index"].tolist())


def test_a_sample_that_was_reshaped_gives_each_item_its_priority() -> None:
    sampler = Remembers()
    buffer = tensor_buffer(sampler=InOrder(), batch_size=6)
    buffer.extend(steps(0, 6, td_error=torch.zeros(6)))
    sample = buffer.sample()
    buffer.set_sampler(sampler)
    sample["td_error"] = torch.arange(6.0)
    buffer.update_tensordict_priority(sample.reshape(2, 3))
    buffer.update_tensordict_priority(sample[5].set("td_error", torch.tensor(9.0)))
    assert sampler.priorities == {**{(i,): float(i) for i in range(5)}, (5,): 9.0}


def test_the_stamp_of_a_sample_goes_back_with_its_priorities_and_is_never_written() -> None:
    sampler = Remembers()
    buffer = tensor_buffer(sampler=sampler, batch_size=4)
    buffer.extend(steps(0, 3, td_error=torch.zeros(3)))
    sample = buffer.sample()
    buffer.update_tensordict_priority(sample)
    assert sampler.told[-1] == ("priority", (sample["index"] + 100).tolist())
    assert "_generation" in sample.keys()  # noqa: SIM118
    buffer.extend(sample.exclude("priority_weight"))
    buffer.add(sample[0].exclude("priority_weight"))
    assert ("_generation",) not in buffer.storage.leaf_keys()


def test_a_sampler_without_priorities_is_left_alone() -> None:
    buffer = tensor_buffer(batch_size=2)
    buffer.extend(steps(0, 3, td_error=torch.ones(3)))
    buffer.update_tensordict_priority(buffer.sample())
    buffer.update_tensordict_priority(steps(0, 3))


def test_priorities_without_an_index_are_refused() -> None:
    buffer = tensor_buffer(sampler=Remembers())
    with pytest.raises(KeyError, match="no entry 'index', only"):
        buffer.update_tensordict_priority(steps(0, 3, td_error=torch.ones(3)))


# --- more --------------------------------------------------------------------------------------------------


def test_lists_of_tensordicts_are_written_as_a_batch() -> None:
    sampler = Remembers()
    buffer = tensor_buffer(sampler=sampler)
    buffer.extend([TensorDict(n=torch.tensor(i), td_error=torch.tensor(float(i))) for i in range(3)])
    assert buffer["n"].tolist() == [0, 1, 2]
    assert sampler.priorities == {(0,): 0.0, (1,): 1.0, (2,): 2.0}


def test_stored_items_stay_as_they_were_written_whatever_a_sample_is_given() -> None:
    def mark(td: TensorDict) -> TensorDict:
        return td.set("new", torch.zeros(td.batch_size))

    items = [TensorDict(n=torch.arange(k)) for k in (2, 3)]
    buffer = TensorDictReplayBuffer(
        storage=ListStorage(10),
        writer=RoundRobinWriter,
        batch_size=9,
        transform=mark,
    )
    buffer.extend(items)
    sample = buffer.sample()
    assert [len(item["n"]) - 2 for item in sample.unbind(0)] == sample["index"].tolist()
    assert "new" in buffer[0].keys()  # noqa: SIM118
    assert all(list(item.keys()) == ["n"] for item in items)


def test_static_data_is_sampled_with_its_index() -> None:
    buffer = TensorDictReplayBuffer(storage=TensorStorage(steps(0, 5)), batch_size=20)
    sample = buffer.sample()
    assert torch.equal(sample["index"], sample["n"])


def test_a_list_of_tensordicts_is_saved_and_loaded(tmp_path: Path) -> None:
    buffer = TensorDictReplayBuffer(storage=ListStorage(10), batch_size=2)
    buffer.extend([TensorDict(n=torch.arange(k)) for k in (2, 3)])
    buffer.dumps(tmp_path)
    other = TensorDictReplayBuffer(storage=ListStorage(10), batch_size=2)
    other.loads(tmp_path)
    assert [item["n"].tolist() for item in other.storage[:]] == [[0, 1], [0, 1, 2]]


def episodes(*lengths: int, trailing: bool = True) -> TensorDict:
    steps = sum(lengths)
    done = torch.zeros(steps, dtype=torch.bool)
    done[torch.tensor(lengths).cumsum(0) - 1] = True
    terminated = done & (torch.arange(steps) > steps // 2)
    if trailing:
        done, terminated = done[:, None], terminated[:, None]
    return TensorDict(
        {"n": torch.arange(steps), "next": {"done": done, "terminated": terminated}}, batch_size=[steps]
    )


@pytest.mark.parametrize("trailing", [True, False])
def test_a_buffer_says_of_slices_what_their_sampler_says(trailing: bool) -> None:
    buffer = TensorDictReplayBuffer(
        storage=LazyTensorStorage(20), sampler=SliceSampler(slice_len=3), batch_size=12
    )
    buffer.extend(episodes(4, 3, 6, 5, trailing=trailing))
    for seed in range(20):
        buffer.set_rng(torch.Generator().manual_seed(seed))
        sample, info = buffer.sample(return_info=True)
        sampler = SliceSampler(slice_len=3)
        sampler.generator = torch.Generator().manual_seed(seed)
        index, expected = sampler.sample(buffer.storage, 12)
        assert torch.equal(sample["n"], index[0])
        for name in ("truncated", "done", "terminated"):
            assert expected["next", name].shape == (12, 1)
            assert torch.equal(info["next", name], expected["next", name])
            assert torch.equal(sample["next", name], expected["next", name])


def test_a_sampler_whose_user_wrote_another_sample_is_asked_for_that() -> None:
    class Backwards(SliceSampler):
        def sample(self, storage: Any, batch_size: int) -> Any:
            (time,), info = super().sample(storage, batch_size)
            return (time.flip(0),), {key: value.flip(0) for key, value in info.items()}

    buffer = TensorDictReplayBuffer(
        storage=LazyTensorStorage(20), sampler=Backwards(slice_len=3), batch_size=6
    )
    buffer.extend(episodes(4, 3, 6))
    sample = buffer.sample()
    assert (sample["n"].diff()[:2] == -1).all()
    assert sample["next", "truncated"].ravel().tolist() == [True, False, False] * 2


def test_priorities_asked_for_that_cannot_be_taken_are_warned_of() -> None:
    data = TensorDict({"td_error": torch.ones(3)}, [3])
    plain = TensorDictReplayBuffer(storage=LazyTensorStorage(10))
    with pytest.warns(UserWarning, match="a RandomSampler has no priorities"):
        plain.extend(data, update_priority=True)
    prioritized = TensorDictReplayBuffer(storage=LazyTensorStorage(10), sampler=Remembers(), priority_key="p")
    with pytest.warns(UserWarning, match="the data has no entry 'p'"):
        prioritized.extend(data, update_priority=True)
    assert len(plain) == len(prioritized) == 3
