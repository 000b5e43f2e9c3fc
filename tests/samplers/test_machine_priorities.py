"""Any order of writes, updates, samples, saves and loads, for samplers with priorities, to the exact draw.

The model keeps priority + eps of every slot; the weight is that to the power of alpha. Compared are, after
every step, all weights, that of new items and the largest priority, and of every batch which items came, and
their importance.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import pytest
import torch
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule
from tensordict import TensorDict

from replaybank.samplers import PrioritizedSampler, PrioritizedSliceSampler
from sampler_machine import Machine, Slot, run

PRIORITIES = st.sampled_from([0.0, 1e-3, 0.25, 1.0, 4.0, 9.0, 1e4])
ALPHAS = st.sampled_from([0.5, 1.0, 2.0])
BETAS = st.sampled_from([0.0, 0.5, 1.0])


@dataclass
class Sample:
    """A batch as it was given out: where its items were, and which writes they came with."""

    data: TensorDict
    slots: list[Slot]
    stamps: list[int]
    total: int
    """Rows ever written to the storage then."""


class Prioritized(Machine):
    within = False
    stratified = False
    remembered = (*Machine.remembered, "base", "largest", "alpha", "beta", "pending")

    @initialize(
        rows=st.integers(1, 12),
        seed=st.integers(0, 2**31),
        alpha=ALPHAS,
        beta=BETAS,
        eps=st.sampled_from([0.0, 0.5]),
        in_tensor=st.booleans(),
    )
    def start(self, rows: int, seed: int, alpha: float, beta: float, eps: float, in_tensor: bool) -> None:
        self.alpha, self.beta, self.eps, self.in_tensor = alpha, beta, eps, in_tensor
        self.base: dict[Slot, float] = {}
        self.largest = -1.0
        self.pending: list[Slot] = []  # written through the other buffer, and not looked at yet
        self.samples: list[Sample] = []
        super().start(rows, seed)

    def new_sampler(self) -> Any:
        alpha = torch.tensor(self.alpha, dtype=torch.float64) if self.in_tensor else self.alpha
        return PrioritizedSampler(
            self.rows * self.width,
            alpha,
            self.beta,
            self.eps,
            torch.float64,
            max_priority_within_buffer=self.within,
            stratified=self.stratified,
        )

    # ---- the model

    def default(self) -> float:
        """Priority + eps of a new item."""
        if self.within and self.alpha > 0:
            return max([base for base in self.base.values() if base > 0], default=1.0 + self.eps)
        return (self.largest if self.largest >= 0 else 1.0) + self.eps

    def weight(self, slot: Slot) -> float:
        return float(self.base[slot] ** self.alpha)

    def fresh(self, slots: list[Slot], *, mine: bool) -> None:
        self.pending += slots
        if mine or not self.within:
            self.look()

    def look(self) -> None:
        """What the sampler does when it is asked anything: take in what was written."""
        for slot in self.pending:
            self.base.pop(slot, None)
        default = self.default()
        for slot in self.pending:
            self.base[slot] = default
        self.pending = []

    def number(self, slot: Slot) -> int:
        return slot[0] * self.width + slot[1]

    def slot(self, number: int) -> Slot:
        return divmod(number, self.width)

    def give(self, slots: list[Slot], priorities: list[float]) -> None:
        self.look()
        for slot, priority in zip(slots, priorities, strict=True):
            self.base[slot] = priority + self.eps
            self.largest = max(self.largest, priority)

    # ---- what a user does

    @rule(
        count=st.integers(1, 30), priorities=st.lists(PRIORITIES, min_size=1, max_size=7), take=st.booleans()
    )
    def extend_with_priorities(self, count: int, priorities: list[float], take: bool) -> None:
        start = self.cursor
        data = self.next_rows(count, [False, True, False])
        given = [priorities[k % len(priorities)] for k in range(count * self.width)]
        data["td_error"] = torch.tensor(given, dtype=torch.float64).view(data.batch_size)
        self.buffer.extend(data, update_priority=None if take else False)
        self.restarted = True
        self.fresh(self.slots_of(start, count), mine=True)
        if take:
            places = [
                ((start + row) % self.rows, column) for row in range(count) for column in range(self.width)
            ]
            self.give(places, given)
        self.wrote(True)

    def next_rows(self, count: int, ends: list[bool]) -> TensorDict:
        data = super().next_rows(count, ends)
        data["td_error"] = torch.full(data.batch_size, torch.nan, dtype=torch.float64)
        return data

    @rule(
        count=st.integers(0, 30),
        ends=st.lists(st.booleans(), min_size=1, max_size=9),
        through_other=st.booleans(),
    )
    def extend(self, count: int, ends: list[bool], through_other: bool) -> None:
        buffer = self.other if through_other else self.buffer
        start = self.cursor
        index = buffer.extend(self.next_rows(count, ends), update_priority=False)
        assert len(index) == count * self.width
        self.fresh(self.slots_of(start, count), mine=not through_other)

    @rule(end=st.booleans(), priority=PRIORITIES)
    def add(self, end: bool, priority: float) -> None:
        start = self.cursor
        data = self.next_rows(1, [end])[0]
        data["td_error"].fill_(priority)
        self.buffer.add(data)
        slots = self.slots_of(start, 1)
        self.fresh(slots, mine=True)
        self.give(slots, [priority] * self.width)

    @precondition(lambda self: self.slots)
    @rule(draw=st.data(), count=st.integers(0, 6), form=st.sampled_from(["numbers", "rows", "mark", "slice"]))
    def update(self, draw: st.DataObject, count: int, form: str) -> None:
        numbers = draw.draw(
            st.lists(st.integers(-1, len(self.slots) - 1), min_size=count, max_size=count), label="items"
        )
        priorities = draw.draw(st.lists(PRIORITIES, min_size=count, max_size=count), label="priorities")
        if form == "slice":
            numbers = list(range(len(self.slots)))[count::3]
            priorities = [1.0] * len(numbers)
        kept = [(self.slot(n), p) for n, p in zip(numbers, priorities, strict=True) if n >= 0]
        if form == "mark":
            self.look()
            default = self.default()
            self.buffer.mark_update(torch.tensor(numbers, dtype=torch.int64))
            for slot, _ in kept:
                self.base[slot] = default
            return
        index: Any = torch.tensor(numbers, dtype=torch.int64)
        if form == "slice":
            index = slice(count, None, 3)
        elif form == "rows" and count:
            rows = [self.slot(n) if n >= 0 else (-1, -1) for n in numbers]
            index = torch.tensor(rows)[:, : 2 if self.columns else 1]
        self.buffer.update_priority(index, priorities)
        self.give([slot for slot, _ in kept], [priority for _, priority in kept])

    @precondition(lambda self: self.samples)
    @rule(draw=st.data(), which=st.integers(0, 10**6), with_priority=st.booleans())
    def update_sample(self, draw: st.DataObject, which: int, with_priority: bool) -> None:
        """Priorities for a batch that was drawn some time ago: what was overwritten since keeps its own."""
        sample = self.samples[which % len(self.samples)]
        data, count = sample.data.copy(), len(sample.slots)
        priorities = draw.draw(st.lists(PRIORITIES, min_size=count, max_size=count), label="priorities")
        there = [
            (slot, priority)
            for slot, stamp, priority in zip(sample.slots, sample.stamps, priorities, strict=True)
            if slot in self.slots and self.slots[slot].stamp == stamp
        ]
        if with_priority:
            data["td_error"] = torch.tensor(priorities, dtype=torch.float64)
            self.buffer.update_tensordict_priority(data)
            self.give([slot for slot, _ in there], [priority for _, priority in there])
            return
        data = data.exclude("td_error")
        self.look()
        default = self.default()
        self.buffer.update_tensordict_priority(data)
        for slot, _ in there:
            self.base[slot] = default

    @rule(alpha=st.one_of(ALPHAS, st.just(0.0)), beta=BETAS, in_place=st.booleans())
    def anneal(self, alpha: float, beta: float, in_place: bool) -> None:
        self.look()
        if alpha == 0 != self.alpha:
            self.base = dict.fromkeys(self.base, 1.0)
        elif self.alpha == 0 != alpha:  # nobody knows what they were: they count with the maximum
            self.base = dict.fromkeys(self.base, (self.largest if self.largest >= 0 else 1.0) + self.eps)
        self.alpha, self.beta = alpha, beta
        sampler: Any = self.buffer.sampler
        if in_place and isinstance(sampler.alpha, torch.Tensor):
            sampler.alpha.fill_(alpha)
        else:
            sampler.alpha = alpha
        sampler.beta = beta

    @rule()
    def empty(self) -> None:
        super().empty()
        self.base, self.largest, self.pending = {}, -1.0, []

    def loaded(self) -> None:
        # Stamps of a history that was given up mean nothing; those of the state's own last moment do.
        total = self.buffer.storage.log.total
        self.samples = [sample for sample in self.samples if sample.total == total]

    # ---- drawing

    def chances(self, length: int) -> dict[Slot, tuple[float, int]]:
        """Of every item that may come, in item order: its weight, and how many steps come with it."""
        return {slot: (self.weight(slot), 1) for slot in sorted(self.slots)}

    @rule(size=st.integers(1, 8), length=st.integers(1, 4))
    def sample(self, size: int, length: int = 1) -> None:
        if not self.slots:
            with pytest.raises(RuntimeError, match=r"^Cannot sample from an empty storage\.$"):
                self.buffer.sample(size)
            return
        self.look()
        length = self.ask_for(length)
        chances = self.chances(length)
        weights = [weight for weight, _ in chances.values()]
        if not any(weights):
            with pytest.raises(
                RuntimeError, match="All weights are 0" if weights else "No trajectory is long"
            ):
                self.buffer.sample(size * length)
            return
        generator = self.buffer.generator
        assert generator is not None
        state = generator.get_state()
        uniforms = torch.rand(size, dtype=torch.float64, generator=generator).tolist()
        generator.set_state(state)
        data, info = self.buffer.sample(size * length, return_info=True)
        index = info["index"]
        parts = index if isinstance(index, tuple) else (index,)
        places = [tuple(place) for place in torch.stack(parts, -1).tolist()]
        drawn: list[Slot] = [place if self.columns else (place[0], 0) for place in places]
        assert data["value"].tolist() == [self.slots[slot].value for slot in drawn]

        up_to, order = list(accumulate(weights)), list(chances)
        least = min(weight for weight in weights if weight > 0)
        importance = info["priority_weight"].tolist()
        self.check_steps(drawn, data, [chances[slot][1] for slot in self.firsts(drawn, chances)])
        at = 0
        for k, uniform in enumerate(uniforms):
            mass = ((k + uniform) / size if self.stratified else uniform) * up_to[-1]
            slot = drawn[at]
            place = order.index(slot)
            below = up_to[place - 1] if place else 0.0
            assert below * (1 - 1e-9) <= mass <= up_to[place] * (1 + 1e-9)
            weight, steps = chances[slot]
            assert weight > 0
            assert importance[at : at + steps] == pytest.approx(
                [(weight / least) ** -self.beta] * steps, rel=1e-9
            )
            at += steps
        assert at == len(drawn)
        stamps = [self.slots[slot].stamp for slot in drawn]
        self.samples.append(Sample(data, drawn, stamps, self.buffer.storage.log.total))
        del self.samples[:-4]

    def ask_for(self, length: int) -> int:
        """Prepare the sampler for slices of so many steps; how many a batch counts for each."""
        return 1

    def firsts(self, drawn: list[Slot], chances: dict[Slot, tuple[float, int]]) -> list[Slot]:
        """The first step of each slice of a batch."""
        found, at = [], 0
        while at < len(drawn):
            found.append(drawn[at])
            at += chances[drawn[at]][1]
        return found

    def check_steps(self, drawn: list[Slot], data: TensorDict, lengths: list[int]) -> None:
        """That what follows the first step of each slice is its trajectory."""

    @invariant()
    def weights_are_those_of_the_model(self) -> None:
        if not hasattr(self, "base"):
            return
        sampler: Any = self.buffer.sampler
        self.look()
        weights = sampler.weights.tolist()
        assert weights == pytest.approx([self.weight(slot) for slot in sorted(self.slots)], rel=1e-9)
        assert sampler.default_priority == pytest.approx(self.default() ** self.alpha, rel=1e-9)
        if self.within and self.alpha > 0:
            assert sampler.max_priority == pytest.approx(self.default() - self.eps, rel=1e-9, abs=1e-9)
        else:
            assert sampler.max_priority == (self.largest if self.largest >= 0 else 1.0)


class PrioritizedColumns(Prioritized):
    columns = (3,)


class PrioritizedWithin(Prioritized):
    within = True


class PrioritizedWithinColumns(Prioritized):
    within = True
    columns = (2,)


class Stratified(Prioritized):
    stratified = True


class PrioritizedSlices(Prioritized):
    """The same for starts of slices, whose length changes from call to call."""

    slices = True
    strict = True
    right: bool | int = False

    def new_sampler(self) -> Any:
        alpha = torch.tensor(self.alpha, dtype=torch.float64) if self.in_tensor else self.alpha
        return PrioritizedSliceSampler(
            self.rows * self.width,
            alpha,
            self.beta,
            self.eps,
            torch.float64,
            num_slices=1,
            strict_length=self.strict,
            span=(False, self.right),
            max_priority_within_buffer=self.within,
        )

    def ask_for(self, length: int) -> int:
        if self.right is not True and length <= int(self.right):
            length = int(self.right) + 1
        sampler: Any = self.buffer.sampler
        sampler.num_slices, sampler.slice_len = None, length
        return length

    def chances(self, length: int) -> dict[Slot, tuple[float, int]]:
        needed = length - (length - 1 if self.right is True else int(self.right))
        allowed = {}
        for slots in self.trajectories_now():
            for k, slot in enumerate(slots):
                if len(slots) - k >= needed or (k == 0 and not self.strict):
                    allowed[slot] = (self.weight(slot), min(length, len(slots) - k))
        return {slot: allowed[slot] for slot in sorted(allowed)}

    def check_steps(self, drawn: list[Slot], data: TensorDict, lengths: list[int]) -> None:
        truncated, at = data["next", "truncated"].squeeze(-1).tolist(), 0
        for length in lengths:
            steps = [self.slots[slot] for slot in drawn[at : at + length]]
            assert len({slot[1] for slot in drawn[at : at + length]}) == 1
            assert [step.trajectory for step in steps] == [steps[0].trajectory] * length
            assert [step.stamp for step in steps] == list(range(steps[0].stamp, steps[0].stamp + length))
            assert truncated[at : at + length] == [False] * (length - 1) + [True]
            at += length


class PrioritizedSlicesColumns(PrioritizedSlices):
    columns = (2,)
    within = True


class PrioritizedSlicesShort(PrioritizedSlices):
    strict = False


class PrioritizedSlicesCut(PrioritizedSlices):
    right = True
    columns = (2,)


class PrioritizedSlicesCutByOne(PrioritizedSlices):
    right = 1
    strict = False


MACHINES = (
    Prioritized,
    PrioritizedColumns,
    PrioritizedWithin,
    PrioritizedWithinColumns,
    Stratified,
    PrioritizedSlices,
    PrioritizedSlicesColumns,
    PrioritizedSlicesShort,
    PrioritizedSlicesCut,
    PrioritizedSlicesCutByOne,
)


@pytest.mark.parametrize("machine", MACHINES, ids=lambda machine: machine.__name__)
def test_any_order_leaves_the_weights_and_draws_of_the_model(machine: type[Machine]) -> None:
    run(machine, examples=12, steps=15)
