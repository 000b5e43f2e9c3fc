"""Any history of a prioritized sampler, against a plain model."""

from __future__ import annotations

import math
import pickle

import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from reference.storage import PlainStorage
from replaybank.samplers.prioritized import PrioritizedSampler
from samplers.prioritized import extend, make, numbers


class Model(RuleBasedStateMachine):
    """A storage, a sampler and what a user does to them, beside a list of weights."""

    @initialize(
        rows=st.integers(1, 9),
        columns=st.sampled_from([(), (1,), (3,)]),
        within=st.booleans(),
        alpha=st.sampled_from([0.5, 1.0]),
    )
    def begin(self, rows: int, columns: tuple[int, ...], within: bool, alpha: float) -> None:
        self.storage = PlainStorage(rows, columns)
        self.width = math.prod(columns)
        self.alpha, self.within = alpha, within
        self.sampler = make(
            rows * self.width, alpha, eps=0.0, max_priority_within_buffer=within, dtype=torch.float64
        )
        self.sampler.register_storage(self.storage)
        self.raw: list[float | None] = [None] * (rows * self.width)
        self.largest = -1.0

    def default(self) -> float:
        if self.within:
            there = [p for p in self.raw if p is not None]
            return max(there) if there and max(there) > 0 else 1.0
        return self.largest if self.largest >= 0 else 1.0

    @rule(count=st.integers(1, 12))
    def write(self, count: int) -> None:
        rows, start = self.storage.rows, self.storage.log.cursor
        count = min(count, rows)
        extend(self.storage, count)
        written = [(start + k) % rows * self.width + c for k in range(count) for c in range(self.width)]
        for k in written:
            self.raw[k] = None
        new = self.default()
        for k in written:
            self.raw[k] = new
        self.sampler.extend(torch.tensor(written).reshape(-1, *([1] if self.width > 1 else [])))

    @precondition(lambda self: len(self.storage) > 0)
    @rule(data=st.data())
    def update(self, data: st.DataObject) -> None:
        n = len(self.storage)
        count = data.draw(st.integers(1, 5))
        index = data.draw(st.lists(st.integers(-1, n - 1), min_size=count, max_size=count))
        priority = data.draw(
            st.lists(st.sampled_from([0.0, 0.25, 1.0, 4.0, 9.0]), min_size=count, max_size=count)
        )
        self.sampler.update_priority(index, priority, storage=self.storage)
        for k, p in zip(index, priority, strict=True):
            if k >= 0:
                self.raw[k] = p
                self.largest = max(self.largest, p)

    @precondition(lambda self: len(self.storage) > 0)
    @rule(row=st.integers(0, 8))
    def replace(self, row: int) -> None:
        self.storage.replace(
            torch.tensor([row % self.storage.log.length]), {("x",): torch.ones(1, *self.storage.columns)}
        )

    @rule()
    def empty(self) -> None:
        self.storage.log.clear()
        self.sampler.empty()
        self.raw = [None] * len(self.raw)
        self.largest = -1.0

    @rule(way=st.sampled_from(["state", "pickle"]))
    def save_and_load(self, way: str) -> None:
        if way == "state":
            other = PrioritizedSampler(
                self.sampler.max_capacity,
                0.3,
                0.3,
                dtype=torch.float64,
                max_priority_within_buffer=self.within,
            )
            other.load_state_dict(self.sampler.state_dict())
        else:
            self.sampler.generator = None
            other = pickle.loads(pickle.dumps(self.sampler))
        self.sampler = other
        self.sampler.register_storage(self.storage)

    @rule(alpha=st.sampled_from([0.5, 1.0, 2.0]))
    def reweight(self, alpha: float) -> None:
        self.sampler.alpha = self.alpha = alpha

    @precondition(lambda self: len(self.storage) > 0)
    @rule()
    def sample(self) -> None:
        weights = [(p or 0.0) ** self.alpha for p in self.raw]
        if not any(weights):
            with pytest.raises(RuntimeError, match="All weights are 0"):
                self.sampler.sample(self.storage, 5)
            return
        index, info = self.sampler.sample(self.storage, 5)
        least = min(weight for weight in weights if weight)
        for k, importance in zip(numbers(self.storage, index), info["priority_weight"].tolist(), strict=True):
            assert weights[k] > 0
            assert importance == pytest.approx(least / weights[k])

    @invariant()
    def weights_are_those_of_the_model(self) -> None:
        if not hasattr(self, "storage") or not len(self.storage):
            return
        self.sampler._table.follow(self.storage)
        expected = [(p or 0.0) ** self.alpha for p in self.raw[: len(self.storage)]]
        assert self.sampler.weights.tolist() == pytest.approx(expected)
        assert not self.sampler._table.tree.leaves[len(self.storage) :].any()


Model.TestCase.settings = settings(max_examples=150, stateful_step_count=20, deadline=None)
TestAnyHistoryAgreesWithAPlainModel = Model.TestCase
