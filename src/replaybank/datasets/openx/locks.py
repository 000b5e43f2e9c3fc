"""One writer a folder at a time."""

from __future__ import annotations

import os
from pathlib import Path

from replaybank.file_lock import FileLock

LOCK = ".lock"


class FolderLock:
    """Keeps other writers out of a folder until it is released, or its process dies. Thread-safe.

    The file is there while somebody writes; one that a killed process left is taken over. A forked child
    holds no lock, and what it releases stays locked.

    Args:
        folder: the folder, which exists.
        what: what is going on there, for the message: ``"another conversion"``.

    Raises:
        BlockingIOError: somebody is at work there.
    """

    def __init__(self, folder: Path, what: str) -> None:
        self._path = folder / LOCK
        self._lock: FileLock | None = None
        while self._lock is None:
            lock = FileLock(self._path, os.O_RDWR | os.O_CREAT)
            try:
                lock.take(wait=False)
            except BlockingIOError:
                raise BlockingIOError(f"{what} is writing to {folder}; wait for it, or stop it") from None
            # Whoever held it may have removed the file in between: then it locks nobody out.
            if lock.is_of(self._path):
                self._lock = lock

    def release(self) -> None:
        """Let others in. Does nothing the second time."""
        lock, self._lock = self._lock, None
        if lock is not None and lock.held:
            self._path.unlink(missing_ok=True)
            lock.release()
