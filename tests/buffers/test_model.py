"""Storage, writer, sampler, buffer and checkpoint together, against a plain list."""

from __future__ import annotations

import shutil
import tempfile
from typing import Any, ClassVar

import pytest
import torch
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from tensordict import TensorDict

from replaybank.buffers.replay_buffer import ReplayBuffer
from replaybank.buffers.tensordict import TensorDictReplayBuffer
from replaybank.storages import LazyTensorStorage
from replaybank.storages.list import ListStorage
from replaybank.storages.memmap import LazyMemmapStorage


class Model:
    """What a round-robin buffer is: slots, a cursor, a count."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.slots: list[int] = []
        self.cursor = 0
        self.count = 0

    def write(self, values: list[int]) -> list[int]:
        places = []
        for value in values:
            if self.cursor == len(self.slots):
                self.slots.append(value)
            else:
                self.slots[self.cursor] = value
            places.append(self.cursor)
            self.cursor = (self.cursor + 1) % self.capacity
            self.count += 1
        return places

    def copy(self) -> Model:
        other = Model(self.capacity)
        other.slots, other.cursor, other.count = list(self.slots), self.cursor, self.count
        return other


class BufferMachine(RuleBasedStateMachine):
    """Any order of operations leaves what the list says."""

    kind: ClassVar[str]

    @initialize(capacity=st.integers(1, 12))
    def start(self, capacity: int) -> None:
        self.capacity = capacity
        self.model, self.next_value = Model(capacity), 0
        self.folder = tempfile.mkdtemp()
        self.buffer = self.new()
        self.saved: Model | None = None

    def new(self) -> ReplayBuffer:
        kwargs: dict[str, Any] = {"batch_size": 8, "generator": torch.Generator().manual_seed(0)}
        if self.kind == "list":
            return ReplayBuffer(storage=ListStorage(self.capacity), **kwargs)
        if self.kind == "memmap":
            return TensorDictReplayBuffer(storage=LazyMemmapStorage(self.capacity), **kwargs)
        return TensorDictReplayBuffer(storage=LazyTensorStorage(self.capacity), **kwargs)

    def fresh(self, count: int) -> list[int]:
        self.next_value += count
        return list(range(self.next_value - count, self.next_value))

    def data(self, values: list[int]) -> Any:
        n = torch.tensor(values, dtype=torch.int64)
        if self.kind == "list":
            return [torch.tensor([float(value), -float(value)]) for value in values]
        return TensorDict({"n": n, "in": {"minus": -n[:, None].float()}}, batch_size=len(values))

    def values(self, data: Any) -> list[int]:
        """What the items say; each leaf must say the same."""
        if self.kind == "list":
            assert torch.equal(data[:, 0], -data[:, 1])
            return [int(value) for value in data[:, 0]]
        assert torch.equal(data["n"], -data["in", "minus"][:, 0].long())
        return [int(value) for value in data["n"]]

    @rule()
    def add(self) -> None:
        values = self.fresh(1)
        assert [self.buffer.add(self.data(values)[0])] == self.model.write(values)

    @rule(count=st.integers(0, 30))
    def extend(self, count: int) -> None:
        values = self.fresh(count)
        assert self.buffer.extend(self.data(values)).tolist() == self.model.write(values)

    @precondition(lambda self: self.model.slots)
    @rule(draw=st.data())
    def overwrite(self, draw: st.DataObject) -> None:
        size = len(self.model.slots)
        places = draw.draw(st.lists(st.integers(0, size - 1), min_size=1, max_size=4, unique=True))
        values = self.fresh(len(places))
        self.buffer[places] = self.data(values)
        for place, value in zip(places, values, strict=True):
            self.model.slots[place] = value

    @precondition(lambda self: self.model.slots)
    @rule(size=st.integers(1, 20))
    def sample(self, size: int) -> None:
        self.buffer._batch_size = size
        batch, info = self.buffer.sample(return_info=True)
        assert self.values(batch) == [self.model.slots[place] for place in info["index"].tolist()]
        if self.kind != "list":
            assert torch.equal(batch["index"], info["index"])

    @rule(empty_write_count=st.booleans())
    def empty(self, empty_write_count: bool) -> None:
        self.buffer.empty(empty_write_count)
        self.model.slots.clear()
        self.model.cursor = 0
        if empty_write_count:
            self.model.count = 0

    @rule()
    def save(self) -> None:
        self.buffer.dumps(self.folder)
        self.saved = self.model.copy()

    @precondition(lambda self: self.saved is not None)
    @rule(anew=st.booleans())
    def load(self, anew: bool) -> None:
        assert self.saved is not None
        if anew:
            self.buffer = self.new()
        self.buffer.loads(self.folder)
        self.model = self.saved.copy()

    @rule()
    def load_own_state(self) -> None:
        state = self.buffer.state_dict()
        self.buffer = self.new()
        self.buffer.load_state_dict(state)

    @precondition(lambda self: hasattr(self, "buffer"))
    @invariant()
    def the_buffer_holds_what_the_list_holds(self) -> None:
        assert len(self.buffer) == len(self.model.slots)
        assert self.buffer.write_count == self.model.count
        assert self.buffer.writer.cursor == self.model.cursor
        if self.model.slots:
            assert self.values(self.buffer[:]) == self.model.slots
            assert self.values(self.buffer[[0, -1]]) == [self.model.slots[0], self.model.slots[-1]]
        with pytest.raises(IndexError):
            self.buffer[len(self.model.slots)]

    def teardown(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)


def machine(kind: str) -> Any:
    named: Any = type(f"{kind.title()}Machine", (BufferMachine,), {"kind": kind})
    made = named.TestCase
    made.settings = settings(
        max_examples=12 if kind == "memmap" else 30,
        stateful_step_count=20,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    return made


TestList = machine("list")
TestTensor = machine("tensor")
TestMemmap = machine("memmap")
