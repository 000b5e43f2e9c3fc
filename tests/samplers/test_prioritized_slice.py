from __future__ import annotations

import copy
import pickle
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.multiprocessing as mp
from hypothesis import given, settings
from hypothesis import strategies as st
from tensordict import TensorDict
from torch import Tensor

from depth import examples
from patience import PATIENCE
from reference.chi_square import assert_fits
from reference.history import History
from reference.storage import PlainStorage
from replaybank.buffers.tensordict import TensorDictReplayBuffer
from replaybank.samplers.prioritized import PrioritizedSampler
from replaybank.samplers.prioritized_slice import PrioritizedSliceSampler
from replaybank.samplers.random import RandomSampler
from replaybank.samplers.slice import SliceSampler
from replaybank.storages import LazyTensorStorage, TensorStorage

DONE = ("next", "done")
Key = tuple[str, ...]


def make(
    capacity: int = 100, alpha: Any = 1.0, beta: Any = 1.0, seed: int = 0, eps: float = 0.0, **options: Any
) -> PrioritizedSliceSampler:
    sampler = PrioritizedSliceSampler(capacity, alpha, beta, eps, **options)
    sampler.generator = torch.Generator().manual_seed(seed)
    return sampler


def steps(*lengths: int, first_episode: int = 0) -> dict[Key, Tensor]:
    """Whole trajectories one behind the other, each step marked with its trajectory and its number in it."""
    episode = torch.cat([torch.full((n,), first_episode + k) for k, n in enumerate(lengths)])
    number = torch.cat([torch.arange(n) for n in lengths])
    done = torch.zeros(len(number), 1, dtype=torch.bool)
    done[torch.tensor(lengths).cumsum(0) - 1] = True
    return {("id",): episode, ("step",): number, DONE: done}


def filled(rows: int, *lengths: int) -> PlainStorage:
    storage = PlainStorage(rows)
    storage.extend(steps(*lengths))
    return storage


def runs(storage: PlainStorage, sampler: PrioritizedSliceSampler, size: int) -> list[tuple[int, int, int]]:
    """Of each slice of a batch: trajectory, number of its first step, number of steps. Checks each."""
    where, info = sampler.sample(storage, size)
    ids, numbers = (storage.leaves[key,][where].tolist() for key in ("id", "step"))
    columns = [tuple(int(part[k]) for part in where[1:]) for k in range(len(ids))]
    found, start = [], 0
    for k, ends in enumerate(info["next", "truncated"].squeeze(-1).tolist()):
        assert (ids[k], columns[k]) == (ids[start], columns[start]), (
            "a slice crosses a trajectory or a column"
        )
        assert numbers[k] == numbers[start] + k - start, "a slice skips steps"
        assert info["priority_weight"][k] == info["priority_weight"][start]
        if ends:
            found.append((ids[start], numbers[start], k + 1 - start))
            start = k + 1
    assert start == len(ids)
    return found


# ---- which steps are allowed starts


@settings(max_examples=examples(400), deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_after_any_history_starts_and_weights_are_those_of_the_slots_themselves(seed: int) -> None:
    history = History(seed)
    random, storage = history.random, history.storage
    strict, span = random.random() < 0.5, random.choice([0, 0, 1, True])
    key: dict[str, Any] = {"traj_key" if history.by_change else "end_key": history.key}
    capacity = history.rows * history.n_columns
    sampler = make(capacity, num_slices=2, strict_length=strict, span=(0, span), truncated_key=None, **key)
    for _ in range(random.randint(1, 25)):
        history.step()
        n = len(storage)
        if random.random() < 0.3 and n:
            index = [random.randrange(-1, n) for _ in range(random.randint(1, 4))]
            sampler.update_priority(index, [random.choice([0.0, 1.0, 3.0]) for _ in index], storage=storage)
        if random.random() < 0.4 or not n:
            continue
        slice_len = random.choice([2, 3]) if random.random() < 0.2 else 2
        right = slice_len - 1 if span is True else span
        allowed: dict[int, int] = {}
        for column, first, length in history.trajectories():
            for offset in range(length):
                if length - offset >= slice_len - right or (offset == 0 and not strict):
                    item = (first + offset) % storage.log.length * history.n_columns + column
                    allowed[item] = min(slice_len, length - offset)
        sampler._table.follow(storage)
        weights = {item: float(sampler.weights[item]) for item in allowed}
        if not any(weights.values()):
            with pytest.raises(
                RuntimeError, match="All weights are 0" if allowed else "No trajectory is long"
            ):
                sampler.sample(storage, 2 * slice_len)
            continue
        where, info = sampler.sample(storage, 2 * slice_len)
        assert sampler._starts.allowed.nonzero().squeeze(-1).tolist() == sorted(allowed)
        leaves = sampler._starts.tree.leaves
        assert {k: float(leaves[k]) for k in leaves.nonzero().squeeze(-1).tolist()} == {
            k: w for k, w in weights.items() if w
        }
        flat = where[0]
        for part, size in zip(where[1:], storage.columns, strict=True):
            flat = flat * size + part
        items, least = flat.tolist(), min(w for w in weights.values() if w)
        for _ in range(2):
            count = allowed[items[0]]
            rows = [item // history.n_columns for item in items[:count]]
            assert rows == [(rows[0] + k) % storage.log.length for k in range(count)]
            assert len({item % history.n_columns for item in items[:count]}) == 1
            assert float(info["priority_weight"][len(flat) - len(items)]) == pytest.approx(
                least / weights[items[0]]
            )
            items = items[count:]
        assert not items


@pytest.mark.parametrize("state", ["partly filled", "exactly full", "wrapped"])
@pytest.mark.parametrize("columns", [(), (2,)])
def test_starts_are_in_proportion_to_their_weights(state: str, columns: tuple[int, ...]) -> None:
    lengths = [5, 3, 9, 6, 2]
    storage = PlainStorage(30 if state == "partly filled" else 25, columns)

    def data(*lengths: int, first_episode: int) -> dict[Key, Tensor]:
        one = steps(*lengths, first_episode=first_episode)
        if not columns:
            return one
        other = {**one, ("id",): one["id",] + 1000}
        return {key: torch.stack([one[key], other[key]], 1) for key in one}

    if state == "wrapped":
        storage.extend(data(17, first_episode=90))
    storage.extend(data(*lengths, first_episode=0))
    n = len(storage)
    sampler = make(60, alpha=0.6, beta=0.5, slice_len=3)
    priority = torch.rand(n, generator=torch.Generator().manual_seed(3)) + 0.05
    sampler.update_priority(torch.arange(n), priority, storage=storage)
    ids, numbers = storage.leaves["id",].reshape(-1), storage.leaves["step",].reshape(-1)
    chances: dict[Any, float] = {}
    for item in range(n):
        trajectory, number = int(ids[item]), int(numbers[item])
        if number + 3 <= lengths[trajectory % 1000]:
            chances[trajectory, number, 3] = float(priority[item]) ** 0.6
    total = sum(chances.values())
    assert_fits(runs(storage, sampler, 3 * 40_000), {key: w / total for key, w in chances.items()})


def test_one_step_slices_and_a_full_right_span_allow_every_step() -> None:  # C40
    storage = filled(24, 10, 4, 7, 3)
    every: list[dict[str, Any]] = [{"slice_len": 1}] + [{"slice_len": 4, "span": (0, i)} for i in (3, True)]
    for options in every:
        sampler = make(24, **options)
        drawn = runs(storage, sampler, options["slice_len"] * 20_000)
        lengths = [10, 4, 7, 3]
        assert_fits(
            drawn,
            {
                (k, s, min(options["slice_len"], n - s)): 1 / 24
                for k, n in enumerate(lengths)
                for s in range(n)
            },
        )


def test_a_right_span_makes_shorter_trajectories_eligible() -> None:
    storage = filled(24, 10, 4, 7, 3)
    kept = runs(storage, make(24, slice_len=5, span=(0, 2)), 5 * 5000)
    assert {k for k, _, _ in kept} == {0, 1, 2, 3}
    assert min(n for _, _, n in kept) == 3


def test_without_strict_length_the_first_step_of_every_trajectory_is_allowed() -> None:
    storage = filled(24, 10, 4, 7, 3)
    kept = runs(storage, make(24, slice_len=6, strict_length=False), 6 * 20_000)
    right = [*((0, k, 6) for k in range(5)), (2, 0, 6), (2, 1, 6), (1, 0, 4), (3, 0, 3)]
    assert_fits(kept, dict.fromkeys(right, 1 / 9))


def test_priorities_of_other_steps_count_as_soon_as_the_step_is_allowed() -> None:
    storage, sampler = filled(20, 6), make(20, slice_len=3)
    storage.leaves[DONE][5] = False  # it goes on
    sampler.update_priority(torch.arange(6), torch.tensor([1.0, 1.0, 1.0, 1.0, 50.0, 7.0]), storage=storage)
    assert {s for _, s, _ in runs(storage, sampler, 300)} == {0, 1, 2, 3}
    more = steps(8)
    storage.extend({key: value[6:] for key, value in more.items()})
    sampler.sample(storage, 3)
    assert sampler._starts.tree.leaves.tolist()[:8] == [1.0, 1.0, 1.0, 1.0, 50.0, 7.0, 0.0, 0.0]


def test_importance_is_relative_to_the_allowed_starts() -> None:
    storage, sampler = filled(10, 10), make(10, slice_len=4)
    sampler.update_priority(torch.arange(10), torch.tensor([4.0] * 7 + [1e-6] * 3), storage=storage)
    _, info = sampler.sample(storage, 400)
    assert info["priority_weight"].tolist() == [1.0] * 400
    assert info["priority_weight"].dtype == torch.float32


def test_another_length_between_calls_gives_right_slices() -> None:
    storage, sampler = filled(24, 10, 4, 7, 3), make(24, num_slices=2000)
    for length in (3, 5, 1, 7, 3):
        drawn = runs(storage, sampler, 2000 * length)
        right = {(k, s, length) for k, n in enumerate([10, 4, 7, 3]) for s in range(n - length + 1)}
        assert set(drawn) == right


def test_a_write_costs_no_rescan() -> None:
    storage, sampler = PlainStorage(1000), make(1000, slice_len=5)
    written = 0
    for k in range(60):
        storage.extend(steps(37, first_episode=k))
        written += 37
        sampler.sample(storage, 50)
    index = sampler._slicing._index
    assert index is not None
    assert index.signals_read == written
    assert index.rebuilds == 1  # the first look


def test_a_2d_storage_at_capacity_never_gives_slices_that_cross() -> None:  # C39
    storage, sampler = PlainStorage(50, (4,)), make(200, slice_len=4)
    random = torch.Generator().manual_seed(0)
    position, episode = [0] * 4, [1000 * c for c in range(4)]
    for _ in range(60):
        rows: dict[Key, list[Any]] = {("id",): [], ("step",): [], DONE: []}
        for _ in range(7):
            ends = [bool(torch.rand(1, generator=random) < 0.1) for _ in range(4)]
            rows["id",].append(list(episode))
            rows["step",].append(list(position))
            rows[DONE].append([[end] for end in ends])
            position = [0 if end else p + 1 for end, p in zip(ends, position, strict=True)]
            episode = [e + end for end, e in zip(ends, episode, strict=True)]
        storage.extend({key: torch.tensor(value) for key, value in rows.items()})
        n = len(storage)
        sampler.update_priority(torch.randint(n, (20,), generator=random), torch.rand(20), storage=storage)
        runs(storage, sampler, 4 * 170)  # checks each; 10,200 slices in all


# ---- info, updates and the buffer


def test_info_goes_with_a_sample_and_back() -> None:
    buffer = TensorDictReplayBuffer(
        storage=LazyTensorStorage(40), sampler=make(40, slice_len=4), batch_size=32
    )
    data = steps(10, 20, 10)
    buffer.extend(TensorDict({"id": data["id",], "step": data["step",], "next": {"done": data[DONE]}}, [40]))
    sample = buffer.sample()
    assert sample["index"].shape == (32, 1)
    assert sample["priority_weight"].shape == sample["_generation"].shape == (32,)
    assert sample["next", "truncated"].shape == (32, 1)
    sample["td_error"] = sample["index"].squeeze(-1) + 1.0
    buffer.update_tensordict_priority(sample)
    sampler = buffer.sampler
    assert isinstance(sampler, PrioritizedSliceSampler)
    expected = torch.ones(40)
    for item in sample["index"].squeeze(-1).tolist():
        expected[item] = item + 1
    assert torch.equal(sampler.weights, expected)
    assert sampler.max_priority == expected.max()
    buffer.extend(TensorDict({"id": data["id",], "step": data["step",], "next": {"done": data[DONE]}}, [40]))
    sample["td_error"] = torch.full((32,), 1e6)
    buffer.update_tensordict_priority(sample)  # all overwritten meanwhile
    assert set(sampler.weights.tolist()) == {float(expected.max())}


def test_two_threads_sample_while_one_updates() -> None:  # C42
    buffer = TensorDictReplayBuffer(
        storage=LazyTensorStorage(200), sampler=make(200, slice_len=4), batch_size=64
    )
    data = steps(*[10] * 20)
    buffer.extend(TensorDict({"step": data["step",], "next": {"done": data[DONE]}}, [200]))
    sampler = buffer.sampler
    assert isinstance(sampler, PrioritizedSliceSampler)
    errors: list[BaseException] = []

    def read(direct: bool) -> None:
        for _ in range(150):
            if direct:
                (time,), _ = sampler.sample(buffer.storage, 64)
                number = data["step",][time]
            else:
                number = buffer.sample()["step"]
            number = number.view(16, 4)
            assert torch.equal(torch.diff(number), torch.ones(16, 3, dtype=torch.int64))

    def update() -> None:
        for k in range(300):
            buffer.update_priority(torch.arange(200), float(k + 1))

    def guarded(work: Any, *arguments: Any) -> None:
        try:
            work(*arguments)
        except BaseException as error:
            errors.append(error)

    threads = [
        threading.Thread(target=guarded, args=(read, False)),
        threading.Thread(target=guarded, args=(read, True)),
        threading.Thread(target=guarded, args=(update,)),
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors, errors[0]
    assert sampler.weights.tolist() == [300.0] * 200
    assert sampler._starts.tree.total == 300.0 * 7 * 20


def episodes(first: int, count: int) -> TensorDict:
    number = torch.arange(first, first + count)
    return TensorDict({"episode": number // 5, "step": number % 5}, [count])


def test_what_another_buffer_writes_is_sliced_at_the_next_sample() -> None:  # C44
    storage = LazyTensorStorage(40)
    first = TensorDictReplayBuffer(storage=storage, sampler=make(40, slice_len=3), batch_size=300)
    second = TensorDictReplayBuffer(storage=storage, sampler=RandomSampler(), batch_size=3)
    second.extend(episodes(0, 10))
    assert set(first.sample()["episode"].tolist()) == {0, 1}
    for k in range(10, 100, 9):
        second.extend(episodes(k, 9))
        sample = first.sample()
        assert (torch.diff(sample["step"].view(100, 3)) == 1).all()
        assert int(sample["episode"].min()) * 5 + 4 >= k + 9 - 40
    second.empty()
    second.extend(episodes(500, 5))
    assert set(first.sample()["episode"].tolist()) == {100}


def _write(buffer: TensorDictReplayBuffer) -> None:
    buffer.extend(episodes(10, 10))
    buffer.update_priority(torch.tensor([0, 10]), torch.tensor([3.0, 9.0]))
    buffer.sample()


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_processes_share_prioritized_slices(method: str) -> None:  # C44
    buffer = TensorDictReplayBuffer(
        storage=LazyTensorStorage(40, shared_init=True),
        sampler=PrioritizedSliceSampler(40, 1.0, 1.0, 0.0, slice_len=3),
        batch_size=300,
        shared=True,
    )
    buffer.extend(episodes(0, 10))
    buffer.sample()
    process = mp.get_context(method).Process(target=_write, args=(buffer,))  # type: ignore[attr-defined]
    process.start()
    process.join(PATIENCE)
    process.kill()
    assert process.exitcode == 0
    sampler = buffer.sampler
    assert isinstance(sampler, PrioritizedSliceSampler)
    sample = buffer.sample()
    assert (torch.diff(sample["step"].view(100, 3)) == 1).all()
    assert set(sample["episode"].tolist()) == {0, 1, 2, 3}
    expected = [3.0, 1.0, 1.0, 0.0, 0.0, 1.0, 1.0, 1.0, 0.0, 0.0, 9.0, 1.0, 1.0, 0.0, 0.0]
    assert sampler._starts.tree.leaves[:15].tolist() == expected


def test_given_ends_describe_a_circle() -> None:
    storage = TensorStorage({"x": torch.arange(6)})
    ends = torch.tensor([False, False, True, False, False, False])
    sampler = make(6, slice_len=6, ends=ends, strict_length=False)
    (time,), _ = sampler.sample(storage, 6)
    assert time.tolist() == [3, 4, 5, 0, 1, 2]
    ways: list[Any] = [copy.deepcopy, lambda s: pickle.loads(pickle.dumps(s))]
    for again in ways:
        sampler.generator = None
        assert again(sampler).sample(storage, 6)[0][0].tolist() == [3, 4, 5, 0, 1, 2]


# ---- alpha, room, state


def test_another_alpha_reweights_the_starts_too() -> None:
    storage, sampler = filled(6, 6), make(6, slice_len=2)
    sampler.update_priority(torch.arange(6), torch.tensor([1.0, 4.0, 9.0, 16.0, 25.0, 36.0]), storage=storage)
    sampler.sample(storage, 2)
    sampler.alpha = 0.5
    assert sampler._starts.tree.leaves.tolist() == [1.0, 2.0, 3.0, 4.0, 5.0, 0.0]
    assert sampler._starts.tree.total == 15.0


def test_a_sampler_grows_with_the_rounding_to_whole_rows() -> None:
    buffer = TensorDictReplayBuffer(
        storage=LazyTensorStorage(10, ndim=2), sampler=make(10, slice_len=2), batch_size=20
    )
    number = torch.arange(5).expand(4, 5)
    buffer.extend(TensorDict({"episode": torch.zeros(4, 5).long(), "step": number}, [4, 5]))
    sample = buffer.sample()
    assert (torch.diff(sample["step"].view(10, 2)) == 1).all()
    assert buffer.sampler.max_capacity == 12  # type: ignore[attr-defined]


def test_a_buffer_goes_on_after_loading(tmp_path: Path) -> None:
    def buffer() -> TensorDictReplayBuffer:
        return TensorDictReplayBuffer(
            storage=LazyTensorStorage(40),
            sampler=PrioritizedSliceSampler(40, 0.7, 0.5, slice_len=3),
            batch_size=30,
            generator=torch.Generator().manual_seed(0),
        )

    first = buffer()
    for k in range(0, 60, 15):
        first.extend(episodes(k, 15).set("td_error", torch.rand(15)))
    first.sample()
    first.dumps(tmp_path)
    second = buffer()
    second.loads(tmp_path)
    for k in range(60, 90, 10):
        assert (first.sample() == second.sample()).all()
        for either in (first, second):
            either.extend(episodes(k, 10).set("td_error", torch.ones(10)))


def test_one_of_two_states_loaded_in_turn_counts() -> None:
    storage, sampler = filled(6, 6), make(6, slice_len=2)
    sampler.update_priority(torch.arange(6), torch.arange(6) + 1.0, storage=storage)
    sampler.sample(storage, 2)
    state = sampler.state_dict()
    sampler.update_priority(torch.arange(6), 1.0)
    sampler.load_state_dict(state)
    sampler.sample(storage, 2)
    assert sampler._starts.tree.leaves.tolist() == [1.0, 2.0, 3.0, 4.0, 5.0, 0.0]


# ---- what is refused


def test_it_is_both_of_its_kinds_by_registration() -> None:
    sampler = make(slice_len=2)
    assert isinstance(sampler, SliceSampler)
    assert isinstance(sampler, PrioritizedSampler)
    assert SliceSampler not in type(sampler).__mro__
    assert PrioritizedSampler not in type(sampler).__mro__


@pytest.mark.parametrize("span", [True, 1, (1, 0), (True, 2)])
def test_a_left_span_is_turned_off_with_a_warning(span: Any) -> None:
    with pytest.warns(UserWarning, match="left span is turned off"):
        sampler = make(slice_len=3, span=span)
    assert sampler.span[0] == 0
    assert sampler.span[1] == (span[1] if isinstance(span, tuple) else span)


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(TypeError, match="exactly one"):
        make()
    with pytest.raises(TypeError, match="exactly one"):
        make(slice_len=2, num_slices=3)
    with pytest.raises(ValueError, match="less than 3"):
        make(slice_len=3, span=(0, 3))
    with pytest.raises(RuntimeError, match="not both"):
        make(slice_len=2, ends=torch.zeros(3), trajectories=torch.zeros(3))
    with pytest.raises(ValueError, match="alpha=-1"):
        make(alpha=-1, slice_len=2)
    storage = filled(20, 3, 2)
    with pytest.raises(RuntimeError, match="whole slices"):
        make(slice_len=2).sample(storage, 3)
    with pytest.raises(RuntimeError, match=r"No trajectory is long enough.*2 to 3 steps"):
        make(slice_len=4).sample(storage, 4)
    with pytest.raises(KeyError, match="episod"):
        make(slice_len=2, traj_key="episod").sample(storage, 4)
    with pytest.raises(RuntimeError, match="Cannot sample from an empty storage"):
        make(slice_len=2).sample(PlainStorage(4), 4)
    with pytest.raises(ValueError, match="max_capacity=4 and the storage 5 items"):
        make(4, slice_len=2).sample(storage, 4)
    sampler = make(slice_len=2)
    sampler.update_priority(torch.arange(5), torch.tensor([0.0, 0.0, 5.0, 0.0, 5.0]), storage=storage)
    with pytest.raises(RuntimeError, match="All weights are 0"):
        sampler.sample(storage, 4)


def test_what_was_given_can_be_read() -> None:
    sampler = PrioritizedSliceSampler(
        9, 0.6, 0.4, 1e-6, torch.float64, "min", num_slices=4, end_key="done", truncated_key=None
    )
    assert (sampler.max_capacity, sampler.num_slices, sampler.slice_len) == (9, 4, None)
    assert (sampler.end_key, sampler.truncated_key, sampler.strict_length) == ("done", None, True)
    assert (sampler.span, sampler.reduction, sampler.dtype) == ((0, False), "min", torch.float64)
    assert repr(sampler).endswith("eps=1e-06, reduction='min', num_slices=4, end_key='done')")
