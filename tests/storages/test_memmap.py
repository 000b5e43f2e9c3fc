"""Memory-mapped storages: files made exclusively, sized exactly, read by NumPy, gone with the last user."""

from __future__ import annotations

import errno
import gc
import json
import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from patience import PATIENCE
from replaybank import _native
from replaybank.storages import LazyMemmapStorage
from replaybank.storages.layout import RowLayout, field_name
from replaybank.storages.scratch import ScratchFolder


@pytest.fixture
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The system's temporary folder, for this test alone."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


def _write(storage: LazyMemmapStorage, count: int = 3) -> LazyMemmapStorage:
    storage.set(
        range(count),
        {
            "number": torch.arange(count),
            "flag": torch.ones(count, dtype=torch.bool),
            "pixels": torch.full((count, 40, 40), 7, dtype=torch.uint8),
        },
    )
    return storage


def test_files_are_read_by_numpy_as_the_layout_says(tmp_path: Path) -> None:
    storage = _write(LazyMemmapStorage(10, scratch_dir=tmp_path / "new" / "folder"))
    folder = storage.folder
    assert folder is not None
    described = json.loads((folder / "layout.json").read_text())
    layout = RowLayout.from_json(described["layout"])
    rows = np.memmap(folder / "rows.bin", dtype=layout.numpy_dtype(), mode="r")
    assert len(rows) == 10 == described["dims"][0]
    assert rows[field_name(("number",))][:3].tolist() == [0, 1, 2]
    pixels = np.memmap(
        folder / f"column-{layout.columns[0]}.bin", dtype=np.uint8, mode="r", shape=(10, 40, 40)
    )
    assert (pixels[:3] == 7).all()
    storage[1] = {"number": 5, "flag": False, "pixels": torch.zeros(40, 40, dtype=torch.uint8)}
    assert rows["number"][1] == 5


def test_existing_files_are_an_error_unless_existsok(tmp_path: Path) -> None:
    _write(LazyMemmapStorage(10, scratch_dir=tmp_path))
    before = (tmp_path / "rows.bin").read_bytes()
    with pytest.raises(FileExistsError, match="existsok"):
        _write(LazyMemmapStorage(10, scratch_dir=tmp_path), 2)
    assert (tmp_path / "rows.bin").read_bytes() == before
    storage = _write(LazyMemmapStorage(10, scratch_dir=tmp_path, existsok=True), 2)
    assert len(storage) == 2, "what was in the files counts as not written"


def test_a_foreign_file_in_the_folder_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "rows.bin").write_text("mine")
    with pytest.raises(FileExistsError, match=r"rows\.bin"):
        _write(LazyMemmapStorage(10, scratch_dir=tmp_path))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["rows.bin"], "nothing may be left behind"
    assert (tmp_path / "rows.bin").read_text() == "mine"


@pytest.mark.parametrize("existsok", [False, True])
def test_files_of_another_size_are_never_extended(tmp_path: Path, existsok: bool) -> None:
    _write(LazyMemmapStorage(10, scratch_dir=tmp_path))
    os.truncate(tmp_path / "rows.bin", 100)
    with pytest.raises((ValueError, FileExistsError), match=r"100 bytes|existsok"):
        _write(LazyMemmapStorage(10, scratch_dir=tmp_path, existsok=existsok))
    assert (tmp_path / "rows.bin").stat().st_size == 100
    with pytest.raises(ValueError, match=r"another size|existsok"):
        _write(LazyMemmapStorage(20, scratch_dir=tmp_path, existsok=True))


def test_c69_more_disk_than_there_is_is_refused_with_both_numbers(tmp_path: Path) -> None:
    storage = LazyMemmapStorage(10 * 2**20, scratch_dir=tmp_path)
    with pytest.raises(OSError, match=r"10\.0 TiB.*free") as caught:
        storage.set(0, torch.zeros(1, dtype=torch.uint8).expand(2**20))
    assert caught.value.errno == errno.ENOSPC
    assert not list(tmp_path.iterdir())
    assert not storage.initialized


@pytest.mark.parametrize("device", ["cuda", "cuda:1", "meta"])
def test_another_device_than_the_cpu_is_refused(device: str) -> None:
    with pytest.raises(ValueError, match=device):
        LazyMemmapStorage(10, device=device)


def test_new_keys_are_refused(tmp_path: Path) -> None:
    storage = LazyMemmapStorage(10, scratch_dir=tmp_path)
    storage.set(range(1), {"a": torch.ones(1)})
    with pytest.raises(ValueError, match="new"):
        storage.set(range(1), {"a": torch.ones(1), "new": torch.ones(1)})
    assert storage.leaf_keys() == [("a",)]


def test_items_of_no_bytes_need_no_file(tmp_path: Path) -> None:
    storage = LazyMemmapStorage(10, scratch_dir=tmp_path)
    storage.set(range(2), {"a": torch.ones(2, 0), "b": torch.ones(2)})
    assert pickle.loads(pickle.dumps(storage))[1]["a"].shape == (0,)


def test_a_pickle_sends_the_path_and_not_the_data(scratch: Path) -> None:
    storage = _write(LazyMemmapStorage(100_000))
    packed = pickle.dumps(storage)
    assert len(packed) < 250_000  # the log: 98 KiB of ring and a byte a slot
    other: LazyMemmapStorage = pickle.loads(packed)
    assert other[2]["number"] == 2
    storage[2] = {"number": 9, "flag": True, "pixels": torch.zeros(40, 40, dtype=torch.uint8)}
    assert other[2]["number"] == 9


def test_temporary_files_go_when_the_last_user_goes(scratch: Path) -> None:
    storage = _write(LazyMemmapStorage(10))
    other: LazyMemmapStorage = pickle.loads(pickle.dumps(storage))
    folder = storage.folder
    assert folder is not None
    assert folder.parent == scratch
    del storage
    gc.collect()
    assert folder.exists()
    assert other[1]["number"] == 1
    del other
    gc.collect()
    assert not list(scratch.iterdir())


def test_cleanup_leaves_a_storage_as_new(scratch: Path) -> None:
    storage = _write(LazyMemmapStorage(10))
    storage.cleanup()
    assert not list(scratch.iterdir())
    assert len(storage) == 0
    with pytest.raises(IndexError):
        storage[0]
    assert len(_write(storage)) == 3
    storage.cleanup()
    storage.cleanup()


def test_cleanup_of_a_given_folder_removes_only_what_was_made(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("stays")
    storage = _write(LazyMemmapStorage(10, scratch_dir=tmp_path))
    storage.cleanup()
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


@pytest.mark.parametrize("auto_cleanup", [None, True, False])
def test_files_in_a_given_folder_stay_unless_asked(tmp_path: Path, auto_cleanup: bool | None) -> None:
    storage = _write(LazyMemmapStorage(10, scratch_dir=tmp_path, auto_cleanup=auto_cleanup))
    del storage
    gc.collect()
    assert bool(list(tmp_path.iterdir())) == (not auto_cleanup)


def test_temporary_files_stay_when_asked(scratch: Path) -> None:
    storage = _write(LazyMemmapStorage(10, auto_cleanup=False))
    folder = storage.folder
    assert folder is not None
    del storage
    gc.collect()
    assert (folder / "rows.bin").exists()


_CHILD = """
import sys, tempfile, time, torch
tempfile.tempdir = sys.argv[1]
from replaybank import _native
from replaybank.storages import LazyMemmapStorage
storage = LazyMemmapStorage(10)
storage.set(0, torch.zeros(1000))
print(storage.folder, flush=True)
{then}
"""


def test_temporary_files_go_when_the_interpreter_exits(scratch: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _CHILD.format(then=""), str(scratch)],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip().startswith(str(scratch))
    assert not list(scratch.iterdir())


def test_files_of_a_killed_process_go_when_the_next_temporary_folder_is_made(scratch: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", _CHILD.format(then="time.sleep(60)"), str(scratch)],
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        abandoned = Path(process.stdout.readline().strip())
        assert abandoned.exists()
        alive = ScratchFolder.temporary()
        assert abandoned.exists(), "its user is alive"
        process.send_signal(signal.SIGKILL)
    assert abandoned.exists()
    ScratchFolder.temporary().leave()
    assert not abandoned.exists()
    assert alive.path.exists()
    alive.leave()
    assert not list(scratch.iterdir())


def _replace(storage: Any, slot: int) -> None:
    storage[slot] = torch.tensor(100.0 + slot)


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_another_process_writes_into_the_same_files(scratch: Path, method: str) -> None:
    if method not in multiprocessing.get_all_start_methods():
        pytest.skip(f"this system cannot {method}")
    storage = LazyMemmapStorage(4, shared_init=True)
    storage.set(range(4), torch.arange(4.0))
    mark = storage.log.mark()
    context: Any = multiprocessing.get_context(method)
    process = context.Process(target=_replace, args=(storage, 2))
    process.start()
    process.join(PATIENCE)
    assert process.exitcode == 0
    assert storage[:].tolist() == [0, 1, 102, 3]
    assert storage.log.changes(mark).touched == [(2, 1)], "the log is shared"
    folder = storage.folder
    assert folder is not None
    assert folder.exists(), "a child that exits must not take its parent's files"


def test_a_pickle_whose_files_are_gone_says_so(scratch: Path) -> None:
    storage = _write(LazyMemmapStorage(10))
    packed = pickle.dumps(storage)
    storage.cleanup()
    with pytest.raises(FileNotFoundError):
        pickle.loads(packed)


def test_making_a_large_storage_writes_nothing(tmp_path: Path) -> None:
    storage = LazyMemmapStorage(1_000_000, scratch_dir=tmp_path)
    began = time.monotonic()
    storage.set(0, {"a": torch.ones(100), "b": torch.ones(100)})
    assert (tmp_path / "rows.bin").stat().st_size == 1_000_000 * 832
    assert time.monotonic() - began < 30


def test_the_blocks_of_the_files_are_reserved_when_they_are_made(tmp_path: Path) -> None:
    probe = tmp_path / "probe"
    with probe.open("wb") as file:
        file.truncate(1 << 20)
        if _native.reserve_blocks(file.fileno(), 1 << 20) != 0:
            pytest.skip("this file system cannot reserve blocks")
    probe.unlink()
    for existsok in (False, True):
        storage = LazyMemmapStorage(1000, scratch_dir=tmp_path, auto_cleanup=False, existsok=existsok)
        storage.set(range(1), {"a": torch.zeros(1, 300), "b": torch.zeros(1), "c": torch.ones(1)})
        files = list(tmp_path.glob("*.bin"))
        assert len(files) == 2
        for path in files:
            assert path.stat().st_blocks * 512 >= path.stat().st_size
        assert storage[0]["c"] == 1


def test_a_disk_that_is_full_is_an_error_at_the_first_write_that_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = iter([errno.EINTR, 0, errno.ENOSPC])
    monkeypatch.setattr(_native, "reserve_blocks", lambda file, count: next(answers))
    storage = LazyMemmapStorage(10, scratch_dir=tmp_path)
    item = {"a": torch.zeros(1, 300), "b": torch.zeros(1), "c": torch.ones(1)}
    with pytest.raises(OSError, match="No space left") as error:
        storage.set(range(1), item)
    assert error.value.errno == errno.ENOSPC
    assert list(tmp_path.iterdir()) == []
    monkeypatch.setattr(_native, "reserve_blocks", lambda file, count: -1)  # it cannot: the files stay sparse
    storage.set(range(1), item)
    assert storage[0]["c"] == 1
