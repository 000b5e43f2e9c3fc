"""Any order of writes, samples, saves and loads, for samplers without priorities."""

from __future__ import annotations

import pytest
from tensordict import TensorDict

from replaybank.samplers import (
    RandomSampler,
    SamplerWithoutReplacement,
    SliceSampler,
    SliceSamplerWithoutReplacement,
)
from sampler_machine import SLICE, Machine, Slot, run


class Uniform(Machine):
    make = RandomSampler


class UniformColumns(Uniform):
    columns = (3,)


class OnceEach(Machine):
    """No item twice in a pass, and ``ran_out`` with its last batch."""

    make = SamplerWithoutReplacement
    remembered = (*Machine.remembered, "left")
    left: frozenset[Slot] = frozenset()

    def start_pass(self) -> None:
        self.left = frozenset(self.slots)
        self.restarted = False

    def check(self, slots: list[Slot], batch: TensorDict, size: int) -> None:
        if self.restarted or not self.left:
            self.start_pass()
        assert len(slots) == min(size, len(self.left))
        assert len(set(slots)) == len(slots)
        assert set(slots) <= self.left
        self.left -= frozenset(slots)
        assert self.buffer.sampler.ran_out is (not self.left)


class OnceEachColumns(OnceEach):
    columns = (2,)


class Slices(Machine):
    make = staticmethod(lambda: SliceSampler(slice_len=SLICE))
    slices = True

    def check(self, slots: list[Slot], batch: TensorDict, size: int) -> None:
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
    remembered = (*Machine.remembered, "restart", "left")
    restart = True
    left: frozenset[int] = frozenset()

    def wrote(self, something: bool) -> None:
        self.restart |= something

    def check(self, slots: list[Slot], batch: TensorDict, size: int) -> None:
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
    run(machine)
