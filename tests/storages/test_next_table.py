"""Observations once: what is read as next observation is what was written, however it was written."""

from __future__ import annotations

import pickle
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tensordict import TensorDict
from torch import Tensor

from replaybank.storages import LazyMemmapStorage, LazyTensorStorage
from replaybank.storages.next_table import NextTable
from replaybank.writers import RoundRobinWriter

FEW = 3  # different observations, so that equal ones meet by chance


@dataclass
class Twin:
    """Rows in a dict, next observations with them."""

    rows: int
    columns: tuple[int, ...]
    items: dict[int, tuple[Tensor, Tensor]] = field(default_factory=dict)

    def put(self, slot: int, observation: Tensor, after: Tensor) -> None:
        self.items[slot] = (observation.clone(), after.clone())

    def all(self, part: int) -> Tensor:
        return torch.stack([self.items[slot][part] for slot in range(len(self.items))])

    def aside(self) -> int:
        """Items whose next observation is not that of the slot behind them."""
        count = 0
        for slot, (_, after) in self.items.items():
            behind = (slot + 1) % self.rows
            if behind not in self.items:
                count += after.flatten(0, len(self.columns) - 1).shape[0] if self.columns else 1
                continue
            differs = after != self.items[behind][0]
            count += int(differs.reshape(-1, 2).any(-1).sum())
        return count


def _data(observation: Tensor, after: Tensor, lead: int) -> TensorDict:
    shape = observation.shape[:lead]
    return TensorDict(
        {
            "observation": {"a": observation[..., 0].clone(), "b": observation[..., 1:].clone()},
            "next": {
                "observation": {"a": after[..., 0].clone(), "b": after[..., 1:].clone()},
                "reward": torch.arange(shape.numel(), dtype=torch.float32).view(shape),
            },
        },
        shape,
    )


def _read(data: Any) -> tuple[Tensor, Tensor]:
    both = []
    for part in (data["observation"], data["next", "observation"]):
        both.append(torch.cat([part["a"].unsqueeze(-1), part["b"]], -1))
    return both[0], both[1]


def _table(storage: LazyTensorStorage) -> NextTable:
    table = storage._table
    assert isinstance(table, NextTable)
    return table


def _check(storage: LazyTensorStorage, twin: Twin, generator: torch.Generator) -> None:
    assert storage.log.length == len(twin.items)
    if not twin.items:
        return
    lead = 1 + len(twin.columns)
    flat = [twin.all(part).flatten(0, lead - 1) for part in (0, 1)]
    observation, after = _read(storage[:])
    assert torch.equal(observation, twin.all(0))
    assert torch.equal(after, twin.all(1))
    size = len(storage)
    index = torch.randint(-size, size, (7,), generator=generator)
    if lead == 1:
        sampled = _read(storage.get(index))
        assert all(torch.equal(found, true[index]) for found, true in zip(sampled, flat, strict=True))
    else:
        where = torch.unravel_index(index % size, storage.shape)
        sampled = _read(storage.get(tuple(where)))
        assert all(torch.equal(found, true[index]) for found, true in zip(sampled, flat, strict=True))
    leaf = storage.read_leaf(("next", "observation", "a"), torch.tensor([0, -1]))
    assert torch.equal(leaf, twin.all(1)[[0, -1]][..., 0])
    assert _table(storage).kept_aside == twin.aside()


OPERATIONS = st.lists(
    st.tuples(
        st.sampled_from(
            ["extend", "extend", "add", "set", "one", "many", "empty", "state", "plain", "pickle"]
        ),
        st.integers(0, 2**16),
    ),
    max_size=12,
)


@pytest.mark.parametrize("columns", [(), (2,), (2, 2)])
@pytest.mark.parametrize("kind", ["memory", "shared", "memmap"])
@settings(max_examples=50, deadline=None)
@given(rows=st.integers(1, 6), operations=OPERATIONS, seed=st.integers(0, 2**16))
def test_every_next_observation_is_the_true_one(
    kind: str,
    columns: tuple[int, ...],
    rows: int,
    operations: list[tuple[str, int]],
    seed: int,
) -> None:
    generator = torch.Generator().manual_seed(seed)
    ndim = 1 + len(columns)
    capacity = rows * torch.Size(columns).numel()

    def fresh(derive: bool = True) -> LazyTensorStorage:
        chosen = "derive" if derive else None
        if kind == "memmap":
            return LazyMemmapStorage(capacity, ndim=ndim, next_observation=chosen)
        return LazyTensorStorage(capacity, ndim=ndim, shared_init=kind == "shared", next_observation=chosen)

    storage, twin = fresh(), Twin(rows, columns)
    last = torch.zeros(*columns, 2, dtype=torch.int64)
    for operation, number in operations:
        writer = RoundRobinWriter()
        writer.register_storage(storage)
        count = number % (2 * rows + 2) if operation == "extend" else 1
        observation = torch.randint(FEW, (count, *columns, 2), generator=generator)
        after = torch.randint(FEW, observation.shape, generator=generator)
        if operation in ("extend", "add"):
            for step in range(count):  # steps follow each other, but for some ends
                if number % 3:
                    observation[step] = last
                last = after[step].clone()
            slots = [(storage.log.cursor + step) % rows for step in range(count)]
            if operation == "add":
                writer.add(_data(observation[0], after[0], len(columns)))
            else:
                writer.extend(_data(observation, after, ndim))
            for slot, first, second in zip(slots, observation, after, strict=True):
                twin.put(slot, first, second)
        elif operation == "set":
            slot = number % min(len(twin.items) + 1, rows)
            storage.set(slot, _data(observation[0], after[0], len(columns)))
            twin.put(slot, observation[0], after[0])
        elif operation == "empty":
            storage.empty()
            twin.items.clear()
        elif twin.items and operation == "one":
            slot = number % len(twin.items)
            storage[slot] = _data(observation[0], after[0], len(columns))
            twin.put(slot, observation[0], after[0])
        elif twin.items and operation == "many":
            index = torch.randint(len(twin.items), (4,), generator=generator)
            observation = torch.randint(FEW, (4, *columns, 2), generator=generator)
            after = torch.randint(FEW, (4, *columns, 2), generator=generator)
            storage[index] = _data(observation, after, ndim)
            for slot, first, second in zip(index.tolist(), observation, after, strict=True):
                twin.put(slot, first, second)
        elif operation in ("state", "plain"):
            state = storage.state_dict()
            storage = fresh(derive=operation == "state")
            storage.load_state_dict(state)
            if operation == "plain":
                if twin.items:
                    assert torch.equal(_read(storage[:])[1], twin.all(1))
                plain, storage = storage, fresh()
                storage.load_state_dict(plain.state_dict())
        elif operation == "pickle" and kind != "shared":
            copy = pickle.loads(pickle.dumps(storage))
            if kind == "memory":
                storage = copy
            else:
                _check(copy, twin, generator)
        _check(storage, twin, generator)


def test_an_atari_shaped_run_takes_half() -> None:
    frames, episode, steps = (4, 84, 84), 100, 2530
    run = torch.randint(256, (steps + 1, *frames), dtype=torch.uint8)
    after = run[1:].clone()
    ends = torch.arange(steps) % episode == episode - 1
    after[ends] = 255 - after[ends]  # the true last observation, which no step has as its own
    data = TensorDict({"observation": run[:-1], "next": {"observation": after, "done": ends}}, [steps])
    storage = LazyTensorStorage(2000, next_observation="derive")
    writer = RoundRobinWriter()
    writer.register_storage(storage)
    for start in range(0, steps, 50):
        writer.extend(data[start : start + 50])
    full = 2 * run[0].numel() * 2000
    assert _table(storage).kept_aside == 21  # 20 ends, and the newest step
    assert storage.stored_bytes() < 0.52 * full
    state = storage.state_dict()
    saved = sum(leaf.numel() for leaf in (*state["data"], *state["next"]["aside"]) if leaf is not None)
    assert saved < 0.52 * full
    index = torch.randint(2000, (500,))
    batch = storage.get(index)
    step = (index - steps % 2000) % 2000 + steps - 2000
    assert torch.equal(batch["observation"], data["observation"][step])
    assert torch.equal(batch["next", "observation"], after[step])


def test_a_lazy_storage_keeps_what_it_was_given_in_a_file(tmp_path: Path) -> None:
    storage = LazyMemmapStorage(10, scratch_dir=tmp_path, next_observation="derive")
    storage.set(range(3), _data(torch.ones(3, 2), torch.ones(3, 2), 1))
    assert torch.equal(_read(storage[:])[1], torch.ones(3, 2))
    again = LazyMemmapStorage(10, scratch_dir=tmp_path, next_observation="derive", existsok=True)
    again.set(range(2), _data(torch.zeros(2, 2), torch.ones(2, 2), 1))
    assert torch.equal(_read(again[:])[1], torch.ones(2, 2))
    with pytest.raises(ValueError, match="describes other items"):
        LazyMemmapStorage(10, scratch_dir=tmp_path, existsok=True).set(
            range(3), _data(torch.ones(3, 2), torch.ones(3, 2), 1)
        )


def test_nan_and_what_is_written_from_views_of_the_storage_are_kept() -> None:
    storage = LazyTensorStorage(4, next_observation="derive")
    nan = torch.tensor([float("nan"), 1.0, -0.0, 2.0])
    data = TensorDict({"observation": nan, "next": {"observation": nan.roll(-1)}}, [4])
    storage.set(range(4), data)
    assert (
        storage[:]["next", "observation"].view(torch.int32).tolist()
        == nan.roll(-1).view(torch.int32).tolist()
    )
    assert _table(storage).kept_aside == 0
    own = storage.read_leaf(("observation",), slice(None))
    storage[:] = TensorDict({"observation": own.flip(0), "next": {"observation": own}}, [4])
    assert storage[:]["next", "observation"].view(torch.int32).tolist() == nan.view(torch.int32).tolist()


def test_new_keys_become_columns_but_observations_do_not() -> None:
    storage = LazyTensorStorage(4, next_observation="derive")
    data = _data(torch.ones(2, 2), torch.zeros(2, 2), 1)
    storage.set(range(2), data)
    with pytest.warns(UserWarning, match="extra"):
        storage.set(range(2, 4), data.clone().set("extra", torch.ones(2)))
    assert storage[:]["extra"].tolist() == [0, 0, 1, 1]
    assert torch.equal(_read(storage[:])[1], torch.zeros(4, 2))
    late = data.clone().set("extra", torch.ones(2))
    late["observation", "c"] = torch.ones(2)
    late["next", "observation", "c"] = torch.ones(2)
    with pytest.raises(ValueError, match="from the start"):
        storage.set(range(2), late)


@pytest.mark.parametrize("break_it", ["missing", "dtype", "shape"])
def test_data_that_one_cannot_be_made_of_the_other_is_refused(break_it: str) -> None:
    after = {
        "missing": {"reward": torch.ones(2)},
        "dtype": {"observation": torch.ones(2, 3).double()},
        "shape": {"observation": torch.ones(2, 4)},
    }[break_it]
    storage = LazyTensorStorage(4, next_observation="derive")
    with pytest.raises(ValueError, match="observation"):
        storage.set(range(2), TensorDict({"observation": torch.ones(2, 3), "next": after}, [2]))
    assert not storage.initialized


def test_what_cannot_be_done_says_so() -> None:
    with pytest.raises(ValueError, match="'derive'"):
        LazyTensorStorage(4, next_observation="shift")
    with pytest.raises(ValueError, match="meta"):
        LazyTensorStorage(4, next_observation="derive", device="meta")
    storage = LazyTensorStorage(4, next_observation="derive")
    storage.set(range(2), _data(torch.ones(2, 2), torch.zeros(2, 2), 1))
    with pytest.raises(RuntimeError, match="copy"):
        storage.view()
    with pytest.raises(IndexError, match="2 item"):
        storage.get(torch.tensor([2]))
    with pytest.raises(IndexError):
        storage.read_leaf(("next", "observation", "a"), torch.tensor([2]))


def test_a_damaged_state_is_refused_and_changes_nothing() -> None:
    storage, other = (LazyTensorStorage(4, next_observation="derive") for _ in range(2))
    storage.set(range(3), _data(torch.ones(3, 2), torch.zeros(3, 2), 1))
    other.set(range(2), _data(torch.ones(2, 2), torch.ones(2, 2), 1))
    for place in ([1, 2, 3], [2, 2, 3], [2, 3, 1], [0, 2, 3], [2, 3, 9]):
        state = storage.state_dict()
        state["next"]["place"] = torch.tensor(place, dtype=torch.int32)
        for target in (other, LazyTensorStorage(4)):
            with pytest.raises(ValueError, match="damaged"):
                target.load_state_dict(state)
    assert torch.equal(_read(other[:])[1], torch.ones(2, 2))


def test_nothing_is_written_when_there_is_no_memory_for_what_must_be_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    storage = LazyTensorStorage(300, next_observation="derive")
    data = TensorDict(
        {"observation": torch.zeros(200, 3), "next": {"observation": torch.ones(200, 3)}}, [200]
    )
    storage.set(range(10), data[:10])
    table = _table(storage)

    def refuse(wanted: int, what: str) -> None:
        raise MemoryError(f"{what} needs {wanted}")

    monkeypatch.setattr(table._arena, "check", refuse)
    with pytest.raises(MemoryError, match="next observations"):
        storage.set(range(10, 210), data)
    assert len(storage) == 10
    assert torch.equal(storage[:]["next", "observation"], torch.ones(10, 3))
    monkeypatch.undo()
    storage.set(range(10, 210), data)
    assert table.kept_aside == 210
