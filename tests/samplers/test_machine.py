"""Storage, writer, sampler and buffer together, driven in any order, against a model in plain Python."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from tensordict import TensorDict

from replaybank.buffers import TensorDictReplayBuffer
from replaybank.samplers import (
    RandomSampler,
    Sampler,
    SamplerWithoutReplacement,
    SliceSampler,
    SliceSamplerWithoutReplacement,
)
from replaybank.storages import LazyTensorStorage

SLICE = 3


@dataclass(frozen=True)
class Step:
    """One stored step, as the model knows it."""

    value: int
    trajectory: int
    step: int
    stamp: int
    """Number of the time row it was written in: consecutive steps of a column have consecutive stamps."""


class Machine(RuleBasedStateMachine):
    """Writes, overwrites, samples, empties, saves, loads; subclasses name the sampler and its promises."""

    make: Callable[[], Sampler]
    slices = False
    columns: tuple[int, ...] = ()

    @initialize(rows=st.integers(1, 12), seed=st.integers(0, 2**31))
    def start(self, rows: int, seed: int) -> None:
        self.width = self.columns[0] if self.columns else 1
        self.rows = rows
        self.buffer = self.new_buffer()
        self.buffer.set_rng(torch.Generator().manual_seed(seed))
        self.other = TensorDictReplayBuffer(storage=self.buffer.storage, dim_extend=0)
        self.slots: dict[tuple[int, int], Step] = {}
        self.cursor = 0
        self.written = 0
        self.values = 0
        # The trajectory that each column is in, and its next step.
        self.position = [(-1 - column, 0) for column in range(self.width)]
        self.trajectories = 0
        self.restarted = True

    def new_buffer(self) -> TensorDictReplayBuffer:
        storage = LazyTensorStorage(self.rows * self.width, ndim=1 + len(self.columns))
        return TensorDictReplayBuffer(storage=storage, sampler=type(self).make(), dim_extend=0)

    # --- writing

    def next_rows(self, count: int, ends: list[bool]) -> TensorDict:
        """Data for some time rows, entered into the model as it is made."""
        shape = (count, *self.columns)
        data = {name: torch.empty(count, self.width, dtype=torch.int64) for name in ("value", "traj", "step")}
        done = torch.zeros(count, self.width, dtype=torch.bool)
        for row in range(count):
            for column in range(self.width):
                trajectory, step = self.position[column]
                end = ends[(row + column) % len(ends)]
                self.values += 1
                item = Step(self.values, trajectory, step, self.written)
                self.slots[self.cursor, column] = item
                data["value"][row, column] = item.value
                data["traj"][row, column] = trajectory
                data["step"][row, column] = step
                done[row, column] = end
                if end:
                    self.trajectories += 1
                    self.position[column] = (self.trajectories * 10 + column, 0)
                else:
                    self.position[column] = (trajectory, step + 1)
            self.cursor = (self.cursor + 1) % self.rows
            self.written += 1
        return TensorDict(
            {name: values.view(shape) for name, values in data.items()}
            | {"next": TensorDict({"done": done.view(*shape, 1)}, batch_size=shape)},
            batch_size=shape,
        )

    @rule(
        count=st.integers(0, 30),
        ends=st.lists(st.booleans(), min_size=1, max_size=9),
        through_other=st.booleans(),
    )
    def extend(self, count: int, ends: list[bool], through_other: bool) -> None:
        buffer = self.other if through_other else self.buffer
        before = len(self.slots)
        index = buffer.extend(self.next_rows(count, ends))
        assert len(index) == count * self.width
        self.restarted |= len(self.slots) != before
        self.wrote(count > 0)

    @rule(end=st.booleans())
    def add(self, end: bool) -> None:
        before = len(self.slots)
        self.buffer.add(self.next_rows(1, [end])[0])
        self.restarted |= len(self.slots) != before
        self.wrote(True)

    @precondition(lambda self: self.slots)
    @rule(which=st.integers(0, 10**6))
    def overwrite(self, which: int) -> None:
        slot = sorted(self.slots)[which % len(self.slots)]
        old = self.slots[slot]
        self.values += 1
        self.slots[slot] = Step(self.values, old.trajectory, old.step, old.stamp)
        place: Any = slot if self.columns else slot[0]
        item = self.buffer[place]
        item["value"] = torch.tensor(self.values)
        self.buffer[place] = item
        self.wrote(True)

    @rule()
    def empty(self) -> None:
        self.buffer.empty()
        self.slots.clear()
        self.cursor = 0
        self.position = [(10**6 + self.values + column, 0) for column in range(self.width)]
        self.written += 2  # what comes does not continue what was
        self.restarted = True
        self.wrote(True)

    @precondition(lambda self: self.slots)
    @rule()
    def save_and_load(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            self.buffer.dumps(Path(folder) / "state")
            loaded = self.new_buffer()
            loaded.loads(Path(folder) / "state")
        self.buffer = loaded
        self.other = TensorDictReplayBuffer(storage=loaded.storage, dim_extend=0)

    # --- sampling

    @rule(size=st.integers(1, 8))
    def sample(self, size: int) -> None:
        size *= SLICE if self.slices else 1
        if not self.slots:
            with pytest.raises(RuntimeError, match=r"^Cannot sample from an empty storage\.$"):
                self.buffer.sample(size)
            return
        if self.slices and not self.eligible():
            with pytest.raises(RuntimeError, match="No trajectory is long enough"):
                self.buffer.sample(size)
            return
        batch, info = self.buffer.sample(size, return_info=True)
        index = info["index"]
        parts = index if isinstance(index, tuple) else (index,)
        places = [tuple(place) for place in torch.stack(parts, -1).tolist()]
        slots = [place if self.columns else (place[0], 0) for place in places]
        for slot, value in zip(slots, batch["value"].tolist(), strict=True):
            assert self.slots[slot].value == value
        self.check(slots, batch, size)

    def trajectories_now(self) -> list[list[tuple[int, int]]]:
        """The slots of every trajectory in the storage, each in time order."""
        found: dict[tuple[int, int], list[tuple[int, int]]] = {}
        for slot in sorted(self.slots, key=lambda slot: (slot[1], self.slots[slot].stamp)):
            found.setdefault((slot[1], self.slots[slot].trajectory), []).append(slot)
        return list(found.values())

    def eligible(self) -> list[list[tuple[int, int]]]:
        return [slots for slots in self.trajectories_now() if len(slots) >= SLICE]

    def check(self, slots: list[tuple[int, int]], batch: TensorDict, size: int) -> None:
        """What the sampler promises of a batch."""
        assert len(slots) == size

    def check_slices(self, slots: list[tuple[int, int]], batch: TensorDict) -> list[int]:
        """Slices are consecutive steps of one trajectory and column; the trajectory of each is given back."""
        assert len(slots) % SLICE == 0
        drawn = []
        for first in range(0, len(slots), SLICE):
            steps = [self.slots[slot] for slot in slots[first : first + SLICE]]
            assert len({slot[1] for slot in slots[first : first + SLICE]}) == 1
            assert len({step.trajectory for step in steps}) == 1
            assert [step.step for step in steps] == list(range(steps[0].step, steps[0].step + SLICE))
            assert [step.stamp for step in steps] == list(range(steps[0].stamp, steps[0].stamp + SLICE))
            drawn.append(steps[0].trajectory)
        truncated = batch["next", "truncated"].view(-1, SLICE)
        assert truncated[:, -1].all()
        assert not truncated[:, :-1].any()
        return drawn

    def wrote(self, something: bool) -> None:
        """Something was written."""

    @invariant()
    def length_is_that_of_the_model(self) -> None:
        assert len(self.buffer) == len(self.slots)


class Uniform(Machine):
    make = RandomSampler


class UniformColumns(Uniform):
    columns = (3,)


class OnceEach(Machine):
    """No item twice in a pass, and ``ran_out`` with its last batch."""

    make = SamplerWithoutReplacement

    def start_pass(self) -> None:
        self.left = set(self.slots)
        self.restarted = False

    def check(self, slots: list[tuple[int, int]], batch: TensorDict, size: int) -> None:
        if self.restarted or not self.left:
            self.start_pass()
        assert len(slots) == min(size, len(self.left))
        assert len(set(slots)) == len(slots)
        assert set(slots) <= self.left
        self.left -= set(slots)
        assert self.buffer.sampler.ran_out is (not self.left)


class OnceEachColumns(OnceEach):
    columns = (2,)


class Slices(Machine):
    make = staticmethod(lambda: SliceSampler(slice_len=SLICE))
    slices = True

    def check(self, slots: list[tuple[int, int]], batch: TensorDict, size: int) -> None:
        assert len(slots) == size
        self.check_slices(slots, batch)


class SlicesColumns(Slices):
    columns = (3,)


class SlicesByIdentity(Slices):
    make = staticmethod(lambda: SliceSampler(slice_len=SLICE, traj_key="traj"))
    columns = (2,)


class SliceOfEach(Machine):
    """No trajectory twice in a pass; any write starts another."""

    make = staticmethod(lambda: SliceSamplerWithoutReplacement(slice_len=SLICE))
    slices = True
    restart = True
    left: frozenset[int] = frozenset()

    def wrote(self, something: bool) -> None:
        self.restart |= something

    def check(self, slots: list[tuple[int, int]], batch: TensorDict, size: int) -> None:
        if self.restart or not self.left:
            self.left = frozenset(self.slots[trajectory[0]].trajectory for trajectory in self.eligible())
            self.restart = False
        drawn = self.check_slices(slots, batch)
        assert len(drawn) == min(size // SLICE, len(self.left))
        assert len(set(drawn)) == len(drawn)
        assert set(drawn) <= self.left
        self.left -= set(drawn)
        assert self.buffer.sampler.ran_out is (not self.left)


class SliceOfEachColumns(SliceOfEach):
    columns = (2,)


MACHINES = (
    Uniform,
    UniformColumns,
    OnceEach,
    OnceEachColumns,
    Slices,
    SlicesColumns,
    SlicesByIdentity,
    SliceOfEach,
    SliceOfEachColumns,
)


@pytest.mark.parametrize("machine", MACHINES, ids=lambda machine: machine.__name__)
def test_any_order_of_writes_samples_saves_and_loads(machine: type[Machine]) -> None:
    class Case(machine.TestCase):  # type: ignore[name-defined,misc]
        settings = settings(
            settings.get_profile(settings.get_current_profile_name())
            if settings.get_current_profile_name() == "deep"
            else settings(max_examples=20, stateful_step_count=20, deadline=None)
        )

    Case().runTest()
