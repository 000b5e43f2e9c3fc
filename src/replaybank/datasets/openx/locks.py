"""One writer a folder at a time."""

from __future__ import annotations

import os
import weakref
from pathlib import Path

try:
    import fcntl
except ImportError:  # no file locks on this system: two writers of one folder must then not meet
    fcntl = None  # type: ignore[assignment]

LOCK = ".lock"

_HELD: weakref.WeakSet[FolderLock] = weakref.WeakSet()


class FolderLock:
    """Keeps other writers out of a folder until it is released, or its process dies. Thread-safe.

    The file is there while somebody writes; one that a killed process left is taken over.

    Args:
        folder: the folder, which exists.
        what: what is going on there, for the message: ``"another conversion"``.

    Raises:
        BlockingIOError: somebody is at work there.
    """

    def __init__(self, folder: Path, what: str) -> None:
        self._path = folder / LOCK
        self._descriptor: int | None = None
        _HELD.add(self)
        if fcntl is None:
            return
        while self._descriptor is None:
            descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                # Whoever held it may have removed the file in between: then it locks nobody out.
                held = self._path.exists() and os.path.samestat(os.fstat(descriptor), os.stat(self._path))
            except BlockingIOError:
                os.close(descriptor)
                raise BlockingIOError(f"{what} is writing to {folder}; wait for it, or stop it") from None
            except BaseException:
                os.close(descriptor)
                raise
            if held:
                self._descriptor = descriptor
            else:
                os.close(descriptor)

    def release(self) -> None:
        """Let others in. Does nothing the second time."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None and fcntl is not None:
            self._path.unlink(missing_ok=True)
            fcntl.flock(
                descriptor, fcntl.LOCK_UN
            )  # by hand: a forked child may hold a copy of the descriptor
            os.close(descriptor)


def _let_go() -> None:
    """In a forked child: the lock is the parent's alone, and ends with it, though the child lives on."""
    for lock in list(_HELD):
        descriptor, lock._descriptor = lock._descriptor, None
        if descriptor is not None:
            os.close(descriptor)  # of a copy: the lock itself stays


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_let_go)
