"""The rate of a stream: what is counted, and when it ends."""

from __future__ import annotations

import itertools

from memory_source import MemorySource, episode
from replaybank.datasets.openx.replay import OpenXExperienceReplay
from replaybank.datasets.openx.throughput import measure, peak_memory


def test_batches_are_counted_from_the_second_on_until_the_time_is_up() -> None:
    source = MemorySource([[episode(n, 5) for n in range(4)]])
    dataset = OpenXExperienceReplay("arm", source=source, num_workers=0)
    seconds = itertools.count()
    gone: list[float] = []
    measured = measure(dataset, 9.5, show=gone.append, clock=lambda: float(next(seconds)))
    assert gone == [1, 2, 3, 4, 6, 7, 8, 9]  # one tick more at the end of each epoch
    assert (measured.steps, measured.slices, measured.epochs) == (5 * 7, 7, 2)
    assert (measured.first, measured.seconds) == (1.0, 10.0)
    assert measured.size > 30 * 20 * 20 * 3 * 2
    assert measured.memory is None or 0 < measured.memory <= (peak_memory() or 0)


def test_a_dataset_that_ends_at_once_is_measured() -> None:
    dataset = OpenXExperienceReplay("arm", source=MemorySource([[episode(0, 5)]]), num_workers=0)
    measured = measure(dataset, 0.0)
    assert (measured.steps, measured.epochs) == (5, 1)


def test_a_first_batch_that_comes_late_is_not_the_only_one() -> None:
    source = MemorySource([[episode(n, 5) for n in range(4)]])
    dataset = OpenXExperienceReplay("arm", source=source, num_workers=0)
    times = itertools.chain([0.0, 100.0], itertools.count(101))
    measured = measure(dataset, 10.0, clock=lambda: float(next(times)))
    assert (measured.steps, measured.first, measured.seconds) == (5, 100.0, 1.0)
