"""Folders of memory-mapped files: made exclusively, sized exactly, gone with their last user."""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
import weakref
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from replaybank import _native
from replaybank.file_lock import AVAILABLE, FileLock
from replaybank.storages.capacity import check_disk, human

_PREFIX = "replaybank-scratch-"
_LOCK = ".users"


class FileArena:
    """Buffers that are files of a folder, mapped into memory.

    Args:
        folder: an existing folder.
        mode: ``"create"``: a file that exists is an error; ``"reuse"``: it is taken if its size is right;
            ``"open"``: it must exist.
    """

    def __init__(self, folder: Path, mode: Literal["create", "reuse", "open"]) -> None:
        self.folder = folder
        self.mode = mode
        self.created: list[Path] = []

    def check(self, wanted: int, what: str) -> None:
        """Raise OSError if the disk has no room."""
        if self.mode != "open":
            check_disk(wanted, what, self.folder)

    def take(self, name: str, count: int, *, zero: bool) -> Tensor:
        """Map the file ``<name>.bin`` of exactly ``count`` bytes; a new one reads as zero.

        Raises:
            FileExistsError: it is there and must not be.
            FileNotFoundError: it is not there and must be.
            OSError: the disk is full.
            ValueError: it has another size.
        """
        path = self.folder / f"{name}.bin"
        if self.mode == "create" or (self.mode == "reuse" and not path.exists()):
            self._create(path, count)
        elif self.mode == "reuse" and path.stat().st_size == count:
            with path.open("r+b") as file:
                _reserve(file.fileno(), path, count)
        size = path.stat().st_size
        if size != count:  # torch.from_file would silently extend a short one
            raise ValueError(
                f"{path} has {size} bytes, and {count} are needed: it is of another storage. Choose another "
                "folder, or remove it."
            )
        if count == 0:
            return torch.empty(0, dtype=torch.uint8)
        return torch.from_file(str(path), shared=True, size=count, dtype=torch.uint8)

    def _create(self, path: Path, count: int) -> None:
        try:
            file = os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o666)
        except FileExistsError:
            raise FileExistsError(
                f"{path} exists. To use what is there, pass existsok=True; else choose another folder."
            ) from None
        self.created.append(path)
        try:
            os.ftruncate(file, count)
            _reserve(file, path, count)
        except OSError as error:
            raise OSError(error.errno, f"Cannot make {path} with {human(count)}: {error.strerror}") from error
        finally:
            os.close(file)

    def undo(self) -> None:
        """Remove the files that were made."""
        for path in self.created:
            path.unlink(missing_ok=True)
        self.created.clear()


def _reserve(file: int, path: Path, count: int) -> None:
    """Have the blocks of a file set aside: writing to a mapping of a full disk would kill the process.

    Where the file system cannot, the file stays sparse.

    Raises:
        OSError: the disk is full.
    """
    status = errno.EINTR
    while status == errno.EINTR:  # a signal came, and Python has handled it
        status = _native.reserve_blocks(file, count)
    if status > 0:
        raise OSError(status, f"{os.strerror(status)}: {human(count)} cannot be reserved for {path}")


class ScratchFolder:
    """A folder that is removed when its last user goes: an object, in this or another process.

    Every user holds a shared lock (``flock``) on a file in it; who goes and gets the lock for himself alone
    was the last and removes the folder. The system drops the locks of a process that was killed, and the next
    temporary folder that is made removes those that nobody holds: a crash leaves files only until then.
    Forked children are no users: the folder goes with their parent, their mappings stay usable.

    Safe in any thread.

    Args:
        path: an existing scratch folder to use as well.
    """

    def __init__(self, path: Path, lock: FileLock | None = None) -> None:
        self.path = path
        self._finalizer = weakref.finalize(self, _leave, path, _hold(path) if lock is None else lock)

    @classmethod
    def temporary(cls) -> ScratchFolder:
        """A new folder in the system's temporary one; abandoned ones are removed."""
        parent = Path(tempfile.gettempdir())
        _sweep(parent)
        made = Path(tempfile.mkdtemp(prefix="replaybank-", dir=parent))
        (made / _LOCK).touch(exist_ok=False)
        lock = _hold(made)
        # Under its own name only when it is locked: a sweep meanwhile must not take it for abandoned.
        path = parent / (_PREFIX + made.name.removeprefix("replaybank-"))
        made.rename(path)
        return cls(path, lock)

    def leave(self) -> None:
        """Be no user any more. Further calls do nothing."""
        self._finalizer()


def _hold(path: Path) -> FileLock:
    lock = FileLock(path / _LOCK, os.O_RDWR)
    lock.take(exclusive=False)
    return lock


def _leave(path: Path, lock: FileLock) -> None:
    try:
        if lock.held and _alone(lock):
            shutil.rmtree(path, ignore_errors=True)
    finally:
        lock.release()


def _alone(lock: FileLock) -> bool:
    try:
        lock.take(wait=False)
    except OSError:
        return False
    return True


def _sweep(parent: Path) -> None:
    """Remove scratch folders of processes that were killed. Best effort."""
    if not AVAILABLE:
        return
    for path in parent.glob(f"{_PREFIX}*"):
        try:
            lock = FileLock(path / _LOCK, os.O_RDWR)
        except OSError:  # going just now, or somebody else's
            continue
        try:
            if _alone(lock):
                shutil.rmtree(path, ignore_errors=True)
        finally:
            lock.release()
