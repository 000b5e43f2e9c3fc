"""The rate of a stream: what is counted, and when it ends."""

from __future__ import annotations

import itertools

import pytest

from memory_source import MemorySource, episode
from replaybank.datasets.openx.replay import OpenXExperienceReplay
from replaybank.datasets.openx.throughput import measure, peak_memory


def test_batches_are_counted_once_what_was_ready_is_taken_until_the_time_is_up() -> None:
    source = MemorySource([[episode(n, 5) for n in range(4)]])
    dataset = OpenXExperienceReplay("arm", source=source, num_workers=0)
    seconds = itertools.count()
    gone: list[float] = []
    measured = measure(dataset, 9.5, show=gone.append, clock=lambda: float(next(seconds)))
    # From the third batch on: two may have been ready. One tick more at the end of each epoch.
    assert gone == [1, 3, 4, 5, 6, 8, 9, 10]
    assert (measured.steps, measured.slices, measured.epochs) == (5 * 8, 8, 2)
    assert (measured.first, measured.seconds) == (1.0, 10.0)
    assert measured.size > 30 * 20 * 20 * 3 * 2
    assert measured.memory is None or 0 < measured.memory <= (peak_memory() or 0)


def test_a_dataset_that_ends_at_once_is_measured() -> None:
    dataset = OpenXExperienceReplay("arm", source=MemorySource([[episode(0, 5)]]), num_workers=0)
    measured = measure(dataset, 0.0)
    assert (measured.steps, measured.epochs) == (5, 1)


@pytest.mark.parametrize("prefetch", [0, 1, 3])
def test_what_was_ready_when_the_first_batch_came_is_not_counted(prefetch: int) -> None:
    source = MemorySource([[episode(n, 5) for n in range(9)]])
    dataset = OpenXExperienceReplay("arm", source=source, num_workers=0, prefetch=prefetch)
    ready = [100.0 + number / 1000 for number in range(2 + prefetch)]  # the first and those beside it
    times = itertools.chain([0.0], ready, itertools.count(103, 3))
    measured = measure(dataset, 5.0, clock=lambda: float(next(times)))
    assert (measured.steps, measured.first) == (10, 100.0)
    assert measured.seconds == 106 - ready[-1]
