"""What a batch costs does not grow with what is stored: counted, not timed. Nor do threads change batches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tensordict import TensorDict
from torch import Tensor

from reference.storage import Key, PlainStorage
from replaybank.buffers.tensordict import TensorDictReplayBuffer
from replaybank.samplers.base import Sampler
from replaybank.samplers.prioritized import PrioritizedSampler
from replaybank.samplers.prioritized_slice import PrioritizedSliceSampler
from replaybank.samplers.slice import SliceSampler
from replaybank.samplers.slice_without_replacement import SliceSamplerWithoutReplacement
from replaybank.storages import LazyTensorStorage
from replaybank.trajectories.index import TrajectoryIndex
from replaybank.weights.sum_tree import SumTree
from sampler_contracts import BATCH, SAMPLERS, SamplerCase

EPISODE, LENGTH = 20, 5


class Counting(PlainStorage):
    """Counts the values that are read of it."""

    read = 0

    def read_leaf(self, key: Key, rows: Tensor | slice) -> Tensor:
        value = super().read_leaf(key, rows)
        self.read += value.numel()
        return value


def steps(first: int, count: int, columns: tuple[int, ...]) -> dict[Key, Tensor]:
    number = first + torch.arange(count)
    done = (number % EPISODE == EPISODE - 1).reshape(count, *[1 for _ in columns], 1)
    return {("next", "done"): done.expand(count, *columns, 1).clone()}


SLICES: list[Callable[[int], Sampler]] = [
    lambda n: SliceSampler(slice_len=LENGTH, truncated_key=None),
    lambda n: SliceSamplerWithoutReplacement(slice_len=LENGTH, truncated_key=None),
    lambda n: PrioritizedSliceSampler(n, 0.7, 0.5, slice_len=LENGTH, truncated_key=None),
    lambda n: PrioritizedSliceSampler(
        n, 0.7, 0.5, slice_len=LENGTH, truncated_key=None, strict_length=False, span=(0, 2)
    ),
]


@pytest.mark.parametrize("rows", [1000, 16_000])
@pytest.mark.parametrize("columns", [(), (3,)])
@pytest.mark.parametrize("make", SLICES)
def test_slices_read_the_end_signals_of_what_was_written_and_nothing_else(
    make: Callable[[int], Sampler], columns: tuple[int, ...], rows: int
) -> None:
    width = torch.Size(columns).numel()
    storage, sampler = Counting(rows, columns), make(rows * width)
    storage.extend(steps(0, rows - 10, columns))
    sampler.sample(storage, 10 * LENGTH)
    written = rows - 10
    for k in range(40):  # past the end of the storage and on
        storage.read = 0
        storage.extend(steps(written, 1 + k % 7, columns))
        written += 1 + k % 7
        for _ in range(2):
            sampler.sample(storage, 10 * LENGTH)
        assert storage.read == (1 + k % 7) * width
        if isinstance(sampler, PrioritizedSliceSampler):
            sampler.update_priority(torch.arange(50) * 7, torch.rand(50), storage=storage)
            sampler.sample(storage, 10 * LENGTH)
            assert storage.read == (1 + k % 7) * width


@pytest.mark.parametrize("rows", [1000, 16_000])
def test_prioritized_slices_look_at_the_starts_that_a_write_concerns_and_no_others(
    rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked: dict[str, int] = {"starts": 0, "weights": 0}
    starts, select, fill = TrajectoryIndex.starts, SumTree.select, SumTree.fill

    def counted_starts(self: Any, *args: Any, **options: Any) -> None:
        looked["starts"] += options["count"]
        starts(self, *args, **options)

    def counted_select(self: Any, source: Any, mask: Any, start: int, count: int) -> None:
        looked["weights"] += count
        select(self, source, mask, start, count)

    def counted_fill(self: Any, start: int, count: int, weight: float) -> None:
        looked["weights"] += count
        fill(self, start, count, weight)

    monkeypatch.setattr(TrajectoryIndex, "starts", counted_starts)
    monkeypatch.setattr(SumTree, "select", counted_select)
    monkeypatch.setattr(SumTree, "fill", counted_fill)
    storage = PlainStorage(rows)
    sampler = PrioritizedSliceSampler(
        rows, 0.7, 0.5, slice_len=LENGTH, truncated_key=None, max_priority_within_buffer=True
    )
    storage.extend(steps(0, rows, ()))
    sampler.sample(storage, 50)
    written = rows
    for k in range(40):
        looked.update(starts=0, weights=0)
        count = 1 + k % 7
        storage.extend(steps(written, count, ()))
        written += count
        for _ in range(3):
            sampler.sample(storage, 50)
        # Those written, the L before them and the one behind are looked at and taken over; what is written
        # is cleared and gets a weight before.
        assert looked["starts"] == count + LENGTH + 1
        assert looked["weights"] == 3 * count + LENGTH + 1


@pytest.mark.parametrize("columns", [(), (3,)])
def test_a_prioritized_batch_gives_weights_to_new_items_only(
    columns: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    width, filled = torch.Size(columns).numel(), []
    fill = SumTree.fill

    def counted(self: Any, start: int, count: int, weight: float) -> None:
        filled.append(count)
        fill(self, start, count, weight)

    storage, sampler = PlainStorage(5000, columns), PrioritizedSampler(5000 * width, 0.7, 0.5)
    storage.extend(steps(0, 5000, columns))
    sampler.sample(storage, 50)
    monkeypatch.setattr(SumTree, "fill", counted)
    monkeypatch.setattr(SumTree, "set_leaves", None)
    for k in range(20):
        storage.extend(steps(0, 1 + k, columns))
        for _ in range(3):
            sampler.sample(storage, 50)
            sampler.update_priority(torch.arange(50), torch.rand(50), storage=storage)
        assert sum(filled) == (1 + k) * width
        filled.clear()


# ---- threads


@pytest.mark.parametrize("case", SAMPLERS, ids=lambda case: case.name)
def test_the_number_of_threads_does_not_show_in_batches(case: SamplerCase) -> None:
    def pixels(number: Tensor) -> Tensor:
        """So many that several threads copy them."""
        return (number[:, None] * 7 + torch.arange(150_000)).to(torch.uint8)

    def batches(threads: int) -> list[dict[str, Any]]:
        torch.set_num_threads(threads)
        buffer = TensorDictReplayBuffer(
            storage=LazyTensorStorage(60),
            sampler=case.make(),
            batch_size=BATCH,
            generator=torch.Generator().manual_seed(3),
        )
        found = []
        for k in range(3):
            number = torch.arange(30 * k, 30 * k + 30)
            data = {"number": number, "episode": number // 5, "pixels": pixels(number)}
            buffer.extend(TensorDict({**data, "next": {"done": number % 5 == 4}}, [30]))
            for _ in range(2):
                sample = buffer.sample()
                assert torch.equal(sample.pop("pixels"), pixels(sample["number"]))
                found.append({str(key): sample[key].tolist() for key in sample.keys(True, True)})
        return found

    before = torch.get_num_threads()
    try:
        first = batches(1)
        for threads in (2, 4):
            assert batches(threads) == first
    finally:
        torch.set_num_threads(before)
