"""Once through a robot dataset: episodes of a stream as they come, or stored trajectories in turn."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from replaybank.buffers.locks import BufferLock
from replaybank.datasets.openx.cut import join
from replaybank.datasets.openx.options import Slicing
from replaybank.datasets.openx.storage import DatasetStorage
from replaybank.datasets.openx.stored import trajectories
from replaybank.datasets.openx.streamed import StreamSampler


def epoch_of_stream(
    sampler: StreamSampler, batch_size: int | None, *, lock: BufferLock, finish: Callable[[Any], Any]
) -> Iterator[Any]:
    """One epoch of a stream, the last batch perhaps smaller.

    It begins with the first batch, and counts as over when there is no other; left before, its threads end.

    Args:
        sampler: draws from the stream, and says what a batch is without a batch size.
        batch_size: steps in a batch.
        lock: the buffer's, taken for what is not reading and decoding.
        finish: makes what is handed out of steps, with the lock held.
    """
    count, length = sampler.slicing.num_slices or 1, sampler.slicing.slice_len
    if batch_size is not None:
        count, length = sampler.slicing.of(batch_size)
    with lock.lock:
        run = sampler.begin()
    try:
        while cuts := run.take(count, length, count * sampler.prefetch):
            batch: Any = join(cuts)
            with lock.lock:
                sampler.passed(run)
                batch = finish(batch)
            yield batch
        with lock.lock:
            sampler.finished(run)
    finally:
        run.close()


def epoch_of_stored(
    dataset: DatasetStorage,
    part: Tensor | None,
    slicing: Slicing,
    *,
    shuffle: bool,
    generator: torch.Generator | None,
    lock: BufferLock,
    finish: Callable[[Any], Any],
) -> Iterator[Any]:
    """Each trajectory of a stored dataset once: whole, or a random slice of it where slices have a length.

    Args:
        dataset: the steps.
        part: numbers of the episodes that are gone through; None: all.
        slicing: how many at a time, and what length is cut out of each.
        shuffle: in random order.
        generator: source of the random draws.
        lock: the buffer's.
        finish: makes what is handed out of steps, with the lock held.

    Raises:
        RuntimeError: each trajectory is shorter than a slice.
    """
    bounds = dataset.bounds if part is None else dataset.bounds[part]
    for steps in trajectories(bounds, slicing, shuffle=shuffle, generator=generator):
        # The last step of each is marked, as a sample has it.
        ends = torch.cat([torch.arange(len(slice_)) == len(slice_) - 1 for slice_ in steps])[:, None]
        with lock.lock:
            batch = dataset.get(torch.cat(steps))
            for name in ("truncated", "done"):
                batch["next", name] = batch["next", name] | ends
            batch = finish(batch)
        yield batch
