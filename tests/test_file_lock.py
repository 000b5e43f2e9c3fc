"""A lock on a file ends with the process that took it, whatever that process has forked."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from http_server import serving
from patience import PATIENCE
from replaybank import checkpoint
from replaybank.datasets.openx.locks import FolderLock
from replaybank.datasets.openx.sources import download as downloads
from replaybank.file_lock import FileLock
from replaybank.storages.scratch import ScratchFolder

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="no processes are forked here")


@contextlib.contextmanager
def forked(act: Callable[[Callable[[], None]], Any]) -> Iterator[int]:
    """A process that does something, and calls what it is given; gives its number when it has done that.

    What it is given forks a child, which does nothing, and lives until the end of the block.
    """
    there, tell = os.pipe()
    wait, over = os.pipe()

    def fork() -> None:
        if os.fork() == 0:
            os.close(over)
            os.write(tell, b"x")
            os.read(wait, 1)  # until its other end is closed, here
            os._exit(0)

    def stay() -> None:
        fork()
        os.close(over)
        os.read(wait, 1)

    process = os.fork()
    if process == 0:
        try:
            act(stay)
        finally:
            os._exit(0)
    os.close(wait)
    os.close(tell)
    try:
        assert os.read(there, 1) == b"x", "the process has failed"
        yield process
    finally:
        os.close(over)
        os.close(there)


def kill(process: int) -> None:
    os.kill(process, signal.SIGKILL)
    os.waitpid(process, 0)


def comes_to_an_end(act: Callable[[], Any]) -> bool:
    """Whether something is done, and does not wait for a lock."""
    thread = threading.Thread(target=act, daemon=True)
    thread.start()
    thread.join(PATIENCE)
    return not thread.is_alive()


def test_a_killed_process_holds_no_lock_though_its_child_lives(tmp_path: Path) -> None:
    def hold(stay: Callable[[], None]) -> None:
        lock = FileLock(tmp_path / "lock", os.O_RDWR | os.O_CREAT)
        lock.take()
        stay()

    with forked(hold) as process:
        other = FileLock(tmp_path / "lock", os.O_RDWR)
        with pytest.raises(BlockingIOError):
            other.take(wait=False)
        kill(process)
        other.take(wait=False)
        other.release()


def test_a_forked_child_neither_holds_nor_frees_its_parents_lock(tmp_path: Path) -> None:
    lock = FileLock(tmp_path / "lock", os.O_RDWR | os.O_CREAT)
    lock.take()
    process = os.fork()
    if process == 0:
        held = lock.held
        lock.release()
        os._exit(held)
    assert os.waitpid(process, 0)[1] == 0
    assert lock.held
    other = FileLock(tmp_path / "lock", os.O_RDWR)
    with pytest.raises(BlockingIOError):
        other.take(wait=False)
    lock.release()
    lock.release()
    assert not lock.held
    other.take(wait=False)
    with pytest.raises(RuntimeError, match="was released"):
        lock.take()


def test_a_lock_that_is_forgotten_is_free(tmp_path: Path) -> None:
    lock = FileLock(tmp_path, os.O_RDONLY)  # a folder can be locked as well
    lock.take()
    del lock
    FileLock(tmp_path, os.O_RDONLY).take(wait=False)


def test_many_hold_a_lock_that_is_not_exclusive(tmp_path: Path) -> None:
    first, second, third = (FileLock(tmp_path, os.O_RDONLY) for _ in range(3))
    first.take(exclusive=False)
    second.take(exclusive=False)
    with pytest.raises(BlockingIOError):
        third.take(wait=False)
    first.release()
    second.take(wait=False)  # the last one may have it for itself


def test_a_lock_knows_whether_its_file_is_still_the_one_of_that_name(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    lock = FileLock(path, os.O_RDWR | os.O_CREAT)
    assert lock.is_of(path)
    path.unlink()
    assert not lock.is_of(path)
    path.touch()
    assert not lock.is_of(path)


def test_a_folder_is_free_when_its_converter_was_killed_and_a_child_of_it_lives(tmp_path: Path) -> None:
    def convert(stay: Callable[[], None]) -> None:
        lock = FolderLock(tmp_path, "a test")
        stay()
        lock.release()

    with forked(convert) as process:
        with pytest.raises(BlockingIOError, match="a test is writing"):
            FolderLock(tmp_path, "a test")
        kill(process)
        FolderLock(tmp_path, "a test").release()


def test_a_checkpoint_is_saved_when_a_saver_was_killed_and_a_child_of_it_lives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def save(stay: Callable[[], None]) -> None:
        monkeypatch.setattr(checkpoint, "fsync_directory", lambda path: stay())
        checkpoint.save(tmp_path, {"step": 1})

    with forked(save) as process:
        kill(process)
        assert comes_to_an_end(lambda: checkpoint.save(tmp_path, {"step": 2}))
    assert checkpoint.load(tmp_path) == {"step": 2}


def test_a_file_is_downloaded_when_a_downloader_was_killed_and_a_child_of_it_lives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    (tmp_path / "served").mkdir()
    (tmp_path / "served" / "file").write_bytes(b"content")

    def download(stay: Callable[[], None]) -> None:
        monkeypatch.setattr(downloads, "_fetch", lambda *given: stay())
        downloads.download("http://127.0.0.1/file", tmp_path / "file")

    with forked(download) as process:
        kill(process)
        with serving(tmp_path / "served") as server:
            assert comes_to_an_end(lambda: downloads.download(f"{server.url}/file", tmp_path / "file"))
    assert (tmp_path / "file").read_bytes() == b"content"


def test_a_download_that_was_given_up_goes_on_though_a_child_lives(tmp_path: Path) -> None:
    """Within one process: a worker that was started meanwhile must not keep the next try waiting."""
    with contextlib.ExitStack() as children:

        def fork_and_fail(*given: Any) -> None:
            wait, over = os.pipe()
            if os.fork() == 0:
                os.close(over)
                os.read(wait, 1)
                os._exit(0)
            os.close(wait)
            children.callback(os.close, over)
            raise ConnectionError

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(downloads, "_fetch", fork_and_fail)
            with pytest.raises(ConnectionError):
                downloads.download("http://127.0.0.1/file", tmp_path / "file")
            patch.setattr(downloads, "_fetch", lambda url, target, part, *given: part.write(b"content"))
            assert comes_to_an_end(lambda: downloads.download("http://127.0.0.1/file", tmp_path / "file"))
    assert (tmp_path / "file").read_bytes() == b"content"


def test_the_files_of_a_killed_process_go_though_a_child_of_it_lives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))

    def use(stay: Callable[[], None]) -> None:
        folder = ScratchFolder.temporary()
        stay()
        folder.leave()

    with forked(use) as process:
        (left,) = tmp_path.iterdir()
        ScratchFolder.temporary().leave()
        assert left.exists()  # its user lives
        kill(process)
        ScratchFolder.temporary().leave()
        assert not left.exists()
