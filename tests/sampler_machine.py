"""Storage, writer, sampler and buffer together, driven in any order, beside a model in plain Python.

``tests/samplers/test_machine*.py`` say for each sampler what it promises.
"""

from __future__ import annotations

import copy
import shutil
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
from replaybank.samplers import Sampler
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


Slot = tuple[int, int]
"""Row and column."""


class Machine(RuleBasedStateMachine):
    """Writes, overwrites, samples, empties, saves, loads; subclasses name the sampler and its promises."""

    make: Callable[[], Sampler]
    slices = False
    columns: tuple[int, ...] = ()
    remembered: tuple[str, ...] = ("slots", "cursor", "written", "position", "restarted")
    """What of the model a saved state brings back."""

    @initialize(rows=st.integers(1, 12), seed=st.integers(0, 2**31))
    def start(self, rows: int, seed: int) -> None:
        self.width = self.columns[0] if self.columns else 1
        self.rows = rows
        self.buffer = self.new_buffer()
        self.buffer.set_rng(torch.Generator().manual_seed(seed))
        self.other = TensorDictReplayBuffer(storage=self.buffer.storage, dim_extend=0)
        self.slots: dict[Slot, Step] = {}
        self.cursor = 0
        self.written = 0
        self.values = 0
        # The trajectory that each column is in, and its next step.
        self.position = [(-1 - column, 0) for column in range(self.width)]
        self.trajectories = 0
        self.restarted = True
        self.folder = Path(tempfile.mkdtemp())
        self.saved: dict[str, Any] | None = None

    def teardown(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)

    def new_buffer(self) -> TensorDictReplayBuffer:
        storage = LazyTensorStorage(self.rows * self.width, ndim=1 + len(self.columns))
        return TensorDictReplayBuffer(storage=storage, sampler=self.new_sampler(), dim_extend=0)

    def new_sampler(self) -> Sampler:
        return type(self).make()

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
        before, start = len(self.slots), self.cursor
        index = buffer.extend(self.next_rows(count, ends))
        assert len(index) == count * self.width
        self.restarted |= len(self.slots) != before
        self.fresh(self.slots_of(start, count), mine=not through_other)
        self.wrote(count > 0)

    def slots_of(self, start: int, count: int) -> list[Slot]:
        """The slots that a write of so many rows left new items in."""
        rows = [(start + k) % self.rows for k in range(count)][-self.rows :]
        return [(row, column) for row in rows for column in range(self.width)]

    @rule(end=st.booleans())
    def add(self, end: bool) -> None:
        before, start = len(self.slots), self.cursor
        self.buffer.add(self.next_rows(1, [end])[0])
        self.restarted |= len(self.slots) != before
        self.fresh(self.slots_of(start, 1), mine=True)
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
        self.loaded()

    @rule()
    def save(self) -> None:
        self.buffer.dumps(self.folder / "state")
        self.saved = copy.deepcopy({name: getattr(self, name) for name in self.remembered})

    @precondition(lambda self: self.saved is not None)
    @rule(anew=st.booleans())
    def load(self, anew: bool) -> None:
        """Go back to what was saved some time ago."""
        if anew:
            self.buffer = self.new_buffer()
            self.other = TensorDictReplayBuffer(storage=self.buffer.storage, dim_extend=0)
        self.buffer.loads(self.folder / "state")
        for name, value in copy.deepcopy(self.saved or {}).items():
            setattr(self, name, value)
        self.loaded()

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

    def trajectories_now(self) -> list[list[Slot]]:
        """The slots of every trajectory in the storage, each in time order."""
        found: dict[Slot, list[Slot]] = {}
        for slot in sorted(self.slots, key=lambda slot: (slot[1], self.slots[slot].stamp)):
            found.setdefault((slot[1], self.slots[slot].trajectory), []).append(slot)
        return list(found.values())

    def eligible(self) -> list[list[Slot]]:
        return [slots for slots in self.trajectories_now() if len(slots) >= SLICE]

    def check(self, slots: list[Slot], batch: TensorDict, size: int) -> None:
        """What the sampler promises of a batch."""
        assert len(slots) == size

    def check_slices(self, slots: list[Slot], batch: TensorDict) -> list[int]:
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

    def fresh(self, slots: list[Slot], *, mine: bool) -> None:
        """New items are in these slots, written through the buffer or another one."""

    def loaded(self) -> None:
        """A state has been loaded, and the model is what it was then."""

    @invariant()
    def length_is_that_of_the_model(self) -> None:
        assert len(self.buffer) == len(self.slots)


def run(machine: type[RuleBasedStateMachine], examples: int = 20, steps: int = 20) -> None:
    """Run a machine: a few short histories, or, with ``--hypothesis-profile=deep``, many long ones."""
    profile = settings.get_current_profile_name()

    class Case(machine.TestCase):  # type: ignore[name-defined,misc]
        settings = (
            settings.get_profile(profile)
            if profile == "deep"
            else settings(max_examples=examples, stateful_step_count=steps, deadline=None)
        )

    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # what is tiny is not worth another thread, which others may need
    try:
        Case().runTest()
    finally:
        torch.set_num_threads(threads)
