"""How fast a stream gives batches on this machine, and with how much memory."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tensordict import TensorDictBase
from torch import Tensor

from replaybank.datasets.openx.nest import unnest
from replaybank.datasets.openx.replay import OpenXExperienceReplay


@dataclass(frozen=True)
class Throughput:
    """What came in a time.

    Args:
        steps: steps given.
        slices: trajectories or slices of them.
        size: decoded bytes.
        epochs: whole passes over the dataset.
        seconds: how long it took, without waiting for the first batch and what was ready beside it.
        first: seconds until the first batch came: files are opened, and the reservoir is filled.
        memory: the most that the process took, in bytes; None where the system does not say.
    """

    steps: int
    slices: int
    size: int
    epochs: int
    seconds: float
    first: float
    memory: int | None


def measure(
    dataset: OpenXExperienceReplay,
    seconds: float,
    *,
    show: Callable[[float], None] = lambda _: None,
    clock: Callable[[], float] = time.perf_counter,
) -> Throughput:
    """Take batches from a stream for a while, epoch after epoch.

    The time begins when what may have been ready beside the first batch has been taken, too, and it is over
    with the first batch behind ``seconds``: so no batch is counted that took none of it.

    Args:
        dataset: the stream.
        seconds: how long.
        show: called with the seconds gone, after each batch.
        clock: tells the time in seconds.
    """
    sampler: Any = dataset.sampler
    ready = 1 + sampler.prefetch
    steps = slices = size = epochs = 0
    begun = clock()
    first: float | None = None
    started: float | None = None
    while True:
        for batch in dataset:
            now = clock()
            first = now if first is None else first
            if started is None:
                started = None if ready else now
                ready -= 1
                continue
            slices += int(batch["next", "done"].sum())
            steps += len(batch)
            size += _bytes(batch)
            show(now - started)
            if now - started >= seconds:
                return Throughput(steps, slices, size, epochs, now - started, first - begun, peak_memory())
        now = clock()
        empty = first is None  # not even one batch: there will never be any
        first = now if first is None else first
        started = now if started is None else started  # the next epoch begins anew: nothing of it is ready
        epochs += 1
        if now - started >= seconds and (steps or empty):
            return Throughput(steps, slices, size, epochs, now - started, first - begun, peak_memory())


def _bytes(batch: TensorDictBase) -> int:
    return sum(value.nbytes for value in unnest(batch).values() if isinstance(value, Tensor))


def peak_memory() -> int | None:
    """The most memory that this process has taken so far, in bytes; None where the system does not say."""
    try:
        import resource
    except ImportError:
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak << 10
