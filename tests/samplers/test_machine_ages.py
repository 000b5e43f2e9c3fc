"""Any order of writes, samples, saves and loads, for the samplers that heed when an item was written."""

from __future__ import annotations

from itertools import accumulate
from typing import Any

import pytest
import torch
from hypothesis import strategies as st
from hypothesis.stateful import rule
from tensordict import TensorDict

from replaybank.samplers import ConsumingSampler, StalenessAwareSampler
from sampler_machine import Machine, Slot, run


class Consuming(Machine):
    """Every item at most twice since it was written; what another buffer writes counts, too."""

    remembered = (*Machine.remembered, "uses")

    def new_sampler(self) -> Any:
        self.uses: dict[Slot, int] = getattr(self, "uses", {})
        return ConsumingSampler(2)

    def fresh(self, slots: list[Slot], *, mine: bool) -> None:
        self.uses.update(dict.fromkeys(slots, 2))

    @rule()
    def empty(self) -> None:
        super().empty()
        self.uses = {}

    @rule(size=st.integers(1, 8))
    def sample(self, size: int) -> None:
        if self.slots and not any(self.uses.values()):
            with pytest.raises(RuntimeError, match="items are used up"):
                self.buffer.sample(size)
            return
        super().sample(size)

    def check(self, slots: list[Slot], batch: TensorDict, size: int) -> None:
        available = [slot for slot, left in self.uses.items() if left]
        assert len(slots) == len(set(slots)) == min(size, len(available))
        assert set(slots) <= set(available)
        for slot in slots:
            self.uses[slot] -= 1
        assert self.buffer.sampler.ran_out is (not any(self.uses.values()))


class ConsumingColumns(Consuming):
    columns = (3,)


class Stale(Machine):
    """Draws are exactly those of the ages: the number of rows written since."""

    most: int | None = None
    decay = 1.0

    def new_sampler(self) -> Any:
        return StalenessAwareSampler(self.most, decay=self.decay)

    @rule(size=st.integers(1, 8))
    def sample(self, size: int) -> None:
        generator = self.buffer.generator
        assert generator is not None
        state = generator.get_state()
        self.uniforms = torch.rand(size, dtype=torch.float64, generator=generator).tolist()
        generator.set_state(state)
        super().sample(size)

    def check(self, slots: list[Slot], batch: TensorDict, size: int) -> None:
        assert len(slots) == size
        newest = sorted(
            {slot[0] for slot in self.slots}, key=lambda row: self.slots[row, 0].stamp, reverse=True
        )
        if self.most is not None:
            newest = newest[: self.most + 1]
        up_to = list(accumulate((1.0 + age) ** -self.decay for age in range(len(newest))))
        for slot, uniform in zip(slots, self.uniforms, strict=True):
            age, mass = newest.index(slot[0]), uniform * up_to[-1]
            assert (up_to[age - 1] if age else 0.0) * (1 - 1e-9) <= mass <= up_to[age] * (1 + 1e-9)


class StaleColumns(Stale):
    columns = (2,)
    most = 3
    decay = 0.5


class StaleNewest(Stale):
    most = 0


MACHINES = (Consuming, ConsumingColumns, Stale, StaleColumns, StaleNewest)


@pytest.mark.parametrize("machine", MACHINES, ids=lambda machine: machine.__name__)
def test_any_order_of_writes_samples_saves_and_loads(machine: type[Machine]) -> None:
    run(machine, examples=12, steps=15)
