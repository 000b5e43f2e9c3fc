"""Threads and processes that sample, write and die at once: for a moment, or as long as it is asked for.

``REPLAYBANK_ENDURANCE=60 pytest tests/buffers/test_endurance.py`` runs each of these tests for a minute.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tensordict import TensorDict

from patience import PATIENCE
from replaybank import (
    ConsumingSampler,
    LazyMemmapStorage,
    LazyTensorStorage,
    PrioritizedSampler,
    PrioritizedSliceSampler,
    RandomSampler,
    ReplayBuffer,
    SamplerWithoutReplacement,
    SliceSampler,
    SliceSamplerWithoutReplacement,
    StalenessAwareSampler,
)
from replaybank.samplers.base import Sampler
from replaybank.storages.leaf_table import LeafTable

SECONDS = float(os.environ.get("REPLAYBANK_ENDURANCE", "0.4"))
ROWS = 400

SAMPLERS: dict[str, Callable[[], Sampler]] = {
    "random": RandomSampler,
    "without replacement": SamplerWithoutReplacement,
    "prioritized": lambda: PrioritizedSampler(ROWS, 0.7, 0.5),
    "prioritized within the buffer": lambda: PrioritizedSampler(
        ROWS, 0.7, 0.5, max_priority_within_buffer=True, stratified=True
    ),
    "slices": lambda: SliceSampler(slice_len=4),
    "slices without replacement": lambda: SliceSamplerWithoutReplacement(slice_len=4),
    "prioritized slices": lambda: PrioritizedSliceSampler(ROWS, 0.7, 0.5, slice_len=4),
    "consuming": lambda: ConsumingSampler(10_000_000),
    "staleness": StalenessAwareSampler,
}

_WEIGHTS = torch.arange(1, 301)


def items(generator: torch.Generator, count: int, writer: int) -> TensorDict:
    """An episode of ``count`` steps with random content, each with a checksum of itself."""
    content = torch.randint(0, 1 << 20, (count, 300), generator=generator)
    first = int(torch.randint(0, 1 << 30, (), generator=generator))
    number = first + torch.arange(count)
    return TensorDict(
        {
            "content": content,
            "number": number,
            "writer": torch.full((count,), writer),
            "sum": (content * _WEIGHTS).sum(1) + 7 * number + writer,
            "next": TensorDict({"done": (torch.arange(count) == count - 1)[:, None]}, [count]),
        },
        [count],
    )


def check(batch: Any, slices: bool) -> None:
    right = (batch["content"] * _WEIGHTS).sum(1) + 7 * batch["number"] + batch["writer"]
    assert torch.equal(batch["sum"], right), "a torn item"
    if slices:
        numbers, writers = batch["number"].view(-1, 4), batch["writer"].view(-1, 4)
        assert bool((numbers.diff(dim=1) == 1).all()), "a slice of several episodes"
        assert bool((writers == writers[:, :1]).all())


def write(buffer: ReplayBuffer, generator: torch.Generator, writer: int) -> None:
    buffer.extend(items(generator, int(torch.randint(5, 40, (), generator=generator)), writer))


def sample(buffer: ReplayBuffer, generator: torch.Generator) -> None:
    slices, prioritized = "Slice" in type(buffer.sampler).__name__, hasattr(buffer.sampler, "top_k")
    data, info = buffer.sample(return_info=True)
    check(data, slices)
    if prioritized:
        priority = torch.rand(len(data["number"]), generator=generator)
        buffer.update_priority(info["index"], priority, generation=info["_generation"])


def check_whole(buffer: ReplayBuffer) -> None:
    """Every item that is there, and the sums of all weights."""
    check(buffer.storage[:], slices=False)
    table = getattr(buffer.sampler, "_table", None)
    if table is not None:
        leaves = table.tree.leaves.double()
        assert table.tree.total == pytest.approx(float(leaves.sum()), rel=1e-5)
        assert bool((leaves[len(buffer) :] == 0).all())


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_four_threads_sample_while_two_write(sampler: str) -> None:
    buffer = ReplayBuffer(storage=LazyTensorStorage(ROWS), sampler=SAMPLERS[sampler](), batch_size=32)
    buffer.extend(items(torch.Generator().manual_seed(0), 60, 0))
    end = time.monotonic() + SECONDS
    errors: list[BaseException] = []
    steps = [0] * 6

    def run(number: int) -> None:
        generator = torch.Generator().manual_seed(number + 1)
        try:
            while (time.monotonic() < end or steps[number] < 5) and not errors:
                if number < 4:
                    sample(buffer, generator)
                else:
                    write(buffer, generator, number)
                steps[number] += 1
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    check_whole(buffer)


def live(buffer: ReplayBuffer, number: int, steps: torch.Tensor, pause: float) -> None:
    """Write (odd) or sample (even), with pauses in seconds, until told to end by a negative number."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", RuntimeWarning)  # of what the killed ones were writing
    generator = torch.Generator().manual_seed(number)
    buffer.set_rng(generator)
    while steps[0] >= 0:
        (write(buffer, generator, number) if number % 2 else sample(buffer, generator))
        steps[number] += 1
        time.sleep(pause)


def die_writing(buffer: ReplayBuffer, number: int, steps: torch.Tensor) -> None:
    """Write, and be killed half way of the tenth time."""
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(number)
    real = LeafTable.scatter_run
    done = 0

    def half(self: LeafTable, start: int, count: int, leaves: Any) -> None:
        nonlocal done
        done += 1
        if done < 10:
            real(self, start, count, leaves)
            return
        self.views[0][torch.arange(start, start + count) % self.items] = leaves[0]
        os.kill(os.getpid(), signal.SIGKILL)

    setattr(LeafTable, "scatter_run", half)  # noqa: B010 (mypy takes no assignment to a method)
    while True:
        write(buffer, generator, number)


def die_locked(buffer: ReplayBuffer, number: int, steps: torch.Tensor) -> None:
    """Be killed while holding the lock."""
    buffer._lock.lock.acquire()
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize("storage", [LazyTensorStorage, LazyMemmapStorage])
@pytest.mark.parametrize(
    ("method", "sampler"),
    [
        ("fork", "prioritized slices"),
        ("fork", "prioritized within the buffer"),
        ("fork", "slices"),
        ("spawn", "prioritized slices"),
    ],
)
def test_processes_go_on_when_others_are_killed(method: str, sampler: str, storage: Any) -> None:
    """Two sample and two write; one is killed in mid-write, one while it holds the lock, again and again.

    One and one where every process has to import all anew.
    """
    if method not in multiprocessing.get_all_start_methods() or (method, storage) == (
        "spawn",
        LazyMemmapStorage,
    ):
        pytest.skip("fork shows it for files in the same way, and is not everywhere")
    buffer = ReplayBuffer(
        storage=storage(ROWS, shared_init=True), sampler=SAMPLERS[sampler](), batch_size=32, shared=True
    )
    buffer.extend(items(torch.Generator().manual_seed(0), 60, 0))
    buffer.sample()
    # Importing takes seconds, which the others would take from those that do.
    alive, pause = (4, 0.0) if method == "fork" else (2, 0.01)
    steps = torch.zeros(1 + alive, dtype=torch.int64).share_memory_()
    context: Any = multiprocessing.get_context(method)
    processes = [
        context.Process(target=live, args=(buffer, number, steps, pause)) for number in range(1, 1 + alive)
    ]
    for process in processes:
        process.start()
    longest, rounds = 0.0, 0
    try:
        wait_for_all(processes, steps)
        end = time.monotonic() + SECONDS
        while not rounds or time.monotonic() < end:
            for killed in (die_writing, die_locked):
                child = context.Process(target=killed, args=(buffer, 5, steps))
                child.start()
                child.join(PATIENCE)
                assert child.exitcode == -signal.SIGKILL
                longest = max(longest, wait_for_all(processes, steps))
            rounds += 1
        steps[0] = -1
        for process in processes:
            process.join(PATIENCE)
        assert [process.exitcode for process in processes] == [0] * alive
    finally:
        for process in processes:
            process.kill()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        buffer.sample()
    check_whole(buffer)
    print(f"{rounds} rounds, {int(steps[1:].sum())} steps; all went on within {longest:.3f} s")


def wait_for_all(processes: list[Any], steps: torch.Tensor) -> float:
    """Seconds until every process has made two more steps: the second one was begun after this call."""
    start, before = time.monotonic(), steps.clone()
    while not bool((steps[1:] >= before[1:] + 2).all()):
        assert all(process.exitcode is None for process in processes), "a process has failed"
        assert time.monotonic() - start < PATIENCE, "a process hangs"
        time.sleep(0.002)
    return time.monotonic() - start
