"""Writers that are killed at every line of a write to storages with books of their own.

Next observations that are kept aside and encoded images have places, free slots and chains of blocks beside
the items. Whoever goes on after a writer was killed sees whole items, and no two items ever share a place.
"""

from __future__ import annotations

import os
import signal
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tensordict import TensorDict
from torch import Tensor

from contracts import AS_PNG, IMAGES
from replaybank import LazyMemmapStorage, LazyTensorStorage
from replaybank.storages.blocks import BLOCK_BYTES
from replaybank.storages.encoded import EncodedTable
from replaybank.storages.next_table import NextTable
from replaybank.writers import RoundRobinWriter

ROWS = 6

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")


def _steps(ids: Tensor) -> TensorDict:
    """Observations that say whose they are; every third step ends an episode."""
    after = torch.where(ids % 3 == 2, -ids, ids + 1)
    next_ = TensorDict({"observation": _wide(after), "number": ids.clone()}, ids.shape)
    return TensorDict({"observation": _wide(ids), "next": next_}, ids.shape)


def _wide(ids: Tensor) -> Tensor:
    return ids[:, None].expand(*ids.shape, 300).contiguous()


def _ids_of_steps(data: Any) -> Tensor:
    ids: Tensor = data["next", "number"]
    assert torch.equal(data["observation"], _wide(ids))
    assert torch.equal(data["next", "observation"], _wide(torch.where(ids % 3 == 2, -ids, ids + 1)))
    return ids


def _noisy(ids: Tensor) -> Any:
    """Images whose PNG takes more than one block for some, one for others."""
    data = IMAGES.make(ids)
    for number, image in zip(ids.tolist(), data["last"], strict=True):
        if number % 2:
            image.copy_(torch.randint(0, 256, image.shape, generator=torch.Generator().manual_seed(number)))
    data["last"] = data["last"].repeat_interleave(6, 1)
    return data


def _ids_of_noisy(data: Any) -> Tensor:
    ids: Tensor = data["number"]
    expected = _noisy(ids)
    assert torch.equal(data["last"], expected["last"])
    assert torch.equal(data["in", "first"], expected["in", "first"])
    return ids


DERIVED: dict[str, Any] = {"next_observation": "derive"}
ENCODED: dict[str, Any] = {"encoded": AS_PNG}
KINDS = [
    pytest.param(DERIVED, _steps, _ids_of_steps, id="derived"),
    pytest.param(ENCODED, _noisy, _ids_of_noisy, id="encoded"),
]


@pytest.fixture(params=["shared", "memmap"])
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[..., LazyTensorStorage]:
    count = iter(range(10**6))

    def new(**options: Any) -> LazyTensorStorage:
        if request.param == "shared":
            return LazyTensorStorage(ROWS, shared_init=True, **options)
        folder = tmp_path / str(next(count))
        return LazyMemmapStorage(ROWS, scratch_dir=folder, auto_cleanup=True, shared_init=True, **options)

    return new


def _killed_at_line(number: int, work: Callable[[], object]) -> bool:
    """Run ``work`` in a child, to be killed at the ``number``-th line of a storage's code; whether it was."""
    child = os.fork()
    if child == 0:
        left = number

        def trace(frame: Any, event: str, arg: Any) -> Any:
            nonlocal left
            if "replaybank/storages" not in frame.f_code.co_filename:
                return None
            if event == "line":
                left -= 1
                if left < 0:
                    os.kill(os.getpid(), signal.SIGKILL)
            return trace

        try:
            sys.settrace(trace)
            work()
        finally:
            os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL


def _check_books(storage: LazyTensorStorage) -> None:
    """No two items share a place, none of which is free, and nothing that can be taken is lost."""
    table = storage._table
    if isinstance(table, NextTable):
        taken, freed = (int(number) for number in table._counts)
        held = (table._place[table._place >= 2] - 2).tolist()
        assert sorted(held + table._freed[:freed].tolist()) == list(range(taken))
    else:
        assert isinstance(table, EncodedTable)
        for column in table._columns:
            places = column.places[column.places[:, 1] > 0].tolist()
            blocks = sum(-(-size // (BLOCK_BYTES - 4)) for _, size in places)
            assert column.strings.used_bytes == blocks * BLOCK_BYTES
            assert len({number for number, _ in places}) == len(places)


def _whole(storage: LazyTensorStorage, read: Callable[[Any], Tensor]) -> list[int]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # that a write was broken off
        assert storage.log is not None
    return read(storage[:]).tolist() if len(storage) else []


WRITES = {"new": (2, 3), "around": (ROWS + 4, 4)}
STRIDE = 13  # of the lines; another first one for each case, so that together they are closer


@pytest.mark.parametrize(("options", "data", "read"), KINDS)
@pytest.mark.parametrize("write", list(WRITES))
def test_a_writer_that_is_killed_at_any_line_leaves_whole_items_and_true_books(
    make: Callable[..., LazyTensorStorage],
    options: dict[str, Any],
    data: Callable[[Tensor], Any],
    read: Callable[[Any], Tensor],
    write: str,
) -> None:
    before, count = WRITES[write]
    line = 3 * (write == "new")
    while True:
        storage, writer = make(**options), RoundRobinWriter()
        writer.register_storage(storage)
        for k in range(before):
            writer.extend(data(torch.arange(k, k + 1)))
        old, new = list(range(before))[-ROWS:], list(range(before, before + count))
        killed = _killed_at_line(line, lambda: writer.extend(data(torch.tensor(new))))  # noqa: B023
        found = _whole(storage, read)
        assert set(found) <= {*old, *new}
        if not killed:
            assert sorted(found) == sorted((old + new)[-ROWS:])
        _check_books(storage)
        for k in range(100, 100 + 2 * ROWS):  # what comes later never meets what was left
            writer.extend(data(torch.arange(k, k + 1)))
            if k % 3 == 0:
                assert set(_whole(storage, read)) <= {*found, *range(100, k + 1)}
        assert sorted(_whole(storage, read)) == list(range(100 + ROWS, 100 + 2 * ROWS))
        _check_books(storage)
        if isinstance(storage, LazyMemmapStorage):
            storage.cleanup()
        if not killed:
            break
        line += STRIDE
    assert line > 20


@pytest.mark.parametrize(("options", "data", "read"), KINDS)
def test_who_is_killed_while_items_are_replaced_in_place_or_forgotten_leaves_true_books(
    make: Callable[..., LazyTensorStorage],
    options: dict[str, Any],
    data: Callable[[Tensor], Any],
    read: Callable[[Any], Tensor],
) -> None:
    for replace in (True, False):
        line, killed = 0, True
        while killed:
            storage, writer = make(**options), RoundRobinWriter()
            writer.register_storage(storage)
            writer.extend(data(torch.arange(ROWS + 2)))

            def work(storage: LazyTensorStorage = storage, replace: bool = replace) -> None:
                if replace:
                    storage[[4, 1]] = data(torch.tensor([50, 51]))
                else:
                    storage.empty()

            killed = _killed_at_line(line, work)
            assert set(_whole(storage, read)) <= {*range(2, ROWS + 2), 50, 51}
            _check_books(storage)
            writer.extend(data(torch.arange(200, 200 + ROWS)))
            assert sorted(_whole(storage, read)) == list(range(200, 200 + ROWS))
            _check_books(storage)
            if isinstance(storage, LazyMemmapStorage):
                storage.cleanup()
            line += STRIDE
        assert line > 10


@pytest.mark.parametrize("stage", ["given back, still referred to", "taken, not yet referred to"])
def test_who_is_killed_inside_the_native_bookkeeping_leaves_true_books(stage: str) -> None:
    """What a kill between two stores of the kernel leaves, made by hand."""
    storage, writer = LazyTensorStorage(ROWS, shared_init=True, **DERIVED), RoundRobinWriter()
    writer.register_storage(storage)
    writer.extend(_steps(torch.arange(ROWS)))
    table = storage._table
    assert isinstance(table, NextTable)
    held = int(table._place[2]) - 2  # the end of an episode
    assert held >= 0
    if stage.startswith("given"):
        table._freed[int(table._counts[1])] = held
        table._counts[1] += 1
    else:
        table._counts[0] += 1
    storage.log.begin(2, 1)
    storage.log.stop()  # as another process finds it
    with pytest.warns(RuntimeWarning, match="broken off"):
        assert set(_ids_of_steps(storage[:]).tolist()) == {0, 1, 3, 4, 5}
    _check_books(storage)
    writer.extend(_steps(torch.arange(20, 20 + ROWS)))
    assert sorted(_ids_of_steps(storage[:]).tolist()) == list(range(20, 20 + ROWS))
    _check_books(storage)
