"""An ensemble of a prioritized sampler and two that run out: any order of writes, samples, saves, loads."""

from __future__ import annotations

import copy
import pickle
import tempfile
from itertools import accumulate
from typing import Any

import pytest
import torch
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from replaybank.samplers import PrioritizedSampler, SamplerEnsemble, SamplerWithoutReplacement
from replaybank.storages import LazyTensorStorage, StorageEnsemble
from sampler_machine import run

PARTS = 3


class Ensemble(RuleBasedStateMachine):
    """Beside it, what each part holds, what is left of its pass, its weights, and which have run out."""

    @initialize(rows=st.integers(1, 6), seed=st.integers(0, 2**31))
    def start(self, rows: int, seed: int) -> None:
        self.rows = rows
        self.storages = [LazyTensorStorage(rows) for _ in range(PARTS)]
        self.storage = StorageEnsemble(*self.storages)
        self.sampler = self.new_sampler()
        self.sampler.generator = self.generator = torch.Generator().manual_seed(seed)
        self.values: list[list[int]] = [[] for _ in range(PARTS)]
        self.cursors = [0] * PARTS
        self.weights: list[float] = []
        self.largest = 1.0
        self.left: list[frozenset[int]] = [frozenset()] * PARTS
        self.spent: set[int] = set()
        self.ran_out = False
        self.p: list[float] | None = None
        self.count: int | None = None

    def new_sampler(self) -> SamplerEnsemble:
        return SamplerEnsemble(
            PrioritizedSampler(self.rows, 1.0, 1.0, eps=0.0, dtype=torch.float64),
            SamplerWithoutReplacement(),
            SamplerWithoutReplacement(),
        )

    @rule(part=st.integers(0, PARTS - 1), count=st.integers(1, 6))
    def write(self, part: int, count: int) -> None:
        for value in range(min(count, self.rows)):
            at, number = self.cursors[part], part * 1000 + value
            self.storages[part].set(at, torch.tensor(number))
            grows = at == len(self.values[part])
            if grows:
                self.values[part].append(number)
                self.left[part] = frozenset()  # another number of items begins a new pass
            else:
                self.values[part][at] = number
            if part == 0:
                self.weights[at : at + 1] = [self.default()]
            self.cursors[part] = (at + 1) % self.rows

    def default(self) -> float:
        return self.largest if self.seen else 1.0

    seen = False

    @rule(p=st.one_of(st.none(), st.lists(st.sampled_from([0.0, 1.0, 3.0]), min_size=PARTS, max_size=PARTS)))
    def set_p(self, p: list[float] | None) -> None:
        if p is not None and not any(p):
            with pytest.raises(ValueError, match="not all of them 0"):
                self.sampler.p = p
            return
        self.sampler.p = self.p = p

    @rule(count=st.one_of(st.none(), st.integers(1, 4)))
    def set_count(self, count: int | None) -> None:
        self.sampler.num_buffer_sampled = self.count = count

    @rule(each=st.integers(1, 4))
    def sample(self, each: int) -> None:
        n_parts = self.count or PARTS
        state = self.generator.get_state()
        chances = self.p or [1.0] * PARTS
        if self.p is None:
            ids = torch.randint(PARTS, (n_parts,), generator=self.generator).tolist()
        else:
            up_to = list(accumulate(chances))
            masses = (torch.rand(n_parts, generator=self.generator, dtype=torch.float64) * up_to[-1]).tolist()
            ids = [next(k for k in range(PARTS) if chances[k] and mass < up_to[k] + 1e-9) for mass in masses]
        self.generator.set_state(state)
        if any(not self.values[k] for k in ids):
            with pytest.raises(RuntimeError, match=r"^Cannot sample from an empty storage"):
                self.sampler.sample(self.storage, n_parts * each)
            self.adopt()
            return
        index, info = self.sampler.sample(self.storage, n_parts * each)
        if self.ran_out:
            self.spent, self.ran_out = set(), False
        assert index["buffer_ids"].tolist() == ids
        parts = index["index"].unbind()
        least = min(self.weights, default=1.0)
        for number, items, importance in zip(
            ids, parts, info["priority_weight"].unbind() if 0 in ids else parts, strict=True
        ):
            assert all(0 <= item < len(self.values[number]) for item in items.tolist())
            if number == 0:
                assert importance.tolist() == pytest.approx([least / self.weights[k] for k in items.tolist()])
                continue
            left = self.left[number] or frozenset(range(len(self.values[number])))
            assert len(items) == len(set(items.tolist())) == min(each, len(left))
            assert set(items.tolist()) <= left
            self.left[number] = left - frozenset(items.tolist())
            if not self.left[number]:
                self.spent.add(number)
        self.ran_out = self.spent == {1, 2}
        assert self.sampler.ran_out == self.ran_out
        self.last = index, self.storages[0].log.total

    last: Any = None

    def adopt(self) -> None:
        """After an error nothing is said of where passes stand."""
        assert self.sampler.ran_out == self.ran_out or not self.sampler.ran_out

    @precondition(lambda self: self.last is not None and self.values[0])
    @rule(priority=st.sampled_from([0.5, 2.0, 8.0]))
    def update(self, priority: float) -> None:
        index, _ = self.last
        self.sampler.update_priority(index, priority, storage=self.storage)
        for number, items in zip(index["buffer_ids"].tolist(), index["index"].unbind(), strict=True):
            if number == 0:
                self.largest = max(self.largest, priority) if self.seen else priority
                self.seen = True
                for item in items.tolist():
                    self.weights[item] = priority

    @rule(way=st.sampled_from(["state", "disk", "pickle", "copy"]))
    def save_and_load(self, way: str) -> None:
        self.sampler.generator = None
        if way == "pickle":
            other = pickle.loads(pickle.dumps(self.sampler))
        elif way == "copy":
            other = copy.deepcopy(self.sampler)
        else:
            other = self.new_sampler()
            if way == "state":
                other.load_state_dict(self.sampler.state_dict())
            else:
                with tempfile.TemporaryDirectory() as folder:
                    self.sampler.dumps(folder)
                    other.loads(folder)
        self.sampler = other
        self.sampler.register_storage(self.storage)
        self.sampler.generator = self.generator

    @invariant()
    def weights_are_those_of_the_model(self) -> None:
        if not hasattr(self, "weights"):
            return
        assert len(self.sampler) == PARTS
        assert self.sampler.num_buffer_sampled == (self.count or PARTS)
        sampler = self.sampler[0]
        if self.values[0]:
            sampler.register_storage(self.storages[0])
            assert sampler.weights.tolist() == self.weights


def test_any_order_leaves_what_the_model_says() -> None:
    run(Ensemble)
