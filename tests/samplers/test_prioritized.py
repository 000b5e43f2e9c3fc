from __future__ import annotations

import math
import threading
from typing import Any

import numpy as np
import pytest
import torch
import torch.multiprocessing as mp
from tensordict import TensorDict

from patience import PATIENCE
from replaybank.buffers.replay_buffer import ReplayBuffer
from replaybank.buffers.tensordict import TensorDictReplayBuffer
from replaybank.samplers.prioritized import PrioritizedSampler
from replaybank.samplers.random import RandomSampler
from replaybank.storages import LazyTensorStorage, TensorStorage
from samplers.prioritized import extend, filled, make, numbers

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
    assert (
        repr(sampler)
        == "PrioritizedSampler(max_capacity=7, alpha=0.6, beta=0.4, eps=1e-06, reduction='mean')"
    )


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
