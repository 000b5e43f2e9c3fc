"""Writes that are broken off at every point: nothing half written is served, nothing joins across."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Any

import pytest
import torch

from replaybank.storages import LazyTensorStorage, ListStorage, Storage
from replaybank.storages.leaf_table import LeafTable
from replaybank.storages.write_log import WriteLog
from replaybank.trajectories import DoneSignal, TrajectoryIndex

ROWS = 6


def _data(first: int, count: int) -> dict[str, torch.Tensor]:
    """Items whose leaves, a small and a large one, tell whether they are of one write."""
    ids = torch.arange(first, first + count)
    return {
        "id": ids,
        "large": ids[:, None].expand(count, 300).contiguous(),
        "done": torch.zeros(count, 1) > 0,
    }


def _full(written: int, *, shared: bool = True) -> LazyTensorStorage:
    storage = LazyTensorStorage(ROWS, shared_init=shared)
    for k in range(written):
        storage.write(k % ROWS, storage.prepare(_data(k, 1)))
    return storage


def _write(storage: Storage, first: int, count: int) -> None:
    storage.write(storage.log.cursor, storage.prepare(_data(first, count)))


def _half(self: LeafTable, start: int, count: int, leaves: Any) -> None:
    """Stores one of the leaves only."""
    self.views[0][torch.arange(start, start + count) % self.items] = leaves[0]


def _killed(step: Callable[..., Any], at: str) -> Callable[..., Any]:
    def stop(*args: Any, **kwargs: Any) -> None:
        if at == "after":
            step(*args, **kwargs)
        elif at == "half":
            _half(*args, **kwargs)
        os.kill(os.getpid(), signal.SIGKILL)

    return stop


def _in_a_child_that_is_killed(work: Callable[[], None]) -> None:
    child = os.fork()
    if child == 0:
        try:
            work()
        finally:
            os._exit(0)  # it was to be killed before
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL


def _check(storage: Storage, ids: list[int]) -> None:
    """Every item is whole, these are there, and slices hold consecutive items only."""
    items = storage[:]
    assert items["id"].tolist() == ids
    assert torch.equal(items["large"], items["id"][:, None].expand(-1, 300))
    index = TrajectoryIndex(DoneSignal(("done",)))
    index.sync(storage)
    columns, starts, lengths = index.eligible().runs.tolist()
    assert set(columns) <= {0}
    assert sorted((s + k) % ROWS for s, n in zip(starts, lengths, strict=True) for k in range(n)) == list(
        range(len(ids))
    )
    for start, length in zip(starts, lengths, strict=True):
        run = [ids[(start + k) % ROWS] for k in range(length)]
        assert run == list(range(run[0], run[0] + length))


BREAKS = [(LeafTable, "scatter_run", "before"), (LeafTable, "scatter_run", "half"),
          (WriteLog, "append", "before"), (WriteLog, "append", "after")]  # fmt: skip
# written before, written by the broken write, items there afterwards
CASES = [
    (0, 2, []),
    (3, 2, [0, 1, 2]),
    (6, 2, [5, 5, 2, 3, 4, 5]),  # what was to be replaced is a copy of the newest
    (8, 2, [6, 7, 7, 7, 4, 5]),
    (4, 4, [3, 3, 2, 3]),
    (6, 6, []),  # nothing whole is left
    (6, 9, []),
]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")
@pytest.mark.parametrize(("before", "count", "left"), CASES)
@pytest.mark.parametrize(
    ("owner", "name", "at"), BREAKS, ids=lambda value: str(getattr(value, "__name__", value))
)
def test_a_writer_that_is_killed_leaves_whole_items_and_no_joins(
    owner: type, name: str, at: str, before: int, count: int, left: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = _full(before)
    if not before:
        storage.write(0, storage.prepare(_data(0, 1)))
        storage.empty()

    def work() -> None:
        monkeypatch.setattr(owner, name, _killed(getattr(owner, name), at))
        _write(storage, 100, count)

    _in_a_child_that_is_killed(work)
    assert len(storage) == (before if before < ROWS else ROWS)  # asked without the lock: nothing is done
    with pytest.warns(RuntimeWarning, match="broken off"):
        storage.log  # noqa: B018
    _check(storage, left)
    for k in range(8):  # the next writes are as after a cut
        _write(storage, 200 + k, 1)
        ids = storage[:]["id"].tolist()
        _check(storage, ids)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")
def test_reading_alone_makes_good_what_a_killed_writer_left(monkeypatch: pytest.MonkeyPatch) -> None:
    storage = _full(6)

    def work() -> None:
        monkeypatch.setattr(LeafTable, "scatter_run", _killed(LeafTable.scatter_run, "half"))
        _write(storage, 100, 1)

    _in_a_child_that_is_killed(work)
    with pytest.warns(RuntimeWarning, match="broken off"):
        item = storage[torch.tensor([0])]
    assert item["id"].tolist() == item["large"][:, 7].tolist() == [5]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")
def test_items_that_were_being_replaced_when_the_writer_was_killed_become_copies(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    storage = _full(6)

    def half(self: LeafTable, index: torch.Tensor, leaves: Any, valid: int) -> None:
        self.views[0][index] = leaves[0]
        os.kill(os.getpid(), signal.SIGKILL)

    def work() -> None:
        monkeypatch.setattr(LeafTable, "scatter", half)
        storage[[1, -2]] = _data(100, 2)

    _in_a_child_that_is_killed(work)
    with pytest.warns(RuntimeWarning, match="2 row"):
        _check(storage, [0, 5, 2, 3, 5, 5])
    assert storage.log.cut.tolist() == [True, True, True, False, True, True]


@pytest.mark.parametrize(("before", "count", "left"), CASES)
@pytest.mark.parametrize("name", ["begin", "append", "commit", "scatter_run"])
def test_an_interrupt_in_a_write_leaves_whole_items_and_no_joins(
    name: str, before: int, count: int, left: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = _full(before, shared=False)
    if not before:
        storage.write(0, storage.prepare(_data(0, 1)))
        storage.empty()
    owner: Any = LeafTable if name == "scatter_run" else WriteLog
    step, broken = getattr(owner, name), [False]

    def interrupted(*args: Any) -> None:
        if not broken[0]:
            broken[0] = True
            _half(*args) if name == "scatter_run" else name == "commit" or step(*args)
            raise KeyboardInterrupt
        step(*args)

    monkeypatch.setattr(owner, name, interrupted)
    with pytest.raises(KeyboardInterrupt):
        _write(storage, 100, count)
    _check(storage, left)
    _write(storage, 200, 1)
    _check(storage, storage[:]["id"].tolist())


def test_an_interrupt_while_a_list_is_written_leaves_its_items(monkeypatch: pytest.MonkeyPatch) -> None:
    storage = ListStorage(5)
    storage.set(range(3), [0, 1, 2])

    def interrupted(*args: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(WriteLog, "append", interrupted)
        with pytest.raises(KeyboardInterrupt):
            storage.set(range(3, 5), [3, 4])
    assert storage[:] == [0, 1, 2]
    again = ListStorage(5)
    again.load_state_dict(storage.state_dict())
    assert again[:] == [0, 1, 2]


def test_data_that_does_not_fit_and_items_that_are_not_there_change_nothing() -> None:
    storage = _full(6, shared=False)
    mark = storage.log.mark()
    with pytest.raises(ValueError, match="shape"):
        storage[[0, 1]] = {**_data(100, 2), "id": torch.zeros(3, dtype=torch.int64)}
    with pytest.raises(IndexError, match="out of range"):
        storage[[0, 6]] = _data(100, 2)
    assert storage.log.mark() == mark
    _check(storage, list(range(6)))


def test_an_interrupt_while_next_observations_are_derived_leaves_whole_items(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def step(k: int) -> dict[str, Any]:
        return {"observation": torch.full((1, 4), k), "next": {"observation": torch.full((1, 4), k + 1)}}

    storage = LazyTensorStorage(4, next_observation="derive")
    for k in range(6):
        storage.write(k % 4, storage.prepare(step(k)))

    def interrupted(*args: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(WriteLog, "append", interrupted)
        with pytest.raises(KeyboardInterrupt):
            storage.write(2, storage.prepare(step(100)))
    items = storage[:]
    assert items["observation"][:, 0].tolist() == [4, 5, 5, 3]
    assert items["next"]["observation"][:, 0].tolist() == [5, 6, 6, 4]
