"""Processes that are killed at any point of a write or an update: the others go on, and all is whole."""

from __future__ import annotations

import multiprocessing
import os
import signal
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from tensordict import TensorDict

from patience import PATIENCE
from replaybank import (
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
from replaybank.samplers.slice_starts import SliceStarts
from replaybank.storages.leaf_table import LeafTable
from replaybank.storages.write_log import WriteLog
from replaybank.weights.sum_tree import SumTree

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")

ROWS = 40

SAMPLERS: dict[str, Callable[[], Sampler]] = {
    "random": RandomSampler,
    "prioritized": lambda: PrioritizedSampler(ROWS, 1.0, 1.0, eps=0.0),
    "prioritized within the buffer": lambda: PrioritizedSampler(
        ROWS, 0.7, 0.5, max_priority_within_buffer=True
    ),
    "prioritized slices": lambda: PrioritizedSliceSampler(ROWS, 1.0, 1.0, slice_len=2),
    "slices": lambda: SliceSampler(slice_len=2),
    "slices without replacement": lambda: SliceSamplerWithoutReplacement(slice_len=2),
    "without replacement": SamplerWithoutReplacement,
    "staleness": StalenessAwareSampler,
}


def steps(first: int, count: int) -> TensorDict:
    """Steps of episodes of at most five, in leaves that tell whether they are of one write."""
    number = torch.arange(first, first + count)
    done = (number % 5 == 4) | (number == number[-1])
    return TensorDict(
        {
            "n": number,
            "wide": number[:, None].expand(count, 300).contiguous(),
            "next": TensorDict({"done": done[:, None]}, [count]),
        },
        [count],
    )


def shared(sampler: Sampler, storage: Any = LazyTensorStorage) -> ReplayBuffer:
    buffer = ReplayBuffer(
        storage=storage(ROWS, shared_init=True), sampler=sampler, batch_size=16, shared=True
    )
    buffer.extend(steps(0, 30))
    buffer.sample()
    return buffer


def check(buffer: ReplayBuffer) -> None:
    """Batches are whole and of what is there; slices are consecutive; sums are those of the leaves."""
    batch, info = buffer.sample(return_info=True)
    assert bool((batch["wide"] == batch["n"][:, None]).all())
    index = info["index"][0] if isinstance(info["index"], tuple) else info["index"]
    assert int(index.max()) < len(buffer)
    if "slice" in type(buffer.sampler).__name__.lower():
        pairs = batch["n"].view(-1, 2)
        assert bool((pairs[:, 1] == pairs[:, 0] + 1).all())
    data = buffer.storage[:]
    assert bool((data["wide"] == data["n"][:, None]).all())
    table = getattr(buffer.sampler, "_table", None)
    if table is not None:
        check_tree(table.tree, len(buffer))
        assert bool((table.tree.leaves[: len(buffer)] > 0).all())
        starts = getattr(buffer.sampler, "_starts", None)
        if starts is not None:
            check_tree(starts.tree, len(buffer))


def check_tree(tree: SumTree, length: int) -> None:
    leaves = tree.leaves.double()
    assert bool((leaves[length:] == 0).all()), "nothing that was never written can be drawn"
    assert tree.total == pytest.approx(float(leaves.sum()), rel=1e-6)
    assert tree.largest == float(leaves.max())


def points() -> Iterator[tuple[type, str, Callable[..., Any] | None]]:
    """What a write and an update consist of, and how each is left half done."""

    def half_run(self: LeafTable, start: int, count: int, leaves: Any) -> None:
        self.views[0][torch.arange(start, start + count) % self.items] = leaves[0]

    def half_update(self: SumTree, index: torch.Tensor, value: torch.Tensor, **_: Any) -> None:
        self.leaves[index[: len(index) // 2 + 1]] = 7.0  # no sum above them is made

    def half_fill(self: SumTree, start: int, count: int, weight: float) -> None:
        self.leaves[start : start + count // 2 + 1] = weight

    yield WriteLog, "begin", None
    yield LeafTable, "scatter_run", half_run
    yield WriteLog, "append", None
    yield WriteLog, "commit", None
    yield SumTree, "update_powers", half_update
    yield SumTree, "fill", half_fill
    yield SumTree, "select_items", None
    yield SumTree, "select", None
    yield SliceStarts, "take", None


def die_at(last: int) -> None:
    """Have this process killed at the ``last`` of the points it comes to: before, half way, or after."""
    calls = 0

    def reached() -> bool:
        nonlocal calls
        calls += 1
        return calls == last

    def dying(real: Callable[..., Any], half: Callable[..., Any] | None) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            if reached():
                os.kill(os.getpid(), signal.SIGKILL)
            if half is not None and reached():
                half(*args, **kwargs)
                os.kill(os.getpid(), signal.SIGKILL)
            out = real(*args, **kwargs)
            if reached():
                os.kill(os.getpid(), signal.SIGKILL)
            return out

        return call

    for kind, name, half in points():
        setattr(kind, name, dying(getattr(kind, name), half))


@pytest.mark.parametrize("storage", [LazyTensorStorage, LazyMemmapStorage])
@pytest.mark.parametrize("sampler", SAMPLERS)
def test_a_child_killed_at_any_point_leaves_all_whole(sampler: str, storage: Any) -> None:
    """Every step of writing, updating and sampling in turn is the last one of a forked process."""
    buffer = shared(SAMPLERS[sampler](), storage)
    number, last, status = 1000, 0, -9
    while status:
        last += 1
        number += 100
        child = os.fork()
        if child == 0:
            status = 1
            try:
                torch.set_num_threads(1)
                warnings.simplefilter("ignore")
                die_at(last)
                buffer.extend(steps(number, 7))
                if "prioritized" in sampler:
                    buffer.update_priority(torch.arange(0, 30, 3), torch.rand(10) + 0.5)
                buffer.sample()
                status = 0
            finally:
                os._exit(status)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        assert status in (0, -9)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # of writes that were broken off
            check(buffer)
        if last % 5 == 0:
            buffer.extend(steps(number + 50, 3))
            check(buffer)
    assert last > 8


def test_priorities_outlive_a_writer_that_was_killed() -> None:
    """What it was writing is lost; the priorities of all others are as they were."""
    buffer = shared(PrioritizedSampler(ROWS, 1.0, 1.0, eps=0.0))
    buffer.update_priority(torch.arange(30), torch.arange(30) + 1.0)
    child = os.fork()
    if child == 0:
        torch.set_num_threads(1)
        die_at(3)  # half way of storing the items
        buffer.extend(steps(1000, 5))
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -9
    with pytest.warns(RuntimeWarning, match="broken off"):
        buffer.sample()
    table = buffer.sampler._table  # type: ignore[attr-defined]
    assert table.tree.leaves.tolist() == [*(k + 1.0 for k in range(30)), *[0.0] * 10]
    buffer.extend(steps(30, 2))
    buffer.sample()
    assert table.tree.leaves.tolist() == [*(k + 1.0 for k in range(30)), 30.0, 30.0, *[0.0] * 8]


def _spawned(buffer: ReplayBuffer, last: int) -> None:
    torch.set_num_threads(1)
    die_at(last)
    buffer.extend(steps(1000, 7))
    buffer.update_priority(torch.arange(20), torch.rand(20) + 0.5)


@pytest.mark.parametrize("last", [3, 13])
def test_a_spawned_child_killed_in_mid_write_leaves_all_whole(last: int) -> None:
    buffer = shared(PrioritizedSampler(ROWS, 1.0, 1.0, eps=0.0))
    child = multiprocessing.get_context("spawn").Process(target=_spawned, args=(buffer, last))
    child.start()
    child.join(PATIENCE)
    assert child.exitcode == -9
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        check(buffer)


def test_an_interrupted_update_is_made_good() -> None:
    buffer = ReplayBuffer(
        storage=LazyTensorStorage(ROWS), sampler=SAMPLERS["prioritized slices"](), batch_size=16
    )
    buffer.extend(steps(0, 30))
    buffer.sample()
    with pytest.MonkeyPatch.context() as patch:

        def interrupted(self: SumTree, index: torch.Tensor, *_: Any, **__: Any) -> float:
            self.leaves[index] = 9.0
            raise KeyboardInterrupt

        patch.setattr(SumTree, "update_powers", interrupted)
        with pytest.raises(KeyboardInterrupt):
            buffer.update_priority(torch.arange(10), 2.0)
    check(buffer)


def test_a_sampler_shared_without_a_buffer_refuses_two_processes_at_once() -> None:
    """Nothing would keep them apart; one after the other is right, and so is one killed at it."""
    storage = LazyTensorStorage(ROWS, shared_init=True)
    storage.set(range(30), steps(0, 30))
    sampler = PrioritizedSampler(ROWS, 1.0, 1.0)
    sampler.share_memory_()
    sampler.sample(storage, 4)
    told, tell = os.pipe()
    wait, go = os.pipe()
    child = os.fork()
    if child == 0:
        with sampler._lock:
            os.write(tell, b"in")
            os.read(wait, 2)
            os.kill(os.getpid(), signal.SIGKILL)
    os.read(told, 2)
    with pytest.raises(RuntimeError, match=rf"process {child} is using it.*ReplayBuffer\(shared=True\)"):
        sampler.sample(storage, 4)
    os.write(go, b"go")
    os.waitpid(child, 0)
    assert len(sampler.sample(storage, 4)[0]) == 4
