"""Observations once and encoded images, in one storage that several processes use."""

from __future__ import annotations

import multiprocessing
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from tensordict import TensorDict
from torch import Tensor

from patience import PATIENCE
from replaybank.storages import EncodedFrames, LazyMemmapStorage, LazyTensorStorage
from replaybank.writers import RoundRobinWriter


def _steps(first: int, count: int) -> TensorDict:
    """Steps that follow each other, but for an end after every fourth."""
    ids = torch.arange(first, first + count)
    after = torch.where(ids % 4 == 3, -ids, ids + 1)
    shift = torch.arange(60).view(5, 4, 3)
    image = ((ids.view(-1, 1, 1, 1) * 7 + shift) % 251).to(torch.uint8)
    return TensorDict(
        {"observation": ids.float(), "image": image, "next": {"observation": after.float()}}, [count]
    )


def _write(storage: LazyTensorStorage, first: int, count: int) -> None:
    writer = RoundRobinWriter()
    writer.register_storage(storage)
    for step in range(first, first + count, 5):
        writer.extend(_steps(step, 5))


def _read(storage: LazyTensorStorage, expected: Tensor) -> None:
    found = storage[:]
    assert torch.equal(found["observation"].long(), expected)
    for number, value in enumerate(expected.tolist()):
        assert torch.equal(found["image"][number], _steps(value, 1)["image"][0])
        assert torch.equal(found["next", "observation"][number], _steps(value, 1)["next", "observation"][0])


def _child(storage: LazyTensorStorage) -> None:
    _read(storage, torch.tensor([12, 13, 14, *range(3, 12)]))
    _write(storage, 15, 20)


@pytest.mark.parametrize("files", [False, True])
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_all_processes_see_the_same_items(method: str, files: bool, tmp_path: Path) -> None:
    if method not in multiprocessing.get_all_start_methods():
        pytest.skip(f"this system cannot {method} ({sys.platform})")
    options: dict[str, Any] = {"next_observation": "derive", "encoded": {"image": EncodedFrames("png")}}
    if files:
        storage: LazyTensorStorage = LazyMemmapStorage(
            12, scratch_dir=tmp_path / "files", shared_init=True, **options
        )
    else:
        storage = LazyTensorStorage(12, shared_init=True, **options)
    _write(storage, 0, 15)
    context: Any = multiprocessing.get_context(method)
    process = context.Process(target=_child, args=(storage,))
    process.start()
    process.join(PATIENCE)
    assert process.exitcode == 0
    _read(storage, torch.tensor([*range(24, 35), 23]))
    _write(storage, 35, 10)
    _read(storage, torch.tensor([36, 37, 38, 39, 40, 41, 42, 43, 44, 33, 34, 35]))
