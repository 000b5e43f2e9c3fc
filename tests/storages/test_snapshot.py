"""A storage put back to what it was."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from replaybank.storages import CompressedListStorage, LazyMemmapStorage, LazyTensorStorage, ListStorage
from replaybank.storages.snapshot import StorageSnapshot


@pytest.mark.parametrize(
    "make",
    [
        lambda: LazyTensorStorage(4),
        lambda: LazyMemmapStorage(4),
        lambda: ListStorage(4),
        lambda: ListStorage(),
        lambda: CompressedListStorage(4),
    ],
    ids=["tensor", "memmap", "list", "unbounded", "compressed"],
)
@pytest.mark.parametrize("count", [0, 3, 6])
def test_a_storage_put_back_is_as_it_was_and_goes_on(make: Callable[[], Any], count: int) -> None:
    storage, twin = make(), make()

    def write(target: Any, values: range) -> None:
        for value in values:
            item = torch.tensor([float(value)])
            target.write(target.log.cursor, target.prepare(item, single=True))

    for target in (storage, twin):
        write(target, range(count))
    mark = storage.log.mark()
    snapshot = StorageSnapshot(storage)
    write(storage, range(50, 53))
    storage[0] = torch.tensor([99.0])
    snapshot.restore()
    assert storage.log.changes(mark).everything, "who followed it looks at everything anew"
    for target in (storage, twin):
        write(target, range(100, 102))
    assert len(storage) == len(twin)
    assert storage.log.cursor == twin.log.cursor
    assert [float(storage[k]) for k in range(len(storage))] == [float(twin[k]) for k in range(len(twin))]
