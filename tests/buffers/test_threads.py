"""Threads that sample, write, update and save one buffer at once."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tensordict import TensorDict

from buffers.doubles import Remembers
from patience import PATIENCE
from replaybank.buffers.replay_buffer import ReplayBuffer
from replaybank.buffers.tensordict import TensorDictReplayBuffer
from replaybank.samplers.slice import SliceSampler
from replaybank.storages import LazyTensorStorage
from replaybank.storages.list import ListStorage

SECONDS = 2.0  # a torn item, where nothing guards them, shows within a tenth of it
STEPS = 40  # of each thread at least


def whole_items(start: int, count: int) -> TensorDict:
    """Items of several leaves that all say the same number, large enough to be torn."""
    n = torch.arange(start, start + count)
    return TensorDict(
        {"n": n, "wide": n[:, None].expand(count, 300).float(), "in": {"copy": n.int()}}, batch_size=count
    )


def is_whole(batch: Any) -> bool:
    n = batch["n"]
    return bool((batch["wide"] == n[:, None]).all()) and bool((batch["in", "copy"] == n).all())


def run_at_once(*works: Callable[[int], None], seconds: float = SECONDS) -> None:
    """Run each in a thread, again and again, until the time is over; raise what one of them raised.

    Each at least ``STEPS`` times, however little of the machine there is for it.
    """
    errors: list[BaseException] = []
    end = time.monotonic() + seconds

    def run(work: Callable[[int], None]) -> None:
        step = 0
        try:
            while (time.monotonic() < end or step < STEPS) and not errors:
                work(step)
                step += 1
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


@pytest.mark.parametrize("prefetch", [None, 2])
def test_two_samplers_and_a_writer_never_see_a_torn_item(prefetch: int | None) -> None:
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(500), batch_size=64, prefetch=prefetch)
    buffer.extend(whole_items(0, 500))
    sampled, written = [0, 0], [500]

    def sample(which: int) -> Callable[[int], None]:
        def work(step: int) -> None:
            batch = buffer.sample()
            assert is_whole(batch)
            assert bool((batch["n"] % 500 == batch["index"]).all())
            sampled[which] += 1

        return work

    def write(step: int) -> None:
        count = 1 + step % 130
        buffer.extend(whole_items(written[0], count))
        written[0] += count

    run_at_once(sample(0), sample(1), write)
    buffer.close()
    assert min(sampled) > 10
    assert buffer.write_count == written[0] > 1000


def test_several_writers_lose_nothing() -> None:
    buffer = ReplayBuffer(storage=ListStorage(100_000), batch_size=8)
    counts = [0, 0]

    def write(which: int) -> Callable[[int], None]:
        def work(step: int) -> None:
            if step % 2:
                buffer.add((which, counts[which]))
                counts[which] += 1
            else:
                buffer.extend([(which, counts[which]), (which, counts[which] + 1)])
                counts[which] += 2
            if counts[which] > 40_000:
                time.sleep(0.01)

        return work

    run_at_once(write(0), write(1), seconds=0.3)
    items = buffer.storage[:]
    for which in (0, 1):
        assert [number for writer, number in items if writer == which] == list(range(counts[which]))


def test_slices_stay_whole_while_trajectories_are_written() -> None:
    buffer = TensorDictReplayBuffer(
        storage=LazyTensorStorage(300),
        sampler=SliceSampler(slice_len=4, end_key=("next", "done")),
        batch_size=32,
    )
    step_number = [0]

    def episode(length: int) -> TensorDict:
        n = torch.arange(step_number[0], step_number[0] + length)
        done = torch.zeros(length, 1, dtype=torch.bool)
        done[-1] = True
        step_number[0] += length + 10  # a gap: a slice across an end would not be consecutive
        return TensorDict({"n": n, "next": {"done": done}}, batch_size=length)

    buffer.extend(episode(20))

    def sample(step: int) -> None:
        n = buffer.sample()["n"].reshape(-1, 4)
        assert bool((n.diff(dim=1) == 1).all()), n

    def write(step: int) -> None:
        buffer.extend(episode(4 + step % 30))

    run_at_once(sample, sample, write, seconds=1.0)


def test_priorities_and_setters_meet_samplers_safely() -> None:
    sampler = Remembers()
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(50), sampler=sampler, batch_size=8)
    buffer.extend(whole_items(0, 50))

    def update(step: int) -> None:
        batch = buffer.sample()
        batch["td_error"] = batch["n"].float()
        buffer.update_tensordict_priority(batch)

    def exchange(step: int) -> None:
        buffer.set_sampler(sampler)
        buffer.append_transform(lambda td: td)
        buffer.transform._links.clear()

    run_at_once(update, update, exchange, seconds=0.3)
    assert all(value == index for (index,), value in sampler.priorities.items())


def test_sampling_goes_on_and_writing_waits_while_a_checkpoint_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(100), batch_size=4)
    buffer.extend(whole_items(0, 50))
    saving, go_on, written = threading.Event(), threading.Event(), threading.Event()

    def slow(state: Any) -> Any:
        saving.set()
        go_on.wait(PATIENCE)
        return state

    buffer.register_save_hook(slow)

    def write() -> None:
        buffer.extend(whole_items(50, 10))
        written.set()

    saver, writer = threading.Thread(target=buffer.dumps, args=(tmp_path,)), threading.Thread(target=write)
    saver.start()
    assert saving.wait(PATIENCE)
    writer.start()
    for _ in range(20):
        assert is_whole(buffer.sample())
    assert not written.wait(0.05)
    go_on.set()
    saver.join()
    writer.join()
    assert len(buffer) == 60
    other = TensorDictReplayBuffer(storage=LazyTensorStorage(100), batch_size=4)
    other.loads(tmp_path)
    assert len(other) == 50


def test_a_hook_may_write_to_the_buffer_that_is_saved(tmp_path: Path) -> None:
    buffer = ReplayBuffer()
    buffer.extend([1, 2])

    def hook(state: Any) -> Any:
        buffer.add(3)
        return state

    buffer.register_save_hook(hook)
    buffer.dumps(tmp_path)
    assert len(buffer) == 3


def test_saves_while_others_write_are_whole(tmp_path: Path) -> None:
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(200), batch_size=8)
    buffer.extend(whole_items(0, 200))
    written = [200]

    def write(step: int) -> None:
        buffer.extend(whole_items(written[0], 37))
        written[0] += 37

    def save(step: int) -> None:
        buffer.dumps(tmp_path)
        other = TensorDictReplayBuffer(storage=LazyTensorStorage(200), batch_size=8)
        other.loads(tmp_path)
        items = other[:]
        assert is_whole(items)
        assert sorted(items["n"].tolist()) == list(range(other.write_count - 200, other.write_count))

    def sample(step: int) -> None:
        assert is_whole(buffer.sample())

    run_at_once(write, save, sample, seconds=0.5)
